"""Heterogeneous graphs: PyG's HeteroData and HeteroConv with our layers in them."""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv

from fusedmm import nn

torch.manual_seed(0)
graph = HeteroData()
graph["author"].x, graph["paper"].x = torch.randn(40, 8), torch.randn(300, 6)
graph["author", "writes", "paper"].edge_index = torch.stack([torch.randint(40, (900,)), torch.randint(300, (900,))])
graph["paper", "cites", "paper"].edge_index = torch.randint(300, (2, 600))
graph["paper", "written_by", "author"].edge_index = graph["author", "writes", "paper"].edge_index.flip(0)
writers = graph["author", "writes", "paper"].edge_index
y = (torch.zeros(300).index_add(0, writers[1], graph["author"].x[writers[0], 0]) > 0).long()

conv = HeteroConv(
    {
        ("author", "writes", "paper"): nn.SAGEConv((-1, -1), 16),
        ("paper", "cites", "paper"): nn.GATConv(-1, 16, add_self_loops=False),
        ("paper", "written_by", "author"): nn.SAGEConv((-1, -1), 16),
    },
    aggr="sum",
)
conv(graph.x_dict, graph.edge_index_dict)  # sizes of -1 are taken from the first input
last = torch.nn.Linear(16, 2)
optimiser = torch.optim.Adam([*conv.parameters(), *last.parameters()], lr=0.02)
for _ in range(60):
    optimiser.zero_grad()
    out = last(conv(graph.x_dict, graph.edge_index_dict)["paper"].relu())
    cross_entropy(out[:200], y[:200]).backward()
    optimiser.step()

accuracy = (out.argmax(1) == y)[200:].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.75
