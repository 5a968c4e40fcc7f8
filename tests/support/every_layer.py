"""Every layer, small, with a graph for it."""

import torch

from fusedmm import nn

EDGES = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 1, 3]])  # in no order, with a loop
NODES = 4


def linear():
    return torch.nn.Linear(4, 4)


LAYERS = {  # what makes a layer, and the shape of what its edges carry
    "GCN": (lambda: nn.GCNConv(4, 4), None),
    "GCN cached": (lambda: nn.GCNConv(4, 4, cached=True), None),
    "GCN weights": (lambda: nn.GCNConv(4, 4), (5,)),
    "SAGE": (lambda: nn.SAGEConv(4, 4), None),
    "SAGE max": (lambda: nn.SAGEConv(4, 4, aggr="max"), None),
    "GIN": (lambda: nn.GINConv(linear()), None),
    "GINE": (lambda: nn.GINEConv(linear()), (5, 4)),
    "GAT": (lambda: nn.GATConv(4, 4), None),
    "GAT features": (lambda: nn.GATConv(4, 4, edge_dim=4), (5, 4)),
    "GATv2": (lambda: nn.GATv2Conv(4, 4), None),
    "Transformer": (lambda: nn.TransformerConv(4, 4), None),
    "AGNN": (lambda: nn.AGNNConv(), None),
    "Graph": (lambda: nn.GraphConv(4, 4), (5,)),
    "SG": (lambda: nn.SGConv(4, 4, K=2), None),
    "TAG": (lambda: nn.TAGConv(4, 4, K=2), None),
    "Cheb": (lambda: nn.ChebConv(4, 4, 3), None),
    "SuperGAT": (lambda: nn.SuperGATConv(4, 4), None),
    "ResGated": (lambda: nn.ResGatedGraphConv(4, 4), None),
    "GEN": (lambda: nn.GENConv(4, 4, norm="layer"), (5, 4)),
    "PNA": (lambda: nn.PNAConv(4, 4, ["mean", "max", "std"], ["identity", "linear"], torch.tensor([1, 2])), None),
}
WITHOUT_PARAMETERS = {
    "LG": (lambda: nn.LGConv(), None),
    "APPNP": (lambda: nn.APPNP(2, 0.1), None),
}
