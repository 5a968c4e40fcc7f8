"""Compiled operators and layers at changing sizes: results and gradients are eager code's, and compiling ends.

From the second size on torch compiles for every size but 1 and 0, of which it makes constants. Where anything else
makes a constant of a size, the third one shows it by one more compilation.
"""

import pytest
import torch
import torch._dynamo.testing
from support.turns import in_turn

import fusedmm
from fusedmm import nn, presets

SIZES = [(9, 2, 4), (13, 3, 6), (6, 5, 3)]  # rows, heads and features
ALONE = (1, 1, 1)
AXES = {
    "rows": [(9, 2, 4), (13, 2, 4), (6, 2, 4)],
    "heads": [(9, 2, 4), (9, 3, 4), (9, 5, 4)],
    "features": [(9, 2, 4), (9, 2, 6), (9, 2, 3)],
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rand(*shape, device):
    return torch.rand(shape, dtype=torch.float64).to(device).requires_grad_()


def graph(rows, heads, device):
    """As many columns as rows, four entries per row in no order, values that learn."""
    row, col = torch.randint(0, rows, (2, 4 * rows)).to(device)
    return fusedmm.CSR.from_coo(row, col, rand(4 * rows, heads, device=device), (rows, rows)).cache_transpose()


OPERANDS = {  # of rows, heads and features
    "x": lambda n, h, f: (n, h, f),
    "z": lambda n, h, f: (n, h, f + 1),
    "q": lambda n, h, f: (n, h),
    "a": lambda n, h, f: (h, f),
    "e": lambda n, h, f: (4 * n, h),
}


def attention(*names, **options):
    """names: of the operands behind q, k and v."""

    def call(adj, q, k, v, *given):
        return fusedmm.attention(adj, q, k, v, **dict(zip(names, given, strict=True)), **options)

    return call


def of_preset(options):
    def call(adj, x, y):
        return fusedmm.fused(adj if options["edge"] == "a" else adj.pattern(), x, y, **options)

    return call


def operators():
    """By name: the operands and what is done with them."""
    yield "edge_softmax", "e", lambda adj, logits: fusedmm.edge_softmax(adj.pattern(), logits)
    for reduce in ("sum", "mean", "max", "min"):
        yield f"spmm {reduce}", "x", lambda adj, x, reduce=reduce: fusedmm.spmm(adj, x, reduce=reduce)
    for op in ("dot", "add", "sub", "mul"):
        yield f"sddmm {op}", "xx", lambda adj, x, y, op=op: fusedmm.sddmm(adj, x, y, op=op)
    for name in (name for name in vars(presets) if name.isupper() and name != "GCN"):  # which is SPMM
        yield f"fused {name}", "xx", of_preset(getattr(presets, name))
    yield "fused of one operand", "x", fusedmm.fused
    yield "fused own", "xxz", lambda adj, *given: fusedmm.fused(adj, *given, edge="tanh(s)*a + 0.5", reduce="mean")
    yield "attention dot", "xxze", attention("bias", return_lse=True, return_weights=True)
    yield "attention cosine", "xxze", attention("edge_weight", score="cosine")
    yield "attention additive", "qqz", attention(score="additive")
    yield "attention gatv2", "xxza", attention("att", score="gatv2", return_weights=True)


OPERATORS = {name: (operands, call) for name, operands, call in operators()}
LAYERS = {
    "GCN": lambda h, f: nn.GCNConv(f, h),
    "SAGE": lambda h, f: nn.SAGEConv(f, h, aggr="max"),
    "GIN": lambda h, f: nn.GINConv(torch.nn.Linear(f, h)),
    "GINE": lambda h, f: nn.GINEConv(torch.nn.Linear(f, h)),
    "GAT": lambda h, f: nn.GATConv(f, f, heads=h),
    "GATv2": lambda h, f: nn.GATv2Conv(f, f, heads=h),
    "Transformer": lambda h, f: nn.TransformerConv(f, f, heads=h, edge_dim=f),
    "AGNN": lambda h, f: nn.AGNNConv(),
    "TAG": lambda h, f: nn.TAGConv(f, h, K=2),
    "Cheb": lambda h, f: nn.ChebConv(f, h, 3),
}


def check(call, make, sizes, dynamic, backend="aot_eager"):
    """make: of a size, what a call is given, and the tensors in it that learn; gives compilations after each size."""
    count = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled, frames = torch.compile(call, backend=count, dynamic=dynamic), []
    for size in sizes:
        given, learn = make(*size)
        found = []
        for f in (call, compiled):  # eager first, so that the structures that a layer wants are there
            out = f(*given)
            out = out if isinstance(out, tuple) else (out,)
            found.append((*out, *torch.autograd.grad(out, learn, [t.detach().cos() for t in out], allow_unused=True)))
        torch.testing.assert_close(found[1], found[0])
        frames.append(count.frame_count)
    return frames


def operands_of(name, device):
    def make(*size):
        adj = graph(*size[:2], device)
        given = [rand(*OPERANDS[o](*size), device=device) for o in OPERATORS[name][0]]
        return (adj, *given), (adj.val, *given)

    return make


# What compiles as another one does, but for a constant.
ALIKE = ["spmm sum", "spmm min", "sddmm sub", "sddmm mul", "fused SIGMOID_ATTRACTION", "attention cosine"]


@pytest.mark.parametrize("name, way", in_turn(OPERATORS, ["default", "dynamic"], slow=ALIKE))
def test_an_operator(name, way, device):
    sizes, dynamic = (SIZES, None) if way == "default" else ([*SIZES, ALONE], True)
    frames = check(OPERATORS[name][1], operands_of(name, device), sizes, dynamic)
    assert 0 < frames[1] == frames[2], frames


PAIRS = [
    ("spmm mean", "rows", None), ("sddmm dot", "heads", True), ("attention dot", "features", True),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (
        ("fused of one operand", "features", None), ("fused own", "rows", True), ("edge_softmax", "heads", None),
    )),
]  # fmt: skip


@pytest.mark.parametrize("name, axis, dynamic", PAIRS)
def test_an_operator_with_inductor(name, axis, dynamic, device):
    frames = check(OPERATORS[name][1], operands_of(name, device), AXES[axis], dynamic, "inductor")
    assert 0 < frames[1] == frames[2], frames


def operands_of_layer(name, layer, rows, width, device):
    adj = graph(rows, 1, device).pattern()
    given = [rand(rows, width, device=device)]
    if name in ("GINE", "Transformer"):
        given.append(rand(4 * rows, width, device=device))
    return (layer, given[0], adj, *given[1:]), (*given, *layer.parameters())


def call_layer(layer, *given):
    return layer(*given)


WAYS = ["default", "dynamic", "widths and heads"]


@pytest.mark.parametrize("name, way", in_turn(LAYERS, WAYS, slow=["GIN", "GATv2", "AGNN"]))
def test_a_layer(name, way, device):
    """One of many rows; and of several widths and heads, in one function, whose code torch makes for each layer."""
    if way == "widths and heads":

        def make(rows, heads, width):
            return operands_of_layer(name, LAYERS[name](heads, width).double().to(device), rows, width, device)

        check(call_layer, make, [SIZES[0], ALONE], None)
        return
    layer, dynamic = LAYERS[name](2, 4).double().to(device), True if way == "dynamic" else None
    frames = check(call_layer, lambda n, *_: operands_of_layer(name, layer, n, 4, device), SIZES, dynamic)
    assert 0 < frames[1] == frames[2], frames


@pytest.mark.parametrize("name", ["spmm sum", "spmm max", "sddmm dot"])
def test_no_heads_and_no_features(name, device):
    """Values [nnz, 0] get gradients of their own shape, as those of eager code do."""
    check(OPERATORS[name][1], operands_of(name, device), [(9, 0, 4), (9, 2, 0)], None)
