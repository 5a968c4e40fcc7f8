"""DIA: whole diagonals, whose columns need not be stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.formats.entries import GROWTH, entries, require_bytes
from fusedmm.formats.padded import NUMBERS, Padded
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import PaddedOperands


@dataclass(frozen=True, eq=False, repr=False)
class DIA(Padded):
    """Diagonals: ``A[i, i + offsets[d]] = val[d, i]``, where that is inside; a zero is no entry.

    Attributes:
        val: [diagonals, rows].
        offsets: int64 [diagonals], column minus row, rising.

    Example:
        >>> fusedmm.formats.to_dia(fusedmm.CSR.from_dense(torch.eye(2))).offsets
        tensor([0])
    """

    places = "[diagonals, rows]"
    offsets: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        d, row = self.val.nonzero(as_tuple=True)
        col = row + self.offsets[d]
        inside = (col >= 0) & (col < self.shape[1])
        return row[inside], col[inside], self.val[d, row][inside]

    def _operands(self) -> PaddedOperands:
        (width, rows), none = self.val.shape, self.offsets[:0]
        return NUMBERS["dia"], rows, width, self.offsets, none, self.val.view(-1), none, none, none, none


def to_dia(a: Any, *, growth: float = GROWTH) -> DIA:
    """Diagonals of a ``CSR``, for inference. Repeated entries are added up in float64 and rounded
    to the dtype; zeros are left out.

    Args:
        a: a ``CSR`` [rows, cols], or what ``as_csr`` takes; without values its entries are float32 ones.
        growth: how many times the bytes of the CSR the result may take, besides 1 MiB.

    Returns:
        The matrix, with values of the CSR's dtype: diagonals (8 + rows times the bytes of a value) bytes.

    Raises:
        TypeError: as ``as_csr``, or growth is no number.
        ValueError: it would take more (the text says how much), values that want a gradient, values with heads.

    Cost: O(nnz log nnz) to find the diagonals, and one pass over what is stored.

    Source: Bell and Garland 2009.

    Example:
        >>> fusedmm.formats.to_dia(fusedmm.data.banded(4, 1))
        DIA(shape=(4, 4), val=[3, 4], offsets=[3], float32, device=cpu)
    """
    csr, row, col, val = entries("to_dia", a)
    rows = csr.shape[0]
    offset, there = col - row, val != 0
    offsets = torch.unique(offset[there]).clone()  # a GPU leaves them in memory for all that it was given
    require_bytes("to_dia", csr, val, dia_bytes(csr, offsets.numel(), val), growth)
    # Repeated entries are added up in float64: several threads of a CPU add float32 numbers in any order.
    wide = torch.zeros(offsets.numel(), rows, dtype=torch.float64, device=csr.device)
    d = torch.searchsorted(offsets, offset[there])
    wide.view(-1).index_put_((d * rows + row[there],), val[there].double(), accumulate=True)
    return DIA(csr.shape, wide.to(val.dtype), offsets)


def dia_bytes(csr: CSR, diagonals: int, val: Tensor) -> int:
    """Bytes that a product reads of so many diagonals."""
    return diagonals * (8 + csr.shape[0] * val.element_size())
