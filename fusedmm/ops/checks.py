"""What every operator checks of its operands before it calls the library."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fusedmm._lib import sums_dtype
from fusedmm._torch_compat import are_transforms_active, graph_break, in_forward_mode, is_autocast_anywhere
from fusedmm.matrix.arguments import FLOATS, require_number, require_strided
from fusedmm.matrix.base import Matrix
from fusedmm.matrix.structure import INTEGERS

Size = int | tuple[int, int] | None


def rows_of(*operands: Any) -> Size:
    """Returns the size that an edge_index must have for these operands: their rows. None where an operand is none,
    which the checks that follow refuse by name."""
    if not all(isinstance(t, Tensor) and t.dim() and not t.is_nested for t in operands):
        return None
    return operands[0].shape[0] if len(operands) == 1 else (operands[0].shape[0], operands[1].shape[0])


def require_dense(op: str, name: str, x: Tensor, adj: Matrix, rows: int, axis: str) -> None:
    """Requires that x is a floating tensor [rows, F] or [rows, heads, F] on the matrix's device.

    Raises:
        TypeError: not a tensor, a sparse one, a dtype without a kernel, another device.
        ValueError: other dimensions, or another number of rows.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, not {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{op}: {name} must be float32, float64, float16 or bfloat16, not {x.dtype}")
    if x.layout != torch.strided:
        require_strided(f"{op}: {name}", x)
    try:
        shape = x.shape
    except RuntimeError:  # asking for x.is_nested would cost every call
        require_strided(f"{op}: {name}", x)
        raise
    if not (x.is_cpu and adj.ptr.is_cpu) and x.device != adj.ptr.device:  # devices are objects, made to be compared
        raise TypeError(f"{op}: {name} is on {x.device}, the matrix on {adj.ptr.device}")
    if len(shape) != 2 and len(shape) != 3:
        raise ValueError(f"{op}: {name} must be [{axis}, F] or [{axis}, heads, F], not {list(shape)}")
    if shape[0] != rows:
        batch = len(shape) == 3 and shape[1] == rows
        hint = f"; of a batch [batch, {axis}, F] give {name}.transpose(0, 1), whose result is so too" if batch else ""
        raise ValueError(f"{op}: {name} has {shape[0]} rows, the matrix {rows} {axis}{hint}")


def require_pattern(op: str, why: str, adj: Matrix, given: Any, name: str = "adj") -> None:
    """Requires a matrix without values, where no formula names them.

    Args:
        op: for the text of the error.
        why: what the formula lacks that would use them.
        adj: the matrix.
        given: what the caller gave as it, which may be no CSR and have no pattern of its own.
        name: the argument's.

    Raises:
        ValueError: it has values; the text says which and what to give.
    """
    if adj.val is not None:
        mend = f"{name}.pattern()" if isinstance(given, Matrix) else f"fusedmm.as_csr({name}).pattern(), made once"
        raise ValueError(f"{op}: {why}, but {name} has values {list(adj.val.shape)}; give {mend}")


def autocast(x: Tensor) -> Tensor:
    """Returns x as autocast wants it; in the wrapper, above the operator, so that gradients return in x's dtype."""
    if not is_autocast_anywhere():
        return x
    kind = "cuda" if x.is_cuda else "cpu"  # x.device.type makes two objects, in every call
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def require_scalar(op: str, name: str, number: Any) -> None:
    """Requires a number; a tensor of one is a number if it wants no gradient, since no gradient would reach it.

    Raises:
        TypeError: no number, or a tensor that wants a gradient.
        ValueError: a number beyond float64.
    """
    if isinstance(number, Tensor) and number.requires_grad:
        raise TypeError(f"{op}: {name} gets no gradient; multiply an operand by it, or give {name}.item()")
    if isinstance(number, Tensor) and (number.layout != torch.strided or number.dtype not in (*FLOATS, *INTEGERS)):
        raise TypeError(f"{op}: {name} must be a number, not a tensor of {number.dtype}, {number.layout}")
    if isinstance(number, Real):
        require_number(f"{op}: {name}", number, torch.float64)
        return
    try:
        float("none" if isinstance(number, str) else number)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{op}: {name} must be a number, not {number!r}") from None


def is_mixed(x: Tensor, *others: Tensor | None) -> bool:
    """Tells whether operands are of several dtypes, or autocast makes them so: torch promotes what is multiplied."""
    dtype = x.dtype
    for t in others:
        if t is not None and t.dtype != dtype:
            return True
    return is_autocast_anywhere() and torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu")


def normalize(x: Tensor) -> Tensor:
    """Returns x [..., F] divided by the lengths of its rows, which are computed in the dtype of sums: float16 can hold
    neither torch's eps nor the length of 64 numbers of 10,000."""
    return torch.nn.functional.normalize(x.to(sums_dtype(x)), dim=-1).to(x.dtype)


def needs_rules(*operands: Any) -> bool:
    """Tells whether a torch.func transform is active, or forward-mode AD with a tangent on an operand."""
    if are_transforms_active():
        if torch.compiler.is_dynamo_compiling():  # which would take the forward alone, and give zeros as gradients
            graph_break("fusedmm: transforms of torch.func are not compiled; they run as they are")
        return True
    return in_forward_mode() and has_tangent(*operands)  # asked here: a call costs as much as the rest


def has_tangent(*operands: Any) -> bool:
    """Whether forward-mode AD is at work with a tangent on an operand."""
    if not in_forward_mode() or torch.compiler.is_compiling():
        return False
    try:
        return any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in operands)
    except RuntimeError:  # in torch.autograd.functional's vectorized forward mode a batch of tangents hides them
        return True


def require_values(op: str, val: Tensor | None, x: Tensor) -> None:
    """Values [nnz, heads] need operands [rows, heads, F] of as many heads; values [nnz, 1] are like [nnz].

    Raises:
        ValueError: other heads.
    """
    if val is None or val.dim() == 1:
        return
    if val.shape[1] == 1:
        return
    if x.dim() != 3:
        raise ValueError(f"{op}: values {list(val.shape)} have heads, so operands must be [rows, heads, F]")
    if val.shape[1] != x.shape[1]:
        raise ValueError(f"{op}: values have {val.shape[1]} heads, the operands {x.shape[1]}")
