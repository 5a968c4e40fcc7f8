"""PyG's tools on our layers give what they give on PyG's with the same weights, or refuse, as docs/pyg.md says."""

import copy
import pickle
import subprocess
import sys
import types
from unittest import mock

import pytest
import torch
from support.machine import ROOT
from support.pyg_nets import (
    EDGES,
    LAYERS,
    METADATA,
    D,
    F,
    Plain,
    hetero_inputs,
    inputs,
    metadata,
    net,
    pyg,
    quiet,
    same,
    swapped,
    with_gradients,
)
from support.pyg_watchers import (
    check_attention_explainer,
    check_gnn_explainer,
    check_graph_mask_explainer,
    check_hooks,
    check_pg_explainer,
    check_set_masks,
    check_to_captum_model,
)
from support.small_graph import NODES, features
from torch_geometric import utils
from torch_geometric.data import Data
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.loader import NeighborLoader

import fusedmm
from fusedmm import nn as ours

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


# ---- what each line of the table says ----


def to_hetero(device, transform=pyg.to_hetero, names=tuple(LAYERS), **options):
    for name in names:
        meta, model = metadata(name), net(name, device)
        args = hetero_inputs(name, meta[1], device)
        expected = quiet(transform, copy.deepcopy(model), meta, **options)
        before = quiet(transform, swapped(model), meta, **options)
        assert any(isinstance(m, ours.layer.Layer) for m in before.modules())
        same(with_gradients(before, args), with_gradients(expected, args))
        after = ours.convert(copy.deepcopy(expected), report=True)
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
    mine = quiet(pyg.HeteroConv, {kind: ours.convert(copy.deepcopy(model.convs[kind])) for kind in make})
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


def check_kinds(device):
    edges, x = {("n", "to", "n"): inputs("GAT loops", device)[1]}, inputs("GAT loops", device)[0]
    mask = features(40, seed=4).to(device)
    for conv in (ours.HGTConv, ours.HANConv):
        mine = conv(F, F, (["n"], list(edges))).double().to(device)
        before = mine({"n": x}, edges)["n"]
        for watch in (
            lambda m: set_masks(m, mask, edges["n", "to", "n"]),
            lambda m: m.register_message_forward_hook(print),
        ):
            with pytest.raises(
                ValueError, match=r"^H\w+Conv: .* is not supported where there are several kinds of nodes"
            ):
                watch(mine)
        assert torch.equal(mine({"n": x}, edges)["n"], before)


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
    "any of these on `HGTConv` and `HANConv`": check_kinds,
    "`copy.deepcopy`, `pickle`": check_deepcopy,
    "`torch.compile`": check_compile,
    "`torch.jit`": check_jit,
}
REFUSED = (check_cached, check_csr, check_kinds, check_jit)


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
