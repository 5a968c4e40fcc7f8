"""Every layer takes shared rows unchanged, with the bits of one device up to what all ranks add up."""

import copy
from contextlib import nullcontext

import pytest
import torch
from distributed.graphs import CUTS, FEW, WIDE, normal
from support.ranks import Rounded, Whole, both, require_equal, require_near

from fusedmm import nn
from fusedmm.distributed import DistCSR


def linear():
    return torch.nn.Linear(8, 4)


def pna(**options):
    aggregators, scalers = ["mean", "max", "std"], ["identity", "amplification"]
    return nn.PNAConv(8, 4, aggregators, scalers, torch.tensor([0, 3, 9, 4]), **options)


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
    "Graph": (lambda: nn.GraphConv(8, 4), {"edge_weight": ()}),
    "Graph mean": (lambda: nn.GraphConv(8, 4, aggr="mean"), {}),
    "LG": (lambda: nn.LGConv(), {"edge_weight": ()}),
    "SG": (lambda: nn.SGConv(8, 4, K=2), {}),
    "APPNP": (lambda: nn.APPNP(3, 0.1), {"edge_weight": ()}),
    "TAG": (lambda: nn.TAGConv(8, 4, K=2), {"edge_weight": ()}),
    "Cheb": (lambda: nn.ChebConv(8, 4, K=3), {}),
    "Cheb plain": (lambda: nn.ChebConv(8, 4, K=3, normalization=None), {}),
    "Cheb weights": (lambda: nn.ChebConv(8, 4, K=3, normalization="rw"), {"edge_weight": ()}),
    "ResGated": (lambda: nn.ResGatedGraphConv(8, 4), {}),
    "ResGated features": (lambda: nn.ResGatedGraphConv(8, 4, edge_dim=3), {"edge_attr": (3,)}),
    "GEN": (lambda: nn.GENConv(8, 4, norm="layer"), {}),
    "GEN features": (lambda: nn.GENConv(8, 4, norm="layer", edge_dim=3, aggr="max"), {"edge_attr": (3,)}),
    "GEN features softmax": (lambda: nn.GENConv(8, 4, norm="layer", edge_dim=3), {"edge_attr": (3,)}),
    "PNA": (lambda: pna(), {}),
    "PNA features": (lambda: pna(edge_dim=3), {"edge_attr": (3,)}),
    "SuperGAT": (lambda: nn.SuperGATConv(8, 4, heads=2).eval(), {}),
    "SuperGAT scaled": (lambda: nn.SuperGATConv(8, 4, heads=2, attention_type="SD").eval(), {}),
    "RGCN": (lambda: nn.RGCNConv(8, 4, 3), {"edge_type": ()}),
    "RGCN fast": (lambda: nn.FastRGCNConv(8, 4, 3), {"edge_type": ()}),
    "SAGE lstm": (lambda: nn.SAGEConv(8, 4, aggr="lstm"), {}),
    "SAGE median": (lambda: nn.SAGEConv(8, 4, aggr="median"), {}),
    "SAGE mul": (lambda: nn.SAGEConv(8, 4, aggr="mul"), {}),
}


def run(whole, make, edges, mode=Rounded, features=1):
    torch.manual_seed(0)
    layer = make()
    parameters = {name.replace(".", "__"): ("p", p.detach()) for name, p in layer.named_parameters()}

    def compute(adj, x, **others):
        own = {name.replace("__", "."): t for name, t in others.items() if name in parameters}
        rest = {name: t for name, t in others.items() if name not in parameters}
        if "edge_type" in edges:
            rest["edge_type"] = types[adj.edge_ids] if isinstance(adj, DistCSR) else types
        return torch.func.functional_call(copy.deepcopy(layer), own, (x, adj), rest)  # threads share the layer

    types = torch.arange(whole.nnz) * 5 % 3
    carried = {n: ("e", normal(whole.nnz, *width).abs()) for n, width in edges.items() if n != "edge_type"}
    return both(
        whole, compute, {"x": ("r", normal(whole.shape[0], 8)), **carried, **parameters}, mode=mode, features=features
    )


# Of a rank's pairs of a type and a target, and so of x's gradient; of messages, which ranks do not have.
OTHER_ORDER = ("RGCN", "RGCN fast", "ResGated")


@pytest.mark.parametrize("cut", ["two even ranks", "a rank without rows", "mirrored"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, cut):
    pairs = run(CUTS[cut](), *LAYERS[name])
    (require_near if name in OTHER_ORDER else require_equal)(pairs)


@pytest.mark.parametrize("name", LAYERS)
def test_ranks_of_few_rows(name):
    """torch's dense products add up in an order that follows from the number of rows, above all where that is small."""
    require_near(run(CUTS["four ranks, edges with one"](), *LAYERS[name], mode=nullcontext))


def test_products_with_few_outputs():
    """The same where the result has few columns, as the gate of a transformer layer."""
    require_near(run(CUTS[FEW[0]](), lambda: nn.TransformerConv(8, 4, heads=2, beta=True), {}, mode=nullcontext))


def hetero(layer, whole):
    torch.manual_seed(0)
    kinds = [("a", "to", "b"), ("a", "of", "b"), ("b", "to", "a")]
    made = layer(8, 4, (["a", "b"], kinds), heads=2)

    def compute(adj, a, b):
        found = made({"a": a, "b": b}, {kinds[0]: adj, kinds[1]: adj, kinds[2]: adj.t()})
        return found["a"], found["b"]

    given = {"a": ("c", normal(whole.shape[1], 8)), "b": ("r", normal(whole.shape[0], 8))}
    return both(whole, compute, given, "cr", mode=Rounded)


def test_kinds_of_nodes():
    whole = Whole(*WIDE, (40, 90), [0, 16, 16, 40], [0, 48, 64, 90])
    require_equal(hetero(nn.HGTConv, whole))


def test_layers_that_need_all_nodes_refuse():
    with pytest.raises(TypeError, match="HANConv: weights are means over all nodes"):
        hetero(nn.HANConv, CUTS["two even ranks"]())
    with pytest.raises(TypeError, match="GENConv: norm='batch' needs all nodes"):
        run(CUTS["two even ranks"](), lambda: nn.GENConv(8, 4), {})


def test_every_layer_is_tried():
    tried = {type(make()) for make, _ in LAYERS.values()} | {nn.HGTConv, nn.HANConv}
    layers = {each for each in vars(nn).values() if isinstance(each, type) and issubclass(each, torch.nn.Module)}
    assert layers - tried == set()


def test_pair_of_sources_and_targets():
    whole = Whole(*WIDE, (40, 90), [0, 16, 16, 40], [0, 48, 64, 90])
    rows, cols = whole.shape
    torch.manual_seed(0)
    for layer in (nn.SAGEConv((8, 6), 4), nn.GATConv((8, 6), 4, heads=2, add_self_loops=False)):
        given = {"x": ("c", normal(cols, 8)), "t": ("r", normal(rows, 6))}
        require_equal(both(whole, lambda adj, x, t, layer=layer: layer((x, t), adj), given, mode=Rounded))
