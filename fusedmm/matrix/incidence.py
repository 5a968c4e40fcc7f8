"""The matrices that take rows from nodes to edges and back, for layers that compute on every edge.

With edges in the caller's order, ``into_rows(A)`` [rows, nnz] sums what stands on a row's entries, and
``from_columns(A)`` [nnz, cols] puts the row of each entry's column there. Each is the transpose of what
the other is for A's transpose, so their gradients are SpMMs too, which add in a fixed order where the
gradient of an ``index_select`` adds with atomics. All of it is index arithmetic on A: no sort.
"""

from __future__ import annotations

import torch

from fusedmm._lib import ops
from fusedmm.matrix.base import M
from fusedmm.matrix.structure import derived, lasting

NOT_SEEN = (
    "edge features and sddmm's elementwise forms need this CSR's incidence: call the layer or operator once before the "
    "compiled code; an exported program, which gets another CSR at every call, has none"
)


def into_rows(adj: M) -> M:
    """Returns the matrix [rows, nnz] that has a 1 at (i, p) where entry p of the caller's order is in row i. Kept
    beside the structure.

    Raises:
        ValueError: 2^31 entries or more.
        RuntimeError: in compiled code of one graph, for a structure not yet seen outside of it.
    """
    return derived(adj, "incidence", NOT_SEEN, _into_rows)


@lasting
def _into_rows(adj: M) -> M:
    if adj.nnz >= 2**31:
        raise ValueError(f"edge features need fewer than 2^31 edges, not {adj.nnz}")
    edges = torch.arange(adj.nnz + 1, device=adj.device)
    number = adj.eid if adj.eid.numel() else edges[:-1].int()
    row = adj.coo()[0].int()
    return type(adj)(
        adj.ptr, number, None, adj.eid, ops._plan(adj.ptr, number), adj.none, adj.nnz,
        edges, row, adj.none, ops._plan(edges, row),
    )  # fmt: skip


def sums_of_entries(adj: M, transposed: bool = False) -> M:
    """Returns ``into_rows`` of adj, or of its transpose, without the other half; where entries have numbers of their
    own nothing is made."""
    return derived(adj, ("sums", transposed), NOT_SEEN, _sums_of_entries, transposed)


@lasting
def _sums_of_entries(adj: M, transposed: bool) -> M:
    ptr, _, eid, plan = adj.transpose_half() if transposed else (adj.ptr, adj.idx, adj.eid, adj.plan)
    number = eid if eid.numel() else torch.arange(adj.nnz, dtype=torch.int32, device=adj.device)
    return type(adj)(ptr, number, None, adj.none, plan, adj.none, adj.nnz)


def from_rows(adj: M) -> M:
    """Returns the matrix [nnz, rows] that has a 1 at (p, i) where entry p of the caller's order is in row i.

    Raises:
        ValueError, RuntimeError: as ``into_rows``.
    """
    return into_rows(adj).t()


def from_columns(adj: M) -> M:
    """Returns the matrix [nnz, cols] that has a 1 at (p, j) where entry p of the caller's order is in column j.

    Raises:
        ValueError, RuntimeError: as ``into_rows``.
    """
    return derived(adj, "gather", NOT_SEEN, lambda adj: into_rows(adj.t()).t())
