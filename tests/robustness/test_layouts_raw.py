"""Every form of tensor for every tensor argument of every operator of ``torch.ops.fusedmm``.

The operators are those of torch's registry. What they are called with is what the package calls them with: a new
operator is in the table once something here makes the package call it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.generate import works
from support.layouts import FORMS, OTHER_NUMBERS, assert_right_or_named, formed
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from fusedmm import nn
from fusedmm.edge.parse import parse

OPERATORS = sorted(
    {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith("fusedmm::")}
)
CPU_ALONE = {"_fused_mirrored", "_row_softmax", "_row_softmax_back", "_spgemm_colours"}
ELSEWHERE = {"cpu": {"_check_wait"}, "cuda": CPU_ALONE}  # what a device's calls do without
READS_NOTHING = {"_edge_program"}  # of its tensor, which only says that there is a call to trace
WRITES = {"_pick_into", "_spmm_into"}  # into an operand, and returns nothing to compare
OPAQUE = ("plan", "program", "lines")
NODES, NNZ, HEADS, FEAT = 6, 20, 2, 4
Recorded = dict[str, tuple[Any, ...]]


class Recorder(TorchDispatchMode):
    """Keeps the call of each operator that had the most tensors with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Recorded = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "fusedmm":
            name = op._schema.name.partition("::")[2]
            present = [
                sum(isinstance(t, torch.Tensor) and t.numel() > 0 for t in a) for a in (args, self.found.get(name, ()))
            ]
            if name not in self.found or present[0] > present[1]:
                self.found[name] = args
        return op(*args, **(kwargs or {}))


def exercise(device: str) -> None:
    """Calls that reach every operator, with gradients."""
    edges = torch.randint(0, NODES - 1, (2, NNZ), device=device)
    q, k, v = torch.randn(3, NODES, HEADS, FEAT, device=device, dtype=torch.float64, requires_grad=True)
    val = torch.randn(NNZ, HEADS, device=device, dtype=torch.float64, requires_grad=True)
    att = torch.randn(HEADS, FEAT, device=device, dtype=torch.float64, requires_grad=True)
    pattern = fusedmm.CSR.from_edge_index(edges, size=NODES)
    adj, halves = pattern.with_values(val), [*pattern.cache_transpose().transpose_half()]
    halves = [pattern.ptr, pattern.idx, pattern.eid, pattern.plan, *halves]
    torch.ops.fusedmm._plan(pattern.ptr, pattern.idx)
    torch.ops.fusedmm._edge_program(q, "s*a", True)
    torch.ops.fusedmm.spmm(*halves, val, q, 0, 0).sum().backward()
    torch.ops.fusedmm.sddmm(*halves, val, q, k, 0).sum().backward()
    fusedmm.CSR.from_csr(pattern.ptr, pattern.idx)
    pattern.gcn_norm(add_self_loops=False)
    for reduce in ("sum", "mean", "max"):
        fusedmm.spmm(adj, q, reduce=reduce).square().sum().backward()
        fusedmm.spmm(pattern, q.float(), reduce=reduce).square().sum().backward()
    fusedmm.fused(adj, q, k, v, edge="sigmoid(s)*a").sum().backward()
    both = fusedmm.CSR.from_coo(*torch.cat([edges, edges.flip(0)], 1), torch.rand(2 * NNZ, device=device).double())
    fusedmm.fused(both, q[: NODES - 1], edge="sigmoid(s)*a").sum().backward()
    for score, heads in (("dot", slice(None)), ("additive", 0), ("gatv2", slice(None))):
        more = {"att": att} if score == "gatv2" else {}
        for carried in ({}, {"bias": val, "edge_weight": val}):
            out = fusedmm.attention(
                pattern,
                q[..., heads],
                k[..., heads],
                v,
                score=score,
                dropout=0.5,
                return_weights=True,
                **carried,
                **more,
            )
            sum(t.sum() for t in out).backward()
    graph = fusedmm.CSR.from_edge_index(edges, val[:, 0], size=NODES)
    fusedmm.spgemm(graph, graph.t()).val.square().sum().backward()
    fusedmm.gspmm(pattern, "mul", "max", q, val[..., None]).sum().backward()
    fusedmm.gspmm(pattern, "div", "max", q, val[..., None]).square().sum().backward()
    fusedmm.spgemm_plan(graph, graph.t())(graph.val, graph.t().val)
    if device == "cpu":  # none of CUDA's algorithms needs colours
        fusedmm.spgemm_plan(graph, graph, algorithm="kkmcr")(graph.val, graph.val)
    torch.autograd.grad(fusedmm.edge_softmax(pattern, val).square().sum(), val)
    flat = pattern.with_values(val[:, 0].detach())
    y = torch.rand(NODES, device=device, dtype=torch.float64)
    fusedmm.spmv(fusedmm.formats.to_coo(flat), y, beta=2, y=y)
    torch.ops.fusedmm.spmv(*halves, flat.val, y, y, 1.0, 2.0, 0)
    fusedmm.spmv(fusedmm.formats.to_hyb(flat, width=1), y, beta=2, y=y)
    for make in (nn.GATConv, nn.GATv2Conv, nn.TransformerConv):  # in one step, and in parts
        layer = make(FEAT, FEAT, heads=HEADS, dropout=0.5).double().to(device)
        layer(q[:, 0], edges).square().sum().backward()
        layer(q[:, 0], edges, return_attention_weights=True)
    torch.ops.fusedmm._node_spread(q, v, *torch.rand_like(k)[..., :2].split(1, 2), att[None], att[None])
    nn.SAGEConv(FEAT, FEAT).double().to(device)(q[:, 0], edges.clone())


def recorded(device: str) -> Recorded:
    torch.manual_seed(0)
    with Recorder() as recorder:
        exercise(device)
    return {name: tuple(map(kept, args)) for name, args in recorder.found.items()}


def kept(a: Any) -> Any:
    return a.detach().clone() if isinstance(a, torch.Tensor) else a


CALLS: dict[str, Recorded] = {}


@pytest.mark.parametrize(
    "name, device",
    [
        (name, place)
        for place, absent in ELSEWHERE.items()
        for name in sorted(set(OPERATORS) - READS_NOTHING - WRITES - absent)
    ],
    indirect=["device"],
)
@torch.no_grad()
def test_operators(name, device):
    if device not in CALLS:
        with torch.enable_grad():
            CALLS[device] = recorded(device)
    assert name in CALLS[device], f"{name} needs a call in exercise()"
    args, op = CALLS[device][name], getattr(torch.ops.fusedmm, name).default
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)}
    given = {a: t for a, t in named.items() if isinstance(t, torch.Tensor) and t.numel()}
    tried, wrong = 0, []

    def call(**changed):
        return op(*{**named, **changed}.values())

    for argument in given:
        for form in FORMS:
            if argument.startswith(OPAQUE) and form in OTHER_NUMBERS:
                continue  # which only the library makes, and believes
            if (name, argument, form, device) == ("_attention_weights", "k", "no numbers along axis 0", "cuda"):
                continue  # weights of entries whose column is outside, which nobody writes
            if form == "meta" and len(given) == 1:
                continue  # a call of meta tensors alone asks for shapes
            try:
                tried += assert_right_or_named(
                    call, form, given, argument, (TypeError, NotImplementedError, RuntimeError)
                )
            except AssertionError as e:
                wrong.append(str(e)[:230])
    assert not wrong, "\n" + "\n".join(wrong)
    assert tried > 10 * len(given)
    works(device)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_to_an_operand(form, device):
    """The right product in every layout that can hold it, or an error by name and nothing written."""
    adj = fusedmm.CSR.from_edge_index(torch.randint(0, NODES, (2, NNZ), device=device), size=NODES)
    x, into = torch.rand(NODES, FEAT, device=device), torch.ops.fusedmm._spmm_into
    half, expected = (adj.ptr, adj.idx, adj.eid, adj.plan, adj.none), fusedmm.spmm(adj, x)
    y = formed(form, torch.full((NODES, FEAT), 7.0, device=device))
    if y is None or y.device.type == "meta":
        return
    try:
        into(*half, x, y, 0, 0, 0)
    except (TypeError, NotImplementedError, RuntimeError) as error:
        assert "y" in str(error)
    else:
        assert y.shape == expected.shape and torch.equal(y, expected)
    wide = torch.full((NODES, 3 * FEAT), 7.0, device=device)
    into(*half, x, wide[:, FEAT : 2 * FEAT], 0, 0, 0)
    assert torch.equal(wide[:, FEAT : 2 * FEAT], expected) and bool((wide[:, :FEAT] == 7).all())
    assert bool((wide[:, 2 * FEAT :] == 7).all())
    into(*half, torch._neg_view(-x), wide[:, :FEAT], 0, 0, 0)
    assert torch.equal(wide[:, :FEAT], expected)


def test_the_program_of_an_edge_function_is_that_of_its_text(device):
    """Whatever tensor the call is traced by; torch makes most of them on every device."""
    made = [like for form in FORMS if (like := formed(form, torch.ones(4, 3, device=device))) is not None]
    assert len(made) > len(FORMS) // 2
    for like in made:
        program = torch.ops.fusedmm._edge_program(like, "sigmoid(s)*a", True)
        assert torch.equal(program, parse("sigmoid(s)*a").program(True))
