"""APPNP: a network of features alone, whose predictions walk over the graph."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import data, nn

torch.manual_seed(0)
graph = data.digits()
mlp = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
walk = nn.APPNP(K=5, alpha=0.1, cached=True)
optimiser = torch.optim.Adam(mlp.parameters(), lr=0.02)
for _ in range(30):
    optimiser.zero_grad()
    out = walk(mlp(graph.x), graph.adj)
    cross_entropy(out[graph.train], graph.y[graph.train]).backward()
    optimiser.step()

right = walk(mlp(graph.x), graph.adj).argmax(1) == graph.y
alone = mlp(graph.x).argmax(1) == graph.y
print(f"test accuracy {right[graph.test].float().mean():.3f}, without the walk {alone[graph.test].float().mean():.3f}")
assert right[graph.test].float().mean() > 0.85
assert right[graph.test].sum() > alone[graph.test].sum()
