"""SpMM and SDDMM as torch sees them: each the other's gradient, so that gradients of any order exist.

    spmm (A, x):    gx = spmm(A^T, gy)               gval = sddmm(pattern of A, gy, x)
    sddmm(A, a, b): e = val * <a_i, b_j>             ga = spmm(A with ge * val, b)
                    gval = sddmm(A with ge, a, b)    gb = spmm(its transpose, a)

Everything runs on one half of a CSR: A itself or its transpose, which share values in the caller's
edge order. A backward calls the same two functions on the other half; nothing is sorted, added
atomically or synchronised. The classic form of autograd.Function costs the least per call; torch.func
needs the other one (transforms.py), which is chosen only while a transform is active or
an operand has a tangent of forward mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops, raise_translated, sums_dtype
from fusedmm.matrix.base import Matrix
from fusedmm.matrix.structure import Half, lasting, shared_by
from fusedmm.ops.checks import autocast, needs_rules, require_dense, require_values

Values = Tensor | None
Kind = tuple[int | None, torch.dtype]
SUM, MEAN = 0, 1

_spmm: Any = ops._spmm.default
_sddmm: Any = ops._sddmm.default
_divide: Any = ops._mean_back.default


class Held:
    """A matrix that torch.func leaves alone: of a CSR it would wrap the tensors and make another CSR."""

    def __init__(self, adj: Matrix) -> None:
        self.adj = adj


def half(adj: Matrix, transposed: bool) -> Half:
    """(ptr, idx, eid, plan) of adj or of its transpose."""
    return adj.transpose_half() if transposed else (adj.ptr, adj.idx, adj.eid, adj.plan)


def run(op: Any, like: Tensor, *operands: Any) -> Any:
    """Calls an operator of the library on like's device; its errors become the exceptions they stand for."""
    try:
        return op(*operands)
    except RuntimeError as error:
        raise_translated(error, like.device)


def gradients(
    outputs: tuple[Tensor, ...],
    upstream: tuple[Tensor, ...],
    given: Iterable[Values],
    needs: Iterable[bool],
    create_graph: bool = True,
) -> tuple[Values, ...]:
    """Of what is needed of ``given``, as a graph of their own; None of what no output follows from."""
    pairs = list(zip(given, needs, strict=True))
    wanted = [t for t, need in pairs if need and t is not None]
    reached = [(out, g) for out, g in zip(outputs, upstream, strict=True) if out.requires_grad]
    if not wanted or not reached:
        return (None,) * len(pairs)
    outs, grads = zip(*reached, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, grads, create_graph=create_graph, allow_unused=True))
    return tuple(next(found) if need and t is not None else None for t, need in pairs)


def spmm_half(adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int = SUM, algorithm: int = 0) -> Tensor:
    """y = A x or A^T x with the values given, which replace adj's; differentiable in val and x."""
    if needs_rules(val, x):
        return transforms.SpMM.apply(Held(adj), transposed, val, x, reduce, algorithm)
    if torch.is_grad_enabled() and (x.requires_grad or (val is not None and val.requires_grad)):
        return SpMM.apply(adj, transposed, val, x, reduce, algorithm)
    return spmm_run(adj, transposed, val, x, reduce, algorithm)


def times(adj: Matrix, x: Any) -> Tensor:
    """``adj @ x``, of a vector too."""
    vector = isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 1
    y = spmm_half(adj, False, adj.val, right_side(adj, x[:, None] if vector else x))
    return y[:, 0] if vector else y


def right_side(adj: Matrix, x: Tensor) -> Tensor:
    """What a product adj @ x multiplies by: x in the dtype that autocast wants.

    Raises:
        TypeError, ValueError: as ``spmm``.
    """
    require_dense("spmm", "x", x, adj, adj.n_cols, "columns")
    require_values("spmm", adj.val, x)
    return autocast(x)


def spmm_run(adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
    """The kernel, without a gradient."""
    ptr, idx, eid, plan = half(adj, transposed)
    if val is None:
        val = adj.none
    elif val is adj.val:
        here = adj.constant_values(transposed)
        if here.numel():
            val, eid = here, adj.none
    result: Tensor = run(_spmm, x, ptr, idx, eid, plan, val, x, reduce, algorithm)
    return result


def sddmm_half(adj: Matrix, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int = 0) -> Tensor:
    """e = val * <a_i, b_j> over the entries (i, j) of A or A^T; differentiable in val, a and b."""
    if a is b and torch.compiler.is_compiling():
        b = b.clone()  # torch.compile refuses an autograd function that is given one tensor twice
    if needs_rules(val, a, b):
        return transforms.SDDMM.apply(Held(adj), transposed, val, a, b, algorithm)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (val is not None and val.requires_grad)):
        return SDDMM.apply(adj, transposed, val, a, b, algorithm)
    return sddmm_run(adj, transposed, val, a, b, algorithm)


def sddmm_run(adj: Matrix, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int) -> Tensor:
    """The kernel, without a gradient."""
    ptr, idx, eid, plan = half(adj, transposed)
    result: Tensor = run(_sddmm, a, ptr, idx, eid, plan, adj.none if val is None else val, a, b, algorithm)
    return result


def kind_of(val: Tensor) -> Kind:
    """What a gradient of values must know of them: heads (None: no such axis) and dtype."""
    return val.shape[1] if val.dim() == 2 else None, val.dtype


def serves_all(kind: Kind, x: Tensor) -> bool:
    """Whether values [nnz] or [nnz, 1] serve several heads of x."""
    return x.dim() == 3 and x.shape[1] != (1 if kind[0] is None else kind[0])


def like_values(g: Tensor, kind: Kind) -> Tensor:
    """The gradient per entry and head, for values that may have one per entry only."""
    heads, dtype = kind
    if g.dim() == 2 and g.shape[1] != heads:
        g = g.sum(1)
    if heads is not None and g.dim() == 1:
        g = g[:, None]
    return g if g.dtype == dtype else g.to(dtype)


def times_values(ge: Tensor, val: Values) -> Tensor:
    """ge * val per entry, with which SDDMM's gradients multiply: in the dtype of sums, since a product of
    two numbers of float16 may be none of its own."""
    if val is None or not val.numel():
        return ge
    ge, val = kept(ge, val)
    return ge * (val[:, None] if ge.dim() > val.dim() else val)


def as_channels(*operands: Tensor) -> tuple[Tensor, ...]:
    """Operands with their heads as more channels: the products of all heads are then one sum, rounded once."""
    turned = [t.stride(1) < t.stride(2) for t in operands]  # a list, since torch 2.10 does not compile a generator here
    if all(turned):  # the order is free, so that of memory: no copy
        operands = tuple(t.transpose(1, 2) for t in operands)
    return tuple(t.reshape(t.shape[0], t.shape[1] * t.shape[2]) for t in operands)  # flatten has no rule in vmap


def kept(*operands: Tensor) -> tuple[Tensor, ...]:
    """Operands in the dtype of sums: what is made of them is rounded once, by whom it is for."""
    return tuple(t.to(sums_dtype(t)) for t in operands)


def entries_of(ptr: Tensor, like: Tensor) -> Tensor:
    """Entries of each row, at least one; in the dtype of sums, since float16 has no number for 65,520."""
    return (ptr[1:] - ptr[:-1]).clamp(min=1).to(sums_dtype(like))


def per_entry(entries: Tensor, g: Tensor) -> Tensor:
    """The gradient of each row's mean, for one of its entries, in the dtype of sums."""
    return g / entries.view(-1, *[1] * (g.dim() - 1))


def times_share(share: Values, val: Values) -> Values:
    """val times its row's share [nnz] of a mean's gradient, if it is one's."""
    if share is None or val is None or not val.numel():
        return val if share is None else share
    return share.view(-1, *[1] * (val.dim() - 1)) * val


def shares_of(ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, n_cols: int, like: Tensor) -> Tensor:
    """1 / entries of its row for each entry, [nnz], in the dtype of sums."""
    shares = entries_of(ptr, like).reciprocal()[:, None]
    given = shares.new_empty(0), shares, shares.new_ones(1, 1).expand(n_cols, 1)
    result: Tensor = run(_sddmm, like, ptr, idx, eid, plan, *given, 0)
    return result


def kept_entries(adj: Matrix, transposed: bool, like: Tensor) -> Tensor:
    """``entries_of`` a matrix or its transpose, made once per structure."""
    return _once(adj, ("entries", transposed, sums_dtype(like)), entries_of, half(adj, transposed)[0], like)


def kept_shares(adj: Matrix, transposed: bool, like: Tensor) -> Tensor:
    """``shares_of`` a matrix or its transpose, made once per structure."""
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
        # No traced tensor is kept, and none in a CUDA graph's own memory.
        if type(known) is Tensor and not (known.is_cuda and torch.cuda.is_current_stream_capturing()):
            known_of[key] = known
    return known


@lasting
@torch.no_grad()
def _made(make: Any, *args: Any) -> Tensor:
    made: Tensor = make(*args)
    return made


def _mean_back(adj: Matrix, transposed: bool, gy: Tensor) -> tuple[Tensor, Values]:
    """A mean's gradient as a sum's: of what, and with what values in the place of ones.

    It is ``per_entry`` with the entries of each row; one call where no gradient of it is wanted.
    """
    if gy.dtype != sums_dtype(gy):  # 16 bits may have no number for the quotient
        return gy, kept_shares(adj, transposed, gy)
    wide = gy.dtype == torch.float32
    if wide and not (torch.is_grad_enabled() or torch.compiler.is_compiling() or needs_rules(gy)):
        found: Tensor = run(_divide, gy, half(adj, transposed)[0], gy)
        return found, None
    return per_entry(kept_entries(adj, transposed, gy), gy), None


def spmm_back(adj: Matrix, gy: Tensor, reduce: int) -> Tensor:
    """The gradient of x that a product with adj without values has; differentiable."""
    gy, share = _mean_back(adj, False, gy) if reduce == MEAN else (gy, None)
    return spmm_half(adj, True, share, gy)


class SpMM(torch.autograd.Function):
    """y = A x, y = A^T x, or the mean over each row's entries."""

    @staticmethod
    def forward(ctx: Any, adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
        SpMM.keep(ctx, val, x)
        ctx.adj, ctx.transposed, ctx.reduce = adj, transposed, reduce
        return spmm_run(adj, transposed, val, x, reduce, algorithm)

    @staticmethod
    def keep(ctx: Any, val: Values, x: Tensor) -> None:
        """Saves what backward reads, and nothing else: the rest may be freed, or written to."""
        of_val, of_x = ctx.needs_input_grad[2:4]
        ctx.save_for_backward(val if of_x else None, x if of_val else None)
        if of_val:
            ctx.kind = kind_of(val)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        val, x = ctx.saved_tensors
        adj, transposed = ctx.adj, ctx.transposed
        gx = gval = None
        gy, share = _mean_back(adj, transposed, gy) if ctx.reduce == MEAN else (gy, None)
        if ctx.needs_input_grad[3]:
            gx = spmm_half(adj, not transposed, times_share(share, val), gy)
        if ctx.needs_input_grad[2]:
            if serves_all(ctx.kind, x):
                gy, x = as_channels(gy, x)
            gval = like_values(sddmm_half(adj, transposed, share, gy, x), ctx.kind)
        return None, None, gval, gx, None, None


class SDDMM(torch.autograd.Function):
    """e = val * <a_i, b_j>."""

    @staticmethod
    def forward(ctx: Any, adj: Matrix, transposed: bool, val: Values, a: Tensor, b: Tensor, algorithm: int) -> Tensor:
        SDDMM.keep(ctx, val, a, b)
        ctx.adj, ctx.transposed = adj, transposed
        return sddmm_run(adj, transposed, val, a, b, algorithm)

    @staticmethod
    def keep(ctx: Any, val: Values, a: Tensor, b: Tensor) -> None:
        """Saves what backward reads, and nothing else."""
        of_val, of_a, of_b = ctx.needs_input_grad[2:5]
        ctx.save_for_backward(
            val if of_a or of_b else None, a if of_val or of_b else None, b if of_val or of_a else None
        )
        if of_val:
            ctx.kind = kind_of(val)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, ge: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        val, a, b = ctx.saved_tensors
        adj, transposed = ctx.adj, ctx.transposed
        weight = times_values(ge, val)
        ga = spmm_half(adj, transposed, weight, b) if ctx.needs_input_grad[3] else None
        gb = spmm_half(adj, not transposed, weight, a) if ctx.needs_input_grad[4] else None
        gval = None
        if ctx.needs_input_grad[2]:
            if serves_all(ctx.kind, a):
                ge, a, b = kept(ge, a, b)
            gval = like_values(sddmm_half(adj, transposed, ge, a, b), ctx.kind)
        return None, None, gval, ga, gb, None


from fusedmm.ops import transforms  # noqa: E402  they inherit the backwards above
