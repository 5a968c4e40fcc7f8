"""Making a CSR: counting on the CPU, sorts elsewhere and beyond its size, give the same structure bit by bit."""

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from fusedmm import compress, convert, structure
from fusedmm._lib import ops
from fusedmm.normalize import gcn_norm, with_loops


def edges(nnz, rows, cols, device, seed=0):
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(0, max(rows, 1), (nnz,), generator=g), torch.randint(0, max(cols, 1), (nnz,), generator=g)
    return row.to(device), col.to(device)


@pytest.mark.parametrize("nnz, rows, cols", [(1, 1, 1), (0, 3, 4), (500, 7, 300), (500, 300, 7), (40_000, 90, 90)])
def test_is_sorted_by_row_and_column_and_stable(nnz, rows, cols, device):
    row, col = edges(nnz, rows, cols, device)
    adj = fusedmm.CSR.from_coo(row, col, shape=(rows, cols))
    order = torch.sort(row * cols + col, stable=True).indices
    ptr = torch.searchsorted(row[order], torch.arange(rows + 1, device=device))
    assert torch.equal(adj.ptr, ptr) and torch.equal(adj.idx, col[order].int())
    assert not adj.eid.numel() or torch.equal(adj.eid, order.int())
    back = torch.sort(adj.idx, stable=True).indices
    ptr_t, idx_t, eid_t, _ = adj.transpose_half()
    assert torch.equal(ptr_t, torch.searchsorted(col.sort().values, torch.arange(cols + 1, device=device)))
    assert torch.equal(idx_t, row[order][back].int())
    assert torch.equal(eid_t, (adj.eid if adj.eid.numel() else torch.arange(nnz, device=device).int())[back])
    assert all(t.dtype == torch.int32 for t in (adj.idx, idx_t, eid_t))


@pytest.mark.parametrize("check", [True, False])
def test_counting_and_sorting_agree(check, monkeypatch):
    """CPU only: sorts are what is left beyond COUNTED, and for keys outside of their range."""
    row, col = edges(3000, 200, 100, "cpu")
    made = []
    for counted in (2**20, 0):
        monkeypatch.setattr(compress, "COUNTED", counted)
        adj = fusedmm.CSR.from_coo(row, col, shape=(200, 100), check=check).cache_transpose()
        made.append((adj.ptr, adj.idx, adj.eid, adj.ptr_t, adj.idx_t, adj.eid_t))
    for a, b in zip(*made, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


ODD = {
    "no edges": ([[], []], 3, 4),
    "no nodes": ([[], []], 0, 0),
    "one entry": ([[0], [0]], 1, 1),
    "sorted": ([[0, 2, 1, 1], [0, 0, 1, 2]], 3, 3),
    "self loops": ([[2, 0, 2, 1, 2, 0], [1, 0, 2, 0, 2, 1]], 3, 3),
    "only self loops": ([[1, 0, 1], [1, 0, 1]], 3, 3),
    "repeated edges": ([[3, 0, 3, 3, 0], [1, 2, 1, 1, 2]], 4, 4),
    "more sources": ([[5, 4, 0, 1, 1], [1, 0, 0, 1, 0]], 6, 2),
    "more targets": ([[1, 0, 0, 1, 1], [5, 4, 0, 1, 4]], 2, 6),
    "many": (torch.stack(edges(3000, 200, 200, "cpu")).tolist(), 200, 200),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("few", [True, False], ids=["one sort", "two sorts"])
def test_a_gpu_makes_what_the_cpu_makes(name, dtype, few, monkeypatch):
    """CPU tensors that say they are on a GPU: the structure, its transpose, self loops and the normalisation."""
    content, sources, targets = ODD[name]
    square = sources == targets

    def make():
        tensors, nowhere = [], torch.zeros(0)
        for check in (True, False):
            adj = fusedmm.CSR.from_edge_index(torch.tensor(content, dtype=dtype), size=(sources, targets), check=check)
            tensors += [adj.ptr, adj.idx, adj.eid, *adj.transpose_half()]
            for loops in (convert.looped(torch.tensor(content, dtype=dtype), (sources, targets)), with_loops(adj)):
                kept = nowhere if loops.kept is None else loops.kept
                tensors += [loops.pattern.ptr, loops.pattern.idx, loops.pattern.eid, kept]
                tensors += loops.pattern.transpose_half()
            if square:
                matrices = [gcn_norm(adj), gcn_norm(adj, add_self_loops=False), gcn_norm(adj.add_self_loops(2.0))]
                tensors += [part for m in matrices for part in (m.ptr, m.idx, m.eid, m.val)]
        return tensors

    expected = make()
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda t: False))
    monkeypatch.setattr(compress, "COUNTED", compress.COUNTED if few else 0)
    for here, there in zip(expected, make(), strict=True):
        assert here.dtype == there.dtype and torch.equal(here, there)


def test_self_loops_at_once_are_checked_and_kept(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda t: False))
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 2]])
    with pytest.raises(ValueError, match=r"edge_index\[0, 2\] = 2 is outside \[0, 2\)"):
        convert.looped(edge_index, (2, 3))
    made = convert.looped(edge_index, (3, 3))
    assert made.pattern.nnz == 5 and convert.looped(edge_index, (3, 3)) is made
    assert convert.looped(edge_index, (4, 4)).pattern.nnz == 6
    edge_index[0, 2] = 0
    assert convert.looped(edge_index, (3, 3)).pattern.nnz == 6


class Counts(TorchDispatchMode):
    """How often an operation ran."""

    def __init__(self):
        super().__init__()
        self.of = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("loops, waits", [(False, 0), (True, 1)])
def test_self_loops_at_once_take_one_sort_and_wait_once_more_for_loops(loops, waits, monkeypatch):
    """CPU tensors that say they are on a GPU: numbers() waits for it, and so does an operation of unknown size."""
    row, col = edges(300, 40, 40, "cpu")
    edge_index = torch.stack([row, col])[:, (row != col) | loops]
    asked = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda t: False))
    for module in (compress, structure):
        monkeypatch.setattr(module, "numbers", lambda *s, wait=structure.numbers: asked.append(1) or wait(*s))
    with Counts() as ran:
        made = convert.looped(edge_index, (40, 40))
    assert (made.kept is not None) == loops
    assert len(asked) == 1 and ran.of["aten::nonzero"] == waits and ran.of["aten::sort"] == 1
    assert not ran.of["aten::_local_scalar_dense"] and not ran.of["aten::index"]


def test_unchecked_keys_outside_of_their_range():
    """No crash, no read outside, and the next one is right."""
    row, col = edges(50, 10, 10, "cpu")
    for bad in (-1, 10, 2**40, -(2**63)):
        for which in (row, col):
            wrong = which.clone()
            wrong[7] = bad
            pair = (wrong, col) if which is row else (row, wrong)
            adj = fusedmm.CSR.from_coo(*pair, shape=(10, 10), check=False)
            assert fusedmm.spmm(adj, torch.ones(10, 2)).shape == (10, 2)
    good = fusedmm.CSR.from_coo(row, col, shape=(10, 10))
    assert torch.equal(fusedmm.spmm(good, torch.ones(10, 1))[:, 0], torch.bincount(row, minlength=10).float())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_group(dtype):
    key = torch.randint(0, 9, (100,)).to(dtype)
    order = torch.randperm(100).int()
    ptr, by_key = ops._group(key, order, 9)
    assert torch.equal(by_key, order[torch.sort(key[order.long()], stable=True).indices])
    assert torch.equal(ptr, torch.searchsorted(key.sort().values, torch.arange(10, dtype=dtype)))


def test_group_refuses():
    key, none = torch.tensor([0, 3, 1]), torch.empty(0, dtype=torch.int32)
    cases = [
        (key, none, 3, r"key\[1\] = 3 is outside \[0, 3\)"),
        (-key, none, 4, r"key\[1\] = -3 is outside"),
        (key, torch.tensor([0, 1, 3]).int(), 4, r"order\[2\] = 3 is outside \[0, 3\)"),
        (key, torch.tensor([0, 0, 0]).int(), 4, "order has 0 more than once"),
        (key, torch.tensor([0, 1]).int(), 4, "order must be a contiguous vector of int32, one for each key"),
        (key, key, 4, "order must be a contiguous vector of int32"),
        (key.float(), none, 4, "key must be a contiguous vector"),
        (torch.zeros(6, dtype=torch.int64)[::2], none, 4, "key must be a contiguous vector"),
        (key, none, -1, "groups not negative"),
    ]
    for keys, order, groups, text in cases:
        with pytest.raises(RuntimeError, match=text):
            ops._group(keys, order, groups)


@pytest.mark.parametrize("current, other", [(0, 1), (1, 0)])
def test_all_of_it_on_a_device_that_is_not_the_current_one(current, other, cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")

    def run(device):
        row, col = edges(500, 30, 30, device)
        adj = gcn_norm(fusedmm.CSR.from_edge_index(torch.stack([col, row]), size=30), dtype=torch.float64)
        g = torch.Generator().manual_seed(1)
        x = torch.randn(30, 2, 5, dtype=torch.float64, generator=g).to(device).requires_grad_()
        e = fusedmm.sddmm(adj, x, x)
        y = fusedmm.spmm(adj.with_values(fusedmm.edge_softmax(adj, e)), x) + fusedmm.spmm(adj, x, reduce="max")
        y = y + fusedmm.attention(adj, x, x, x) + fusedmm.fused(adj, x, edge="sigmoid(s)")
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    with torch.cuda.device(current):
        found = run(f"cuda:{other}")
        assert torch.cuda.current_device() == current
        with pytest.raises(ValueError, match=r"row\[1\] = 9 is outside"):
            fusedmm.CSR.from_coo(*torch.tensor([[0, 9], [1, 1]], device=f"cuda:{other}").unbind(), shape=(3, 3))
    for here, there in zip(run("cpu"), found, strict=True):
        assert there.device.index == other
        torch.testing.assert_close(there.cpu(), here)
