"""Good calls of every operator of the library, public and private, as the package makes them itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from support.every_layer import EDGES, LAYERS, NODES
from support.generate import small

Call = tuple[Any, tuple[Any, ...]]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def operators() -> set[str]:
    """All that are registered with torch."""
    return {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fusedmm::")}


class Recorded(TorchDispatchMode):
    """Keeps what the library's operators are called with, also where they refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "fusedmm" and not kwargs:
            self.calls.append((func, tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in args)))
        return func(*args, **(kwargs or {}))


def recorded(dtypes: Sequence[torch.dtype] = DTYPES) -> list[Call]:
    """Calls of all operators, each in the ways in which the package calls it."""
    with Recorded() as seen:
        for results in _made(dtypes):
            floats = [t for t in results if t.requires_grad]
            if floats:
                torch.autograd.backward(floats, [torch.ones_like(t) for t in floats])
    return seen.calls


def _made(dtypes: Sequence[torch.dtype]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Results of public functions; whoever goes through them forms their gradients."""
    for dtype in dtypes:
        for heads in (None, 2):
            yield from _of_operators(dtype, heads)
        for make, edge_shape in LAYERS.values():
            edge = () if edge_shape is None else (torch.rand(edge_shape, dtype=dtype),)
            yield (make().to(dtype)(torch.randn(NODES, 4, dtype=dtype, requires_grad=True), EDGES.clone(), *edge),)
    adj = fusedmm.CSR.from_edge_index(EDGES.clone(), size=NODES)
    fusedmm.CSR.from_csr(adj.ptr, adj.idx)
    for loops in (False, True):
        torch.ops.fusedmm._compress(*EDGES, NODES, NODES, loops, 1)
    torch.ops.fusedmm._plan(adj.ptr, adj.idx)
    torch.ops.fusedmm._edge_program(adj.none, "s*a", True)
    rows = torch.arange(60, dtype=torch.uint8).view(5, 12)
    torch.ops.fusedmm._pick_into(rows, torch.tensor([4, 0, 0]), torch.empty(3, 12, dtype=torch.uint8))
    with contextlib.suppress(RuntimeError):  # CUDA's
        torch.ops.fusedmm._check_wait(torch.zeros(0, dtype=torch.int64), 0)


def _of_operators(dtype: torch.dtype, heads: int | None) -> Iterator[tuple[torch.Tensor, ...]]:
    def dense(rows: int, feat: int) -> torch.Tensor:
        return torch.randn(rows, *([] if heads is None else [heads]), feat, dtype=dtype).requires_grad_()

    adj = small(dtype=dtype, heads=heads).cache_transpose()
    with_gradient = adj.with_values(adj.val.requires_grad_())
    pattern = adj.pattern()
    for feat in (3, 33):
        a, x = dense(12, feat), dense(15, feat)
        for graph in (pattern, with_gradient):
            for reduce in ("sum", "mean", "max", "min"):
                yield (fusedmm.spmm(graph, x, reduce=reduce),)
            yield (fusedmm.sddmm(graph, a, x),)
            for score in ("dot", "sqdist", "l1", "none"):
                yield (fusedmm.fused(graph, a, x, dense(15, 5), score=score, edge="tanh(s)*a"),)
            yield (fusedmm.fused(graph, a, x, message="mul", activation="relu"),)
            yield (fusedmm.fused(graph, a, x, dense(15, 5), reduce="max"),)
        halves = [adj.ptr, adj.idx, adj.eid, adj.plan, adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t]
        torch.ops.fusedmm.spmm(*halves, adj.val.detach(), x.detach(), 0, 0)
        torch.ops.fusedmm.sddmm(*halves, adj.val.detach(), a.detach(), x.detach(), 0)
        y = torch.empty(12, *x.shape[1:], dtype=dtype)
        torch.ops.fusedmm._spmm_into(*halves[:4], adj.val.detach(), x.detach(), y, 0, 0, 0)
        torch.ops.fusedmm.spmm(*halves, adj.val.detach(), x.detach(), 0, 0, 1, 2)  # on a CPU nobody says what rows are
        torch.ops.fusedmm.sddmm(*halves, adj.val.detach(), a.detach(), x.detach(), 0, 1, 2)
    if heads is None:
        yield from _of_spmv(with_gradient, dtype)
        yield from _of_spgemm(with_gradient, dtype)
        yield from _of_messages(pattern, dtype)
    ends = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 1, 3]])
    square = fusedmm.CSR.from_edge_index(torch.cat([ends, ends.flip(0)], 1), torch.ones(10, dtype=dtype), size=4)
    yield (fusedmm.fused(square, dense(4, 5)),)
    heads = heads or 1

    def headed(rows: int, feat: int) -> torch.Tensor:
        return torch.randn(rows, heads, feat, dtype=dtype).requires_grad_()

    bias, weight, att = (torch.rand(size, dtype=dtype).requires_grad_() for size in ((60, heads), 60, (heads, 5)))
    q, k, v = headed(12, 5), headed(15, 5), headed(15, 7)
    for dropout in (0.0, 0.5):
        yield (fusedmm.attention(pattern, q, k, v, bias=bias, edge_weight=weight, dropout=dropout),)
        yield (fusedmm.attention(pattern, q, k, v, score="gatv2", att=att, dropout=dropout),)
        one = headed(12, 1)[..., 0], headed(15, 1)[..., 0]
        yield (fusedmm.attention(pattern, *one, v, score="additive", bias=bias, dropout=dropout),)
    sides = [t.detach() for t in (v, *(headed(15, 1) for _ in range(2)), headed(1, 7), headed(1, 7))]
    torch.ops.fusedmm._node_spread(headed(15, 7).detach(), *sides)
    yield fusedmm.attention(pattern, q, k, v, return_weights=True)[:2]
    yield fusedmm.attention(pattern, q.detach(), k.detach(), v.detach(), return_weights=True)[:2]
    yield (fusedmm.edge_softmax(pattern, bias),)


def _of_spmv(adj: fusedmm.CSR, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
    x, y = torch.randn(15, dtype=dtype), torch.randn(12, dtype=dtype)
    halves = [adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half()]
    torch.ops.fusedmm.spmv(*halves, adj.val.detach(), x, y, 2.0, 3.0, 0, 1, 2)
    for matrix in (adj, fusedmm.formats.to_coo(adj)):
        yield (fusedmm.spmv(matrix, x.clone().requires_grad_(), alpha=2, beta=3, y=y.clone().requires_grad_()),)
    constant = adj.with_values(adj.val.detach())
    for make in (fusedmm.formats.to_dia, fusedmm.formats.to_ell, fusedmm.formats.to_hyb, fusedmm.formats.to_sell):
        yield (fusedmm.spmv(make(constant), x, alpha=2, beta=3, y=y),)


def _of_spgemm(adj: fusedmm.CSR, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
    other = adj.t()  # [15, 12]
    mask = fusedmm.CSR.from_coo(*torch.randint(12, (2, 9)), shape=(12, 12))
    yield (fusedmm.spgemm(adj, other).val,)
    yield (fusedmm.spgemm(adj, other, sorted=False, mask=mask).val,)
    for algorithm in ("kkmem", "sort", "kkmcr"):
        yield (fusedmm.spgemm_plan(adj, other, algorithm=algorithm)(adj.val, other.val).val,)


def _of_messages(adj: fusedmm.CSR, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
    x, e = (torch.rand(*size, dtype=dtype).requires_grad_() for size in ((15, 2, 1), (60, 2, 3)))
    for op, reduce in (("add", "mean"), ("div", "sum"), ("sub", "max"), ("copy_rhs", "min")):
        yield (fusedmm.gspmm(adj, op, reduce, x, e),)
    yield (fusedmm.gsddmm(adj, "mul", x, e, "u", "e"),)
    yield (fusedmm.gsddmm(adj, "dot", x, e, "u", "e"),)
