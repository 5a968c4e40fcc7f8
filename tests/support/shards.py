"""Graphs, the shards that are written of them, and what these must be."""

import numpy as np
import torch

from fusedmm.distributed import ShardWriter


def graph(rows, cols, n, seed=0):
    """(row, col): unsorted, repeated, most of them in few rows; the last row has a tenth of all, some have none."""
    rng = np.random.default_rng(seed)
    row, col = (rows * rng.random(n) ** 3).astype(int), (cols * rng.random(n) ** 2).astype(int)
    row[: n // 10] = rows - 1
    return torch.from_numpy(row), torch.from_numpy(col)


def write(folder, row, col, val=None, shape=(30, 20), offsets=(0, 7, 7, 21, 30), piece=None, **nodes):
    with ShardWriter(folder, *shape, list(offsets)) as writer:
        for at in range(0, max(len(row), 1), piece or max(len(row), 1)):
            own = slice(at, at + (piece or len(row)))
            writer.add_edges(row[own], col[own], None if val is None else val[own])
        for name, array in nodes.items():
            for part in array.split(piece or max(len(array), 1)):
                writer.add_nodes(**{name: part})
    return folder


def require_whole(shards, adj, ranks, nodes=None):
    """The ranks' rows laid end to end are the matrix, bit by bit, and so are the arrays of nodes."""
    locals_ = [shards.local(rank, ranks) for rank in range(ranks)]
    eid = adj.eid.long() if adj.eid.numel() else torch.arange(adj.nnz)
    ends = torch.tensor([0, *(local.ptr[-1] for local in locals_)]).cumsum(0)
    for rank, local in enumerate(locals_):
        first, last = local.offsets[rank : rank + 2].tolist()
        assert local.ptr.dtype == local.idx.dtype == local.edge_ids.dtype == local.offsets.dtype == torch.int64
        assert torch.equal(local.ptr + ends[rank], adj.ptr[first : last + 1])
        for name, array in (nodes or {}).items():
            assert torch.equal(local.nodes[name], array[first:last]) and local.nodes[name].dtype == array.dtype
    assert locals_[0].offsets[-1] == adj.shape[0] and len(locals_[0].offsets) == ranks + 1
    assert torch.equal(torch.cat([local.idx for local in locals_]), adj.idx.long())
    assert torch.equal(torch.cat([local.edge_ids for local in locals_]), eid)
    if adj.val is None:
        assert all(local.val is None for local in locals_)
    else:
        assert torch.equal(torch.cat([local.val for local in locals_]), adj.val[eid])
