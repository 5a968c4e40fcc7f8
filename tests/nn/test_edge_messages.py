"""Layers whose messages depend on both ends of an edge, or on more than its source: PyG's numbers with each option."""

import pytest
import torch
from support.parity import check, make, on, ours, theirs
from support.small_graph import NODES, features, graph
from torch_geometric.data import Data

F, C, D = 6, 4, 3
DEG = torch.bincount(torch.bincount(graph()[1], minlength=NODES))
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
ALL = ["mean", "min", "max", "std", "var", "sum"]


def given(edged, paired=False):
    """x, edges, and their features where there are some; of sources and seven targets where paired."""
    x, edges = features(NODES, F), graph()
    if paired:
        x, edges = (x, features(7, F - 1, seed=5)), torch.stack([edges[0], edges[1] % 7])
    return [x, edges, *([features(40, D, seed=6)] if edged else [])]


def checked(device, name, args, inputs, **options):
    """As ``check``, and in float32 what it is in float64."""
    mine, _ = check(name, args, inputs, device=device, **options)
    mine, inputs = mine.eval(), on(device, inputs)
    found = mine(*inputs).float()
    narrow = [tuple(t.float() for t in a) if isinstance(a, tuple) else a.float() if a.is_floating_point() else a
              for a in inputs]  # fmt: skip
    torch.testing.assert_close(mine.float()(*narrow), found, rtol=1e-3, atol=1e-4)


GATES = [torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.ReLU(), torch.nn.GELU(), torch.sigmoid]


@pytest.mark.parametrize("act", GATES, ids=["sigmoid", "tanh", "relu", "gelu", "function"])
@pytest.mark.parametrize("edged", [False, True])
@pytest.mark.parametrize("paired", [False, True])
def test_gates(act, edged, paired, device):
    size = (F, F - 1) if paired else F
    for aggr, more in (("add", {}), ("mean", {"root_weight": False}), ("max", {"bias": False})):
        options = {"edge_dim": D if edged else None, "aggr": aggr, **more}
        checked(device, "ResGatedGraphConv", (size, C), given(edged, paired), act=act, **options)


AGGRS = ["softmax", "powermean", "power", "softmax_sg", "mean", "max", "std", ["mean", "max"]]
FORMS = [
    {},
    {"msg_norm": True, "learn_msg_scale": True, "norm": "layer", "bias": True},
    {"num_layers": 1, "norm": None, "eps": 0.1},
    {"num_layers": 3, "expansion": 3, "norm": "instance"},
]


@pytest.mark.parametrize("aggr", AGGRS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_messages_of_deep_networks(aggr, form, device):
    learn = {} if aggr == "softmax_sg" else {"learn_t": True, "t": 0.5, "learn_p": True, "p": 2.0}
    options = {"aggr": aggr, **form, **learn}
    checked(device, "GENConv", (F, C), given(False), **options)
    checked(device, "GENConv", (F, F), given(False), **options)
    checked(device, "GENConv", ((F, F - 1), C), given(True, True), edge_dim=D, **options)
    checked(device, "GENConv", (F, D), given(True), **options)


def test_targets_without_features(device):
    x, edges, attr = on(device, given(True))
    mine, peer = (make(module, "GENConv", F, C, msg_norm=True, edge_dim=D).to(device) for module in (ours, theirs))
    found, expected = (layer((x, None), edges, attr, size=(NODES, NODES)) for layer in (mine, peer))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_sizes_without_a_map_are_checked_too(device):
    layer, (x, edges) = make(ours, "GENConv", F, F).to(device), on(device, given(False))
    for bad in (x[:, :3], (x, x[:, :3])):
        with pytest.raises(ValueError, match=r"^GENConv: x has 3 features, in_channels is 6"):
            layer(bad, edges)
    assert layer(x, edges).isfinite().all()


PNAS = [
    {},
    {"towers": 2, "train_norm": True},
    {"towers": 2, "divide_input": True},
    {"towers": 2, "pre_layers": 2, "post_layers": 2},
    {"pre_layers": 3, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.3}},
]


@pytest.mark.parametrize("kinds", [ALL, ["mean"], ["max", "softmax"], ["std", "powermean"]], ids=str)
@pytest.mark.parametrize("options", PNAS, ids=str)
def test_principal_aggregations(kinds, options, device):
    """Isolated nodes get nothing, whatever they are themselves."""
    checked(device, "PNAConv", (F, C, kinds, SCALERS, DEG), given(False), **options)
    checked(device, "PNAConv", (F, C, kinds, SCALERS[:2], DEG), given(True), edge_dim=D, **options)


def test_degrees_of_a_loader():
    batches = [Data(edge_index=graph(seed=s), num_nodes=NODES + s) for s in range(3)]
    batches.append(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=3))
    found, expected = (module.PNAConv.get_degree_histogram(batches) for module in (ours, theirs))
    assert torch.equal(found, expected) and found.sum() == 3 * NODES + 6


@pytest.mark.parametrize("name, args", [("ResGatedGraphConv", (F, C)), ("GENConv", (F, C)), ("PNAConv", None)])
def test_gradients_of_gradients(name, args, device):
    args = (F, C, ["mean", "std"], ["linear"], DEG) if args is None else args
    layer, edges = make(ours, name, *args).to(device).eval(), graph()[:, :9].to(device)
    x = features(NODES, F).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, edges), [x])
    assert torch.autograd.gradgradcheck(lambda x: layer(x, edges), [x])


BAD = [
    (lambda: ours.ResGatedGraphConv(F, C, None), TypeError, "ResGatedGraphConv: act must be a module, or a function"),
    (lambda: ours.GENConv(F, C, norm="graph"), ValueError, "GENConv: norm must be None or one of batch, layer, inst"),
    (lambda: ours.PNAConv(F, C, "mean", SCALERS, DEG), TypeError, "PNAConv: aggregators must be a list of names"),
    (lambda: ours.PNAConv(F, C, ALL, [], DEG), TypeError, "PNAConv: scalers must be a list of names"),
    (lambda: ours.PNAConv(F, C, ALL, ["log"], DEG), ValueError, "PNAConv: scalers must be some of identity, .* not 'l"),
    (lambda: ours.PNAConv(F, C, ALL, SCALERS, 0 * DEG), ValueError, "PNAConv: deg must be the numbers of nodes of"),
    (lambda: ours.PNAConv(F, C, ALL, SCALERS, [1]), TypeError, "PNAConv: deg must be a tensor, not list"),
    (lambda: ours.PNAConv(F, C, ALL, SCALERS, DEG, towers=3), ValueError, "PNAConv: out_channels=4 must be a multiple"),
    (lambda: ours.PNAConv(F, C, ALL, SCALERS, DEG, act="x", pre_layers=2), ValueError, "PNAConv: torch.nn has no act"),
]


@pytest.mark.parametrize("call, kind, text", BAD, ids=[text for *_, text in BAD])
def test_bad_options_are_named(call, kind, text):
    with pytest.raises(kind, match=f"^{text}"):
        call()


@pytest.mark.parametrize("name", ["ResGatedGraphConv", "PNAConv"])
def test_edge_features_and_their_size_belong_together(name, device):
    rest = (["mean"], ["linear"], DEG) if name == "PNAConv" else ()
    without, withs = (make(ours, name, F, C, *rest, edge_dim=d).to(device) for d in (None, D))
    x, edges, attr = on(device, given(True))
    with pytest.raises(ValueError, match=f"^{name}: edge_attr must be given, since edge_dim is set"):
        withs(x, edges)
    with pytest.raises(ValueError, match=f"^{name}: edge_attr needs edge_dim"):
        without(x, edges, attr)
    with pytest.raises(ValueError, match=rf"^{name}: x(\[1\])? must be (a|one) tensor"):
        without((x, None), edges)
    assert withs(x, edges, attr).isfinite().all() and without(x, edges).isfinite().all()
