"""Graph classification: a network tells rings from stars."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import CSR, block_diag, nn

torch.manual_seed(0)


def graph(n, star):
    """Edges in both directions, of nodes in random order."""
    order = torch.randperm(n)
    ends = torch.stack([order[:1].expand(n - 1), order[1:]]) if star else torch.stack([order, order.roll(1)])
    return CSR.from_edge_index(torch.cat([ends, ends.flip(0)], 1), size=n)


sizes = torch.randint(5, 12, (80,))
y = torch.arange(80) % 2
adj = block_diag([graph(int(n), bool(star)) for n, star in zip(sizes, y, strict=True)])
owner = torch.repeat_interleave(torch.arange(80), sizes)
pool = CSR.from_coo(owner, torch.arange(len(owner)), shape=(80, len(owner)))
x = torch.ones(len(owner), 1)

conv, last = nn.GINConv(torch.nn.Linear(1, 16)), torch.nn.Linear(16, 2)
optimiser = torch.optim.Adam([*conv.parameters(), *last.parameters()], lr=0.02)
for _ in range(60):
    optimiser.zero_grad()
    h = conv(conv(x, adj).relu().mean(1, keepdim=True), adj).relu()
    out = last((pool @ h) / sizes[:, None])
    cross_entropy(out[:60], y[:60]).backward()
    optimiser.step()

accuracy = (out.argmax(1) == y)[60:].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.8
