"""What the conversions share: the entries of a CSR in order, and a limit on what padding may take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.adapters import operand
from fusedmm.matrix.arguments import require_number
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import require_flat_values

GROWTH = 8  # times the bytes of the CSR that a padded matrix may take unless more is asked for
SPARED = 1 << 20  # bytes that padding may take however small the matrix is


def entries(name: str, a: Any) -> tuple[CSR, Tensor, Tensor, Tensor]:
    """Returns the matrix, and row, column and value of each entry in the order of its rows; row and column int64.

    Raises:
        TypeError, ValueError: as ``as_csr``, values with heads, values that want a gradient.
    """
    csr = operand(name, "a", a)
    require_flat_values(name, csr.val)
    val = torch.ones(csr.nnz, device=csr.device) if csr.val is None else csr.val.reshape(-1)
    if val.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: the values want a gradient, which only CSR and COO give; detach them")
    val = val.detach()
    val = val[csr.eid.long()] if csr.val is not None and csr.eid.numel() else val
    return csr, rows_of(csr.ptr, csr.nnz).long(), csr.idx.long(), val


def place_in_row(csr: CSR, row: Tensor) -> Tensor:
    """Tells how many entries of its row lie before each entry."""
    return torch.arange(csr.nnz, device=csr.device) - csr.ptr[row]


def longest_row(csr: CSR) -> int:
    """Returns the most entries that a row has."""
    return int(csr.degree().amax()) if csr.shape[0] else 0


def csr_bytes(csr: CSR, val: Tensor) -> int:
    """Bytes that a product reads of the CSR with such values."""
    return (csr.shape[0] + 1) * 8 + csr.nnz * (4 + val.element_size())


def allowed_bytes(csr: CSR, val: Tensor, growth: float = GROWTH) -> float:
    """Bytes that a padded matrix may take."""
    return SPARED + growth * csr_bytes(csr, val)


def require_bytes(name: str, csr: CSR, val: Tensor, wanted: int, growth: Any) -> None:
    """Refuses a conversion before it fills the memory with padding.

    Raises:
        TypeError: growth is no number.
        ValueError: growth is NaN, or allows fewer bytes than are wanted.
    """
    times = require_number(f"{name}: growth", growth, torch.float64)
    if not wanted <= allowed_bytes(csr, val, times):
        raise ValueError(
            f"{name}: the padded matrix would take {wanted:,} bytes, the CSR takes {csr_bytes(csr, val):,}; "
            f"growth={times:g} does not allow that much"
        )


def require_int32_rows(name: str, csr: CSR) -> None:
    """Requires numbers of rows that fit in int32.

    Raises:
        ValueError: 2^31 rows and more.
    """
    if csr.shape[0] >= 1 << 31:
        raise ValueError(f"{name}: {csr.shape[0]} rows; rows must be below 2^31")
