"""Models of PyG's layers, what they are called with, and how ours are compared with them."""

import copy
import warnings

import pytest
import torch

from fusedmm import nn as ours
from support.parity import on
from support.small_graph import NODES, features, graph

pyg = pytest.importorskip("torch_geometric.nn")

F, D = 6, 3  # of nodes, and of edges
EDGES = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")]
METADATA = ["paper", "author"], EDGES


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(F, F), torch.nn.ReLU(), torch.nn.Linear(F, F))


LAYERS = {  # each gives F features, and takes pairs of nodes where PyG's does
    "GCN": lambda m: m.GCNConv(F, F, add_self_loops=False),
    "GCN loops": lambda m: m.GCNConv(F, F),
    "SAGE": lambda m: m.SAGEConv(F, F, project=True),
    "SAGE learnt": lambda m: m.SAGEConv(F, F, aggr=["max", "softmax"], aggr_kwargs={"aggrs_kwargs": [{}, LEARNT]}),
    "GIN": lambda m: m.GINConv(mlp(), 0.3, True),
    "GINE": lambda m: m.GINEConv(mlp(), edge_dim=D),
    "GAT": lambda m: m.GATConv((F, F), 2, heads=3, edge_dim=D, add_self_loops=False),
    "GAT loops": lambda m: m.GATConv(F, F, heads=2, concat=False, residual=True),
    "GATv2": lambda m: m.GATv2Conv(F, 2, heads=3, edge_dim=D, add_self_loops=False),
    "Transformer": lambda m: m.TransformerConv(F, 2, heads=3, beta=True, edge_dim=D),
    "AGNN": lambda m: m.AGNNConv(add_self_loops=False),
    "Graph": lambda m: m.GraphConv(F, F),
    "TAG": lambda m: m.TAGConv(F, F, K=2),
    "ResGated": lambda m: m.ResGatedGraphConv(F, F, edge_dim=D),
    "GEN": lambda m: m.GENConv(F, F, norm="layer", edge_dim=D, msg_norm=True),
    "PNA": lambda m: m.PNAConv(
        F, F, ["mean", "std"], ["linear", "attenuation"], torch.tensor([1, 2, 3]), D, pre_layers=2
    ),
}
LEARNT = {"t": 0.7, "learn": True, "channels": F}
EDGED = ("GINE", "GAT", "GATv2", "Transformer", "ResGated", "GEN", "PNA")
ALONE = ("GCN", "GCN loops", "AGNN", "TAG", "PNA")  # one kind of nodes
LOOPED = ("GCN loops", "GAT loops")


class Net(torch.nn.Module):
    """Two layers, with what their edges carry."""

    def __init__(self, name):
        super().__init__()
        self.conv1, self.conv2, self.lin = LAYERS[name](pyg), LAYERS[name](pyg), pyg.Linear(F, 4)

    def forward(self, x, edge_index, *edge_attr):
        return self.lin(self.conv2(self.conv1(x, edge_index, *edge_attr).relu(), edge_index, *edge_attr))


class Edged(Net):
    """The same with a named argument, as torch.fx needs it."""

    def forward(self, x, edge_index, edge_attr):
        return self.lin(self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr))


class Plain(Net):
    def forward(self, x, edge_index):
        return self.lin(self.conv2(self.conv1(x, edge_index).relu(), edge_index))


def net(name, device="cpu"):
    torch.manual_seed(5)
    model = (Edged if name in EDGED else Plain)(name).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)  # biases and eps start at zero, which would hide them
    return model.to(device)


def swapped(model):
    """A copy with our layers."""
    done = ours.convert(copy.deepcopy(model), report=True)
    assert done.swapped and not done.left
    return done.model


def inputs(name, device="cpu"):
    attr = [features(40, D, seed=6)] if name in EDGED else []
    return on(device, [features(NODES, F), graph(loops=name != "AGNN"), *attr])


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def alike(found, expected):
    """Masks that were trained: on CUDA PyG adds messages up in any order, and training makes more of that."""
    close = {"rtol": 1e-9, "atol": 1e-11} if found.device.type == "cpu" else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found, expected, **close)


def with_gradients(model, args):
    """The result, and the gradients of all parameters that have one."""
    out = model(*args)
    total = sum(o.square().sum() for o in out.values()) if isinstance(out, dict) else out.square().sum()
    wanted = [p for p in model.parameters() if p.requires_grad]
    return out, [g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None]


def hetero_inputs(name, kinds, device="cpu"):
    attr = [{k: features(40, D, seed=7 + s) for s, k in enumerate(kinds)}] if name in EDGED else []
    x = {"paper": features(NODES, F), "author": features(NODES, F, seed=8)}
    nodes = {t for k in kinds for t in (k[0], k[2])}
    edges = {k: graph(loops=name != "AGNN", seed=s) for s, k in enumerate(kinds)}
    return on(device, [{t: x[t] for t in nodes}, edges, *attr])


def metadata(name):
    kinds = [("paper", "cites", "paper"), ("paper", "likes", "paper")] if name in (*ALONE, *LOOPED) else EDGES
    return ([t for t in METADATA[0] if any(t in k for k in kinds)], kinds)


def quiet(f, *args, **kwargs):
    torch.manual_seed(9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args, **kwargs)
