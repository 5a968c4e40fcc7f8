"""SpMV as torch sees it: ``y = alpha * A x + beta * y_in`` over one half of a CSR, differentiable to any order.

gx = alpha * A^T gy, an SpMV      gval = alpha * gy[i] * x[j], an SDDMM      gy_in = beta * gy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._fakes import fake
from fusedmm._lib import NUMBERS, ops, raise_translated
from fusedmm.matrix import constructors
from fusedmm.matrix.arguments import FLOATS, require_strided
from fusedmm.matrix.base import M, Matrix
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, added, differentiable, flat_values, register
from fusedmm.ops.checks import autocast, has_tangent
from fusedmm.ops.products import multiply
from fusedmm.ops.spmm_sddmm import kind_of, like_values, right_side, run, sddmm_half, spmm_half, widened

CSR, COO = NUMBERS["FMM_FORMAT_CSR"], NUMBERS["FMM_FORMAT_COO"]
OF_CSR = " of its to_csr()"  # where the formats of SpMV have nothing but spmv
SPARSE = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
_spmv: Any = ops._spmv.default
_spmv_padded: Any = ops._spmv_padded.default
# (format, rows, width, offsets, padded_idx, padded_val, order, row, idx, val): what csrc/include/fusedmm_spmv.h says.
PaddedOperands = tuple[int, int, int, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@fake("_spmv")
def _(ptr, idx, eid, plan, val, row, x, y, *numbers):  # type: ignore[no-untyped-def]
    return x.new_empty(ptr.size(0) - 1)


@fake("spmv")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, val, x, y, *numbers):  # type: ignore[no-untyped-def]
    return x.new_empty(ptr.size(0) - 1)


@fake("_spmv_padded")
def _(offsets, padded_idx, padded_val, order, row, idx, val, x, y, format, rows, *numbers):  # type: ignore[no-untyped-def]
    return x.new_empty(rows)


def spmv_half(
    adj: Matrix,
    transposed: bool,
    val: Values,
    x: Tensor,
    y: Values = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    algorithm: int = 0,
    row: Values = None,
) -> Tensor:
    """Computes alpha * A x + beta * y, or with A^T, with the values given, which replace adj's; differentiable in val,
    x and y.

    row: the row of each entry, where the algorithm is one of COO.
    """
    return spmv((adj, transposed, alpha, beta, algorithm, row), val, x, y)


def padded_product(
    a: PaddedOperands, x: Tensor, y: Values = None, alpha: float = 1.0, beta: float = 0.0, algorithm: int = 0
) -> Tensor:
    """Computes alpha * A x + beta * y of a padded format, which has no gradient.

    Raises:
        ValueError: x, y or a's values want one, or have a tangent of forward mode.
    """
    padded_val, tail_val = a[5], a[-1]
    if beta == 0:  # y is not read
        y = None
    wanted = x.requires_grad or padded_val.requires_grad or tail_val.requires_grad
    if torch.is_grad_enabled() and (wanted or (y is not None and y.requires_grad)):
        raise ValueError("spmv: padded formats have no gradient; give the CSR, to_coo's result, or call it in no_grad")
    if has_tangent(x, y, padded_val, tail_val):
        raise ValueError("spmv: padded formats have no derivative in forward mode; give the CSR or to_coo's result")
    number, rows, width, *tensors = a
    y = a[-1][:0] if y is None else y
    result: Tensor = run(_spmv_padded, x, *tensors, x, y, number, rows, width, alpha, beta, algorithm)
    return result


def sparse(adj: M, x: Any) -> M | None:
    """Returns another library's matrix as one of adj's class, or None if x is not sparse."""
    if isinstance(x, Tensor) and x.layout in SPARSE and x.dim() == 2:
        return constructors.from_torch(type(adj), x, True)
    return constructors.from_scipy(type(adj), x, True) if type(x).__module__.startswith("scipy.sparse") else None


def times(adj: Matrix, x: Any) -> Any:
    """Returns ``adj @ x``, of a vector too; sparse where x is, which may be another library's matrix."""
    if isinstance(x, Matrix):
        return multiply(adj, x)
    if not isinstance(x, Tensor) or x.layout in SPARSE:  # asked here: a call costs a small product a thirtieth
        other = sparse(adj, x)
        if other is not None:
            return multiply(adj, other)
    if not isinstance(x, Tensor) or x.dim() != 1:
        return spmm_half(adj, False, adj.val, right_side(adj, x))
    return vector_product(adj, x)


def vector_product(adj: Matrix, x: Any, row: Values = None) -> Tensor:
    """Returns A @ x of a CSR, or with the row of each entry that of a COO.

    Raises:
        TypeError, ValueError: as ``require_vector`` and ``require_flat_values``.
    """
    require_vector("spmv", "x", x, adj.ptr, adj.n_cols, "columns", "" if row is None else OF_CSR)
    require_flat_values("spmv", adj.val)
    return spmv_half(adj, False, adj.val, autocast(x), row=row)


def require_vector(op: str, name: str, x: Any, like: Tensor, length: int, axis: str, of: str = "") -> None:
    """Requires that x is a floating vector of so many elements where ``like``, a tensor of the matrix, is.

    of: what ``spmm`` takes in the matrix's place, where that is no CSR.

    Raises:
        TypeError: not a tensor, a sparse one, a dtype without a kernel, another device.
        ValueError: other dimensions or another length.
    """
    if not isinstance(x, Tensor):
        mend = f"; products with matrices are those{of}" if of and len(getattr(x, "shape", ())) == 2 else ""
        raise TypeError(f"{op}: {name} must be a tensor, not {type(x).__name__}{mend}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{op}: {name} must be float32, float64, float16 or bfloat16, not {x.dtype}")
    if x.layout != torch.strided:
        require_strided(f"{op}: {name}", x)
    try:
        shape = x.shape
    except RuntimeError:  # asking for x.is_nested would cost every call
        require_strided(f"{op}: {name}", x)
        raise
    if not (x.is_cpu and like.is_cpu) and x.device != like.device:  # devices are objects, made to be compared
        raise TypeError(f"{op}: {name} is on {x.device}, the matrix on {like.device}")
    if len(shape) != 1:
        raise ValueError(f"{op}: {name} must be [{axis}], not {list(shape)}; several vectors go to fusedmm.spmm{of}")
    if shape[0] != length:
        raise ValueError(f"{op}: {name} has {shape[0]} elements, the matrix {length} {axis}")


def require_flat_values(op: str, val: Values) -> None:
    """Requires values of one head.

    Raises:
        ValueError: values with several heads.
    """
    if val is not None and val.dim() == 2 and val.shape[1] != 1:
        raise ValueError(f"{op}: values {list(val.shape)} have heads; a vector needs values [nnz]")


def _times_number(g: Tensor, number: float) -> Tensor:
    """Returns g times a number, in the dtype of sums where there is something to round."""
    return g if number == 1 else widened(g)[0] * number


class SpMV(Formula):
    """Computes y = alpha * A x + beta * y_in; a call is (adj, transposed, alpha, beta, algorithm, row).

    Without the last it is one of ``torch.ops.fusedmm.spmv``, whose derivatives alone are asked for.
    """

    @staticmethod
    def run(call: Any, val: Values, x: Tensor, y: Values) -> Tensor:
        adj, transposed, alpha, beta, algorithm, row = call
        none = adj.none
        if transposed:
            ptr, idx, eid, plan = adj.transpose_half()
            rows_are = adj.rows_are_t
        else:
            ptr, idx, eid, plan, rows_are = adj.ptr, adj.idx, adj.eid, adj.plan, adj.rows_are
        if val is None:
            val = none
        elif val is adj.val:
            here = adj.constant_values(transposed)
            if here is not None:
                val, eid = here, none
        form, row = (CSR, none) if row is None else (COO, row)
        y = none if y is None or beta == 0 else y
        numbers: tuple[Any, ...] = ()  # as trailing() has them
        if form or alpha != 1 or beta or algorithm or rows_are:
            numbers = form, alpha, beta, algorithm, rows_are
        try:  # as run() does, whose call would cost a small product a thirtieth of its time
            result: Tensor = _spmv(ptr, idx, eid, plan, val, row, x, y, *numbers)
        except RuntimeError as error:
            raise_translated(error, x.device)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        val, x, _ = operands
        return (val if needs[1] else None, x if needs[0] else None), kind_of(val) if needs[0] else None  # type: ignore[arg-type]

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        adj, transposed, alpha, beta = call[:4]
        val, x = saved
        gval = gx = gy = None
        if needs[1]:
            gx = spmv_half(adj, not transposed, val, g, None, alpha)
        if x is not None:
            left, right = _times_number(g, alpha), x
            if left.dtype != x.dtype:
                left, right = widened(left, x)
            gval = like_values(sddmm_half(adj, transposed, None, left[:, None], right[:, None]), note)
        if needs[2]:
            gy = torch.zeros_like(g) if beta == 0 else _times_number(g, beta).to(g.dtype)
        return gval, gx, gy

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        adj, transposed, alpha, beta = call[:4]
        (val, x, _), (dval, dx, dy), parts = operands, tangents, []
        if dx is not None:
            parts.append(spmv_half(adj, transposed, val, widened(dx)[0], None, alpha))
        if dval is not None:
            parts.append(spmv_half(adj, transposed, dval, widened(x)[0], None, alpha))  # type: ignore[arg-type]
        if dy is not None:
            parts.append(torch.zeros_like(output) if beta == 0 else widened(dy)[0] * beta)
        return added(parts).to(output.dtype)

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        adj, transposed, alpha, beta = call[:4]
        val, x, y = operands
        wide = widened(_columns(x, dims[1], batch))[0]
        if dims[0] is None:
            product = alpha * spmm_half(adj, transposed, val, wide)
        else:
            val = flat_values(val, dims[0], batch, 0)
            product = alpha * spmm_half(adj, transposed, val, wide[:, :, None])[:, :, 0]
        if y is not None and beta != 0:
            product = product + beta * widened(_columns(y, dims[2], batch))[0]
        return product.to(x.dtype), 1


def _columns(t: Tensor, dim: int | None, batch: int) -> Tensor:
    """Returns a vector [n] of each sample as [n, batch]."""
    return t.movedim(dim, 1) if dim is not None else t[:, None].expand(-1, batch)


spmv = differentiable(SpMV)
register("spmv", SpMV, 3)
