"""A sparse matrix whose rows lie with several ranks, and that operators and layers take as they take a ``CSR``.

A rank holds its rows as a CSR. Its columns are numbered anew: those that the rank owns come first, and then those of
other ranks, whose rows of an operand are fetched when an operator runs. Entries stay in the order that they have in the
whole matrix, so that every row's sum is that of one device, bit by bit. The transpose is distributed in the same way,
by the owners of the columns: a gradient is the same product over it, and nobody adds up what others made.

What travels is said by the two plans (``ops.Plan``). All else of a CSR stays as it is, its cached structures too.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedmm.distributed.exchange import numbered, order_of, sent_to
from fusedmm.distributed.halo import Ranks, ranks_of
from fusedmm.distributed.ops import Columns, Plan, largest, plan_of_part, route
from fusedmm.distributed.part import Home, Part
from fusedmm.matrix.arguments import require_flags, require_range, require_same_device, require_values, require_vector
from fusedmm.matrix.compress import as_eid, pointers, rows_of
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import UNEVEN, Half, constant, lasting, plan_of, validate, was_measured, written
from fusedmm.matrix.transpose import transpose


class DistCSR(CSR):
    """A sparse matrix [rows, cols] whose rows are shared by the ranks of a mesh.

    Rank r owns the rows ``offsets[r] <= i < offsets[r + 1]`` and their entries, and the columns that ``col_offsets``
    gives it. It gives operators its rows of each operand, and gets its rows of the result; values and edge gradients
    are those of its own entries, in the order of ``edge_ids``. ``shape`` and ``nnz`` are this rank's.

    All ranks call the same operators in the same order, as with any collective: also a rank without rows, and also
    ``backward``.

    Attributes:
        offsets, col_offsets: int64 [ranks + 1], the first row and the first column of each rank.
        edge_ids: int64 [nnz], the global number of each of this rank's entries.
        ranks: who shares the matrix.

    Example:
        >>> from fusedmm.distributed import DistCSR
        >>> D = DistCSR.from_edges(torch.tensor([0, 1]), torch.tensor([1, 0]), None, torch.tensor([0, 2]), None)
        >>> fusedmm.spmm(D, torch.tensor([[1.], [2.]]))
        tensor([[2.],
                [1.]])
    """

    makers: ClassVar[dict[Any, Any]]  # those of derived.py

    # ---- making one ----

    @staticmethod
    def from_edges(
        row: Tensor,
        col: Tensor,
        val: Tensor | None,
        offsets: Tensor,
        mesh: Any,
        *,
        col_offsets: Tensor | None = None,
    ) -> DistCSR:
        """From edges that lie with any rank, which are brought to the owners of their rows.

        The matrix is the one that ``CSR.from_coo`` makes of the ranks' lists laid end to end.

        Args:
            row, col: integers [n], global numbers; row is the target. n may differ from rank to rank.
            val: [n] or [n, heads], floating, or None for ones on all ranks. Gradients reach it.
            offsets: int64 [ranks + 1], the first row of each rank, from 0 to the number of rows; the same on all ranks.
            mesh: a ``DeviceMesh``, or None for one rank.
            col_offsets: the same of columns; ``offsets`` where absent.

        Raises:
            TypeError, ValueError: as ``CSR.from_coo``, on all ranks; the text has the number of the rank that is wrong.

        Cost: a sort of the entries, and each edge travels once.
        """
        ranks = ranks_of(mesh)

        def check() -> tuple[Tensor, Tensor]:
            require_vector("row", row)
            require_vector("col", col)
            require_same_device(row=row, col=col, val=val)
            if row.numel() != col.numel():
                raise ValueError(f"row has {row.numel()} elements and col {col.numel()}")
            require_values(val, row.numel(), row.device)
            rows = _offsets("offsets", offsets, ranks)
            cols = rows if col_offsets is None else _offsets("col_offsets", col_offsets, ranks)
            require_range("row[{}]", row, int(rows[-1]))
            require_range("col[{}]", col, int(cols[-1]))
            return rows, cols

        rows, cols = ranks.together(check)
        _agree_on(ranks, rows, cols, val)
        owner = torch.searchsorted(rows.to(row.device), row.long().contiguous(), right=True) - 1
        exchange = sent_to(ranks, order_of(owner), torch.bincount(owner, minlength=ranks.count))
        counts = [int(n) for n in ranks.gather(torch.tensor([row.numel()], device=row.device))]
        first = sum(counts[: ranks.rank])
        number = torch.arange(first, first + row.numel(), device=row.device)
        (edges,) = exchange.fetch([torch.stack([row.long(), col.long(), number], 1)])
        local, column, edge_ids = (edges[:, 0] - rows[ranks.rank].to(row.device)), edges[:, 1], edges[:, 2].clone()
        order = torch.sort(local * cols[-1].to(row.device) + column, stable=True).indices
        home = Home(ranks, rows, cols, edge_ids, sum(counts), exchange)
        ptr = pointers(local, int(rows[ranks.rank + 1] - rows[ranks.rank]), order)
        eid = as_eid(order) if bool((order[1:] < order[:-1]).any()) else row.new_empty(0, dtype=torch.uint8)
        return _made(home, ptr, column.index_select(0, order), eid, None if val is None else route(home, val))

    @staticmethod
    def from_rows(
        ptr: Tensor,
        idx: Tensor,
        val: Tensor | None,
        offsets: Tensor,
        mesh: Any,
        *,
        col_offsets: Tensor | None = None,
        edge_ids: Tensor | None = None,
    ) -> DistCSR:
        """From the rows that each rank owns, as shards hold them.

        Args:
            ptr: integers [own rows + 1], where each of this rank's rows begins in idx.
            idx: integers [n], global columns, in the order that entries are to keep.
            val: [n] or [n, heads], or None on all ranks.
            offsets, mesh, col_offsets: as of ``from_edges``.
            edge_ids: int64 [n], the global numbers of the entries; counted over the ranks where absent.

        Raises:
            TypeError, ValueError: as ``CSR.from_csr``, on all ranks.
        """
        ranks = ranks_of(mesh)

        def check() -> tuple[Tensor, Tensor]:
            require_vector("ptr", ptr)
            require_vector("idx", idx)
            require_same_device(ptr=ptr, idx=idx, val=val, edge_ids=edge_ids)
            require_values(val, idx.numel(), idx.device)
            rows = _offsets("offsets", offsets, ranks)
            cols = rows if col_offsets is None else _offsets("col_offsets", col_offsets, ranks)
            own = int(rows[ranks.rank + 1] - rows[ranks.rank])
            if ptr.numel() != own + 1:
                raise ValueError(f"ptr has {ptr.numel()} elements for {own} rows; {own + 1} are needed")
            validate(ptr.long(), idx.new_zeros(idx.shape, dtype=torch.int32), 1)
            require_range("idx[{}]", idx, int(cols[-1]))
            if edge_ids is not None and edge_ids.shape != idx.shape:
                raise ValueError(f"edge_ids must be [{idx.numel()}], not {list(edge_ids.shape)}")
            return rows, cols

        rows, cols = ranks.together(check)
        _agree_on(ranks, rows, cols, val)
        counts = [int(n) for n in ranks.gather(torch.tensor([idx.numel()], device=idx.device))]
        first = sum(counts[: ranks.rank])
        if edge_ids is None:
            edge_ids = torch.arange(first, first + idx.numel(), device=idx.device)
        home = Home(ranks, rows, cols, edge_ids.long(), sum(counts), None)
        return _made(home, ptr.long().clone(), idx.long(), ptr.new_empty(0, dtype=torch.uint8), val)

    # ---- what it is ----

    @property
    def part(self) -> Part:
        """What travels when an operator runs on this matrix."""
        part: Part = self.plan.part  # type: ignore[attr-defined]
        return part

    @property
    def home(self) -> Home:
        """Which rank owns which nodes and edges."""
        return self.part.home

    @property
    def ranks(self) -> Ranks:
        """The ranks that share the matrix."""
        return self.home.ranks

    @property
    def offsets(self) -> Tensor:
        """The first row of each rank, int64 [ranks + 1]."""
        return self.home.cols if self.part.transposed else self.home.rows

    @property
    def col_offsets(self) -> Tensor:
        """The first column of each rank, int64 [ranks + 1]."""
        return self.home.rows if self.part.transposed else self.home.cols

    @property
    def edge_ids(self) -> Tensor:
        """The global number of each of this rank's edges, int64 [nnz]."""
        return self.home.edge_ids

    @property
    def nnz(self) -> int:
        """How many edges this rank has, which is how many values."""
        return self.home.nnz

    def edges(self) -> tuple[Tensor, Tensor]:
        """The global row and column of each of this rank's edges, int64 [nnz], in the order of ``edge_ids``.

        Raises:
            ValueError: of a transposed matrix, whose entries lie with others.
        """
        if self.part.transposed:
            raise ValueError("edges: those of a transposed DistCSR lie with the owners of its columns; ask before t()")
        row, col = self._global()
        if not self.eid.numel():
            return row, col
        order = self.eid.long()
        return torch.empty_like(row).scatter_(0, order, row), torch.empty_like(col).scatter_(0, order, col)

    def local(self) -> CSR:
        """This rank's rows as a plain pattern over the columns that it sees, remote ones behind its own."""
        part = self.part
        cols = self.n_cols + part.remote.numel()
        return CSR(self.ptr, part.idx, None, self.eid, part.plan, self.none, cols, rows_are=self.rows_are)

    def route(self, attr: Tensor) -> Tensor:
        """Brings what belongs to the edges that this rank gave to ``from_edges`` to the edges' owners.

        Args:
            attr: [n, ...], in the order of this rank's list.

        Returns:
            [nnz, ...], in the order of ``edge_ids``.

        Raises:
            ValueError: another number of edges, or a matrix that was made of rows.

        Gradient: reaches attr.
        """
        return route(self.home, attr)

    def __repr__(self) -> str:
        val = "none" if self.val is None else f"{str(self.val.dtype)[6:]}{list(self.val.shape)}"
        whole, ranks = (int(self.offsets[-1]), int(self.col_offsets[-1])), self.ranks
        return (
            f"DistCSR(rank {ranks.rank} of {ranks.count}: shape={self.shape} of {whole}, "
            f"nnz={self.nnz} of {self.home.total}, val={val}, device={self.device})"
        )

    # ---- what a part does in a way of its own ----

    def _global(self) -> tuple[Tensor, Tensor]:
        """The global row and column of each entry, in the order of the rows."""
        part, ranks = self.part, self.ranks
        first_row, first_col = int(self.offsets[ranks.rank]), int(self.col_offsets[ranks.rank])
        seen = torch.cat([torch.arange(first_col, first_col + self.n_cols, device=self.device), part.remote])
        row = rows_of(self.ptr, part.idx.shape[0]).long() + first_row
        return row, seen.index_select(0, part.idx)

    @lasting
    def _transposed(self) -> tuple[Half, int]:
        part, home, ranks = self.part, self.home, self.ranks
        if ranks.count == 1:
            half, rows_are = transpose(self.ptr, part.idx, self.eid, part.plan, self.n_cols, was_measured(self))
            ptr, idx, eid, plan = half
            there = Part(home, part.cols, None, eid, idx, plan, part.remote, True)
            return (ptr, idx, eid, Plan.of(there)), rows_are
        cols = home.cols.to(self.device)
        edges = sent_to(ranks, *part.by_owner())
        (came,) = edges.fetch([torch.stack(self._global(), 1)])
        edges.leave(part.edges_by_owner)  # which a matrix without values never asks for
        # What comes is in the order of the whole matrix's rows: sorted by column alone, it is its transpose.
        column, place = torch.sort(came[:, 1] - cols[ranks.rank], stable=True)
        ptr, eid = pointers(column, self.n_cols), as_eid(place)
        idx, exchange, remote = numbered(ranks, came[:, 0].index_select(0, place), home.rows)
        plan = plan_of_part(ptr, idx, int(home.cols[-1]), home.total)
        plan = Plan.of(Part(home, exchange, edges, eid, idx, plan, remote, True, part.split))
        return (ptr, idx.as_subclass(Columns), eid, plan), UNEVEN

    def constant_values(self, transposed: bool) -> Tensor | None:
        """Current values in the order of the matrix or of its transpose; None where kernels read val by eid.

        Values that travelled are kept only if nobody can write to them: ranks that counted writes each for itself could
        differ in whether to send anew.
        """
        plan: Any = self.plan_t if transposed else self.plan
        if not _travels(plan):
            return super().constant_values(transposed)
        name, val = "val_there" if transposed else "val_here", self.val
        if val is None or val.requires_grad:
            return None
        found: Tensor | None = getattr(self, name)
        if found is None:
            (came,) = plan.part.edges.fetch([val])
            found = came.index_select(0, plan.part.eid)
            if self._fixed:
                self._set(**{name: found})
        return found

    def _permute_values(self) -> None:
        now = written(self.val)
        if not _travels(self.plan) and (self.val_here is None or now != self._written):
            self._set(val_here=constant(self.val, self.eid, self.val_here))
        if not _travels(self.plan_t):
            self._set(val_there=None if self.eid_t is None else constant(self.val, self.eid_t, self.val_there))
        self._set(_written=now)

    # ---- what a part cannot do ----

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise TypeError("a DistCSR is made by from_edges or from_rows: this is not for a part of a matrix")
        super().__post_init__()

    @property
    def _is_shared(self) -> bool:  # type: ignore[override]
        return self.ranks.count > 1

    def _largest(self, t: Tensor) -> Tensor:
        if self.ranks.count == 1:
            return super()._largest(t)
        return largest(self.ranks, t)

    def _regrouped(self, row: Tensor, rows: int) -> CSR:
        if self.ranks.count == 1:
            return super()._regrouped(row, rows)
        ranks, (_, col) = self.ranks, self.edges()
        order = torch.sort(row * self.col_offsets[-1].to(row.device) + col, stable=True).indices
        counts = ranks.gather(torch.tensor([rows], device=row.device))
        offsets = torch.nn.functional.pad(torch.cat(counts).cumsum(0), (1, 0)).cpu()
        home = Home(ranks, offsets, self.col_offsets, self.edge_ids, self.home.total, None)
        return _made(home, pointers(row, rows, order), col.index_select(0, order), as_eid(order), None)

    def to(self, device: Any = None, dtype: torch.dtype | None = None, non_blocking: bool = False) -> DistCSR:
        """With values of another dtype.

        Raises:
            TypeError: non_blocking is neither True nor False.
            ValueError: another device, to which the edges must be brought before.
        """
        require_flags("to", non_blocking=non_blocking)
        if device is not None and torch.device(device) != self.device:
            raise ValueError("a DistCSR stays on its device: make it of edges on another one")
        return self if self.val is None else self.with_values(self.val.to(dtype))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a DistCSR cannot be pickled or copied: it belongs to its ranks' processes; save the edges")


def _travels(plan: Tensor | None) -> bool:
    """Whether edge data come to a half from other ranks."""
    return isinstance(plan, Plan) and plan.part.edges is not None


def _offsets(name: str, offsets: Tensor, ranks: Ranks) -> Tensor:
    require_vector(name, offsets)
    found = offsets.detach().to("cpu", torch.int64)
    if found.numel() != ranks.count + 1:
        raise ValueError(f"{name} must have {ranks.count + 1} elements for {ranks.count} ranks, not {found.numel()}")
    falls = (found[1:] < found[:-1]).nonzero()
    if int(found[0]) or falls.numel():
        where = int(falls[0]) + 1 if falls.numel() else 0
        raise ValueError(f"{name} must rise from 0: {name}[{where}] = {int(found[where])}")
    return found


def _agree_on(ranks: Ranks, rows: Tensor, cols: Tensor, val: Tensor | None) -> None:
    """Raises where ranks were given other offsets or other kinds of values."""
    digest = hashlib.sha256(torch.cat([rows, cols]).numpy().tobytes()).hexdigest()[:16]
    kind = "none" if val is None else f"{val.dtype}{list(val.shape[1:])}"
    sizes = f"{int(rows[-1])} rows and {int(cols[-1])} columns, offsets of digest {digest}"
    ranks.same(f"a matrix of {sizes}, values {kind}")


@lasting
def _made(home: Home, ptr: Tensor, col: Tensor, eid: Tensor, val: Tensor | None) -> DistCSR:
    """The matrix of this rank's rows, whose entries stand in columns of global numbers."""
    ranks, none = home.ranks, ptr.new_empty(0, dtype=torch.uint8)
    own = int(home.cols[ranks.rank + 1] - home.cols[ranks.rank])
    idx, exchange, remote = numbered(ranks, col, home.cols)
    if ranks.count == 1:
        plan, rows_are = plan_of(ptr, idx, own, True)
    else:  # which kernel runs must not follow from one rank's rows; renumbered columns do not rise, which is UNEVEN
        plan, rows_are = plan_of_part(ptr, idx, int(home.rows[-1]), home.total), UNEVEN
    part = Part(home, exchange, None, eid, idx, plan, remote, False)
    adj = DistCSR(ptr, columns_of(home, idx), val, eid, Plan.of(part), none, own, rows_are=rows_are)
    if val is not None:
        adj._permute_values()
    return adj


def columns_of(home: Home, idx: Tensor) -> Tensor:
    """idx as others see it: on one rank its numbers are those of the matrix."""
    return idx if home.ranks.count == 1 else idx.as_subclass(Columns)
