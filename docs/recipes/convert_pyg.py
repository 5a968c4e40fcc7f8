"""A PyG model as it is: one call puts our layers in the place of its own, with the same weights."""

import torch
from torch_geometric.nn import GAT

import fusedmm
from fusedmm import data

torch.manual_seed(0)
graph = data.digits()
row, col, _ = graph.adj.coo()
edge_index = torch.stack([col, row])
model = GAT(64, 16, num_layers=2, out_channels=10, heads=4).eval()
before = model(graph.x, edge_index)
print(fusedmm.convert(model, report=True))
after = model(graph.x, edge_index)
torch.testing.assert_close(after, before)
assert all(type(layer).__module__.startswith("fusedmm.") for layer in model.convs)
