"""The attention layers against PyG's: the same parameters from a seed, the same numbers, the same gradients."""

import copy
import itertools

import pytest
import torch
from attention_inputs import F_IN, F_OUT, LOOPED, NAMES, TARGETS, D, inputs, pair
from parity import check, make, ours, results, theirs
from small_graph import NODES, features, graph

import fusedmm


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads, concat", [(1, True), (3, True), (3, False), (8, True), (1, False)])
@pytest.mark.parametrize("edge_dim", [None, 1, D])
@pytest.mark.parametrize("bias", [False, True])
def test_heads_and_edge_features(name, heads, concat, edge_dim, bias):
    check(name, [F_IN, F_OUT], inputs(edge_dim), heads=heads, concat=concat, edge_dim=edge_dim, bias=bias)
    check(name, [(F_IN, D), F_OUT], pair(edge_dim), heads=heads, concat=concat, edge_dim=edge_dim, bias=bias)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("add_self_loops", [False, True])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("fill", ["mean", "add", "sum", "max", "min", 0.7, torch.arange(3.0).double()], ids=str)
def test_self_loops_and_their_features(name, add_self_loops, loops, fill):
    options = {"edge_dim": D, "fill_value": fill, "add_self_loops": add_self_loops, "heads": 2}
    check(name, [F_IN, F_OUT], inputs(D, loops), **options)
    check(name, [(F_IN, D), F_OUT], pair(D), **options)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("add_self_loops", [False, True])
@pytest.mark.parametrize("slope, concat, residual", [(0.2, True, True), (0.01, False, True), (0.9, True, False)])
def test_residual_and_slope(name, add_self_loops, slope, concat, residual):
    options = {"negative_slope": slope, "concat": concat, "residual": residual, "add_self_loops": add_self_loops}
    check(name, [F_IN, F_OUT], inputs(), heads=2, **options)
    check(name, [(F_IN, D), F_OUT], pair(), heads=2, **options)


@pytest.mark.parametrize("edge_dim", [None, D])
@pytest.mark.parametrize("of", [inputs, pair])
def test_gatv2_shares_weights(of, edge_dim):
    size = F_IN
    given = of(edge_dim)
    if of is pair:
        given[0] = given[0][0], features(TARGETS, F_IN, seed=5)
        size = (F_IN, F_IN)
    check("GATv2Conv", [size, F_OUT], given, heads=2, edge_dim=edge_dim, share_weights=True)


@pytest.mark.parametrize("beta, root_weight", [*itertools.product([False, True], [False, True])])
@pytest.mark.parametrize("concat", [False, True])
def test_transformer_skip(beta, root_weight, concat):
    options = {"heads": 3, "beta": beta, "root_weight": root_weight, "concat": concat}
    check("TransformerConv", [F_IN, F_OUT], inputs(), **options)
    check("TransformerConv", [(F_IN, D), F_OUT], pair(D), edge_dim=D, **options)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("add_self_loops", [False, True])
def test_agnn(requires_grad, add_self_loops):
    x = features(NODES, F_IN)
    x[4] = 0  # has no direction
    check("AGNNConv", [], [x, graph()], requires_grad=requires_grad, add_self_loops=add_self_loops)


def test_gat_of_targets_without_features():
    x, edge_index, _ = pair()
    mine, peer = check("GATConv", [(F_IN, D), F_OUT], pair(), heads=2)
    for size in [(NODES, TARGETS), None]:
        given = (x[0], None), edge_index, None, size
        torch.testing.assert_close(mine(*given), peer(*given))


@pytest.mark.parametrize("name", NAMES)
def test_one_weight_for_both_sides(name):
    x = features(NODES, F_IN), features(TARGETS, F_IN, seed=5)
    check(name, [F_IN, F_OUT], [x, pair()[1]], heads=2)
    check(name, [(F_IN, F_IN), F_OUT], [x[0], graph()], heads=2)  # two weights, one x


@pytest.mark.parametrize("name", NAMES)
def test_edge_features_without_an_axis(name):
    edge_attr = features(40, seed=6)
    if name == "TransformerConv":  # PyG's takes [edges, 1] alone
        mine = make(ours, name, F_IN, F_OUT, heads=2, edge_dim=1)
        x, edge_index = features(NODES, F_IN), graph()
        assert torch.equal(mine(x, edge_index, edge_attr), mine(x, edge_index, edge_attr[:, None]))
    else:
        check(name, [F_IN, F_OUT], [features(NODES, F_IN), graph(), edge_attr], heads=2, edge_dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_no_edges_and_no_nodes(name):
    none = torch.empty(2, 0, dtype=torch.int64)
    check(name, [F_IN, F_OUT], [features(NODES, F_IN), none], heads=2)
    layer = make(ours, name, F_IN, F_OUT, heads=2)
    assert layer(features(0, F_IN), none).shape == (0, 2 * F_OUT)


@pytest.mark.parametrize("name", LOOPED)
def test_nodes_without_edges_get_the_bias(name):
    mine, _ = check(name, [F_IN, F_OUT], inputs(), heads=2, add_self_loops=False)
    assert torch.equal(mine(*inputs())[8:], mine.bias.expand(3, -1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_float32(name, edge_dim):
    given = [a.float() if a is not None and a.is_floating_point() else a for a in inputs(edge_dim)]
    mine, peer = (make(m, name, F_IN, F_OUT, heads=3, edge_dim=edge_dim).float() for m in (ours, theirs))
    torch.testing.assert_close(results(mine, given), results(peer, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_half_precision_and_autocast(name, edge_dim):
    given = [a.float() if a is not None and a.is_floating_point() else a for a in inputs(edge_dim)]
    layer = make(ours, name, F_IN, F_OUT, heads=3, edge_dim=edge_dim).float()
    expected = layer(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
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
def test_attention_weights(name, edge_dim):
    for size, given in ((F_IN, inputs(edge_dim)), ((F_IN, D), pair(edge_dim))):
        mine, peer = check(name, [size, F_OUT], given, heads=2, edge_dim=edge_dim)
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
def test_attention_weights_of_a_csr(name):
    mine, (x, edge_index, _) = make(ours, name, F_IN, F_OUT, heads=2), inputs()
    out, edges, alpha = alpha_of(mine, (x, fusedmm.as_csr(edge_index, size=NODES)))
    expected, listed, weights = alpha_of(mine, (x, edge_index))
    assert torch.equal(out, expected) and torch.equal(alpha, weights) and torch.equal(edges.val, alpha)
    assert torch.equal(torch.stack(edges.coo()[1::-1]), listed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, D])
def test_dropout_in_training_alone(name, edge_dim):
    """What is dropped is random, so the result is compared with what the weights that are left come to."""
    given = inputs(edge_dim)
    mine, peer = check(name, [F_IN, F_OUT], given, heads=8, edge_dim=edge_dim)
    mine.dropout = peer.dropout = 0.5
    torch.testing.assert_close(mine.eval()(*given), peer.eval()(*given))
    full = alpha_of(mine, given)[2]
    mine.train()
    torch.manual_seed(1)
    out, edges, alpha = alpha_of(mine, given)
    torch.manual_seed(1)
    assert torch.equal(mine(*given), out)  # asking for weights changes nothing
    assert not torch.equal(mine(*given), out)
    if name == "TransformerConv":  # as in PyG, those before dropout
        return torch.testing.assert_close(alpha, full)
    kept = alpha != 0
    torch.testing.assert_close(alpha, torch.where(kept, 2 * full, 0))
    assert 0.4 < kept.double().mean() < 0.6
    values = (mine.lin if name == "GATConv" else mine.lin_l)(given[0]).view(NODES, 8, F_OUT)
    summed = torch.zeros_like(values).index_add_(0, edges[1], alpha[..., None] * values[edges[0]])
    torch.testing.assert_close(out, summed.flatten(1) + mine.bias)


def test_dropout_of_the_transformer_reaches_edge_features():
    """In training the mean over many masks is the result without dropout."""
    given = inputs(D)
    layer = make(ours, "TransformerConv", F_IN, F_OUT, heads=4, edge_dim=D, dropout=0.3)
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
def test_every_form_of_a_graph_gives_the_same(name):
    edge_index = sorted_graph()
    ptr = fusedmm.as_csr(edge_index, size=NODES).ptr
    value = features(edge_index.shape[1], seed=6)
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
    x = features(NODES, F_IN)
    layer = make(ours, "AGNNConv") if name == "AGNNConv" else make(ours, name, F_IN, F_OUT, heads=2)
    for form, adj in forms.items():
        torch.testing.assert_close(layer(x, adj), layer(x, edge_index), msg=form)
    if name == "AGNNConv":
        return
    layer = make(ours, name, F_IN, F_OUT, heads=2, edge_dim=D)
    value = features(edge_index.shape[1], D, seed=6)
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
def test_values_of_a_torch_matrix_as_in_pyg(name):
    """One number per edge is no edge feature, a row of them is."""
    edge_index, x = sorted_graph(), features(NODES, F_IN)
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    mine, peer = (make(m, name, F_IN, F_OUT, heads=2, edge_dim=D, **options) for m in (ours, theirs))
    for shape in ((edge_index.shape[1],), (edge_index.shape[1], D)):
        adj = torch.sparse_coo_tensor(edge_index.flip(0), features(*shape), (NODES, NODES, *shape[1:])).coalesce()
        if name == "TransformerConv" and len(shape) == 1:
            with pytest.raises(ValueError, match="needs edge_attr"):
                mine(x, adj)
        else:
            torch.testing.assert_close(mine(x, adj), peer(x, adj))
