"""SpMM and SDDMM as torch sees them: each the other's gradient, so that gradients of any order exist.

    spmm (A, x):    gx = spmm(A^T, gy)               gval = sddmm(pattern of A, gy, x)
    sddmm(A, a, b): e = val * <a_i, b_j>             ga = spmm(A with ge * val, b)
                    gval = sddmm(A with ge, a, b)    gb = spmm(its transpose, a)

Everything runs on one half of a CSR, which is A itself or its transpose; both have their values in the caller's
edge order. A backward calls the same two functions on the other half; nothing is sorted, added
atomically or synchronised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import REDUCTIONS, ops, raise_translated, sums_dtype
from fusedmm.matrix.base import Matrix
from fusedmm.matrix.structure import Half, lasting, shared_by
from fusedmm.ops.autograd import (
    Formula,
    Needs,
    Operands,
    Values,
    added,
    differentiable,
    flat_operand,
    flat_values,
    register,
)
from fusedmm.ops.checks import autocast, needs_rules, require_dense, require_values

Kind = tuple[int | None, torch.dtype]
SUM, MEAN = REDUCTIONS["sum"], REDUCTIONS["mean"]

_spmm: Any = ops._spmm.default
_sddmm: Any = ops._sddmm.default
_divide: Any = ops._mean_back.default


def half(adj: Matrix, transposed: bool) -> Half:
    """Returns (ptr, idx, eid, plan) of adj or of its transpose."""
    return adj.transpose_half() if transposed else (adj.ptr, adj.idx, adj.eid, adj.plan)


def run(op: Any, like: Tensor, *operands: Any) -> Any:
    """Calls an operator of the library on like's device; its errors become the exceptions they stand for."""
    try:
        return op(*operands)
    except RuntimeError as error:
        raise_translated(error, like.device)


def trailing(*numbers: int) -> tuple[int, ...]:
    """Returns the numbers that end an operator's arguments; none where all are 0, which it takes for those left out: to
    read a number takes torch as long as a tensor."""
    return numbers if any(numbers) else ()


def gradients(
    outputs: tuple[Tensor, ...],
    upstream: tuple[Tensor, ...],
    given: Iterable[Values],
    needs: Iterable[bool],
    create_graph: bool = True,
) -> tuple[Values, ...]:
    """Returns the gradients of the ``given`` tensors that need one, differentiable too; None where no output depends on
    one."""
    pairs = list(zip(given, needs, strict=True))
    wanted = [t for t, need in pairs if need and t is not None]
    reached = [(out, g) for out, g in zip(outputs, upstream, strict=True) if out.requires_grad]
    if not wanted or not reached:
        return (None,) * len(pairs)
    outs, grads = zip(*reached, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, grads, create_graph=create_graph, allow_unused=True))
    return tuple(next(found) if need and t is not None else None for t, need in pairs)


def spmm_half(adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int = SUM, algorithm: int = 0) -> Tensor:
    """Computes y = A x or A^T x with the values given, which replace adj's; differentiable in val and x."""
    return spmm((adj, transposed, reduce, algorithm), val, x)


def right_side(adj: Matrix, x: Tensor) -> Tensor:
    """Returns what a product adj @ x multiplies by: x in the dtype that autocast wants.

    Raises:
        TypeError, ValueError: as ``spmm``.
    """
    require_dense("spmm", "x", x, adj, adj.n_cols, "columns")
    require_values("spmm", adj.val, x)
    return autocast(x)


def sddmm_half(adj: Matrix, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int = 0) -> Tensor:
    """Computes e = val * <a_i, b_j> over the entries (i, j) of A or A^T; differentiable in val, a and b."""
    if a is b and torch.compiler.is_compiling():
        b = b.clone()  # torch.compile refuses an autograd function that is given one tensor twice
    return sddmm((adj, transposed, algorithm), val, a, b)


def kind_of(val: Tensor) -> Kind:
    """Returns the number of heads (None where values have no such axis) and the dtype, which a gradient of values has
    too."""
    return val.shape[1] if val.dim() == 2 else None, val.dtype


def serves_all(kind: Kind, x: Tensor) -> bool:
    """Tells whether values [nnz] or [nnz, 1] serve several heads of x."""
    return x.dim() == 3 and x.shape[1] != (1 if kind[0] is None else kind[0])


def like_values(g: Tensor, kind: Kind) -> Tensor:
    """Returns a gradient per entry and head in the shape and dtype of the values: summed over the heads that share a
    value."""
    heads, dtype = kind
    if g.dim() == 2 and g.shape[1] != heads:
        g = g.sum(1)
    if heads is not None and g.dim() == 1:
        g = g[:, None]
    return g if g.dtype == dtype else g.to(dtype)


def times_values(ge: Tensor, val: Values) -> Tensor:
    """Returns ge * val per entry, by which SDDMM's gradients multiply; in the dtype of sums, since the product of two
    float16 numbers may be too large for float16."""
    if val is None or (ge.numel() and not val.numel()):
        return ge
    ge, val = widened(ge, val)
    if ge.dim() < val.dim():  # of one head, [nnz, 1]
        val = val[:, 0]
    return ge * (val[:, None] if ge.dim() > val.dim() else val)


def as_channels(*operands: Tensor) -> tuple[Tensor, ...]:
    """Operands with their heads as more channels: the products of all heads are then one sum, rounded once."""
    turned = [t.stride(1) < t.stride(2) for t in operands]  # a list, since torch 2.10 does not compile a generator here
    if all(turned):  # the order is free, so that of memory: no copy
        operands = tuple(t.transpose(1, 2) for t in operands)
    return tuple(t.reshape(t.shape[0], t.shape[1] * t.shape[2]) for t in operands)  # flatten has no rule in vmap


def widened(*operands: Tensor) -> tuple[Tensor, ...]:
    """Operands in the dtype of sums, so that what is computed of them is rounded once, at the end."""
    return tuple(t.to(sums_dtype(t)) for t in operands)


def entries_of(ptr: Tensor, like: Tensor) -> Tensor:
    """Tells how many entries each row has, but at least one; in the dtype of sums, since float16 ends at 65,504."""
    return (ptr[1:] - ptr[:-1]).clamp(min=1).to(sums_dtype(like))


def per_entry(entries: Tensor, g: Tensor) -> Tensor:
    """Returns the gradient of each row's mean by one of the row's entries, in the dtype of sums."""
    return g / entries.view(-1, *[1] * (g.dim() - 1))


def times_share(share: Values, val: Values) -> Values:
    """Returns val times the share [nnz] that each entry has of its row's mean; val itself where no mean is taken."""
    if share is None or val is None or (share.numel() and not val.numel()):
        return val if share is None else share
    return share.view(-1, *[1] * (val.dim() - 1)) * val


def shares_of(ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, n_cols: int, like: Tensor) -> Tensor:
    """Returns for each entry 1 / the number of entries in its row, [nnz], in the dtype of sums."""
    shares = entries_of(ptr, like).reciprocal()[:, None]
    given = shares.new_empty(0), shares, shares.new_ones(1, 1).expand(n_cols, 1)
    result: Tensor = run(_sddmm, like, ptr, idx, eid, plan, *given, 0)
    return result


def cached_entries(adj: Matrix, transposed: bool, like: Tensor) -> Tensor:
    """Returns ``entries_of`` a matrix or its transpose, computed once per structure."""
    return _once(adj, ("entries", transposed, sums_dtype(like)), entries_of, half(adj, transposed)[0], like)


def cached_shares(adj: Matrix, transposed: bool, like: Tensor) -> Tensor:
    """Returns ``shares_of`` a matrix or its transpose, computed once per structure."""
    n_cols = adj.shape[0] if transposed else adj.n_cols
    return _once(adj, ("shares", transposed), shares_of, *half(adj, transposed), n_cols, like)


def _once(adj: Matrix, key: Any, make: Any, *args: Any) -> Tensor:
    if torch.compiler.is_compiling():
        made: Tensor = make(*args)
        return made
    known_of = shared_by(adj).derived
    known: Tensor | None = known_of.get(key)
    if known is None:
        known = _made(make, *args)
        # A traced tensor must not be cached, nor one in the memory of a CUDA graph.
        if type(known) is Tensor and not (known.is_cuda and torch.cuda.is_current_stream_capturing()):
            known_of[key] = known
    return known


@lasting
@torch.no_grad()
def _made(make: Any, *args: Any) -> Tensor:
    made: Tensor = make(*args)
    return made


def _mean_back(adj: Matrix, transposed: bool, gy: Tensor) -> tuple[Tensor, Values]:
    """Turns the gradient of a mean into that of a sum: returns the sum's gradient, and values to replace its ones.

    The first is ``per_entry``, in one call of the library where it need not be differentiable.
    """
    plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or needs_rules(gy))
    if plain and gy.dtype == torch.float32:
        found: Tensor = run(_divide, gy, half(adj, transposed)[0], gy)
        return found, None
    if gy.dtype != sums_dtype(gy):  # 16 bits may have no number for the quotient
        return gy, cached_shares(adj, transposed, gy)
    return per_entry(cached_entries(adj, transposed, gy), gy), None


def spmm_back(adj: Matrix, gy: Tensor, reduce: int) -> Tensor:
    """Returns the gradient by x of the product of adj and x; differentiable."""
    gy, share = _mean_back(adj, False, gy) if reduce == MEAN else (gy, None)
    return spmm_half(adj, True, times_share(share, adj.val), gy)


class SpMM(Formula):
    """Computes y = A x, y = A^T x, or the mean over each row's entries; a call is (adj, transposed, reduce,
    algorithm)."""

    @staticmethod
    def run(call: Any, val: Values, x: Tensor) -> Tensor:
        adj, transposed, reduce, algorithm = call
        if transposed:
            ptr, idx, eid, plan = adj.transpose_half()
            rows_are = adj.rows_are_t
        else:
            ptr, idx, eid, plan, rows_are = adj.ptr, adj.idx, adj.eid, adj.plan, adj.rows_are
        if val is None:
            val = adj.none
        elif val is adj.val:
            here = adj.constant_values(transposed)
            if here is not None:
                val, eid = here, adj.none
        numbers = (reduce, algorithm, rows_are) if reduce or algorithm or rows_are else ()  # as trailing() does
        try:  # as run() does, whose call would cost a small product a thirtieth of its time
            result: Tensor = _spmm(ptr, idx, eid, plan, val, x, *numbers)
        except RuntimeError as error:
            raise_translated(error, x.device)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        val, x = operands
        of_val, of_x = needs
        return (val if of_x else None, x if of_val else None), kind_of(val) if of_val else None  # type: ignore[arg-type]

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        adj, transposed, reduce, _ = call
        val, x = saved
        gx = gval = share = None
        if reduce == MEAN:
            g, share = _mean_back(adj, transposed, g)
        elif reduce != SUM:
            raise RuntimeError("fusedmm: torch.ops.fusedmm.spmm has no gradient of max and min; fusedmm.spmm has")
        if needs[1]:
            gx = spmm_half(adj, not transposed, times_share(share, val), g)
        if x is not None:
            if serves_all(note, x):
                g, x = as_channels(g, x)
            gval = like_values(sddmm_half(adj, transposed, share, g, x), note)
        return gval, gx

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        adj, transposed, reduce, _ = call
        (val, x), (dval, dx), parts = operands, tangents, []
        assert x is not None
        if dx is not None:
            parts.append(spmm_half(adj, transposed, val, widened(dx)[0], reduce))
        if dval is not None:
            parts.append(spmm_half(adj, transposed, dval, widened(x)[0], reduce))
        return added(parts).to(x.dtype)

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        val, x = operands
        x, heads = flat_operand(x, dims[1], batch)
        y = spmm(call, flat_values(val, dims[0], batch, heads), x)
        return y.reshape(y.shape[0], batch, *([heads] if heads else []), y.shape[-1]), 1


class SDDMM(Formula):
    """Computes e = val * <a_i, b_j>; a call is (adj, transposed, algorithm)."""

    @staticmethod
    def run(call: Any, val: Values, a: Tensor, b: Tensor) -> Tensor:
        adj, transposed, algorithm = call
        ptr, idx, eid, plan = half(adj, transposed)
        val, rows_are = adj.none if val is None else val, adj.rows_are_t if transposed else adj.rows_are
        numbers = (algorithm, rows_are) if algorithm or rows_are else ()  # as trailing() does
        try:  # as run() does
            result: Tensor = _sddmm(ptr, idx, eid, plan, val, a, b, *numbers)
        except RuntimeError as error:
            raise_translated(error, a.device)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        val, a, b = operands
        of_val, of_a, of_b = needs
        tensors = val if of_a or of_b else None, a if of_val or of_b else None, b if of_val or of_a else None
        return tensors, kind_of(val) if of_val else None  # type: ignore[arg-type]

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        adj, transposed, _ = call
        val, a, b = saved
        weight = times_values(g, val)
        ga = gb = gval = None
        if needs[1]:
            ga = spmm_half(adj, transposed, weight, b)  # type: ignore[arg-type]
        if needs[2]:
            gb = spmm_half(adj, not transposed, weight, a)  # type: ignore[arg-type]
        if needs[0]:
            if serves_all(note, a):  # type: ignore[arg-type]
                g, a, b = widened(g, a, b)  # type: ignore[arg-type]
            gval = like_values(sddmm_half(adj, transposed, g, a, b), note)  # type: ignore[arg-type]
        return gval, ga, gb

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        (val, *factors), (dval, da, db), parts = operands, tangents, []
        a, b = widened(*factors)  # type: ignore[arg-type]
        if dval is not None:
            parts.append(sddmm(call, dval, a, b))
        if da is not None:
            parts.append(sddmm(call, val, *widened(da), b))
        if db is not None:
            parts.append(sddmm(call, val, a, *widened(db)))
        return added(parts).to(output.dtype)

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        val, a, b = operands
        a, heads = flat_operand(a, dims[1], batch)
        b, _ = flat_operand(b, dims[2], batch)
        e = sddmm(call, flat_values(val, dims[0], batch, heads), a, b)
        return e.reshape(e.shape[0], batch, *([heads] if heads else [])), 1


spmm, sddmm = differentiable(SpMM), differentiable(SDDMM)
register("spmm", SpMM, 2)
register("sddmm", SDDMM, 3)
