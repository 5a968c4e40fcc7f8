"""SAGEConv with every aggregation that is made of SpMMs, against PyG's: numbers, gradients, names; what is left out."""

import copy
import pickle
import re

import pytest
import torch
from support.parity import check, make, on, ours, results, theirs
from support.small_graph import NODES, features, graph, weights

import fusedmm

pyg = pytest.importorskip("torch_geometric")
aggr = pyg.nn.aggr

F_IN, F_OUT, TARGETS = 5, 4, 7

AGGREGATIONS = {
    "var": {"aggr": "var"},
    "var by halves": {"aggr": "var", "aggr_kwargs": {"semi_grad": True}},
    "std": {"aggr": "std"},
    "std by halves": {"aggr": "std", "aggr_kwargs": {"semi_grad": True}},
    "softmax": {"aggr": "softmax"},
    "softmax cold": {"aggr": "softmax", "aggr_kwargs": {"t": 3.0}},
    "softmax by halves": {"aggr": "softmax", "aggr_kwargs": {"t": -0.5, "semi_grad": True}},
    "softmax learnt": {"aggr": "softmax", "aggr_kwargs": {"t": 0.7, "learn": True}},
    "softmax learnt by channel": {"aggr": "softmax", "aggr_kwargs": {"learn": True, "channels": F_IN}},
    "powermean": {"aggr": "powermean"},
    "powermean 3": {"aggr": "powermean", "aggr_kwargs": {"p": 3.0}},
    "powermean ends": {"aggr": "powermean", "aggr_kwargs": {"p": 0.5, "clamp_min": 0.1, "clamp_max": 1.0}},
    "powermean learnt": {"aggr": "powermean", "aggr_kwargs": {"p": 2.0, "learn": True, "channels": F_IN}},
    "variance preserving": {"aggr": "variance_preserving"},
    "median": {"aggr": "median"},
    "median filled": {"aggr": "median", "aggr_kwargs": {"fill_value": 2.5}},
    "product": {"aggr": "mul"},
    "one by one": {"aggr": ["median", "mul", "mean"]},
    "long name": {"aggr": "MeanAggregation"},
    "mean and max": {"aggr": ["mean", "max"]},
    "all": {"aggr": ["add", "mean", "max", "min", "var", "std"]},
    "std without the rest": {"aggr": ["std", "softmax", "powermean"]},
    "one": {"aggr": ["std"]},
    "learnt in a list": {
        "aggr": ["mean", "softmax", "softmax"],
        "aggr_kwargs": {"aggrs_kwargs": [{}, {"learn": True, "t": 2.0}, {"t": -1.0}]},
    },
    **{
        f"mode {mode}": {"aggr": ("mean", "max", "std"), "aggr_kwargs": {"mode": mode}}
        for mode in ["sum", "mean", "max", "min", "logsumexp", "std", "var"]
    },
}
FROM_CLASSES = {
    "module": lambda: aggr.MeanAggregation(),
    "module std": lambda: aggr.StdAggregation(semi_grad=True),
    "module softmax": lambda: aggr.SoftmaxAggregation(t=0.3, learn=True, channels=F_IN),
    "module powermean": lambda: aggr.PowerMeanAggregation(p=2.0, clamp_max=2.0),
    "module of several": lambda: aggr.MultiAggregation(["min", "var"], mode="sum"),
    "list of modules": lambda: [aggr.MaxAggregation(), "sum", aggr.SoftmaxAggregation(learn=True)],
}


def options(name):
    return AGGREGATIONS.get(name) or {"aggr": FROM_CLASSES[name]()}


def pair():
    """Fewer targets than sources, of which 5 and 6 have no neighbours."""
    edge_index = graph()
    edge_index[1] %= 5
    return [(features(NODES, F_IN), features(TARGETS, 3, seed=5)), edge_index]


@pytest.mark.parametrize("name", [*AGGREGATIONS, *FROM_CLASSES])
def test_aggregations(name, device):
    """PyG registers what it is given, so that each layer gets modules of its own."""
    cases = ([F_IN, F_OUT], [features(NODES, F_IN), graph()]), ([(F_IN, 3), F_OUT], pair())
    for args, inputs in on(device, cases):
        mine, peer = (make(m, "SAGEConv", *args, **options(name)).to(device) for m in (ours, theirs))
        assert repr(mine) == repr(peer) and list(mine.state_dict()) == list(peer.state_dict())
        torch.testing.assert_close(dict(mine.state_dict()), dict(peer.state_dict()), rtol=0, atol=0)
        with torch.no_grad():
            for p in peer.parameters():
                p.add_(0.1 * features(*p.shape, seed=4).to(device))
        mine.load_state_dict(peer.state_dict(), strict=True)
        torch.testing.assert_close(results(mine, inputs), results(peer, inputs), rtol=1e-9, atol=1e-11)
        mine.reset_parameters(), torch.manual_seed(7), peer.reset_parameters()
        assert all(torch.equal(mine.state_dict()[k], v) for k, v in peer.state_dict().items() if "aggr" in k)


@pytest.mark.parametrize("name", ["std", "softmax learnt by channel", "all", "learnt in a list", "mode max"])
@pytest.mark.parametrize(
    "project, normalize, root_weight, bias",
    [(True, False, True, True), (False, True, False, True), (True, True, True, False)],
)
def test_the_other_options(name, project, normalize, root_weight, bias, device):
    others = {"project": project, "normalize": normalize, "root_weight": root_weight, "bias": bias}
    inputs = on(device, [features(NODES, F_IN), graph()])
    mine, peer = (make(m, "SAGEConv", F_IN, F_OUT, **options(name), **others).to(device) for m in (ours, theirs))
    mine.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(results(mine, inputs), results(peer, inputs), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", ["var", "std", "softmax", "powermean 3", "variance preserving", "all", "mode logsumexp"]
)
def test_a_batch_of_features(name, device):
    check("SAGEConv", [F_IN, F_OUT], [features(3, NODES, F_IN), graph()], device=device, **options(name))


@pytest.mark.parametrize("name", ["std", "softmax", "all"])
def test_no_edges_and_no_nodes(name, device):
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    check("SAGEConv", [F_IN, F_OUT], [features(NODES, F_IN), none], device=device, **options(name))
    layer = make(ours, "SAGEConv", F_IN, F_OUT, **options(name)).to(device)
    assert layer(features(0, F_IN).to(device), none).shape == (0, F_OUT)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["std", "softmax", "all", "module"])
def test_forms_of_a_graph(name, device):
    """As in PyG the values of a matrix weigh for no aggregation but those that it fuses."""
    edge_index = torch.unique(graph().flip(0), dim=1).flip(0).contiguous()
    x, weight, edge_index = on(device, (features(NODES, F_IN), weights(edge_index), edge_index))
    mine, peer = (make(m, "SAGEConv", F_IN, F_OUT, **options(name)).to(device) for m in (ours, theirs))
    expected = peer(x, edge_index)
    adj = torch.sparse_coo_tensor(edge_index.flip(0), weight, (NODES, NODES)).coalesce()
    torch.testing.assert_close(peer(x, adj.to_sparse_csr()), expected)
    for form in (
        edge_index,
        fusedmm.CSR.from_edge_index(edge_index, weight, NODES),
        adj,
        adj.to_sparse_csr(),
        adj.to_sparse_csc(),
        pyg.EdgeIndex(edge_index, sparse_size=(NODES, NODES)),
    ):
        torch.testing.assert_close(mine(x, form), expected)


@pytest.mark.parametrize("name", ["mean and max", "std", "learnt in a list"])
@pytest.mark.parametrize("size", [-1, (-1, -1)])
def test_sizes_from_the_first_input(name, size, device):
    mine, peer = (make(m, "SAGEConv", size, F_OUT, **options(name)).float().to(device) for m in (ours, theirs))
    x, edge_index = on(device, (features(NODES, F_IN).float(), graph()))
    expected = peer(x, edge_index)
    assert mine(x, edge_index).shape == expected.shape and mine.lin_l.weight.shape == peer.lin_l.weight.shape
    mine.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(mine(x, edge_index), expected)
    with pytest.raises(ValueError, match="SAGEConv: x has 4 features, in_channels is 5"):
        mine(x[:, :4], edge_index)


@pytest.mark.parametrize("name", ["std", "softmax learnt", "powermean 3", "mean and max"])
def test_second_derivatives(name):
    """CPU only: the formulas that are differentiated are the same on every device."""
    layer, x = make(ours, "SAGEConv", 2, 2, **options(name)), features(NODES, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(x, graph()), x)


@pytest.mark.parametrize("name", ["std", "softmax learnt", "powermean 3", "all", "variance preserving"])
def test_compiles_and_copies(name):
    torch._dynamo.reset()
    layer = make(ours, "SAGEConv", F_IN, F_OUT, **options(name))
    given = [features(NODES, F_IN), fusedmm.as_csr(graph(), size=NODES).cache_transpose()]
    expected = results(layer, given)
    torch.testing.assert_close(results(torch.compile(layer, fullgraph=True, backend="aot_eager"), given), expected)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(*given), layer(*given)) and repr(other) == repr(layer)


@pytest.mark.parametrize("name", ["std", "softmax", "variance preserving", "all"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype, device):
    layer = make(ours, "SAGEConv", F_IN, F_OUT, **options(name)).to(device)
    x, edge_index = on(device, (features(NODES, F_IN), graph()))
    expected = layer(x, edge_index)
    half = copy.deepcopy(layer).to(dtype)(x.to(dtype), edge_index)
    assert half.dtype == dtype
    torch.testing.assert_close(half.double(), expected, rtol=0.05, atol=0.2)


@pytest.mark.parametrize("name", [*AGGREGATIONS, *FROM_CLASSES])
def test_convert_swaps_them(name, device):
    peer = make(theirs, "SAGEConv", F_IN, F_OUT, **options(name)).to(device)
    with torch.no_grad():
        for p in peer.parameters():
            p.add_(0.1 * features(*p.shape, seed=4).to(device))
    inputs, parameters = on(device, [features(NODES, F_IN), graph()]), dict(peer.named_parameters())
    text, expected = repr(peer), results(peer, inputs)
    done = ours.convert(peer, report=True)
    assert done.left == {} and type(done.model) is ours.SAGEConv and repr(done.model) == text
    assert {n: id(p) for n, p in done.model.named_parameters()} == {n: id(p) for n, p in parameters.items()}
    torch.testing.assert_close(results(done.model, inputs), expected, rtol=1e-9, atol=1e-11)


WIDTHS = {"in_channels": F_IN, "out_channels": F_IN}
PROJECTED = {"mode": "proj", "mode_kwargs": {"in_channels": F_IN, "out_channels": F_IN}}


@pytest.mark.parametrize(
    "given, text",
    [
        ({"aggr": aggr.QuantileAggregation(0.3)}, "aggr must be one of add, .*, softmax, .* or a list of them, not "),
        ({"aggr": "gru", "aggr_kwargs": WIDTHS}, "aggr must be one of add, .*GRU|not 'gru'"),
        ({"aggr": "lstm", "aggr_kwargs": {"num_layers": 2}}, "aggr 'lstm' has no option num_layers|its parameters are"),
        ({"aggr": ["mean", aggr.QuantileAggregation(0.3)]}, "aggr must be one of add"),
        ({"aggr": ["mean", "lstm"], "aggr_kwargs": {"aggrs_kwargs": [{}, WIDTHS]}}, "aggr 'lstm' is supported alone"),
        ({"aggr": ["mean", ["max", "min"]]}, "aggr must be one of add"),
        ({"aggr": ["mean", "max"], "aggr_kwargs": PROJECTED}, "one of the modes cat, .*, not 'proj'"),
        ({"aggr": ["mean", "mean"]}, "aggr has 'mean' twice"),
        ({"aggr": ["std", "max"], "aggr_kwargs": {"aggrs_kwargs": [{"semi_grad": True}, {}]}}, "semi_grad is supp"),
    ],
    ids=str,
)
def test_what_is_no_spmm_is_refused_and_left(given, text):
    with pytest.raises(ValueError, match=f"SAGEConv: .*({text})"):
        ours.SAGEConv(F_IN, F_OUT, **given)
    if given["aggr"] == ["mean", ["max", "min"]]:
        return  # PyG's layer cannot be made of it either
    model = torch.nn.Sequential(theirs.SAGEConv(F_IN, F_OUT, **given))
    layer, done = model[0], ours.convert(model, report=True)
    assert model[0] is layer and re.search(text, done.left["0"])


@pytest.mark.parametrize(
    "given, text",
    [
        ({"aggr": []}, "must not be an empty list"),
        ({"aggr": None}, "not None"),
        ({"aggr": "std", "aggr_kwargs": {"learn": True}}, "aggr 'std' has no option learn"),
        ({"aggr": "softmax", "aggr_kwargs": {"learn": True, "semi_grad": True}}, "cannot learn t with semi_grad"),
        ({"aggr": "softmax", "aggr_kwargs": {"channels": 5}}, "channels=5, which needs learn=True"),
        ({"aggr": ["mean", "max"], "aggr_kwargs": {"aggrs_kwargs": [{}]}}, "aggrs_kwargs has 1 elements for 2"),
        ({"aggr": ["mean", "max"], "aggr_kwargs": {"mode": "attn"}}, "not 'attn'"),
        ({"aggr": ["mean", "max"], "aggr_kwargs": {"modes": "cat"}}, "has no option modes"),
    ],
    ids=str,
)
def test_bad_options(given, text):
    with pytest.raises(ValueError, match=f"SAGEConv: .*{text}"):
        ours.SAGEConv(F_IN, F_OUT, **given)


def test_an_lstm_over_neighbours(device):
    """In the order of the edges, whatever that is, where PyG's wants them sorted by targets; hooks of messages work."""
    edges = graph()
    by_target = edges[:, edges[1].argsort(stable=True)]
    mine, peer = check("SAGEConv", (F_IN, F_OUT), [features(NODES, F_IN), by_target], device=device, aggr="lstm")
    pair = features(NODES, F_IN), features(TARGETS, F_IN, seed=6)
    fewer = torch.stack([edges[0], edges[1] % TARGETS])
    check(
        "SAGEConv", ((F_IN, F_IN), F_OUT), [pair, fewer[:, fewer[1].argsort(stable=True)]], device=device, aggr="lstm"
    )
    x, edges, by_target = on(device, (features(NODES, F_IN), edges, by_target))
    expected = peer(x, by_target)
    torch.testing.assert_close(mine(x, edges), expected, rtol=1e-10, atol=1e-12)
    alone = mine.lin_l(torch.zeros_like(x)) + mine.lin_r(x)  # where torch refuses PyG's LSTM a sequence of nothing
    torch.testing.assert_close(mine(x, edges[:, :0]), alone, rtol=1e-10, atol=1e-12)
    for one in (mine, peer):
        one.register_message_forward_hook(lambda m, inputs, out: 2 * out)
    torch.testing.assert_close(mine(x, by_target), peer(x, by_target), rtol=1e-10, atol=1e-12)
    done = ours.convert(copy.deepcopy(make(theirs, "SAGEConv", F_IN, F_OUT, aggr="lstm").to(device)), report=True)
    assert done.swapped == {"": "SAGEConv"}
    torch.testing.assert_close(
        done.model(x, edges), make(theirs, "SAGEConv", F_IN, F_OUT, aggr="lstm").to(device)(x, by_target)
    )


def test_median_where_the_first_nodes_have_no_edges(device):
    """PyG's takes entry -1 then, which is none; with the nodes numbered from behind it finds the medians."""
    mine, peer = (make(kind, "SAGEConv", F_IN, F_OUT, aggr="median").double().to(device) for kind in (ours, theirs))
    peer.load_state_dict(mine.state_dict())
    x, edges = on(device, (features(6, F_IN).double(), torch.tensor([[0, 1, 2, 5, 4, 3, 3], [3, 3, 3, 3, 5, 5, 5]])))
    torch.testing.assert_close(mine(x, edges), peer(x.flip(0), 5 - edges).flip(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["median", "mul", "lstm"])
def test_one_by_one_takes_no_batch(kind, device):
    layer = make(ours, "SAGEConv", F_IN, F_OUT, aggr=kind).to(device)
    x, edges = on(device, (features(3, NODES, F_IN), graph()))
    with pytest.raises(ValueError, match=rf"^SAGEConv: aggr '{kind}' takes no batch, and x is \[3, 11, 5\]"):
        layer(x, edges)
    with pytest.raises((TypeError, ValueError), match=r"SAGEConv: aggr 'lstm': in_channels must be"):
        ours.SAGEConv(-1, F_OUT, aggr="lstm")
    assert layer(x[0], edges).isfinite().all()
