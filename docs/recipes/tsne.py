"""t-SNE's gradient in two fused passes: attraction along the graph, repulsion between all."""

import torch

from fusedmm import CSR, data, fused

torch.manual_seed(0)
graph = data.digits()
chosen = torch.arange(300)
adj = graph.adj.subgraph(chosen).pattern()
P = adj.with_values(torch.full((adj.nnz,), 1 / adj.nnz))
everyone = CSR.from_dense(1 - torch.eye(300)).pattern()
y = torch.pca_lowrank(graph.x[:300], 2)[0] * 1e-1


def gradient(y, exaggeration):
    attraction = fused(P, y, score="sqdist", edge="a/(1+s)", message="sub")
    repulsion = fused(everyone, y, score="sqdist", edge="1/(1+s)**2", message="sub")
    total = fused(everyone, y, y, torch.ones(300, 2), score="sqdist", edge="1/(1+s)")[:, 0].sum()
    return exaggeration * attraction - repulsion / total


speed = torch.zeros_like(y)
for step in range(150):
    speed = 0.8 * speed - 50 * gradient(y, 8 if step < 60 else 1)
    y = y + speed
distance = torch.cdist(y, y).fill_diagonal_(torch.inf)
same = (graph.y[chosen][distance.argmin(1)] == graph.y[chosen]).float().mean()
print(f"the nearest point of the picture shows the same digit with probability {same:.3f}")
assert same > 0.75
