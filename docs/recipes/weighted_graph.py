"""Weighted graphs: weights of edges are learned, in the order of the edges."""

import torch
from torch.nn.functional import mse_loss

from fusedmm import CSR

torch.manual_seed(0)
nodes = 80
edges = torch.randint(nodes, (2, 320))
truth = torch.rand(320)
x = torch.randn(nodes, 32)
adj = CSR.from_edge_index(edges, size=nodes)
wanted = adj.with_values(truth) @ x

weight = torch.full((320,), 0.5, requires_grad=True)
optimiser = torch.optim.Adam([weight], lr=0.05)
for _ in range(150):
    optimiser.zero_grad()
    mse_loss(adj.with_values(weight) @ x, wanted).backward()
    optimiser.step()
error = (CSR.from_edge_index(edges, weight - truth, nodes).coalesce().val).abs().mean()
print(f"mean error of the weights {error:.4f}")
assert error < 0.02
