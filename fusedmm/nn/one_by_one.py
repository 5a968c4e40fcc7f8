"""Aggregations that look at a node's neighbours one by one, so that all of them are stored: [edges, F].

median    of each channel, the lower one of two         mul    the product, which is 1 without neighbours
lstm      the last state of an LSTM over the neighbours in the order of the edges, and then over zeros up to the
          largest number of neighbours that a node has, as PyG has it
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, from_rows
from fusedmm.nn.adjacency import aggregate


def _rows(adj: CSR) -> Tensor:
    """The row of each entry, in the caller's order."""
    return from_rows(adj).idx.long()


def median(adj: CSR, x: Tensor, fill: float) -> Tensor:
    """[targets, F], of x [sources, F]; fill where there are no neighbours."""
    each, rows, degree = aggregate(from_columns(adj), x, "sum"), _rows(adj), adj.degree()
    if not adj.nnz:
        return x.new_full((adj.shape[0], x.shape[1]), fill) + 0 * each.sum()
    by_value = each.detach().sort(dim=0, stable=True).indices
    entry = by_value.gather(0, rows[by_value].sort(dim=0, stable=True).indices)  # of each place of rows sorted by value
    place = adj.ptr[:-1] + (degree - 1).clamp(min=0) // 2
    found = each.gather(0, entry.index_select(0, place.clamp(max=adj.nnz - 1)))
    return found.masked_fill(degree[:, None] == 0, fill)


def product(adj: CSR, x: Tensor) -> Tensor:
    """[targets, F], of x [sources, F]."""
    if adj._is_shared or (x.requires_grad and torch.is_grad_enabled()):  # whose gradient is a sum in a fixed order
        each = aggregate(from_columns(adj), x, "sum")
        each = each.index_select(0, adj.eid) if adj.eid.numel() else each
    else:
        each = x.index_select(0, adj.idx)
    return torch.segment_reduce(each, "prod", offsets=adj.ptr, axis=0, initial=1)


def last_state(adj: CSR, x: Tensor, lstm: torch.nn.LSTM) -> Tensor:
    """[targets, lstm's size], of x [sources, F]."""
    each, rows, degree = aggregate(from_columns(adj), x, "sum"), _rows(adj), adj.degree()
    steps: Any = int(adj._largest(degree))
    if not steps:
        return each.new_zeros(adj.shape[0], lstm.hidden_size) + 0 * each.sum()
    order = rows.sort(stable=True).indices
    step = torch.arange(adj.nnz, device=rows.device) - adj.ptr[:-1].repeat_interleave(degree)
    dense = each.new_zeros(adj.shape[0], steps, x.shape[1])
    dense = dense.index_put((rows.index_select(0, order), step), each.index_select(0, order))
    out: Tensor = lstm(dense)[0][:, -1]
    return out
