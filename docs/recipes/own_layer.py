"""A layer of one's own: written as for PyG's MessagePassing, computed in one pass."""

import warnings

import torch

from fusedmm import data, nn


class Difference(nn.MessagePassing):
    """How much a node differs from its neighbours, each weighed by a number of its edge."""

    def __init__(self, size):
        super().__init__(aggr="mean")
        self.lin = torch.nn.Linear(size, size)

    def forward(self, x, edge_index, weight):
        return self.propagate(edge_index, x=self.lin(x), weight=weight)

    def message(self, x_j, weight):
        return weight.view(-1, 1) * x_j.relu()

    def update(self, out, x):
        return x - out


torch.manual_seed(0)
graph = data.digits()
edge_index, _ = graph.adj.to_edge_index()
weight = torch.rand(edge_index.shape[1], requires_grad=True)
layer = Difference(64)
with warnings.catch_warnings():
    warnings.simplefilter("error")  # a warning says where PyG has to compute the messages
    out = layer(graph.x, edge_index, weight)
out.square().mean().backward()
x = layer.lin(graph.x)
near = torch.zeros_like(x).index_add(0, edge_index[1], weight[:, None] * x.relu()[edge_index[0]])
torch.testing.assert_close(out, x - near / graph.adj.degree().clamp(min=1)[:, None], rtol=1e-4, atol=1e-4)
print(f"{edge_index.shape[1]} weights of edges get gradients of {weight.grad.norm():.4f}")
