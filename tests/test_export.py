"""torch.export: a CSR is an argument of a program, which then runs on graphs of other sizes."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export, load, save
from torch.utils import _pytree as pytree

import fusedmm
from fusedmm import CSR


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


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_elementwise_forms_run_on_another_graph(op, strict, device):
    form = Call(lambda adj, x: fusedmm.sddmm(adj, x, 2 * x, op=op))
    small, x = graph(12, 40, True, device).cache_transpose(), torch.randn(12, 8, device=device)
    program = export(
        form, (small, x), dynamic_shapes={"graph": dynamic(small)["adj"], "x": {0: Dim.DYNAMIC}}, strict=strict
    )
    large, z = graph(30, 111, True, device).cache_transpose(), torch.randn(30, 8, device=device)
    torch.testing.assert_close(program.module()(large, z), form(large, z), rtol=0, atol=0)


class Product(torch.nn.Module):
    def forward(self, adj: CSR, x: torch.Tensor) -> torch.Tensor:
        return adj @ x + adj.t() @ x


@pytest.mark.parametrize("strict", [False, True])
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


class Call(torch.nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.call = call

    def forward(self, graph, x: torch.Tensor) -> torch.Tensor:
        return self.call(graph, x)


GINE = fusedmm.nn.GINEConv(torch.nn.Linear(8, 4))
REFUSED = {
    "gcn_norm": (lambda adj, x: adj.gcn_norm() @ x, "an exported program, .* give it adj.gcn_norm"),
    "loops": (lambda adj, x: adj.add_self_loops() @ x, "an exported program, .* or adj.add_self_loops"),
    "edge features": (lambda adj, x: GINE.to(x.device)(x, adj, x.new_ones(20, 8)), "an exported program, .* has none"),
    "edge_index": (lambda adj, x: fusedmm.spmm(adj, x), "converted outside of compiled code and exported programs"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_new_structure_is_refused_by_name(name, strict, device):
    call, text = REFUSED[name]
    x, given = torch.randn(6, 8, device=device), graph(6, 20, False, device).cache_transpose()
    if name == "edge_index":
        given = torch.randint(0, 6, (2, 20), device=device)
    call(given, x)  # which does not help: the program's CSR is another
    with pytest.raises(RuntimeError, match=text):
        export(Call(call), (given, x), strict=strict)


def test_gcn_is_exported_normalised_beforehand(device):
    """The way that the refusal names."""
    layer = fusedmm.nn.GCNConv(8, 4, normalize=False).to(device)
    small, x = graph(12, 40, False, device).gcn_norm().cache_transpose(), torch.randn(12, 8, device=device)
    program = export(Call(lambda adj, x: layer(x, adj)), (small, x))
    whole = fusedmm.nn.GCNConv(8, 4).to(device)
    whole.load_state_dict(layer.state_dict())
    torch.testing.assert_close(program.module()(small, x), whole(x, small.pattern()))


def test_pytree_keeps_the_matrix(device):
    adj = graph(6, 20, True, device).cache_transpose()
    again = pytree.tree_map(lambda t: t, adj)
    assert again.shape == adj.shape and torch.equal(again.to_dense(), adj.to_dense())
