"""What every operator stands on: the tensors of a sparse matrix, and those of its transpose once they are needed.

``CSR`` adds to it what users call: how one is made of other forms, and the operators that are methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fusedmm._torch_compat import is_exporting
from fusedmm.matrix.arguments import require_values
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.structure import (
    NO_TRANSPOSE,
    UNKNOWN,
    Half,
    Plan,
    Shared,
    constant,
    derived,
    is_captured,
    lasting,
    outside,
    plan_of,
    shared_by,
    validate,
    was_measured,
    written,
)
from fusedmm.matrix.transpose import transpose

M = TypeVar("M", bound="Matrix")


HOW = (
    "CSR(...) takes every tensor of a finished matrix; make one by CSR.from_csr(ptr, idx, val, shape), "
    "CSR.from_coo(row, col, val, shape), CSR.from_edge_index(edge_index, edge_weight, size), CSR.from_dense(dense), "
    "or by fusedmm.as_csr of another library's matrix"
)


class Late:
    """Makes the plan of a matrix that has none yet when it is first asked for, once for all matrices of its structure.

    Compiled code and a CUDA graph that records make none that would outlive them: kernels make their own there. Some
    versions of torch look at the attribute before they compile, which makes one as any other look does.
    """

    def __get__(self, adj: Matrix | None, kind: type[Matrix] | None = None) -> Tensor | None:
        if adj is None:  # the default of the field
            return None
        if torch.compiler.is_compiling() or is_captured(adj.ptr):
            return adj.none
        plan: Tensor = derived(adj, "plan", "", late_plan)
        adj._set(plan=plan)
        return plan


@lasting
def late_plan(adj: Matrix) -> Tensor:
    """The plan alone: to measure rows would wait for the device."""
    return plan_of(adj.ptr, adj.idx, adj.n_cols, False)[0]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Matrix:
    """Holds the tensors that ``CSR`` documents, and what operators ask of them."""

    ptr: Tensor
    idx: Tensor
    val: Tensor | None = None
    eid: Tensor = None  # type: ignore[assignment]
    plan: Tensor = None  # type: ignore[assignment]
    none: Tensor = None  # type: ignore[assignment]
    n_cols: int = -1
    ptr_t: Tensor | None = None
    idx_t: Tensor | None = None
    eid_t: Tensor | None = None
    plan_t: Tensor | None = None
    rows_are: int = UNKNOWN
    rows_are_t: int = UNKNOWN
    # These are set on each object and are no arguments, since a copy and ``dataclasses.replace`` must make them anew.
    val_here: ClassVar[Tensor | None] = None  # constant values in the order of the matrix's own entries
    val_there: ClassVar[Tensor | None] = None  # the same in the order of the transpose's
    makers: ClassVar[dict[Any, Callable[..., Any]]] = {}  # what a class derives in its own way, by the key
    _shared: ClassVar[Shared | None] = None
    _written: ClassVar[int] = -2  # ``written(val)`` when val_here was made; -2 is none of its results
    _fixed: ClassVar[bool] = False  # whether val belongs to this matrix alone, so that nobody writes to it

    @classmethod
    @lasting
    def make(
        cls: type[M],
        ptr: Tensor,
        idx: Tensor,
        eid: Tensor,
        val: Tensor | None,
        cols: int,
        check: bool,
        plan: Plan | bool | None = False,
    ) -> M:
        """Returns a matrix of contiguous tensors that have the right dtypes and belong to nobody else.

        plan: what ``plan_of`` answered, or whether the caller has waited for a GPU, so that it may, too; None leaves
            the plan to be made on first use.
        """
        none = ptr.new_empty(0, dtype=torch.uint8)
        require_values(val, idx.numel(), ptr.device)
        if check:
            validate(ptr, idx, cols)
        known: tuple[Tensor | None, int] = (None, UNKNOWN)
        if plan is not None:
            known = plan if isinstance(plan, tuple) else plan_of(ptr, idx, cols, plan, cut=plan)
        made, rows_are = known
        adj = cls(ptr, idx, val, eid, made, none, cols, rows_are=rows_are)
        if val is not None:
            adj._permute_values()
        return adj

    def __init__(
        self,
        ptr: Tensor | None = None,
        idx: Tensor | None = None,
        val: Tensor | None = None,
        eid: Tensor | None = None,
        plan: Tensor | None = None,
        none: Tensor | None = None,
        n_cols: int = -1,
        ptr_t: Tensor | None = None,
        idx_t: Tensor | None = None,
        eid_t: Tensor | None = None,
        plan_t: Tensor | None = None,
        rows_are: int = UNKNOWN,
        rows_are_t: int = UNKNOWN,
        **unknown: Any,
    ) -> None:
        """What dataclass would make, but for the text on arguments that are not those of a finished matrix."""
        if unknown or none is None:
            raise TypeError(HOW + (f"; it has no argument {next(iter(unknown))!r}" if unknown else ""))
        put = object.__setattr__
        put(self, "ptr", ptr)
        put(self, "idx", idx)
        put(self, "val", val)
        put(self, "eid", eid)
        if plan is not None:
            put(self, "plan", plan)
        put(self, "none", none)
        put(self, "n_cols", n_cols)
        put(self, "ptr_t", ptr_t)
        put(self, "idx_t", idx_t)
        put(self, "eid_t", eid_t)
        put(self, "plan_t", plan_t)
        put(self, "rows_are", rows_are)
        put(self, "rows_are_t", rows_are_t)
        self.__post_init__()

    # ---- what it is ----

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return self.ptr.shape[0] - 1, self.n_cols

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.idx.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ptr.device

    def degree(self) -> Tensor:
        """Entries per row, int64 [rows], whatever their values: ``A @ ones`` adds these up."""
        return self.ptr[1:] - self.ptr[:-1]

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns (row, col, val) in the caller's edge order; row and col int64 [nnz]."""
        row, col = rows_of(self.ptr, self.nnz).long(), self.idx.long()
        if self.eid.numel():
            order = self.eid.long()
            row, col = torch.empty_like(row).scatter_(0, order, row), torch.empty_like(col).scatter_(0, order, col)
        return row, col, self.val

    # ---- others of the same structure ----

    def t(self: M) -> M:
        """Returns the transpose, sharing every tensor, values too."""
        ptr, idx, eid, plan = self.transpose_half()
        self._refresh()
        other = type(self)(
            ptr, idx, self.val, eid, plan, self.none, self.ptr.shape[0] - 1,
            self.ptr, self.idx, self.eid, self.plan, self.rows_are_t, self.rows_are,
        )  # fmt: skip
        other._set(val_here=self.val_there, val_there=self.val_here, _fixed=self._fixed)
        return other

    @property
    def T(self: M) -> M:
        """``t()``."""
        return self.t()

    def with_values(self: M, val: Tensor | None) -> M:
        """Returns the same structure with other values [nnz] or [nnz, heads] (caller's edge order), or None.

        Values are kept as they are given, so that writes to them count and gradients reach them. Integers are
        refused for that reason, since a converted copy would be neither.

        Raises:
            TypeError, ValueError: values of another device, dtype or length.
        """
        require_values(val, self.nnz, self.device)
        plan = self.plan if torch.compiler.is_compiling() else vars(self).get("plan")
        other = type(self)(
            self.ptr, self.idx, val, self.eid, plan, self.none, self.n_cols,
            self.ptr_t, self.idx_t, self.eid_t, self.plan_t, self.rows_are, self.rows_are_t,
        )  # fmt: skip
        other._set(_shared=self._shared)
        return other

    def constant_values(self, transposed: bool) -> Tensor | None:
        """Returns current values in the order of the matrix or of its transpose; None where kernels read val by eid."""
        here = self.val_there if transposed else self.val_here
        if here is None:
            return None
        if torch.compiler.is_compiling():  # an exported program is given values that may be no constants
            return here if self._fixed and not is_exporting() else None
        if not self._fixed and written(self.val) != self._written:
            self._permute_values()
            return self.val_there if transposed else self.val_here
        return here

    def pattern(self: M) -> M:
        """Returns the same structure without values: every entry counts as one."""
        return self if self.val is None else self.with_values(None)

    def cache_transpose(self: M) -> M:
        """Makes the transpose now, and returns self.

        Compiled and exported code needs it beforehand. Call it before a fork too, so that processes share it and
        none inherits a lock that is held. Conversion, transposition and gradients hang in a child forked after
        torch used its threads, as torch's own ``(x + x).sum()`` does: ``torch.set_num_threads(1)`` there helps.
        """
        self.transpose_half()
        return self

    def transpose_half(self) -> Half:
        """Returns (ptr, idx, eid, plan) of the transpose, made on first use under a lock.

        Raises:
            RuntimeError: in compiled code of one graph, where a sort would run at every step.
        """
        if self.ptr_t is not None:
            return self.ptr_t, self.idx_t, self.eid_t, self.plan_t  # type: ignore[return-value]
        if torch.compiler.is_compiling():
            return outside(NO_TRANSPOSE, self.transpose_half)
        shared = shared_by(self)
        with shared.lock:
            if shared.transpose is None:
                shared.transpose = self._transposed()
            half, rows_are = shared.transpose
            ptr, idx, eid, plan = half
            self._set(idx_t=idx, eid_t=eid, plan_t=plan, rows_are_t=rows_are)
            if self.val is not None:
                self._permute_values()
            self._set(ptr_t=ptr)  # last: it is what others test, without the lock
        return half

    def _transposed(self) -> tuple[Half, int]:
        """Makes the transpose; see ``transpose``."""
        return transpose(self.ptr, self.idx, self.eid, self.plan, self.n_cols, was_measured(self))

    def _settle(self, stored: bool = False) -> None:
        """Gives a matrix whose tensors came one by one, perhaps from another device, the plans of this one.

        stored: they may have been made by another version of the library.
        """
        here = (self.plan, self.rows_are)
        plan, rows_are = _settled(here, self.ptr, self.idx, self.n_cols, stored)
        self._set(plan=plan, rows_are=rows_are)
        if self.ptr_t is not None:
            there: Any = (self.plan_t, self.rows_are_t)
            plan, rows_are = _settled(there, self.ptr_t, self.idx_t, self.shape[0], stored)  # type: ignore[arg-type]
            self._set(plan_t=plan, rows_are_t=rows_are)

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _refresh(self) -> None:
        """Renews val_here and val_there if val was written to, for those who hand the two on."""
        permuted = self.val_here is not None or self.val_there is not None
        if permuted and not torch.compiler.is_compiling() and written(self.val) != self._written:
            self._permute_values()

    def _permute_values(self) -> None:
        now = written(self.val)
        if self.val_here is None or now != self._written:
            self._set(val_here=constant(self.val, self.eid, self.val_here))
        self._set(val_there=None if self.eid_t is None else constant(self.val, self.eid_t, self.val_there))
        self._set(_written=now)  # last: it is what other threads test

    # ---- pickling: the lock stays behind ----

    def __post_init__(self) -> None:
        if isinstance(self.n_cols, int) and self.n_cols < 0:  # of an exported program, and not a traced size
            if self.ptr_t is None:
                raise ValueError("a CSR that goes into an exported program needs adj.cache_transpose() beforehand")
            self._set(n_cols=self.ptr_t.shape[0] - 1)
        # For ``adj @ x`` torch.compile makes a matrix of proxies, and torch 2.10 and 2.11 do not say that they compile.
        if isinstance(self.ptr, Tensor) and not torch.compiler.is_compiling():
            self._set(_shared=Shared(), _written=written(self.val))

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(**state)
        self.__post_init__()
        self._settle(stored=True)
        self._permute_values()


Matrix.plan = Late()  # type: ignore[assignment]


def _settled(known: Plan, ptr: Tensor, idx: Tensor, cols: int, stored: bool) -> Plan:
    plan, rows_are = known
    if ptr.is_cuda:
        return known if plan.numel() and not stored else plan_of(ptr, idx, cols, not is_captured(ptr), cut=True)
    return plan.new_empty(0) if plan.numel() else plan, rows_are  # a CPU needs no plan
