"""The sparse matrix: plain tensors in CSR, with the transpose beside them once it is needed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedmm.matrix.compress import rows_of, transpose
from fusedmm.matrix.structure import (
    NO_TRANSPOSE,
    Half,
    Shared,
    constant,
    is_exporting,
    lasting,
    outside,
    plan_of,
    require_values,
    shared_by,
    validate,
    written,
)


@dataclass(frozen=True, eq=False, repr=False)
class CSR:
    """A sparse matrix [rows, cols] in compressed sparse rows, made by one of the ``from_`` functions.

    Row i holds the entries ``ptr[i] <= p < ptr[i+1]``, entry p stands in column ``idx[p]``. Columns may
    repeat (entries add) and need not be sorted. Values and edge gradients are in the *caller's* edge
    order: entry p has the value ``val[eid[p]]``. Operators whose formula names no values take a ``pattern()`` only.

    The object is frozen; its tensors must not be written to, but for ``val`` (in place, not through ``val.data``,
    which torch does not count). Where another thread writes what a call reads, be it these or an ``edge_index``,
    results are unspecified and memory is safe. Values made in inference mode serve no gradient: take
    ``with_values(val.clone())`` outside of it. The transpose, which every gradient needs, is made on first use and
    kept (for compiled code ``cache_transpose`` makes it beforehand). Constant values are kept in the order of the rows
    too, but compiled code, which cannot ask whether they were written to, reads ``val``: best if it is in that order.

    Attributes:
        ptr: int64 [rows + 1].
        idx: int32 [nnz].
        val: values [nnz] or [nnz, heads] in the caller's edge order, or None for ones.
        eid: int32 [nnz] (int64 from 2^31 entries), position of entry p in the caller's edge order; empty: the identity.
        plan: opaque, what the kernels of this device want to know of the structure.
        n_cols: number of columns.
        ptr_t, idx_t, eid_t, plan_t: the same of the transpose, or None.
        none: a tensor without elements on this device, which stands for an absent operand.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 2, 2]), torch.tensor([1, 0, 1]),
        ...                          torch.tensor([1., 2., 3.]), shape=(3, 2))
        >>> A
        CSR(shape=(3, 2), nnz=3, val=float32[3], device=cpu)
        >>> A @ torch.tensor([[1.], [10.]])
        tensor([[10.],
                [ 0.],
                [32.]])
    """

    ptr: Tensor
    idx: Tensor
    val: Tensor | None
    eid: Tensor
    plan: Tensor
    none: Tensor
    n_cols: int = -1
    ptr_t: Tensor | None = None
    idx_t: Tensor | None = None
    eid_t: Tensor | None = None
    plan_t: Tensor | None = None
    # Set on each object, but no arguments: what copies and ``dataclasses.replace`` must make anew.
    val_here: ClassVar[Tensor | None] = None  # constant values in the order of this half, and of the transpose
    val_there: ClassVar[Tensor | None] = None
    _shared: ClassVar[Shared | None] = None
    _written: ClassVar[int] = -2  # how often val had been written to by then; never what ``written`` gives
    _fixed: ClassVar[bool] = False  # nobody else holds val, so nobody writes to it

    # ---- making one ----

    @staticmethod
    def from_csr(
        ptr: Tensor,
        idx: Tensor,
        val: Tensor | None = None,
        shape: tuple[int, int] | None = None,
        *,
        check: bool = True,
    ) -> CSR:
        """From row pointers and column indices.

        Args:
            ptr: [rows + 1], integers, from 0 and never falling to nnz.
            idx: [nnz], integers in [0, cols).
            val: [nnz] or [nnz, heads], floating, or None for ones.
            shape: (rows, cols); without it cols is the largest column + 1.
            check: False skips validation and the look at how long rows are, the only synchronisations
                with a GPU where ``shape`` is given (to find the largest column is another). Then wrong
                indices give wrong results, though never a read outside the operands.

        Raises:
            TypeError: dtypes that are not integers, or tensors on several devices.
            ValueError: a malformed structure; the text has the index and the value.
        """
        return constructors.from_csr(ptr, idx, val, shape, check)

    @staticmethod
    def from_coo(
        row: Tensor,
        col: Tensor,
        val: Tensor | None = None,
        shape: tuple[int, int] | None = None,
        *,
        check: bool = True,
    ) -> CSR:
        """From coordinates in any order; values and edge gradients keep that order.

        Args:
            row, col: [nnz], integers; pairs may repeat.
            val: [nnz] or [nnz, heads], floating, or None for ones.
            shape: (rows, cols); without it the largest indices + 1.
            check: as in ``from_csr``.

        Raises:
            TypeError, ValueError: as ``from_csr``.
        """
        return constructors.from_coo(row, col, val, shape, check)

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
        *,
        check: bool = True,
    ) -> CSR:
        """From PyG's edge_index: the matrix that gathers sources into targets.

        Args:
            edge_index: [2, nnz], integers; row 0 = sources (columns), row 1 = targets (rows).
            edge_weight: [nnz] or [nnz, heads], in the order of edge_index.
            size: number of nodes, or (sources, targets); without it the largest index + 1.
            check: as in ``from_csr``.

        Returns:
            CSR of shape (targets, sources): ``(A @ x)[target] = sum of x[source]``.
        """
        return constructors.from_edge_index(edge_index, edge_weight, size, check)

    @staticmethod
    def from_dense(dense: Tensor) -> CSR:
        """From a dense matrix [rows, cols]: its entries that are not zero (gradients reach it)."""
        return constructors.from_dense(dense)

    @staticmethod
    def from_torch(adj: Tensor, *, check: bool = True) -> CSR:
        """From a torch sparse CSR, CSC or COO tensor [rows, cols]; gradients reach its values.

        Values and edge gradients are in the order of adj's own ``values()``; an uncoalesced COO tensor
        stays so (entries add), unless its values want a gradient. The gradient goes to the tensor that
        the values came from; that of a CSC tensor itself (its ``.grad``, as a leaf) torch refuses to keep.

        Raises:
            TypeError: another layout, or values that are not floating-point.
            ValueError: a batch, or more than two sparse dimensions.
        """
        return constructors.from_torch(adj, check)

    @staticmethod
    def from_scipy(matrix: Any, *, check: bool = True) -> CSR:
        """From a scipy sparse matrix or array; values in the order of its CSR form, integers become float32.

        Raises:
            TypeError: complex numbers, long doubles, or no sparse matrix.
            ValueError: an array of other than two dimensions.
        """
        return constructors.from_scipy(matrix, check)

    @staticmethod
    @lasting
    def make(
        ptr: Tensor, idx: Tensor, eid: Tensor, val: Tensor | None, cols: int, check: bool, plan: Tensor | bool = False
    ) -> CSR:
        """From tensors of a CSR's own dtypes, contiguous and nobody else's; plan: it, or the look of ``plan_of``."""
        none = ptr.new_empty(0, dtype=torch.uint8)
        require_values(val, idx.numel(), ptr.device)
        if check:
            validate(ptr, idx, cols)
        adj = CSR(ptr, idx, val, eid, plan if isinstance(plan, Tensor) else plan_of(ptr, idx, cols, plan), none, cols)
        if val is not None:
            adj._permute_values()
        return adj

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
        """(row, col, val) in the caller's edge order; row and col int64 [nnz]."""
        row, col = rows_of(self.ptr, self.nnz).long(), self.idx.long()
        if self.eid.numel():
            order = self.eid.long()
            row, col = torch.empty_like(row).scatter_(0, order, row), torch.empty_like(col).scatter_(0, order, col)
        return row, col, self.val

    def __repr__(self) -> str:
        val = "none" if self.val is None else f"{str(self.val.dtype)[6:]}{list(self.val.shape)}"
        return f"CSR(shape={self.shape}, nnz={self.nnz}, val={val}, device={self.device})"

    # ---- others of the same structure ----

    def t(self) -> CSR:
        """The transpose, sharing every tensor, values too."""
        ptr, idx, eid, plan = self.transpose_half()
        self._refresh()
        other = CSR(
            ptr, idx, self.val, eid, plan, self.none, self.ptr.shape[0] - 1, self.ptr, self.idx, self.eid, self.plan
        )
        other._set(val_here=self.val_there, val_there=self.val_here, _fixed=self._fixed)
        return other

    T = property(t)

    def with_values(self, val: Tensor | None) -> CSR:
        """The same structure with other values [nnz] or [nnz, heads] (caller's edge order), or None.

        Raises:
            TypeError, ValueError: values of another device, dtype or length.
        """
        require_values(val, self.nnz, self.device)
        other = CSR(
            self.ptr, self.idx, val, self.eid, self.plan, self.none, self.n_cols,
            self.ptr_t, self.idx_t, self.eid_t, self.plan_t,
        )  # fmt: skip
        other._set(_shared=self._shared)
        return other

    def constant_values(self, transposed: bool) -> Tensor:
        """Values in a half's own order, current ones, where they are constant and it is not the caller's; else none."""
        here = self.val_there if transposed else self.val_here
        if here is None:
            return self.none
        if torch.compiler.is_compiling():  # an exported program is given values that may be no constants
            return here if self._fixed and not is_exporting() else self.none
        if written(self.val) != self._written:
            self._permute_values()
            here = self.val_there if transposed else self.val_here
        return self.none if here is None else here

    def pattern(self) -> CSR:
        """The same structure without values: every entry counts as one."""
        return self if self.val is None else self.with_values(None)

    def to(
        self,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> CSR:
        """On another device, and with values of another dtype.

        Args:
            device, dtype: None leaves it as it is.
            non_blocking: whether a copy from pinned memory to a GPU need not wait.

        Raises:
            TypeError: no device (a dtype is ``dtype=``), or a dtype that is not floating.
            ValueError: no device's name, one that is neither cpu nor cuda, or a CUDA device that torch does not see.
        """
        return constructors.to(self, device, dtype, non_blocking)

    def cpu(self) -> CSR:
        """``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: torch.device | int | None = None, non_blocking: bool = False) -> CSR:
        """On a CUDA device, torch's current one without a name; see ``to``."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def pin_memory(self) -> CSR:
        """In memory that a GPU copies from without waiting; needs a GPU, as torch's does."""
        return constructors.pin_memory(self)

    def add_self_loops(self, fill: float = 1.0) -> CSR:
        """With one self loop per node; see ``fusedmm.matrix.normalize.add_self_loops``."""
        return normalize.add_self_loops(self, fill)

    def gcn_norm(self, improved: bool = False, add_self_loops: bool = True) -> CSR:
        """``D^-1/2 (A + I) D^-1/2``; see ``fusedmm.matrix.normalize.gcn_norm``."""
        return normalize.gcn_norm(self, improved, add_self_loops)

    def cache_transpose(self) -> CSR:
        """Makes the transpose now, and returns self.

        Compiled and exported code needs it beforehand. Call it before a fork too, so that processes share it and
        none inherits a lock that is held. Conversion, transposition and gradients hang in a child forked after
        torch used its threads, as torch's own ``(x + x).sum()`` does: ``torch.set_num_threads(1)`` there helps.
        """
        self.transpose_half()
        return self

    def transpose_half(self) -> Half:
        """(ptr, idx, eid, plan) of the transpose, made on first use under a lock.

        Raises:
            RuntimeError: in compiled code of one graph, where a sort would run at every step.
        """
        if self.ptr_t is not None:
            return self.ptr_t, self.idx_t, self.eid_t, self.plan_t  # type: ignore[return-value]
        if torch.compiler.is_compiling():
            return outside(NO_TRANSPOSE, self.transpose_half)
        shared = shared_by(self)
        with shared.lock:
            if shared.half is None:
                shared.half = transpose(self.ptr, self.idx, self.eid, self.plan, self.n_cols)
            ptr, idx, eid, plan = shared.half
            self._set(idx_t=idx, eid_t=eid, plan_t=plan)
            if self.val is not None:
                self._permute_values()
            self._set(ptr_t=ptr)  # last: it is what others test, without the lock
        return shared.half

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _refresh(self) -> None:
        """For those who hand on what is kept of the values."""
        kept = self.val_here is not None or self.val_there is not None
        if kept and not torch.compiler.is_compiling() and written(self.val) != self._written:
            self._permute_values()

    def _permute_values(self) -> None:
        now = written(self.val)
        if self.val_here is None or now != self._written:
            self._set(val_here=constant(self.val, self.eid, self.val_here))
        self._set(val_there=None if self.eid_t is None else constant(self.val, self.eid_t, self.val_there))
        self._set(_written=now)  # last: it is what other threads test

    # ---- into other forms ----

    def to_dense(self) -> Tensor:
        """The dense matrix [rows, cols], or [rows, cols, heads]; float32 ones without values."""
        return constructors.to_dense(self)

    def to_torch(self, layout: torch.layout = torch.sparse_csr) -> Tensor:
        """As a torch sparse tensor (CSR, where repeated entries are added up, or COO); float32 ones without values.

        Raises:
            ValueError: values with heads, or another layout.
        """
        return constructors.to_torch(self, layout)

    def __matmul__(self, x: Tensor) -> Tensor:
        return constructors.times(self, x)

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
        constructors.settle(self, stored=True)
        self._permute_values()


from fusedmm.matrix import constructors, normalize  # noqa: E402  they make CSRs
