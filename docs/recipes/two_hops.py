"""Two hops: a sparse product finds the neighbours of neighbours, and a layer reads both."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import data, nn

torch.manual_seed(0)
graph = data.digits()
A = graph.adj.with_values(torch.ones(graph.adj.nnz))
paths = (A @ A).remove_self_loops()  # the values count the paths of two steps
near = paths.scale(rows=1 / paths.sum(1).clamp(min=1))
print(f"{A.nnz} edges, {paths.nnz} pairs at two steps")

one, two, last = nn.GCNConv(64, 16, cached=True), nn.GCNConv(64, 16, normalize=False), torch.nn.Linear(32, 10)
parameters = [*one.parameters(), *two.parameters(), *last.parameters()]
optimiser = torch.optim.Adam(parameters, lr=0.02)
for _ in range(25):
    optimiser.zero_grad()
    out = last(torch.cat([one(graph.x, graph.adj), two(graph.x, near)], 1).relu())
    cross_entropy(out[graph.train], graph.y[graph.train]).backward()
    optimiser.step()
accuracy = (out.argmax(1) == graph.y)[graph.test].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.85
