"""PNA: several aggregations side by side, scaled by the degree, learn what one of them cannot."""

import torch
from torch.nn.functional import mse_loss

from fusedmm import data, nn

torch.manual_seed(0)
adj = data.rmat(8, 6)
degree = torch.bincount(adj.degree())  # how many nodes have so many neighbours
x = torch.rand(adj.shape[0], 1)
y = adj.pattern() @ x  # the sum: the mean of the neighbours, times their number

losses = {}
for name, scalers in {"scaled": ["identity", "amplification"], "plain": ["identity"]}.items():
    layer = nn.PNAConv(1, 1, ["mean", "max", "std"], scalers, degree)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss = mse_loss(layer(x, adj), y)
        loss.backward()
        optimiser.step()
    losses[name] = loss.item()
print(f"squared error {losses['scaled']:.2f} with scalers, {losses['plain']:.2f} without")
assert losses["scaled"] < 0.7 * losses["plain"]
