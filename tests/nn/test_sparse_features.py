"""Layers whose node features are a CSR: the numbers and gradients of dense features, and what is refused."""

import pytest
import scipy.sparse
import torch
import torch_geometric.nn  # noqa: F401  so that hooks of messages exist

import fusedmm
from fusedmm import CSR, nn
from fusedmm.networks import MODELS, is_sparse

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0, 5], [1, 0, 2, 1, 4, 3, 0, 4, 2]])
LAYERS = {
    "gcn": lambda **o: nn.GCNConv(9, 4, **o),
    "gat": lambda **o: nn.GATConv(9, 4, heads=2, **o),
    "gat residual": lambda **o: nn.GATConv(9, 4, heads=2, concat=False, residual=True, **o),
    "gatv2": lambda **o: nn.GATv2Conv(9, 4, heads=2, **o),
    "gatv2 shared": lambda **o: nn.GATv2Conv(9, 4, heads=2, share_weights=True, **o),
    "sage": lambda **o: nn.SAGEConv(9, 4, **o),
    "sage sum": lambda **o: nn.SAGEConv(9, 4, aggr="add", bias=False, **o),
    "sage alone": lambda **o: nn.SAGEConv(9, 4, root_weight=False, normalize=True, **o),
    "graph": lambda **o: nn.GraphConv(9, 4, **o),
    "graph mean": lambda **o: nn.GraphConv(9, 4, aggr="mean", **o),
    "transformer": lambda **o: nn.TransformerConv(9, 4, heads=2, **o),
    "transformer beta": lambda **o: nn.TransformerConv(9, 4, heads=2, beta=True, **o),
}


TAKEN = "sparse features are taken as a CSR by GCNConv, GATConv.*SAGEConv and GraphConv.*fusedmm.spmm"


def features(device="cpu", dtype=torch.float64):
    x = torch.randn(6, 9, dtype=dtype) * (torch.rand(6, 9) < 0.3)
    x[2] = 0
    return x.to(device), CSR.from_dense(x).to(device)


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_and_gradients_are_those_of_dense_features(name, device):
    x, sparse = features(device)
    layer, edges = LAYERS[name]().double().to(device), EDGES.to(device)
    val = sparse.val.clone().requires_grad_()
    dense = torch.zeros_like(x).index_put(sparse.coo()[:2], val)
    wanted = [val, *layer.parameters()]
    expected, found = layer(dense, edges), layer(sparse.with_values(val), edges)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    theirs = torch.autograd.grad((expected * weights).sum(), wanted)
    ours = torch.autograd.grad((found * weights).sum(), wanted)
    torch.testing.assert_close(ours, theirs)


def test_a_size_is_taken_from_sparse_features():
    _, sparse = features(dtype=torch.float32)
    layer = nn.GCNConv(-1, 3)
    assert layer(sparse, EDGES).shape == (6, 3) and layer.lin.weight.shape == (3, 9)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", ["gcn", "sage", "graph"])
def test_sparse_tensors_of_torch_are_taken_too(name, layout):
    x, _ = features()
    layer = LAYERS[name]().double()
    torch.testing.assert_close(layer(x.to_sparse(layout=layout), EDGES), layer(x, EDGES))


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "graph"])
def test_compiled_code_takes_sparse_features(name):
    x, sparse = features(dtype=torch.float32)
    adj, layer = CSR.from_edge_index(EDGES, size=6), LAYERS[name]()
    expected = layer(x, adj)
    fusedmm.prepare(adj, layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(sparse.cache_transpose(), adj), expected)


def test_what_is_refused():
    x, sparse = features(dtype=torch.float32)
    layer = nn.GCNConv(9, 4)
    with pytest.raises(ValueError, match="GCNConv: x must have a value for each entry, not be a pattern"):
        layer(sparse.pattern(), EDGES)
    with pytest.raises(ValueError, match=r"not be one with values \[\d+, 2\]"):
        layer(sparse.with_values(torch.rand(sparse.nnz, 2)), EDGES)
    with pytest.raises(TypeError, match=r"x is torch\.float64, the parameters torch\.float32"):
        layer(sparse.double(), EDGES)
    with pytest.raises(ValueError, match="x has 9 features, in_channels is 8"):
        nn.GCNConv(8, 4)(sparse, EDGES)
    for other in (nn.SAGEConv(9, 4, aggr="max"), nn.GINConv(torch.nn.Linear(9, 4)), nn.SGConv(9, 4)):
        with pytest.raises(TypeError, match=f"x must be a tensor, not CSR; {TAKEN}"):
            other(sparse, EDGES)
        with pytest.raises(TypeError, match=f"Conv: x must be one dense tensor, not torch.sparse_coo; {TAKEN}"):
            other(x.to_sparse(), EDGES)
    with pytest.raises(TypeError, match=f"x must be a tensor, not CSR; {TAKEN}"):
        nn.GATConv((9, 9), 4)(sparse, EDGES)
    with pytest.raises(TypeError, match=f"TAGConv: x must be a tensor, not csr_matrix; {TAKEN}"):
        nn.TAGConv(9, 4)(scipy.sparse.csr_matrix(x.numpy()), EDGES)
    hooked = nn.SAGEConv(9, 4)
    hooked.lin_l.register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="SAGEConv: a map with hooks needs dense features"):
        hooked(sparse, EDGES)
    with pytest.raises(TypeError, match=r"GATConv: x.* must be a tensor, not CSR"):
        nn.GATConv((9, 9), 4)((sparse, x), EDGES)
    hook = layer.register_message_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="dense features"):
        layer(sparse, EDGES)
    hook.remove()
    assert layer(sparse, EDGES).shape == (6, 4)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.31])
def test_the_networks_keep_features_of_three_in_ten(share):
    x = torch.zeros(10, 10)
    x.view(-1)[: round(100 * share)] = 1.0
    assert is_sparse(x) == (share <= 0.3)
    for name, model in MODELS.items():
        takes = name != "agnn"
        assert isinstance(model.ours(10, 2).features(x), CSR) == (takes and is_sparse(x))
        if model.has_theirs():
            assert model.theirs(10, 2).features(x) is x


def test_a_network_drops_entries_alone():
    network = MODELS["gcn"].ours(9, 3).eval()
    x, sparse = features(dtype=torch.float32)
    adj = CSR.from_edge_index(EDGES, size=6)
    torch.testing.assert_close(network(sparse, adj), network(x, adj))
    network.train()
    dropped = network._dropped(sparse)
    assert dropped.nnz == sparse.nnz and bool(((dropped.val == 0) | (dropped.val == 2 * sparse.val)).all())
