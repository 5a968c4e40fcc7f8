"""Attention layers that are one call of the library on one device, made of the passes that the call consists of.

The passes run in the order in which the library runs them (csrc/attention/torch_attend_self.c, torch_attend_maps.c), so
that bits are the same. Those over nodes are local; those over entries are operators that ``ops.call`` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.distributed.ops import WHOLE, begin_early
from fusedmm.ops.attention import ADDITIVE, DOT, GATV2

Half = tuple[Any, Any, Any, Any]

_forward: Any = ops._attention.default
_rows: Any = ops._attention_rows.default
_cols: Any = ops._attention_cols.default
_delta: Any = ops._node_delta.default


# ---- additive scores of one tensor: GAT ----


def attend_self(
    ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor,
    bias: Tensor, slope: float, dropout: float, whole: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``_attend_self``: out [n, heads * C], and what the gradient reads."""
    none = ptr.new_empty(0, dtype=torch.uint8)
    heads = x.contiguous().view(x.shape[0], *att_k.shape[1:])
    begin_early(plan, "_attend_self", heads)
    k, q = ops._node_scores.default(heads, att_k, att_q)
    given = q, k, heads, none, none, none, seed
    out, *sums = _forward(ptr, idx, eid, plan, *given, 1.0, slope, dropout, ADDITIVE, int(whole), 0)
    found = out.flatten(1)
    if not bias.numel():
        return found, *((*sums, k, q) if whole else (none,))
    return found + bias, *((*sums, k, q, out) if whole else (none,))


def attend_self_back(
    ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, x: Tensor, att_k: Tensor, att_q: Tensor, seed: Tensor,
    out: Tensor, kept: Sequence[Tensor], gout: Tensor, slope: float, dropout: float, bias: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``_attend_self_back``: the gradients of x, att_k, att_q and, with bias, of what was added."""
    none = ptr.new_empty(0, dtype=torch.uint8)
    heads = x.contiguous().view(x.shape[0], *att_k.shape[1:])
    lse, rest, pos, pos_w, k, q, *others = kept
    result = others[0] if others else out.view_as(heads)
    up = gout.contiguous().view_as(heads)
    begin_early(plan, "_attend_self_back", q, lse, rest, up)  # the large one last, so that no other waits for its slot
    gbias = gout.sum(0) if bias else gout.new_empty(0)
    delta, gq, _ = _delta(up, result, lse, rest, none, pos, pos_w, none, slope)
    given = q, k, heads, none, none, none, seed, lse, rest, delta, up, none
    gk, gv = _cols(ptr, idx, eid, plan, *given, 1.0, slope, dropout, ADDITIVE, 3, 0)
    gx, gatt_k, gatt_q = ops._node_spread.default(heads, gv, gk, gq, att_k, att_q)
    return gx.flatten(1), gatt_k, gatt_q, gbias


# ---- scores of several maps of one tensor: GATv2, transformers ----


def _split(p: Tensor, heads: int, maps: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    k, *others = p.contiguous().view(p.shape[0], maps, heads, p.shape[1] // (maps * heads)).unbind(1)
    v, q, *skip = others if maps > 2 else (k, *others)
    return q, k, v, skip[0] if skip else None


def attend_maps(
    ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, p: Tensor, att: Tensor, seed: Tensor, bias: Tensor,
    scale: float, slope: float, dropout: float, heads: int, maps: int, whole: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``_attend_maps``: out [n, heads * C], and what the gradient reads."""
    none = ptr.new_empty(0, dtype=torch.uint8)
    q, k, v, skip = _split(p, heads, maps)
    score, att = (DOT, none) if maps > 2 else (GATV2, att.view(att.shape[-2:]))
    given = q, k, v, att, none, none, seed
    out, lse, rest, *_ = _forward(ptr, idx, eid, plan, *given, scale, slope, dropout, score, 0, 0)
    added = bias if bias.numel() else None if skip is None else skip.flatten(1)
    found = out.flatten(1)
    if added is None:
        return found, *((lse, rest) if whole else (none,))
    return found + added, *((lse, rest, out) if whole else (none,))


def attend_maps_back(*args: Any) -> tuple[Tensor, Tensor]:
    """``_attend_maps_back``: the gradients of p, and of att in parts."""
    here, there = args[:4], args[4:8]
    p, att, seed, out, kept, gout, scale, slope, dropout, heads, maps = args[8:]
    none = here[0].new_empty(0, dtype=torch.uint8)
    q, k, v, _ = _split(p, heads, maps)
    lse, rest, *others = kept
    result, up = others[0] if others else out.view(v.shape), gout.contiguous().view(v.shape)
    score, att = (DOT, none) if maps > 2 else (GATV2, att.view(att.shape[-2:]))
    delta, _, _ = _delta(up, result, none, none, none, none, none, none, 0.0)
    given = q, k, v, att, none, none, seed, lse, rest, delta, up
    gq, gatt, *_ = _rows(*here, *given, scale, slope, dropout, score, 1 if maps > 2 else 3, 0)
    gk, gv = _cols(*there, *given, none, scale, slope, dropout, score, 3, 0)
    each = [gk + gv, gq] if maps == 2 else [gk, gv, gq, *([up] if maps == 4 else [])]
    return torch.stack(each, 1).view(p.shape), gatt


WHOLE.update(
    {
        ops._attend_self.default: attend_self,
        ops._attend_self_back.default: attend_self_back,
        ops._attend_maps.default: attend_maps,
        ops._attend_maps_back.default: attend_maps_back,
    }
)
