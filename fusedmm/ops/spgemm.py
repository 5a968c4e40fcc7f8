"""Sparse times sparse in two phases: where the product has entries, and their values, any number of times.

With a_ik, b_kj and c_ij the values of three matrices, everything here is a derivative of one sum over the triples in
which all three have an entry,

    S(a, b, c) = sum of a_ik * b_kj * c_ij

by one of the three. That by c is the product A B where C has entries, that by a is C B^T where A has entries, that by
b is A^T C where B has entries. Each is linear in the two that are left, so the derivatives of a derivative are the same
three again: gradients of any order exist, none is dense, and each costs as many products as A B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedmm._fakes import fake
from fusedmm._lib import algorithm_number, numbers_of, ops, raise_translated
from fusedmm._torch_compat import writes_to
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import FLOATS, Half, outside
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, added, differentiable

WANT = numbers_of("FMM_SPGEMM_", "chunks", "counts", "sorted", "unsorted")
COLOURED = ("kkmcr", "kkmcw")  # what needs the colours of a plan
BY_A, BY_B, BY_C = range(3)  # the derivatives of S
COMPILED = "compiled code cannot find the structure of a sparse product: make a fusedmm.spgemm_plan beforehand"

_symbolic: Any = ops._spgemm_symbolic.default
_numeric: Any = ops._spgemm.default
_dots: Any = ops._spgemm_dots.default
_colours: Any = ops._spgemm_colours.default


@fake("_spgemm")
def _(*args):  # type: ignore[no-untyped-def]
    idx_c, val, val_b = args[9], *args[14:16]
    return _values_like(idx_c, val, val_b)


@fake("_spgemm_dots")
def _(ptr, idx, eid, plan, ptr_x, idx_x, eid_x, plan_x, ptr_y, idx_y, eid_y, plan_y, val_x, val_y, cols):  # type: ignore[no-untyped-def]
    return _values_like(idx, val_x, val_y)


@fake("_spgemm_symbolic")
def _(*args):  # type: ignore[no-untyped-def]
    raise NotImplementedError(COMPILED)


@fake("_spgemm_colours")
def _(ptr, idx, eid, plan, cols):  # type: ignore[no-untyped-def]
    return idx.new_empty(ptr.size(0) - 1)


def _values_like(idx: Tensor, val: Tensor, other: Tensor) -> Tensor:
    return (val if val.dtype.is_floating_point else other).new_empty(idx.size(0))


@dataclass(frozen=True, eq=False)
class SpGEMMPlan:
    """What the product of two structures needs beside their values; made by ``fusedmm.spgemm_plan``.

    Attributes:
        a, b: the patterns of the factors.
        c: the pattern of the product, or of its mask.
        schedule: int64, opaque: how the rows are shared out.
        colours: int32 [rows], of rows that share no column; empty but for "kkmcr" and "kkmcw".
        masked: whether c is a mask.
        algorithm: the name that it was made with.
    """

    a: CSR
    b: CSR
    c: CSR
    schedule: Tensor
    colours: Tensor
    masked: bool
    algorithm: str
    _writes: ClassVar[tuple[int, ...]] = ()  # ``_written`` when the plan was made

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling():
            object.__setattr__(self, "_writes", _written(self))

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __call__(self, a_val: Values = None, b_val: Values = None) -> CSR:
        """The product for these values: the numeric phase alone.

        Args:
            a_val: [entries of a], in the order of a's edges, or None for ones.
            b_val: [entries of b], of the same dtype, or None.

        Returns:
            CSR with the plan's structure and the values of the product; gradients reach a_val and b_val through them.

        Raises:
            TypeError: values that are no floating-point tensor, of two dtypes, or on another device.
            ValueError: another number of values than the plan's structure has entries, or a structure that was
                written to since the plan was made.
        """
        _require_values("a_val", a_val, self.a)
        _require_values("b_val", b_val, self.b)
        if a_val is not None and b_val is not None and a_val.dtype != b_val.dtype:
            raise TypeError(f"spgemm: a_val is {a_val.dtype} and b_val {b_val.dtype}; they must be of one dtype")
        if not torch.compiler.is_compiling() and _written(self) != self._writes:
            raise ValueError("spgemm: the plan is for another structure: a matrix was written to since it was made")
        return self.c.with_values(_product((self, BY_C), a_val, b_val))

    def cache_transpose(self) -> SpGEMMPlan:
        """Makes the transposes now that gradients by b's values need, and returns self: compiled code wants them so."""
        for adj in (self.a, self.b, self.c):
            adj.cache_transpose()
        return self

    def __repr__(self) -> str:
        (rows, cols), inner = self.c.shape, self.a.shape[1]
        mask = ", masked" if self.masked else ""
        return f"SpGEMMPlan([{rows}, {inner}] @ [{inner}, {cols}], nnz={self.c.nnz}, {self.algorithm}{mask})"


def _written(plan: SpGEMMPlan) -> tuple[int, ...]:
    tensors = [t for adj in (plan.a, plan.b, plan.c) for t in (adj.ptr, adj.idx, adj.eid)]
    return tuple(-1 if t.is_inference() else writes_to(t) for t in tensors)


def _require_values(name: str, val: Values, adj: CSR) -> None:
    if val is None:
        return
    if not isinstance(val, Tensor) or val.dtype not in FLOATS:
        found = getattr(val, "dtype", type(val).__name__)
        raise TypeError(f"spgemm: {name} must be float32, float64, float16 or bfloat16, not {found}")
    if val.layout != torch.strided:
        raise TypeError(f"spgemm: {name} must be a dense tensor, not {val.layout}")
    if val.device != adj.device:
        raise TypeError(f"spgemm: {name} is on {val.device}, the plan on {adj.device}")
    if val.dim() != 1 or val.shape[0] != adj.nnz:
        which = name.partition("_")[0]
        raise ValueError(
            f"spgemm: {name} is {list(val.shape)}, but the plan is for a matrix {which} of {adj.nnz} entries: "
            "make a plan of this structure"
        )


class _Product(Formula):
    """A derivative of S; a call is (plan, by which), the operands are the values of the other two in their order."""

    @staticmethod
    def run(call: Any, *operands: Any) -> Tensor:
        plan, by = call
        a, b, c = plan.a, plan.b, plan.c
        first, second = operands
        if first is None and second is None:
            first = torch.ones(a.nnz, device=a.device)
        given = [a.none if t is None else t for t in (first, second)]
        like = a.ptr
        try:
            if by == BY_C:
                number = algorithm_number("spgemm", a.device.type, plan.algorithm)
                halves = [*_half(a), *_half(b), *_half(c)]
                how = plan.schedule, plan.colours, *given, b.shape[1], plan.masked, number
                result: Tensor = _numeric(*halves, *how)
            elif by == BY_A:  # the operands are b and c
                result = _dots(*_half(a), *_half(c), *_half(b), given[1], given[0], b.shape[1])
            else:  # the operands are a and c; all transposed, it is the derivative by a
                halves = [*b.transpose_half(), *c.transpose_half(), *a.transpose_half()]
                result = _dots(*halves, given[1], given[0], a.shape[0])
        except RuntimeError as error:
            raise_translated(error, like.device)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        first, second = operands
        return (first if needs[1] else None, second if needs[0] else None), None

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        plan, by = call
        first, second = [i for i in range(3) if i != by]
        return (
            _by(plan, first, {by: g, second: saved[1]}) if needs[0] else None,
            _by(plan, second, {by: g, first: saved[0]}) if needs[1] else None,
        )

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        (first, second), (d_first, d_second), parts = operands, tangents, []
        if d_first is not None:
            parts.append(_product(call, d_first, second))
        if d_second is not None:
            parts.append(_product(call, first, d_second))
        return added(parts)

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        samples = [
            _product(call, *(t if d is None else t.select(d, k) for t, d in zip(operands, dims, strict=True)))
            for k in range(batch)
        ]
        return torch.stack(samples), 0


_product = differentiable(_Product)


def _half(adj: CSR) -> Half:
    return adj.ptr, adj.idx, adj.eid, adj.plan


def _by(plan: SpGEMMPlan, which: int, others: dict[int, Values]) -> Tensor:
    first, second = (others[i] for i in range(3) if i != which)
    return _product((plan, which), first, second)


def spgemm_plan(a: Any, b: Any, *, algorithm: str = "auto", sorted: bool = True, mask: Any = None) -> SpGEMMPlan:
    """The symbolic phase of a sparse product: where it has entries, and how its rows are shared out.

    Args:
        a: a ``CSR`` [rows, inner], or what ``as_csr`` takes; its values are not read.
        b: the same, [inner, cols].
        algorithm: a name from ``fusedmm.algorithms("spgemm", device)``, or "auto".
        sorted: whether columns of the product rise within its rows; without it their order is some fixed one, which
            is found slightly sooner.
        mask: a ``CSR`` [rows, cols], or what ``as_csr`` takes, whose entries alone are computed, in its order; its
            values are not read.

    Returns:
        A plan: ``plan(a_val, b_val)`` is the product, any number of times.

    Raises:
        TypeError: a or b is no matrix, or they are on two devices.
        ValueError: shapes that do not fit, an unknown algorithm, or "kkmcr" or "kkmcw" with a mask.
        MemoryError: no room for the product's columns; the text has their number.
    """
    if torch.compiler.is_dynamo_compiling():
        made: SpGEMMPlan = outside(COMPILED, spgemm_plan, a, b, algorithm=algorithm, sorted=sorted, mask=mask)
        return made
    a, b, mask = (None if m is None else as_csr(m).pattern() for m in (a, b, mask))
    _require_fit(a, b, mask)
    algorithm_number("spgemm", a.device.type, algorithm)
    if algorithm in COLOURED and mask is not None:
        raise ValueError(f"spgemm: {algorithm} colours the rows of the whole product and takes no mask")
    want = WANT["chunks"] if mask is not None else WANT["sorted"] if sorted else WANT["unsorted"]
    ptr, idx, schedule = _pattern(a, b, want)
    c = mask if mask is not None else CSR.make(ptr, idx, idx.new_empty(0), None, b.shape[1], False)
    colours = idx.new_empty(0)
    if algorithm in COLOURED:
        colours = _called(c, _colours, *_half(c), b.shape[1])
    return SpGEMMPlan(a, b, c, schedule, colours, mask is not None, algorithm)


def spgemm(a: Any, b: Any, *, algorithm: str = "auto", sorted: bool = True, mask: Any = None) -> CSR:
    """Sparse times sparse, ``C = A B`` with a sparse C; ``A @ B`` is the same.

    C has an entry where some product falls, also where products cancel to zero: its structure depends on those of A
    and B alone. Entries that repeat in A or B add. Where the structures stay, ``spgemm_plan`` finds C's once.

    Args:
        a: a ``CSR`` [rows, inner] with values [nnz] or none (ones), or what ``as_csr`` takes.
        b: the same, [inner, cols], its values of the same dtype.
        algorithm: a name from ``fusedmm.algorithms("spgemm", device)``, or "auto". "kkmcr" and "kkmcw" need a plan.
        sorted: whether C's columns rise within its rows.
        mask: a ``CSR`` [rows, cols] whose entries alone are computed, in its order; its values are not read.

    Returns:
        C, a ``CSR``, with values of the factors' dtype (float32 of two patterns). Sums are kept in float32 (float64
        for float64), each row's in the order of A's entries; bitwise reproducible.

    Raises:
        TypeError: a or b is no matrix, or they are of two devices or dtypes.
        ValueError: shapes that do not fit, values with heads, an unknown algorithm or one that needs a plan.
        MemoryError: C is too large; the text has the number of its entries.

    Gradient: reaches the values of A and B through ``C.val``, of any order, each by as many products as C took.

    Cost: two flops per product; A has as many products as its entries have entries in their rows of B. Finding C's
    structure takes about as long as computing its values. The memory beside C is a dense row of sums per thread, or
    less where that is much.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
        >>> (A @ A).to_dense()
        tensor([[1., 8.],
                [0., 9.]])
    """
    if torch.compiler.is_dynamo_compiling():
        made: CSR = outside(COMPILED, spgemm, a, b, algorithm=algorithm, sorted=sorted, mask=mask)
        return made
    if algorithm in COLOURED:
        raise ValueError(f"spgemm: {algorithm} pays where a structure is used again: give it to fusedmm.spgemm_plan")
    a, b = as_csr(a), as_csr(b)
    plan = spgemm_plan(a, b, algorithm=algorithm, sorted=sorted, mask=mask)
    return plan(a.val, b.val)


def triple_product(r: Any, a: Any, p: Any, *, order: str = "auto") -> CSR:
    """``R A P``, as in the coarsening ``P^T A P`` of pooling layers and of multigrid: two sparse products.

    Args:
        r, a, p: matrices as ``spgemm`` takes them, [m, n], [n, k] and [k, l].
        order: "left" for (R A) P, "right" for R (A P), or "auto": the order of fewer products in all. To count them,
            auto finds the structure of R A and the lengths of the rows of A P.

    Returns:
        R A P, a ``CSR``; gradients reach the values of all three.

    Raises:
        TypeError, ValueError, MemoryError: as ``spgemm``; or an unknown order.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), shape=(3, 3))
        >>> P = fusedmm.CSR.from_coo(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), shape=(3, 2))
        >>> fusedmm.triple_product(P.t(), A, P).to_dense()
        tensor([[1., 1.],
                [1., 0.]])
    """
    if order not in ("auto", "left", "right"):
        raise ValueError(f"triple_product: order must be auto, left or right, not {order!r}")
    if torch.compiler.is_dynamo_compiling():
        made: CSR = outside(COMPILED, triple_product, r, a, p, order=order)
        return made
    r, a, p = as_csr(r), as_csr(a), as_csr(p)
    _require_fit(r, a, None)
    _require_fit(a, p, None)
    if order != "right":
        ra = spgemm_plan(r, a)
        if order == "left" or _products(r, a) + _products(ra.c, p) <= _products(a, p) + _products_with(r, a, p):
            return spgemm(ra(r.val, a.val), p)
    return spgemm(r, spgemm(a, p))


def _products(a: CSR, b: CSR) -> int:
    """How many products A B has."""
    return int(b.degree()[a.idx.long()].sum()) if a.nnz else 0


def _products_with(r: CSR, a: CSR, p: CSR) -> int:
    """How many products R (A P) has, of which A P is counted but not computed."""
    ptr, _, _ = _pattern(a, p, WANT["counts"])
    return int((ptr[1:] - ptr[:-1])[r.idx.long()].sum()) if r.nnz else 0


def _require_fit(a: CSR, b: CSR, mask: CSR | None) -> None:
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"spgemm: a is {list(a.shape)} and b {list(b.shape)}; a's columns must be b's rows")
    if mask is not None and mask.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"spgemm: mask is {list(mask.shape)}, the product [{a.shape[0]}, {b.shape[1]}]")
    for name, adj in (("b", b), ("mask", mask)):
        if adj is not None and adj.device != a.device:
            raise TypeError(f"spgemm: {name} is on {adj.device}, a on {a.device}")


def _pattern(a: CSR, b: CSR, want: int) -> tuple[Tensor, Tensor, Tensor]:
    ptr, idx, schedule = _called(a, _symbolic, *_half(a), *_half(b), b.shape[1], want)
    return ptr, idx, schedule


@torch.no_grad()
def _called(adj: CSR, op: Any, *args: Any) -> Any:
    try:
        return op(*args)
    except RuntimeError as error:
        raise_translated(error, adj.device)
