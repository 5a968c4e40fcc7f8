"""The attention layers against PyG's: the same parameters from a seed, the same numbers, the same gradients."""

import copy
import itertools

import pytest
import torch
from support.attention_inputs import F_IN, F_OUT, LOOPED, NAMES, TARGETS, D, inputs, pair
from support.parity import check, make, on, ours, results, theirs
from support.small_graph import NODES, features, graph

import fusedmm


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads, concat", [(1, True), (3, True), (3, False), (8, True), (1, False)])
@pytest.mark.parametrize("edge_dim", [None, 1, D])
@pytest.mark.parametrize("bias", [False, True])
def test_heads_and_edge_features(name, heads, concat, edge_dim, bias, device):
    options = {"heads": heads, "concat": concat, "edge_dim": edge_dim, "bias": bias}
    check(name, [F_IN, F_OUT], inputs(edge_dim), device=device, **options)
    check(name, [(F_IN, D), F_OUT], pair(edge_dim), device=device, **options)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("add_self_loops", [False, True])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("fill", ["mean", "add", "sum", "max", "min", 0.7, torch.arange(3.0).double()], ids=str)
def test_self_loops_and_their_features(name, add_self_loops, loops, fill, device):
    options = {"edge_dim": D, "fill_value": fill, "add_self_loops": add_self_loops, "heads": 2}
    check(name, [F_IN, F_OUT], inputs(D, loops), device=device, **options)
    check(name, [(F_IN, D), F_OUT], pair(D), device=device, **options)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("add_self_loops", [False, True])
@pytest.mark.parametrize("slope, concat, residual", [(0.2, True, True), (0.01, False, True), (0.9, True, False)])
def test_residual_and_slope(name, add_self_loops, slope, concat, residual, device):
    options = {"negative_slope": slope, "concat": concat, "residual": residual, "add_self_loops": add_self_loops}
    check(name, [F_IN, F_OUT], inputs(), heads=2, device=device, **options)
    check(name, [(F_IN, D), F_OUT], pair(), heads=2, device=device, **options)


@pytest.mark.parametrize("edge_dim", [None, D])
@pytest.mark.parametrize("of", [inputs, pair])
def test_gatv2_shares_weights(of, edge_dim, device):
    size = F_IN
    given = of(edge_dim)
    if of is pair:
        given[0] = given[0][0], features(TARGETS, F_IN, seed=5)
        size = (F_IN, F_IN)
    check("GATv2Conv", [size, F_OUT], given, heads=2, edge_dim=edge_dim, share_weights=True, device=device)


@pytest.mark.parametrize("beta, root_weight", [*itertools.product([False, True], [False, True])])
@pytest.mark.parametrize("concat", [False, True])
def test_transformer_skip(beta, root_weight, concat, device):
    options = {"heads": 3, "beta": beta, "root_weight": root_weight, "concat": concat}
    check("TransformerConv", [F_IN, F_OUT], inputs(), device=device, **options)
    check("TransformerConv", [(F_IN, D), F_OUT], pair(D), edge_dim=D, device=device, **options)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("add_self_loops", [False, True])
def test_agnn(requires_grad, add_self_loops, device):
    x = features(NODES, F_IN)
    x[4] = 0  # has no direction
    options = {"requires_grad": requires_grad, "add_self_loops": add_self_loops}
    check("AGNNConv", [], [x, graph()], device=device, **options)


def test_gat_of_targets_without_features(device):
    x, edge_index, _ = on(device, pair())
    mine, peer = check("GATConv", [(F_IN, D), F_OUT], pair(), heads=2, device=device)
    for size in [(NODES, TARGETS), None]:
        given = (x[0], None), edge_index, None, size
        torch.testing.assert_close(mine(*given), peer(*given))


@pytest.mark.parametrize("name", NAMES)
def test_one_weight_for_both_sides(name, device):
    x = features(NODES, F_IN), features(TARGETS, F_IN, seed=5)
    check(name, [F_IN, F_OUT], [x, pair()[1]], heads=2, device=device)
    check(name, [(F_IN, F_IN), F_OUT], [x[0], graph()], heads=2, device=device)  # two weights, one x


@pytest.mark.parametrize("name", NAMES)
def test_edge_features_without_an_axis(name, device):
    given = on(device, [features(NODES, F_IN), graph(), features(40, seed=6)])
    if name == "TransformerConv":  # PyG's takes [edges, 1] alone
        mine = make(ours, name, F_IN, F_OUT, heads=2, edge_dim=1).to(device)
        assert torch.equal(mine(*given), mine(*given[:2], given[2][:, None]))
    else:
        check(name, [F_IN, F_OUT], given, heads=2, edge_dim=1, device=device)


@pytest.mark.parametrize("name", NAMES)
def test_no_edges_and_no_nodes(name, device):
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    check(name, [F_IN, F_OUT], [features(NODES, F_IN), none], heads=2, device=device)
    layer = make(ours, name, F_IN, F_OUT, heads=2).to(device)
    assert layer(features(0, F_IN).to(device), none).shape == (0, 2 * F_OUT)


@pytest.mark.parametrize("name", LOOPED)
def test_nodes_without_edges_get_the_bias(name, device):
    mine, _ = check(name, [F_IN, F_OUT], inputs(), heads=2, add_self_loops=False, device=device)
    assert torch.equal(mine(*on(device, inputs()))[8:], mine.bias.expand(3, -1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_float32(name, edge_dim, device):
    given = [a.float() if a is not None and a.is_floating_point() else a for a in on(device, inputs(edge_dim))]
    mine, peer = (make(m, name, F_IN, F_OUT, heads=3, edge_dim=edge_dim).to(device).float() for m in (ours, theirs))
    torch.testing.assert_close(results(mine, given), results(peer, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_half_precision_and_autocast(name, edge_dim, device):
    given = [a.float() if a is not None and a.is_floating_point() else a for a in on(device, inputs(edge_dim))]
    layer = make(ours, name, F_IN, F_OUT, heads=3, edge_dim=edge_dim).to(device).float()
    expected = layer(*given)
    with torch.autocast(device, dtype=torch.bfloat16):
        mixed = layer(*given)
    mixed.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters() if p.grad is not None)
    torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.1)
    given = [a.bfloat16() if a is not None and a.is_floating_point() else a for a in given]
    half = copy.deepcopy(layer).bfloat16()(*given)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.05, atol=0.1)


# ---- attention weights and dropout ----


def alpha_of(layer, given):
    out, (edges, alpha) = layer(*given, return_attention_weights=True)
    return out, edges, alpha


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_attention_weights(name, edge_dim, device):
    for size, given in on(device, ((F_IN, inputs(edge_dim)), ((F_IN, D), pair(edge_dim)))):
        mine, peer = check(name, [size, F_OUT], given, heads=2, edge_dim=edge_dim, device=device)
        got, expected = alpha_of(mine, given), alpha_of(peer, given)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        grads = [
            torch.autograd.grad(a.sin().sum(), p, allow_unused=True)
            for _, _, a in (got, expected)
            for p in (list((mine if a is got[2] else peer).parameters())[:1])
        ]
        torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-12)
        left_out = mine(*given, return_attention_weights=False)
        assert isinstance(left_out, tuple) is isinstance(peer(*given, return_attention_weights=False), tuple)


@pytest.mark.parametrize("name", NAMES)
def test_attention_weights_of_other_forms(name, device):
    """They come back as a CSR, or as a torch sparse tensor of the layout given, and gradients pass through them."""
    x, edges = on(device, inputs()[:2])
    adj = fusedmm.CSR.from_edge_index(edges.unique(dim=1), size=NODES)
    layer = make(ours, name, F_IN, F_OUT, heads=2).to(device)

    def gradients(alpha):
        return [
            g for g in torch.autograd.grad(alpha.sin().sum(), layer.parameters(), allow_unused=True) if g is not None
        ]

    out, (given, alpha) = layer(x, adj, return_attention_weights=True)
    assert given.val is alpha and given.nnz == len(alpha)
    dense, wanted = given.to_dense().detach(), gradients(alpha)
    assert any(g.abs().max() > 1e-3 for g in wanted)
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        found, (weights, _) = layer(x, adj.to_torch(layout), return_attention_weights=True)
        torch.testing.assert_close(found, out)
        assert weights.layout == layout
        torch.testing.assert_close(weights.detach().to_dense(), dense)
        torch.testing.assert_close(gradients(weights.values()), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_attention_weights_of_a_csr(name, device):
    mine, (x, edge_index, _) = on(device, (make(ours, name, F_IN, F_OUT, heads=2), inputs()))
    out, edges, alpha = alpha_of(mine, (x, fusedmm.as_csr(edge_index, size=NODES)))
    expected, listed, weights = alpha_of(mine, (x, edge_index))
    assert torch.equal(out, expected) and torch.equal(alpha, weights) and torch.equal(edges.val, alpha)
    assert torch.equal(torch.stack(edges.coo()[1::-1]), listed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_dropout_in_training_alone(name, edge_dim, device):
    """What is dropped is random, so the result is compared with what the weights that are left come to."""
    given = on(device, inputs(edge_dim))
    mine, peer = check(name, [F_IN, F_OUT], given, heads=8, edge_dim=edge_dim, device=device)
    mine.dropout = peer.dropout = 0.5
    torch.testing.assert_close(mine.eval()(*given), peer.eval()(*given))
    full = alpha_of(mine, given)[2]
    mine.train()
    torch.manual_seed(1)
    out, edges, alpha = alpha_of(mine, given)
    torch.manual_seed(1)
    rounding = 0 if device == "cpu" else 1e-12
    torch.testing.assert_close(mine(*given), out, rtol=0, atol=rounding)  # asking for weights changes nothing
    assert not torch.allclose(mine(*given), out)
    if name == "TransformerConv":  # as in PyG, those before dropout
        return torch.testing.assert_close(alpha, full)
    kept = alpha != 0
    torch.testing.assert_close(alpha, torch.where(kept, 2 * full, 0))
    assert 0.4 < kept.double().mean() < 0.6
    values = (mine.lin if name == "GATConv" else mine.lin_l)(given[0]).view(NODES, 8, F_OUT)
    summed = torch.zeros_like(values).index_add_(0, edges[1], alpha[..., None] * values[edges[0]])
    torch.testing.assert_close(out, summed.flatten(1) + mine.bias)


def test_dropout_of_the_transformer_reaches_edge_features(device):
    """In training the mean over many masks is the result without dropout."""
    given = on(device, inputs(D))
    layer = make(ours, "TransformerConv", F_IN, F_OUT, heads=4, edge_dim=D, dropout=0.3).to(device)
    with torch.no_grad():
        mean = sum(layer(*given) for _ in range(2000)) / 2000
        expected = layer.eval()(*given)
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.1)


# ---- forms of a graph ----


def sorted_graph():
    """An edge_index in the order of a target-major CSR without duplicates, so that edge features fit every form."""
    return torch.unique(graph().flip(0), dim=1).flip(0).contiguous()


class SparseTensor:
    """What the layers see of torch_sparse's matrix."""

    def __init__(self, ptr, idx, val):
        self.parts = ptr, idx, val

    def csr(self):
        return self.parts

    def sparse_sizes(self):
        return NODES, NODES


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", [*NAMES, "AGNNConv"])
def test_every_form_of_a_graph_gives_the_same(name, device):
    edge_index = sorted_graph().to(device)
    ptr = fusedmm.as_csr(edge_index, size=NODES).ptr
    value = features(edge_index.shape[1], seed=6).to(device)
    coo = torch.sparse_coo_tensor(edge_index.flip(0), value, (NODES, NODES)).coalesce()
    forms = {
        "CSR": fusedmm.as_csr(edge_index, size=NODES),
        "torch COO": coo,
        "torch CSR": coo.to_sparse_csr(),
        "torch CSC": coo.to_sparse_csc(),
        "tuple": (ptr, edge_index[0], None, (NODES, NODES)),
        "SparseTensor": SparseTensor(ptr, edge_index[0], value),
        "EdgeIndex": pytest.importorskip("torch_geometric").EdgeIndex(edge_index, sparse_size=(NODES, NODES)),
    }
    x = features(NODES, F_IN).to(device)
    layer = (make(ours, name) if name == "AGNNConv" else make(ours, name, F_IN, F_OUT, heads=2)).to(device)
    for form, adj in forms.items():
        torch.testing.assert_close(layer(x, adj), layer(x, edge_index), msg=form)
    if name == "AGNNConv":
        return
    layer = make(ours, name, F_IN, F_OUT, heads=2, edge_dim=D).to(device)
    value = features(edge_index.shape[1], D, seed=6).to(device)
    expected = layer(x, edge_index, value)
    for form, adj in {
        "CSR with values": forms["CSR"].with_values(value),
        "SparseTensor": SparseTensor(ptr, edge_index[0], value),
        "torch COO": torch.sparse_coo_tensor(edge_index.flip(0), value, (NODES, NODES, D)).coalesce(),
    }.items():
        torch.testing.assert_close(layer(x, adj), expected, msg=form)
    del forms["torch CSC"]  # which has an order of its own
    for form, adj in forms.items():
        torch.testing.assert_close(layer(x, adj, value), expected, msg=form)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_torch_matrix_as_in_pyg(name, device):
    """One number per edge is no edge feature, a row of them is."""
    edge_index, x = on(device, (sorted_graph(), features(NODES, F_IN)))
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    mine, peer = (make(m, name, F_IN, F_OUT, heads=2, edge_dim=D, **options).to(device) for m in (ours, theirs))
    for shape in ((edge_index.shape[1],), (edge_index.shape[1], D)):
        value = features(*shape).to(device)
        adj = torch.sparse_coo_tensor(edge_index.flip(0), value, (NODES, NODES, *shape[1:])).coalesce()
        if name == "TransformerConv" and len(shape) == 1:
            with pytest.raises(ValueError, match="needs edge_attr"):
                mine(x, adj)
        else:
            torch.testing.assert_close(mine(x, adj), peer(x, adj))
