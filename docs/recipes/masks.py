"""Masks: computing for some nodes only, and attending to some nodes only."""

import torch

from fusedmm import attention, data, spmm

torch.manual_seed(0)
adj = data.rmat(8, 8)
nodes = adj.shape[0]
x = torch.randn(nodes, 4, 8)  # four heads
train = torch.rand(nodes) < 0.2

some = adj[train]  # the rows of the nodes that count, all columns
torch.testing.assert_close(spmm(some, x, reduce="mean"), spmm(adj, x, reduce="mean")[train])

row, col, _ = adj.coo()
visible = torch.rand(nodes) < 0.7
allowed = visible[col]  # one truth value for each edge
masked = attention(adj, x, x, x, mask=allowed)
inside = attention(adj[:, visible], x, x[visible], x[visible])  # the same graph without the other columns
torch.testing.assert_close(masked, inside)
print(f"{int(allowed.sum())} of {adj.nnz} edges are attended to; {some.shape[0]} of {nodes} rows were computed")
assert some.nnz < adj.nnz
