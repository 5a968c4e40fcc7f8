"""COO: a row and a column for each entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.formats.entries import require_int32_rows
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.csr import CSR
from fusedmm.ops.matvec import vector_product


@dataclass(frozen=True, eq=False, repr=False)
class COO:
    """Coordinates, sorted by row: the entries of a CSR, with their rows written out.

    Attributes:
        csr: the matrix; it holds columns and values, and gradients take its transpose.
        row: int32 [nnz], the row of each entry, never falling.

    Raises:
        TypeError: csr is no CSR, or row no tensor.

    Example:
        >>> fusedmm.formats.to_coo(torch.tensor([[1, 0], [0, 1]])).row
        tensor([0, 1], dtype=torch.int32)
    """

    csr: CSR
    row: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.csr, CSR):
            raise TypeError(f"COO: csr must be a CSR, not {type(self.csr).__name__}")
        if not isinstance(self.row, Tensor | torch.fx.Proxy):  # what torch.compile traces ``B @ x`` with
            raise TypeError(f"COO: row must be a tensor, not {type(self.row).__name__}")

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return self.csr.shape

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.csr.nnz

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.csr.device

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of the matrix: rows, columns and values."""
        return self.nnz * (8 + (0 if self.csr.val is None else self.csr.val.element_size()))

    def to_csr(self) -> CSR:
        """Returns the CSR that it was made of."""
        return self.csr

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> COO:
        """On another device, and with values of another dtype; see ``CSR.to``."""
        csr = self.csr.to(device, dtype)
        return COO(csr, self.row.to(csr.device))

    def __matmul__(self, x: Tensor) -> Tensor:
        return vector_product(self.csr, x, self.row)

    def __repr__(self) -> str:
        return self.csr.__repr__().replace("CSR(", "COO(", 1)


def to_coo(a: Any) -> COO:
    """Coordinates of a ``CSR``; the only other format with gradients.

    Args:
        a: a ``CSR`` [rows, cols], or what ``as_csr`` takes. Its values stay as they are, and so does their gradient.

    Returns:
        The matrix, which shares the CSR's tensors and adds the row of each entry: nnz (8 + bytes of a value) bytes.

    Raises:
        TypeError, ValueError: as ``as_csr``, or 2^31 rows and more.

    Cost: O(nnz), without a sort.

    Source: Bell and Garland 2009.

    Example:
        >>> fusedmm.formats.to_coo(fusedmm.CSR.from_dense(torch.eye(2)))
        COO(shape=(2, 2), nnz=2, val=float32[2], device=cpu)
    """
    csr = operand("to_coo", "a", a)
    require_int32_rows("to_coo", csr)
    return COO(csr, rows_of(csr.ptr, csr.nnz).to(torch.int32))
