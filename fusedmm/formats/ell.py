"""ELL: rows of one length, stored column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.formats.entries import GROWTH, entries, longest_row, place_in_row, require_bytes
from fusedmm.formats.padded import NUMBERS, Padded
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import PaddedOperands


@dataclass(frozen=True, eq=False, repr=False)
class ELL(Padded):
    """Rows of one length: entry k of row i has column ``idx[k, i]`` and value ``val[k, i]``; a column -1 is padding.

    Attributes:
        val: [width, rows].
        idx: int32 [width, rows].

    Example:
        >>> fusedmm.formats.to_ell(torch.tensor([[0, 1, 2], [0, 0, 1]])).idx
        tensor([[ 0,  2, -1],
                [ 1, -1, -1]], dtype=torch.int32)
    """

    idx: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        row, k = (self.idx >= 0).t().nonzero(as_tuple=True)  # row by row, so that entries keep their order
        return row, self.idx[k, row].long(), self.val[k, row]

    def _operands(self) -> PaddedOperands:
        (width, rows), idx = self.val.shape, self.idx.view(-1)
        none = idx[:0]
        return NUMBERS["ell"], rows, width, none, idx, self.val.view(-1), none, none, none, none


def to_ell(a: Any, *, growth: float = GROWTH) -> ELL:
    """Rows of one length, of a ``CSR``, for inference.

    Args:
        a: a ``CSR`` [rows, cols], or what ``as_csr`` takes; without values its entries are float32 ones.
        growth: how many times the bytes of the CSR the result may take, besides 1 MiB.

    Returns:
        The matrix, with values of the CSR's dtype: longest row * rows (4 + bytes of a value) bytes.

    Raises:
        TypeError: as ``as_csr``, or growth is no number.
        ValueError: it would take more (the text says how much), values that want a gradient, values with heads.

    Cost: one pass over the entries and one over what is stored.

    Source: Bell and Garland 2009, after ELLPACK.

    Example:
        >>> fusedmm.formats.to_ell(fusedmm.data.banded(4, 1))
        ELL(shape=(4, 4), val=[3, 4], idx=[3, 4], float32, device=cpu)
    """
    csr, row, col, val = entries("to_ell", a)
    width = longest_row(csr)
    require_bytes("to_ell", csr, val, ell_bytes(csr, width, val), growth)
    return ELL(csr.shape, *head_of_rows(csr, row, col, val, width))


def head_of_rows(csr: CSR, row: Tensor, col: Tensor, val: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Returns (val, idx) [width, rows] of the first entries of each row."""
    rows, place = csr.shape[0], place_in_row(csr, row)
    first = place < width
    at = (place * rows + row)[first]
    idx = torch.full((width, rows), -1, dtype=torch.int32, device=csr.device)
    idx.view(-1)[at] = col[first].to(torch.int32)
    filled = val.new_zeros(width, rows)
    filled.view(-1)[at] = val[first]
    return filled, idx


def ell_bytes(csr: CSR, width: int, val: Tensor) -> int:
    """Bytes that a product reads of rows of such a width."""
    return width * csr.shape[0] * (4 + val.element_size())
