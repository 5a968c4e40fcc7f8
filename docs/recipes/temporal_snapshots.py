"""Temporal graphs: a layer reads each snapshot, a recurrent cell remembers."""

import torch
from torch.nn.functional import mse_loss

from fusedmm import CSR, nn

torch.manual_seed(0)
nodes, times = 60, 8
snapshots = [CSR.from_edge_index(torch.randint(nodes, (2, 240)), size=nodes) for _ in range(times)]
inputs = [torch.randn(nodes, 1) for _ in range(times)]
# What has to be said after the last snapshot: what came from neighbours at the last two times.
wanted = (snapshots[-1] @ inputs[-1] + snapshots[-2] @ inputs[-2]) / 4

layer, cell, last = nn.GraphConv(1, 16), torch.nn.GRUCell(16, 16), torch.nn.Linear(16, 1)
parameters = [*layer.parameters(), *cell.parameters(), *last.parameters()]
optimiser = torch.optim.Adam(parameters, lr=0.02)
losses = []
for _ in range(60):
    optimiser.zero_grad()
    state = torch.zeros(nodes, 16)
    for adj, x in zip(snapshots, inputs, strict=True):
        state = cell(layer(x, adj), state)
    loss = mse_loss(last(state), wanted)
    loss.backward()  # through all snapshots
    optimiser.step()
    losses.append(loss.item())
print(f"squared error {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
assert losses[-1] < 0.3 * losses[0]
