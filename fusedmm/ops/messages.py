"""Messages of entries as torch sees them: ``lhs op rhs`` of each entry, reduced over rows or columns, or kept.

Operands belong to targets: "u", the columns j of an entry's (i, j), "v", its rows i, or "e", the entry. With g the
gradient of the result, which belongs to the target ``to``, everything is a message again, so that gradients of any
order exist:

    lhs * rhs    glhs = g * rhs, reduced to lhs's target         grhs = lhs * g, reduced to rhs's
    lhs / rhs    glhs = g / rhs, reduced to lhs's target         grhs = -(g * lhs, reduced to rhs's) / rhs^2
    lhs + rhs    glhs = g, reduced to lhs's target               grhs likewise; of a difference the negative

A result that belongs to "u" is one of "v" on the transpose. Where an operand was broadcast, its gradient is summed over
those axes: in the kernel where it belongs to entries, so that nothing of edges * features is made.

The gradient of a maximum or minimum goes in even shares to the entries that reached it. They are recognised again, by a
mask: lhs op rhs, rounded, equals the result. The mask counts as constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fusedmm._fakes import fake
from fusedmm._lib import NUMBERS, REDUCTIONS, numbers_of, ops, sums_dtype
from fusedmm.matrix.base import Matrix
from fusedmm.matrix.incidence import sums_of_entries
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, added, differentiable
from fusedmm.ops.checks import needs_rules
from fusedmm.ops.spmm_sddmm import SpMM, cached_entries, half, per_entry, run, widened

COPY, ADD, SUB, MUL, DIV, ONE = numbers_of("FMM_COMBINE_", "copy", "add", "sub", "mul", "div", "one").values()
ROW, COL, EDGE = numbers_of("FMM_AT_", "row", "col", "edge").values()
SUM, MEAN, MAX, MIN = (REDUCTIONS[name] for name in ("sum", "mean", "max", "min"))
AXES: int = NUMBERS["FMM_AXES"]
TENSORS = 5  # of a call: lhs, rhs and the mask's lhs, rhs and y
Shape = tuple[int, ...]
Features = tuple[Shape | None, ...]  # of the tensors of a call
T = TypeVar("T")
# Numbers of each edge that messages add up on CUDA in less of the device's time than SpMM, which takes less of the
# host's: with fewer entries than MANY the host decides.
NARROW, MANY = 8, 2**19
_messages: Any = ops._messages.default


@fake("_messages")
def _(ptr, idx, eid, plan, lhs, rhs, mask_lhs, mask_rhs, mask_y, op, at, has, *rest):  # type: ignore[no-untyped-def]
    width = math.prod(size for d, size in enumerate(rest[:AXES]) if has >> (6 * AXES - 1 - d) & 1)
    like = mask_y if op == ONE else lhs
    dtype = sums_dtype(like) if op == ONE else like.dtype
    return like.new_empty((idx.size(0) if at >> 10 == EDGE else ptr.size(0) - 1, width), dtype=dtype)


class Call(NamedTuple):
    """All of a message but its tensors, which are lhs, rhs and, under a mask, the mask's lhs and rhs and its y at "v".

    Features of all tensors and of ``shape``, the result's, have as many axes; what lacks one has 1 there.
    """

    adj: Matrix
    op: int
    lhs_at: str
    rhs_at: str
    to: str
    shape: Shape
    reduce: int = SUM
    algorithm: int = 0
    mask_op: int = COPY
    mask_lhs_at: str = "u"
    mask_rhs_at: str = "e"

    def onto(self, op: int, lhs_at: str, rhs_at: str, to: str, shape: Shape) -> Call:
        """A sum of other operands under the same mask."""
        return self._replace(op=op, lhs_at=lhs_at, rhs_at=rhs_at, to=to, shape=shape, reduce=SUM, algorithm=0)

    def masked(self) -> Call:
        """The sum over the entries that reached this extreme."""
        return self._replace(reduce=SUM, algorithm=0, mask_op=self.op, mask_lhs_at=self.lhs_at, mask_rhs_at=self.rhs_at)


Planned = tuple[Call, Any]  # a call, and what ``_plan`` says of its operands' axes and targets


def message(call: Call, *operands: Values) -> Tensor:
    """[rows of call.to, *call.shape] of lhs, rhs and the mask's three tensors, differentiable in the first two.

    Operands that the call does not name are None, or are left out behind. Sums go over the axes that the shape lacks:
    in the kernel to entries, behind it to nodes, where the whole is no larger than an operand's gradient.
    """
    operands = (*operands, *[None] * (TENSORS - len(operands)))
    ats = call.lhs_at, call.rhs_at, call.mask_lhs_at, call.mask_rhs_at
    whole, kept, places = _known(_plan, _features(operands), call.shape, ats, call.to)
    if places is None:  # rare enough for operands in full
        operands = tuple(None if t is None else t.expand(t.shape[0], *whole) for t in operands)
        if whole != call.shape and operands[-1] is None:  # sums that follow are rounded once, at their end
            wide = [None if t is None else widened(t)[0] for t in operands]
            dtype = next(t.dtype for t in operands if t is not None)
            return _summed(message(call._replace(shape=whole), *wide), call.shape).to(dtype)
        *_, places = _known(_plan, _features(operands), whole, ats, call.to)
    if operands[0] is operands[1] and operands[0] is not None and torch.compiler.is_compiling():
        operands = (operands[0], operands[0].clone(), *operands[2:])  # torch.compile refuses one tensor given twice
    compute = _extreme if call.reduce >= MAX else _product if call.op in (MUL, DIV) else _message
    found = compute((call if kept == call.shape else call._replace(shape=kept), places), *operands)
    found = found if len(kept) == 1 else found.reshape(found.shape[0], *kept)
    if kept == call.shape:
        return found
    found = _summed(found, call.shape)
    return found if tuple(found.shape[1:]) == call.shape else found.expand(found.shape[0], *call.shape)


def _known(function: Callable[..., T], *shapes: Any) -> T:
    """The result of a cached function of shapes; compiled code, whose shapes are no plain numbers, does without."""
    return function.__wrapped__(*shapes) if torch.compiler.is_compiling() else function(*shapes)  # type: ignore[attr-defined]


@lru_cache(maxsize=512)
def _plan(
    features: Features, shape: Shape, ats: tuple[str, ...], to: str
) -> tuple[Shape, Shape, tuple[int, ...] | None]:
    """Returns the features of all operands together, those that the library's result has, and what a call of it is told
    of targets, and of axes and who has them. The last is None where they alternate along more axes than it takes, so
    that the operands are needed in full."""
    whole = broadcast(*(f for f in features if f is not None))
    kept = tuple(1 if s == 1 else w for s, w in zip(shape, whole, strict=True)) if to == "e" else whole
    axes = _axes(features, kept, whole)
    if len(axes) > AXES:
        return whole, whole, None
    sizes = [size for size, _ in reversed(axes)] or [1]  # the last one first, and 1 behind them
    axes = [(1, (True,) * (TENSORS + 1))] * (AXES - len(axes)) + axes
    has = sum(1 << (AXES * k + d) for d, (_, of) in enumerate(axes) for k, there in enumerate(of) if there)
    numbers = {"e": EDGE, "v" if to == "e" else to: ROW}
    at = sum(numbers.get(name, COL) << 2 * k for k, name in enumerate((*ats, "v", to)))
    return whole, kept, (at, has, *sizes)


def broadcast(*shapes: Sequence[int]) -> Shape:
    """The shape of operands together, as ``torch.broadcast_shapes``, which takes as long as a small call of ours.

    Raises:
        RuntimeError: shapes that do not broadcast.
    """
    first = tuple(shapes[0])
    if all(tuple(shape) == first for shape in shapes[1:]):
        return first
    if torch.compiler.is_compiling():
        return tuple(torch.broadcast_shapes(*shapes))
    whole = [1] * max(map(len, shapes))
    for shape in shapes:
        for d, size in enumerate(reversed(shape)):
            if size != 1 and whole[d] not in (1, size):
                raise RuntimeError(f"shapes do not broadcast: {shapes}")
            whole[d] = whole[d] if size == 1 else size
    return tuple(reversed(whole))


def _axes(operands: Features, kept: Shape, whole: Shape) -> list[tuple[int, tuple[bool, ...]]]:
    """Axes of (size, which of the operands and of the result have it): neighbours that the same have are one axis."""
    features = [*(whole if f is None else f for f in operands), kept]
    axes: list[tuple[int, tuple[bool, ...]]] = []
    for d, size in enumerate(whole):
        if size == 1:
            continue
        has = tuple(f[d] == size for f in features)
        if axes and axes[-1][1] == has:
            size *= axes.pop()[0]
        axes.append((size, has))
    return axes


def _summed(t: Tensor, shape: Shape) -> Tensor:
    """t summed over the axes of its features that a shape lacks."""
    lost = [d + 1 for d, size in enumerate(shape) if size == 1 and t.shape[d + 1] != 1]
    return t.sum(lost, keepdim=True) if lost else t


class Message(Formula):
    """The message of a call, which comes with what ``_plan`` says of its places; its subclasses differ in what they
    keep for the gradients."""

    @staticmethod
    def run(planned: Planned, *operands: Values) -> Tensor:
        """[rows of call.to, features], in one call of the library."""
        call, places = planned
        adj, to = call.adj, call.to
        given = [t for t in operands if t is not None]
        like, width = given[0], math.prod(call.shape)
        if not all(t.numel() for t in given) or not width:
            rows = adj.nnz if to == "e" else adj.n_cols if to == "u" else adj.shape[0]
            return like.new_zeros((rows, width), dtype=sums_dtype(like) if call.op == ONE else like.dtype)
        flat = [adj.none if t is None else t if t.dim() == 2 else t.reshape(t.shape[0], -1) for t in operands]
        numbers = call.op, *places
        if call.reduce or call.mask_op or call.algorithm:
            numbers = *numbers, *[1] * (3 + AXES - len(numbers)), call.reduce, call.mask_op, call.algorithm
        result: Tensor = run(_messages, like, *half(adj, to == "u"), *flat, *numbers)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        """Copies, sums and differences need the shapes of their operands alone."""
        return (None, None, *operands[2:], None), _shapes(operands)

    @staticmethod
    def backward(planned: Planned, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        (call, _), (lhs, rhs, *mask, y) = planned, saved
        dtype, g = g.dtype, g.reshape(g.shape[0], *call.shape)
        if call.reduce >= MAX:
            count, call, mask = _counts(call, lhs, rhs, y)
            g = (g / count).to(dtype)
        elif call.reduce == MEAN:
            lhs, rhs = (None if t is None else widened(t)[0] for t in (lhs, rhs))
            g = per_entry(cached_entries(call.adj, False, g), widened(g)[0])
        glhs = _lhs_gradient(call, note[0], rhs, mask, g).to(dtype) if needs[0] else None
        grhs = _rhs_gradient(call, note[1], lhs, rhs, mask, g).to(dtype) if needs[1] else None
        return glhs, grhs, None, None, None

    @staticmethod
    def jvp(planned: Planned, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        (call, _), (lhs, rhs, *mask), (dlhs, drhs), parts = planned, operands, tangents[:2], []
        linear, count = call, None
        if call.reduce >= MAX:
            count, linear, mask = _counts(call, lhs, rhs, output)
        elif call.op == ONE:
            return torch.zeros_like(output)
        copied = linear._replace(op=COPY)
        if dlhs is not None:
            other = linear if call.op in (MUL, DIV) else copied
            parts.append(message(other, dlhs, rhs if call.op in (MUL, DIV) else None, *mask))
        if drhs is not None and call.op in (MUL, DIV):
            factor = drhs if rhs is None or call.op == MUL else -drhs / rhs / rhs
            parts.append(message(linear._replace(op=MUL), lhs, factor, *mask))
        elif drhs is not None:
            moved = message(copied._replace(lhs_at=call.rhs_at), drhs, None, *mask)
            parts.append(-moved if call.op == SUB else moved)
        found = added(parts) if count is None else (added(parts) / count).to(output.dtype)
        return found.reshape(output.shape)

    @staticmethod
    def vmap(planned: Planned, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        """The batch is one more axis of the features."""
        call, _ = planned
        moved = (
            None if t is None else t.unsqueeze(1) if dim is None else t.movedim(dim, 1)
            for t, dim in zip(operands, dims, strict=True)
        )  # fmt: skip
        found = message(call._replace(shape=(batch, *call.shape)), *moved)
        return found.reshape(found.shape[0], batch, math.prod(call.shape)), 1


class Product(Message):
    """A product or quotient, whose gradients read its operands."""

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        lhs, rhs, *mask = operands
        return (lhs if needs[1] else None, rhs, *mask, None), _shapes(operands)


class Extreme(Message):
    """A maximum or minimum, whose gradients recognise what reached it by its operands and its result."""

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return (*operands, output), _shapes(operands)


def _features(operands: Operands) -> Features:
    return tuple([None if t is None else tuple(t.shape[1:]) for t in operands])


def _shapes(operands: Operands) -> list[Shape]:
    """The shapes of the features of lhs and rhs."""
    return [() if t is None else tuple(t.shape[1:]) for t in operands[:2]]


def _counts(call: Call, lhs: Values, rhs: Values, y: Values) -> tuple[Tensor, Call, list[Values]]:
    """How many entries reached each extreme (one where none did), and the call and tensors of a sum over them."""
    assert y is not None
    mask = [None if t is None else t.detach() for t in (lhs, rhs, y.reshape(y.shape[0], *call.shape))]
    linear = call.masked()
    return message(linear._replace(op=ONE), None, None, *mask).clamp(min=1), linear, mask


def _moved(call: Call, g: Tensor, to: str, shape: Shape, mask: Sequence[Values]) -> Tensor:
    """g, which belongs to the call's result, summed to what another target and shape have of it."""
    if mask and mask[-1] is not None:
        return message(call.onto(COPY, call.to, call.rhs_at, to, shape), g, None, *mask)
    g, adj = _summed(g, shape), call.adj
    if call.to == "e" != to and g.dim() == 2 and adds_by_spmm(g, g.shape[1]) and _is_last(g) and adj.nnz < 2**31:
        return SpMM.run((sums_of_entries(adj, to == "u"), False, SUM, 0), None, g)
    return message(call.onto(COPY, call.to, call.rhs_at, to, shape), g, None)


def adds_by_spmm(e: Tensor, width: int) -> bool:
    """Whether numbers of edges are best added by SpMM, with a matrix [rows, nnz] of ones."""
    return e.is_cuda and (width > NARROW or e.shape[0] < MANY)


def _is_last(g: Tensor) -> bool:
    """Whether no derivative, transform or compiled code follows what is computed of a gradient."""
    wanted = torch.is_grad_enabled() and g.requires_grad
    return not (wanted or torch.compiler.is_compiling() or needs_rules(g)) and g.numel() > 0


def _lhs_gradient(call: Call, shape: Shape, rhs: Values, mask: Sequence[Values], g: Tensor) -> Tensor:
    if call.op not in (MUL, DIV):
        return _moved(call, g, call.lhs_at, shape, mask)
    return message(call.onto(call.op, call.to, call.rhs_at, call.lhs_at, shape), g, rhs, *mask)


def _rhs_gradient(call: Call, shape: Shape, lhs: Values, rhs: Values, mask: Sequence[Values], g: Tensor) -> Tensor:
    if call.op not in (MUL, DIV):
        found = _moved(call, g, call.rhs_at, shape, mask)
        return -found if call.op == SUB else found
    found = message(call.onto(MUL, call.lhs_at, call.to, call.rhs_at, shape), lhs, g, *mask)
    return -found / rhs / rhs if call.op == DIV and rhs is not None else found


_message, _product, _extreme = (differentiable(formula) for formula in (Message, Product, Extreme))
