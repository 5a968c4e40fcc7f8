"""Layers that need no message per edge store none: no tensor that torch makes is of the size edges x channels."""

import pytest
import torch
from support.parity import ours
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from fusedmm.nn import res_gated_graph_conv

NODES, EDGES, C = 20, 2000, 16
DEG = torch.bincount(torch.tensor([1, 2, 3]))
KINDS = ["a"], [("a", "to", "a")]
LAYERS = {
    "GraphConv": lambda: ours.GraphConv(C, C),
    "GraphConv max": lambda: ours.GraphConv(C, C, aggr="max"),
    "LGConv": ours.LGConv,
    "SGConv": lambda: ours.SGConv(C, C, K=2),
    "APPNP": lambda: ours.APPNP(2, 0.1),
    "TAGConv": lambda: ours.TAGConv(C, C),
    "ChebConv": lambda: ours.ChebConv(C, C, 3),
    "RGCNConv": lambda: ours.RGCNConv(C, C, 3),
    "GENConv": lambda: ours.GENConv(C, C),
    "PNAConv": lambda: ours.PNAConv(C, C, ["mean", "max", "std"], ["identity", "linear"], DEG, towers=2),
    "SuperGATConv": lambda: ours.SuperGATConv(C, C),
    "HGTConv": lambda: ours.HGTConv(C, C, KINDS),
    "HANConv": lambda: ours.HANConv(C, C, KINDS),
}


class Largest(TorchDispatchMode):
    """Remembers the most numbers that one floating tensor has had."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                self.numbers = max(self.numbers, t.numel())
        return out


def step(name, layer, x, adj):
    """Forward and backward."""
    if name in ("HGTConv", "HANConv"):
        out = layer({"a": x}, {KINDS[1][0]: adj})["a"]
    else:
        out = layer(x, adj, *([torch.arange(EDGES, device=x.device) % 3] if name == "RGCNConv" else []))
    out.square().sum().backward()


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_of_the_size_edges_by_channels(name, device):
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES).to(device).cache_transpose()
    layer, x = LAYERS[name]().to(device), torch.randn(NODES, C, device=device, requires_grad=True)
    with Largest() as seen:
        step(name, layer, x, adj)
    assert 0 < seen.numbers < EDGES * C / 4, seen.numbers
    with Largest() as seen:  # which does see what there is to see
        fusedmm.sddmm(adj, x, x, op="add")
    assert seen.numbers >= EDGES * C


def test_gates_are_of_that_size_where_gradients_are_wanted(device, monkeypatch):
    """Of ResGatedGraphConv: the gates are kept, and without gradients, but for few of them, not even made."""
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES).to(device).cache_transpose()
    layer, x, kept = ours.ResGatedGraphConv(C, C).to(device), torch.randn(NODES, C, device=device), []
    with torch.no_grad():
        few = layer(x, adj)
        monkeypatch.setitem(res_gated_graph_conv.FEW, device, EDGES * C - 1)
        with Largest() as seen:
            torch.testing.assert_close(layer(x, adj), few)
    assert 0 < seen.numbers < EDGES * C / 4
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        torch.testing.assert_close(layer(x, adj), few)
    assert len({t.data_ptr() for t in kept if t.numel() >= EDGES * C / 4}) == 1
