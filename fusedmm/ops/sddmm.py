"""Dense times dense, sampled where a sparse matrix has entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import algorithm_number
from fusedmm._torch_compat import is_exporting
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, from_rows
from fusedmm.ops.checks import autocast, require_dense, require_values, rows_of
from fusedmm.ops.spmm_sddmm import sddmm_half, spmm_half, widened

ELEMENTWISE: dict[str, Any] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


def sddmm(adj: Any, a: Tensor, b: Tensor, *, op: str = "dot", algorithm: str = "auto") -> Tensor:
    """Combines rows of two dense matrices at a sparse matrix's entries: ``e[p] = val[p] * <a[i], b[j]>``.

    Args:
        adj: a ``CSR`` [rows, cols], or what ``as_csr`` takes. Its values multiply the products; a
            pattern counts as ones. (torch.sparse.sampled_addmm *adds* its input instead.)
        a: float32, float64, float16 or bfloat16, [rows, F] or [rows, heads, F], any strides.
            The axis of nodes comes FIRST: give a batch [batch, rows, F] as ``a.transpose(0, 1)``. Where batch and
            rows are equal nothing can tell the two apart, and the batch is taken for the nodes.
        b: the same dtype, [cols, F] or [cols, heads, F].
        op: "dot", or "add", "sub", "mul" for ``val[p] * (a[i] + b[j])`` and its like, channel by channel.
        algorithm: a name from ``fusedmm.algorithms("sddmm", device)``, or "auto". (cuSPARSE's want the
            columns of a row to differ; the others take repeated entries.)

    Returns:
        e for entry p = (i, j), [nnz] or [nnz, heads] ([nnz, F] or [nnz, heads, F] for the elementwise
        forms), of a's dtype, in the caller's edge order. Sums, and products with values, are kept in
        float32 (float64 for float64); bitwise reproducible.

    Raises:
        TypeError: wrong types, integer operands, operands of several dtypes or devices.
        ValueError: shapes that do not fit, a malformed matrix, an unknown algorithm.

    Gradient: reaches a and b (SpMM with ``ge * val`` and on the transpose) and adj's values, of any order.
    That of an elementwise form within an exported program goes through torch's index_select, which on CUDA adds
    atomically: it may differ in its last bits from run to run.

    Cost: 2 nnz heads F flops; nnz gathered rows of b decide the time. The elementwise forms store
    nnz heads F numbers three times over; ``fused`` and ``attention`` avoid them where a sum follows.
    Compiled code takes them for a CSR that one call outside has seen.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2))
        >>> fusedmm.sddmm(A, torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([[5., 6.], [7., 8.]]))
        tensor([23., 39.])
    """
    if type(adj) is not CSR:
        adj = operand("sddmm", "adj", adj, rows_of(b, a))
    require_dense("sddmm", "a", a, adj, adj.shape[0], "rows")
    require_dense("sddmm", "b", b, adj, adj.n_cols, "columns")
    a, b = autocast(a), autocast(b)
    if a.dtype != b.dtype:
        raise TypeError(f"sddmm: a is {a.dtype} and b {b.dtype}; they must be of one dtype")
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"sddmm: a is {list(a.shape)} and b {list(b.shape)}; heads and features must agree")
    require_values("sddmm", adj.val, a)
    if op != "dot":
        if not isinstance(op, str) or op not in ELEMENTWISE:
            raise ValueError(f"sddmm: op must be one of dot, {', '.join(ELEMENTWISE)}, not {op!r}")
        if algorithm != "auto":
            raise ValueError(f'sddmm: op {op!r} has one algorithm, "auto", not {algorithm!r}')
        return elementwise(adj, a, b, op)
    number = 0 if algorithm == "auto" else algorithm_number("sddmm", a.device.type, algorithm)
    return sddmm_half(adj, False, adj.val, a, b, number)


def elementwise(adj: CSR, a: Tensor, b: Tensor, op: str) -> Tensor:
    """Both sides are gathered by SpMMs with one entry per row, whose gradients are SpMMs again.

    The matrices of those SpMMs are made once per structure. An exported program, which gets another structure at
    every call, gathers with torch's index_select in their place.
    """
    # The product with the value may be one that a's dtype has, where neither factor is; and what an entry adds to
    # a gradient is not rounded before the sum.
    dtype, (a, b) = a.dtype, widened(a, b)
    if is_exporting():
        row, col, _ = adj.coo()
        a, b = a.index_select(0, row), b.index_select(0, col)
    else:
        a, b = spmm_half(from_rows(adj), False, None, a), spmm_half(from_columns(adj), False, None, b)
    e: Tensor = ELEMENTWISE[op](a, b)
    if adj.val is not None:
        e = e * adj.val.to(a.dtype).view(*adj.val.shape, *[1] * (e.dim() - adj.val.dim()))
    return e.to(dtype)
