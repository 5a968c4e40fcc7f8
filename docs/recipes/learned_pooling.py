"""DiffPool: soft groups of nodes are learned, and the graph of groups follows from two products."""

import torch

from fusedmm import CSR, nn

torch.manual_seed(0)
nodes, groups = 90, 3
group = torch.arange(nodes) * groups // nodes
edge = (torch.rand(nodes, nodes) < torch.where(group[:, None] == group, 0.3, 0.01)).float()
A = CSR.from_dense(edge)
x = torch.eye(groups)[group] + 0.8 * torch.randn(nodes, groups)
assign = nn.GCNConv(groups, groups)
optimiser = torch.optim.Adam(assign.parameters(), lr=0.05)
for _ in range(80):
    optimiser.zero_grad()
    s = assign(x, A).softmax(1)
    coarse = s.T @ (A @ s)  # [groups, groups]: edges between soft groups
    volume = s.T @ A.degree().float()[:, None]
    cut = 1 - (coarse.diagonal() / volume[:, 0]).mean()
    balance = (s.mean(0) - 1 / groups).square().sum()
    (cut + 5 * balance).backward()
    optimiser.step()
print(f"the share of edges between groups is {cut.item():.3f}, groups hold {s.detach().mean(0).tolist()}")
assert cut < 0.25
