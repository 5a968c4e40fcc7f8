"""What a matrix is, in the words that tensors have for it, and the same with values of another dtype."""

from __future__ import annotations

from typing import Any, overload

import torch

from fusedmm.matrix import constructors
from fusedmm.matrix.algebra.entries import numbers_of
from fusedmm.matrix.base import M, Matrix


class Kind(Matrix):
    """``dtype``, ``size``, ``numel``, ``equal``, ``half``, ``float``, ``double``, ``bfloat16``."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the values, None of a pattern."""
        return None if self.val is None else self.val.dtype

    @overload
    def size(self) -> tuple[int, int]: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Any:
        """(rows, cols), or one of the two, as ``torch.Tensor.size`` has it.

        Raises:
            IndexError: another dim than 0, 1, -1 and -2.
        """
        if dim is None:
            return self.shape
        if dim not in (0, 1, -1, -2):
            raise IndexError(f"size: dim {dim!r} is out of range: a CSR has the dimensions 0, 1, -1 and -2")
        return self.shape[dim]

    def numel(self) -> int:
        """The number of stored entries, ``nnz``; one with several heads counts once."""
        return self.nnz

    def equal(self, other: Any) -> bool:
        """Whether another matrix has the same shape and, in the order of its rows, the same entries and values.

        Edge orders may differ. A matrix and its ``coalesce()``, whose columns rise, may not be equal. Neither are
        values of two dtypes, a pattern and ones, or NaN and anything. ``==`` tells whether two are one object.

        Raises:
            TypeError: no CSR, or one on another device.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1., 2.]))
            >>> B = fusedmm.CSR.from_coo(torch.tensor([1, 0]), torch.tensor([0, 1]), torch.tensor([2., 1.]))
            >>> A.equal(B), A == B
            (True, False)
        """
        if not isinstance(other, Matrix):
            raise TypeError(f"equal: B must be a CSR, not {type(other).__name__}")
        if other.device != self.device:
            raise TypeError(f"equal: A is on {self.device}, B on {other.device}")
        if self.shape != other.shape or self.nnz != other.nnz:
            return False
        if not (torch.equal(self.ptr, other.ptr) and torch.equal(self.idx, other.idx)):
            return False
        a, b = self.val, other.val
        if a is None or b is None:
            return a is b
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a[numbers_of(self).long()], b[numbers_of(other).long()])

    def half(self: M) -> M:
        """With values of float16; see ``to``."""
        return constructors.to(self, None, torch.float16, False)

    def bfloat16(self: M) -> M:
        """With values of bfloat16; see ``to``."""
        return constructors.to(self, None, torch.bfloat16, False)

    def float(self: M) -> M:
        """With values of float32; see ``to``."""
        return constructors.to(self, None, torch.float32, False)

    def double(self: M) -> M:
        """With values of float64; see ``to``."""
        return constructors.to(self, None, torch.float64, False)
