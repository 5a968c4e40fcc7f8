"""Messages with features of edges: ``gspmm`` reduces them to nodes, ``gsddmm`` leaves them at their edges."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm._lib import REDUCTIONS, algorithm_number
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.arguments import FLOATS, refuse, require_strided
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import into_rows, sums_of_entries
from fusedmm.ops.checks import autocast, is_mixed, needs_rules, require_pattern
from fusedmm.ops.matvec import SpMV, spmv_half
from fusedmm.ops.messages import ADD, COPY, DIV, MUL, SUB, Call, Shape, adds_by_spmm, broadcast, message
from fusedmm.ops.spmm import spmm
from fusedmm.ops.spmm_sddmm import SpMM, sddmm_half
from fusedmm.ops.spmv import spmv

COMBINATIONS = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV}
COPIES = ("copy_lhs", "copy_rhs")
OPS = (*COMBINATIONS, *COPIES)
TARGETS = ("u", "e", "v")
DGL_NAMES = {"reduce_op": "reduce=", "lhs_data": "x=", "rhs_data": "e=", "g": "adj=, what as_csr takes"}
FEW = 2**16  # entries


def gspmm(
    adj: Any = None,
    op: str = "",
    reduce: str = "",
    x: Tensor | None = None,
    e: Tensor | None = None,
    *,
    algorithm: str = "auto",
    **others: NoReturn,
) -> Tensor:
    """Reduces messages to their targets: ``y[i] = reduce_p (x[idx[p]] op e[eid[p]])`` over row i's entries.

    Args:
        adj: a ``CSR`` [rows, cols] without values, or what ``as_csr`` takes. Rows are the targets.
        op: "add", "sub", "mul", "div", "copy_lhs" (x alone) or "copy_rhs" (e alone).
        reduce: "sum" (or "add"), "mean", "max" or "min". Rows without entries give 0.
        x: features of the sources, [cols, ...]; float32, float64, float16 or bfloat16, any strides. Where op does
            not use it, it may be None and is ignored otherwise.
        e: features of the edges, [nnz, ...] in the caller's edge order, of x's dtype. The same holds of it.
        algorithm: a name from ``fusedmm.algorithms("messages", device)``, or "auto".
        others: none; dgl's names for these are refused with a hint.

    Features broadcast as in numpy: [nnz, H, 1] with [cols, H, F] gives [rows, H, F].

    Returns:
        y [rows, ...], of the operands' dtype. Sums are kept in float32 (float64 for float64); bitwise reproducible,
        whatever the number of threads.

    Raises:
        TypeError: wrong types, integer operands, operands of several dtypes or devices, a missing operand.
        ValueError: shapes that do not fit, a malformed matrix or one with values, an unknown op, reduction or
            algorithm.

    Gradient: reaches x and e, of any order. Entries that share a maximum or minimum share its gradient evenly.

    Cost: one operation for each entry and feature; the rows of x and e that are gathered decide the time. Nothing of
    edges * features is made, backward too, but for e and its gradient, which of "sub" takes one more tensor like e, and
    of "div" three, for as long as it is computed. (Where shapes broadcast along more than four
    alternating axes, they are made in full.)

    Source: ``dgl.ops.gspmm``, Wang et al., "Deep Graph Library", 2019.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.gspmm(A, "add", "min", torch.tensor([1., 5.]), torch.tensor([3., 0.5, 1.]))
        tensor([4., 6.])
    """
    if others:
        refuse("gspmm", others, **DGL_NAMES)
    if not isinstance(op, str) or op not in OPS:
        more = "; gsddmm has dot" if op == "dot" else ""
        raise ValueError(f"gspmm: op must be one of {', '.join(OPS)}, not {op!r}{more}")
    reduce = "sum" if isinstance(reduce, str) and reduce == "add" else reduce
    if not isinstance(reduce, str) or reduce not in REDUCTIONS:
        raise ValueError(f"gspmm: reduce must be one of {', '.join(REDUCTIONS)}, not {reduce!r}")
    if op == "copy_rhs" and reduce == "sum" and algorithm == "auto":
        found = _sums_of_entries(adj, e)
        if found is not None:
            return found
    x, e = None if op == "copy_rhs" else x, None if op == "copy_lhs" else e
    adj = _matrix("gspmm", adj, (x, "u"))
    x = x if op == "copy_rhs" else _operand("gspmm", "x", x, adj, "u")
    e = e if op == "copy_lhs" else _operand("gspmm", "e", e, adj, "e")
    shape = _broadcast("gspmm", "x", x, "e", e)
    if algorithm == "auto":
        found = _product(adj, op, reduce, x, e, shape)
        if found is not None:
            return found
    number = 0 if algorithm == "auto" else algorithm_number("messages", adj.ptr.device.type, algorithm)
    code = COPY if op in COPIES else COMBINATIONS[op]
    lhs, rhs, lhs_at = (e, None, "e") if x is None else (x, e, "u")
    call = Call(adj, code, lhs_at, "e", "v", shape, REDUCTIONS[reduce], number)
    return message(call, _aligned(lhs, shape), _aligned(rhs, shape))


def gsddmm(
    adj: Any,
    op: str,
    lhs: Tensor | None = None,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Combines two operands at each entry: ``y[eid[p]] = lhs op rhs``, each of them that of p's column, row or edge.

    Args:
        adj: a ``CSR`` [rows, cols] without values, or what ``as_csr`` takes. Rows are the targets.
        op: "add", "sub", "mul", "div", "dot" (the sum of products along the last axis, which stays with one element),
            "copy_lhs" or "copy_rhs".
        lhs, rhs: features [n, ...] of one dtype: float32, float64, float16 or bfloat16; n is cols, nnz or rows by
            the target. Where op does not use one, it may be None and is ignored otherwise.
        lhs_target, rhs_target: "u", the sources, which are the columns; "e", the edges, in the caller's edge order; or
            "v", the targets, which are the rows.
        algorithm: a name from ``fusedmm.algorithms("messages", device)``, or "auto".

    Features broadcast as in numpy.

    Returns:
        y [nnz, ...] in the caller's edge order, of the operands' dtype; bitwise reproducible.

    Raises:
        TypeError: wrong types, integer operands, operands of several dtypes or devices, a missing operand.
        ValueError: shapes that do not fit, a malformed matrix or one with values, an unknown op, target or algorithm.

    Gradient: reaches lhs and rhs, of any order.

    Cost: one operation for each entry and feature; nothing but the result is made.

    Source: ``dgl.ops.gsddmm``, Wang et al., "Deep Graph Library", 2019.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.gsddmm(A, "sub", torch.tensor([1., 5.]), torch.tensor([2., 3.]))
        tensor([-1.,  3.,  2.])
    """
    if not isinstance(op, str) or (op not in OPS and op != "dot"):
        raise ValueError(f"gsddmm: op must be one of {', '.join((*COMBINATIONS, 'dot', *COPIES))}, not {op!r}")
    for name, target in (("lhs_target", lhs_target), ("rhs_target", rhs_target)):
        if not isinstance(target, str) or target not in TARGETS:
            raise ValueError(f"gsddmm: {name} must be one of {', '.join(TARGETS)}, not {target!r}")
    if op in COPIES:
        given, at = (lhs, lhs_target) if op == "copy_lhs" else (rhs, rhs_target)
        lhs, rhs, lhs_target, rhs_target = given, None, at, "e"
    adj = _matrix("gsddmm", adj, (lhs, lhs_target), (rhs, rhs_target))
    named = "rhs" if op == "copy_rhs" else "lhs"
    lhs = _operand("gsddmm", named, lhs, adj, lhs_target)
    rhs = None if op in COPIES else _operand("gsddmm", "rhs", rhs, adj, rhs_target)
    shape = _broadcast("gsddmm", "lhs", lhs, "rhs", rhs)
    number = 0 if algorithm == "auto" else algorithm_number("messages", adj.ptr.device.type, algorithm)
    dot = op == "dot"
    if dot:
        assert rhs is not None
        if not shape:
            raise ValueError("gsddmm: dot needs features, so that operands are [n, ..., F]")
        if algorithm == "auto" and {lhs_target, rhs_target} == {"u", "v"} and lhs.shape[1:] == rhs.shape[1:]:
            u, v = (t.reshape(t.shape[0], math.prod(shape[:-1]), shape[-1]) for t in (lhs, rhs))
            if lhs_target == "v":
                u, v = v, u
            return sddmm_half(adj, False, None, v, u).reshape(adj.nnz, *shape[:-1], 1)
    code = COPY if op in COPIES else MUL if dot else COMBINATIONS[op]
    result = (*shape[:-1], 1) if dot else shape
    call = Call(adj, code, lhs_target, rhs_target, "e", result, algorithm=number)
    return message(call, _aligned(lhs, shape), _aligned(rhs, shape))


def _product(adj: CSR, op: str, reduce: str, x: Tensor | None, e: Tensor | None, shape: Shape) -> Tensor | None:
    """The messages that are products of a matrix: spmv's, where there is one number for each node or edge, and spmm's,
    of x alone or times one number for each edge, or for each edge and head."""
    rows = adj.shape[0]
    if e is not None and reduce == "sum" and op in ("mul", "copy_rhs") and math.prod(shape) == 1:
        flat_e = e.reshape(e.shape[0])
        if x is None and _sums_by_number(adj):
            needs_transpose = e.requires_grad and torch.is_grad_enabled()
            sums = into_rows(adj) if needs_transpose else sums_of_entries(adj)
            return spmv_half(sums, False, None, flat_e).reshape(rows, *shape)
        vector = e.new_ones(1).expand(adj.n_cols) if x is None else x.reshape(x.shape[0])
        return spmv(adj.with_values(flat_e), vector).reshape(rows, *shape)
    if x is None:
        return None
    features = tuple(x.shape[1:])
    flat = x.shape[0], math.prod(features)
    if op == "copy_lhs":
        return spmm(adj, x.reshape(flat), reduce=reduce).reshape(rows, *shape)
    if op != "mul" or e is None or features != shape:
        return None
    if math.prod(e.shape[1:]) == 1:
        return spmm(adj.with_values(e.reshape(e.shape[0])), x.reshape(flat), reduce=reduce).reshape(rows, *shape)
    *heads, last = features if features else (1,)
    if last == 1 or tuple(e.shape[1:]) != (*heads, 1):
        return None
    weighted = adj.with_values(e.reshape(e.shape[0], math.prod(heads)))
    return spmm(weighted, x.reshape(x.shape[0], math.prod(heads), last), reduce=reduce).reshape(rows, *shape)


def _sums_of_entries(adj: Any, e: Any) -> Tensor | None:
    """The sums of one number for each edge, or on CUDA of several, where nothing is unusual: torch's ``index_add``
    takes so little time on a small graph that the general way's checks and calls, to which all else is left, would be
    half of ours."""
    if type(adj) is not CSR or type(e) is not Tensor or e.layout != torch.strided or not e.dim():
        return None
    if adj.val is not None or e.requires_grad or e.is_nested or e.dtype not in FLOATS or needs_rules(e) or is_mixed(e):
        return None
    if e.shape[0] != adj.nnz or e.get_device() != adj.ptr.get_device() or e.is_meta or not _sums_by_number(adj):
        return None
    width = e.numel() // max(adj.nnz, 1)
    if width > 1 and adds_by_spmm(e, width):
        flat = e if e.dim() == 2 else e.reshape(e.shape[0], width)
        y = SpMM.run((sums_of_entries(adj), False, REDUCTIONS["sum"], 0), None, flat)
        return y if e.dim() == 2 else y.reshape(y.shape[0], *e.shape[1:])
    if e.numel() != adj.nnz:
        return None
    flat, call = e if e.dim() == 1 else e.reshape(-1), (sums_of_entries(adj), False, 1.0, 0.0, 0, None)
    y = SpMV.run(call, None, flat, None)
    return y if e.dim() == 1 else y.unsqueeze(1) if e.dim() == 2 else y.reshape(y.shape[0], *e.shape[1:])


def _sums_by_number(adj: CSR) -> bool:
    """Whether numbers of edges are best added by a matrix [rows, nnz] of ones: it reads no values beside them.

    Entries in order of rows are read as fast as values of A itself, without a list of their numbers; where there are
    few of them, calls decide. int64 numbers are more than such a matrix has columns.
    """
    if type(adj) is not CSR or torch.compiler.is_compiling() or adj.eid.dtype == torch.int64:
        return False
    return bool(adj.eid.numel()) or adj.nnz < FEW or adj.eid.is_cuda


def _matrix(op: str, given: Any, *operands: tuple[Any, str]) -> CSR:
    """The CSR of a graph, whose size an edge_index gets from operands and their targets."""
    if type(given) is CSR:
        adj = given
    else:
        sources, targets = (_rows(*(t for t, at in operands if at == target)) for target in ("u", "v"))
        size = sources if targets is None else (targets if sources is None else sources, targets)
        adj = operand(op, "adj", given, size)
    require_pattern(op, "the formula names no values", adj, given)
    return adj


def _rows(*operands: Any) -> int | None:
    """The number of rows of the first operand that has any; the checks that follow refuse what has none."""
    for t in operands:
        if isinstance(t, Tensor) and not t.is_nested and t.dim():
            return t.shape[0]
    return None


def _operand(op: str, name: str, t: Any, adj: CSR, target: str) -> Tensor:
    """t, cast as autocast wants it: floating features [n, ...] of the target's n rows, on the matrix's device.

    Raises:
        TypeError: not a tensor, a sparse one, a dtype without a kernel, another device.
        ValueError: another number of rows.
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, not {type(t).__name__}")
    if t.dtype not in FLOATS:
        raise TypeError(f"{op}: {name} must be float32, float64, float16 or bfloat16, not {t.dtype}")
    if t.layout != torch.strided or t.is_nested:
        require_strided(f"{op}: {name}", t)
    if not (t.is_cpu and adj.ptr.is_cpu) and t.device != adj.ptr.device:
        raise TypeError(f"{op}: {name} is on {t.device}, the matrix on {adj.ptr.device}")
    rows = adj.n_cols if target == "u" else adj.nnz if target == "e" else adj.shape[0]
    if not t.dim() or t.shape[0] != rows:
        axis = {"u": "columns", "v": "rows", "e": "entries"}[target]
        if not t.dim():
            raise ValueError(f"{op}: {name} must be [{axis}, ...], not a single number")
        raise ValueError(f"{op}: {name} has {t.shape[0]} rows, the matrix {rows} {axis}")
    return autocast(t)


def _broadcast(op: str, first: str, lhs: Tensor | None, second: str, rhs: Tensor | None) -> Shape:
    """The features of two operands, of which one may be absent, together.

    Raises:
        TypeError: two dtypes.
        ValueError: features that do not broadcast.
    """
    if lhs is None or rhs is None:
        return tuple((lhs if rhs is None else rhs).shape[1:])  # type: ignore[union-attr]
    if rhs.dtype != lhs.dtype:
        raise TypeError(f"{op}: {first} is {lhs.dtype}, {second} {rhs.dtype}; they must be of one dtype")
    of_lhs, of_rhs = lhs.shape[1:], rhs.shape[1:]
    try:
        return broadcast(of_lhs, of_rhs)
    except RuntimeError:
        shapes = f"{first} {list(of_lhs)}, {second} {list(of_rhs)}"
        raise ValueError(f"{op}: features do not broadcast: {shapes}") from None


def _aligned(t: Tensor | None, shape: Shape) -> Tensor | None:
    """t with as many axes of features as a shape, by new ones of one element in front."""
    if t is None or t.dim() == len(shape) + 1:
        return t
    return t.reshape(t.shape[0], *[1] * (len(shape) + 1 - t.dim()), *t.shape[1:])
