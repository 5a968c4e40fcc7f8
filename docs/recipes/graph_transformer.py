"""A graph transformer: attention to neighbours, a feed-forward net, norms and residuals."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import data, nn


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.TransformerConv(width, width // heads, heads=heads, root_weight=False)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))

    def forward(self, x, adj):
        x = x + self.attention(self.norm1(x), adj)
        return x + self.net(self.norm2(x))


torch.manual_seed(0)
graph = data.digits()
into, blocks, out_of = torch.nn.Linear(64, 32), [Block(32, 4), Block(32, 4)], torch.nn.Linear(32, 10)
parameters = [p for module in (into, *blocks, out_of) for p in module.parameters()]
optimiser = torch.optim.Adam(parameters, lr=0.005)
for _ in range(20):
    optimiser.zero_grad()
    h = into(graph.x)
    for block in blocks:
        h = block(h, graph.adj)
    out = out_of(h)
    cross_entropy(out[graph.train], graph.y[graph.train]).backward()
    optimiser.step()
accuracy = (out.argmax(1) == graph.y)[graph.test].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.8
