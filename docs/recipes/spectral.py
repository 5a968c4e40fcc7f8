"""Spectral clustering: the smoothest vectors of a graph, by repeated products."""

import torch

from fusedmm import CSR

torch.manual_seed(0)
nodes, groups = 150, 3
group = torch.arange(nodes) % groups
chance = torch.where(group[:, None] == group, 0.3, 0.02)
upper = (torch.rand(nodes, nodes) < chance).triu(1)
A = CSR.from_dense((upper | upper.T).float())
S = A.gcn_norm()
basis = torch.linalg.qr(torch.randn(nodes, groups)).Q
for _ in range(60):
    basis = torch.linalg.qr(S @ basis).Q  # subspace iteration

points = torch.nn.functional.normalize(basis)
centres = points[:groups]  # a node of each group
found = torch.cdist(points, centres).argmin(1)
right = (found == group).float().mean()
print(f"{right:.3f} of the nodes lie nearest to their own group's first node")
assert right > 0.95
