"""What all layers are asked with: PyG's names and defaults, and bad sizes and inputs, each with a named error."""

import inspect

import pytest
import torch
from support.parity import make, on, ours, theirs
from support.small_graph import NODES, features, graph, weights

F_IN, F_OUT, TARGETS, D = 5, 4, 7, 3
NAMES = ["GCNConv", "SAGEConv", "GINConv", "GINEConv", "GATConv", "GATv2Conv", "TransformerConv", "AGNNConv"]
NAMES += ["GraphConv", "LGConv", "SGConv", "APPNP", "TAGConv", "ChebConv"]
RELATED = ["RGCNConv", "FastRGCNConv"]  # whose x may be integers
NAMES += [*RELATED, "ResGatedGraphConv", "GENConv", "PNAConv", "SuperGATConv"]
REST = {
    "APPNP": (3, 0.1),
    "ChebConv": (3,),
    "RGCNConv": (3,),
    "FastRGCNConv": (3,),
}  # what has no default, behind the sizes
REST["PNAConv"] = (["mean", "max", "std"], ["identity", "amplification"], torch.tensor([1, 2, 3]))
CLOSED = [*RELATED, "PNAConv"]  # whose sizes cannot be left open
UNSIZED = ["GINConv", "GINEConv", "AGNNConv", "LGConv", "APPNP"]
SIZED = [name for name in NAMES if name not in UNSIZED]
ATTENTION = ["GATConv", "GATv2Conv", "TransformerConv"]
WEIGHED = ["GCNConv", "GraphConv", "LGConv", "SGConv", "APPNP", "TAGConv", "ChebConv"]
PAIRED = [name for name in NAMES if name not in WEIGHED or name == "GraphConv"]
PAIRED = [name for name in PAIRED if name not in ("AGNNConv", "PNAConv", "SuperGATConv")]


# ---- PyG's names and defaults: there is no difference, and so no list of reasons ----


@pytest.mark.parametrize("method", ["__init__", "forward", "reset_parameters"])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_defaults_are_pygs(name, method):
    mine, peer = (
        [
            (p.name, p.kind, repr(p.default))
            for p in inspect.signature(getattr(getattr(m, name), method)).parameters.values()
        ]
        for m in (ours, theirs)
    )
    assert mine == peer


AGGREGATES = ["SAGEConvaggr_kwargs", "GENConvaggr_kwargs"]  # which have an aggr with options


@pytest.mark.parametrize("name", NAMES)
def test_options_of_the_base_class_with_their_defaults(name):
    base = inspect.signature(theirs.MessagePassing.__init__).parameters
    options = {k: p.default for k, p in base.items() if k not in ("self", "aggr")}
    assert set(options) == {"aggr_kwargs", "flow", "node_dim", "decomposed_layers"}
    assert repr(layer(name, **options)) == repr(layer(name))
    attends = name in (*ATTENTION, "AGNNConv", "SuperGATConv", *CLOSED)
    if attends:
        assert make(theirs, "GATConv", F_IN, F_OUT).node_dim == 0 and repr(layer(name, node_dim=0)) == repr(layer(name))
    for k, value in {
        "flow": "target_to_source",
        "node_dim": 1 if attends else 0,
        "decomposed_layers": 2,
        "aggr_kwargs": {"a": 1},
    }.items():
        with pytest.raises(ValueError, match=f"{name}: .*{'option a' if name + k in AGGREGATES else k}"):
            layer(name, **{k: value})


# ---- bad sizes ----


def layer(name, size=F_IN, out_channels=F_OUT, module=ours, **options):
    """The layer, with sizes where it takes them."""
    if name in ("GINConv", "GINEConv"):
        return make(module, name, lambda: torch.nn.Linear(F_IN, F_OUT), **options)
    sizes = () if name in UNSIZED else (size, out_channels)
    return make(module, name, *sizes, *REST.get(name, ()), **options)


def sizes():
    for name in SIZED:
        for value in (0, -2, -1.5, "5", None):
            yield name, {"size": value}, "in_channels"
            yield name, {"out_channels": value}, "out_channels"
        if name in PAIRED:
            yield name, {"size": (5, 0)}, "in_channels"
            yield name, {"size": (5, 3, 2)}, "in_channels"
        yield name, {"out_channels": -1}, "out_channels"
    yield "SuperGATConv", {"attention_type": "MD"}, "attention_type"
    for name in [*ATTENTION, "SuperGATConv"]:
        for value in (0, -1, 1.5, None):
            yield name, {"heads": value}, "heads"
        for value in (-0.1, 1.1, float("nan"), "0.5", None):
            yield name, {"dropout": value}, "dropout"
    for name in ATTENTION[:2]:
        for value in ("0.2", None):
            yield name, {"negative_slope": value}, "negative_slope"
    for name in ("GINConv", "GINEConv"):
        yield name, {"eps": "0"}, "eps"
    for name in ("SGConv", "TAGConv"):
        for value in (-1, 1.5, "2", None):
            yield name, {"K": value}, "K"
    for value in (-0.1, 1.1, "0.5"):
        yield "APPNP", {"dropout": value}, "dropout"
    yield "ChebConv", {"normalization": "row"}, "normalization"
    for name in ("PNAConv", "ResGatedGraphConv"):
        yield name, {"edge_dim": -1}, "edge_dim"
    for name in ("towers", "pre_layers", "post_layers"):
        yield "PNAConv", {name: 0}, name
    for name in [*ATTENTION, "GINEConv", "GENConv"]:
        for value in (0, -2, 2.0):
            yield name, {"edge_dim": value}, "edge_dim"
    for name in ATTENTION[:2]:
        yield name, {"edge_dim": D, "fill_value": torch.ones(2)}, "fill_value"


@pytest.mark.parametrize("name, options, argument", list(sizes()), ids=str)
def test_bad_sizes_are_named_when_the_layer_is_made(name, options, argument):
    value = options.get(argument, options.get("size"))
    is_number = isinstance(value, (int, tuple, torch.Tensor)) or (argument == "dropout" and isinstance(value, float))
    is_number |= argument in ("normalization", "attention_type")
    with pytest.raises(ValueError if is_number else TypeError, match=f"^{name}: {argument} must be ") as error:
        layer(name, **options)
    assert isinstance(value, (torch.Tensor, tuple)) or repr(value) in str(error.value)


# ---- bad inputs ----


def given(name, edge_dim=None):
    """What the layer takes, by the names of its arguments."""
    inputs = {"x": features(NODES, F_IN), "edge_index": graph()}
    if name == "GINEConv" or edge_dim is not None:
        inputs["edge_attr"] = features(40, edge_dim or F_IN, seed=6)
    return inputs | ({"edge_type": torch.arange(40) % 3} if name in RELATED else {})


def pair(name=None):
    edge_index = graph()
    edge_index[1] %= 5
    inputs = {"x": (features(NODES, F_IN), features(TARGETS, F_IN, seed=5)), "edge_index": edge_index}
    return inputs | ({"edge_type": torch.arange(40) % 3} if name in RELATED else {})


def bad_features():
    """(layer, options, arguments that are replaced, the error)."""
    x = features(NODES, F_IN)
    for name in NAMES:
        floats = "x must be float32, float64, float16 or bfloat16, not torch."
        if name in RELATED:
            yield name, {}, {"x": x.long()}, ValueError, "x must have 1 dimension, not 2"
        else:
            yield name, {}, {"x": x.long()}, TypeError, floats + "int64"
            yield name, {}, {"x": None}, TypeError, "x must be a tensor, not NoneType"
        yield name, {}, {"x": x > 0}, TypeError, floats + "bool"
        yield name, {}, {"x": x.cfloat()}, TypeError, floats + "complex64"
        yield name, {}, {"x": x[0]}, ValueError, "x must be [nodes, F]"
        yield name, {}, {"x": x[None, None]}, ValueError, "x must be [nodes, F]"
        yield name, {}, {"x": x.numpy()}, TypeError, "x must be a tensor, not ndarray"
    for name in SIZED:
        wide = features(NODES, F_IN + 1)
        yield name, {}, {"x": wide}, ValueError, "x has 6 features, in_channels is 5"
        yield name, {}, {"x": x.float()}, TypeError, "x is torch.float32, the parameters torch.float64"
        if name in CLOSED:
            continue
        yield name, {"size": -1}, {"x": x.long()}, TypeError, "x must be float32"
        if name in PAIRED:
            yield name, {"size": (-1, -1)}, {"x": (x, x.long())}, TypeError, "x[1] must be float32"
            yield name, {"size": (F_IN, 2)}, {"x": x}, ValueError, "x has 5 features, in_channels is 2"
    for name in PAIRED:
        source, target = pair()["x"]
        wide = (source[:, :3], target), (source, target[:, :3])
        if name in SIZED:
            yield name, {}, {"x": wide[0]}, ValueError, "x[0] has 3 features, in_channels is 5"
            yield name, {}, {"x": wide[1]}, ValueError, "x[1] has 3 features, in_channels is 5"
        else:
            yield name, {}, {"x": wide[1]}, ValueError, "x[0] has 5 features and x[1] 3, which are added"
        if name in RELATED:
            continue
        yield name, {}, {"x": (source.int(), target)}, TypeError, "x[0] must be float32"
        yield name, {}, {"x": (source, target.int())}, TypeError, "x[1] must be float32"
        yield name, {}, {"x": (None, target)}, TypeError, "x[0] must be a tensor, not NoneType"
        yield name, {}, {"x": (source,)}, ValueError, "x must be a tensor or a pair, not 1 of them"
    yield "SAGEConv", {"project": True}, {"x": x[:, :3]}, ValueError, "x has 3 features, in_channels is 5"
    yield "SAGEConv", {"aggr": ["mean", "max"]}, {"x": x[:, :3]}, ValueError, "x has 3 features, in_channels is 5"


def bad_edges():
    weight, attr = weights(graph()), features(40, D, seed=6)
    for value in (weight[:7], weight.repeat(2), weight[:, None].repeat(1, 2), weight[None], weight[0]):
        shape = str(list(value.shape))
        for name in WEIGHED:
            yield name, {}, {"edge_weight": value}, ValueError, f"edge_weight must be [40] or [40, 1], not {shape}"
        yield "GCNConv", {"normalize": False}, {"edge_weight": value}, ValueError, "edge_weight must be [40] or"
    for name in WEIGHED:
        yield name, {}, {"edge_weight": weight.long()}, TypeError, "edge_weight must be floating-point, not torch.int"
        yield name, {}, {"edge_weight": [1.0] * 40}, TypeError, "edge_weight must be a tensor, not list"
    for name in [*ATTENTION, "GINEConv", "ResGatedGraphConv", "GENConv", "PNAConv"]:
        edged = {"edge_dim": D}
        yield (
            name,
            edged,
            {"edge_attr": attr[:7]},
            ValueError,
            "edge_attr must be [40, D], one row per edge, not [7, 3]",
        )
        yield name, edged, {"edge_attr": attr[None]}, ValueError, "edge_attr must be [40, D], one row per edge, not [1,"
        yield name, edged, {"edge_attr": attr[:, :2]}, ValueError, "edge_attr has 2 features, edge_dim is 3"
        yield name, edged, {"edge_attr": attr.long()}, TypeError, "edge_attr must be float32, float64,"
        yield name, edged, {"edge_attr": attr.float()}, TypeError, "edge_attr is torch.float32, the parameters torch.f"
        yield name, edged, {"edge_attr": attr.numpy()}, TypeError, "edge_attr must be a tensor, not ndarray"
        if name not in ("ResGatedGraphConv", "PNAConv"):
            yield name, {"edge_dim": -1}, {"edge_attr": attr.long()}, TypeError, "edge_attr must be float32, float64,"
    for name in ATTENTION[:2]:
        lazy = {"edge_dim": -1, "fill_value": torch.ones(2)}
        yield name, lazy, {"edge_attr": attr}, ValueError, "fill_value must be [3], as edge_attr's features, not [2]"


@pytest.mark.parametrize("name, options, bad, kind, text", [*bad_features(), *bad_edges()])
def test_bad_inputs_are_named_and_the_next_call_works(name, options, bad, kind, text, device):
    mine, fresh = on(device, (layer(name, **options), layer(name, **options)))
    good = pair(name) if isinstance(bad.get("x"), tuple) else given(name, D if "edge_attr" in bad else None)
    if name == "GINEConv":
        good.setdefault("edge_attr", features(40, F_IN, seed=6))
    good, bad = on(device, (good, bad))
    with pytest.raises(kind) as error:
        mine(**{**good, **bad})
    assert str(error.value).startswith((f"{name}: {text}", text))
    if options.get("size") == (F_IN, 2):
        good["x"] = good["x"], features(NODES, 2).to(device)
    for one in (mine, fresh):
        one.fill_value = 1.0
    torch.manual_seed(3)  # open sizes are drawn by the first good call
    found = mine(**good)
    torch.manual_seed(3)
    assert torch.equal(found, fresh(**good))


@pytest.mark.parametrize("name", ["GINConv", "GINEConv"])
@pytest.mark.parametrize("nn", [None, torch.nn.Linear, 3])
def test_an_nn_that_is_none_is_named(name, nn):
    with pytest.raises(TypeError, match=f"^{name}: nn must be a module, or a function of a tensor, not "):
        getattr(ours, name)(nn)


@pytest.mark.parametrize("name", ["SAGEConv", "GINConv", "GATConv"])
@pytest.mark.parametrize("size", [NODES, (NODES, NODES, NODES), (NODES,), "ab1"])
def test_a_size_that_is_no_pair_is_named(name, size, device):
    mine, inputs = on(device, (layer(name), given(name)))
    with pytest.raises(TypeError, match=r"size must be \(sources, targets\), not "):
        mine(**inputs, size=size)
    assert torch.equal(mine(**inputs, size=(NODES, NODES)), mine(**inputs))


def test_fill_is_another_name_of_fill_value():
    for name in ("GATConv", "GATv2Conv"):
        kind = getattr(ours, name)
        assert kind(3, 2, edge_dim=D, fill=0.5).fill_value == 0.5 and kind(3, 2).fill_value == "mean"
        with pytest.raises(ValueError, match=f"^{name}: fill_value must be one of add, .* not 'median'"):
            kind(3, 2, fill="median")


def test_a_fill_value_that_is_no_reduction_is_named():
    for name in ATTENTION[:2]:
        with pytest.raises(ValueError, match=f"^{name}: fill_value must be one of add, .* not 'median'"):
            layer(name, fill_value="median")


BAD_GRAPHS = {
    "transposed": (lambda: graph().t(), ValueError, r"an edge_index must be \[2, nnz\], not \[40, 2\]; transpose it"),
    "three rows": (lambda: graph()[[0, 1, 1]], ValueError, r"an edge_index must be \[2, nnz\], not \[3, 40\]"),
    "a vector": (lambda: graph()[0], ValueError, r"an edge_index must be \[2, nnz\], not \[40\]"),
    "of floats": (lambda: graph().float(), TypeError, r"a dense tensor \[2, 40\] of torch.float32 is no graph"),
    "a mask": (lambda: torch.eye(NODES) > 0, TypeError, "of torch.bool is no graph"),
    "a list": (lambda: graph().tolist(), TypeError, "cannot make a CSR of list"),
    "nothing": (lambda: None, TypeError, "cannot make a CSR of NoneType"),
    "outside": (lambda: graph() + NODES, ValueError, r"edge_index\[[01], 0\] = \d+ is outside \[0, "),
}


@pytest.mark.parametrize("bad", BAD_GRAPHS)
@pytest.mark.parametrize("name", NAMES)
def test_bad_graphs_are_named_and_the_next_call_works(name, bad, device):
    mine, good = on(device, (layer(name), given(name)))
    make_bad, kind, text = BAD_GRAPHS[bad]
    with pytest.raises(kind, match=text):
        mine(**{**good, "edge_index": on(device, make_bad())})
    assert torch.isfinite(mine(**good)).all()


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_results_under_autocast_are_of_pygs_dtype(name, low, device):
    """On CUDA autocast sums in float32, and so what PyG makes of sums is float32."""
    inputs = {k: v.to(low) if v.is_floating_point() else v for k, v in on(device, given(name)).items()}
    with torch.autocast(device, dtype=torch.bfloat16):
        mine, peer = (layer(name, module=module).to(device).float()(**inputs) for module in (ours, theirs))
    assert mine.dtype == peer.dtype or (device == "cuda" and peer.dtype == torch.float32)
    torch.testing.assert_close(mine.float(), peer.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_takes_what_is_not_of_the_parameters_dtype(name, device):
    mine, inputs = on(device, (layer(name).float(), given(name)))
    inputs = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.isfinite(mine(**inputs)).all()
