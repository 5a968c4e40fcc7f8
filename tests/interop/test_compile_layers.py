"""Compiled layers that are given an edge_index or a matrix they have not seen: the graph is made outside.

CPU only, since what is compiled is the same on every device (test_compile.py).
"""

import copy

import pytest
import torch
import torch._dynamo.testing
from support.every_layer import EDGES, LAYERS, NODES, WITHOUT_PARAMETERS, linear
from support.turns import in_turn

import fusedmm
from fusedmm import nn


class Net(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x, graph, *others):
        return self.second(self.first(x, graph, *others).relu(), graph, *others)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(f, x, graph, others):
    """The result and all gradients."""
    x, others = x.clone().requires_grad_(), [t.clone().requires_grad_() for t in others]
    y = f(x, graph, *others)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *others])]


def operands(shape):
    torch.manual_seed(1)
    return torch.randn(NODES, 4), [] if shape is None else [torch.rand(shape)]


def check(model, x, graph, others):
    """Training and inference are eager code's, and nothing is compiled again from the third step on."""
    eager, other = copy.deepcopy(model), graph.clone() if isinstance(graph, torch.Tensor) else graph.with_values(None)
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=count)
    expected = step(eager, x, other, others)
    frames = []
    for _ in range(3):
        torch.testing.assert_close(step(compiled, x, graph, others), expected)
        frames.append(count.frame_count)
    assert 0 < frames[1] == frames[2], frames
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x, graph, *others), expected[0])


WAYS = ["a layer and new edges", "a net and edges seen by eager code"]


@pytest.mark.parametrize("name, way", in_turn(LAYERS, WAYS, slow=["SAGE", "GIN"]))
def test_an_edge_index(name, way):
    """Eager code has seen it without gradients, so that there was no need for a transpose."""
    make, shape = LAYERS[name]
    x, others = operands(shape)
    graph = EDGES.clone()
    if way == WAYS[0]:
        check(make(), x, graph, others)
        return
    net = Net(make)
    with torch.no_grad():
        net(x, graph, *others)
    check(net, x, graph, others)


@pytest.mark.parametrize(
    "name, transposed", [("GCN", True), ("SAGE max", False), ("GINE", False), ("GAT features", True)]
)
def test_a_matrix_not_seen_before(name, transposed):
    make, shape = LAYERS[name]
    x, others = operands(shape)
    graph = fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    check(make(), x, graph.cache_transpose() if transposed else graph, others)


@pytest.mark.parametrize("name", ["GCN", "GIN", "GAT"])
def test_a_fresh_edge_index_at_every_step(name):
    """As neighbour sampling gives: other sizes are compiled once more, as torch does for any shape."""
    layer = LAYERS[name][0]()
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled, frames = torch.compile(layer, backend=count), []
    for n in (8, 13, 21, 34):
        graph, x = torch.randint(0, n, (2, 3 * n)), torch.randn(n, 4)
        torch.testing.assert_close(step(compiled, x, graph, []), step(layer, x, graph.clone(), []))
        frames.append(count.frame_count)
    assert frames[1] == frames[-1], frames


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_an_operator_and_an_edge_index(reduce):
    def f(x, graph):
        return 2 * fusedmm.spmm(graph, x, reduce=reduce)

    x, _ = operands(None)
    torch.testing.assert_close(step(torch.compile(f, backend="aot_eager"), x, EDGES.clone(), []), step(f, x, EDGES, []))


def test_one_graph_is_refused_by_name():
    """As fullgraph asks: what is missing, and what to do about it."""
    x, _ = operands(None)
    graph = fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    for layer, given, why in (
        (nn.GINConv(linear()), EDGES, r"make a fusedmm\.CSR beforehand"),
        (nn.GCNConv(4, 4), EDGES, r"make a fusedmm\.CSR beforehand"),
        (nn.GCNConv(4, 4), graph, r"call the layer or adj\.gcn_norm\(\) once before the compiled code"),
        (nn.GINConv(linear()), graph, r"call adj\.cache_transpose\(\) before the compiled code"),
    ):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=why):
            step(torch.compile(layer, backend="aot_eager", fullgraph=True), x, given, [])
        step(layer, x, given, [])
        if isinstance(given, fusedmm.CSR):
            torch._dynamo.reset()
            torch.testing.assert_close(
                step(torch.compile(layer, backend="aot_eager", fullgraph=True), x, given, []), step(layer, x, given, [])
            )


@pytest.mark.parametrize("name", ["Graph", "LG", "SG", "APPNP", "TAG", "Cheb", "SuperGAT", "ResGated", "GEN", "PNA"])
def test_one_graph_of_a_matrix_that_was_seen(name):
    """One call without gradients is enough where the transpose is there; ResGated does without edges then."""
    make, shape = (LAYERS | WITHOUT_PARAMETERS)[name]
    x, others = operands(shape)
    layer, graph = make(), fusedmm.CSR.from_edge_index(EDGES, size=NODES).cache_transpose()
    with torch.set_grad_enabled(name == "ResGated"):
        layer(x, graph, *others)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(compiled, x, graph, others), step(layer, x, graph, others))


@pytest.mark.parametrize("name, weights", [*((name, False) for name in LAYERS), ("GCN", True)])
def test_one_graph_of_a_matrix_that_was_prepared(name, weights):
    """No layer was called before, and gradients are wanted."""
    make, shape = LAYERS[name]
    x, others = operands(shape)
    layer, graph = make(), fusedmm.CSR.from_edge_index(EDGES, torch.rand(5) if weights else None, NODES)
    expected = step(layer, x, fusedmm.CSR.from_edge_index(EDGES, graph.val, NODES), others)
    adj = fusedmm.prepare(graph, torch.nn.Sequential(torch.nn.Linear(2, 2), layer))
    assert adj is graph
    found = step(torch.compile(layer, backend="aot_eager", fullgraph=True), x, adj, others)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name, kind", [("SAGE", "median"), ("SAGE", "mul"), ("PNA", "median")])
def test_one_graph_that_looks_at_neighbours_one_by_one(name, kind):
    """PNA's median is of messages of edges."""
    degrees = torch.bincount(torch.bincount(EDGES[1], minlength=NODES))
    layer = nn.SAGEConv(4, 4, aggr=kind) if name == "SAGE" else nn.PNAConv(4, 4, [kind], ["identity"], degrees)
    x, adj = operands(None)[0], fusedmm.prepare(fusedmm.CSR.from_edge_index(EDGES, size=NODES), layer)
    found = step(torch.compile(layer, backend="aot_eager", fullgraph=True), x, adj, [])
    torch.testing.assert_close(found, step(layer, x, EDGES, []))


def test_what_cannot_be_prepared():
    with pytest.raises(TypeError, match=r"prepare: modules must be torch\.nn\.Module, not str"):
        fusedmm.prepare(EDGES, "model")
    with pytest.raises(ValueError, match="square"):
        fusedmm.prepare(fusedmm.CSR.from_edge_index(EDGES, size=(4, 5)), nn.GCNConv(4, 4))
    assert fusedmm.prepare(EDGES).ptr_t is not None


@pytest.mark.parametrize("fill, conv", in_turn(["mean", "add", "max", "min", 1.0], [nn.GATConv, nn.GATv2Conv]))
def test_one_graph_with_loops_and_features_that_learn(fill, conv):
    """An encoder of edges before the layer, on a graph that has self loops already."""
    edges = torch.cat([EDGES, torch.tensor([[1, 3], [1, 3]])], 1)
    graph = fusedmm.CSR.from_edge_index(edges, size=NODES).cache_transpose()
    layer = conv(4, 4, edge_dim=3, fill_value=fill)
    x, others = operands((edges.shape[1], 3))
    with torch.no_grad():
        layer(x, graph, *others)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(compiled, x, graph, others), step(layer, x, graph, others))


@pytest.mark.parametrize("make", [lambda: nn.GATConv(4, 4), lambda: nn.GCNConv(4, 4)], ids=["GAT", "GCN"])
def test_a_transpose_may_come_after_the_first_look(make):
    """What was made of the structure gets its own at the next one."""
    layer, graph = make(), fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    x, _ = operands(None)
    with torch.no_grad():
        layer(x, graph)
        graph.cache_transpose()
        layer(x, graph)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(compiled, x, graph, []), step(layer, x, graph, []))
