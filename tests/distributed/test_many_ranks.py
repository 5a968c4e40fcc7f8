"""Sixty-four ranks, simulated: each is a thread with its own plan, and the exchange is replayed by indexing. Their bits
are those of one device, and they send what a partition's report foretold."""

import pytest
import torch
from distributed.graphs import normal
from support.machine import real_graph
from support.ranks import on_ranks

import fusedmm
from fusedmm.data import load_npz
from fusedmm.distributed import DistCSR, partition

RANKS, WIDTH = 64, 12


@pytest.mark.parametrize("method", ["random", "nnz"])
def test_bits_and_bytes_of_sixty_four_ranks(method, threads):
    threads(1)  # of each rank
    part = partition(load_npz(real_graph("cora")).adj, RANKS, method)
    adj, offsets = part.apply(part.adj).pattern(), part.offsets
    row, col = (t.long() for t in adj.coo()[:2])
    nodes, edges = adj.shape[0], adj.nnz
    val, x, q = normal(edges), normal(nodes, WIDTH), normal(nodes, 3, 4)

    def compute(adj, val, x, q):
        x = x.clone().requires_grad_()
        y = fusedmm.spmm(adj.with_values(val), x)
        return y, fusedmm.attention(adj, q, q, q), x

    y, out, leaf = compute(adj, val, x, q)
    (y * x).sum().backward()

    def work(ranks):
        own, mine = slice(*offsets[ranks.rank : ranks.rank + 2].tolist()), slice(ranks.rank, None, RANKS)
        shared = DistCSR.from_edges(row[mine], col[mine], None, offsets, ranks)
        routed = shared.route(val[mine])
        before = ranks.bytes
        fusedmm.spmm(shared, x[own])
        sent = ranks.bytes - before
        y, out, leaf = compute(shared, routed, x[own], q[own])
        (y * x[own]).sum().backward()
        return y.detach(), out, leaf.grad, torch.tensor([sent, shared.part.remote.numel()])

    *found, counts = (list(t) for t in zip(*on_ranks(RANKS, work), strict=True))
    for expected, parts in zip((y, out, leaf.grad), found, strict=True):
        assert torch.equal(torch.cat(parts), expected)
    load = next(load for load in part.loads(WIDTH) if load.ranks == RANKS)
    sent, halo = torch.stack(counts).T
    assert (
        int(sent.sum()) == load.wire_bytes and int(sent.max()) == 4 * WIDTH * load.sent and int(halo.max()) == load.halo
    )
