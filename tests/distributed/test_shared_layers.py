"""Every layer takes shared rows unchanged, with the bits of one device up to what all ranks add up."""

import copy

import pytest
import torch
from distributed.graphs import CUTS, FEW, WIDE, normal
from support.ranks import Whole, both, require_equal

from fusedmm import nn


def linear():
    return torch.nn.Linear(8, 4)


LAYERS = {  # what makes a layer, and the width of what its edges carry
    "GCN": (lambda: nn.GCNConv(8, 4), {}),
    "GCN weights": (lambda: nn.GCNConv(8, 4), {"edge_weight": ()}),
    "GCN improved max": (lambda: nn.GCNConv(8, 4, improved=True, aggr="max"), {}),
    "GCN without loops": (lambda: nn.GCNConv(8, 4, add_self_loops=False), {}),
    "SAGE": (lambda: nn.SAGEConv(8, 4), {}),
    "SAGE max": (lambda: nn.SAGEConv(8, 4, aggr="max"), {}),
    "SAGE several": (lambda: nn.SAGEConv(8, 4, aggr=["mean", "std", "softmax", "max"]), {}),
    "GIN": (lambda: nn.GINConv(linear()), {}),
    "GINE": (lambda: nn.GINEConv(linear()), {"edge_attr": (8,)}),
    "GAT": (lambda: nn.GATConv(8, 4, heads=2), {}),
    "GAT dropout": (lambda: nn.GATConv(8, 4, heads=2, dropout=0.5), {}),
    "GAT mean": (lambda: nn.GATConv(8, 4, heads=2, concat=False, residual=True), {}),
    "GAT features": (lambda: nn.GATConv(8, 4, heads=2, edge_dim=3), {"edge_attr": (3,)}),
    "GATv2": (lambda: nn.GATv2Conv(8, 4, heads=2, dropout=0.3), {}),
    "GATv2 shared": (lambda: nn.GATv2Conv(8, 4, heads=2, share_weights=True), {}),
    "GATv2 features": (lambda: nn.GATv2Conv(8, 4, heads=2, edge_dim=3), {"edge_attr": (3,)}),
    "Transformer": (lambda: nn.TransformerConv(8, 4, heads=2), {}),
    "Transformer alone": (lambda: nn.TransformerConv(8, 4, heads=2, root_weight=False, dropout=0.2), {}),
    "Transformer features": (lambda: nn.TransformerConv(8, 4, heads=2, edge_dim=3), {"edge_attr": (3,)}),
    "AGNN": (lambda: nn.AGNNConv(), {}),
}


def run(whole, make, edges):
    torch.manual_seed(0)
    layer = make()
    parameters = {name.replace(".", "__"): ("p", p.detach()) for name, p in layer.named_parameters()}

    def compute(adj, x, **others):
        own = {name.replace("__", "."): t for name, t in others.items() if name in parameters}
        rest = {name: t for name, t in others.items() if name not in parameters}
        return torch.func.functional_call(copy.deepcopy(layer), own, (x, adj), rest)  # threads share the layer

    carried = {name: ("e", normal(whole.nnz, *width).abs()) for name, width in edges.items()}
    return both(whole, compute, {"x": ("r", normal(whole.shape[0], 8)), **carried, **parameters})


@pytest.mark.parametrize("cut", ["two even ranks", "a rank without rows", "mirrored"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, cut):
    require_equal(run(CUTS[cut](), *LAYERS[name]))


def require_near(pairs):
    for name, _, one, many in pairs:
        assert torch.allclose(one, many, rtol=1e-4, atol=1e-5 * float(one.abs().max() + 1)), name


@pytest.mark.parametrize("name", LAYERS)
def test_ranks_of_few_rows(name):
    """torch's dense products add up in an order that follows from the number of rows, where that is small."""
    require_near(run(CUTS["four ranks, edges with one"](), *LAYERS[name]))


def test_products_with_few_outputs():
    """The same where the result has few columns, as the gate of a transformer layer."""
    require_near(run(CUTS[FEW[0]](), lambda: nn.TransformerConv(8, 4, heads=2, beta=True), {}))


def test_pair_of_sources_and_targets():
    whole = Whole(*WIDE, (40, 90), [0, 16, 16, 40], [0, 48, 64, 90])
    rows, cols = whole.shape
    torch.manual_seed(0)
    for layer in (nn.SAGEConv((8, 6), 4), nn.GATConv((8, 6), 4, heads=2, add_self_loops=False)):
        given = {"x": ("c", normal(cols, 8)), "t": ("r", normal(rows, 6))}
        require_equal(both(whole, lambda adj, x, t, layer=layer: layer((x, t), adj), given))
