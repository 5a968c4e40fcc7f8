"""torch.compile: two layers and what lies between them as one graph, for graphs of any size."""

import torch

import fusedmm
from fusedmm import data, nn


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GCNConv(8, 16), nn.GATConv(16, 4, heads=2)

    def forward(self, x, adj):
        return self.second(self.first(x, adj).relu(), adj)


torch.manual_seed(0)
model = Net()
# "aot_eager" spares this short script the compiler proper; leave it out for the speed.
compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
for nodes in (50, 80):
    adj = fusedmm.prepare(data.uniform(nodes, nodes, 6 * nodes), model)  # self loops, weights, the transpose
    x = torch.randn(nodes, 8)
    out = compiled(x, adj)
    out.sum().backward()
    torch.testing.assert_close(out, model(x, adj))
print(f"compiled, with gradients: {tuple(out.shape)}")
assert model.first.lin.weight.grad is not None
