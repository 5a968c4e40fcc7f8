"""What is derived of a ``DistCSR``: self loops, the matrices that take rows to edges and back, and ``overlap``.

``DistCSR.makers`` has the first two in the place of what makes the same of a plain ``CSR``, and keeps them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fusedmm.distributed.matrix import DistCSR, columns_of
from fusedmm.distributed.ops import Plan, plan_of_part
from fusedmm.distributed.part import Home, Part
from fusedmm.matrix import normalize
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import _into_rows
from fusedmm.matrix.normalize import Looped
from fusedmm.matrix.structure import UNEVEN, plan_of


def _looped(adj: DistCSR) -> Looped[DistCSR]:
    """``normalize.with_loops``: rows gain entries in columns that their rank owns, and so nothing more travels."""
    part, home, ranks = adj.part, adj.home, adj.ranks
    if part.transposed:
        raise ValueError("self loops of a transposed DistCSR: add them before t()")
    if not torch.equal(home.rows, home.cols):
        raise ValueError("self loops need nodes that are rows and columns of the same ranks: equal offsets")
    made = normalize._make_looped(adj.local())
    others = made.others
    # Entries are numbered as those of the whole matrix would be: those that stay in their order, then all loops.
    ids = adj.edge_ids
    stay = ids if others is None else ids.index_select(0, others)
    lost = torch.ones_like(ids, dtype=torch.bool)
    lost[: lost.numel() if others is None else 0] = False
    if others is not None:
        lost[others] = False
    gone = torch.sort(ranks.gather_ragged(ids[lost])).values
    stay = stay - torch.searchsorted(gone, stay)
    kept, first = home.total - gone.numel(), int(home.rows[ranks.rank])
    loops = torch.arange(kept + first, kept + first + made.pattern.shape[0], device=adj.device)
    total = kept + int(home.rows[-1])
    looped = Home(ranks, home.rows, home.cols, torch.cat([stay, loops]), total, None)
    ptr, idx, eid, plan = made.pattern.ptr, made.pattern.idx, made.pattern.eid, made.pattern.plan
    if ranks.count > 1:
        plan = plan_of_part(ptr, idx, int(home.rows[-1]), total)
    plan = Plan.of(Part(looped, part.cols, None, eid, idx, plan, part.remote, False, part.split))
    columns = columns_of(home, idx)
    return Looped(DistCSR(ptr, columns, None, eid, plan, adj.none, adj.n_cols, rows_are=adj.rows_are), others)


def overlap(adj: DistCSR, how: str) -> DistCSR:
    """The same matrix, whose products add own columns while remote rows travel, and remote columns afterwards.

    It is faster where messages are large, and the one choice of this package that has other bits than one device: those
    of a sum follow from who owns which column. They are the same at every run with the same offsets, and errors keep
    their bound. It concerns ``spmm`` with sums, of x [n, F] in float32 or float64, and its gradients; what else is
    called with the matrix runs as before.

    Args:
        adj: the matrix, of whose entries the columns are stored once more, and values twice.
        how: "split", the only one; the same on all ranks.

    Returns:
        A matrix that shares the structure and the values of adj, as do those that are made of it: with self loops, with
        other values, transposed.

    Raises:
        TypeError: no ``DistCSR``.
        ValueError: another name.

    Example:
        >>> D = DistCSR.from_edges(torch.tensor([0, 1]), torch.tensor([1, 0]), None, torch.tensor([0, 2]), None)
        >>> fusedmm.spmm(fusedmm.distributed.overlap(D, "split"), torch.tensor([[1.], [2.]]))
        tensor([[2.],
                [1.]])
    """
    if not isinstance(adj, DistCSR):
        raise TypeError(f"overlap: adj must be a DistCSR, not {type(adj).__name__}")
    if how != "split":
        raise ValueError(f"overlap: how must be 'split', not {how!r}")
    plan, plan_t = (
        None if plan is None else Plan.of(replace(plan.part, split=True, halves=None))  # type: ignore[attr-defined]
        for plan in (adj.plan, adj.plan_t)
    )
    assert plan is not None
    made = DistCSR(
        adj.ptr, adj.idx, adj.val, adj.eid, plan, adj.none, adj.n_cols,
        adj.ptr_t, adj.idx_t, adj.eid_t, plan_t, adj.rows_are, adj.rows_are_t,
    )  # fmt: skip
    if adj.val is not None:
        made._permute_values()
    return made


def _edges_to_rows(adj: DistCSR) -> CSR:
    """``incidence.into_rows``: local, since edges lie with their rows; of a transpose they are fetched."""
    return _columns_of_edges(adj.t()).t() if adj.part.transposed else _as_part(adj, _into_rows(adj.local()))


def _as_part(adj: DistCSR, made: CSR) -> CSR:
    """A matrix of a rank's rows and edges, with the plan of one that all ranks have rows of."""
    ranks = adj.ranks
    if ranks.count == 1:
        return made
    total = sum(int(n) for n in ranks.gather(torch.tensor([made.idx.shape[0]], device=adj.device)))
    plan = plan_of_part(made.ptr, made.idx, int(adj.offsets[-1]), total)
    return CSR(
        made.ptr, made.idx, None, made.eid, plan, made.none, made.n_cols,
        made.ptr_t, made.idx_t, made.eid_t, made.plan_t,
    )  # fmt: skip


def _columns_of_edges(adj: DistCSR) -> CSR:
    """``incidence.from_columns``: rows of remote columns are fetched as for the matrix itself, and gradients of edges
    come to the owner of the column as values do."""
    if adj.part.transposed:
        return _edges_to_rows(adj.t()).t()
    home, part, (ptr_t, _, eid_t, plan_t) = adj.home, adj.part, adj.transpose_half()
    there: Part = plan_t.part  # type: ignore[attr-defined]
    ptr, idx = torch.arange(adj.nnz + 1, device=adj.device), adj.local().coo()[1].int()
    idx_t = eid_t.int() if eid_t.numel() else torch.arange(adj.nnz, dtype=torch.int32, device=adj.device)
    if adj.ranks.count == 1:
        plan, plan_t = plan_of(ptr, idx, adj.n_cols, False)[0], plan_of(ptr_t, idx_t, adj.nnz, False)[0]
    else:
        plan = plan_of_part(ptr, idx, home.total, home.total)
        plan_t = plan_of_part(ptr_t, idx_t, int(home.cols[-1]), home.total)
    here = Part(home, part.cols, None, adj.none, idx, plan, part.remote, False)
    arrived = Part(home, there.edges or there.cols, there.edges, eid_t, idx_t, plan_t, there.remote, True)
    return DistCSR(
        ptr, columns_of(home, idx), None, adj.none, Plan.of(here), adj.none, adj.n_cols,
        ptr_t, columns_of(home, idx_t), eid_t, Plan.of(arrived), UNEVEN, UNEVEN,
    )  # fmt: skip


def _mirrored(adj: DistCSR) -> bool:
    """Whether each entry (i, j) has its (j, i): on all ranks, since all of them have to choose the same pass."""
    ptr, _, _, plan = adj.transpose_half()
    here = torch.equal(adj.ptr, ptr) and torch.equal(adj.part.idx, plan.part.idx)  # type: ignore[attr-defined]
    return all(int(n) for n in adj.ranks.gather(torch.tensor([here], dtype=torch.int64, device=adj.device)))


MAKERS = {
    "loops": _looped,
    "others": lambda adj: _as_part(adj, normalize._without_loops(adj.local())),
    "old loops": lambda adj: normalize._old_loops(adj.local()),
    "incidence": _edges_to_rows,
    "gather": _columns_of_edges,
    "mirrored": _mirrored,
}
