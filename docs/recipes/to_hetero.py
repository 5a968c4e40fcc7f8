"""to_hetero: a model of one kind of nodes becomes one of many, with our layers in it."""

import torch
import torch_geometric.nn
from torch_geometric.data import HeteroData

import fusedmm


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch_geometric.nn.SAGEConv((-1, -1), 8)
        self.second = torch_geometric.nn.SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


torch.manual_seed(0)
graph = HeteroData()
graph["user"].x, graph["film"].x = torch.randn(50, 5), torch.randn(30, 4)
graph["user", "saw", "film"].edge_index = torch.stack([torch.randint(50, (200,)), torch.randint(30, (200,))])
graph["film", "seen_by", "user"].edge_index = graph["user", "saw", "film"].edge_index.flip(0)

model = torch_geometric.nn.to_hetero(Net(), graph.metadata())
theirs = model(graph.x_dict, graph.edge_index_dict)
ours = fusedmm.convert(model)(graph.x_dict, graph.edge_index_dict)
print({kind: tuple(out.shape) for kind, out in ours.items()})
for kind, out in ours.items():
    torch.testing.assert_close(out, theirs[kind])
