"""SDDMM, a function of each edge, and SpMM in one pass.

The gradients of a sum or mean compute scores again, in two passes of the library (csrc/fused/fused.c). On a CPU the
first pass of a plain dot product hands two numbers per edge to the second; where the pattern is symmetric and one x
serves as all operands, one pass is enough. Gradients of maxima, second derivatives and torch.func go through the
same function made of differentiable operations (fused_composite.py). Gradients of large maxima are made some rows
at a time (fused_extreme.py), which takes the memory of those rows alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import (
    ACTIVATIONS,
    MESSAGES,
    NUMBERS,
    REDUCTIONS,
    SCORES,
    WANT_KEPT,
    WANT_OUT,
    WANT_OUT2,
    WANT_SUM,
    algorithm_number,
    ops,
)
from fusedmm._torch_compat import graph_break
from fusedmm.edge.parse import parse
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import Half, derived
from fusedmm.ops.autograd import Step, Values
from fusedmm.ops.checks import autocast, needs_rules, require_dense, require_pattern, require_values, rows_of
from fusedmm.ops.fused_composite import Spec, composite, wide_composite
from fusedmm.ops.fused_extreme import Needed, in_parts, is_too_large
from fusedmm.ops.spmm_sddmm import (
    cached_entries,
    gradients,
    half,
    kind_of,
    like_values,
    per_entry,
    run,
    serves_all,
    trailing,
    widened,
)  # fmt: skip


def fused(
    adj: Any,
    x: Tensor,
    y: Tensor | None = None,
    z: Tensor | None = None,
    *,
    score: str = "dot",
    edge: str = "s*a",
    message: str = "scale",
    activation: str | None = None,
    reduce: str = "sum",
    algorithm: str = "auto",
) -> Tensor:
    """One pass of message passing: ``out[i] = reduce_p edge(s, val[p]) * activation(message)`` over row i's entries.

    For entry p = (i, j), ``s = score(x[i], y[j])`` and the message is made of x[i], y[j] and z[j]. With the
    defaults ``fused(A, x)`` is ``spmm(A.with_values(sddmm(A, x, x)), x)``, but scores never reach memory.
    ``fusedmm.presets`` has the patterns of the FusedMM paper.

    Args:
        adj: a ``CSR`` [rows, cols], or what ``as_csr`` takes. Its values are ``a`` in ``edge``, those of a
            pattern ones; without an ``a`` in ``edge`` it must be a pattern.
        x: float32, float64, float16 or bfloat16, [rows, F] or [rows, heads, F], any strides.
            The axis of nodes comes FIRST: give a batch [batch, rows, F] as ``x.transpose(0, 1)``. Where batch and
            rows are equal nothing can tell the two apart, and the batch is taken for the nodes.
        y: the same dtype, [cols, F] or [cols, heads, F]; x if absent.
        z: for the message "scale", [cols, Fz] or [cols, heads, Fz]; y if absent.
        score: "dot"; "sqdist", the squared distance; "l1", the sum of absolute differences; "additive",
            x[i] + y[j] where F is 1; "none", s = 1.
        edge: w as an expression in ``s`` and ``a`` (the entry's value): numbers, ``+ - * /``, ``**`` by a
            constant, sigmoid, tanh, exp, log, sqrt, softplus, abs, relu, leaky_relu(u, slope), minimum,
            maximum. It is parsed, never evaluated by Python. Where its slope is infinite (sqrt(s) at 0) a
            gradient is NaN, as torch's: sqrt(s + 1e-12).
        message: "scale" sends z[j]; "add" x[i] + y[j], "sub" x[i] - y[j], "mul", "max" and "min" combine
            x[i] and y[j] channel by channel.
        activation: of the message: None, "relu", "leaky_relu" (slope 0.01), "sigmoid" or "tanh".
        reduce: "sum", "mean", "max" or "min" over the row's entries. Rows without entries give 0.
        algorithm: a name from ``fusedmm.algorithms("fused", device)``, or "auto".

    Returns:
        out, [rows, Fz] or [rows, heads, Fz] (F in place of Fz unless the message is "scale"), of x's
        dtype. Scores, weights and sums are kept in float32 (float64 for float64); bitwise reproducible.

    Raises:
        TypeError: wrong types, integer operands, operands of several dtypes or devices.
        ValueError: shapes that do not fit, an unknown name, an edge function that is not on the list, or one
            without ``a`` and a matrix with values.

    Gradient: reaches x, y, z and adj's values, of any order. Of a sum or mean by recomputation, without
    memory per edge (on a CPU, of "dot" with a plain "scale", two numbers per edge and head while the
    backward runs); of max and min, and second derivatives, through sddmm and spmm where the score is
    "dot" or "none" and the message a plain "scale", else through tensors [nnz, heads, F]. Where these
    would be large, the first derivatives of max and min are made some rows at a time, which waits once
    for a GPU; not in a CUDA graph or under torch.func. ``torch.compile`` leaves these two out of its graphs
    where a gradient is wanted.

    Cost: 4 nnz heads F flops for "dot" and "scale"; nnz gathered rows of y decide the time.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0]), torch.tensor([0, 1]), shape=(2, 2))
        >>> fusedmm.fused(A, torch.tensor([[1., 0.], [2., 1.]]), edge="s/2")
        tensor([[2.5000, 1.0000],
                [0.0000, 0.0000]])
    """
    y, reduce = x if y is None else y, "sum" if reduce == "add" else reduce
    given, adj = adj, adj if type(adj) is CSR else operand("fused", "adj", adj, rows_of(y, x))
    for name, value, known in (
        ("score", score, SCORES), ("message", message, MESSAGES), ("activation", activation, ACTIVATIONS),
        ("reduce", reduce, REDUCTIONS),
    ):  # fmt: skip
        if not (value is None or isinstance(value, str)) or value not in known:
            raise ValueError(f"fused: {name} must be one of {', '.join(map(str, known))}, not {value!r}")
    if z is not None and message != "scale":
        raise ValueError(f'fused: z is what the message "scale" sends; {message!r} combines x and y')
    require_dense("fused", "x", x, adj, adj.shape[0], "rows")
    require_dense("fused", "y", y, adj, adj.n_cols, "columns")
    if z is not None and z is not y:
        require_dense("fused", "z", z, adj, adj.n_cols, "columns")
    # What is one tensor stays one, cast once.
    z = None if z is None or z is y else autocast(z)
    y = None if y is x else autocast(y)
    x = autocast(x)
    y = x if y is None else y
    z = y if z is None else z
    _require_fit(x, y, z, score, message)
    require_values("fused", adj.val, x)
    if x.dim() == 2 and adj.val is not None and adj.val.dim() == 2:
        adj = adj.with_values(adj.val[:, 0])
    if adj.val is not None and not _names_values(edge):
        require_pattern("fused", f"edge {edge!r} does not name a, which stands for the values", adj, given)
    number = 0 if algorithm == "auto" else algorithm_number("fused", x.device.type, algorithm)
    spec = Spec(score, edge, message, activation, reduce, number)
    if needs_rules(adj.val, x, y, z):
        return composite(adj, adj.val, x, y, z, spec)
    needs = (x, y, z) if adj.val is None else (x, y, z, adj.val)
    if torch.is_grad_enabled() and any([t.requires_grad for t in needs]):
        if reduce in ("max", "min") and torch.compiler.is_dynamo_compiling():
            graph_break("fusedmm: gradients of fused maxima and minima run as they are, uncompiled")
        # An operand that serves twice is given once, as torch.compile asks.
        return Fused.apply(adj, adj.val, x, None if y is x else y, None if z is y else z, spec)
    return _forward(adj, adj.val, x, y, z, spec)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _names_values(edge: str) -> bool:
    return parse(edge).uses("a")


def _require_fit(x: Tensor, y: Tensor, z: Tensor, score: str, message: str) -> None:
    if not x.dtype == y.dtype == z.dtype:
        raise TypeError(f"fused: x is {x.dtype}, y {y.dtype} and z {z.dtype}; they must be of one dtype")
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(f"fused: x is {list(x.shape)} and y {list(y.shape)}; heads and features must agree")
    if z.shape[1:-1] != x.shape[1:-1]:
        raise ValueError(f"fused: x is {list(x.shape)} and z {list(z.shape)}; heads must agree")
    if score == "additive" and x.shape[-1] != 1:
        raise ValueError(f"fused: additive scores need x and y of 1 feature, not {x.shape[-1]}")


def _program(edge: str, gradients: bool, like: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # the reader is no part of a graph: there it is one operator
        program: Tensor = ops._edge_program(like, edge, gradients)
        return program
    return parse(edge).program(gradients)


_definitions = torch.library.Library("fusedmm", "FRAGMENT")
_definitions.define("_edge_program(Tensor like, str edge, bool gradients) -> Tensor")


@torch.library.impl(_definitions, "_edge_program", "CompositeExplicitAutograd")
@torch.library.impl(_definitions, "_edge_program", "AutogradNestedTensor")
def _(like, edge, gradients):  # type: ignore[no-untyped-def]
    return parse(edge).program(gradients).clone()


@torch.library.register_fake("fusedmm::_edge_program", lib=_definitions)
def _(like, edge, gradients):  # type: ignore[no-untyped-def]
    return torch.tensor(parse(edge).steps(gradients), dtype=torch.float64, device="cpu").reshape(-1, 5)


def _ordered(adj: CSR, transposed: bool, val: Values) -> tuple[Half, Values]:
    """Returns a half, and values that fit it: constant ones lie in its own order, so that it needs no eid."""
    structure = half(adj, transposed)
    if val is not None and val is adj.val:
        here = adj.constant_values(transposed)
        if here is not None:
            ptr, idx, _, plan = structure
            return (ptr, idx, adj.none, plan), here
    return structure, val


def _operands(adj: CSR, val: Values, x: Tensor, y: Tensor, z: Tensor, spec: Spec) -> tuple[Tensor, ...]:
    return adj.none if val is None else val, x, y, z if spec.message == "scale" else adj.none


def _forward(adj: CSR, val: Values, x: Tensor, y: Tensor, z: Tensor, spec: Spec) -> Tensor:
    kinds = (*spec.kinds(), *trailing(REDUCTIONS[spec.reduce], spec.algorithm, adj.rows_are))
    structure, val = _ordered(adj, False, val)
    operands = _operands(adj, val, x, y, z, spec)
    return run(ops._fused.default, x, *structure, *operands, _program(spec.edge, False, x), *kinds)


class Fused(Step):
    """Calls the kernel, with its gradients by recomputation, or through the composite where those end.

    y None is x, z None is y.
    """

    @staticmethod
    def forward(ctx: Any, adj: CSR, val: Values, x: Tensor, y: Values, z: Values, spec: Spec) -> Tensor:
        ctx.save_for_backward(val, x, y, z)
        ctx.adj, ctx.spec = adj, spec
        y = x if y is None else y
        return _forward(adj, val, x, y, y if z is None else z, spec)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        val, x, y, z = ctx.saved_tensors
        of_val, of_x, of_y, of_z = ctx.needs_input_grad[1:5]
        of_y = of_x if y is None else of_y
        of_z = of_y if z is None else of_z
        second = x if y is None else y
        operands = (val, x, second, second if z is None else z)
        # Gradients that are differentiated themselves, and those of an extreme.
        through = torch.is_grad_enabled() or ctx.spec.reduce in ("max", "min")
        compute = _by_composite if through else _by_passes
        if through and not ctx.spec.is_sddmm_spmm() and is_too_large(ctx.adj, x, operands[3], g):
            compute = _by_parts
        gval, gx, gy, gz = compute(ctx.adj, operands, ctx.spec, (of_val, of_x, of_y, of_z), g, z is None)
        if z is None:
            gy, gz = _sum(gy, gz, not through), None
        if y is None:
            gx, gy = _sum(gx, gy, not through), None
        return None, gval, gx, gy, gz, None


def _sum(a: Tensor | None, b: Tensor | None, fresh: bool) -> Tensor | None:
    """Returns a + b where both are there; written into a where it is fresh, which means that nobody else has it."""
    if a is None or b is None:
        return b if a is None else a
    return a.add_(b) if fresh else a + b


KEPT_FEAT = NUMBERS["FMM_KEPT_FEAT"]
Grads = tuple[Tensor | None, ...]


def _by_composite(adj: CSR, saved: tuple[Any, ...], spec: Spec, needed: Needed, g: Tensor, joined: bool) -> Grads:
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views of their own, since x, y and z may be one tensor whose shares must be told apart.
        tensors = [None if t is None else t.view_as(t) for t in saved]
        out = composite(adj, *tensors, spec)  # type: ignore[arg-type, call-arg]
    return gradients((out,), (g,), tensors, needed, create)


def _by_parts(adj: CSR, saved: tuple[Any, ...], spec: Spec, needed: Needed, g: Tensor, joined: bool) -> Grads:
    found: Grads = in_parts(wide_composite, adj, saved, spec, needed, g)
    return found


def _is_mirrored(adj: CSR) -> bool:
    ptr, idx, *_ = half(adj, True)
    return torch.equal(adj.ptr, ptr) and torch.equal(adj.idx, idx)


def _by_one_pass(adj: CSR, val: Values, x: Tensor, spec: Spec, program: Tensor, g: Tensor) -> Tensor | None:
    """Returns the gradient of an x that is y and z too, if every entry (i, j) has its (j, i)."""
    if torch.compiler.is_compiling() or adj.shape[0] != adj.shape[1]:  # compiled code cannot look at the pattern
        return None
    (_, _, eid, _), there = _ordered(adj, True, val)  # the transpose, made here if it is not there yet
    if not derived(adj, "mirrored", "", _is_mirrored):
        return None
    structure, here = _ordered(adj, False, val)
    mirrored = adj.none if there is None else there.index_select(0, eid) if eid.numel() else there
    values, none = adj.none if here is None else here, adj.none
    operands, numbers = (values, x, none, none, g, mirrored), (*spec.kinds(), *trailing(0, adj.rows_are))
    found: Tensor = run(ops._fused_mirrored.default, x, *structure, *operands, program, *numbers)
    return found


def _by_passes(adj: CSR, saved: tuple[Any, ...], spec: Spec, needed: Needed, g: Tensor, joined: bool) -> Grads:
    """Returns the gradients by recomputation. Where ``joined``, those of y and z may come as one sum in y's place."""
    val, x, y, z = saved
    scale, scored = spec.message == "scale", spec.score != "none"
    dtype = x.dtype
    if spec.reduce == "mean":
        x, y, z, g = *widened(x, y, z), per_entry(cached_entries(adj, False, g), g)
    program = _program(spec.edge, True, x)
    reaches = scored or not scale  # x and y have a part in the result
    rows = (needed[1] and reaches) * WANT_OUT | needed[0] * WANT_OUT2
    cols, both = (needed[2] and reaches) * WANT_OUT | (needed[3] and scale) * WANT_OUT2, WANT_OUT | WANT_OUT2
    # On a CPU two numbers per edge cost less than the two dot products that make them.
    plain = spec.score == "dot" and scale and spec.activation is None
    few = rows and cols and plain and x.device.type == "cpu" and max(x.shape[-1], z.shape[-1]) <= KEPT_FEAT
    hands_on = WANT_KEPT if few else 0  # a bit of wanted; in compiled code few may be symbolic, and such have no bits

    if hands_on and cols == both and x is y and y is z and not needed[0]:
        found = _by_one_pass(adj, val, x, spec, program, g)
        if found is not None:
            return None, found, None, None

    def compute(op: Any, transposed: bool, wanted: int, *behind: Tensor) -> Any:
        if not wanted:
            return None, None, adj.none
        # What one pass hands to the next, and the gradient of val, are in the caller's order: these passes need eid.
        positions = hands_on or (not transposed and needed[0])
        here = (half(adj, transposed), val) if positions else _ordered(adj, transposed, val)
        floats: Any = (x, y, z, g)
        if not transposed and needed[0] and serves_all(kind_of(val), x):
            floats = widened(*floats)  # a value's gradient is the sum over its heads, which is to be rounded once
        *dense, up = floats
        operands = _operands(adj, here[1], *dense, spec)  # type: ignore[call-arg]
        numbers = trailing(0, adj.rows_are_t if transposed else adj.rows_are)
        found: Any = run(op, x, *here[0], *operands, up, *behind, program, *spec.kinds(), wanted, *numbers)
        # A value's gradient is added up over its heads first.
        second = (found[1].to(dtype) if transposed else found[1]) if wanted & WANT_OUT2 else None
        return found[0].to(dtype) if wanted & WANT_OUT else None, second, *found[2:]

    gx, gval, edges = compute(ops._fused_rows.default, False, rows | hands_on)
    cols = WANT_OUT | WANT_SUM if hands_on and joined and cols == both else cols
    gy, gz, *_ = compute(ops._fused_cols.default, True, cols, edges)
    return None if gval is None else like_values(gval, kind_of(val)), gx, gy, gz
