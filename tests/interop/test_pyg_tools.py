"""PyG's tools on our layers give what they give on PyG's with the same weights, or refuse, as docs/pyg.md says."""

import copy
import pickle
import subprocess
import sys
import types
import warnings
from unittest import mock

import pytest
import torch
from support.machine import ROOT
from support.parity import on
from support.small_graph import NODES, features, graph

import fusedmm
from fusedmm import nn as ours

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric import explain, utils  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks  # noqa: E402
from torch_geometric.loader import NeighborLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
F, D = 6, 3  # of nodes, and of edges
EDGES = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")]
METADATA = ["paper", "author"], EDGES


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(F, F), torch.nn.ReLU(), torch.nn.Linear(F, F))


LAYERS = {  # each gives F features, and takes pairs of nodes where PyG's does
    "GCN": lambda m: m.GCNConv(F, F, add_self_loops=False),
    "GCN loops": lambda m: m.GCNConv(F, F),
    "SAGE": lambda m: m.SAGEConv(F, F, project=True),
    "SAGE learnt": lambda m: m.SAGEConv(F, F, aggr=["max", "softmax"], aggr_kwargs={"aggrs_kwargs": [{}, LEARNT]}),
    "GIN": lambda m: m.GINConv(mlp(), 0.3, True),
    "GINE": lambda m: m.GINEConv(mlp(), edge_dim=D),
    "GAT": lambda m: m.GATConv((F, F), 2, heads=3, edge_dim=D, add_self_loops=False),
    "GAT loops": lambda m: m.GATConv(F, F, heads=2, concat=False, residual=True),
    "GATv2": lambda m: m.GATv2Conv(F, 2, heads=3, edge_dim=D, add_self_loops=False),
    "Transformer": lambda m: m.TransformerConv(F, 2, heads=3, beta=True, edge_dim=D),
    "AGNN": lambda m: m.AGNNConv(add_self_loops=False),
}
LEARNT = {"t": 0.7, "learn": True, "channels": F}
EDGED = ("GINE", "GAT", "GATv2", "Transformer")
ALONE = ("GCN", "GCN loops", "AGNN")  # one kind of nodes
LOOPED = ("GCN loops", "GAT loops")


class Net(torch.nn.Module):
    """Two layers, with what their edges carry."""

    def __init__(self, name):
        super().__init__()
        self.conv1, self.conv2, self.lin = LAYERS[name](pyg), LAYERS[name](pyg), pyg.Linear(F, 4)

    def forward(self, x, edge_index, *edge_attr):
        return self.lin(self.conv2(self.conv1(x, edge_index, *edge_attr).relu(), edge_index, *edge_attr))


class Edged(Net):
    """The same with a named argument, as torch.fx needs it."""

    def forward(self, x, edge_index, edge_attr):
        return self.lin(self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr))


class Plain(Net):
    def forward(self, x, edge_index):
        return self.lin(self.conv2(self.conv1(x, edge_index).relu(), edge_index))


def net(name, device="cpu"):
    torch.manual_seed(5)
    model = (Edged if name in EDGED else Plain)(name).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)  # biases and eps start at zero, which would hide them
    return model.to(device)


def swapped(model):
    """A copy with our layers."""
    done = ours.convert(copy.deepcopy(model))
    assert done.swapped and not done.left
    return done.model


def inputs(name, device="cpu"):
    attr = [features(40, D, seed=6)] if name in EDGED else []
    return on(device, [features(NODES, F), graph(loops=name != "AGNN"), *attr])


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def alike(found, expected):
    """Masks that were trained: on CUDA PyG adds messages up in any order, and training makes more of that."""
    close = {"rtol": 1e-9, "atol": 1e-11} if found.device.type == "cpu" else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found, expected, **close)


def with_gradients(model, args):
    """The result, and the gradients of all parameters that have one."""
    out = model(*args)
    total = sum(o.square().sum() for o in out.values()) if isinstance(out, dict) else out.square().sum()
    wanted = [p for p in model.parameters() if p.requires_grad]
    return out, [g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None]


def hetero_inputs(name, kinds, device="cpu"):
    attr = [{k: features(40, D, seed=7 + s) for s, k in enumerate(kinds)}] if name in EDGED else []
    x = {"paper": features(NODES, F), "author": features(NODES, F, seed=8)}
    nodes = {t for k in kinds for t in (k[0], k[2])}
    edges = {k: graph(loops=name != "AGNN", seed=s) for s, k in enumerate(kinds)}
    return on(device, [{t: x[t] for t in nodes}, edges, *attr])


def metadata(name):
    kinds = [("paper", "cites", "paper"), ("paper", "likes", "paper")] if name in (*ALONE, *LOOPED) else EDGES
    return ([t for t in METADATA[0] if any(t in k for k in kinds)], kinds)


def quiet(f, *args, **kwargs):
    torch.manual_seed(9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args, **kwargs)


# ---- what each line of the table says ----


def to_hetero(device, transform=pyg.to_hetero, names=tuple(LAYERS), **options):
    for name in names:
        meta, model = metadata(name), net(name, device)
        args = hetero_inputs(name, meta[1], device)
        expected = quiet(transform, copy.deepcopy(model), meta, **options)
        before = quiet(transform, swapped(model), meta, **options)
        assert any(isinstance(m, ours.layer.Layer) for m in before.modules())
        same(with_gradients(before, args), with_gradients(expected, args))
        after = ours.convert(copy.deepcopy(expected))
        same(with_gradients(after.model, args), with_gradients(expected, args))
        yield name, before, after


def check_to_hetero(device):
    for _, _, after in to_hetero(device):
        assert len(after.swapped) in (4, 6) and not after.left


def check_to_hetero_with_bases(device):
    """PyG refuses added loops, and attention, whose messages have heads."""
    names = ["GCN", "SAGE", "SAGE learnt", "GIN", "GINE", "AGNN"]
    for _, before, after in to_hetero(device, pyg.to_hetero_with_bases, names, num_bases=3):
        assert not after.swapped and set(after.left.values()) == {"it has hooks"}
        assert before.conv1.convs[0]._watched


def check_hetero_conv(device):
    make = {EDGES[0]: "GCN loops", EDGES[1]: "SAGE", EDGES[2]: "GAT"}
    torch.manual_seed(0)
    model = quiet(pyg.HeteroConv, {kind: LAYERS[name](pyg) for kind, name in make.items()}).double().to(device)
    x, edges, _ = hetero_inputs("GAT", EDGES, device)
    attr = {EDGES[2]: features(40, D).to(device)}
    mine = quiet(pyg.HeteroConv, {kind: ours.convert(copy.deepcopy(model.convs[kind])).model for kind in make})
    for found in (mine, swapped(model)):
        same(found(x, edges, edge_attr_dict=attr), model(x, edges, edge_attr_dict=attr))


def check_to_hetero_message_passing(device):
    from torch_geometric.nn.to_hetero_module import ToHeteroMessagePassing

    conv, (x, edges) = LAYERS["SAGE"](pyg).double().to(device), hetero_inputs("SAGE", EDGES, device)
    mine, peer = (quiet(ToHeteroMessagePassing, c, *METADATA) for c in (swapped(conv), conv))
    same(mine(x, edges), peer(x, edges))


def check_sequential(device):
    layers = [(LAYERS["GCN"](pyg), "x, edge_index -> x"), torch.nn.ReLU(), (LAYERS["SAGE"](pyg), "x, edge_index -> x")]
    model = pyg.Sequential("x, edge_index", layers).double().to(device)
    mine = pyg.Sequential("x, edge_index", [(swapped(a[0]), a[1]) if isinstance(a, tuple) else a for a in layers])
    args = inputs("SAGE", device)
    same(with_gradients(mine.double(), args), with_gradients(model, args))
    same(with_gradients(swapped(model), args), with_gradients(model, args))


class OfOurs(pyg.GraphSAGE):
    def init_conv(self, in_channels, out_channels, **kwargs):
        return ours.SAGEConv(in_channels, out_channels, **kwargs)


def basic(make=pyg.GraphSAGE, device="cpu"):
    torch.manual_seed(3)
    return make(F, 8, 2, 4).double().to(device).eval()


def check_basic_gnn(device):
    args = inputs("SAGE", device)
    same(with_gradients(basic(OfOurs, device), args), with_gradients(basic(device=device), args))
    for make in (pyg.GCN, pyg.GraphSAGE, pyg.GIN, pyg.GAT):
        same(with_gradients(swapped(basic(make, device)), args), with_gradients(basic(make, device), args))


class Whole(NeighborLoader):
    """One batch, which is the graph; the real loader needs a sampler that is not among the tests' packages."""

    def __init__(self, data):
        vars(self)["dataset"], vars(self)["data"] = range(data.num_nodes), data
        vars(self)["node_sampler"] = type("Sampler", (), {"num_neighbors": [-1]})

    def __iter__(self):
        return iter([Data(n_id=torch.arange(NODES), edge_index=self.data.edge_index, batch_size=NODES)])

    def __len__(self):
        return 1


def check_inference(device):
    x, edge_index = inputs("SAGE", device)
    model, loader = basic(device=device), Whole(Data(x, edge_index))
    same(swapped(model).inference(loader, device, device), model.inference(loader, device, device))


def check_trim_to_layer(device):
    x, edge_index = inputs("SAGE", device)
    edge_index = edge_index[:, edge_index[1].argsort()]
    hops = {"num_sampled_nodes_per_hop": [4, 4, 3], "num_sampled_edges_per_hop": [15, 25]}
    edge_index[1, :15] %= 4
    edge_index[0, :15] %= 8
    edge_index[1, 15:] %= 8
    model = basic(device=device)
    same(swapped(model)(x, edge_index, **hops), model(x, edge_index, **hops))


class Pooled(Plain):
    def __init__(self, name):
        super().__init__(name)
        self.pool = pyg.SumAggregation()

    def forward(self, x, edge_index, batch):
        return self.pool(self.conv1(x, edge_index), batch)


def check_to_fixed_size(device):
    torch.manual_seed(0)
    model, args = Pooled("GAT loops").double().to(device), inputs("GAT loops", device)
    batch = torch.arange(NODES, device=device) // 6
    mine, peer = (pyg.to_fixed_size(m, 3) for m in (swapped(model), model))
    assert mine(*args, batch).shape == (3, F)
    same(mine(*args, batch), peer(*args, batch))


def check_dir_gnn_conv(device):
    for name in ("GCN loops", "SAGE", "GAT loops"):
        conv, args = LAYERS[name](pyg).to(device).double(), inputs(name, device)
        mine, peer = (quiet(pyg.DirGNNConv, c, root_weight=False) for c in (swapped(conv), conv))
        same(with_gradients(mine, args), with_gradients(peer, args))


def check_summary(device):
    model, args = net("GAT", device), inputs("GAT", device)
    tabulate = types.SimpleNamespace(tabulate=lambda rows, **_: str(rows))  # a package that only draws the table
    with mock.patch.dict(sys.modules, tabulate=tabulate):
        text = pyg.summary(swapped(model), *args)
        assert text == pyg.summary(model, *args) and "conv1" in text and "lin_src" not in text


def check_get_num_hops(device):
    for name in LAYERS:
        assert utils.get_num_hops(swapped(net(name, device))) == 2


def check_get_embeddings(device):
    for name in LAYERS:
        model, args = net(name, device), inputs(name, device)
        found = utils.get_embeddings(swapped(model), *args)
        assert len(found) == 2
        same(found, utils.get_embeddings(model, *args))


def check_get_embeddings_hetero(device):
    model = quiet(pyg.to_hetero, net("SAGE", device), METADATA)
    args = hetero_inputs("SAGE", EDGES, device)
    found = utils.get_embeddings_hetero(swapped(model), None, *args)
    assert found
    same(found, utils.get_embeddings_hetero(model, None, *args))


def explainer(model, algorithm, edge_mask_type="object", **options):
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    return explain.Explainer(
        model, algorithm, explanation_type="model", edge_mask_type=edge_mask_type, model_config=config, **options
    )


def explained(device, make, names=tuple(LAYERS), **options):
    """Each explanation is PyG's, and behind it our layers compute as before."""
    for name in names:
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        named = {"edge_attr": attr[0]} if attr else {}
        mine, found = swapped(model), []
        before = mine(x, edge_index, *attr)
        for one in (mine, model):
            run = quiet(explainer, one, make(), **options)
            found.append(quiet(run, x, edge_index, index=2, **named))
        for key in ("edge_mask", "node_mask"):
            if key in found[1]:
                alike(found[0][key], found[1][key])
                assert found[0][key].any()
        assert torch.equal(mine(x, edge_index, *attr), before) and not mine.conv1._watched


def check_gnn_explainer(device):
    explained(device, lambda: explain.GNNExplainer(epochs=3), node_mask_type="attributes")


def check_attention_explainer(device):
    explained(device, explain.AttentionExplainer, ("GAT", "GAT loops", "GATv2", "Transformer"))


def check_pg_explainer(device):
    for name in ("GCN loops", "GAT"):
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        found, named = [], {"edge_attr": attr[0]} if attr else {}
        config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
        for one in (swapped(model), model):
            torch.manual_seed(1)
            algorithm = explain.PGExplainer(epochs=2).to(device).double()
            run = explain.Explainer(
                one, algorithm, explanation_type="phenomenon", edge_mask_type="object", model_config=config
            )
            target = torch.zeros(NODES, dtype=torch.long, device=device)
            for epoch in range(2):
                quiet(algorithm.train, epoch, one, x, edge_index, target=target, index=2, **named)
            found.append(quiet(run, x, edge_index, target=target, index=2, **named).edge_mask)
        assert found[0].any()
        alike(*found)


def check_graph_mask_explainer(device):
    for name in ("GCN", "SAGE"):
        model, (x, edge_index) = net(name, device).float(), inputs(name, device)
        found = []
        for one in (swapped(model), model):
            algorithm = explain.GraphMaskExplainer(2, epochs=2, log=False).to(device)
            found.append(quiet(explainer(one, algorithm), x.float(), edge_index, index=2).edge_mask)
        alike(*found)


def check_to_captum_model(device):
    for name in LAYERS:
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        mask = torch.rand(1, 40, dtype=torch.float64, device=device, requires_grad=True)
        found = []
        for one in (swapped(model), model):
            of_edges = pyg.to_captum_model(one, "edge", 2)(mask, x, edge_index, *attr)
            of_both = pyg.to_captum_model(one, "node_and_edge", 2)(x[None], mask, edge_index, *attr)
            of_nodes = pyg.to_captum_model(one, "node", 2)(x[None], edge_index, *attr)
            found.append([of_edges, of_both, of_nodes, *torch.autograd.grad(of_edges.sum(), mask)])
        same(*found)


def floats(t):
    return isinstance(t, torch.Tensor) and t.is_floating_point()


def check_hooks(device):
    """Each of PyG's hooks, which all change what they see."""
    changes = {
        "register_propagate_forward_pre_hook": lambda m, i: (i[0].flip(1), *i[1:]),
        "register_propagate_forward_hook": lambda m, i, out: 2 * out,
        "register_message_forward_pre_hook": lambda m, i: ({k: 2 * t if floats(t) else t for k, t in i[0].items()},),
        "register_message_forward_hook": lambda m, i, out: out.cos(),
        "register_aggregate_forward_pre_hook": lambda m, i: ({**i[0], "index": i[0]["index"].roll(1)},),
        "register_aggregate_forward_hook": lambda m, i, out: out - 1,
    }
    for name in LAYERS:
        layer, args = LAYERS[name](pyg).double().to(device), inputs(name, device)
        mine = swapped(layer)
        plain = mine(*args)
        for register, change in changes.items():
            handles = [getattr(one, register)(change) for one in (mine, layer)]
            same(with_gradients(mine, args), with_gradients(layer, args))
            for handle in handles:
                handle.remove()
        assert torch.equal(mine(*args), plain) and not mine._watched


def check_set_masks(device):
    for name in LAYERS:
        model, args = net(name, device), inputs(name, device)
        mine, found, mask = swapped(model), [], features(40, seed=4).to(device).requires_grad_()
        for one in (mine, model):
            set_masks(one, mask, args[1])
            found.append([with_gradients(one, args), *torch.autograd.grad(one(*args).sum(), mask)])
            clear_masks(one)
        same(*found)
        same(mine(*args), model(*args))


def check_deepcopy(device):
    model, args = swapped(net("GAT", device)), inputs("GAT", device)
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(one(*args), model(*args)) and isinstance(one.conv1, pyg.MessagePassing)


def check_compile(device):
    torch._dynamo.reset()
    layer, args = LAYERS["GCN loops"](ours).double().to(device), inputs("GCN loops", device)
    same(torch.compile(layer, backend="eager")(*args), layer(*args))


def check_cached(device):
    layer, args = pyg.GCNConv(F, F, cached=True).double().to(device), inputs("GCN", device)
    mine = swapped(layer)
    same(mine(*args), layer(*args))
    for act in (lambda: setattr(mine, "explain", True), lambda: mine.register_message_forward_hook(print)):
        with pytest.raises(ValueError, match=r"^GCNConv: .* needs the graph of each call: set cached to False"):
            act()
    same(mine(*args), layer(*args))


def check_csr(device):
    mine, (x, edge_index) = ours.GATConv(F, F).double().to(device), inputs("GAT loops", device)
    adj = fusedmm.CSR.from_edge_index(edge_index, size=NODES)
    before = mine(x, adj)
    handle = mine.register_message_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match=r"^GATConv: .* needs an edge_index or adj_t, not a CSR"):
        mine(x, adj)
    handle.remove()
    assert torch.equal(mine(x, adj), before)


def check_jit(device):
    mine, args = ours.GATConv(F, F).double().to(device), inputs("GAT loops", device)
    with pytest.raises(RuntimeError, match=r"^GATConv: torch\.jit\.trace does not take this layer"):
        torch.jit.trace(mine, args, check_trace=False)
    with pytest.raises(RuntimeError):
        torch.jit.script(mine)


TOOLS = {
    "`to_hetero`": check_to_hetero,
    "`to_hetero_with_bases`": check_to_hetero_with_bases,
    "`HeteroConv`": check_hetero_conv,
    "`ToHeteroMessagePassing`": check_to_hetero_message_passing,
    "`Sequential`": check_sequential,
    "`BasicGNN`": check_basic_gnn,
    "`BasicGNN.inference`": check_inference,
    "`trim_to_layer`": check_trim_to_layer,
    "`to_fixed_size`": check_to_fixed_size,
    "`DirGNNConv`": check_dir_gnn_conv,
    "`summary`": check_summary,
    "`get_num_hops`": check_get_num_hops,
    "`get_embeddings`": check_get_embeddings,
    "`get_embeddings_hetero`": check_get_embeddings_hetero,
    "`GNNExplainer`": check_gnn_explainer,
    "`PGExplainer`": check_pg_explainer,
    "`GraphMaskExplainer`": check_graph_mask_explainer,
    "`AttentionExplainer`": check_attention_explainer,
    "`to_captum_model`": check_to_captum_model,
    "`set_masks`, `clear_masks`": check_set_masks,
    "hooks of messages": check_hooks,
    "any of these where `cached` is set": check_cached,
    "any of these with a `CSR`": check_csr,
    "`copy.deepcopy`, `pickle`": check_deepcopy,
    "`torch.compile`": check_compile,
    "`torch.jit`": check_jit,
}
REFUSED = (check_cached, check_csr, check_jit)


def table():
    """The lines of docs/pyg.md's table of tools: tool, what becomes of it, since when."""
    text = (ROOT / "docs" / "pyg.md").read_text().split("## Tools")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip("| ") for cell in line] for line in lines[2:]]


def test_the_table_has_every_tool_and_no_other():
    assert [line[0] for line in table()] == list(TOOLS)
    version = [int(n) for n in fusedmm.__version__.split(".")[:2]]
    for _, _, since in table():
        assert [int(n) for n in since.split(".")] <= version


@pytest.mark.parametrize("tool", TOOLS)
def test_each_line_of_the_table_is_true(tool, device, monkeypatch):
    check, calls, by_messages = TOOLS[tool], [], ours.layer.Layer.by_messages
    monkeypatch.setattr(ours.layer.Layer, "by_messages", lambda *args: calls.append(1) or by_messages(*args))
    check(device)
    result = "refused" if check in REFUSED else "works by messages" if calls else "works"
    assert dict(line[:2] for line in table())[tool] == result


ORDERS = """
import pickle, sys
import fusedmm
assert "torch_geometric" not in sys.modules
early = fusedmm.nn.GATConv(3, 2)
try:
    early.explain = True
    assert False
except ValueError as error:
    assert str(error).startswith("GATConv: what watches messages needs torch_geometric"), error
loaded = pickle.load(open(sys.argv[1], "rb"))  # of a process that had torch_geometric
(ours,) = [finder for finder in sys.meta_path if type(finder).__module__ == "fusedmm.nn.layer"]
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import get_num_hops
assert ours not in sys.meta_path
for layer in (early, loaded, fusedmm.nn.GCNConv(3, 2)):
    assert isinstance(layer, MessagePassing) and get_num_hops(layer) == 1
    layer.explain = True
"""


def test_orders_of_import(tmp_path):
    (tmp_path / "layer").write_bytes(pickle.dumps(ours.SAGEConv(3, 2)))
    subprocess.run([sys.executable, "-c", ORDERS, tmp_path / "layer"], check=True, cwd=ROOT)
