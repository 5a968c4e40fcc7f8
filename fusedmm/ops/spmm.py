"""Sparse times dense."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import REDUCTIONS, algorithm_number, ops
from fusedmm.matrix.adapters import lent
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast, require_dense, require_values, rows_of
from fusedmm.ops.extreme import extreme
from fusedmm.ops.spmm_sddmm import half, run
from fusedmm.ops.spmm_sddmm import spmm as product
from fusedmm.ops.spmv import spmv


def spmm(adj: Any, x: Tensor, *, reduce: str = "sum", algorithm: str = "auto", out: Tensor | None = None) -> Tensor:
    """Multiplies a sparse matrix by a dense one: ``y[i] = reduce_p val[p] * x[idx[p]]`` over row i's entries.

    Args:
        adj: a ``CSR`` [rows, cols], or what ``as_csr`` takes, which says what it remembers (an ``edge_index``
            until it is written to; a ``CSR`` costs the host less). A pattern counts as ones.
        x: float32, float64, float16 or bfloat16, [cols, F] or [cols, heads, F], any strides. Values
            [nnz] or [nnz, 1] serve every head, values [nnz, heads] need x with as many heads. A vector [cols], with
            the reduction "sum", goes to ``spmv``, whose algorithms it then takes. The axis of nodes comes FIRST: give
            a batch [batch, cols, F] as ``x.transpose(0, 1)``. Where batch and cols are equal nothing can tell the two
            apart, and an x that is not transposed is summed over the batch.
        reduce: "sum" (or "add"), "mean", "max" or "min" over the row's entries. Rows without entries give 0.
        algorithm: a name from ``fusedmm.algorithms("spmm", device)``, or "auto".
        out: the tensor to write y to, of its shape and dtype, such as some columns of a larger one. A large result is
            faster in memory that was written to before, since the system need not clear new pages for it. Not x or the
            values, not under a gradient, and not for a vector.

    Returns:
        y, [rows, F] or [rows, heads, F] ([rows] for a vector), of x's dtype, contiguous; or out. Sums are kept in
        float32 (float64 for float64); bitwise reproducible, whatever the number of threads.

    Raises:
        TypeError: wrong types, integer operands, operands on several devices.
        ValueError: shapes that do not fit, a malformed matrix, an unknown algorithm or reduction, an out that cannot be
            written to.

    Gradient: reaches x (an SpMM on the transpose) and adj's values (an SDDMM), of any order. Entries
    that share a maximum or minimum, in x's dtype, share its gradient evenly, as in ``torch.amax``. Where the result
    is NaN no entry reached it, and it passes no gradient on.

    Cost: 2 nnz heads F flops; nnz gathered rows of x decide the time.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.spmm(A, torch.tensor([[1., 2.], [3., 4.]]))
        tensor([[4., 6.],
                [3., 4.]])
    """
    if type(adj) is not CSR:
        try:
            adj = lent("spmm", "adj", adj, x, rows_of(x))
        except ValueError as error:
            if not isinstance(x, Tensor) or x.dim() != 3:
                raise
            hint = f"x is {list(x.shape)}, [nodes, heads, F]; of a batch [batch, nodes, F] give x.transpose(0, 1)"
            raise ValueError(f"{error}; {hint}") from None
    if isinstance(x, Tensor) and x.dim() == 1 and isinstance(reduce, str):
        if out is not None:
            raise ValueError("spmm: out is for x [cols, F] or [cols, heads, F], not for a vector")
        if reduce in ("sum", "add"):
            return spmv(adj, x, algorithm=algorithm)
        return spmm(adj, x[:, None], reduce=reduce, algorithm=algorithm)[:, 0]
    require_dense("spmm", "x", x, adj, adj.n_cols, "columns")
    val = adj.val
    if val is not None and val.dim() > 1:
        require_values("spmm", val, x)
    x = autocast(x)
    if not isinstance(reduce, str) or reduce not in REDUCTIONS:
        if reduce != "add":
            raise ValueError(f"spmm: reduce must be one of {', '.join(REDUCTIONS)}, not {reduce!r}")
        reduce = "sum"
    number = 0 if algorithm == "auto" else algorithm_number("spmm", x.device.type, algorithm)
    if out is not None:
        return _into(adj, x, out, REDUCTIONS[reduce], number)
    if reduce in ("sum", "mean"):
        return product((adj, False, REDUCTIONS[reduce], number), val, x)
    return extreme(adj, False, val, x, REDUCTIONS[reduce], number)


def _into(adj: CSR, x: Tensor, out: Tensor, reduce: int, number: int) -> Tensor:
    """Writes the product to out, which autograd cannot follow."""
    require_dense("spmm", "out", out, adj, adj.shape[0], "rows")
    if out.dtype != x.dtype:
        raise TypeError(f"spmm: out is {out.dtype}, the result {x.dtype}")
    if out.shape[1:] != x.shape[1:]:
        raise ValueError(f"spmm: out must be {[adj.shape[0], *x.shape[1:]]}, not {list(out.shape)}")
    val = adj.none if adj.val is None else adj.val
    if torch.is_grad_enabled() and any(t.requires_grad for t in (val, x, out)):
        raise ValueError("spmm: what is written to out gets no gradient; use torch.no_grad(), or leave out away")
    run(ops._spmm_into.default, x, *half(adj, False), val, x, out, reduce, number, adj.rows_are)
    return out
