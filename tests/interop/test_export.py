"""torch.export: a CSR is an argument of a program, which then runs on graphs of other sizes."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from support.turns import in_turn
from torch.export import Dim, export, load, save
from torch.utils import _pytree as pytree

import fusedmm
from fusedmm import CSR, nn, presets

STRICT = [False, True]


def graph(nodes: int, edges: int, values: bool, device: str) -> CSR:
    row, col = torch.randint(0, nodes, (2, edges), device=device)
    return CSR.from_coo(row, col, torch.randn(edges, device=device) if values else None, (nodes, nodes))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(8, 4)

    def forward(self, adj: CSR, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        return fusedmm.spmm(adj, x) + fusedmm.sddmm(adj, x, x).sum()


def dynamic(adj: CSR) -> dict[str, object]:
    leaves = pytree.tree_leaves(adj)
    return {"adj": [{0: Dim.DYNAMIC} if t is not None and t.numel() else None for t in leaves], "x": {0: Dim.DYNAMIC}}


@pytest.mark.parametrize("values", [False, True])
def test_export_runs_on_another_graph(device, values, tmp_path):
    layer = Layer().to(device)
    small, x = graph(12, 40, values, device).cache_transpose(), torch.randn(12, 8, device=device)
    program = export(layer, (small, x), dynamic_shapes=dynamic(small))
    save(program, tmp_path / "layer.pt2")
    large, z = graph(30, 111, values, device).cache_transpose(), torch.randn(30, 8, device=device)
    for exported in (program, load(tmp_path / "layer.pt2")):
        torch.testing.assert_close(exported.module()(large, z), layer(large, z), rtol=0, atol=0)


class Call(torch.nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.call = call

    def forward(self, graph, x: torch.Tensor) -> torch.Tensor:
        return self.call(graph, x)


class Conv(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, graph: CSR, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, graph)


def exported(module: torch.nn.Module, adj: CSR, x: torch.Tensor, strict: bool = False):
    """The program of Call or Conv, for any number of nodes and edges."""
    adj = adj.cache_transpose()
    shapes = {"graph": dynamic(adj)["adj"], "x": {0: Dim.DYNAMIC}}
    return export(module, (adj, x), dynamic_shapes=shapes, strict=strict).module()


def runs_on_another_graph(
    module: torch.nn.Module, values: bool, strict: bool, device: str, of_edges: bool = False, **bounds: float
) -> None:
    """The exported program gives what the module gives, on a graph of other sizes, from the same random seed."""
    small, x = graph(12, 40, values, device), torch.randn(40 if of_edges else 12, 8, device=device)
    program = exported(module, small, x, strict)
    large, z = graph(30, 111, values, device).cache_transpose(), torch.randn(111 if of_edges else 30, 8, device=device)
    torch.manual_seed(1)
    expected = module(large, z)
    torch.manual_seed(1)
    torch.testing.assert_close(program(large, z), expected, **bounds)


@pytest.mark.parametrize("op, strict", in_turn(["add", "sub", "mul"], STRICT))
def test_elementwise_forms_run_on_another_graph(op, strict, device):
    form = Call(lambda adj, x: fusedmm.sddmm(adj, x, 2 * x, op=op))
    runs_on_another_graph(form, True, strict, device, rtol=0, atol=0)


def attend(**options):
    return lambda adj, x: fusedmm.attention(adj, x, 2 * x, 3 * x, **options)


def gatv2(adj: CSR, x: torch.Tensor) -> torch.Tensor:
    return fusedmm.attention(adj, x, x, x, score="gatv2", att=torch.linspace(-1, 1, 8, device=x.device), dropout=0.5)


def additive(adj: CSR, x: torch.Tensor) -> torch.Tensor:
    q = x[:, :2]
    return fusedmm.attention(adj, q, 2 * q, x.view(-1, 2, 4), score="additive", dropout=0.5)


CALLS = {
    "fused": lambda adj, x: fusedmm.fused(adj, x),
    "fused max": lambda adj, x: fusedmm.fused(adj, x, **presets.MLP_MAX | {"edge": "a"}),
    "fused distances": lambda adj, x: fusedmm.fused(adj, x, **presets.T_DISTRIBUTION | {"edge": "a/(1+s)"}),
    "attention": attend(return_weights=True, return_lse=True),
    "dropout": attend(dropout=0.5, return_weights=True),
    "one operand": lambda adj, x: fusedmm.attention(adj, x, x, x),
    "cosine": attend(score="cosine"),
    "gatv2": gatv2,
    "additive": additive,
    "edge_softmax": lambda adj, x: fusedmm.edge_softmax(adj.pattern(), x),
}


@pytest.mark.parametrize("name, way", in_turn(CALLS, list(itertools.product([False, True], STRICT))))
def test_fused_and_attention_run_on_another_graph(name, way, device):
    values, strict = way
    runs_on_another_graph(Call(CALLS[name]), values, strict, device, of_edges=name == "edge_softmax")


LOOPS = {
    "GAT": partial(nn.GATConv, 8, 4, heads=2),
    "GATv2": partial(nn.GATv2Conv, 8, 4, heads=2),
    "AGNN": nn.AGNNConv,
}
LAYERS = {name: partial(layer, add_self_loops=False) for name, layer in LOOPS.items()}
LAYERS["Transformer"] = partial(nn.TransformerConv, 8, 4, heads=2)
CASES = [
    *((name, training, {}) for name in LAYERS for training in (False, True)),
    *((name, True, {"dropout": 0.5}) for name in LAYERS if name != "AGNN"),
]


@pytest.mark.parametrize("case, strict", in_turn(CASES, STRICT), ids=str)
def test_attention_layers_run_on_another_graph(case, strict, device):
    name, training, options = case
    layer = LAYERS[name](**options).to(device).train(training)
    runs_on_another_graph(Conv(layer), False, strict, device)


class Product(torch.nn.Module):
    def forward(self, adj: CSR, x: torch.Tensor) -> torch.Tensor:
        return adj @ x + adj.t() @ x


@pytest.mark.parametrize("strict", STRICT)
def test_export_of_matmul_runs_on_another_graph(strict, device):
    small, x = graph(12, 40, True, device).cache_transpose(), torch.randn(12, 8, device=device)
    program = export(Product(), (small, x), dynamic_shapes=dynamic(small), strict=strict)
    large, z = graph(30, 111, True, device).cache_transpose(), torch.randn(30, 8, device=device)
    torch.testing.assert_close(program.module()(large, z), Product()(large, z))


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("other", ["constant", "learnt", "exchanged", "in order"])
def test_a_program_takes_values_of_any_origin(learnt, other, device):
    small, x = graph(12, 40, True, device).cache_transpose(), torch.randn(12, 8, device=device)
    small.val.requires_grad_(learnt)
    program = export(Product(), (small, x), dynamic_shapes=dynamic(small))
    large, z = graph(30, 111, True, device).cache_transpose(), torch.randn(30, 8, device=device)
    if other == "exchanged":
        large = large.with_values(torch.randn(111, device=device))
    elif other == "in order":
        row, col, val = large.coo()
        large = CSR.from_coo(row, col, val, large.shape).cache_transpose()
    large.val.requires_grad_(other == "learnt")
    torch.testing.assert_close(program.module()(large, z), Product()(large, z))


def test_a_program_of_a_pattern_refuses_values(device):
    small, x = graph(12, 40, False, device).cache_transpose(), torch.randn(12, 8, device=device)
    program = export(Layer().to(device), (small, x), dynamic_shapes=dynamic(small)).module()
    with pytest.raises((AssertionError, RuntimeError, ValueError), match="val"):
        program(graph(12, 40, True, device).cache_transpose(), x)


def test_a_program_of_values_takes_a_pattern(device):
    small, x = graph(12, 40, True, device).cache_transpose(), torch.randn(12, 8, device=device)
    layer = Layer().to(device)
    program = export(layer, (small, x), dynamic_shapes=dynamic(small)).module()
    other = graph(12, 40, False, device).cache_transpose()
    torch.testing.assert_close(program(other, x), layer(other, x))


def test_export_wants_the_transpose(device):
    adj = graph(5, 9, True, device)
    with pytest.raises(ValueError, match="cache_transpose"):
        export(Layer().to(device), (adj, torch.randn(5, 8, device=device)))


GINE = nn.GINEConv(torch.nn.Linear(8, 4))
WAY = r"an exported program, .* is given adj\.{}\(\)\.cache_transpose\(\), made .* with the same options \(.*\), and {}"
NORM_WAY = WAY.format("gcn_norm", "GCNConv normalize=False")
LOOPS_WAY = WAY.format("add_self_loops", "a layer add_self_loops=False")
REFUSED = {
    "gcn_norm": (lambda adj, x: adj.gcn_norm() @ x, NORM_WAY),
    "gcn_norm alone": (lambda adj, x: adj.gcn_norm(add_self_loops=False) @ x, NORM_WAY),
    "GCN": (Conv(nn.GCNConv(8, 4)), NORM_WAY),
    "loops": (lambda adj, x: adj.add_self_loops() @ x, LOOPS_WAY),
    **{name: (Conv(make()), LOOPS_WAY) for name, make in LOOPS.items()},
    "edge features": (lambda adj, x: GINE.to(x.device)(x, adj, x.new_ones(20, 8)), "an exported program, .* has none"),
    "edge_index": (lambda adj, x: fusedmm.spmm(adj, x), "converted outside of compiled code and exported programs"),
}


@pytest.mark.parametrize("name, strict", in_turn(REFUSED, STRICT))
def test_what_needs_a_new_structure_is_refused_by_name(name, strict, device):
    call, text = REFUSED[name]
    x, given = torch.randn(6, 8, device=device), graph(6, 20, False, device).cache_transpose()
    if name == "edge_index":
        given = torch.randint(0, 6, (2, 20), device=device)
    module = call.to(device) if isinstance(call, Conv) else Call(call)
    module(given, x)  # which does not help: the program's CSR is another
    with pytest.raises(RuntimeError, match=text):
        export(module, (given, x), strict=strict)


def test_gcn_is_exported_normalised_beforehand(device):
    """The way that the refusal names: the same results as of the layer that normalises, on another graph."""
    layer, whole = nn.GCNConv(8, 4, normalize=False).to(device), nn.GCNConv(8, 4).to(device)
    whole.load_state_dict(layer.state_dict())
    program = exported(Conv(layer), graph(12, 40, False, device).gcn_norm(), torch.randn(12, 8, device=device))
    large, z = graph(30, 111, False, device), torch.randn(30, 8, device=device)
    torch.testing.assert_close(program(large.gcn_norm().cache_transpose(), z), whole(z, large))


@pytest.mark.parametrize("name", LOOPS)
def test_attention_is_exported_with_loops_made_beforehand(name, device):
    """The way that the refusal names: the same results as of the layer that makes them itself, on another graph."""
    layer, whole = LAYERS[name]().to(device), LOOPS[name]().to(device)
    whole.load_state_dict(layer.state_dict())
    small, x = graph(12, 40, False, device).add_self_loops(), torch.randn(12, 8, device=device)
    program = exported(Conv(layer), small, x)
    large, z = graph(30, 111, False, device), torch.randn(30, 8, device=device)
    torch.testing.assert_close(program(large.add_self_loops().cache_transpose(), z), whole(z, large))


def test_pytree_keeps_the_matrix(device):
    adj = graph(6, 20, True, device).cache_transpose()
    again = pytree.tree_map(lambda t: t, adj)
    assert again.shape == adj.shape and torch.equal(again.to_dense(), adj.to_dense())
