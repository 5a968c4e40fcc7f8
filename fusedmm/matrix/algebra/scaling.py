"""Scaled rows and columns, and products with dense vectors and matrices from the left."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from fusedmm.matrix.algebra.entries import common, like
from fusedmm.matrix.arguments import FLOATS, require_strided, require_tensor
from fusedmm.matrix.base import M, Matrix
from fusedmm.ops.checks import autocast, require_dense
from fusedmm.ops.matvec import SPARSE, require_flat_values, require_vector, sparse, spmv_half
from fusedmm.ops.products import multiply
from fusedmm.ops.spmm_sddmm import sddmm_half, spmm_half


class Scaling(Matrix):
    """``A.scale`` and ``x @ A``."""

    def scale(self: M, *, rows: Tensor | None = None, cols: Tensor | None = None) -> M:
        """Scales rows and columns: ``val[p] * rows[i] * cols[j]`` for entry p = (i, j), in A's edge order.

        Args:
            rows: [rows], or [rows, heads], floating; None scales no rows.
            cols: [cols], or [cols, heads]; None scales no columns.

        Returns:
            CSR of A's structure, with values of the dtype that torch promotes all of them to.

        Raises:
            TypeError: no tensors of floating-point numbers, another device.
            ValueError: another length, heads that do not agree, or neither rows nor cols.

        Gradient: reaches all three, of any order: an SDDMM of one column.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
            >>> A.scale(rows=torch.tensor([1., 10.]), cols=torch.tensor([1., 2.])).to_dense()
            tensor([[ 1.,  4.],
                    [ 0., 60.]])
        """
        if rows is None and cols is None:
            raise ValueError("scale: give rows, cols or both")
        for name, t, size in (("rows", rows, self.shape[0]), ("cols", cols, self.shape[1])):
            _require_factors(name, t, size, self.device)
        dtype, heads = common("scale", self.val, rows, cols)
        parts = []
        for t, size in ((rows, self.shape[0]), (cols, self.shape[1])):
            t = torch.ones(1, dtype=dtype, device=self.device).expand(size) if t is None else t
            t = like(t, dtype, heads)
            parts.append(t[..., None])
        left, right = parts
        val = None if self.val is None else self.val.to(dtype)
        return self.with_values(sddmm_half(self, False, val, left, right))

    @overload
    def __rmatmul__(self, x: Tensor) -> Tensor: ...
    @overload
    def __rmatmul__(self, x: Any) -> Any: ...
    def __rmatmul__(self, x: Any) -> Any:
        """``x @ A`` of a vector [rows] or a matrix [n, rows] from the left; A's values have no heads.

        It is ``(A^T x^T)^T``: an SpMV or SpMM on the transpose, which is made on first use. The result is [cols] or
        [n, cols], of x's dtype. Gradients reach x and A's values. Of a sparse matrix of torch or scipy it is a CSR, by
        ``spgemm``.
        """
        if not isinstance(x, Tensor) or x.layout in SPARSE:
            if (other := sparse(self, x)) is not None:
                return multiply(other, self)
            if not isinstance(x, Tensor):
                return NotImplemented
        require_flat_values("x @ A", self.val)
        if x.dim() != 2:
            if x.dim() > 2:
                raise ValueError(f"x @ A: x must be [rows] or [n, rows], not {list(x.shape)}")
            require_vector("x @ A", "x", x, self.ptr, self.shape[0], "rows")
            return spmv_half(self, True, self.val, autocast(x))
        require_strided("x @ A: x", x)
        require_dense("x @ A", "x transposed", x.t(), self, self.shape[0], "rows")
        return spmm_half(self, True, self.val, autocast(x).t()).t()


def _require_factors(name: str, t: Any, size: int, device: torch.device) -> None:
    if t is None:
        return
    require_tensor(f"scale: {name}", t)
    if t.dtype not in FLOATS:
        raise TypeError(f"scale: {name} must be float32, float64, float16 or bfloat16, not {t.dtype}")
    require_strided(f"scale: {name}", t)
    if t.device != device:
        raise TypeError(f"scale: {name} is on {t.device}, the matrix on {device}")
    if t.dim() not in (1, 2) or t.shape[0] != size:
        raise ValueError(f"scale: {name} must be [{size}] or [{size}, heads], not {list(t.shape)}")
