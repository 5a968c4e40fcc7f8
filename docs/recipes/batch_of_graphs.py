"""Batches: many small graphs as one matrix, a vector for each graph, and the graphs again."""

import torch

from fusedmm import CSR, block_diag, messages, unbatch

torch.manual_seed(0)
sizes = [5, 8, 3, 10]
graphs = [CSR.from_edge_index(torch.randint(n, (2, 3 * n)), torch.rand(3 * n), n) for n in sizes]
batch = block_diag(graphs)
x = torch.randn(sum(sizes), 6)
h = batch @ x

owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
pool = CSR.from_coo(owner, torch.arange(sum(sizes)), shape=(len(sizes), sum(sizes)))  # row g holds graph g's nodes
mean = messages.segment(pool, h, "mean")
largest = messages.segment(pool, h, "max")
print("one row for each graph:", tuple(mean.shape))

for g, (graph, part) in enumerate(zip(graphs, x.split(sizes), strict=True)):
    torch.testing.assert_close(mean[g], (graph @ part).mean(0))
    torch.testing.assert_close(largest[g], (graph @ part).amax(0))
assert all(one.equal(other) for one, other in zip(unbatch(batch, sizes), graphs, strict=True))
