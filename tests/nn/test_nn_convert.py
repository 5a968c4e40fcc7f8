"""Swapping PyG's layers within a model: the same numbers, gradients, names and parameters; what is left says why."""

import copy
import pickle
import re

import pytest
import torch
import torch.nn.utils.prune
from support.parity import on
from support.small_graph import NODES, features, graph

import fusedmm
from fusedmm import nn as ours

pyg = pytest.importorskip("torch_geometric.nn")

F_IN, F_OUT, D = 5, 4, 3


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(F_IN, 6), torch.nn.ReLU(), torch.nn.Linear(6, F_OUT))


LAYERS = {
    "gcn": lambda: pyg.GCNConv(F_IN, F_OUT, improved=True),
    "gcn as it is": lambda: pyg.GCNConv(F_IN, F_OUT, normalize=False, bias=False, aggr="mean"),
    "gcn without loops": lambda: pyg.GCNConv(F_IN, F_OUT, add_self_loops=False),
    "sage": lambda: pyg.SAGEConv(F_IN, F_OUT, aggr="max", normalize=True, project=True),
    "sage alone": lambda: pyg.SAGEConv((F_IN, F_IN), F_OUT, root_weight=False, bias=False),
    "sage median": lambda: pyg.SAGEConv(F_IN, F_OUT, aggr=["median", "mul", "sum"]),
    "gin": lambda: pyg.GINConv(mlp(), 0.3, True),
    "gin constant": lambda: pyg.GINConv(mlp(), 0.3, aggr="mean"),
    "gine": lambda: pyg.GINEConv(mlp(), 0.3, True, edge_dim=D),
    "gine of nodes' size": lambda: pyg.GINEConv(mlp()),
    "gat": lambda: pyg.GATConv(F_IN, F_OUT, 3, negative_slope=0.1, edge_dim=D, residual=True, fill_value="max"),
    "gat merged": lambda: pyg.GATConv((F_IN, F_IN), F_OUT, 3, concat=False, add_self_loops=False, bias=False),
    "gatv2": lambda: pyg.GATv2Conv(F_IN, F_OUT, 3, edge_dim=D, share_weights=True, fill_value=0.5),
    "gatv2 merged": lambda: pyg.GATv2Conv(F_IN, F_OUT, 3, concat=False, bias=False, residual=True),
    "transformer": lambda: pyg.TransformerConv(F_IN, F_OUT, 3, beta=True, edge_dim=D),
    "transformer merged": lambda: pyg.TransformerConv(F_IN, F_OUT, 3, concat=False, bias=False, root_weight=False),
    "agnn": lambda: pyg.AGNNConv(),
    "graph": lambda: pyg.GraphConv((F_IN, F_IN), F_OUT, aggr="max", bias=False),
    "lg": lambda: pyg.LGConv(normalize=False),
    "sg": lambda: pyg.SGConv(F_IN, F_OUT, K=2, add_self_loops=False),
    "appnp": lambda: pyg.APPNP(3, 0.2, add_self_loops=False, aggr="mean"),
    "tag": lambda: pyg.TAGConv(F_IN, F_OUT, K=2, bias=False),
    "cheb": lambda: pyg.ChebConv(F_IN, F_OUT, 3, normalization=None),
    "res gated": lambda: pyg.ResGatedGraphConv(F_IN, F_OUT, torch.nn.Tanh(), edge_dim=D, root_weight=False),
    "res gated function": lambda: pyg.ResGatedGraphConv((F_IN, F_IN), F_OUT, torch.relu, bias=False),
    "gen": lambda: pyg.GENConv(F_IN, F_OUT, learn_t=True, t=0.3, edge_dim=D, norm="layer", num_layers=3, bias=True),
    "gen of nodes' size": lambda: pyg.GENConv(F_IN, F_IN, ["mean", "max"], msg_norm=True, eps=0.1, norm=None),
    "pna": lambda: pyg.PNAConv(F_IN, F_OUT, ["mean", "std"], ["linear"], torch.tensor([1, 2]), D, 2, 2, 2, act="prelu"),
    "pna learnt": lambda: pyg.PNAConv(F_IN, F_OUT, ["max"], ["attenuation"], torch.tensor([1, 2]), train_norm=True),
    "super gat": lambda: pyg.SuperGATConv(F_IN, F_OUT, 2, attention_type="SD", is_undirected=True).eval(),
    "rgcn": lambda: pyg.RGCNConv((F_IN, F_IN), F_OUT, 3, aggr="max", bias=False),
    "rgcn bases": lambda: pyg.RGCNConv(F_IN, F_OUT, 3, num_bases=2, root_weight=False),
    "fast rgcn": lambda: pyg.FastRGCNConv(F_IN, 10, 3, num_blocks=5),
    "agnn constant": lambda: pyg.AGNNConv(requires_grad=False, add_self_loops=False),
}


def given(layer):
    edged = isinstance(layer, pyg.GINEConv) or getattr(layer, "edge_dim", None) is not None
    if isinstance(layer, pyg.RGCNConv):
        x = features(NODES, F_IN)
        return [x if layer.in_channels == F_IN else (x, x), graph(), torch.arange(40) % 3]
    size = F_IN if isinstance(layer, pyg.GINEConv) and layer.lin is None else D
    return [features(NODES, F_IN), graph(), *([features(40, size)] if edged else [])]


def results(layer, inputs):
    out = layer(*inputs)
    wanted = [p for p in layer.parameters() if p.requires_grad]
    if not wanted:
        return [out]
    return [out, *torch.autograd.grad(out, wanted, features(*out.shape, seed=3).to(out.device), allow_unused=True)]


def random_state():
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_computes_the_same_with_the_same_parameters(name, device):
    peer = LAYERS[name]().double()
    for p in peer.parameters():
        torch.nn.init.normal_(p)
    peer = peer.to(device)
    inputs, before = on(device, given(peer)), dict(peer.named_parameters(remove_duplicate=False))
    expected, state = results(peer, inputs), copy.deepcopy(peer.state_dict())
    random = random_state()
    done = ours.convert(peer, report=True)
    assert all(map(torch.equal, random_state(), random))
    assert type(done.model) is getattr(ours, type(peer).__name__) and repr(done.model) == repr(peer)
    assert done.swapped == {"": type(peer).__name__} and done.left == {}
    assert "the model: now fusedmm.nn." in str(done)
    torch.testing.assert_close(results(done.model, inputs), expected, rtol=1e-10, atol=1e-12)
    assert {n: id(p) for n, p in done.model.named_parameters(remove_duplicate=False)} == {
        n: id(p) for n, p in before.items()
    }
    assert list(done.model.state_dict()) == list(state)
    torch.testing.assert_close(dict(done.model.state_dict()), dict(state), rtol=0, atol=0)
    for other in (copy.deepcopy(done.model), pickle.loads(pickle.dumps(done.model))):
        assert torch.equal(other(*inputs), done.model(*inputs))


class Mixed(torch.nn.Module):
    """Layers in places where models keep them, one of them twice, and one that we do not have."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GATConv(F_IN, F_OUT, 2, dropout=0.6)
        self.blocks = torch.nn.ModuleList([pyg.GCNConv(8, 8), pyg.ARMAConv(8, 8)])
        self.named = torch.nn.ModuleDict({"again": self.blocks[0], "last": pyg.TransformerConv(8, F_OUT)})
        self.head = pyg.Sequential("x, edge_index", [(pyg.SAGEConv(F_OUT, F_OUT), "x, edge_index -> x")])

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        for block in self.blocks:
            x = block(x, edge_index).relu()
        return self.head(self.named["last"](self.named["again"](x, edge_index), edge_index), edge_index)


def test_a_model_in_place(device):
    torch.manual_seed(0)
    model, *inputs = on(device, [Mixed().double().eval(), features(NODES, F_IN), graph()])
    model.first.att_src.requires_grad_(False)
    expected, names = results(model, inputs), list(model.state_dict())
    done = ours.convert(model, report=True)
    assert done.model is model and not model.first.training
    assert done.swapped == {
        "first": "GATConv",
        "blocks.0": "GCNConv",
        "named.again": "GCNConv",
        "named.last": "TransformerConv",
        "head.module_0": "SAGEConv",
    }
    assert done.left == {"blocks.1": "there is no ARMAConv here"}
    assert str(done).splitlines()[-1] == "blocks.1: left, there is no ARMAConv here"
    assert model.named["again"] is model.blocks[0] and isinstance(model.blocks[0], ours.GCNConv)
    assert list(model.state_dict()) == names and not model.first.att_src.requires_grad
    torch.testing.assert_close(results(model, inputs), expected, rtol=1e-10, atol=1e-12)
    again = ours.convert(model, report=True)
    assert again.swapped == {} and list(again.left) == ["blocks.1"]


def test_an_optimiser_made_before_goes_on(device):
    torch.manual_seed(0)
    model, x, edge_index = on(device, (pyg.GCN(F_IN, 8, 2, F_OUT).double(), features(NODES, F_IN), graph()))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    other = torch.optim.SGD(expected.parameters(), lr=0.1)
    ours.convert(model)
    for m, o in ((model, optimiser), (expected, other)):
        for _ in range(3):
            o.zero_grad()
            m(x, edge_index).square().sum().backward()
            o.step()
    torch.testing.assert_close(model(x, edge_index), expected(x, edge_index))


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT", "gatv2"])
def test_pygs_own_models(name, device):
    torch.manual_seed(0)
    options = {"v2": True} if name == "gatv2" else {}
    model = getattr(pyg, "GAT" if name == "gatv2" else name)(F_IN, 8, 3, F_OUT, norm="layer", jk="cat", **options)
    model, *inputs = on(device, [model.double(), features(NODES, F_IN), graph()])
    expected = results(model, inputs)
    done = ours.convert(model, report=True)
    assert list(done.swapped) == ["convs.0", "convs.1", "convs.2"] and done.left == {}
    torch.testing.assert_close(results(model, inputs), expected, rtol=1e-10, atol=1e-12)


def test_a_heterogeneous_model(device):
    torch.manual_seed(0)
    kinds = {
        ("paper", "cites", "paper"): pyg.GCNConv(F_IN, F_OUT),
        ("author", "writes", "paper"): pyg.SAGEConv((D, F_IN), F_OUT),
        ("paper", "by", "author"): pyg.GATConv((F_IN, D), F_OUT, add_self_loops=False),
    }
    model = pyg.HeteroConv(kinds).double().to(device)
    x = on(device, {"paper": features(NODES, F_IN), "author": features(NODES, D)})
    edges = on(device, {kind: graph(seed=s) for s, kind in enumerate(kinds)})
    expected = model(x, edges)
    done = ours.convert(model, report=True)
    assert sorted(done.swapped.values()) == ["GATConv", "GCNConv", "SAGEConv"] and done.left == {}
    torch.testing.assert_close(model(x, edges), expected)


@pytest.mark.parametrize("make", [lambda: pyg.GATConv(-1, F_OUT, 2), lambda: pyg.SAGEConv((-1, -1), F_OUT)])
def test_sizes_that_are_still_open(make, device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(make()).to(device)
    opened = copy.deepcopy(model)
    x, edge_index = on(device, (features(NODES, F_IN).float(), graph()))
    expected = opened[0](x, edge_index)
    assert ours.convert(opened, report=True).left == {} and ours.convert(model, report=True).left == {}
    torch.testing.assert_close(opened[0](x, edge_index), expected)
    assert opened[0].lin_l.in_channels == F_IN if hasattr(opened[0], "lin_l") else opened[0].lin.in_channels == F_IN
    assert model[0](x, edge_index).shape == expected.shape
    assert [p.shape for p in model.parameters()] == [p.shape for p in opened.parameters()]


# ---- what is left ----


class Changed(pyg.GATConv):
    """A user's own."""

    def message(self, x_j, alpha):
        return -super().message(x_j, alpha)


def hooked():
    layer = pyg.GATConv(F_IN, F_OUT)
    layer.register_message_forward_hook(lambda *_: None)
    return layer


def watched():
    layer = pyg.GATConv(F_IN, F_OUT)
    layer.register_forward_hook(lambda *_: None)
    return layer


def within():
    layer = pyg.GATConv(F_IN, F_OUT)
    layer.lin.register_forward_pre_hook(lambda *_: None)
    return layer


def aggregated():
    layer = pyg.SAGEConv(F_IN, F_OUT, aggr=["mean", "std"])
    layer.aggr_module.aggrs[1].register_forward_hook(lambda *_: None)
    return layer


def two_layers():
    options = {"in_channels": F_IN, "out_channels": F_IN, "num_layers": 2}
    return pyg.SAGEConv(F_IN, F_OUT, aggr="lstm", aggr_kwargs=options)


def replaced():
    layer = pyg.GATConv(F_IN, F_OUT)
    layer.lin = torch.nn.Linear(F_IN, F_OUT)
    return layer


def pruned():
    layer = pyg.GCNConv(F_IN, F_OUT)
    torch.nn.utils.prune.l1_unstructured(layer, "bias", 0.5)
    return layer


def widened():
    layer = pyg.GATConv(F_IN, F_OUT)
    layer.att_src = torch.nn.Parameter(torch.ones(1, 2, F_OUT))
    return layer


def named():
    layer = pyg.GCNConv(F_IN, F_OUT)
    layer.scale = torch.nn.Parameter(torch.ones(1))
    return layer


def explained():
    layer = pyg.GCNConv(F_IN, F_OUT)
    layer.explain = True
    return layer


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: pyg.SAGEConv(F_IN, F_OUT, aggr=pyg.QuantileAggregation(0.3)),
            "SAGEConv: aggr must be one of add, .*not Q",
        ),
        (lambda: pyg.SAGEConv(F_IN, F_OUT, aggr=["mean", pyg.QuantileAggregation(0.3)]), "SAGEConv: aggr must be one"),
        (two_layers, "its parameters are .*lstm.weight_ih_l1"),
        (lambda: pyg.GCNConv(F_IN, F_OUT, aggr=pyg.SumAggregation()), "GCNConv: aggr must be one of"),
        (lambda: pyg.GATConv(F_IN, F_OUT, aggr="max"), "GATConv: aggr must be 'add' or 'sum'"),
        (lambda: pyg.GCNConv(F_IN, F_OUT, flow="target_to_source"), "GCNConv: flow must be"),
        (lambda: pyg.GCNConv(F_IN, F_OUT, node_dim=0), "GCNConv: node_dim must be -2"),
        (lambda: pyg.GCNConv(F_IN, F_OUT, decomposed_layers=2), "decomposed_layers is not supported"),
        (lambda: Changed(F_IN, F_OUT), "a subclass of GATConv, whose changes would be lost"),
        (lambda: pyg.FeaStConv(F_IN, F_OUT), "there is no FeaStConv here"),
        (lambda: pyg.SuperGATConv(F_IN, F_OUT), "in training its loss of sampled edges is not computed here"),
        (hooked, "it has hooks"),
        (watched, "it has hooks"),
        (within, "its lin has hooks"),
        (aggregated, "its aggr_module has hooks"),
        (replaced, "its lin is a Linear of torch.nn"),
        (pruned, "it has hooks"),
        (widened, r"its att_src is \[1, 2, 4\], not \[1, 1, 4\]"),
        (named, "its parameters are .*scale.*not "),
        (explained, "an explainer is at work on it"),
    ],
)
def test_what_is_left_says_why_and_stays_as_it_was(make, text):
    layer = make()
    model = torch.nn.Sequential(layer)
    state = list(layer.state_dict())
    done = ours.convert(model, report=True)
    assert model[0] is layer and done.swapped == {} and list(done.left) == ["0"]
    assert re.search(text, done.left["0"])
    assert list(layer.state_dict()) == state


def test_models_without_pyg_and_things_that_are_none():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), ours.GCNConv(2, 2))
    done = ours.convert(model, report=True)
    assert (done.swapped, done.left, str(done)) == ({}, {}, "no layers of torch_geometric")
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not str"):
        ours.convert("model")


def test_layers_of_ones_own():
    """One of PyG's base is told of ours; one of ours is no layer of PyG."""

    class Theirs(pyg.MessagePassing):
        pass

    class Mine(ours.MessagePassing):
        pass

    layers = torch.nn.ModuleList([Theirs(), Mine()])
    done = ours.convert(layers, report=True)
    assert done.swapped == {} and done.left == {"0": "none of PyG's: its base could be fusedmm.nn.MessagePassing"}


@pytest.mark.parametrize("name", ["forward", "message"])
def test_a_layer_whose_method_was_replaced_is_left(name):
    peers = pytest.importorskip("torch_geometric.nn")
    layer = peers.GCNConv(6, 6)
    setattr(layer, name, getattr(layer, name))
    report = ours.convert(layer, report=True)
    assert report.model is layer and f"its {name} is not that of its class" in str(report)
    layer = peers.GCNConv(6, 6)
    layer.lin.forward = layer.lin.forward
    assert ours.convert(layer) is layer


def test_a_model_is_what_comes_back():
    """``model = convert(model)``, by the name that people try first."""
    model = torch.nn.Sequential(pyg.GCNConv(3, 2))
    assert fusedmm.convert is ours.convert and fusedmm.convert(model) is model
    assert type(model[0]) is ours.GCNConv
    layer = fusedmm.convert(pyg.GCNConv(3, 2))
    assert type(layer) is ours.GCNConv
    assert type(fusedmm.convert(layer, report=True)) is ours.Conversion
