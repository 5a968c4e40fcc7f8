"""What PyG's own tests ask of its layers; every number is that of PyG's layer with the same parameters."""

import copy
import functools
import io
import pickle

import pytest
import torch
import torch.nn.utils.prune
from support.parity import on, ours, results, theirs
from support.small_graph import features
from torch_geometric import EdgeIndex
from torch_geometric.nn import aggr
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor

EDGES = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])  # a star, both ways
TO_TWO = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])  # four sources, two targets
F_IN, F_OUT, D = 8, 6, 3


def mlp(of, size=F_IN):
    return torch.nn.Sequential(torch.nn.Linear(size, 5), torch.nn.ReLU(), torch.nn.Linear(5, F_OUT))


def gin(of, size=F_IN, **options):
    return of.GINConv(mlp(of), train_eps=True, **options)


def gine(of, size=F_IN, edge_dim=D, **options):
    return of.GINEConv(mlp(of), train_eps=True, edge_dim=edge_dim, **options)


def sized(name, **fixed):
    def make(of, size=F_IN, **options):
        return getattr(of, name)(size, F_OUT, **{**fixed, **options})

    return make


PNA = {"aggregators": ["mean", "max", "std"], "scalers": ["linear", "attenuation"], "deg": torch.tensor([1, 2, 3])}
LAYERS = {
    "GCN": sized("GCNConv"),
    "SAGE": sized("SAGEConv"),
    "SAGE pool": sized("SAGEConv", aggr="max", normalize=True),
    "GIN": gin,
    "GINE": gine,
    "GAT": sized("GATConv", heads=2),
    "GAT edges": sized("GATConv", heads=2, edge_dim=D, residual=True),
    "GATv2": sized("GATv2Conv", heads=2),
    "GATv2 edges": sized("GATv2Conv", heads=2, edge_dim=D, concat=False),
    "Transformer": sized("TransformerConv", heads=2, beta=True),
    "Transformer edges": sized("TransformerConv", heads=2, edge_dim=D),
    "AGNN": lambda of, size=F_IN, **options: of.AGNNConv(**options),
    "Graph": sized("GraphConv"),
    "Graph max": sized("GraphConv", aggr="max"),
    "LG": lambda of, size=F_IN, **options: of.LGConv(**options),
    "SG": sized("SGConv", K=2),
    "APPNP": lambda of, size=F_IN, **options: of.APPNP(3, 0.1, **options),
    "TAG": sized("TAGConv"),
    "TAG mean": sized("TAGConv", aggr="mean", normalize=False),
    "Cheb": sized("ChebConv", K=3),
    "ResGated": sized("ResGatedGraphConv"),
    "ResGated edges": sized("ResGatedGraphConv", edge_dim=D, aggr="mean"),
    "GEN": sized("GENConv", norm="layer", learn_t=True),
    "GEN edges": sized("GENConv", aggr="powermean", learn_p=True, edge_dim=D, msg_norm=True, learn_msg_scale=True),
    "PNA": sized("PNAConv", **PNA, towers=2),
    "PNA edges": sized("PNAConv", **PNA, edge_dim=D, pre_layers=2, post_layers=2),
    "SuperGAT": sized("SuperGATConv", heads=2),
    "SuperGAT dot": sized("SuperGATConv", heads=2, attention_type="SD", concat=False),
    "RGCN": sized("RGCNConv", num_relations=3),
    "RGCN bases": sized("FastRGCNConv", num_relations=3, num_bases=2, aggr="add"),
    "Cheb rw": sized("ChebConv", K=3, normalization="rw", aggr="min"),
}
RELATED = ["RGCN", "RGCN bases"]
EDGED = [*RELATED, "GINE", *(name for name in LAYERS if "edges" in name)]
WEIGHED = ["GCN", "Graph", "Graph max", "LG", "SG", "APPNP", "TAG", "TAG mean", "Cheb", "Cheb rw"]  # take edge weights
BATCHED = [*WEIGHED, "SAGE", "SAGE pool", "GIN", "GINE"]  # take a batch of features on one graph
UNMAPPED = ["AGNN", "LG", "APPNP", *RELATED]  # have no maps
PAIRED = [name for name in LAYERS if name not in WEIGHED or "Graph" in name]
PAIRED = [name for name in PAIRED if name.split()[0] not in ("AGNN", "PNA", "SuperGAT")]
ALONE = ["SAGE", "SAGE pool", "GIN", "GINE", "GAT", "GEN"]  # whose targets may have no features
# PyG's TAGConv and ChebConv call their maps in a way that leaves the size open.
LAZY = [name for name in LAYERS if name.split()[0] not in ("GIN", "GINE", "TAG", "Cheb", "RGCN", "PNA", *UNMAPPED)]
LAZY.remove("ResGated edges")
ATTENTION = ["GAT", "GAT edges", "GATv2", "GATv2 edges", "Transformer", "Transformer edges"]


def with_pairs(names):
    """Each layer with one x and, where it takes them, with a pair."""
    return [(name, pair) for name in names for pair in (False, True) if name in PAIRED or not pair]


def both(name, device="cpu", *args, **options):
    """Ours and PyG's with the same parameters, none of which is at its first value."""
    pair = []
    for of in (ours, theirs):
        torch.manual_seed(5)
        pair.append(LAYERS[name](of, *args, **options).double().to(device))
    mine, peer = pair
    with torch.no_grad():
        for p in peer.parameters():
            p.add_(features(*p.shape, seed=4).to(device))
    mine.load_state_dict(peer.state_dict())
    return mine, peer


def edge_attr(name, count):
    """What edges carry: features, or a type."""
    if name in RELATED:
        return [torch.arange(count) % 3]
    return [features(count, D, seed=6)] if name in EDGED else []


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def agree(mine, peer, inputs):
    """Outputs and all gradients."""
    same(results(mine, inputs), results(peer, inputs))


@pytest.mark.parametrize("name", LAYERS)
def test_text_names_and_the_star(name, device):
    mine, peer = both(name, device)
    assert str(mine) == str(peer)
    assert [(k, v.shape) for k, v in mine.named_parameters()] == [(k, v.shape) for k, v in peer.named_parameters()]
    agree(mine, peer, on(device, [features(4, F_IN), EDGES, *edge_attr(name, 6)]))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name, pair", with_pairs(name for name in LAYERS if name not in EDGED))
def test_a_transposed_matrix_of_torch(name, pair, device):
    """PyG's ``adj.t()`` in each layout, square and, of a layer that takes a pair, with fewer targets."""
    square, edges = not pair, TO_TWO if pair else EDGES
    mine, peer = both(name, device, F_IN if square or name == "GIN" else (F_IN, F_IN))
    x = features(4, F_IN).to(device)
    given = x if square else (x, features(2, F_IN, seed=3).to(device))
    edges, expected = edges.to(device), peer(given, edges.to(device))
    ones = torch.ones(edges.shape[1], dtype=torch.float64, device=device)
    for make in (to_torch_csc_tensor, to_torch_csr_tensor, to_torch_coo_tensor):
        adj_t = make(edges, ones, size=(4, 4 if square else 2)).t()
        same(mine(given, adj_t), expected)
        if not square and name in ALONE:
            same(mine((x, None), adj_t), peer((x, None), edges, size=(4, 2)))


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_of_edges_and_of_a_matrix(name, device):
    mine, peer = both(name, device)
    x, edges, weight = on(device, (features(4, F_IN), EDGES, features(6, seed=9).abs()))
    agree(mine, peer, [x, edges, weight])
    adj_t = to_torch_csc_tensor(edges, weight, size=(4, 4)).t()
    same(mine(x, adj_t), peer(x, edges, weight))


@pytest.mark.parametrize("name", PAIRED)
def test_sources_and_targets_of_their_own(name, device):
    inside = F_IN if name in ("GIN", "GINE") else (F_IN, D)
    target = features(2, F_IN if name in ("GIN", "GINE") else D, seed=3)
    mine, peer = both(name, device, inside)
    assert str(mine) == str(peer)
    x, edges, attr = on(device, ((features(4, F_IN), target), TO_TWO, edge_attr(name, 4)))
    agree(mine, peer, [x, edges, *attr])
    if name in ALONE:
        for size in ((4, 2), (None, 2)):  # of which PyG's GATConv takes the first alone
            same(mine((x[0], None), edges, *attr, size=size), peer((x[0], None), edges, *attr, size=(4, 2)))
        same(mine(x, edges, *attr, size=(4, 2)), peer(x, edges, *attr, size=(4, 2)))


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_features_on_one_graph(name, device):
    mine, peer = both(name, device)
    attr = edge_attr(name, 6)
    agree(mine, peer, on(device, [features(3, 4, F_IN), EDGES, *attr]))
    x = on(device, features(3, 4, F_IN))
    for k, out in enumerate(mine(x, *on(device, [EDGES, *attr]))):
        same(out, mine(x[k], *on(device, [EDGES, *attr])))
    if name in PAIRED:
        pair = features(3, 4, F_IN), features(3, 2, F_IN, seed=3)
        mine, peer = both(name, device, F_IN if "GIN" in name else (F_IN, F_IN))
        agree(mine, peer, on(device, [pair, TO_TWO, *edge_attr(name, 4)]))


@pytest.mark.parametrize("name", LAYERS)
def test_edges_in_other_clothes(name, device):
    """Narrow integers, a view with strides, PyG's EdgeIndex in each order, and none at all."""
    mine, peer = both(name, device)
    x, edges, attr = on(device, (features(4, F_IN), EDGES, edge_attr(name, 6)))
    expected = peer(x, edges, *attr)
    wide = torch.stack([edges, edges], dim=-1)[..., 0]
    clothes = [edges.int(), wide, EdgeIndex(edges, sparse_size=(4, 4)), EdgeIndex(edges, sort_order="row")]
    by_target = edges.argsort(dim=1, stable=True)[1]
    for given in clothes:
        same(mine(x, given, *attr), expected)
    turned = EdgeIndex(edges[:, by_target], sparse_size=(4, 4), sort_order="col", is_undirected=True)
    same(mine(x, turned, *(a[by_target] for a in attr)), expected)
    none, no_attr = torch.empty(2, 0, dtype=torch.int64, device=device), [a[:0] for a in attr]
    same(mine(x, none, *no_attr), peer(x, none, *no_attr))
    if "Cheb" in name:  # PyG's takes the largest entry of a Laplacian that has none
        assert mine(x[:0], none).shape == (0, F_OUT)
    else:
        assert mine(x[:0], none, *no_attr).shape == peer(x[:0], none, *no_attr).shape


@pytest.mark.parametrize("name", ["GAT edges", "GATv2 edges"])
@pytest.mark.parametrize("fill", ["mean", "add", "min", "max", 0.5])
def test_features_of_added_loops(name, fill, device):
    edges = torch.tensor([[0, 1, 2, 3, 2], [1, 0, 1, 1, 2]])
    for options in ({}, {"edge_dim": 1}):
        mine, peer = both(name, device, fill_value=fill, **options)
        attr = features(5, *([] if options else [D]), seed=6)
        agree(mine, peer, on(device, [features(4, F_IN), edges, attr]))


@pytest.mark.parametrize("name", ["GAT edges", "GATv2 edges", "GAT", "Transformer"])
def test_edge_features_that_one_side_lacks(name, device):
    """A layer with ``edge_dim`` and no features; and GATConv, which leaves features alone that it has no map for."""
    mine, peer = both(name, device)
    given = on(device, [features(4, F_IN), EDGES])
    agree(mine, peer, given)
    if name == "GAT":
        agree(mine, peer, [*given, features(6, D).to(device)])


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_weights_in_each_form(name, device):
    x, edges, attr = on(device, (features(4, F_IN), EDGES, edge_attr(name, 6)))
    mine, peer = both(name, device)
    found, wanted = ([m(x, edges, *attr, return_attention_weights=flag) for flag in (True, None)] for m in (mine, peer))
    same(found[0], wanted[0])
    same(found[1], wanted[1])
    loops = 0 if "Transformer" in name else 4
    assert found[0][1][0].shape == (2, 6 + loops) and found[0][1][1].shape == (6 + loops, 2)
    if attr:
        return
    ones = torch.ones(6, dtype=torch.float64, device=device)
    for make in (to_torch_csc_tensor, to_torch_csr_tensor, to_torch_coo_tensor):
        given = make(edges, ones, size=(4, 4)).t()
        out, (adj, alpha) = mine(x, given, return_attention_weights=True)
        same(out, wanted[1])
        dense = torch.zeros(4, 4, 2, dtype=torch.float64, device=device)
        dense[wanted[0][1][0][1], wanted[0][1][0][0]] = wanted[0][1][1].detach()
        same(adj.detach().to_dense(), dense)
        assert adj.layout == given.layout and adj.shape == (4, 4, 2) and adj._nnz() == len(alpha) == 6 + loops


@pytest.mark.parametrize("name, pair", with_pairs(LAZY))
def test_sizes_from_the_first_call(name, pair, device):
    options = {"edge_dim": -1} if name in EDGED else {}
    mine, peer, other = (
        LAYERS[name](of, (-1, -1) if pair else -1, **options).to(device) for of in (ours, theirs, ours)
    )
    assert str(mine) == str(peer)
    assert list(mine.state_dict()) == list(peer.state_dict())
    copied = copy.deepcopy(pickle.loads(pickle.dumps(mine))).to(device)  # torch's open parameters forget theirs
    x = features(4, F_IN).float()
    given = [(x, features(2, D, seed=3).float()) if pair else x, TO_TWO if pair else EDGES]
    given = on(device, given + [e.float() for e in edge_attr(name, given[1].shape[1])])
    out = []
    for layer in (mine, peer, copied):
        torch.manual_seed(11)
        layer.reset_parameters()
        out.append(layer(*given))
    torch.testing.assert_close(out[2], out[0])
    torch.testing.assert_close(out[1], out[0], rtol=1e-4, atol=1e-5)
    peer.load_state_dict(mine.state_dict())
    other.load_state_dict(peer.state_dict())  # still open before
    torch.testing.assert_close(other(*given), out[0])
    torch.testing.assert_close(peer(*given), out[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_copies_files_and_fresh_parameters(name, device, tmp_path):
    mine, peer = both(name, device)
    given = on(device, [features(4, F_IN), EDGES, *edge_attr(name, 6)])
    expected = peer(*given)
    torch.save(mine, tmp_path / "layer.pt")
    stream = io.BytesIO()
    torch.save(mine.state_dict(), stream)
    stream.seek(0)
    loaded = LAYERS[name](theirs).double().to(device)
    loaded.load_state_dict(torch.load(stream, weights_only=True))
    from_file = torch.load(tmp_path / "layer.pt", weights_only=False)
    shallow, deep = copy.copy(mine), copy.deepcopy(mine)
    for layer in (loaded, from_file, shallow, deep, pickle.loads(pickle.dumps(mine))):
        same(layer(*given), expected)
    for p, q, r in zip(mine.parameters(), shallow.parameters(), deep.parameters(), strict=True):
        assert p.data_ptr() == q.data_ptr() != r.data_ptr()
    for layer in (mine, peer):
        torch.manual_seed(3)
        layer.reset_parameters()
    same(dict(mine.state_dict()), dict(peer.state_dict()))
    same(mine(*given), peer(*given))
    same(deep(*given), expected)


@pytest.mark.parametrize("size", [F_IN, F_OUT - 2])
@pytest.mark.parametrize("name", ["GCN", "GAT", "GATv2", "Transformer"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_features_that_are_sparse(name, size):
    """Layers that project before they gather take them, where they project to more columns as well; others say so. On
    the CPU: the product is torch's."""
    mine, peer = both(name, "cpu", size)
    x = torch.nn.functional.dropout(features(4, size), 0.6)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        same(mine(sparse, EDGES), peer(x, EDGES))
    with pytest.raises(TypeError, match=r"x must be one dense tensor, not torch\.sparse_coo"):
        both("GIN", "cpu", size)[0](x.to_sparse(), EDGES)


def test_a_layer_that_is_cached_later(device):
    mine, peer = both("GCN", device)
    x, edges = on(device, (features(4, F_IN), EDGES))
    for layer in (mine, peer):
        layer.cached = True
        layer(x, edges)
    same(mine(x, edges[:, :2]), peer(x, edges[:, :2]))


def doubled(calls, key, module, inputs, out):
    calls.append((key, tuple(out.shape)))
    return out * 2


@pytest.mark.parametrize("name", [name for name in LAYERS if name.split()[0] not in ("TAG", "Cheb")])
def test_hooks_of_modules(name, device):
    """Hooks of the layer and of its maps see what PyG's see, and may change it; docs/pyg.md has the two exceptions."""
    given = on(device, [features(4, F_IN), EDGES, *edge_attr(name, 6)])
    outs, seen = [], []
    for layer in both(name, device):
        calls = []
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2, *inputs[1:]))
        layer.register_forward_hook(lambda module, inputs, out: out + 1)
        for key, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Linear":
                module.register_forward_hook(functools.partial(doubled, calls, key))
        outs.append([layer(*given)])
        if name in ATTENTION:
            outs[-1] += layer.forward(*given, return_attention_weights=True)[1]
        seen.append(sorted(calls))
    same(*outs)
    assert seen[0] == seen[1]


TOOLS = {
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
    "prune": lambda lin: torch.nn.utils.prune.ln_structured(lin, "weight", 0.5, 2, 0),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in UNMAPPED])
def test_maps_whose_weights_are_made_of_others(name, tool, device):
    pair = both(name, device)
    for layer in pair:
        torch.manual_seed(1)
        for lin in [module for module in layer.modules() if type(module).__name__ == "Linear"]:
            TOOLS[tool](lin)
        layer.eval()  # in training spectral_norm improves its estimate at every look
    agree(*pair, on(device, [features(4, F_IN), EDGES, *edge_attr(name, 6)]))


@pytest.mark.parametrize(
    "make",
    [
        aggr.MeanAggregation,
        aggr.SumAggregation,
        aggr.MaxAggregation,
        lambda: aggr.SoftmaxAggregation(learn=True),
        aggr.PowerMeanAggregation,
        aggr.StdAggregation,
        lambda: aggr.MultiAggregation(["mean", "max"]),
        lambda: ["mean", "max", "sum", "softmax"],
    ],
    ids=["mean", "sum", "max", "softmax", "powermean", "std", "multi", "list"],
)
def test_aggregations_as_modules(make, device):
    mine, peer = both("SAGE", device, aggr=make())
    agree(mine, peer, on(device, [features(4, F_IN), TO_TWO]))


@pytest.mark.parametrize("mode", ["cat", "sum", "mean", "max"])
def test_aggregations_in_modes(mode, device):
    kinds = ["mean", "max", "sum", "softmax"]
    kwargs = {"mode": mode, "aggrs_kwargs": [{}, {}, {}, {"learn": True, "t": 1}]}
    mine, peer = both("SAGE", device, aggr=kinds, aggr_kwargs=kwargs)
    agree(mine, peer, on(device, [features(4, F_IN), TO_TWO]))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bad, place", [(-1, r"\[0, 1\] = -1"), (4, r"\[0, 1\] = 4")])
def test_indices_outside_are_named(name, bad, place, device):
    edges = EDGES.clone()
    edges[0, 1] = bad
    mine, _ = both(name, device)
    with pytest.raises(ValueError, match=rf"edge_index{place} is outside \[0, 4\)"):
        mine(*on(device, [features(4, F_IN), edges, *edge_attr(name, 6)]))
