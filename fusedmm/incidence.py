"""The matrices that take rows from nodes to edges and back, for layers that compute on every edge.

With edges in the caller's order, ``into_rows(A)`` [rows, nnz] sums what stands on a row's entries, and
``from_columns(A)`` [nnz, cols] puts the row of each entry's column there. Each is the transpose of what
the other is for A's transpose, so their gradients are SpMMs too, which add in a fixed order where the
gradient of an ``index_select`` adds with atomics. All of it is index arithmetic on A: no sort.
"""

from __future__ import annotations

import torch

from fusedmm._lib import ops
from fusedmm.csr import CSR
from fusedmm.structure import lasting


@lasting
def into_rows(adj: CSR) -> CSR:
    """[rows, nnz]: has a 1 at (i, p) where entry p of the caller's order is in row i. Kept beside the structure.

    Raises:
        ValueError: 2^31 entries or more.
        RuntimeError: in compiled code, for a structure not yet seen outside of it.
    """
    shared = getattr(adj, "_shared", None)  # matrices made within compiled code have none
    known = None if shared is None else shared.derived.get("incidence")
    if known is not None:
        return known
    if torch.compiler.is_compiling():
        raise RuntimeError("edge features need this CSR's incidence: call the layer once before the compiled code")
    if adj.nnz >= 2**31:
        raise ValueError(f"edge features need fewer than 2^31 edges, not {adj.nnz}")
    edges = torch.arange(adj.nnz + 1, device=adj.device)
    number = adj.eid if adj.eid.numel() else edges[:-1].int()
    row = adj.coo()[0].int()
    known = CSR(
        adj.ptr, number, None, adj.eid, ops._plan(adj.ptr, number), adj.none, adj.none, adj.nnz,
        edges, row, adj.none, ops._plan(edges, row), adj.none,
    )  # fmt: skip
    adj._shared.derived["incidence"] = known
    return known


def from_rows(adj: CSR) -> CSR:
    """[nnz, rows]: has a 1 at (p, i) where entry p of the caller's order is in row i.

    Raises:
        ValueError, RuntimeError: as ``into_rows``.
    """
    return into_rows(adj).t()


def from_columns(adj: CSR) -> CSR:
    """[nnz, cols]: has a 1 at (p, j) where entry p of the caller's order is in column j.

    Raises:
        ValueError, RuntimeError: as ``into_rows``.
    """
    shared = getattr(adj, "_shared", None)
    known = None if shared is None else shared.derived.get("gather")
    if known is None:
        known = into_rows(adj.t()).t()
        adj._shared.derived["gather"] = known
    return known
