"""HYB: an ELL for what most rows have, coordinates for what a few long rows have beyond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.formats.ell import ELL, ell_bytes, head_of_rows
from fusedmm.formats.entries import GROWTH, entries, longest_row, place_in_row, require_bytes, require_int32_rows
from fusedmm.formats.padded import NUMBERS
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import PaddedOperands


@dataclass(frozen=True, eq=False, repr=False)
class HYB(ELL):
    """An ELL, and coordinates for the entries that do not fit in its width.

    Attributes:
        val, idx: as of ELL.
        tail_row, tail_idx: int32 [entries beyond], sorted by row.
        tail_val: their values.

    Example:
        >>> fusedmm.formats.to_hyb(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])).tail_idx
        tensor([0, 1, 2, 3], dtype=torch.int32)
    """

    tail_row: Tensor
    tail_idx: Tensor
    tail_val: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        row, col, val = super()._coordinates()
        tail = self.tail_row.long(), self.tail_idx.long(), self.tail_val
        return torch.cat([row, tail[0]]), torch.cat([col, tail[1]]), torch.cat([val, tail[2]])

    def _operands(self) -> PaddedOperands:
        return NUMBERS["hyb"], *super()._operands()[1:7], self.tail_row, self.tail_idx, self.tail_val


def to_hyb(a: Any, *, width: int | None = None, growth: float = GROWTH) -> HYB:
    """An ELL for the first entries of each row, and coordinates for the rest, for inference.

    Args:
        a: a ``CSR`` [rows, cols], or what ``as_csr`` takes; without values its entries are float32 ones.
        width: entries of each row that go to the ELL; by default the most that a third of the rows have.
        growth: how many times the bytes of the CSR the result may take, besides 1 MiB.

    Returns:
        The matrix, with values of the CSR's dtype: width * rows (4 + bytes of a value) bytes, and 8 more than those of
        a value for each entry beyond.

    Raises:
        TypeError: as ``as_csr``, or width is no int, or growth is no number.
        ValueError: a negative width, a width that takes more than growth allows (the text says how much), values that
            want a gradient, values with heads, 2^31 rows and more.

    Cost: one pass over the entries and one over what is stored; by default a sort of the rows' lengths.

    Source: Bell and Garland 2009.

    Example:
        >>> fusedmm.formats.to_hyb(fusedmm.data.banded(4, 1), width=2)
        HYB(shape=(4, 4), val=[2, 4], idx=[2, 4], tail_row=[2], tail_idx=[2], tail_val=[2], float32, device=cpu)
    """
    csr, row, col, val = entries("to_hyb", a)
    require_int32_rows("to_hyb", csr)
    if width is None:
        width = hyb_width(csr)
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"to_hyb: width must be an int, not {width!r}")
    if width < 0:
        raise ValueError(f"to_hyb: width must not be negative, not {width}")
    width = min(width, longest_row(csr))
    tail = int((csr.degree() - width).clamp(min=0).sum())
    require_bytes("to_hyb", csr, val, hyb_bytes(csr, width, tail, val), growth)
    head = head_of_rows(csr, row, col, val, width)
    beyond = place_in_row(csr, row) >= width
    return HYB(csr.shape, *head, row[beyond].to(torch.int32), col[beyond].to(torch.int32), val[beyond])


def hyb_width(csr: CSR) -> int:
    """Returns the largest width that a third of the rows fill (Bell and Garland's rule)."""
    rows = csr.shape[0]
    return int(csr.degree().sort(descending=True).values[(rows - 1) // 3]) if rows else 0


def hyb_bytes(csr: CSR, width: int, tail: int, val: Tensor) -> int:
    """Bytes that a product reads of an ELL of such a width and of so many entries beyond."""
    return ell_bytes(csr, width, val) + tail * (8 + val.element_size())
