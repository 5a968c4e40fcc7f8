"""The layers against PyG's: the same parameters from a seed, the same numbers, the same gradients."""

import copy
import itertools
import pickle

import pytest
import torch
from support.parity import check, make, on, ours, results, theirs
from support.small_graph import NODES, features, graph, weights
from torch_geometric import EdgeIndex

import fusedmm
from fusedmm.matrix.normalize import with_loops
from fusedmm.nn.adjacency import with_one_loop

F_IN, F_OUT = 5, 4


def mlp(size=F_IN):
    return torch.nn.Sequential(torch.nn.Linear(size, 6), torch.nn.ReLU(), torch.nn.Linear(6, F_OUT))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"improved": improved, "add_self_loops": add, "normalize": normalize}
        for improved, add, normalize, bias in itertools.product(
            [False, True], [None, False, True], [False, True], [True]
        )
        if normalize or not add
    ]
    + [{"bias": False}, {"aggr": "max"}, {"aggr": "mean"}, {"flow": "source_to_target", "node_dim": -2}],
    ids=str,
)
def test_gcn(options, loops, weighted, device):
    edge_index = graph(loops)
    weight = weights(edge_index) if weighted else None
    check("GCNConv", [F_IN, F_OUT], [features(NODES, F_IN), edge_index, weight], device=device, **options)


@pytest.mark.parametrize("normalize", [True, False])
def test_gcn_with_a_column_of_weights(normalize, device):
    inputs = [features(NODES, F_IN), graph(), weights(graph())[:, None]]
    check("GCNConv", [F_IN, F_OUT], inputs, normalize=normalize, device=device)


def test_gcn_cached_has_one_backward_for_learnt_weights(device):
    for module in (ours, theirs):
        layer = make(module, "GCNConv", F_IN, F_OUT, cached=True).to(device)
        for learnt in (False, True):
            layer.reset_parameters()
            x, edge_index, weight = on(device, (features(NODES, F_IN), graph(), weights(graph())))
            weight.requires_grad_(learnt)
            layer(x, edge_index, weight).sum().backward()
            again = layer(x, edge_index.clone(), weight).sum()
            if learnt:
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    again.backward()
            else:
                again.backward()


def test_gcn_cached_keeps_the_first_graph(device):
    x, edge_index, other = on(device, (features(NODES, F_IN), graph(), graph(seed=9)))
    mine, peer = check("GCNConv", [F_IN, F_OUT], [x, edge_index], calls=2, cached=True, device=device)
    torch.testing.assert_close(mine(x, other), peer(x, other))
    mine.reset_parameters(), peer.reset_parameters()
    peer.load_state_dict(mine.state_dict())
    torch.testing.assert_close(mine(x, other), peer(x, other))


def test_gcn_of_a_batch_of_features(device):
    check("GCNConv", [F_IN, F_OUT], [features(3, NODES, F_IN), graph()], device=device)
    check("SAGEConv", [F_IN, F_OUT], [features(3, NODES, F_IN), graph()], device=device)


def test_gcn_of_no_edges_and_of_no_nodes(device):
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    check("GCNConv", [F_IN, F_OUT], [features(NODES, F_IN), none], device=device)
    layer = make(ours, "GCNConv", F_IN, F_OUT).to(device)
    assert layer(features(0, F_IN).to(device), none).shape == (0, F_OUT)


@pytest.mark.parametrize("aggr", ["mean", "sum", "add", "max", "min"])
@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize(
    "normalize, root_weight, bias", [(False, True, True), (True, True, False), (True, False, True)]
)
def test_sage(aggr, project, normalize, root_weight, bias, device):
    options = {"normalize": normalize, "root_weight": root_weight, "project": project, "bias": bias}
    check("SAGEConv", [F_IN, F_OUT], [features(NODES, F_IN), graph()], aggr=aggr, device=device, **options)


@pytest.mark.parametrize("aggr", ["mean", "max"])
@pytest.mark.parametrize("project", [False, True])
def test_sage_bipartite(aggr, project, device):
    edge_index = graph().to(device)
    edge_index[1] %= 5  # targets 5 and 6 have no neighbours
    pair = on(device, (features(NODES, F_IN), features(7, 3, seed=5)))
    options = {"aggr": aggr, "project": project}
    mine, peer = check("SAGEConv", [(F_IN, 3), F_OUT], [pair, edge_index], device=device, **options)
    for size in [(NODES, 7), (None, 7)]:
        torch.testing.assert_close(mine((pair[0], None), edge_index, size), peer((pair[0], None), edge_index, size))
    torch.testing.assert_close(mine((pair[0], None), edge_index), peer((pair[0], None), edge_index))


@pytest.mark.parametrize("size", [None, (None, None), (NODES, None)])
def test_a_graph_says_how_many_targets_it_has(size, device):
    """Without features of theirs and without a size of the call."""
    edge_index = graph().to(device)
    edge_index[1] %= 5
    x, ones = features(NODES, F_IN).to(device), torch.ones(edge_index.shape[1], device=device)
    mine = fusedmm.nn.SAGEConv((F_IN, 3), F_OUT, root_weight=False).double().to(device)
    adj_t = torch.sparse_coo_tensor(edge_index.flip(0), ones, (7, NODES)).coalesce()
    for holder in (
        fusedmm.CSR.from_edge_index(edge_index, size=(NODES, 7)),
        EdgeIndex(edge_index, sparse_size=(NODES, 7)),
        EdgeIndex(edge_index, sparse_size=(None, 7)),
        adj_t,
        adj_t.to_sparse_csr(),
    ):
        torch.testing.assert_close(mine((x, None), holder, size), mine((x, None), holder, (NODES, 7)))


@pytest.mark.parametrize("train_eps", [False, True])
@pytest.mark.parametrize("aggr", ["add", "max"])
def test_gin(train_eps, aggr, device):
    options = {"aggr": aggr, "device": device}
    check("GINConv", [mlp, 0.3, train_eps], [features(NODES, F_IN), graph()], **options)
    edge_index = graph()
    edge_index[1] %= 5
    pair = (features(NODES, F_IN), features(7, F_IN, seed=5))
    check("GINConv", [mlp, 0.3, train_eps], [pair, edge_index], **options)


@pytest.mark.parametrize("train_eps", [False, True])
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_gine(train_eps, edge_dim, device):
    edge_attr = features(40, edge_dim or F_IN, seed=6).to(device)
    check("GINEConv", [mlp, 0.3, train_eps, edge_dim], [features(NODES, F_IN), graph(), edge_attr], device=device)
    edge_index = graph().to(device)
    edge_index[1] %= 5
    pair = on(device, (features(NODES, F_IN), features(7, F_IN, seed=5)))
    mine, peer = check("GINEConv", [mlp, 0.3, train_eps, edge_dim], [pair, edge_index, edge_attr], device=device)
    alone = (pair[0], None), edge_index, edge_attr, (NODES, 7)
    torch.testing.assert_close(mine(*alone), peer(*alone))


def sorted_graph():
    """An edge_index in the order of a target-major CSR without duplicates, so that edge features fit every form."""
    edge_index = torch.unique(graph().flip(0), dim=1).flip(0)
    return edge_index, weights(edge_index)


def forms(edge_index, weight):
    """The same adjacency in other forms, which carry their weights."""
    coo = torch.sparse_coo_tensor(edge_index.flip(0), weight, (NODES, NODES)).coalesce()
    return {
        "CSR": fusedmm.CSR.from_edge_index(edge_index, weight, NODES),
        "torch COO": coo,
        "torch CSR": coo.to_sparse_csr(),
        "torch CSC": coo.to_sparse_csc(),
        "tuple": (coo.to_sparse_csr().crow_indices(), coo.to_sparse_csr().col_indices(), weight, (NODES, NODES)),
    }


@pytest.mark.filterwarnings("ignore:Sparse")
def test_every_form_of_a_graph_gives_the_same(device):
    edge_index, weight = on(device, sorted_graph())
    x, ones = features(NODES, F_IN).to(device), torch.ones_like(weight)
    layers = on(device, [make(ours, "GCNConv", F_IN, F_OUT), make(ours, "GCNConv", F_IN, F_OUT, improved=True)])
    for name, adj in forms(edge_index, weight).items():
        for layer in layers:
            torch.testing.assert_close(layer(x, adj), layer(x, edge_index, weight), msg=name)
    layers = on(device, [make(ours, "SAGEConv", F_IN, F_OUT), make(ours, "GINConv", mlp)])
    for name, adj in forms(edge_index, ones).items():
        for layer in layers:
            torch.testing.assert_close(layer(x, adj), layer(x, edge_index), msg=name)


def test_an_edge_index_object_of_pyg(device):
    x, edge_index = on(device, (features(NODES, F_IN), graph()))
    known = EdgeIndex(edge_index, sparse_size=(NODES, NODES))
    for layer in on(device, (make(ours, "GCNConv", F_IN, F_OUT), make(ours, "SAGEConv", F_IN, F_OUT))):
        assert torch.equal(layer(x, known), layer(x, edge_index))


class SparseTensor:
    """What the layers see of torch_sparse's matrix."""

    def __init__(self, ptr, idx, val):
        self.parts = ptr, idx, val

    def csr(self):
        return self.parts

    def sparse_sizes(self):
        return NODES, NODES


def test_values_of_a_sparse_tensor_object_weigh_in_gcn_only(device):
    edge_index, weight = on(device, sorted_graph())
    adj = SparseTensor(fusedmm.as_csr(edge_index, size=NODES).ptr, edge_index[0], weight)
    x, gcn = on(device, (features(NODES, F_IN), make(ours, "GCNConv", F_IN, F_OUT)))
    torch.testing.assert_close(gcn(x, adj), gcn(x, edge_index, weight))
    for layer in on(device, (make(ours, "SAGEConv", F_IN, F_OUT), make(ours, "GINConv", mlp))):
        torch.testing.assert_close(layer(x, adj), layer(x, edge_index))


def test_second_derivatives():
    """CPU only: the formulas that are differentiated are the same on every device."""
    edge_index, edge_attr = graph(), features(40, 2)
    gcn = make(ours, "GCNConv", 2, 2)
    gine = make(ours, "GINEConv", torch.nn.Tanh)
    x, weight, edge_attr = (t.requires_grad_() for t in (features(NODES, 2), weights(edge_index), edge_attr))
    assert torch.autograd.gradgradcheck(lambda x, w: gcn(x, edge_index, w), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, e: gine(x, edge_index, e), (x, edge_attr))


def test_gradients_reach_a_sparse_tensors_values(device):
    edge_index, weight = on(device, sorted_graph())
    x, layer = on(device, (features(NODES, F_IN), make(ours, "GCNConv", F_IN, F_OUT)))
    adj = torch.sparse_coo_tensor(edge_index.flip(0), weight, (NODES, NODES)).coalesce().requires_grad_()
    plain = weight.clone().requires_grad_()
    layer(x, adj).sum().backward()
    layer(x, edge_index, plain).sum().backward()
    torch.testing.assert_close(adj.grad.coalesce().values(), plain.grad)


def test_a_layer_shares_the_structure_that_as_csr_remembers(device):
    edge_index, layer = on(device, (graph(), make(ours, "GCNConv", F_IN, F_OUT)))
    x, kept = features(NODES, F_IN).to(device), fusedmm.as_csr(edge_index, size=NODES)
    layer(x, edge_index)
    assert "loops" in kept._shared.derived  # the layer's graph is the one that as_csr remembers


@pytest.mark.parametrize("loops", [False, True])
def test_layers_share_a_fresh_structure_with_loops(loops, device):
    edge_index = graph(loops).to(device)
    first, second = (with_one_loop(edge_index, NODES, NODES) for _ in range(2))
    assert first is second
    other = with_loops(fusedmm.as_csr(edge_index, size=NODES))  # made another way
    for a, b in zip(first.pattern.coo()[:2], other.pattern.coo()[:2], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.pattern.eid, other.pattern.eid)


def test_a_copied_layer_keeps_its_cached_graph(device):
    layer, x = on(device, (make(ours, "GCNConv", F_IN, F_OUT, cached=True), features(NODES, F_IN)))
    expected = layer(x, graph().to(device))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, graph(seed=9).to(device)), expected)


# ---- lazy sizes ----


@pytest.mark.parametrize("name, size", [("GCNConv", -1), ("SAGEConv", -1), ("SAGEConv", (-1, -1))])
def test_sizes_from_the_first_input(name, size, device):
    mine, peer = on(device, (make(ours, name, size, F_OUT), make(theirs, name, size, F_OUT)))
    assert list(mine.state_dict()) == list(peer.state_dict())
    empty = make(ours, name, size, F_OUT).to(device)
    empty.load_state_dict(mine.state_dict())
    x, edge_index = on(device, (features(NODES, F_IN).float(), graph()))
    mine, peer = mine.float(), peer.float()
    torch.manual_seed(11)
    a = mine(x, edge_index)
    torch.manual_seed(11)
    b = peer(x, edge_index)
    torch.testing.assert_close(a, b)
    full = make(ours, name, size, F_OUT).float().to(device)
    full.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(full(x, edge_index), b)


# ---- compiled ----


def edge_mlp():
    return ours.GINEConv(mlp(), edge_dim=3)


@pytest.mark.parametrize(
    "build, extra",
    [
        (lambda: ours.GCNConv(F_IN, F_OUT), None),
        (lambda: ours.GCNConv(F_IN, F_OUT), "weights"),
        (lambda: ours.GCNConv(F_IN, F_OUT, normalize=False), "weights"),
        (lambda: ours.GCNConv(F_IN, F_OUT, aggr="max"), "weights"),
        (lambda: ours.SAGEConv(F_IN, F_OUT), None),
        (lambda: ours.SAGEConv(F_IN, F_OUT, aggr="max"), None),
        (lambda: ours.GINConv(mlp()), None),
        (edge_mlp, "edges"),
    ],
    ids=["gcn", "gcn weighted", "gcn as it is", "gcn max", "sage", "sage max", "gin", "gine"],
)
def test_compiles(build, extra):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, adj = build().double(), fusedmm.as_csr(graph(), size=NODES).cache_transpose()
    edges = {None: [], "weights": [weights(graph())], "edges": [features(40, 3)]}[extra]
    inputs = [features(NODES, F_IN), adj, *edges]
    expected = results(layer, inputs)  # also makes what compiled code cannot
    torch.testing.assert_close(results(torch.compile(layer, fullgraph=True, backend="aot_eager"), inputs), expected)


@pytest.mark.parametrize("name, args", [("GCNConv", [F_IN, F_OUT]), ("GINEConv", [mlp])])
def test_compiled_code_cannot_make_a_structure(name, args):
    torch._dynamo.reset()
    layer, adj = make(ours, name, *args), fusedmm.as_csr(graph(), size=NODES).cache_transpose()
    edges = [features(40, F_IN)] if name == "GINEConv" else []
    with pytest.raises(RuntimeError, match="before the compiled code"):
        torch.compile(layer, backend="eager", fullgraph=True)(features(NODES, F_IN), adj, *edges)


# ---- bad options and inputs ----


@pytest.mark.parametrize(
    "make_layer, text",
    [
        (lambda: ours.SAGEConv(3, 2, aggr="gru"), "SAGEConv: aggr must be one of add, .*not 'gru'"),
        (lambda: ours.SAGEConv(-1, 2, project=True), "SAGEConv: project=True does not support lazy"),
        (lambda: ours.GCNConv(3, 2, flow="target_to_source"), "GCNConv: flow must be 'source_to_target'.*flip"),
        (lambda: ours.GCNConv(3, 2, node_dim=0), "GCNConv: node_dim must be -2, not 0"),
        (lambda: ours.GCNConv(3, 2, decomposed_layers=2), "GCNConv: decomposed_layers must be 1, not 2"),
        (
            lambda: ours.GCNConv(3, 2, add_self_loops=True, normalize=False),
            "GCNConv: normalize=False does not support adding self-loops",
        ),
        (lambda: ours.GINConv(mlp(), aggr="lstm"), "GINConv: aggr must be"),
        (lambda: ours.GINEConv(torch.nn.ReLU(), edge_dim=3), "GINEConv: edge_dim needs an nn"),
    ],
)
def test_bad_options(make_layer, text):
    with pytest.raises(ValueError, match=text):
        make_layer()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda x, e: ours.GCNConv(F_IN, F_OUT).double()((x, x), e), "GCNConv: x must be one tensor"),
        (lambda x, e: ours.GCNConv(F_IN, F_OUT).double()(x, fusedmm.as_csr(e, size=20)), r"graph has shape \(20, 20\)"),
        (lambda x, e: ours.GCNConv(F_IN, F_OUT).double()(x[:5], e), r"is outside \[0, 5\)"),
        (
            lambda x, e: ours.GCNConv(F_IN, F_OUT).double()(x, e, x[:7, 0]),
            r"edge_weight must be \[40\] or \[40, 1\], not \[7\]",
        ),
        (lambda x, e: ours.SAGEConv(F_IN, F_OUT).double()(x, e, (3, NODES)), r"size\[0\] is 3, but there are 11"),
        (lambda x, e: ours.SAGEConv(F_IN, F_OUT).double()(x, e, (NODES, 3)), r"size\[1\] is 3, but there are 11"),
        (lambda x, e: ours.GINEConv(mlp()).double()(x, e), r"edge_attr must be \[40, D\].*not None"),
        (lambda x, e: ours.GINEConv(mlp()).double()(x, e, x), r"edge_attr must be \[40, D\].*not \[11, 5\]"),
        (
            lambda x, e: ours.GINEConv(mlp()).double()(x, e, features(40, 2)),
            "edge_attr gives edges 2 features and x nodes 5",
        ),
        (
            lambda x, e: ours.GINEConv(mlp()).double()(x[None, None], e, features(40, 5)),
            r"must be \[nodes, F\] or \[batch, nodes, F\], not \[1, 1, 11",
        ),
    ],
)
def test_bad_inputs(call, text):
    with pytest.raises(ValueError, match=text):
        call(features(NODES, F_IN), graph())


def test_floating_point_edge_index():
    with pytest.raises(TypeError, match="is no graph"):
        ours.GCNConv(F_IN, F_OUT)(torch.randn(NODES, F_IN), graph().double())


def test_a_loop_that_is_there_keeps_its_weight_in_every_form(device):
    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]], device=device)
    weight = torch.tensor([0.5, 2.0, 3.0, 0.25], device=device)
    conv, x = on(device, (ours.GCNConv(4, 2), torch.randn(3, 4)))
    matrix = torch.sparse_coo_tensor(edges.flip(0), weight, (3, 3)).coalesce()
    for form in (matrix, matrix.to_sparse_csr()):
        torch.testing.assert_close(conv(x, form), conv(x, edges, weight))
