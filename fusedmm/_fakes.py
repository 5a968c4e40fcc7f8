"""Fake kernels: what torch.compile, torch.export and meta tensors call to learn the shapes of an operator's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm._lib import (
    DEVICES,
    MESSAGES,
    NUMBERS,
    WANT_GATT,
    WANT_GBIAS,
    WANT_GK,
    WANT_GQ,
    WANT_GV,
    WANT_GWEIGHT,
    WANT_KEPT,
    WANT_OUT,
    WANT_OUT2,
    WANT_POS,
    numbers_of,
    ops,
    sums_dtype,
)
from fusedmm._torch_compat import argument_names


def fake(name: str) -> Callable[[Callable[..., Any]], None]:
    """Registers an operator's fake kernel, which makes results without numbers, and what refuses by their names the
    tensors for which it has no kernel: those without strides, and those without numbers among others with them."""

    def tensors(args: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
        names = argument_names(getattr(ops, name))
        return [(a, t) for a, t in zip(names, args, strict=False) if isinstance(t, Tensor)]  # torch omits defaults

    def refuse(*args: Any) -> NoReturn:
        for argument, t in tensors(args):
            if t.is_nested or t.is_quantized or t.layout != torch.strided or t.device.type not in DEVICES:
                what = "a nested one" if t.is_nested else f"one of {t.dtype}, {t.layout} on {t.device}"
                raise TypeError(f"{name}: {argument} must be one dense tensor on cpu or cuda, not {what}")
        raise NotImplementedError(f"{name} has no kernel for its {' and '.join(a for a, _ in tensors(args))}")

    def register(make: Callable[..., Any]) -> None:
        def make_like(*args: Any) -> Any:
            given = tensors(args)
            empty = [argument for argument, t in given if t.device.type == "meta"]
            full = [argument for argument, t in given if t.device.type != "meta" and argument != "program"]
            if empty and full:
                raise TypeError(f"{name}: {empty[0]} is on meta, {full[0]} is not")
            return make(*args)

        torch.library.register_fake(f"fusedmm::{name}")(make_like)
        for key in ("CompositeExplicitAutograd", "AutogradNestedTensor"):  # any backend, behind cpu's and cuda's own
            _refusals.impl(name, refuse, key)

    return register


_refusals = torch.library.Library("fusedmm", "IMPL")


def _spmm_like(x: Tensor, ptr: Tensor) -> Tensor:
    return x.new_empty((ptr.size(0) - 1, *x.shape[1:]))


def _sddmm_like(idx: Tensor, a: Tensor) -> Tensor:
    return a.new_empty((idx.size(0), *a.shape[1:-1]))


@fake("_spmm")
def _(ptr, idx, eid, plan, val, x, *numbers):  # type: ignore[no-untyped-def]
    return _spmm_like(x, ptr)


def _writes(name: str, at: int) -> None:
    """An operator that writes to its argument number ``at``, and returns nothing.

    Tensors whose signs torch has yet to turn: its own way around reads a result that the operator does not have, which
    ended the process."""

    def signed(*args: Any) -> None:
        if args[at].is_neg():
            raise TypeError(f"{name}: y must hold its own signs: resolve_neg() makes such a tensor")
        getattr(ops, name)(*(t.resolve_neg() if isinstance(t, Tensor) else t for t in args))

    fake(name)(lambda *args: None)
    _refusals.impl(name, signed, "Negative")


_writes("_spmm_into", 6)
_writes("_pick_into", 2)


@fake("spmm")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, val, x, *numbers):  # type: ignore[no-untyped-def]
    return _spmm_like(x, ptr)


@fake("_sddmm")
def _(ptr, idx, eid, plan, val, a, b, *numbers):  # type: ignore[no-untyped-def]
    return _sddmm_like(idx, a)


@fake("sddmm")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, val, a, b, *numbers):  # type: ignore[no-untyped-def]
    return _sddmm_like(idx, a)


@fake("_fused")
def _(ptr, idx, eid, plan, val, x, y, z, program, score, message, activation, *numbers):  # type: ignore[no-untyped-def]
    return _spmm_like(z if message == MESSAGES["scale"] else x, ptr)


KEPT_EACH: int = NUMBERS["FMM_KEPT_EACH"]


@fake("_fused_rows")
def _(ptr, idx, eid, plan, val, x, y, z, g, program, score, message, activation, wanted, *numbers):  # type: ignore[no-untyped-def]
    none = x.new_empty(0)
    kept = x.new_empty((idx.size(0), *x.shape[1:-1], KEPT_EACH) if wanted & WANT_KEPT else 0, dtype=sums_dtype(x))
    return (
        _spmm_like(x, ptr) if wanted & WANT_OUT else none,
        _sddmm_like(idx, x) if wanted & WANT_OUT2 else none.clone(),
        kept,
    )


@fake("_fused_cols")
def _(ptr, idx, eid, plan, val, x, y, z, g, kept, program, score, message, activation, wanted, *numbers):  # type: ignore[no-untyped-def]
    none = x.new_empty(0)
    return _spmm_like(y, ptr) if wanted & WANT_OUT else none, _spmm_like(z, ptr) if wanted & WANT_OUT2 else none.clone()


@fake("_fused_mirrored")
def _(ptr, idx, eid, plan, val, x, y, z, g, val_t, program, score, message, activation, *numbers):  # type: ignore[no-untyped-def]
    return _spmm_like(x, ptr)


@fake("_extreme")
def _(ptr, idx, eid, plan, val, weight, x, y, z, g, form):  # type: ignore[no-untyped-def]
    if form == NUMBERS["FMM_EXTREME_COUNTS"]:
        return _spmm_like(x, ptr).to(sums_dtype(x))
    return _sddmm_like(idx, x) if form == NUMBERS["FMM_EXTREME_EDGES"] else _spmm_like(x, ptr)


def _number(rest: tuple[Any, ...], k: int) -> int:
    """Returns argument k; torch leaves out numbers at the end that are their defaults, 0."""
    number: int = rest[k] if k < len(rest) else 0
    return number


@fake("_attention")
def _(ptr, idx, eid, plan, q, k, v, *rest):  # type: ignore[no-untyped-def]
    size = (ptr.size(0) - 1, q.size(1))
    out, lse = v.new_empty((*size, v.size(2))), v.new_empty(size, dtype=sums_dtype(v))
    if not _number(rest, 8) & WANT_POS:
        return out, lse, torch.empty_like(lse), v.new_empty(0), v.new_empty(0)
    return out, lse, torch.empty_like(lse), torch.empty_like(out, dtype=lse.dtype), torch.empty_like(lse)


@fake("_attention_weights")
def _(ptr, idx, eid, plan, q, *rest):  # type: ignore[no-untyped-def]
    return q.new_empty((idx.size(0), q.size(1)))


def _gatt_parts(x: Tensor) -> int:
    """Returns the number of parts in which the gradient of att comes."""
    return NUMBERS["FMM_GATT_PARTS_CUDA" if x.is_cuda else "FMM_GATT_PARTS_CPU"]


@fake("_attention_rows")
def _(ptr, idx, eid, plan, q, k, v, att, bias, weight, seed, lse, lse_rest, delta, gout, *rest):  # type: ignore[no-untyped-def]
    want, heads = _number(rest, 4), q.size(1)
    gq = q.new_empty((ptr.size(0) - 1, *q.shape[1:]) if want & WANT_GQ else (0,))
    parts = (_gatt_parts(q), *q.shape[1:])
    gatt = q.new_empty(parts, dtype=sums_dtype(q)) if want & WANT_GATT else q.new_empty(0)
    edges = (idx.size(0), heads)
    return (
        gq,
        gatt,
        q.new_empty(edges if want & WANT_GBIAS else (0,)),
        q.new_empty(edges if want & WANT_GWEIGHT else (0,)),
    )


@fake("_attention_cols")
def _(ptr, idx, eid, plan, q, k, v, att, bias, weight, seed, lse, lse_rest, delta, gout, *rest):  # type: ignore[no-untyped-def]
    want, rows, heads = _number(rest, 5), ptr.size(0) - 1, q.size(1)
    gk = q.new_empty((rows, *k.shape[1:]) if want & WANT_GK else (0,))
    return gk, q.new_empty((rows, heads, v.size(2)) if want & WANT_GV else (0,))


@fake("_row_softmax")
def _(ptr, idx, eid, plan, x):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape)


@fake("_row_softmax_back")
def _(ptr, idx, eid, plan, g, w):  # type: ignore[no-untyped-def]
    return g.new_empty(g.shape)


NODE_PACKED: int = NUMBERS["FMM_NODE_PACKED"]


@fake("_node_scores")
def _(x, att_k, att_q):  # type: ignore[no-untyped-def]
    return x.new_empty((*x.shape[:2], 1)), x.new_empty((*x.shape[:2], 1))


@fake("_node_spread")
def _(x, gv, gk, gq, att_k, att_q):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), *(x.new_empty(1, *x.shape[1:]) for _ in range(2))


@fake("_node_delta")
def _(gout, out, lse, lse_rest, glse, pos, pos_w, q, slope):  # type: ignore[no-untyped-def]
    gq = gout.new_empty((*gout.shape[:2], 1) if pos.dim() == 3 else (0,))
    rows = gout.size(0) if q.dim() == 3 and gout.device.type == "cuda" else 0
    delta = gout.new_empty(gout.shape[:2], dtype=sums_dtype(gout))
    return delta, gq, delta.new_empty(rows, NODE_PACKED * gout.size(1))


SUMS, WIDE, WHOLE, ADDED = numbers_of("FMM_KEPT_", "sums", "wide", "whole", "added").values()


def _kept(operator: str, x: Tensor, heads: int, feat: int, wanted: int) -> Tensor:
    """Returns a tensor with room for the views that the library lists as kept by the operator, as far apart as it lays
    them."""
    size, apart = 0, NUMBERS["FMM_ATTEND_APART"]
    for name, holds in NUMBERS.items():
        if name.startswith(f"FMM_KEPT_{operator}_") and not holds & (WHOLE | ADDED) & ~wanted:
            dtype = sums_dtype(x) if holds & SUMS else x.dtype
            needed = x.size(0) * heads * (feat if holds & WIDE else 1) * dtype.itemsize
            size += (needed + apart - 1) // apart * apart
    return x.new_empty(size, dtype=torch.uint8)


@fake("_attend_self")
def _(ptr, idx, eid, plan, x, att_k, att_q, seed, bias, slope, dropout, whole):  # type: ignore[no-untyped-def]
    wanted = 0 if not whole else WHOLE | ADDED if bias.size(0) else WHOLE
    return x.new_empty(x.shape), _kept("self", x, att_k.size(1), att_k.size(2), wanted)


@fake("_attend_self_back")
def _(ptr, idx, eid, plan, x, att_k, att_q, seed, out, kept, gout, slope, dropout, bias):  # type: ignore[no-untyped-def]
    gatt = (1, att_k.size(1), att_k.size(2))
    gbias = x.new_empty(att_k.size(1) * att_k.size(2) if bias else 0)
    return x.new_empty(x.shape), x.new_empty(gatt), x.new_empty(gatt), gbias


LEAST, MOST = numbers_of("FMM_MAPS_", "least", "most").values()


def _channels(p: Tensor, heads: int, maps: int) -> int:
    """Returns the number of channels of one head, as csrc/attention/torch_attend_maps.c computes it."""
    if not LEAST <= maps <= MOST or heads < 1:
        raise ValueError(f"there may be {LEAST} to {MOST} maps of 1 head or more, not {maps} of {heads}")
    return p.size(1) // (maps * heads)


@fake("_attend_maps")
def _(ptr, idx, eid, plan, p, att, seed, bias, scale, slope, dropout, heads, maps, whole):  # type: ignore[no-untyped-def]
    feat = _channels(p, heads, maps)
    wanted = ADDED if whole and (maps == MOST or bias.size(0)) else 0
    return p.new_empty(p.size(0), heads * feat), _kept("maps", p, heads, feat, wanted)


@fake("_attend_maps_back")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, p, *rest):  # type: ignore[no-untyped-def]
    heads, maps = rest[-2:]
    parts = _gatt_parts(p) if maps == LEAST else 0
    return p.new_empty(p.shape), p.new_empty(parts, heads, _channels(p, heads, maps), dtype=sums_dtype(p))


@fake("_check")
def _(ptr, idx, cols):  # type: ignore[no-untyped-def]
    return ptr.new_empty(1)


@fake("_plan")
def _(ptr, idx, whole_nnz=0):  # type: ignore[no-untyped-def]
    return ptr.new_empty(torch.library.get_ctx().new_dynamic_size() if ptr.is_cuda else 0, dtype=torch.uint8)


@fake("_compress")
def _(row, col, rows, cols, loops, check):  # type: ignore[no-untyped-def]
    size = torch.library.get_ctx().new_dynamic_size  # what stays, and whether it is in order, the content decides
    entries = size() if loops else row.size(0)
    new = (row.new_empty(n, dtype=torch.int32) for n in (entries, size()))
    plan = row.new_empty(size() if row.is_cuda else 0, dtype=torch.uint8)
    return row.new_empty(rows + 1), *new, plan, row.new_empty(size())


@fake("_check_wait")
def _(there, ticket):  # type: ignore[no-untyped-def]
    return None


@fake("_transpose")
def _(ptr, idx, eid, plan, cols):  # type: ignore[no-untyped-def]
    size = torch.library.get_ctx().new_dynamic_size() if ptr.is_cuda else 0
    return ptr.new_empty(cols + 1), torch.empty_like(idx), torch.empty_like(idx), plan.new_empty(size)


@fake("_normalize")
def _(ptr, idx, eid, plan):  # type: ignore[no-untyped-def]
    return torch.empty_like(idx, dtype=torch.float32), torch.empty_like(idx, dtype=torch.float32)


@fake("_mean_back")
def _(ptr, g):  # type: ignore[no-untyped-def]
    return g.new_empty(g.shape)
