"""Cutting an operator's call into pieces that have no term in common: channels of a product, heads of an attention.

    y[:, slice] = A x[:, slice]          out[:, slice] = attention(A, q[:, slice], k[:, slice], v[:, slice])

Each number is computed from the same terms whichever slice it is in. Kernels add few channels, and a single head, in
another order than many. So a slice is computed in a window that is wide enough for the loops of the whole, and results
laid side by side have the bits of one call:

    channels  0                64               128
    window 0  [ slice 0        |   ]                       80 channels, of which 64 are kept
    window 1              [    |       slice 1 ]

The ranks of a mesh's axis "features" take a slice each. What mixes channels, as a dot product does, is not cut.

On a GPU the loops of a product are those of any width. Those of attention are the same from three heads on, where
heads are read 16 bytes at a time. On the CPU the pieces of a row have as many entries as leave room for all heads, so
that attention is not cut there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedmm._lib import ops

# Channels of a product, and heads of dot products and of attention, that a window has at least: from there on the
# loops are those of any larger number.
CHANNELS, CUDA_CHANNELS = 80, 128
DOT_HEADS, HEADS = 2, 3
LOAD = 16  # bytes that a lane of a GPU reads at once
ATTENTION = (ops._attention.default, ops._attention_rows.default, ops._attention_cols.default)
ATT, BIAS, WEIGHT, SEED = 7, 8, 9, 10  # places of attention's operands


class Cut(NamedTuple):
    """How a call is cut.

    Attributes:
        pieces: into how many slices.
        size: the channels or heads of the whole.
        window: those of a window.
        operands: the dimension in which an operand is cut, by its place.
        results: the dimension in which results lie side by side.
    """

    pieces: int
    size: int
    window: int
    operands: dict[int, int]
    results: int

    def take(self, args: Sequence[Any], k: int) -> list[Any]:
        """The arguments of the window around slice k."""
        begin = self._begin(k)
        return [
            t.narrow(self.operands[place], begin, self.window).contiguous() if place in self.operands else t
            for place, t in enumerate(args)
        ]

    def keep(self, found: Any, k: int) -> tuple[Tensor, ...]:
        """What of a window's results belongs to slice k."""
        own = self.size // self.pieces
        at = k * own - self._begin(k)
        each = (found,) if isinstance(found, Tensor) else found
        return tuple(t.narrow(self.results, at, own) if _wanted(t) else t for t in each)

    def join(self, found: Sequence[Sequence[Tensor]]) -> Any:
        """The results of the whole call, of those of all slices in their order."""
        whole = tuple(
            torch.cat(list(parts), self.results) if _wanted(parts[0]) else parts[0]
            for parts in zip(*found, strict=True)
        )
        return whole if len(whole) > 1 else whole[0]

    def _begin(self, k: int) -> int:
        return min(k * (self.size // self.pieces), self.size - self.window)


def _wanted(t: Tensor) -> bool:
    """Whether a result is there: one that nobody wants has a single dimension."""
    return t.dim() > 1


def cut_of(func: Any, args: Sequence[Any], pieces: int) -> Cut | None:
    """How a call is cut into equal slices; None where it is not."""
    cuda = on_gpu(args)
    if func is ops._spmm.default:
        x = args[5]
        last = x.dim() - 1
        return _cut(pieces, x.shape[last], CUDA_CHANNELS if cuda else CHANNELS, {5: last}, last)
    if func is ops._sddmm.default:
        val, a = args[4], args[5]
        per_head = val.dim() == 2 and val.shape[1] == a.shape[1]
        operands = {5: 1, 6: 1} | ({4: 1} if per_head else {})
        return _cut(pieces, a.shape[1], DOT_HEADS, operands, 1) if a.dim() > 2 else None
    if func not in ATTENTION or not cuda:
        return None
    # Edge weights have a gradient that adds up heads, and dropout knows a head by its number.
    whole = any(args[place].dtype != torch.uint8 for place in (ATT, WEIGHT, SEED))
    if whole or (args[BIAS].dim() == 1 and args[BIAS].dtype != torch.uint8):
        return None
    widths = [
        args[k].shape[2] for k in (4, 6) if args[k].dim() > 2
    ]  # of q, which is 1 where scores are additive, and v
    if any(n > 1 and n * args[6].element_size() % LOAD for n in widths):
        return None
    operands = {place: 1 for place, t in enumerate(args) if place > 3 and isinstance(t, Tensor) and t.dim() > 1}
    return _cut(pieces, args[6].shape[1], HEADS, operands, 1)


def on_gpu(args: Sequence[Any]) -> bool:
    """Whether an operator's matrix lies on a GPU."""
    return bool(args[0].is_cuda)


def _cut(pieces: int, size: int, least: int, operands: dict[int, int], results: int) -> Cut | None:
    window = max(size // pieces, least)
    return Cut(pieces, size, window, operands, results) if size % pieces == 0 and window < size else None
