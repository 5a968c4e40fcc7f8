"""PyG's basic_gnn models and wrappers with our layers in them, as its own tests ask; every number is PyG's."""

import copy
import pickle

import pytest
import torch
from support.neighbours import Neighbours
from support.parity import on, ours, results, theirs
from support.small_graph import features
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import models
from torch_geometric.utils import to_torch_csc_tensor

import fusedmm

F_IN, HIDDEN, F_OUT, NODES = 6, 8, 4, 9
EDGES = torch.randint(NODES, (2, 25), generator=torch.Generator().manual_seed(0))


class OurGCN(models.GCN):
    def init_conv(self, in_channels, out_channels, **kwargs):
        return ours.GCNConv(in_channels, out_channels, **kwargs)


class OurSAGE(models.GraphSAGE):
    def init_conv(self, in_channels, out_channels, **kwargs):
        return ours.SAGEConv(in_channels, out_channels, **kwargs)


class OurGIN(models.GIN):
    def init_conv(self, in_channels, out_channels, **kwargs):
        norm = {"norm": self.norm, "norm_kwargs": self.norm_kwargs}
        mlp = models.MLP([in_channels, out_channels, out_channels], act=self.act, act_first=self.act_first, **norm)
        return ours.GINConv(mlp, **kwargs)


class OurGAT(models.GAT):
    def init_conv(self, in_channels, out_channels, v2=False, heads=1, concat=True, **kwargs):
        kind = ours.GATv2Conv if v2 else ours.GATConv
        width = out_channels // heads if concat else out_channels
        return kind(in_channels, width, heads=heads, concat=concat, dropout=self.dropout.p, **kwargs)


MODELS = {
    "GCN": (models.GCN, OurGCN, {}),
    "GraphSAGE": (models.GraphSAGE, OurSAGE, {}),
    "GIN": (models.GIN, OurGIN, {}),
    "GAT": (models.GAT, OurGAT, {"heads": 2}),
    "GATv2": (models.GAT, OurGAT, {"v2": True, "heads": 4}),
}
ACTS = [None, "leaky_relu", torch.relu_, torch.nn.functional.elu, torch.nn.ReLU()]
NORMS = [None, "batch_norm", "layer_norm", "graph_norm", "pair_norm"]
JKS = [None, "last", "cat", "max", "lstm"]


def pair(name, device="cpu", num_layers=3, size=F_IN, **options):
    """PyG's model, and the same converted, with the same parameters, none of which is at its first value."""
    kind, _, more = MODELS[name]
    torch.manual_seed(2)
    peer = kind(size, HIDDEN, num_layers, **more, **options).double().to(device)
    with torch.no_grad():
        for p in peer.parameters():
            p.add_(0.3 * features(*p.shape, seed=4).to(device))
    mine = ours.convert(copy.deepcopy(peer), report=True)
    assert len(mine.swapped) == num_layers and not mine.left
    return mine.model, peer


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("jk", JKS)
@pytest.mark.parametrize("name", MODELS)
def test_norms_activations_and_jumps(name, jk, device):
    """Every norm with every mode of jumping, and with each every activation in some order."""
    x, edges = on(device, (features(NODES, F_IN), EDGES))
    for k, norm in enumerate(NORMS):
        n = k + JKS.index(jk) + list(MODELS).index(name)
        options = {"act": ACTS[n % 5], "act_first": n % 2 == 1, "out_channels": F_OUT if n % 3 else None, "jk": jk}
        mine, peer = pair(name, device, norm=norm, dropout=0.5, **options)
        assert str(mine) == str(peer)
        for training in (False, True):
            for model in (mine, peer):
                model.train(training)
                if training:
                    model.dropout.p = 0.0
                    for conv in model.convs:
                        conv.dropout = 0.0
            if training:
                same(results(mine, [x, edges]), results(peer, [x, edges]))
            else:
                same(mine(x, edges), peer(x, edges))
        same(dict(mine.state_dict()), dict(peer.state_dict()))  # running statistics too


@pytest.mark.parametrize("name", MODELS)
def test_models_by_subclassing(name, device):
    """The other way to have our layers: the same parameters are drawn from a seed, and dropout's masks agree."""
    kind, mine_kind, more = MODELS[name]
    built = []
    for of in (mine_kind, kind):
        torch.manual_seed(8)
        built.append(of(F_IN, HIDDEN, 2, F_OUT, norm="batch_norm", jk="cat", **more).double().to(device))
    mine, peer = built
    same(dict(mine.state_dict()), dict(peer.state_dict()))
    x, edges = on(device, (features(NODES, F_IN), EDGES))
    mine.dropout.p = peer.dropout.p = 0.5
    outs = []
    for model in built:
        torch.manual_seed(1)
        outs.append(model(x, edges))
    same(*outs)
    for model in built:
        torch.manual_seed(9)
        model.reset_parameters()
    same(dict(mine.state_dict()), dict(peer.state_dict()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_few_layers_and_open_sizes(name, num_layers, device):
    x, edges = on(device, (features(NODES, F_IN).float(), EDGES))
    kind, _, more = MODELS[name]
    for jk in (None, "max"):
        mine, peer = pair(name, device, num_layers, out_channels=F_OUT, jk=jk)
        same(mine(x.double(), edges), peer(x.double(), edges))
        if name == "GIN":
            continue
        peer = kind(-1, HIDDEN, num_layers, out_channels=F_OUT, jk=jk, **more).to(device)
        mine = ours.convert(copy.deepcopy(peer))
        torch.manual_seed(4)
        out = mine(x, edges)
        torch.manual_seed(4)
        torch.testing.assert_close(out, peer(x, edges), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", MODELS)
def test_weights_features_of_edges_and_matrices(name, device):
    options = {"edge_dim": 3} if "GAT" in name else {}
    mine, peer = pair(name, device, **options)
    x, edges, weight, attr = on(device, (features(NODES, F_IN), EDGES, features(25).abs(), features(25, 3)))
    extra = {"edge_weight": weight} if name == "GCN" else {"edge_attr": attr} if options else {}
    same(mine(x, edges, **extra), peer(x, edges, **extra))
    if not options:
        loopless = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1).to(device)
        adj_t = to_torch_csc_tensor(loopless, size=(NODES, NODES)).t().to(torch.float64)
        for graph in (adj_t, fusedmm.as_csr(loopless, size=NODES)):
            same(mine(x, graph), peer(x, loopless))
        return
    same(mine(x, edges), peer(x, edges))


@pytest.mark.parametrize("name", MODELS)
def test_only_what_a_hop_needs(name, device):
    """Sampled sizes per hop: what later layers need no more is cut off, and the seeds' result stays."""
    edges = torch.tensor([[2, 3, 4, 5, 6, 6, 7, 8], [0, 1, 2, 3, 2, 3, 4, 5]])
    mine, peer = pair(name, device, 3)
    x, edges = on(device, (features(NODES, F_IN), edges))
    sizes = {"num_sampled_nodes_per_hop": [2, 2, 3, 2], "num_sampled_edges_per_hop": [2, 4, 2]}
    whole, cut, expected = mine(x, edges), mine(x, edges, **sizes), peer(x, edges, **sizes)
    same(cut, expected)
    if name != "GCN":  # whose nodes at the rim have other degrees then
        same(cut[:2], whole[:2])


@pytest.mark.parametrize("norm", ["graph_norm", "instance_norm"])
def test_norms_that_want_the_batch(norm, device):
    mine, peer = pair("GCN", device, norm=norm)
    batch = torch.arange(NODES, device=device) // 5
    x, edges = on(device, (features(NODES, F_IN), EDGES[:, (EDGES // 5).diff(dim=0)[0] == 0]))
    for more in ({"batch": batch}, {"batch": batch, "batch_size": 2}):
        same(mine(x, edges, **more), peer(x, edges, **more))


@pytest.mark.parametrize("jk", [None, "last"])
@pytest.mark.parametrize("name", MODELS)
def test_inference_layer_by_layer(name, jk, device):
    data = Data(x=features(NODES, F_IN), edge_index=EDGES)
    mine, peer = (model.eval() for model in pair(name, device, 2, out_channels=F_OUT, jk=jk))
    whole = peer(*on(device, (data.x, data.edge_index))).cpu()
    for batch_size, cache in ((4, False), (NODES, True)):
        loader = NeighborLoader(data, [-1], batch_size=batch_size, neighbor_sampler=Neighbours(EDGES))
        place = {"device": device, "embedding_device": device if cache else "cpu"}  # the cache moves its indices
        expected = peer.inference(loader, cache=cache, **place)
        same(mine.inference(loader, cache=cache, **place), expected)
        if name != "GCN":  # whose sources have other degrees within a neighbourhood
            same(expected.cpu(), whole)


@pytest.mark.parametrize("name", MODELS)
def test_files_copies_and_packages(name, device, tmp_path):
    mine, peer = pair(name, device, norm="batch_norm", jk="cat", out_channels=F_OUT)
    x, edges = on(device, (features(NODES, F_IN), EDGES))
    mine.eval(), peer.eval()
    torch.save(mine, tmp_path / "model.pt")
    path = tmp_path / "package.pt"
    with torch.package.PackageExporter(path) as exporter:
        exporter.extern(["torch_geometric.**", "fusedmm.**", "_operator", "numpy.**"])
        exporter.save_pickle("models", "model.pkl", mine)
    packaged = torch.package.PackageImporter(path).load_pickle("models", "model.pkl")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for model in (loaded, packaged, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        same(model(x, edges), peer(x, edges))


@pytest.mark.parametrize("name", MODELS)
def test_compiled_models(name):
    """One graph, with a CSR that the model has seen; outputs and gradients are the same."""
    torch._dynamo.reset()
    mine, peer = pair(name, num_layers=2)
    x, adj = features(NODES, F_IN), fusedmm.as_csr(EDGES, size=NODES).cache_transpose()
    expected = results(peer, [x, EDGES])
    same(results(mine, [x, adj]), expected)
    same(results(torch.compile(mine, backend="eager", fullgraph=True), [x, adj]), expected)


@pytest.mark.parametrize("name", ["GraphSAGE", "GIN", "GAT"])
def test_exported_models(name):
    """The program takes a CSR; of loops that a layer would add it needs to be told beforehand."""
    options = {"add_self_loops": False} if name == "GAT" else {}
    mine, peer = pair(name, num_layers=2, **options)
    x, adj = features(NODES, F_IN), fusedmm.as_csr(EDGES, size=NODES).cache_transpose()
    program = torch.export.export(mine.eval(), (x, adj), strict=False).module()
    same(program(x, adj), peer.eval()(x, EDGES))


# ---- layers in PyG's wrappers ----


class Encoder(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.first, self.second = of.GCNConv(F_IN, HIDDEN, cached=True), of.GCNConv(HIDDEN, F_OUT, cached=True)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu_(), edge_index)


def sequential(of):
    steps = [
        (of.GCNConv(F_IN, HIDDEN), "x, edge_index -> x"),
        torch.nn.ReLU(inplace=True),
        (of.GATConv(HIDDEN, 4, heads=2), "x, edge_index -> y"),
        (lambda x, y: x + y, "x, y -> x"),
        torch.nn.Linear(HIDDEN, F_OUT),
    ]
    return theirs.Sequential("x, edge_index", steps)


def deep(block):
    def make(of):
        layer = theirs.DeepGCNLayer(
            of.SAGEConv(F_IN, F_IN), torch.nn.LayerNorm(F_IN), torch.nn.ReLU(), block, dropout=0.0, ckpt_grad=True
        )
        return layer

    return make


def infomax(of):
    encoder = of.GCNConv(F_IN, HIDDEN)
    return theirs.DeepGraphInfomax(HIDDEN, encoder, lambda z, *_: z.mean(0).sigmoid(), lambda x, e: (x.flip(0), e))


WRAPPERS = {
    "Sequential": sequential,
    **{f"DeepGCNLayer {block}": deep(block) for block in ("res+", "res", "dense", "plain")},
    "GroupAddRev": lambda of: theirs.GroupAddRev(of.SAGEConv(F_IN // 2, F_IN // 2), num_groups=2),
    "GAE": lambda of: theirs.GAE(Encoder(of)),
    "ARGA": lambda of: theirs.ARGA(Encoder(of), torch.nn.Linear(F_OUT, 1)),
    "DeepGraphInfomax": infomax,
    "SAGPooling": lambda of: theirs.SAGPooling(F_IN, 0.5, GNN=of.GATConv),
    "ASAPooling": lambda of: theirs.ASAPooling(F_IN, 0.5, GNN=of.GCNConv),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers(name, device):
    """Outputs and gradients of x and the parameters, in float64 but for what PyG can in float32 alone."""
    dtype = torch.float32 if name == "ASAPooling" else torch.float64
    found = []
    for of in (ours, theirs):
        torch.manual_seed(3)
        model = WRAPPERS[name](of).to(device, dtype)
        x = features(NODES, F_IN).to(device, dtype).requires_grad_()
        out = model(x * 1, EDGES.to(device))
        outs = [t for t in (out if isinstance(out, tuple) else [out]) if isinstance(t, torch.Tensor)]
        kept = [t.detach().clone() for t in outs]
        sum(t.square().sum() for t in outs if t.requires_grad).backward()
        found.append([*kept, x.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9 if dtype == torch.float64 else 1e-4, atol=1e-5)


def test_a_layer_per_relation(device):
    """PyG's HeteroConv over layers whose sizes are open."""
    kinds = {"a": features(5, F_IN), "b": features(4, 3)}
    edges = {
        ("a", "to", "b"): torch.tensor([[0, 1, 4], [0, 1, 3]]),
        ("b", "to", "a"): torch.tensor([[0, 1, 2], [3, 1, 4]]),
        ("a", "by", "a"): torch.tensor([[0, 1, 2], [1, 2, 4]]),
    }
    kinds, edges = on(device, ({k: x.float() for k, x in kinds.items()}, edges))
    for aggr in ("sum", "mean", "max", "cat"):
        found = []
        for of in (ours, theirs):
            layers = of.SAGEConv((-1, -1), 4), of.GATConv((-1, -1), 4, add_self_loops=False), of.GCNConv(-1, 4)
            model = theirs.HeteroConv(dict(zip(edges, layers, strict=True)), aggr=aggr).to(device)
            torch.manual_seed(6)
            model.reset_parameters()
            found.append(model(kinds, edges))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_an_autoencoder_of_links(device):
    x, edges = on(device, (features(NODES, F_IN), EDGES))
    found = []
    for of in (ours, theirs):
        torch.manual_seed(3)
        model = theirs.GAE(Encoder(of)).double().to(device)
        z = model.encode(x, edges)
        loss = model.recon_loss(z, edges, torch.stack([edges[0], edges[1].flip(0)]))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    same(*found)


class OurUNet(models.GraphUNet):
    """Its two hops by a sparse product, as docs/spgemm.md has them."""

    def augment_adj(self, edge_index, edge_weight, num_nodes):
        a = fusedmm.CSR.from_coo(*edge_index, edge_weight, shape=(num_nodes, num_nodes)).add_self_loops()
        row, col, val = (a @ a).coo()
        apart = row != col
        return torch.stack([row, col])[:, apart], val[apart]


def test_graph_u_net():
    """Two hops before each pooling; PyG multiplies by torch.sparse. Weights are learnt through both."""
    torch.manual_seed(0)
    their = models.GraphUNet(F_IN, HIDDEN, F_OUT, depth=2).double()
    our = OurUNet(F_IN, HIDDEN, F_OUT, depth=2).double()
    our.load_state_dict(their.state_dict())
    our = ours.convert(our)
    edges = EDGES[:, EDGES[0] != EDGES[1]]
    x, y = features(NODES, F_IN).requires_grad_(), features(NODES, F_IN).requires_grad_()
    expected, found = their(x, edges), our(y, edges)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
