"""Self loops and the symmetric normalisation against dense matrices."""

import pytest
import torch
from support.small_graph import NODES, features, graph, weights

import fusedmm


@pytest.mark.parametrize("fill", [1.0, 2.5])
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("loops", [False, True])
def test_add_self_loops(loops, heads, fill):
    edge_index = graph(loops)
    if loops:
        edge_index[:, 30] = 2  # a second loop at node 2, which wins
    val = features(40, *([] if heads is None else [heads]))
    adj = fusedmm.CSR.from_edge_index(edge_index, val, NODES)
    keep = edge_index[0] != edge_index[1]
    loop = val.new_full((NODES, *val.shape[1:]), fill)
    for p in (~keep).nonzero()[:, 0]:
        loop[edge_index[0, p]] = val[p]
    row, col, got = adj.add_self_loops(fill).coo()
    node = torch.arange(NODES)
    assert torch.equal(row, torch.cat([edge_index[1][keep], node]))
    assert torch.equal(col, torch.cat([edge_index[0][keep], node]))
    assert torch.equal(got, torch.cat([val[keep], loop]))
    assert adj.add_self_loops().ptr is adj.with_values(val + 1).add_self_loops().ptr  # built once
    assert torch.equal(adj.add_self_loops(fill=fill).val, adj.add_self_loops(fill_value=fill).val)
    assert torch.equal(adj.set_self_loops(fill=fill).val, adj.set_self_loops(fill_value=fill).val)
    pattern = adj.pattern().add_self_loops(fill)
    assert (pattern.val is None) == (fill == 1)
    assert torch.equal(pattern.to_dense(), adj.with_values(torch.ones(40)).add_self_loops(fill).to_dense())


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("add", [False, True])
def test_gcn_norm(add, heads):
    edge_index = graph()
    adj = fusedmm.CSR.from_edge_index(edge_index, size=NODES)
    val = weights(edge_index)
    val = (val if heads is None else torch.stack([val, val.flip(0)], 1)).requires_grad_()

    def f(val):
        return adj.with_values(val).gcn_norm(improved=True, add_self_loops=add).val

    dense = adj.with_values(val).to_dense()
    if add:
        node = torch.arange(NODES)
        dense[node, node] = torch.where(dense[node, node] == 0, 2.0, dense[node, node])
    scale = dense.sum(1).pow(-0.5)
    scale = torch.where(scale.isinf(), 0, scale)
    expected = dense * scale[:, None] * scale[None, :]
    norm = adj.with_values(val).gcn_norm(improved=True, add_self_loops=add)
    torch.testing.assert_close(norm.to_dense(), expected)
    assert torch.autograd.gradcheck(f, val) and torch.autograd.gradgradcheck(f, val)


@pytest.mark.parametrize("fill", [0.5, 2.0, 3])
@pytest.mark.parametrize("valued", [False, True])
def test_loops_of_any_weight_are_normalised(valued, fill):
    """Against dense numbers; 2 is what ``improved`` adds, and a stated weight goes before it."""
    adj = fusedmm.CSR.from_edge_index(graph(), features(40).exp() if valued else None, NODES)
    dense = adj.to_dense().double()
    dense.diagonal().copy_(torch.where(dense.diagonal() == 0, float(fill), dense.diagonal()))
    scale = dense.sum(1).rsqrt()
    found = adj.gcn_norm(fill_value=fill)
    torch.testing.assert_close(found.to_dense().double(), dense * scale[:, None] * scale, rtol=1e-6, atol=1e-7)
    assert torch.equal(found.val, adj.gcn_norm(improved=True, fill=fill).val)
    assert (fill == 2) == torch.equal(found.val, adj.gcn_norm(improved=True).val)
    assert adj.gcn_norm(dtype=torch.float64).dtype == (adj.dtype or torch.float64)
    for bad, error in (("mean", TypeError), (1e39 if adj.val is None else 10**400, ValueError)):
        with pytest.raises(error, match="gcn_norm: fill_value must be"):
            adj.gcn_norm(fill_value=bad)


def test_the_normalised_pattern_is_made_once():
    adj = fusedmm.CSR.from_edge_index(graph(), size=NODES)
    assert adj.gcn_norm().ptr is adj.gcn_norm().ptr
    assert adj.gcn_norm().t().idx is adj.gcn_norm().t().idx
    assert not torch.equal(adj.gcn_norm().val, adj.gcn_norm(improved=True).val)
    assert adj.gcn_norm().val.dtype == torch.float32


@pytest.mark.parametrize("held", ["CSR", "edge_index"])
def test_values_of_a_normalised_pattern_are_the_callers_own(held, device):
    edge_index, x = graph().to(device), features(NODES, 4).float().to(device)
    adj = fusedmm.as_csr(edge_index, size=NODES)
    given = adj if held == "CSR" else edge_index
    layer = fusedmm.nn.GCNConv(4, 2).to(device)
    expected, norm = layer(x, given), adj.gcn_norm()
    before = norm.val.clone()
    assert torch.equal(norm @ x, adj.gcn_norm() @ x)
    norm.val.mul_(0.5)
    torch.testing.assert_close(norm.to_dense() @ x, norm @ x)
    assert torch.equal(adj.gcn_norm().val, before) and torch.equal(layer(x, given), expected)


def test_normalisation_of_a_graph_that_is_not_square():
    adj = fusedmm.CSR.from_coo(torch.tensor([0]), torch.tensor([2]), shape=(2, 3))
    with pytest.raises(ValueError, match=r"square matrix, not one of shape \(2, 3\)"):
        adj.gcn_norm()
    with pytest.raises(ValueError, match="square"):
        adj.add_self_loops()


def test_degrees_are_summed_in_full_precision_under_autocast():
    hub = torch.stack([torch.arange(1, 1001), torch.zeros(1000, dtype=torch.int64)])
    adj = fusedmm.CSR.from_edge_index(hub, torch.ones(1000), 1001)
    expected = adj.gcn_norm().val
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(adj.gcn_norm().val, expected)
