"""Sparse times a vector."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fusedmm._lib import algorithm_number, is_algorithm, sums_dtype
from fusedmm.formats import COO, FORMATS
from fusedmm.formats.padded import Padded
from fusedmm.matrix.adapters import lent
from fusedmm.matrix.arguments import require_number
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast, require_scalar, rows_of
from fusedmm.ops.matvec import OF_CSR, padded_product, require_flat_values, require_vector, spmv_half


def spmv(
    a: Any, x: Tensor, *, alpha: float = 1, beta: float = 0, y: Tensor | None = None, algorithm: str = "auto"
) -> Tensor:
    """Multiplies a sparse matrix by a vector: ``alpha * (A @ x) + beta * y``.

    Args:
        a: a ``CSR`` [rows, cols], what ``as_csr`` takes, or a matrix of ``fusedmm.formats``. A pattern counts as ones.
        x: float32, float64, float16 or bfloat16, [cols], any stride. (Several vectors go to ``spmm``.)
        alpha, beta: numbers; they get no gradient.
        y: [rows], of x's dtype. It is not read where beta is 0, so that its NaN goes nowhere.
        algorithm: a name from ``fusedmm.algorithms("spmv", device)`` that belongs to a's format, or "auto".

    Returns:
        [rows], of x's dtype, a new tensor. Sums are kept in float32 (float64 for float64) and rounded once, after
        alpha and beta; bitwise reproducible, whatever the number of threads (cuSPARSE's algorithms apart). A row
        without entries gives ``beta * y``.

    Raises:
        TypeError: wrong types, integer operands, operands of several dtypes or devices.
        ValueError: shapes that do not fit, a malformed matrix, an unknown algorithm or one of another format, values
            with heads, beta without y, a gradient that a padded format cannot give.

    Gradient: for CSR and COO it reaches a's values, x and y, of any order: an SpMV on the transpose and an SDDMM. DIA,
    ELL, HYB and SELL are for inference.

    Cost: 2 nnz flops. Each stored element and its column are read once, and one element of x is gathered for it: bytes
    decide the time. ``fusedmm.formats.advise`` counts them.

    Source: Bell and Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors",
    2009; Merrill and Garland, "Merge-based parallel sparse matrix-vector multiplication", 2016.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
        >>> fusedmm.spmv(A, torch.tensor([10., 20.]))
        tensor([50., 60.])
        >>> fusedmm.spmv(A, torch.tensor([10., 20.]), alpha=2, beta=1, y=torch.tensor([1., 1.]))
        tensor([101., 121.])
    """
    padded = isinstance(a, Padded)
    if not padded and type(a) is not CSR and type(a) is not COO:
        a = lent("spmv", "a", a, x, rows_of(x))
    csr, row = (a.csr, a.row) if type(a) is COO else (a, None)
    like = a.val if padded else csr.ptr
    require_vector(
        "spmv", "x", x, like, a.shape[1] if padded else csr.n_cols, "columns", "" if type(a) is CSR else OF_CSR
    )
    alpha, beta = _number("alpha", alpha, x), _number("beta", beta, x)
    number = 0 if algorithm == "auto" else _algorithm(a, x, algorithm)
    if y is not None:
        require_vector("spmv", "y", y, like, a.shape[0], "rows")
        if y.dtype != x.dtype:
            raise TypeError(f"spmv: y is {y.dtype} and x {x.dtype}; they must be of one dtype")
        y = autocast(y)
    elif beta != 0:
        raise ValueError(f"spmv: beta is {beta:g}, so y must be given")
    if padded:
        return padded_product(a.operands, autocast(x), y, alpha, beta, number)
    require_flat_values("spmv", csr.val)
    return spmv_half(csr, False, csr.val, autocast(x), y, alpha, beta, number, row)


def _number(name: str, number: Any, x: Tensor) -> float:
    if (type(number) is float or type(number) is int) and -1e38 < number < 1e38:
        return float(number)
    if type(number) is not float:
        require_scalar("spmv", name, number)
        number = float(number)
    return require_number(f"spmv: {name}", number, sums_dtype(x))


def _algorithm(a: Any, x: Tensor, name: Any) -> int:
    """Returns the number of an algorithm, which must be one of a's format."""
    family = name.partition(":")[0] if is_algorithm("spmv", x.device.type, name) else ""
    wanted, given = FORMATS.get(family), type(a)
    if wanted is not None and wanted is not given:
        mend = "its to_csr()" if wanted is CSR else f"fusedmm.formats.to_{family}, of a CSR,"
        raise ValueError(f"spmv: {name} takes {wanted.__name__}, not {given.__name__}: {mend} makes one")
    return algorithm_number("spmv", x.device.type, name)
