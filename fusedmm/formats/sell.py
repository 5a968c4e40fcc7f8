"""SELL: slices of 32 rows, each as wide as its longest row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.formats.entries import GROWTH, entries, longest_row, place_in_row, require_bytes, require_int32_rows
from fusedmm.formats.padded import NUMBERS, Padded
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import PaddedOperands

SLICE = 32  # rows of a slice: the threads of a warp
SIGMA = 1024  # rows of a window unless another number is asked for


@dataclass(frozen=True, eq=False, repr=False)
class SELL(Padded):
    """Slices of 32 rows: slice s holds the rows ``order[32 s : 32 s + 32]``, each padded to the longest of them.

    Attributes:
        val: [places]; entry k of the row at place r of slice s is ``val[offsets[s] + 32 k + r]``.
        idx: int32 [places], columns, -1 for padding.
        offsets: int64 [slices + 1].
        order: int32 [rows], sorted by falling length within windows of sigma rows.

    Example:
        >>> fusedmm.formats.to_sell(torch.tensor([[0, 1, 2], [1, 1, 0]])).order
        tensor([1, 0, 2], dtype=torch.int32)
    """

    places = "[places]"
    idx: Tensor
    offsets: Tensor
    order: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        at = (self.idx >= 0).nonzero()[:, 0]
        s = torch.searchsorted(self.offsets, at, right=True) - 1
        row = self.order.long()[SLICE * s + (at - self.offsets[s]) % SLICE]
        return row, self.idx[at].long(), self.val[at]

    def _operands(self) -> PaddedOperands:
        none = self.idx[:0]
        return NUMBERS["sell"], self.shape[0], SLICE, self.offsets, self.idx, self.val, self.order, none, none, none


def to_sell(a: Any, *, sigma: int = SIGMA, growth: float = GROWTH) -> SELL:
    """Slices of 32 rows, of a ``CSR``, for inference.

    Args:
        a: a ``CSR`` [rows, cols], or what ``as_csr`` takes; without values its entries are float32 ones.
        sigma: rows are sorted by length within windows of so many; 1 keeps their order.
        growth: how many times the bytes of the CSR the result may take, besides 1 MiB.

    Returns:
        The matrix, with values of the CSR's dtype: 4 and the bytes of a value for each place, padding too, 4 for each
        row and 8 for each slice.

    Raises:
        TypeError: as ``as_csr``, or sigma is no int, or growth is no number.
        ValueError: sigma below 1, more bytes than allowed (the text says how much), values that want a gradient or
            have heads, 2^31 rows and more.

    Cost: a sort of the rows, one pass over the entries and one over what is stored.

    Source: Kreutzer, Hager, Wellein, Fehske and Bishop, "A unified sparse matrix data format", 2014.

    Example:
        >>> fusedmm.formats.to_sell(fusedmm.data.banded(40, 1))
        SELL(shape=(40, 40), val=[192], idx=[192], offsets=[3], order=[40], float32, device=cpu)
    """
    csr, row, col, val = entries("to_sell", a)
    require_int32_rows("to_sell", csr)
    if isinstance(sigma, bool) or not isinstance(sigma, int):
        raise TypeError(f"to_sell: sigma must be an int, not {sigma!r}")
    if sigma < 1:
        raise ValueError(f"to_sell: sigma must be at least 1, not {sigma}")
    order, offsets = slices_of(csr, sigma)
    places = int(offsets[-1])
    require_bytes("to_sell", csr, val, sell_bytes(csr, places, val), growth)
    place_of = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=csr.device))
    at = place_of[row]
    at = offsets[at // SLICE] + place_in_row(csr, row) * SLICE + at % SLICE
    idx = torch.full((places,), -1, dtype=torch.int32, device=csr.device)
    idx[at] = col.to(torch.int32)
    filled = val.new_zeros(places)
    filled[at] = val
    return SELL(csr.shape, filled, idx, offsets, order.to(torch.int32))


def slices_of(csr: CSR, sigma: int) -> tuple[Tensor, Tensor]:
    """Returns (order, offsets) of SELL: both int64."""
    rows, length, longest = csr.shape[0], csr.degree(), longest_row(csr)
    window = torch.arange(rows, device=csr.device) // min(sigma, max(rows, 1))
    order = torch.argsort(window * (longest + 1) + (longest - length), stable=True)
    padded = torch.nn.functional.pad(length[order], (0, -rows % SLICE)).view(-1, SLICE)
    ends = (padded.amax(1) * SLICE).cumsum(0) if rows else length
    return order, torch.nn.functional.pad(ends, (1, 0))


def sell_bytes(csr: CSR, places: int, val: Tensor) -> int:
    """Bytes that a product reads of slices of so many places."""
    rows = csr.shape[0]
    return places * (4 + val.element_size()) + rows * 4 + (-(-rows // SLICE) + 1) * 8
