"""What somebody tries on the first day with graphs, as recipes, against dense matrices in float64."""

import copy

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from support.bounds import assert_within, spmm_oracle
from support.neighbours import Neighbours
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.utils import to_networkx

import fusedmm
from fusedmm import CSR, nn

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0, 5], [1, 0, 2, 1, 4, 3, 0, 4, 2]])  # sources, targets
NODES = 6
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def weights():
    return torch.rand(EDGES.shape[1], dtype=torch.float64) + 0.5


def dense_of(edges=EDGES, weight=None, nodes=NODES):
    """[targets, sources], of whoever wrote it by hand."""
    dense = torch.zeros(nodes, nodes, dtype=torch.float64)
    weight = torch.ones(edges.shape[1], dtype=torch.float64) if weight is None else weight
    return dense.index_put((edges[1], edges[0]), weight, accumulate=True)


def close(found, expected):
    torch.testing.assert_close(found.double().cpu(), expected.double(), **CLOSE)


# ---- graphs ----


class DGLGraph:
    """What is asked of dgl's graph: the edges by target, with their numbers."""

    def adj_tensors(self, kind):
        assert kind == "csc"
        order = EDGES[1].argsort(stable=True)
        return F.pad(torch.bincount(EDGES[1], minlength=NODES).cumsum(0), (1, 0)), EDGES[0][order], order

    def num_src_nodes(self):
        return NODES


def holders(weight):
    """The same weighted graph in everything that people hold one in."""
    dense, data = dense_of(weight=weight), Data(edge_index=EDGES, edge_weight=weight, num_nodes=NODES)
    graph = to_networkx(data, edge_attrs=["edge_weight"])
    row, col = dense.nonzero().t()
    return {
        "edge_index": CSR.from_edge_index(EDGES, weight, NODES),
        "coordinates": CSR.from_coo(EDGES[1], EDGES[0], weight, (NODES, NODES)),
        "dense": CSR.from_dense(dense),
        "torch COO": fusedmm.as_csr(dense.to_sparse()),
        "torch CSR": fusedmm.as_csr(dense.to_sparse_csr()),
        "torch CSC": fusedmm.as_csr(dense.to_sparse_csc()),
        "scipy CSR": fusedmm.as_csr(scipy.sparse.csr_array(dense.numpy())),
        "scipy COO": fusedmm.as_csr(scipy.sparse.coo_matrix(dense.numpy())),
        "scipy LIL": fusedmm.as_csr(scipy.sparse.lil_array(dense.numpy())),
        "networkx": fusedmm.as_csr(networkx.to_scipy_sparse_array(graph, weight="edge_weight").T),
        "numpy": CSR.from_coo(
            torch.from_numpy(row.numpy()), torch.from_numpy(col.numpy()), dense[row, col], (NODES,) * 2
        ),
        "DGL": fusedmm.as_csr(DGLGraph()).with_values(weight),
        "PyG": CSR.from_edge_index(data.edge_index, data.edge_weight, data.num_nodes),
    }


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_graph_from_each_holder(device):
    weight, x = weights(), torch.randn(NODES, 3, dtype=torch.float64)
    for name, adj in holders(weight).items():
        assert adj.shape == (NODES, NODES) and adj.nnz == EDGES.shape[1], name
        close(adj.to_dense(), dense_of(weight=weight))
        close(adj.to(device) @ x.to(device), dense_of(weight=weight) @ x)


def test_there_and_back(device):
    """To dense, torch, scipy and numpy, and from them."""
    adj = CSR.from_edge_index(EDGES, weights(), NODES).to(device)
    dense = adj.to_dense()
    row, col, val = (t.cpu().numpy() for t in adj.coo())
    sparse = scipy.sparse.coo_array((val, (row, col)), shape=adj.shape)
    np.testing.assert_array_equal(sparse.toarray(), dense.cpu().numpy())
    for there in (dense, adj.to_torch(), adj.to_torch(torch.sparse_coo)):
        back = CSR.from_dense(there) if there.layout == torch.strided else fusedmm.as_csr(there)
        close(back.to_dense(), dense.cpu())
    close(fusedmm.as_csr(sparse).to_dense(), dense.cpu())
    by_rows = adj.to_torch()
    again = fusedmm.as_csr((by_rows.crow_indices(), by_rows.col_indices(), by_rows.values(), adj.shape))
    close(again.to_dense(), dense.cpu())


def test_numpy_features_share_memory():
    adj, x = CSR.from_edge_index(EDGES, size=NODES), np.random.default_rng(0).normal(size=(NODES, 3))
    out = (adj @ torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(out, dense_of().numpy() @ x, rtol=1e-12)


def test_symmetric_and_random_walk_normalisation(device):
    weight = weights()
    adj, dense = CSR.from_edge_index(EDGES, weight, NODES).to(device), dense_of(weight=weight)
    ones = torch.ones(NODES, dtype=torch.float64, device=device)
    row = adj.coo()[0]
    walk = adj.with_values(adj.val / (adj @ ones)[row])
    close(walk.to_dense(), dense / dense.sum(1, keepdim=True).where(dense.sum(1, keepdim=True) > 0, 1))
    looped = dense + torch.eye(NODES)
    scale = looped.sum(1) ** -0.5
    close(adj.gcn_norm().to_dense(), scale[:, None] * looped * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_product_in_low_precision(dtype, device):
    adj = CSR.from_edge_index(EDGES, weights(), NODES).to(device, dtype)
    x = torch.randn(NODES, 16, device=device).to(dtype)
    for reduce in ("sum", "mean", "max", "min"):
        assert_within(fusedmm.spmm(adj, x, reduce=reduce), *spmm_oracle(adj, x, reduce), dtype)


def test_means_and_maxima_of_neighbours(device):
    adj, x = CSR.from_edge_index(EDGES, size=NODES).to(device), torch.randn(NODES, 3, dtype=torch.float64)
    dense = dense_of()
    close(fusedmm.spmm(adj, x.to(device), reduce="mean"), dense @ x / dense.sum(1, keepdim=True).clamp(min=1))
    masked = x[None].expand(NODES, -1, -1).masked_fill(dense[..., None] == 0, -torch.inf).amax(1)
    close(fusedmm.spmm(adj, x.to(device), reduce="max"), masked.where(masked.isfinite(), 0))


def test_a_batch_of_graphs_is_a_block_diagonal(device):
    graphs = [Data(x=torch.randn(n, 3).double(), edge_index=torch.randint(n, (2, 3 * n))) for n in (4, 1, 7)]
    batch = Batch.from_data_list(graphs).to(device)
    adj = CSR.from_edge_index(batch.edge_index, size=batch.num_nodes)
    blocks = torch.block_diag(*(dense_of(g.edge_index, nodes=g.num_nodes) for g in graphs))
    close(adj @ batch.x, blocks @ torch.cat([g.x for g in graphs]))
    nodes = torch.arange(batch.num_nodes, device=device)
    pool = CSR.from_coo(batch.batch, nodes, shape=(batch.num_graphs, batch.num_nodes))
    close(fusedmm.spmm(pool, batch.x, reduce="mean"), torch.stack([g.x.mean(0) for g in graphs]))
    close(fusedmm.spmm(pool, batch.x, reduce="max"), torch.stack([g.x.amax(0) for g in graphs]))


def test_a_loader_of_graphs(device):
    graphs = [Data(x=torch.randn(n, 3).double(), edge_index=torch.randint(n, (2, 3 * n))) for n in (4, 2, 7, 3)]
    conv = nn.GINConv(torch.nn.Identity()).to(device)
    for batch in DataLoader(graphs, batch_size=2):
        out = conv(batch.x.to(device), batch.edge_index.to(device))
        dense = dense_of(batch.edge_index, nodes=batch.num_nodes)
        torch.testing.assert_close(out.cpu(), (dense + torch.eye(batch.num_nodes)) @ batch.x)


def test_a_bipartite_graph(device):
    """Four users have bought three items."""
    users, items = torch.tensor([0, 0, 1, 3, 2]), torch.tensor([0, 2, 2, 1, 0])
    adj = CSR.from_edge_index(torch.stack([users, items]).to(device), size=(4, 3))
    assert adj.shape == (3, 4)
    x, y = torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    dense = torch.zeros(3, 4, dtype=torch.float64).index_put((items, users), torch.ones(5, dtype=torch.float64))
    close(adj @ x.to(device), dense @ x)
    close(adj.T @ y.to(device), dense.T @ y)
    conv = nn.SAGEConv((5, 5), 2, aggr="sum").double().to(device)
    expected = dense @ x @ conv.lin_l.weight.cpu().T + conv.lin_l.bias.cpu() + y @ conv.lin_r.weight.cpu().T
    close(conv((x.to(device), y.to(device)), adj).detach(), expected.detach())


def test_several_hops(device):
    """A^k x in k products, without the matrix A^k."""
    adj, x = CSR.from_edge_index(EDGES, size=NODES).to(device).gcn_norm(), torch.randn(NODES, 3, dtype=torch.float64)
    adj, dense, hops = adj.to(dtype=torch.float64), adj.to_dense().double().cpu(), [x.to(device)]
    for _ in range(3):
        hops.append(adj @ hops[-1])
    close(torch.cat(hops, 1), torch.cat([torch.linalg.matrix_power(dense, k) @ x for k in range(4)], 1))


# ---- moving and keeping ----


def test_to_a_device_and_a_dtype(device):
    adj = CSR.from_edge_index(EDGES, weights(), NODES)
    moved = adj.to(device, torch.float16)
    assert moved.device.type == device and moved.val.dtype == torch.float16 and adj.val.dtype == torch.float64
    close(moved.to("cpu", torch.float64).val, adj.val.half())


@pytest.mark.parametrize("cached", [False, True])
def test_a_matrix_in_a_file(cached, device, tmp_path):
    adj = CSR.from_edge_index(EDGES, weights(), NODES).to(device)
    adj = adj.cache_transpose() if cached else adj
    torch.save({"adj": adj}, tmp_path / "graph.pt")
    for options in ({}, {"weights_only": False}, {"weights_only": True}, {"map_location": "cpu"}):
        loaded = torch.load(tmp_path / "graph.pt", **options)["adj"]
        assert torch.equal(loaded.to_dense().cpu(), adj.to_dense().cpu())
        close(
            loaded.T @ torch.ones(NODES, 1, dtype=torch.float64, device=loaded.device),
            dense_of(weight=adj.val.cpu()).sum(0)[:, None],
        )


class Smoothing(torch.nn.Module):
    """A model that owns its graph: buffers, so that it moves and is saved with the rest."""

    def __init__(self, adj):
        super().__init__()
        self.register_buffer("ptr", adj.ptr)
        self.register_buffer("idx", adj.idx)
        self.weight = torch.nn.Parameter(torch.rand(adj.nnz, dtype=torch.float64))
        self.shape = adj.shape

    def forward(self, x):
        return fusedmm.spmm((self.ptr, self.idx, self.weight, self.shape), x)


def test_a_graph_within_a_state_dict(device):
    by_rows = CSR.from_dense(dense_of())
    model, other = Smoothing(by_rows).to(device), Smoothing(by_rows)
    other.load_state_dict(copy.deepcopy(model).cpu().state_dict())
    x = torch.randn(NODES, 3, dtype=torch.float64)
    dense = by_rows.with_values(model.weight.detach().cpu()).to_dense()
    close(model(x.to(device)).detach(), dense @ x)
    close(other(x).detach(), dense @ x)


def test_copies_are_independent(device):
    """As torch.nn.DataParallel and averages of weights copy."""
    adj, conv = CSR.from_edge_index(EDGES, size=NODES).to(device), nn.GCNConv(3, 2, cached=True).double().to(device)
    x = torch.randn(NODES, 3, dtype=torch.float64, device=device)
    before, (twin, matrix) = conv(x, adj), copy.deepcopy((conv, adj))
    with torch.no_grad():
        conv.lin.weight.zero_()
    close(twin(x, matrix).detach(), before.detach().cpu())
    average = torch.optim.swa_utils.AveragedModel(conv)
    average.update_parameters(twin)
    close(average(x, adj).detach(), before.detach().cpu())


class Dataset(torch.utils.data.Dataset):
    def __init__(self, adj):
        self.adj = adj

    def __len__(self):
        return NODES

    def __getitem__(self, k):
        return self.adj @ F.one_hot(torch.tensor(k), NODES).double()


def test_workers_that_are_forked():
    """Products in the workers of a DataLoader that share one matrix."""
    adj = CSR.from_edge_index(EDGES, weights(), NODES).cache_transpose()
    for context in ("fork", None):
        loader = torch.utils.data.DataLoader(Dataset(adj), 2, num_workers=2, multiprocessing_context=context)
        close(torch.cat(list(loader)), adj.to_dense().T)


def test_neighbours_by_a_loader(device):
    """A step per sampled neighbourhood gives the seeds what the whole graph gives, where all neighbours are drawn."""
    data = Data(x=torch.randn(NODES, 3, dtype=torch.float64), edge_index=EDGES)
    conv = nn.SAGEConv(3, 2).double().to(device)
    whole = conv(data.x.to(device), EDGES.to(device)).detach().cpu()
    for batch in NeighborLoader(data, [-1], batch_size=4, neighbor_sampler=Neighbours(EDGES)):
        out = conv(batch.x.to(device), batch.edge_index.to(device))[: batch.batch_size]
        close(out.detach(), whole[batch.n_id[: batch.batch_size]])
