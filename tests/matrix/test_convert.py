"""as_csr: every holder of a graph, and the structures that it remembers."""

import gc
import re
import types
import weakref

import numpy as np
import pytest
import torch

import fusedmm
from fusedmm.matrix import adapters

scipy_sparse = pytest.importorskip("scipy.sparse")

ROW, COL = [2, 0, 0, 1, 2], [1, 3, 0, 1, 0]
VAL = [1.0, 2.0, 3.0, 4.0, 5.0]
SHAPE = (3, 4)


def expected(device, val=VAL):
    dense = torch.zeros(SHAPE)
    for i, j, v in zip(ROW, COL, val, strict=True):
        dense[i, j] += v
    return dense.to(device)


def coo(device):
    return torch.sparse_coo_tensor(torch.tensor([ROW, COL]), torch.tensor(VAL), SHAPE).to(device)


TORCH = {
    "csr": lambda d: coo(d).to_sparse_csr(),
    "csc": lambda d: coo(d).to_sparse_csc(),
    "coo": lambda d: coo(d).coalesce(),
    "uncoalesced": coo,
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_sparse_tensors(name, device):
    adj = TORCH[name](device)
    csr = fusedmm.as_csr(adj)
    assert csr.shape == SHAPE and csr.device.type == device
    assert torch.equal(csr.to_dense(), expected(device))
    values = adj._values() if name == "uncoalesced" else adj.values()
    assert torch.equal(csr.val, values), "values stay in the caller's order"


@pytest.mark.parametrize("name", TORCH)
def test_gradients_reach_torch_sparse_values(name, device):
    values = torch.tensor(VAL, device=device, requires_grad=True)
    indices = torch.tensor([ROW, COL], device=device)
    adj = torch.sparse_coo_tensor(indices, values, SHAPE)
    if name == "csr":
        adj = adj.to_sparse_csr()
    elif name == "csc":
        adj = adj.to_sparse_csc()
    elif name == "coo":
        adj = adj.coalesce()
    x = torch.arange(8.0, device=device).view(4, 2)
    fusedmm.spmm(adj, x).sum().backward()
    assert values.grad.tolist() == [float(x[j].sum()) for j in COL]


def test_parts(device):
    ptr, idx = torch.tensor([0, 2, 3, 5], device=device), torch.tensor([3, 0, 1, 1, 0], device=device)
    val = torch.tensor([2.0, 3.0, 4.0, 1.0, 5.0], device=device)
    for parts in ((ptr, idx, val), (ptr, idx, val, SHAPE), [ptr, idx, val, SHAPE]):
        assert torch.equal(fusedmm.as_csr(parts).to_dense(), expected(device))
    assert torch.equal(fusedmm.as_csr((ptr, idx)).to_dense(), (expected(device) != 0).float())


def test_a_csr_is_itself():
    csr = fusedmm.as_csr(coo("cpu"))
    assert fusedmm.as_csr(csr) is csr


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok"])
@pytest.mark.parametrize("family", ["matrix", "array"])
def test_scipy(family, kind):
    """CPU only: scipy has no other."""
    held = getattr(scipy_sparse, f"{kind}_{family}")(scipy_sparse.coo_matrix((VAL, (ROW, COL)), SHAPE))
    csr = fusedmm.as_csr(held)
    assert csr.val.dtype == torch.float64 and torch.equal(csr.to_dense(), expected("cpu").double())
    assert fusedmm.as_csr(held.astype("int64")).val.dtype == torch.float32
    csr.val.zero_()
    assert held.sum() == sum(VAL), "scipy's own memory is not ours to write"


SCIPY_REFUSED = [
    (lambda m: m.astype("complex64"), TypeError, "real numbers of at most 64 bits, not complex64"),
    (lambda m: m.astype("longdouble"), TypeError, "real numbers of at most 64 bits, not float128"),
    (lambda m: scipy_sparse.coo_array([1.0, 0, 2]), ValueError, "matrix must have 2 dimensions, not 1"),
]


@pytest.mark.parametrize("change, kind, text", SCIPY_REFUSED, ids=[r[2] for r in SCIPY_REFUSED])
def test_scipy_that_has_no_counterpart(change, kind, text):
    with pytest.raises(kind, match=text):
        fusedmm.as_csr(change(scipy_sparse.coo_array((VAL, (ROW, COL)), SHAPE)))


def test_edge_index_of_pyg(device):
    """Plain and as EdgeIndex: row 0 sources, row 1 targets, size as EdgeIndex knows it."""
    pyg = pytest.importorskip("torch_geometric")
    plain = torch.tensor([COL, ROW], device=device)
    held = pyg.EdgeIndex(plain, sparse_size=(4, 3))
    assert fusedmm.as_csr(held).shape == SHAPE
    for csr in (fusedmm.as_csr(plain, size=(4, 3)), fusedmm.as_csr(held)):
        assert torch.equal(csr.to_dense(), (expected(device) != 0).float())
        assert csr.coo()[0].tolist() == ROW, "edges stay in the caller's order"
    with_x = fusedmm.spmm(held, torch.eye(4, device=device))
    assert torch.equal(with_x, (expected(device) != 0).float())


def test_adj_t_of_pyg(device):
    """transforms.ToSparseTensor without torch_sparse gives a torch CSR [targets, sources]."""
    pyg = pytest.importorskip("torch_geometric")
    transforms = pytest.importorskip("torch_geometric.transforms")
    data = pyg.data.Data(edge_index=torch.tensor([COL, ROW]), num_nodes=4)
    held = transforms.ToSparseTensor(layout=torch.sparse_csr)(data).adj_t.to(device)
    x = torch.randn(4, 3, device=device)
    torch.testing.assert_close(fusedmm.spmm(held, x), held.to_dense() @ x)


class SparseTensor:
    """torch_sparse.SparseTensor's interface, as far as a reader needs it."""

    def __init__(self, device, val):
        csr = coo(device).to_sparse_csr()
        self._csr = (csr.crow_indices(), csr.col_indices(), csr.values() if val else None)

    def csr(self):
        return self._csr

    def sparse_sizes(self):
        return SHAPE


class DGLMatrix:
    """dgl.sparse.SparseMatrix: csr() gives (indptr, indices, order of the values)."""

    def __init__(self, device, val):
        self.val, self.shape, self.device = torch.tensor(VAL if val else [1.0] * 5, device=device), SHAPE, device

    def csr(self):
        order = sorted(range(5), key=lambda p: (ROW[p], COL[p]))
        parts = [0, 2, 3, 5], [COL[p] for p in order], order
        return tuple(torch.tensor(t, device=self.device) for t in parts)


DGLMatrix.__module__ = "dgl.sparse.sparse_matrix"


class DGLGraph:
    """dgl.DGLGraph, bipartite or not: adj_tensors("csc") gives (indptr, indices, edge ids) of sources to targets."""

    def __init__(self, device):
        self.matrix = DGLMatrix(device, False)

    def adj_tensors(self, kind):
        assert kind == "csc"
        return self.matrix.csr()

    def num_src_nodes(self):
        return 4

    def num_dst_nodes(self):
        return 3


@pytest.mark.parametrize("val", [True, False])
@pytest.mark.parametrize("holder", [SparseTensor, DGLMatrix])
def test_stand_ins_for_torch_sparse_and_dgl(holder, val, device):
    csr = fusedmm.as_csr(holder(device, val))
    assert torch.equal(csr.to_dense(), expected(device) if val else (expected(device) != 0).float())
    if holder is DGLMatrix and val:
        assert csr.val.tolist() == VAL and csr.coo()[0].tolist() == ROW


def test_stand_in_for_a_dgl_graph(device):
    csr = fusedmm.as_csr(DGLGraph(device))
    assert csr.shape == SHAPE and torch.equal(csr.to_dense(), (expected(device) != 0).float())
    assert csr.coo()[0].tolist() == ROW, "edge gradients come in dgl's order of edges"


@pytest.mark.parametrize(
    "order, text",
    [
        ([0, 1, 2, 3, 5], r"order of the edges\[4\] = 5 is outside \[0, 5\)"),
        ([0, 1, -1, 3, 4], r"order of the edges\[2\] = -1 is outside"),
        ([0, 1, 1, 3, 4], "order of the edges has no 2: it must be a permutation"),
        ([0, 1, 2, 3], "order of the edges has 4 elements for 5 entries"),
    ],
)
def test_an_order_of_edges_that_is_none(order, text, device):
    graph = DGLGraph(device)
    ptr, idx, _ = graph.matrix.csr()
    graph.adj_tensors = lambda kind: (ptr, idx, torch.tensor(order, device=device))
    with pytest.raises(ValueError, match=text):
        fusedmm.as_csr(graph)


NOT_TENSORS = {
    "lists": (lambda: ([0, 1], [0]), "its parts must be tensors, not list, list"),
    "arrays": (lambda: [np.array([0, 1]), np.array([0])], "its parts must be tensors, not ndarray, ndarray"),
    "array": (lambda: np.zeros((2, 3), int), "torch.from_numpy makes tensors of arrays"),
}


@pytest.mark.parametrize("name", NOT_TENSORS)
def test_what_is_not_in_tensors_is_named(name):
    make, text = NOT_TENSORS[name]
    with pytest.raises(TypeError, match=re.escape(text)):
        fusedmm.as_csr(make())


def test_lookalikes_are_refused():
    with pytest.raises(TypeError, match="cannot make a CSR of SimpleNamespace"):
        fusedmm.as_csr(types.SimpleNamespace(csr=lambda: None))


# ---- what is remembered ----


@pytest.mark.parametrize("name", TORCH)
def test_a_structure_is_converted_once(name, device):
    adj = TORCH[name](device)
    first = fusedmm.as_csr(adj).cache_transpose()
    again = fusedmm.as_csr(adj)
    assert again.ptr is first.ptr and again.t().idx is first.t().idx
    edge_index = torch.tensor([ROW, ROW], device=device)
    assert fusedmm.as_csr(edge_index) is fusedmm.as_csr(edge_index)
    assert fusedmm.as_csr(edge_index, size=7).shape == (7, 7), "another size is another matrix"
    assert fusedmm.as_csr(edge_index).shape == (3, 3)


@pytest.mark.parametrize("holder", ["parts", "SparseTensor"])
def test_a_structure_of_index_tensors_is_converted_once(holder, device):
    held = SparseTensor(device, True)
    ptr, idx, val = held.csr()
    make = (lambda: held) if holder == "SparseTensor" else (lambda: (ptr, idx, val, SHAPE))
    first = fusedmm.as_csr(make()).cache_transpose()
    again = fusedmm.as_csr(make())
    assert again.t().idx is first.t().idx and torch.equal(again.to_dense(), expected(device))
    if holder == "parts":
        assert fusedmm.as_csr((ptr, idx)).shape == SHAPE and fusedmm.as_csr((ptr, idx, val, (3, 9))).shape == (3, 9)
        moved = torch.tensor([0, 0, 2, 5], device=device)  # other rows of the same columns
        assert fusedmm.as_csr((moved, idx, val, SHAPE)).degree().tolist() == [0, 2, 3]
    idx[0] = 2
    assert fusedmm.as_csr(make()).idx[0] == 2, "a write to the columns is seen"
    ptr[1] = 1
    assert fusedmm.as_csr(make()).degree()[0] == 1, "and one to the rows"
    with pytest.raises(ValueError, match="4 values for 5 entries"):
        fusedmm.as_csr((ptr, idx, val[:4], SHAPE))


def test_an_entry_dies_with_its_tensor(device):
    gc.collect()
    before = len(adapters._known)
    edge_index = torch.tensor([ROW, ROW], device=device)
    alive = weakref.ref(fusedmm.as_csr(edge_index))
    gc.collect()
    assert len(adapters._known) == before + 1 and alive() is not None
    del edge_index
    gc.collect()
    assert len(adapters._known) == before and alive() is None


def test_a_change_in_place_is_seen(device):
    edge_index = torch.tensor([[0, 1], [1, 0]], device=device)
    x = torch.tensor([[1.0], [10.0]], device=device)
    assert fusedmm.spmm(edge_index, x).tolist() == [[10], [1]]
    edge_index[0, 0] = 1
    assert fusedmm.spmm(edge_index, x).tolist() == [[10], [10]]
    adj = coo(device).to_sparse_csr()
    y = fusedmm.spmm(adj, torch.ones(4, 1, device=device))
    adj.values().mul_(2)
    assert torch.equal(fusedmm.spmm(adj, torch.ones(4, 1, device=device)), 2 * y)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_a_change_of_the_structure_of_a_sparse_tensor_is_seen(layout, device):
    """Torch counts the writes to its index tensors as writes to it."""
    ptr, idx, val = (torch.tensor(t, device=device) for t in ([0, 1, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0]))
    if layout == "coo":
        adj = torch.sparse_coo_tensor(torch.stack([idx, idx]), val, (3, 3)).coalesce()
        index = adj.indices()[1]
    else:
        make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
        adj = make(ptr, idx, val, (3, 3))
        index = adj.col_indices() if layout == "csr" else adj.row_indices()
    x = torch.eye(3, device=device)
    assert torch.equal(fusedmm.spmm(adj, x), adj.to_dense())
    index[0] = 2
    assert torch.equal(fusedmm.spmm(adj, x), adj.to_dense()) and adj.to_dense()[0, 0] == 0


def test_an_unchecked_conversion_is_not_taken_for_a_checked_one(device):
    bad, x = torch.tensor([[0, 1, 9], [1, 2, 0]], device=device), torch.ones(3, 2, device=device)
    unchecked = fusedmm.as_csr(bad, size=3, check=False)
    assert fusedmm.as_csr(bad, size=3, check=False) is unchecked
    with pytest.raises(ValueError, match="9 is outside"):
        fusedmm.spmm(bad, x)
    good = bad.clamp(max=2)
    fusedmm.as_csr(good, size=3, check=False)
    checked = fusedmm.as_csr(good, size=3)
    assert fusedmm.as_csr(good, size=3, check=False) is checked is fusedmm.as_csr(good, size=3)


# ---- what inference mode makes and training uses ----

EDGES = [[2, 0, 1, 1, 0], [0, 1, 2, 1, 0]]


def aggregated(adj, x):
    return fusedmm.spmm(adj, x)


# what makes something that is kept, and is called again in training: of (graph, x)
KEPT = {
    "structure of an edge_index": aggregated,
    "transpose": lambda a, x: aggregated(fusedmm.as_csr(a, size=3).cache_transpose(), x),
    "self loops": lambda a, x: aggregated(fusedmm.as_csr(a, size=3).add_self_loops(), x),
    "normalised pattern": lambda a, x: aggregated(fusedmm.as_csr(a, size=3).gcn_norm(), x),
    "GCNConv": fusedmm.nn.GCNConv(4, 2),
    "GATConv": fusedmm.nn.GATConv(4, 2),
    "GATConv with edges": lambda a, x: EDGE_LAYER(x, a, torch.ones(5, 3, device=x.device)),
}
EDGE_LAYER = fusedmm.nn.GATConv(4, 2, edge_dim=3)


@pytest.mark.parametrize("name", KEPT)
def test_what_inference_mode_keeps_serves_training(name, device):
    EDGE_LAYER.to(device)
    use = KEPT[name]
    if isinstance(use, torch.nn.Module):
        layer = use.to(device)
        use = lambda a, x: layer(x, a)  # noqa: E731
    edge_index = torch.tensor(EDGES, device=device)
    weighted = fusedmm.CSR.from_edge_index(edge_index, torch.rand(5, device=device), 3)
    graphs = [edge_index, weighted.pattern()]
    if name in ("transpose", "self loops"):
        graphs.append(weighted)
    for graph in graphs:
        x = torch.randn(3, 4, device=device, requires_grad=True)
        with torch.inference_mode():
            expected = use(graph, x)
        y = use(graph, x)
        assert torch.equal(y, expected)
        y.square().sum().backward()
        assert x.grad.any()


def test_a_matrix_and_a_cached_layer_of_inference_mode_serve_training(device):
    edge_index, weight = torch.tensor(EDGES, device=device), torch.rand(5, device=device)
    cached = fusedmm.nn.GCNConv(4, 2, cached=True).to(device)
    x = torch.randn(3, 4, device=device, requires_grad=True)
    with torch.inference_mode():
        made = fusedmm.CSR.from_edge_index(edge_index, weight, 3)
        cached(x, edge_index, weight)
        row_major = fusedmm.CSR.from_csr(made.ptr, made.idx, shape=(3, 3))
        converted = made.to(dtype=torch.float64).to(dtype=torch.float32)
    for adj in (made, row_major, converted):
        (adj @ x).square().sum().backward()
    cached(x, edge_index, weight).square().sum().backward()
    assert x.grad.any()


def test_values_of_inference_mode_that_were_written_to_are_seen(device):
    """Torch does not count writes to them, so no copy of them is kept."""
    edge_index = torch.tensor(EDGES, device=device)
    with torch.inference_mode():
        adj = fusedmm.CSR.from_edge_index(edge_index, torch.rand(5, device=device), 3).cache_transpose()
        adj.val.mul_(2)
        for matrix in (adj, adj.t()):
            torch.testing.assert_close(matrix @ torch.eye(3, device=device), matrix.to_dense())


def test_copies_of_a_tensor_carry_nothing(device):
    """Kept beside the tensor, not on it: pickles and deep copies stay as they were."""
    import pickle

    edge_index = torch.tensor([ROW, ROW], device=device)
    before = len(pickle.dumps(edge_index))
    fusedmm.as_csr(edge_index)
    assert len(pickle.dumps(edge_index)) == before and not vars(edge_index)
