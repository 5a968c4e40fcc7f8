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
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from fusedmm._fakes import fake
from fusedmm._lib import algorithm_number, numbers_of, ops, raise_translated
from fusedmm._torch_compat import pytree, writes_to
from fusedmm.matrix.arguments import FLOATS
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.structure import Half, Shared, outside
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
    idx_c, val, val_b = args[9], *args[15:17]
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


# How ``products`` are laid out (csrc/spgemm/cuda_kept.cu, cpu_look.c). A plan that was saved with another layout, or on
# another kind of device, goes without them: its values are the same, and take longer.
LAYOUT = 3


@dataclass(frozen=True, eq=False)
class SpGEMMPlan(Generic[M]):
    """What the product of two structures needs beside their values; made by ``fusedmm.spgemm_plan``.

    Attributes:
        a, b: the patterns of the factors.
        c: the pattern of the product, or of its mask.
        schedule: int64, opaque: how the rows are shared out.
        colours: int32 [rows], of rows that share no column; empty but for "kkmcr" and "kkmcw".
        products: int32, opaque, for "auto": on CUDA where each product goes, on a CPU which rows are as the one before.
        masked: whether c is a mask.
        algorithm: the name that it was made with.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2))
        >>> fusedmm.spgemm_plan(A, A)
        SpGEMMPlan([2, 2] @ [2, 2], nnz=2, auto)
    """

    a: M
    b: M
    c: M
    schedule: Tensor
    colours: Tensor
    products: Tensor
    masked: bool
    algorithm: str
    _writes: ClassVar[tuple[int, ...]] = ()  # ``_written`` when the plan was made

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling() and isinstance(self.schedule, Tensor):  # else a tree of something else
            object.__setattr__(self, "_writes", self._written())

    def _written(self) -> tuple[int, ...]:
        return _written(self.a, self.b, (self.c.ptr, self.c.idx, self.c.eid))

    def _require_unwritten(self) -> None:
        if not torch.compiler.is_compiling() and self._written() != self._writes:
            raise ValueError("spgemm: the structure of a matrix was written to since its plan or product was made")

    def __getstate__(self) -> dict[str, Any]:
        self._require_unwritten()  # a copy would not know
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"layout": (LAYOUT, self.products.device.type)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, state[f.name])
        if state.get("layout") != (LAYOUT, self.products.device.type):
            object.__setattr__(self, "products", self.products[:0])
        self.__post_init__()

    def __call__(self, a_val: Values = None, b_val: Values = None) -> M:
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
        _require_factors(self.a, self.b, a_val, b_val)
        self._require_unwritten()
        if a_val is b_val and a_val is not None and torch.compiler.is_compiling():
            b_val = a_val.view_as(a_val)  # compiled code takes no tensor twice
        return self.c.with_values(_product((self, BY_C), a_val, b_val))

    def cache_transpose(self) -> SpGEMMPlan[M]:
        """Makes the transposes now that gradients by b's values need, and returns self: compiled code wants them so."""
        for adj in (self.a, self.b, self.c):
            adj.cache_transpose()
        return self

    def to(self, *args: Any, **kwargs: Any) -> SpGEMMPlan[M]:
        """Refuses: the structure and the schedule are those of a device's own algorithms.

        Raises:
            TypeError: always; a plan of moved matrices is the way. A plan takes values of any dtype.
        """
        raise TypeError(
            "spgemm: a plan stays on its device, and takes values of any dtype: for another device move the matrices "
            "and make a fusedmm.spgemm_plan of them there"
        )

    def __repr__(self) -> str:
        (rows, cols), inner = self.c.shape, self.a.shape[1]
        mask = ", masked" if self.masked else ""
        return f"SpGEMMPlan([{rows}, {inner}] @ [{inner}, {cols}], nnz={self.c.nnz}, {self.algorithm}{mask})"


PARTS = ("a", "b", "c", "schedule", "colours", "products")  # what torch.export sees of a plan as an argument


def _parts(plan: SpGEMMPlan[Any]) -> tuple[list[Any], tuple[bool, str]]:
    return [getattr(plan, name) for name in PARTS], (plan.masked, plan.algorithm)


def _parts_with_keys(plan: SpGEMMPlan[Any]) -> tuple[list[tuple[pytree.KeyEntry, Any]], tuple[bool, str]]:
    children, rest = _parts(plan)
    return [(pytree.GetAttrKey(name), part) for name, part in zip(PARTS, children, strict=True)], rest


SpGEMMPlan.__module__ = "fusedmm"  # where pickles find it, whichever file it moves to
torch.serialization.add_safe_globals([SpGEMMPlan])  # its state is tensors, matrices of tensors, and plain values
pytree.register_pytree_node(
    SpGEMMPlan,
    _parts,
    lambda children, rest: SpGEMMPlan(*children, *rest),
    serialized_type_name="fusedmm.SpGEMMPlan",
    flatten_with_keys_fn=_parts_with_keys,
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)


def _written(a: Matrix, b: Matrix, parts: Sequence[Tensor]) -> tuple[int, ...]:
    """Tells how often the tensors of A, of B and of C, whose ``parts`` are its own, were written to."""
    tensors = (a.ptr, a.idx, a.eid, b.ptr, b.idx, b.eid, *parts)
    return tuple(-1 if t.is_inference() else writes_to(t) for t in tensors)


def _require_values(name: str, val: Values, adj: Matrix) -> None:
    if val is None:
        return
    if not isinstance(val, Tensor) or val.dtype not in FLOATS:
        found = val.dtype if isinstance(val, Tensor) else type(val).__name__
        raise TypeError(f"spgemm: {name} must be a tensor of float32, float64, float16 or bfloat16, not {found}")
    if val.layout != torch.strided:
        raise TypeError(f"spgemm: {name} must be a dense tensor, not {val.layout}")
    if val.device != adj.device:
        raise TypeError(f"spgemm: {name} is on {val.device}, the plan on {adj.device}")
    if val.dim() != 1 or val.shape[0] != adj.nnz:
        raise ValueError(
            f"spgemm: {name} is {list(val.shape)}, but the plan is for a matrix {name[0]} of {adj.nnz} entries: "
            "make a plan of this structure"
        )


def _require_factors(a: Matrix, b: Matrix, a_val: Values, b_val: Values) -> None:
    _require_values("a_val", a_val, a)
    _require_values("b_val", b_val, b)
    _require_one_dtype(a_val, b_val)


def _require_one_dtype(a_val: Values, b_val: Values) -> None:
    if a_val is not None and b_val is not None and a_val.dtype != b_val.dtype:
        raise TypeError(f"spgemm: values of a are {a_val.dtype}, those of b {b_val.dtype}; they must be of one dtype")


class Whole(Generic[M]):
    """A product whose structure is found with its values: stands for a plan in a call, and makes one for gradients."""

    def __init__(self, a: M, b: M, sorted: bool) -> None:
        self.a, self.b, self.sorted = a, b, sorted
        self.parts: tuple[Tensor, Tensor, Tensor] | None = None  # ptr, idx and eid of C, once they were found
        self.shared: Shared | None = None  # what C and the plan's pattern of it have in common
        self.found: SpGEMMPlan[M] | None = None

    def run(self, first: Values, second: Values) -> Tensor:
        """Finds the structure; returns the values."""
        a, b, want = self.a, self.b, WANT["sorted"] if self.sorted else WANT["unsorted"]
        ones = torch.ones(a.nnz, dtype=torch.float32, device=a.device) if first is None and second is None else first
        given = [a.none if t is None else t for t in (ones, second)]
        # What a plan keeps costs a CPU nothing.
        ptr, idx, self.schedule, self.products, val = _found(a, b, want, a.device.type == "cpu", *given)
        eid = idx.new_empty(0) if a.eid.numel() else a.eid  # none; what is there already takes a GPU's host no time
        self.parts = ptr, idx, eid
        self.writes = _written(a, b, self.parts)
        return val if val.shape[0] == idx.shape[0] else _Product.run((self.plan, BY_C), first, second)

    def c(self, val: Values) -> M:
        """C, whose own plan is made on first use."""
        ptr, idx, eid = self.parts  # type: ignore[misc]
        made = type(self.a)(ptr, idx, val, eid, None, self.a.none, self.b.shape[1])
        self.shared = self.shared or made._shared
        made._set(_shared=self.shared)
        return made

    @property
    def plan(self) -> SpGEMMPlan[M]:
        """The plan, once the structure was found."""
        if self.found is None:
            c = self.c(None)
            kept = self.schedule, c.idx.new_empty(0), self.products
            self.found = SpGEMMPlan(self.a.pattern(), self.b.pattern(), c, *kept, False, "auto")
            object.__setattr__(self.found, "_writes", self.writes)
        return self.found


class _Product(Formula):
    """A derivative of S; a call is (plan, by which), the operands are the values of the other two in their order."""

    @staticmethod
    def run(call: Any, *operands: Any) -> Tensor:
        plan, by = call
        if isinstance(plan, Whole):
            if plan.parts is None:
                return plan.run(*operands)
            plan = plan.plan
        a, b, c = plan.a, plan.b, plan.c
        first, second = operands
        if first is None and second is None:
            first = torch.ones(a.nnz, dtype=torch.float32, device=a.device)
        given = [a.none if t is None else t for t in (first, second)]
        like = a.ptr
        try:
            if by == BY_C:
                number = algorithm_number("spgemm", a.device.type, plan.algorithm)
                halves = [*_half(a), *_half(b), *_half(c)]
                how = plan.schedule, plan.colours, plan.products, *given, b.shape[1], plan.masked, number
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
        made, by = call
        plan: Any = made.plan if isinstance(made, Whole) else made
        plan._require_unwritten()
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


def _half(adj: Matrix) -> Half:
    """Sparse products need no plan of a matrix, which may not have been made yet."""
    return adj.ptr, adj.idx, adj.eid, adj.none


def _by(plan: SpGEMMPlan[M], which: int, others: dict[int, Values]) -> Tensor:
    first, second = (others[i] for i in range(3) if i != which)
    return _product((plan, which), first, second)


def make_plan(a: M, b: M, algorithm: str, sorted: bool, mask: M | None) -> SpGEMMPlan[M]:
    """What ``fusedmm.spgemm_plan`` documents, of matrices."""
    if torch.compiler.is_dynamo_compiling():
        return outside(COMPILED, make_plan, a, b, algorithm, sorted, mask)
    a, b, mask = a.pattern(), b.pattern(), None if mask is None else mask.pattern()
    require_fit(a, b, mask)
    algorithm_number("spgemm", a.device.type, algorithm)
    if algorithm in COLOURED and mask is not None:
        raise ValueError(f"spgemm: {algorithm} colours the rows of the whole product and takes no mask")
    want = WANT["chunks"] if mask is not None else WANT["sorted"] if sorted else WANT["unsorted"]
    keep = algorithm == "auto" and mask is None
    ptr, idx, schedule, products, _ = _found(a, b, want, keep, a.none, a.none)
    c = mask if mask is not None else type(a).make(ptr, idx, idx.new_empty(0), None, b.shape[1], False, None)
    colours = idx.new_empty(0)
    if algorithm in COLOURED:
        colours = _called(c, _colours, *_half(c), b.shape[1])
    return SpGEMMPlan(a, b, c, schedule, colours, products, mask is not None, algorithm)


def multiply(a: M, b: M, algorithm: str = "auto", sorted: bool = True, mask: M | None = None) -> M:
    """What ``fusedmm.spgemm`` documents, of matrices."""
    if torch.compiler.is_dynamo_compiling():
        return outside(COMPILED, multiply, a, b, algorithm, sorted, mask)
    if algorithm in COLOURED:
        raise ValueError(f"spgemm: {algorithm} pays where a structure is used again: give it to fusedmm.spgemm_plan")
    for name, adj in (("a", a), ("b", b)):
        if adj.val is not None and adj.val.dim() != 1:
            shape = list(adj.val.shape)
            raise ValueError(f"spgemm: the values of {name} are {shape}; a sparse product takes one number an entry")
    if algorithm != "auto" or mask is not None:
        return make_plan(a, b, algorithm, sorted, mask)(a.val, b.val)
    require_fit(a, b, None)
    _require_one_dtype(a.val, b.val)
    whole = Whole(a, b, sorted)
    val = _product((whole, BY_C), a.val, b.val)
    return whole.c(val)


def require_fit(a: Matrix, b: Matrix, mask: Matrix | None, op: str = "spgemm", one: str = "a", two: str = "b") -> None:
    if a.shape[1] != b.shape[0]:
        shapes = f"{one} is {list(a.shape)} and {two} {list(b.shape)}"
        raise ValueError(f"{op}: {shapes}; {one}'s columns must be {two}'s rows")
    if mask is not None and mask.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"spgemm: mask is {list(mask.shape)}, the product [{a.shape[0]}, {b.shape[1]}]")
    for name, adj in ((two, b), ("mask", mask)):
        if adj is not None and adj.device != a.device:
            raise TypeError(f"{op}: {name} is on {adj.device}, {one} on {a.device}")


def _found(a: Matrix, b: Matrix, want: int, keep: bool, val: Tensor, val_b: Tensor) -> Any:
    return _called(a, _symbolic, *_half(a), *_half(b), val, val_b, b.shape[1], want, keep)


def _called(adj: Matrix, op: Any, *args: Any) -> Any:
    try:
        return op(*args)
    except RuntimeError as error:
        raise_translated(error, adj.device)
