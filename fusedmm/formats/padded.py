"""What DIA, ELL, HYB and SELL share as matrices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fusedmm._lib import numbers_of
from fusedmm.matrix.constructors import require_target
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast
from fusedmm.ops.matvec import OF_CSR, PaddedOperands, padded_product, require_vector

NUMBERS = numbers_of("FMM_FORMAT_", "dia", "ell", "hyb", "sell")
P = TypeVar("P", bound="Padded")


@dataclass(frozen=True, eq=False, repr=False)
class Padded:
    """Holds what DIA, ELL, HYB and SELL share: a frozen matrix of tensors for inference, with one value per place.

    Attributes:
        shape: (rows, cols).
        val: the values of all places, those of padding too.

    Raises:
        TypeError: a part is no tensor.
        ValueError: val is not of the shape that the format says, or not contiguous.
    """

    shape: tuple[int, int]
    val: Tensor
    # What ``padded_product`` takes: views, each of which would cost every product a microsecond.
    operands: ClassVar[PaddedOperands]
    places: ClassVar[str] = "[width, rows]"  # the shape of val

    def __post_init__(self) -> None:
        if isinstance(self.val, torch.fx.Proxy):  # what torch.compile traces ``B @ x`` with
            return
        kind = type(self).__name__
        for name in (f.name for f in fields(self) if f.name != "shape"):
            if not isinstance(part := getattr(self, name), Tensor):
                raise TypeError(f"{kind}: {name} must be a tensor, not {type(part).__name__}")
        size, rows, wide = list(self.val.shape), self.shape[0], "rows" in self.places
        if len(size) != 1 + wide or (wide and size[1] != rows):
            raise ValueError(f"{kind}: val is {size} and must be {self.places}; the matrix has {rows} rows")
        if not self.val.is_contiguous():
            raise ValueError(f"{kind}: val {size} must be contiguous")
        object.__setattr__(self, "operands", self._operands())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.val.device

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of the matrix, padding too."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    @property
    def nnz(self) -> int:
        """Number of entries, without padding; it waits for a GPU."""
        return self._coordinates()[0].numel()

    def to_csr(self) -> CSR:
        """Returns the matrix as a ``CSR`` with values, sorted by row; padding is left out."""
        row, col, val = self._coordinates()
        order = torch.argsort(row, stable=True)
        return CSR.from_coo(row[order], col[order], val[order], self.shape)

    def to(self: P, device: Any = None, dtype: torch.dtype | None = None) -> P:
        """On another device, and with values of another dtype.

        Raises:
            TypeError, ValueError: as ``CSR.to``.
        """
        target = require_target(self.device, device, dtype)
        moved = {name: t.to(target) for name, t in self._tensors().items()}
        moved = {name: t.to(dtype) if t.dtype.is_floating_point else t for name, t in moved.items()}
        return type(self)(**{f.name: moved.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (row, col, val) of the entries, int64 and in any order."""
        raise NotImplementedError

    def _operands(self) -> PaddedOperands:
        """Returns what ``padded_product`` takes."""
        raise NotImplementedError

    def __matmul__(self, x: Tensor) -> Tensor:
        require_vector("spmv", "x", x, self.val, self.shape[1], "columns", OF_CSR)
        return padded_product(self.operands, autocast(x))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={list(t.shape)}" for name, t in self._tensors().items())
        return f"{type(self).__name__}(shape={self.shape}, {sizes}, {str(self.val.dtype)[6:]}, device={self.device})"
