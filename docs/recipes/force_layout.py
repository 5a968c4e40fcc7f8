"""Drawing a graph: springs along edges by one fused pass, repulsion of all from all."""

import torch

from fusedmm import CSR, data, fused

torch.manual_seed(0)
adj = data.stencil(8, 8).remove_self_loops()
place = torch.rand(64, 2)
everyone = CSR.from_dense(1 - torch.eye(64)).pattern()
step = 0.1
for _ in range(200):
    pull = fused(adj, place, score="sqdist", edge="sqrt(s)", message="sub")  # sum of |d| (p[i] - p[j])
    push = fused(everyone, place, score="sqdist", edge="1/(0.01+s)", message="sub")
    force = 0.02 * push - pull
    place = place + step * force / force.norm(dim=1, keepdim=True).clamp(min=1e-6)
    step *= 0.98

row, col, _ = adj.coo()
near = (place[row] - place[col]).norm(dim=1).mean()
far = torch.pdist(place).mean()
print(f"mean distance of neighbours {near:.3f}, of all pairs {far:.3f}")
assert near < 0.5 * far
