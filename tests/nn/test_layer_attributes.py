"""What PyG reads of a layer when it is called: honoured here, or refused by name, as replaced methods."""

import copy
import re

import pytest
import torch
from support.machine import ROOT
from support.parity import make, on, ours, theirs
from support.small_graph import NODES, features, graph, weights
from torch_geometric.explain.algorithm.utils import set_masks

from fusedmm.nn.layer import FIXED, METHODS

F, D = 5, 3
ARGS = {
    "GCNConv": (F, F),
    "SAGEConv": (F, F),
    "GINConv": (lambda: torch.nn.Linear(F, F),),
    "GINEConv": (lambda: torch.nn.Linear(F, F),),
    "GATConv": (F, F),
    "GATv2Conv": (F, F),
    "TransformerConv": (F, F),
    "AGNNConv": (),
    "GraphConv": (F, F),
    "LGConv": (),
    "SGConv": (F, F),
    "APPNP": (3, 0.1),
    "TAGConv": (F, F),
    "ChebConv": (F, F, 3),
    "RGCNConv": (F, F, 3),
    "FastRGCNConv": (F, F, 3),
    "ResGatedGraphConv": (F, F),
    "GENConv": (F, F),
    "SuperGATConv": (F, F),
    "PNAConv": (F, F, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([1, 2, 3])),
}
RELATED = ["RGCNConv", "FastRGCNConv"]
WEIGHED = ["GCNConv", "GraphConv", "LGConv", "SGConv", "APPNP", "TAGConv", "ChebConv"]
VALUES = {"aggr": "max", "flow": "target_to_source", "node_dim": 1, "decomposed_layers": 2}


def layer(name, module=ours, device="cpu", **options):
    return make(module, name, *ARGS[name], **options).to(device)


def inputs(name, device="cpu", edged=False):
    attr = [features(40, F if name == "GINEConv" else D)] if edged or name == "GINEConv" else []
    types = [torch.arange(40) % 3] if name in RELATED else []
    return on(device, [features(NODES, F), graph(), *attr, *types])


@pytest.mark.parametrize("attribute", FIXED)
@pytest.mark.parametrize("name", ARGS)
def test_what_is_fixed_says_so_and_stays(name, attribute, device):
    mine, peer, args = layer(name, device=device), layer(name, theirs), inputs(name, device)
    before = mine(*args)
    if attribute != "aggr_module":
        assert getattr(mine, attribute) == getattr(peer, attribute)
        setattr(mine, attribute, getattr(peer, attribute))
    value = VALUES.get(attribute, theirs.aggr.MaxAggregation())
    with pytest.raises(ValueError, match=f"^{name}: {attribute} cannot be set to {re.escape(repr(value))}, it is "):
        setattr(mine, attribute, value)
    assert torch.equal(mine(*args), before) and list(mine.state_dict()) == list(peer.state_dict())


@pytest.mark.parametrize("method", [*METHODS, "explain_message"])
@pytest.mark.parametrize("name", ARGS)
def test_methods_that_are_never_called_are_refused(name, method, device):
    kind, text = getattr(ours, name), f"{method} is never called, .* derive from torch_geometric.nn.{name} for it"
    mixin = type("Mixin", (), {method: lambda self, *args: args[0]})
    for bases, members in ((kind,), {method: lambda self, *args: args[0]}), ((mixin, kind), {}):
        with pytest.raises(TypeError, match=f"^Mine: {text}"):
            type("Mine", bases, members)
    if method not in METHODS:  # that one is called, of a layer, while an explainer is at work
        return
    mine, args = layer(name, device=device), inputs(name, device)
    before = mine(*args)
    later = lambda: setattr(kind, method, print)  # noqa: E731
    for act in (lambda: getattr(mine, method)(*args), lambda: setattr(mine, method, print), later):
        with pytest.raises(TypeError, match=f"^{name}: {text}"):
            act()
    assert torch.equal(mine(*args), before)


@pytest.mark.parametrize("attribute", FIXED)
def test_what_is_fixed_can_be_no_property(attribute):
    with pytest.raises(TypeError, match=f"^Mine: {attribute} is chosen when a layer is made, and can be no property"):
        type("Mine", (ours.SAGEConv,), {attribute: property(lambda self: "target_to_source")})


MAPS = [
    ("GATv2Conv", "lin_l"),
    ("GATv2Conv", "lin_r"),
    ("TransformerConv", "lin_key"),
    ("TransformerConv", "lin_query"),
]
MAPS += [("TransformerConv", "lin_query"), ("GATConv", "lin"), ("GCNConv", "lin"), ("SAGEConv", "lin_l")]


@pytest.mark.parametrize("name, where", MAPS)
def test_a_map_of_another_class_takes_the_place_of_ours(name, where, device):
    """A plain linear map, and one that knows no sizes, as adapters of large models are."""
    mine, peer, args = layer(name, device=device), layer(name, theirs, device), inputs(name, device)
    bias = getattr(peer, where).bias is not None
    for make_map in (torch.nn.Linear, lambda *size, bias: torch.nn.Sequential(torch.nn.Linear(*size, bias=bias))):
        put = make_map(F, F, bias=bias).double().to(device)
        for one in (mine, peer):
            setattr(one, where, copy.deepcopy(put))
        torch.testing.assert_close(mine(*args), peer(*args), rtol=1e-10, atol=1e-12)


def test_a_projection_that_was_not_made_is_none(device):
    """PyG's layer asks for the map before it uses it, whatever project says later."""
    mine, peer, args = layer("SAGEConv", device=device), layer("SAGEConv", theirs, device), inputs("SAGEConv", device)
    mine.project = peer.project = True
    torch.testing.assert_close(mine(*args), peer(*args), rtol=1e-10, atol=1e-12)
    mine.reset_parameters()


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_more_columns_than_there_are_numbers_for(name):
    with pytest.raises(ValueError, match=rf"^{name}: heads \* out_channels must be positive and below 2\^31, not"):
        getattr(ours, name)(4, 2**30, heads=2**30)


def test_entries_that_a_torch_matrix_repeats_are_as_many_edges(device):
    """docs/pyg.md says so; PyG adds them up, which coalesce does here too."""
    where = torch.tensor([[0, 0, 1], [1, 1, 0]], device=device)
    twice = torch.sparse_coo_tensor(where, torch.ones(3, device=device, dtype=torch.float64), (2, 2))
    mine, peer = layer("SAGEConv", device=device), layer("SAGEConv", theirs, device)
    x = torch.randn(2, F, dtype=torch.float64, device=device)
    torch.testing.assert_close(mine(x, twice.coalesce()), peer(x, twice), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(mine(x, twice), mine(x, where.flip(0)), rtol=1e-10, atol=1e-12)


def test_a_subclass_may_replace_what_is_called(device):
    class Mine(ours.GCNConv):
        def forward(self, x, edge_index):
            return 2 * super().forward(x, edge_index)

    torch.manual_seed(0)
    mine, peer, args = Mine(F, F).double().to(device), layer("GCNConv", theirs, device), inputs("GCNConv", device)
    mine.load_state_dict(peer.state_dict())
    torch.testing.assert_close(mine(*args), 2 * peer(*args))
    for one in (mine, peer):
        set_masks(one, features(40).to(device), args[1])
    torch.testing.assert_close(mine(*args), 2 * peer(*args))


HONOURED = [
    ("GCNConv", {}, "improved", True),
    ("GCNConv", {}, "add_self_loops", False),
    ("GCNConv", {}, "normalize", False),
    ("GCNConv", {}, "bias", None),
    ("GCNConv", {}, "fuse", False),
    ("SAGEConv", {}, "normalize", True),
    ("SAGEConv", {}, "root_weight", False),
    ("SAGEConv", {"project": True}, "project", False),
    ("GINConv", {}, "eps", torch.tensor([0.5])),
    ("GINEConv", {}, "eps", torch.tensor([0.5])),
    ("AGNNConv", {}, "add_self_loops", False),
    *((name, {"heads": 2, "bias": False}, "concat", False) for name in ("GATConv", "GATv2Conv")),
    *((name, {}, "negative_slope", 0.7) for name in ("GATConv", "GATv2Conv")),
    *((name, {}, "add_self_loops", False) for name in ("GATConv", "GATv2Conv")),
    *((name, {"edge_dim": D}, "fill_value", "max") for name in ("GATConv", "GATv2Conv")),
    *((name, {}, "dropout", 1.0) for name in ("GATConv", "GATv2Conv", "TransformerConv")),
    ("GATv2Conv", {}, "share_weights", True),
    *((name, {}, "normalize", False) for name in ("LGConv", "APPNP", "TAGConv")),
    *((name, {}, "add_self_loops", False) for name in ("SGConv", "APPNP")),
    *((name, {}, "K", 2) for name in ("SGConv", "APPNP")),
    ("APPNP", {}, "alpha", 0.7),
    ("APPNP", {}, "dropout", 1.0),
    ("ChebConv", {}, "normalization", "rw"),
    ("ResGatedGraphConv", {}, "act", torch.nn.Tanh()),
    ("ResGatedGraphConv", {}, "root_weight", False),
    ("GENConv", {}, "eps", 0.1),
    ("SuperGATConv", {}, "negative_slope", 0.7),
    ("SuperGATConv", {}, "add_self_loops", False),
    ("SuperGATConv", {}, "dropout", 1.0),
    ("SuperGATConv", {"heads": 2, "bias": False}, "concat", False),
    ("TransformerConv", {}, "root_weight", False),
    ("TransformerConv", {"heads": 2, "root_weight": False}, "concat", False),
]


@pytest.mark.parametrize("name, options, attribute, value", HONOURED, ids=str)
def test_what_is_honoured_counts_from_the_next_call_on(name, options, attribute, value, device):
    args = inputs(name, device, "edge_dim" in options)
    weighted = [*args, weights(args[1].cpu()).to(device)]
    for given in (args, weighted) if name in WEIGHED else (args,):
        mine, peer = (layer(name, module, device, **options) for module in (ours, theirs))
        before = mine(*given)
        for one in (mine, peer):
            setattr(one, attribute, on(device, value))
        found = mine(*given)
        torch.testing.assert_close(found, peer(*given), rtol=1e-10, atol=1e-12)
    # With weights at least: without them improved is of no account. A bias begins at 0.
    assert attribute in ("fuse", "bias") or not torch.equal(found, before)


@pytest.mark.parametrize("attribute", ["_cached_edge_index", "_cached_adj_t"])
def test_a_cached_graph_is_forgotten_by_pygs_names(attribute, device):
    mine, args = layer("GCNConv", device=device, cached=True), inputs("GCNConv", device)
    other = graph(seed=3).to(device)
    mine(*args)
    assert torch.equal(mine(args[0], other), mine(*args)) and getattr(mine, attribute) is not None
    with pytest.raises(ValueError, match=r"^GCNConv: a cached graph can be set to None only, not to a Tensor"):
        setattr(mine, attribute, args[1])
    setattr(mine, attribute, None)
    torch.testing.assert_close(mine(args[0], other), layer("GCNConv", theirs, device)(args[0], other))


@pytest.mark.parametrize(
    "name, attribute, text",
    [
        ("GCNConv", "aggr", "its aggr 'max' is not what its aggr_module computes"),
        ("SAGEConv", "aggr", "its aggr 'max' is not what its aggr_module computes"),
        ("GATConv", "flow", "GATConv: flow must be 'source_to_target', not 'target_to_source'"),
        ("GATConv", "node_dim", "GATConv: node_dim must be -2, not 1"),
        ("TransformerConv", "decomposed_layers", "decomposed_layers is not supported"),
    ],
)
def test_convert_sees_what_was_set_on_pygs_layer(name, attribute, text):
    peer = layer(name, theirs)
    setattr(peer, attribute, VALUES[attribute])
    assert ours.convert(peer, report=True).left[""].startswith(text)


def test_convert_keeps_what_explainers_are_to_skip(device):
    peer, args = layer("GCNConv", theirs, device), inputs("GCNConv", device)
    peer.explain = False
    mine = ours.convert(copy.deepcopy(peer))
    set_masks(mine, features(40).to(device), args[1])
    assert mine.explain is False and mine._edge_mask is None
    torch.testing.assert_close(mine(*args), peer(*args))


DOCUMENT = (ROOT / "docs" / "pyg.md").read_text()


def test_the_document_names_every_attribute_and_method():
    text = DOCUMENT.split("## Attributes and methods")[1].split("\n## ")[0]
    for name in (*FIXED, *METHODS, "explain_message", "explain", *(case[2] for case in HONOURED)):
        assert f"`{name}`" in text, name


REFUSED = re.findall(r"^\| `(.*)` \| (\w+): (.*) \|$", DOCUMENT, re.M)


def test_the_document_has_refused_arguments():
    assert {line[0].split("(")[0] for line in REFUSED} == set(ARGS) - {"GINEConv"}  # which is GINConv here


@pytest.mark.parametrize("call, kind, text", REFUSED)
def test_each_refused_argument_of_the_document_is_refused_here_alone(call, kind, text):
    names = {**vars(ours), "Identity": torch.nn.Identity, "deg": torch.tensor([1, 2])}
    with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[kind]) as error:
        eval(call, names)
    assert str(error.value) == text
    eval(call, {**vars(theirs), "Identity": torch.nn.Identity, "deg": torch.tensor([1, 2])})  # which PyG takes
