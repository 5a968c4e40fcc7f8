"""RGCN: edges of several kinds, each with weights of its own."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import nn

torch.manual_seed(0)
nodes = 300
edges = torch.randint(nodes, (2, 1800))
kind = torch.randint(3, (1800,))
x = torch.randn(nodes, 4)
# The label of a node is decided by its neighbours along edges of kind 1 alone.
total = torch.zeros(nodes).index_add(0, edges[1, kind == 1], x[edges[0, kind == 1], 0])
y = (total > 0).long()

first, last = nn.RGCNConv(4, 16, num_relations=3), torch.nn.Linear(16, 2)
optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
for _ in range(60):
    optimiser.zero_grad()
    out = last(first(x, edges, kind).relu())
    cross_entropy(out[:200], y[:200]).backward()
    optimiser.step()

accuracy = (out.argmax(1) == y)[200:].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.75
