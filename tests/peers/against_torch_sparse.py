"""Our functions against torch_sparse's and torch_scatter's own, built from their sources; ``make interop`` runs this.

Each call of ours is one of those that docs/matrix.md lists as a counterpart.
"""

import pytest
import torch
from torch_geometric import nn as theirs
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import fusedmm
from fusedmm import CSR, edge_softmax, messages, nn, spmm

scatter = pytest.importorskip("torch_scatter", reason="torch_scatter is not there: make interop builds it")
sparse = pytest.importorskip("torch_sparse", reason="torch_sparse is not there: make interop builds it")
SparseTensor = sparse.SparseTensor

GRAPHS = {  # one whose edges are there once, and one whose edges repeat, with nodes that have none
    "once": [[0, 1, 2, 2, 3, 4, 5, 5], [1, 0, 2, 3, 2, 4, 0, 5]],
    "repeated": [[0, 0, 1, 1, 3, 3, 3, 5], [1, 1, 0, 2, 3, 0, 5, 5]],
}
MEAN, MIN, MAX = ({"reduce": name} for name in ("mean", "min", "max"))


def top(n):
    """The largest of e of each node; 0 where there is none."""
    return spmm(n["S"], n["e"], **MAX)


def low(n):
    return n["e"] - top(n)[n["row"]]


# ours, of (A, B, P, S, x, e, w, v, row), and theirs, of (T, U, x, e, w, v, row), T and U their A and B.
SCATTERED = {
    "sum": (lambda n: n["S"] @ n["e"], [
        lambda n: scatter.scatter(n["e"], n["row"], 0, dim_size=6),
        lambda n: scatter.scatter_add(n["e"], n["row"], 0, dim_size=6),
        lambda n: scatter.segment_csr(n["e"], n["S"].ptr),
        lambda n: scatter.segment_sum_coo(n["e"], n["row"], dim_size=6),
    ]),
    "mean": (lambda n: spmm(n["S"], n["e"], **MEAN), [
        lambda n: scatter.scatter_mean(n["e"], n["row"], 0, dim_size=6),
        lambda n: scatter.segment_mean_csr(n["e"], n["S"].ptr),
        lambda n: scatter.segment_mean_coo(n["e"], n["row"], dim_size=6),
    ]),
    "min": (lambda n: spmm(n["S"], n["e"], **MIN), [
        lambda n: scatter.scatter_min(n["e"], n["row"], 0, dim_size=6)[0],
        lambda n: scatter.segment_min_csr(n["e"], n["S"].ptr)[0],
    ]),
    "max": (lambda n: spmm(n["S"], n["e"], **MAX), [
        lambda n: scatter.scatter_max(n["e"], n["row"], 0, dim_size=6)[0],
        lambda n: scatter.segment_max_coo(n["e"], n["row"], dim_size=6)[0],
    ]),
    "gather": (lambda n: messages.copy_v(n["P"], n["x"]), [
        lambda n: scatter.gather_csr(n["x"], n["S"].ptr),
        lambda n: scatter.gather_coo(n["x"], n["row"]),
    ]),
    "softmax": (lambda n: edge_softmax(n["P"], n["e"]), [lambda n: scatter.scatter_softmax(n["e"], n["row"], 0)]),
    "log_softmax": (
        lambda n: low(n) - (n["S"] @ low(n).exp()).log()[n["row"]],
        [lambda n: scatter.scatter_log_softmax(n["e"], n["row"], 0)],
    ),
    "logsumexp": (lambda n: ((n["S"] @ low(n).exp()).log() + top(n)).nan_to_num(neginf=0.0), [
        lambda n: scatter.scatter_logsumexp(n["e"], n["row"], 0, dim_size=6)
    ]),
    "std": (
        lambda n: (spmm(n["S"], n["e"] ** 2, **MEAN) - spmm(n["S"], n["e"], **MEAN) ** 2).clamp(min=0).sqrt(),
        [lambda n: scatter.scatter_std(n["e"], n["row"], 0, dim_size=6, unbiased=False)],
    ),
}  # fmt: skip
MATRIX = {
    "as_csr": (lambda n: fusedmm.as_csr(n["T"]), lambda n: n["T"]),
    "t": (lambda n: n["A"].t(), lambda n: n["T"].t()),
    "narrow": (lambda n: n["A"][1:4], lambda n: sparse.narrow(n["T"], 0, 1, 3)),
    "index_select": (lambda n: n["A"][:, [2, 0, 4]], lambda n: n["T"].index_select(1, torch.tensor([2, 0, 4]))),
    "masked_select": (lambda n: n["A"][n["v"] > 0.5], lambda n: sparse.masked_select(n["T"], 0, n["v"] > 0.5)),
    "remove_diag": (lambda n: n["A"].remove_self_loops(), lambda n: sparse.remove_diag(n["T"])),
    "set_diag": (lambda n: n["A"].set_self_loops(n["v"]), lambda n: sparse.set_diag(n["T"], n["v"])),
    "fill_diag": (lambda n: n["A"].set_self_loops(2.0), lambda n: sparse.fill_diag(n["T"], 2.0)),
    "get_diag": (lambda n: n["A"].diag(), lambda n: sparse.get_diag(n["T"])),
    "add": (lambda n: n["A"] + n["B"], lambda n: sparse.add(n["T"], n["U"])),
    "mul rows": (lambda n: n["A"].scale(rows=n["v"]), lambda n: sparse.mul(n["T"], n["v"][:, None])),
    "mul cols": (lambda n: n["A"].scale(cols=n["v"]), lambda n: sparse.mul(n["T"], n["v"][None])),
    "sum": (lambda n: n["A"].sum(1), lambda n: sparse.sum(n["T"], dim=1)),
    "mean": (lambda n: n["A"].mean(1), lambda n: sparse.mean(n["T"], dim=1)),
    "matmul": (lambda n: n["A"] @ n["x"], lambda n: sparse.matmul(n["T"], n["x"])),
    "matmul mean": (lambda n: spmm(n["A"], n["x"], **MEAN), lambda n: sparse.matmul(n["T"], n["x"], **MEAN)),
    "matmul max": (lambda n: spmm(n["A"], n["x"], **MAX), lambda n: sparse.matmul(n["T"], n["x"], **MAX)),
    "spspmm": (lambda n: n["A"] @ n["B"], lambda n: sparse.matmul(n["T"], n["U"])),
    "cat 0": (lambda n: fusedmm.vstack([n["A"], n["B"]]), lambda n: sparse.cat([n["T"], n["U"]], dim=0)),
    "cat 1": (lambda n: fusedmm.hstack([n["A"], n["B"]]), lambda n: sparse.cat([n["T"], n["U"]], dim=1)),
    "cat both": (lambda n: fusedmm.block_diag([n["A"], n["B"]]), lambda n: sparse.cat([n["T"], n["U"]], dim=(0, 1))),
    "eye": (lambda n: CSR.eye(6), lambda n: SparseTensor.eye(6)),
    "GCN": (lambda n: n["gcn"](n["x"], n["T"]), lambda n: n["gcn"](n["x"], n["A"])),
    "SAGE": (lambda n: n["sage"](n["x"], n["T"]), lambda n: n["sage"](n["x"], n["P"])),
}


@pytest.fixture(params=GRAPHS)
def n(request):
    torch.manual_seed(0)
    row, col = torch.tensor(GRAPHS[request.param])
    w, v, x, e = torch.rand(8), torch.rand(6), torch.rand(6, 3), torch.rand(8, 2)
    A, B = CSR.from_coo(row, col, w, (6, 6)), CSR.from_coo(col, row, w, (6, 6))
    T, U = (SparseTensor(row=i, col=j, value=w, sparse_sizes=(6, 6)) for i, j in ((row, col), (col, row)))
    S, P = CSR.from_coo(row, torch.arange(8), shape=(6, 8)), A.pattern()
    gcn, sage = nn.GCNConv(3, 2), nn.SAGEConv(3, 2)
    names = "row w v x e A B T U S P gcn sage".split()
    return dict(zip(names, (row, w, v, x, e, A, B, T, U, S, P, gcn, sage), strict=True))


def dense(value):
    if isinstance(value, SparseTensor):  # theirs writes entries that repeat over each other
        row, col, val = value.coo()
        value = CSR.from_coo(row, col, val, tuple(value.sparse_sizes()))
    return value.to_dense() if isinstance(value, CSR) else value


@pytest.mark.parametrize("name", SCATTERED)
def test_reductions_are_those_of_torch_scatter(name, n):
    ours, theirs = SCATTERED[name]
    for call in theirs:
        torch.testing.assert_close(ours(n), call(n), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MATRIX)
def test_matrices_are_those_of_torch_sparse(name, n):
    ours, theirs = (dense(call(n)) for call in MATRIX[name])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def both(name):
    """Our layer and PyG's, with the same weights."""
    options = {"add_self_loops": False} if name == "GATConv" else {}
    ours, peer = (getattr(of, name)(3, 4, **options).double().eval() for of in (nn, theirs))
    ours.load_state_dict(peer.state_dict())
    return ours, peer


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
@pytest.mark.parametrize(
    "name",
    "GATConv GATv2Conv GCNConv GENConv GraphConv ResGatedGraphConv SAGEConv TransformerConv".split(),
)
@pytest.mark.parametrize("neighbours", [[4], [3, 2]])
def test_batches_of_the_sampler_that_pyg_takes_from_torch_sparse(name, neighbours):
    """What PyG's loader draws by itself goes into our layers as it is, and gives what it gives in PyG's."""
    torch.manual_seed(0)
    graph = Data(x=torch.rand(50, 3).double(), edge_index=torch.randint(50, (2, 300)))
    layers = both(name)
    batches = list(NeighborLoader(graph, neighbours, batch_size=16))
    assert len(batches) == 4 and any(batch.num_nodes > batch.batch_size for batch in batches)
    for batch in batches:
        outs = [layer(batch.x, batch.edge_index)[: batch.batch_size] for layer in layers]
        torch.testing.assert_close(*outs)
        grads = [
            torch.autograd.grad(out.sin().sum(), layer.parameters(), materialize_grads=True)
            for out, layer in zip(outs, layers, strict=True)
        ]
        torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_batches_of_several_kinds_of_nodes_and_of_links():
    torch.manual_seed(0)
    kinds, data = (("a", "to", "b"), ("b", "to", "a")), HeteroData()
    for kind in ("a", "b"):
        data[kind].x = torch.rand(40, 3).double()
    for kind in kinds:
        data[kind].edge_index = torch.randint(40, (2, 200))
    layers = {kind: both("SAGEConv") for kind in kinds}
    for batch in NeighborLoader(data, [4, 3], batch_size=10, input_nodes="a"):
        found = [
            theirs.HeteroConv({kind: pair[k] for kind, pair in layers.items()})(batch.x_dict, batch.edge_index_dict)
            for k in (0, 1)
        ]
        torch.testing.assert_close(*found)
    graph = Data(x=torch.rand(50, 3).double(), edge_index=torch.randint(50, (2, 300)))
    links = LinkNeighborLoader(
        graph, [4], batch_size=20, edge_label_index=graph.edge_index[:, :60], neg_sampling_ratio=1
    )
    for batch in links:
        torch.testing.assert_close(*(layer(batch.x, batch.edge_index) for layer in layers[kinds[0]]))
