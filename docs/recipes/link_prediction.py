"""Link prediction: a GCN whose dot products tell edges from pairs drawn at random."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fusedmm import CSR, data, nn, sddmm

torch.manual_seed(0)
graph = data.digits()
row, col, _ = graph.adj.coo()
hide = (torch.rand(len(row)) < 0.1) & (row < col)
both = torch.cat([(row * 1797 + col)[hide], (col * 1797 + row)[hide]])  # an edge is hidden in both directions
shown = ~torch.isin(row * 1797 + col, both)
adj = CSR.from_coo(row[shown], col[shown], shape=graph.adj.shape)
hidden = CSR.from_coo(row[hide], col[hide], shape=adj.shape)

layer = nn.GCNConv(64, 16, cached=True)
optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
truth = torch.cat([torch.ones(adj.nnz), torch.zeros(adj.nnz)])
for _ in range(25):
    optimiser.zero_grad()
    h = layer(graph.x, adj)
    drawn = CSR.from_coo(*torch.randint(1797, (2, adj.nnz)), shape=adj.shape)  # negative samples, new ones each time
    logits = torch.cat([sddmm(adj, h, h), sddmm(drawn, h, h)])
    binary_cross_entropy_with_logits(logits, truth).backward()
    optimiser.step()

h = layer(graph.x, adj).detach()
others = CSR.from_coo(*torch.randint(1797, (2, hidden.nnz)), shape=adj.shape)
auc = (sddmm(hidden, h, h)[:, None] > sddmm(others, h, h)).float().mean()
print(f"a hidden edge scores above a drawn pair with probability {auc:.3f}")
assert auc > 0.9
