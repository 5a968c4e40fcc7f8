"""LightGCN: recommending items to users by the mean of embeddings that were passed around."""

import torch
from torch.nn.functional import logsigmoid

from fusedmm import CSR, nn

torch.manual_seed(0)
users, items, tastes = 60, 40, 4
likes = torch.rand(users, items) < torch.where(
    torch.arange(users)[:, None] % tastes == torch.arange(items) % tastes, 0.6, 0.02
)
hidden = likes & (torch.rand(users, items) < 0.2)  # what the model has to find
user, item = (likes & ~hidden).nonzero().T
edges = torch.stack([torch.cat([user, item + users]), torch.cat([item + users, user])])
adj = CSR.from_edge_index(edges, size=users + items)

embedding = torch.nn.Parameter(0.1 * torch.randn(users + items, 16))
layer, optimiser = nn.LGConv(), torch.optim.Adam([embedding], lr=0.05)


def final():
    """The mean of what zero, one and two steps give."""
    one = layer(embedding, adj)
    return (embedding + one + layer(one, adj)) / 3


for _ in range(40):
    optimiser.zero_grad()
    h = final()
    negative = torch.randint(items, user.shape)
    better = (h[user] * (h[item + users] - h[negative + users])).sum(1)  # a liked item against any other
    (-logsigmoid(better).mean()).backward()
    optimiser.step()

scores = final()[:users] @ final()[users:].T
found, others = scores[hidden], scores[~likes]
auc = (found[:, None] > others).float().mean()
print(f"a hidden item is ranked above another one with probability {auc:.3f}")
assert auc > 0.85
