"""Edge classification: features of both ends and of the edge itself tell its class."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import CSR, messages, nn

torch.manual_seed(0)
nodes, count = 120, 900
edges = torch.randint(nodes, (2, count))
x, attr = torch.randn(nodes, 4), torch.randn(count, 2)
y = ((x[edges[0], 0] * x[edges[1], 1] + attr[:, 0]) > 0).long()
adj = CSR.from_edge_index(edges, size=nodes)

conv = nn.SAGEConv(4, 16)
of_source, of_target, of_edge = torch.nn.Linear(20, 32), torch.nn.Linear(20, 32), torch.nn.Linear(2, 32)
last = torch.nn.Linear(32, 2)
parts = (conv, of_source, of_target, of_edge, last)
optimiser = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=0.01)
for _ in range(120):
    optimiser.zero_grad()
    h = torch.cat([x, conv(x, adj).relu()], 1)
    ends = messages.u_add_v(adj, of_source(h), of_target(h))  # one row for each edge, in their order
    out = last((ends + of_edge(attr)).relu())
    cross_entropy(out[:700], y[:700]).backward()
    optimiser.step()
accuracy = (out.argmax(1) == y)[700:].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.75
