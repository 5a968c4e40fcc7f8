"""Batches of PyG's loaders go into our layers as they are, and give what they give in PyG's.

The loaders are PyG's. What draws the neighbours is a stand-in (``support.neighbours.Drawn``), since PyG's own needs
pyg-lib or torch-sparse, of which there are no wheels.
"""

import pytest
import torch
from support.neighbours import Drawn
from support.small_graph import features
from torch_geometric import nn as theirs
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader, NeighborLoader, RandomNodeLoader
from torch_geometric.nn import HeteroConv, to_hetero
from torch_geometric.utils import trim_to_layer

import fusedmm
from fusedmm import nn as ours

USERS, ITEMS, F = 40, 30, 6
KINDS = {"SAGEConv": {}, "GATConv": {"heads": 2, "add_self_loops": False}, "GraphConv": {}, "GATv2Conv": {"heads": 2}}


def edges(sources, targets, count, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (count,), generator=g) for n in (sources, targets)])


@pytest.fixture(params=[[4], [3, 2]], ids=["a hop", "two hops"])
def data(request):
    found = Data(x=features(USERS, F), edge_index=edges(USERS, USERS, 200, 1), y=torch.arange(USERS) % 3)
    return found, Drawn({("", "", ""): found.edge_index}, request.param)


@pytest.fixture
def hetero():
    found = HeteroData()
    found["user"].x, found["item"].x = features(USERS, F), features(ITEMS, F + 2, seed=2)
    found["user", "buys", "item"].edge_index = edges(USERS, ITEMS, 150, 3)
    found["item", "bought_by", "user"].edge_index = edges(ITEMS, USERS, 150, 4)
    found["user", "knows", "user"].edge_index = edges(USERS, USERS, 100, 5)
    return found, Drawn({kind: found[kind].edge_index for kind in found.edge_types}, [3, 2])


def pair(name, size, **options):
    """Our layer and PyG's with the same weights, in double."""
    mine, peer = (getattr(of, name)(size, 4, **(KINDS[name] | options)).double() for of in (ours, theirs))
    if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in peer.parameters()):
        torch.manual_seed(0)
    else:
        mine.load_state_dict(peer.state_dict())
    return mine, peer


def agree(mine, peer, layers):
    """Results, and gradients of all parameters."""
    torch.testing.assert_close(mine, peer)
    grads = [
        torch.autograd.grad(y.sin().sum(), layer.parameters()) for y, layer in zip((mine, peer), layers, strict=True)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", KINDS)
def test_batches_of_sampled_neighbours(name, data, device):
    graph, sampler = data
    layers = [layer.to(device) for layer in pair(name, F)]
    batches = 0
    for batch in NeighborLoader(graph, sampler.num_neighbors, batch_size=16, neighbor_sampler=sampler):
        batch, batches = batch.to(device), batches + 1
        assert batch.num_nodes < USERS + 1 and batch.batch_size <= 16
        agree(*(layer(batch.x, batch.edge_index)[: batch.batch_size] for layer in layers), layers)
        seeds = batch.edge_index[:, batch.edge_index[1] < batch.batch_size]  # a block: from all to the batch's own
        if name != "GATv2Conv":  # which adds self loops here
            agree(*(layer((batch.x, batch.x[: batch.batch_size]), seeds) for layer in layers), layers)
    assert batches == 3


def test_a_network_that_trims_its_batches(data, device):
    """Each layer reads one hop less; the sizes are those that the sampler tells."""
    graph, sampler = data
    hops = len(sampler.num_neighbors)
    nets = [torch.nn.ModuleList(of.SAGEConv(F, F).double() for _ in range(hops)).to(device) for of in (ours, theirs)]
    nets[0].load_state_dict(nets[1].state_dict())
    for batch in NeighborLoader(graph, sampler.num_neighbors, batch_size=16, neighbor_sampler=sampler):
        outs = []
        batch = batch.to(device)
        for net in nets:
            x, edge_index = batch.x, batch.edge_index
            for k, layer in enumerate(net):
                x, edge_index, _ = trim_to_layer(k, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index)
                x = layer(x, edge_index)
            outs.append(x[: batch.batch_size])
        agree(*outs, nets)


@pytest.mark.parametrize("name", ["SAGEConv", "GATConv", "GraphConv"])
@pytest.mark.parametrize("way", ["to_hetero", "HeteroConv"])
def test_batches_of_several_kinds(name, way, hetero, device):
    """A model of PyG, and the same converted."""
    graph, sampler = hetero
    options = KINDS[name]

    def model():
        torch.manual_seed(0)
        if way == "HeteroConv":
            return HeteroConv({kind: getattr(theirs, name)((-1, -1), 4, **options) for kind in graph.edge_types})
        layer = getattr(theirs, name)((-1, -1), 4, **options)
        return to_hetero(theirs.Sequential("x, edge_index", [(layer, "x, edge_index -> x")]), graph.metadata())

    peer, mine = model().double().to(device), model().double().to(device)
    whole = graph.to(device)
    with torch.no_grad():
        peer(whole.x_dict, whole.edge_index_dict), mine(whole.x_dict, whole.edge_index_dict)
    mine = fusedmm.convert(mine)
    mine.load_state_dict(peer.state_dict())
    assert any(isinstance(m, getattr(ours, name)) for m in mine.modules())
    loader = NeighborLoader(graph.cpu(), [3, 2], input_nodes=("user", None), batch_size=16, neighbor_sampler=sampler)
    for batch in loader:
        batch = batch.to(device)
        found, expected = (m(batch.x_dict, batch.edge_index_dict) for m in (mine, peer))
        torch.testing.assert_close(found, expected)
        agree(*(torch.cat([t.flatten() for t in out.values()]) for out in (found, expected)), (mine, peer))


@pytest.mark.parametrize("kind", ["HGTConv", "HANConv"])
def test_layers_of_kinds_take_batches(kind, hetero, device):
    graph, sampler = hetero
    sizes = {"user": F, "item": F + 2}
    layers = [getattr(of, kind)(sizes, 4, graph.metadata(), heads=2).double().to(device) for of in (ours, theirs)]
    layers[0].load_state_dict(layers[1].state_dict())
    for batch in NeighborLoader(graph, [3, 2], input_nodes=("user", None), batch_size=16, neighbor_sampler=sampler):
        batch = batch.to(device)
        found, expected = (layer(batch.x_dict, batch.edge_index_dict) for layer in layers)
        torch.testing.assert_close(found["user"], expected["user"])


def test_loaders_that_need_nothing_more(data, device):
    """Batches of whole graphs, and parts of one."""
    graph, _ = data
    layers = [layer.to(device) for layer in pair("SAGEConv", F)]
    small = [Data(x=features(n, F, seed=n), edge_index=edges(n, n, 3 * n, n)) for n in (3, 9, 5, 7)]
    for loader in (DataLoader(small, batch_size=3), RandomNodeLoader(graph, num_parts=4)):
        for batch in loader:
            batch = batch.to(device)
            agree(*(layer(batch.x, batch.edge_index) for layer in layers), layers)
