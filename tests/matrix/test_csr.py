"""CSR: what the constructors make, what it turns into, and what it shares."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support.generate import Case, small
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

import fusedmm
from fusedmm import CSR

STRUCTURES = ["one", "empty_rows", "all_empty", "no_rows", "no_cols", "nothing", "duplicates", "power_law"]


def dense_of(rows, cols, row, col, val):
    """By hand, an entry at a time."""
    y = torch.zeros(rows, cols, *val.shape[1:], dtype=torch.float64)
    for i, j, v in zip(row.tolist(), col.tolist(), val.double(), strict=True):
        y[i, j] += v
    return y


def edges(seed=0, n=40, rows=6, cols=9):
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(0, rows, (n,), generator=g), torch.randint(0, cols, (n,), generator=g)
    return row, col, torch.randn(n, generator=g)


def test_from_coo_keeps_the_callers_order(device):
    row, col, val = (t.to(device) for t in edges())
    adj = CSR.from_coo(row, col, val, (6, 9))
    assert [t.tolist() for t in adj.coo()] == [row.tolist(), col.tolist(), val.tolist()]
    assert adj.shape == (6, 9) and adj.nnz == 40 and adj.device.type == device
    assert (adj.ptr.dtype, adj.idx.dtype, adj.eid.dtype) == (torch.int64, torch.int32, torch.int32)
    assert adj.degree().tolist() == torch.bincount(row, minlength=6).tolist()
    torch.testing.assert_close(adj.to_dense().double().cpu(), dense_of(6, 9, row, col, val.cpu()))


def test_from_coo_in_order_needs_no_permutation(device):
    adj = CSR.from_coo(torch.tensor([0, 0, 2], device=device), torch.tensor([1, 1, 0], device=device))
    assert adj.eid.numel() == 0 and adj.shape == (3, 2)


def test_from_csr_and_its_own_tensors(device):
    """The caller may write to what was given; the matrix has its own."""
    ptr, idx = torch.tensor([0, 2, 2, 3], device=device), torch.tensor([4, 0, 1], device=device)
    adj = CSR.from_csr(ptr, idx)
    ptr.fill_(9), idx.fill_(9)
    assert adj.shape == (3, 5) and adj.coo()[0].tolist() == [0, 0, 2] and adj.coo()[1].tolist() == [4, 0, 1]
    sliced = torch.tensor([9, 0, 9, 2, 9, 2, 9, 3], device=device)[1::2]
    assert CSR.from_csr(sliced, torch.tensor([4, 0, 1], device=device)).degree().tolist() == [2, 0, 1]


SIZES = [(None, (3, 3)), (5, (5, 5)), ((4, 7), (7, 4)), ([4, 7], (7, 4)), (torch.Size([4, 7]), (7, 4))]
SIZES += [(np.int64(5), (5, 5)), (torch.tensor(5), (5, 5)), ((np.int32(4), torch.tensor(7)), (7, 4))]


@pytest.mark.parametrize("size, shape", SIZES)
def test_from_edge_index_gathers_sources_into_targets(size, shape, device):
    edge_index = torch.tensor([[0, 2, 1], [1, 1, 0]], device=device)
    adj = CSR.from_edge_index(edge_index, torch.tensor([1.0, 2.0, 3.0], device=device), size)
    assert adj.shape == shape == fusedmm.as_csr(edge_index, size=size).shape
    assert [type(n) for n in adj.shape] == [int, int]
    x = torch.arange(1.0, shape[1] + 1, device=device)[:, None]
    assert (adj @ x)[:2].tolist() == [[3 * 2.0], [1 * 1.0 + 2 * 3.0]]


def test_from_dense_and_back(device):
    dense = torch.tensor([[0.0, 2, 0], [0, 0, 0], [-1, 0, 3]], device=device, requires_grad=True)
    adj = CSR.from_dense(dense)
    assert adj.nnz == 3 and torch.equal(adj.to_dense(), dense)
    (adj @ torch.ones(3, 1, device=device)).sum().backward()
    assert dense.grad.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("permuted", [False, True])
def test_transpose(structure, permuted, heads, device):
    values = "entry" if heads is None else "head"
    adj = Case(structure, 1, heads, torch.float64, "contiguous", values, permuted, "random").matrix(device)
    there = adj.t()
    assert adj.T.idx is there.idx and adj.T.shape == there.shape
    assert there.shape == adj.shape[::-1] and there.nnz == adj.nnz
    assert torch.equal(there.to_dense(), adj.to_dense().transpose(0, 1))
    row, col, val = there.coo()
    assert torch.equal(row, adj.coo()[1]) and torch.equal(col, adj.coo()[0]) and val is adj.val
    back = there.t()
    assert back.ptr is adj.ptr and back.idx is adj.idx and back.shape == adj.shape


def test_matrices_of_one_structure_share_the_transpose(device):
    adj = small(device=device)
    other = adj.with_values(torch.ones(60, device=device))
    assert other.t().idx is adj.t().idx is adj.pattern().t().idx
    assert adj.cache_transpose() is adj and adj.ptr_t is not None


def test_with_values_and_pattern(device):
    adj = small(device=device)
    twice = adj.with_values(2 * adj.val)
    torch.testing.assert_close(twice.to_dense(), 2 * adj.to_dense())
    pattern = adj.pattern()
    assert pattern.val is None and pattern.pattern() is pattern and pattern.to_dense().sum() == 60
    heads = adj.with_values(torch.ones(60, 4, device=device))
    assert heads.to_dense().shape == (12, 15, 4)


def test_values_that_were_written_to_are_seen(device):
    """Constant values are kept in the kernels' order; a write in place makes them anew."""
    adj, x = small(device=device), torch.ones(15, 2, device=device)
    before, before_t = fusedmm.spmm(adj, x), fusedmm.spmm(adj.t(), torch.ones(12, 2, device=device))
    adj.val.mul_(2)
    torch.testing.assert_close(fusedmm.spmm(adj, x), 2 * before)
    torch.testing.assert_close(fusedmm.spmm(adj.t(), torch.ones(12, 2, device=device)), 2 * before_t)


def test_repr():
    """CPU only: the text names the device."""
    row, col, val = edges()
    assert repr(CSR.from_coo(row, col, val, (6, 9))) == "CSR(shape=(6, 9), nnz=40, val=float32[40], device=cpu)"
    assert repr(CSR.from_coo(row, col, None, (6, 9))) == "CSR(shape=(6, 9), nnz=40, val=none, device=cpu)"
    heads = CSR.from_coo(row, col, torch.ones(40, 2, dtype=torch.bfloat16), (6, 9))
    assert repr(heads) == "CSR(shape=(6, 9), nnz=40, val=bfloat16[40, 2], device=cpu)"


def test_ones_are_float32_whatever_the_default(device):
    adj = CSR.from_coo(torch.tensor([0, 1], device=device), torch.tensor([1, 1], device=device), shape=(2, 2))
    torch.set_default_dtype(torch.float64)
    try:
        made = [adj.to_dense(), adj.to_torch(), adj.to_torch(torch.sparse_coo), adj.add_self_loops(2.0).val]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {t.dtype for t in made} == {torch.float32}


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_and_booleans_become_the_default_dtype(dtype, default, device):
    """In every constructor, at the first call and at one that remembers the structure."""
    row, col = torch.tensor([0, 1, 1], device=device), torch.tensor([1, 0, 1], device=device)
    val = torch.tensor([1, 0, 3], device=device).to(dtype)
    dense = torch.zeros(2, 2, dtype=dtype, device=device).index_put((row, col), val)
    ptr, edges = torch.tensor([0, 1, 3], device=device), torch.stack([col, row])
    sparse = torch.sparse_coo_tensor(torch.stack([row, col]), val, (2, 2), is_coalesced=True)
    compressed = torch.sparse_compressed_tensor(ptr, col, val, (2, 2), layout=torch.sparse_csr)
    torch.set_default_dtype(default)
    try:
        made = [CSR.from_coo(row, col, val), CSR.from_csr(ptr, col, val), CSR.from_edge_index(edges, val)]
        made += [CSR.from_dense(dense), CSR.from_torch(sparse), CSR.from_torch(compressed)]
        made += [fusedmm.as_csr(given) for given in (sparse, compressed, (ptr, col, val)) * 2]
        y = fusedmm.spmm(compressed, torch.ones(2, 1, device=device))
        if device == "cpu":
            scipy = pytest.importorskip("scipy.sparse")
            made.append(CSR.from_scipy(scipy.csr_array(dense.numpy())))
    finally:
        torch.set_default_dtype(torch.float32)
    for adj in made:
        assert adj.dtype == default and torch.equal(adj.to_dense(), dense.to(default))
    assert torch.equal(y, dense.to(default).sum(1, keepdim=True))


def test_it_is_frozen():
    adj = small()
    with pytest.raises(AttributeError):
        adj.val = None
    assert adj != small() and hash(adj) is not None  # an identity, as a tensor has


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=str)
def test_to_torch(layout, device, recwarn):
    for adj in (small(device=device), small(device=device).pattern()):
        sparse = adj.to_torch(layout)
        assert sparse.layout == layout and not recwarn.list
        torch.testing.assert_close(sparse.to_dense(), adj.to_dense())
        torch.testing.assert_close(fusedmm.as_csr(sparse).to_dense(), adj.to_dense())


def test_to_torch_of_repeated_and_unsorted_columns(device):
    row, col = torch.tensor([[0, 1, 0, 2, 0], [2, 1, 0, 3, 2]], device=device)
    val = torch.randn(5, device=device, dtype=torch.float64, requires_grad=True)
    adj = fusedmm.CSR.from_coo(row, col, val, shape=(4, 5))
    with torch.sparse.check_sparse_tensor_invariants(True):
        sparse = adj.to_torch()
    assert sparse.values().numel() == 4
    weight = torch.randn(4, 5, device=device, dtype=torch.float64)
    (grad,) = torch.autograd.grad((sparse.to_dense() * weight).sum(), val)
    torch.testing.assert_close(sparse.to_dense(), adj.to_dense())
    torch.testing.assert_close(grad, weight[row, col])


def test_matmul_with_vectors_and_matrices(device):
    adj, x = small(device=device), torch.randn(15, 4, device=device)
    assert torch.equal(adj @ x, fusedmm.spmm(adj, x))
    torch.testing.assert_close(adj @ x[:, 0], (adj @ x)[:, 0])


def test_to_dtype_and_device(device):
    adj = small()
    there = adj.to(device)
    assert there.device.type == device and there.val.device.type == device
    assert torch.equal(there.to_dense().cpu(), adj.to_dense())
    assert adj.to(dtype=torch.float64).val.dtype == torch.float64
    assert adj.to("cpu") is adj and adj.to(dtype=torch.float32) is adj
    assert adj.pattern().to(dtype=torch.float64).val is None
    gradient = adj.with_values(adj.val.clone().requires_grad_())
    gradient.to(device, torch.float64).val.sum().backward()
    assert torch.equal(gradient.val.grad, torch.ones(60))


def test_other_words_for_to(device):
    adj = small()
    assert adj.cpu() is adj and adj.to(device="cpu", non_blocking=True) is adj
    there = adj.to(device, non_blocking=True)
    assert there.device.type == device and torch.equal(there.cpu().to_dense(), adj.to_dense())
    if device == "cuda":
        pinned = adj.pin_memory()
        assert all(t.is_pinned() for t in (pinned.ptr, pinned.idx, pinned.eid, pinned.val))
        for moved in (adj.cuda(), adj.cuda(0), pinned.cuda(non_blocking=True)):
            assert moved.device.type == "cuda" and torch.equal(moved.to_dense().cpu(), adj.to_dense())


def test_data_of_pyg_takes_a_matrix_along(monkeypatch):
    """Data.to passes non_blocking, and keeps silent about what refuses it."""
    pyg = pytest.importorskip("torch_geometric")
    moved, to = [], CSR.to
    monkeypatch.setattr(CSR, "to", lambda *args, **kwargs: moved.append(to(*args, **kwargs)) or moved[-1])
    data = pyg.data.Data(x=torch.ones(15, 3), adj=small())
    assert data.to("cpu", non_blocking=True).adj is moved[0]


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("cached", [False, True])
def test_copies(how, cached, device):
    adj, x = small(device=device), torch.randn(15, 3, device=device)
    expected = fusedmm.spmm(adj, x)
    if cached:
        adj.cache_transpose()
    if how == "deepcopy":
        other = copy.deepcopy(adj)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(adj))
    else:
        file = io.BytesIO()
        torch.save(adj, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert other is not adj and other.ptr.data_ptr() != adj.ptr.data_ptr()
    assert torch.equal(fusedmm.spmm(other, x), expected)
    assert torch.equal(other.t().to_dense(), adj.t().to_dense())
    other.val.zero_()
    assert torch.equal(fusedmm.spmm(adj, x), expected) and not fusedmm.spmm(other, x).any()


def loaded(adj, device):
    file = io.BytesIO()
    torch.save(adj, file)
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=True)


def mapped(adj, device):
    return pytree.tree_map(lambda t: None if t is None else t.to(device), adj)


@pytest.mark.parametrize("move", [loaded, mapped])
@pytest.mark.parametrize("cached", [False, True])
def test_a_matrix_moved_tensor_by_tensor_has_the_plans_of_where_it_is(move, cached, device):
    adj = small(device=device)
    if cached:
        adj.cache_transpose()
    if device == "cpu":  # what a GPU would have left
        adj._set(plan=torch.zeros(48, dtype=torch.uint8), plan_t=torch.zeros(48, dtype=torch.uint8) if cached else None)
    x = torch.randn(15, 3)
    for where in ("cpu", device):
        there = move(adj, where)
        for half in (there, there.t()):
            fresh = CSR.from_csr(half.ptr, half.idx, shape=half.shape)
            assert half.device.type == where and half.plan.shape == fresh.plan.shape
        torch.testing.assert_close(fusedmm.spmm(there, x.to(where)).cpu(), fusedmm.spmm(adj, x.to(adj.device)).cpu())
        adj = there


class Graphs(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, k):
        adj = small(seed=k)
        return adj, fusedmm.spmm(adj, torch.ones(15, 1))


def test_data_loader_workers():
    """CPU only: matrices are made and used in worker processes, and come back."""
    for k, (adj, y) in enumerate(DataLoader(Graphs(), batch_size=None, num_workers=2)):
        assert torch.equal(y, fusedmm.spmm(small(seed=k), torch.ones(15, 1)))
        assert torch.equal(fusedmm.spmm(adj, torch.ones(15, 1)), y)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_empty_and_odd_shapes_through_every_method(structure, device):
    adj = Case(structure, 1, None, torch.float32, "contiguous", "entry", True, "random").matrix(device)
    rows, cols = adj.shape
    assert adj.to_dense().shape == (rows, cols) and adj.degree().sum() == adj.nnz == len(adj.coo()[0])
    assert copy.deepcopy(adj).shape == adj.shape and f"nnz={adj.nnz}" in repr(adj)
    assert (adj @ torch.ones(cols, 2, device=device)).shape == (rows, 2)
    assert (adj.t() @ torch.ones(rows, device=device)).shape == (cols,)
    assert adj.to_torch().shape == (rows, cols)


def test_unchecked_is_the_same_matrix(device):
    """check=False builds what check=True builds, of good input."""
    row, col, val = (t.to(device) for t in edges())
    for one, other in ((True, False), (False, True)):
        first, second = (CSR.from_coo(row, col, val, (6, 9), check=c) for c in (one, other))
        assert torch.equal(first.ptr, second.ptr) and torch.equal(first.idx, second.idx)
        assert torch.equal(first.to_dense(), second.to_dense())


@pytest.mark.parametrize(("known", "shape"), [((5, None), (3, 5)), ((None, 7), (7, 3)), ((5, 7), (7, 5))])
def test_an_edge_index_that_knows_a_size_keeps_it(known, shape):
    pyg = pytest.importorskip("torch_geometric")
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert fusedmm.as_csr(pyg.EdgeIndex(edges, sparse_size=known)).shape == shape
    given = pyg.EdgeIndex(edges, sparse_size=known)
    assert fusedmm.as_csr(given, size=(9, 9)).shape == tuple(k or 9 for k in known[::-1])
