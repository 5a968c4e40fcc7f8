"""Making a CSR: counting on the CPU, sorts elsewhere and beyond its size, give the same structure bit by bit."""

import collections

import pytest
import torch
from support.opchecks import check_operator
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from fusedmm._lib import ops
from fusedmm.matrix import adapters, compress, normalize, structure
from fusedmm.matrix.normalize import gcn_norm, with_loops
from fusedmm.matrix.structure import DEFERRED
from fusedmm.ops.spmm_sddmm import entries_of, per_entry


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
            for loops in (adapters.looped(torch.tensor(content, dtype=dtype), (sources, targets)), with_loops(adj)):
                kept = nowhere if loops.others is None else loops.others
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
        adapters.looped(edge_index, (2, 3))
    made = adapters.looped(edge_index, (3, 3))
    assert made.pattern.nnz == 5 and adapters.looped(edge_index, (3, 3)) is made
    assert adapters.looped(edge_index, (4, 4)).pattern.nnz == 6
    edge_index[0, 2] = 0
    assert adapters.looped(edge_index, (3, 3)).pattern.nnz == 6


class Counts(TorchDispatchMode):
    """How often an operation ran."""

    def __init__(self):
        super().__init__()
        self.of = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("loops", [False, True])
def test_self_loops_at_once_are_one_call(loops, monkeypatch):
    """CPU tensors that say they are on a GPU: that call waits for it, and nothing else does."""
    row, col = edges(300, 40, 40, "cpu")
    edge_index = torch.stack([row, col])[:, (row != col) | loops]
    asked = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda t: False))
    for module in (compress, structure):
        monkeypatch.setattr(module, "numbers", lambda *s, wait=structure.numbers: asked.append(1) or wait(*s))
    with Counts() as ran:
        made = adapters.looped(edge_index, (40, 40))
    assert (made.others is not None) == loops
    assert not asked and ran.of["fusedmm::_compress"] == 1
    waits = ("nonzero", "sort", "index", "_local_scalar_dense")
    assert not any(ran.of[f"aten::{name}"] for name in waits)


def test_unchecked_keys_outside_of_their_range():
    """No crash, no read outside, and the next one is right."""
    row, col = edges(50, 10, 10, "cpu")
    for bad in (-1, 10, 2**40, -(2**63)):
        for which in (row, col):
            wrong = which.clone()
            wrong[7] = bad
            pair = (wrong, col) if which is row else (row, wrong)
            adj = fusedmm.CSR.from_coo(*pair, shape=(10, 10), check=False)
            x = torch.ones(10, 2, requires_grad=True)
            assert torch.autograd.grad(fusedmm.spmm(adj, x).sum(), x)[0].shape == (10, 2)
            assert adj.t().nnz == 50 and int(adj.coo()[0].max()) < 10
    good = fusedmm.CSR.from_coo(row, col, shape=(10, 10))
    assert torch.equal(fusedmm.spmm(good, torch.ones(10, 1))[:, 0], torch.bincount(row, minlength=10).float())


NONE = torch.empty(0, dtype=torch.uint8)


@pytest.mark.parametrize("check", [True, False])
def test_edges_of_any_strides(check, device):
    edge_index = torch.stack(edges(200, 20, 20, device))
    expected = fusedmm.CSR.from_edge_index(edge_index, size=20, check=check)
    for other in (edge_index.t().contiguous().t(), edge_index.repeat_interleave(3, 1)[:, ::3], edge_index.int()):
        made = fusedmm.CSR.from_edge_index(other, size=20, check=check)
        for a, b in ((made.ptr, expected.ptr), (made.idx, expected.idx), (made.eid, expected.eid)):
            assert torch.equal(a, b)
    row, col = (torch.tensor([k], device=device).expand(4) for k in (2, 1))
    one = fusedmm.CSR.from_coo(row, col, shape=(3, 3), check=check)
    assert one.ptr.tolist() == [0, 0, 0, 4] and one.idx.tolist() == [1] * 4


SIZES = [(0, 3), (1, 1), (60, 20), (1_024, 900), (1_025, 900), (5_000, 700), (9_000, 65_535), (100_000, 20_000),
         (131_072, 900), (300_000, 40_000), (524_288, 900), (524_289, 900)]  # fmt: skip


@pytest.mark.parametrize("nnz, nodes", SIZES)
@pytest.mark.parametrize("order", ["any", "sorted", "no loops", "one node"])
def test_a_gpu_makes_the_structure_that_a_cpu_makes(nnz, nodes, order, cuda):
    """To the same bits, of few entries in one launch, of more by radix sorts; the plan is what its own call makes."""
    row, col = edges(nnz, nodes, nodes, "cpu")
    if order == "sorted":
        row, col = (row * nodes + col).sort().values.div(nodes, rounding_mode="floor"), col.sort().values
    stays = (row != col) | (order != "no loops")
    row = row.clamp(min=nodes - 1) if order == "one node" else row
    edge_index = torch.stack([col, row])[:, stays]
    made = []
    for device in ("cpu", cuda):
        for adj in (
            fusedmm.CSR.from_edge_index(edge_index.to(device), size=nodes),
            adapters.looped(edge_index.to(device), (nodes, nodes)).pattern,
        ):
            other = adj.cache_transpose().t()
            made.append([t.cpu() for m in (adj, other) for t in (m.ptr, m.idx, m.eid)])
            for m in (adj, other) if device == cuda else ():
                x = torch.randn(nodes, 8, device=device)
                again = ops._plan(m.ptr, m.idx)
                assert torch.equal(m.plan[:64], again[:64])  # the header: what the plan was made for, its classes
                y = ops._spmm(m.ptr, m.idx, m.eid, again, adj.none, x, 0, 0)
                assert torch.equal(ops._spmm(m.ptr, m.idx, m.eid, m.plan, adj.none, x, 0, 0), y)
        made[-1].append(adapters.looped(edge_index.to(device), (nodes, nodes)).others)
    kept = made[1].pop(), made[3].pop()
    assert (kept[0] is None) == (kept[1] is None) and (kept[0] is None or torch.equal(kept[0], kept[1].cpu()))
    for on_cpu, on_gpu in ((made[0], made[2]), (made[1], made[3])):
        for a, b in zip(on_cpu, on_gpu, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [-1, 20, 2**40, -(2**63)])
@pytest.mark.parametrize("which", [0, 1])
def test_a_check_whose_answer_comes_later(bad, which, cuda):
    """A layer that puts the wait off refuses the same edges by the same name, again and again, and takes the next."""
    layer, x = fusedmm.nn.SAGEConv(8, 8).to(cuda), torch.randn(20, 8, device=cuda)
    good = torch.stack(edges(60, 20, 20, cuda))
    wrong = good.clone()
    wrong[which, 41] = bad
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"edge_index\[{which}, 41\] = {bad} is outside \[0, 20\)"):
            layer(x, wrong)
    with pytest.raises(ValueError, match="is outside"):
        fusedmm.as_csr(wrong, size=20)
    out = layer(x, good)
    kept = fusedmm.as_csr(good, size=(20, 20))
    assert kept is fusedmm.as_csr(good, size=(20, 20)) and kept._shared.ticket is None
    torch.testing.assert_close(out, layer(x, fusedmm.CSR.from_edge_index(good, size=20)))
    wrong[which, 41] = 0
    assert layer(x, wrong).shape == (20, 8)


def test_who_has_not_waited_is_not_believed(cuda):
    """A structure whose check has no answer yet is no known one, and the answer names the index."""
    edge_index = torch.stack(edges(60, 20, 20, cuda))
    adj = fusedmm.as_csr(edge_index, size=(20, 20), check=DEFERRED)
    assert adj._shared.ticket is not None
    assert fusedmm.as_csr(edge_index, size=(20, 20)) is not adj
    adapters.settle(adj, edge_index)
    assert adj._shared.ticket is None
    wrong = edge_index.clone()
    wrong[0, 3] = 20
    adj = fusedmm.as_csr(wrong, size=(20, 20), check=DEFERRED)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"edge_index\[0, 3\] = 20 is outside \[0, 20\)"):
            adapters.settle(adj, wrong)
        assert adj._shared.ticket is not None


def test_a_wait_refuses_what_no_check_left(device):
    """On the CPU no check is deferred, and no ticket on CUDA that nobody was given has an answer."""
    there = torch.zeros(1, device=device)
    text = "there must be on CUDA" if device == "cpu" else "a coordinate is outside|no check of coordinates was"
    for ticket in (2**40, 2**62) if device == "cuda" else (0, 1, -1):
        with pytest.raises(RuntimeError, match=f"^invalid: .*({text})"):
            ops._check_wait(there, ticket)
    if device == "cuda":
        (row, col), ticket = edges(60, 20, 20, device), next(compress.TICKETS)
        ops._compress(row, col, 20, 20, False, DEFERRED + ticket)
        ops._check_wait(there, ticket)
        check_operator(ops._check_wait.default, (there, ticket))
        with pytest.raises(RuntimeError, match="make the CSR before the capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                ops._compress(row, col, 20, 20, False, DEFERRED)


def test_compress_and_transpose_refuse():
    v, col = torch.tensor([0, 3, 1]), torch.tensor([0, 0, 2])
    i32, ptr = torch.tensor([0, 3, 1]).int(), torch.tensor([0, 2, 3])
    cases = [
        (lambda: ops._compress(v, col, 3, 3, False, True), r"row\[1\] = 3 is outside \[0, 3\)"),
        (lambda: ops._compress(v, -col, 4, 3, True, True), r"col\[2\] = -2 is outside \[0, 3\)"),
        (lambda: ops._compress(v, col[:2], 4, 4, False, True), "row has 3 elements and col 2"),
        (lambda: ops._compress(v.int(), col, 4, 4, False, True), "row must be a vector of int64"),
        (lambda: ops._compress(v, col[None], 4, 4, False, True), "col must be a vector of int64"),
        (lambda: ops._compress(v, col, 2**31, 4, False, True), "is beyond int32"),
        (lambda: ops._compress(v, col, 4, -1, False, True), "is beyond int32"),
        (lambda: ops._compress(v, col, 4, 4, False, -1), "check must be 0, 1, or 2 and more"),
        (lambda: ops._transpose(ptr, i32, NONE, NONE, 3), "ptr or idx is malformed"),
        (lambda: ops._transpose(ptr + 1, i32, NONE, NONE, 4), "ptr or idx is malformed"),
        (lambda: ops._transpose(ptr, i32, NONE, NONE, -1), "is beyond int32"),
        (lambda: ops._transpose(ptr, i32, i32[:2], NONE, 4), "eid has 2 elements for 3 entries"),
        (lambda: ops._mean_back(ptr, torch.ones(3, 2)), "g is f32 with 3 rows, should be f32 with 2"),
        (lambda: ops._mean_back(ptr, torch.ones(2, 2).double()), "g is f64 with 2 rows, should be f32 with 2"),
        (lambda: ops._mean_back(ptr.int(), torch.ones(2, 2)), "ptr must be a vector of int64"),
    ]
    for call, text in cases:
        with pytest.raises(RuntimeError, match="^invalid: .*" + text):
            call()


def test_self_loops_at_once_name_what_is_outside():
    for bad, text in ((9, "9"), (-1, "-1")):
        edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        edge_index[0, 1] = bad
        with pytest.raises(ValueError, match=rf"edge_index\[0, 1\] = {text} is outside \[0, 3\)"):
            adapters.looped(edge_index, (3, 3))


def test_edges_that_were_bad_when_they_were_read_stay_refused(cuda):
    """Though they were mended before the answer of the check was waited for."""
    edge_index = torch.tensor([[0, 1], [1, 3]], device=cuda)
    adj = fusedmm.as_csr(edge_index, size=(3, 3), check=DEFERRED)
    edge_index[1, 1] = 2
    for _ in range(2):
        with pytest.raises(ValueError, match="written to since"):
            adapters.settle(adj, edge_index)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("loops", [True, False])
def test_weights_of_a_graph_convolution_at_once(name, loops, device, monkeypatch):
    """In one call or in torch's, on a CPU the same bits, in both orders, with or without the transpose before."""
    content, sources, targets = ODD[name]
    if sources != targets:
        content, sources = [[*content[0], 0], [*content[1], 0]], max(sources, targets)
    made = []
    for counted in (2**20, 0):
        monkeypatch.setattr(normalize, "is_few", lambda *sizes, most=counted: max(sizes) < most)
        adj = fusedmm.CSR.from_edge_index(torch.tensor(content, dtype=torch.int64, device=device), size=sources)
        adj = with_loops(adj).pattern if loops else adj
        for matrix in (adj, adj.pattern().cache_transpose()):
            found = normalize._frozen(matrix, torch.float32, None).cache_transpose()
            none = torch.zeros(0, device=device)
            made.append([none if t is None else t for t in (found.val, found.val_here, found.val_there)])
    for others in made[1:]:
        for a, b in zip(made[0], others, strict=True):
            torch.testing.assert_close(a, b, rtol=2.0**-21 if a.is_cuda else 0, atol=0)


@pytest.mark.parametrize("shape", [(5, 7), (5, 3, 4), (5, 0)])
def test_gradient_of_a_mean_at_once(shape, device):
    ptr = torch.tensor([0, 0, 1, 3, 3, 9], device=device)
    for g in (
        torch.randn(shape, device=device),
        torch.randn(shape, device=device).transpose(0, -1).contiguous().transpose(0, -1),
        torch.ones(1, device=device).expand(shape),
    ):
        assert torch.equal(ops._mean_back(ptr, g), per_entry(entries_of(ptr, g), g))


def test_what_compiled_code_knows_of_the_calls():
    adj = fusedmm.CSR.from_edge_index(torch.stack(edges(50, 9, 9, "cpu")), size=9)
    for op, args in (
        (ops._transpose, (adj.ptr, adj.idx, adj.eid, adj.plan, 9)),
        (ops._normalize, (adj.ptr, adj.idx, adj.eid, adj.plan)),
        (ops._mean_back, (adj.ptr, torch.randn(9, 4))),
        (ops._compress, (*edges(50, 9, 9, "cpu"), 9, 9, True, True)),
        (ops._compress, (*edges(50, 9, 9, "cpu"), 9, 9, False, True)),
    ):
        check_operator(op.default, args)


@pytest.mark.parametrize("name, most", [("GCNConv", 26), ("SAGEConv", 31), ("GATConv", 17)])
def test_a_step_on_fresh_edges_takes_few_calls(name, most):
    """CPU only, by count: a step on a small graph waits for calls."""
    layer = getattr(fusedmm.nn, name)(8, 8)
    x, edge_index = torch.randn(20, 8, requires_grad=True), torch.stack(edges(60, 20, 20, "cpu"))
    with Counts() as ran:
        torch.autograd.grad(layer(x, edge_index).sum(), [x, *layer.parameters()])
    assert ran.of["fusedmm::_compress"] == ran.of["fusedmm::_transpose"] == 1
    assert ran.of.total() <= most and not ran.of["aten::_local_scalar_dense"]


@pytest.mark.parametrize("current, other", [(0, 1), (1, 0)])
def test_all_of_it_on_a_device_that_is_not_the_current_one(current, other, cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")

    def run(device):
        row, col = edges(500, 30, 30, device)
        adj = gcn_norm(fusedmm.CSR.from_edge_index(torch.stack([col, row]), size=30), dtype=torch.float64)
        pattern = adj.pattern()
        g = torch.Generator().manual_seed(1)
        x = torch.randn(30, 2, 5, dtype=torch.float64, generator=g).to(device).requires_grad_()
        e = fusedmm.sddmm(adj, x, x)
        y = fusedmm.spmm(adj.with_values(fusedmm.edge_softmax(pattern, e)), x) + fusedmm.spmm(adj, x, reduce="max")
        y = y + fusedmm.attention(adj, x, x, x) + fusedmm.fused(pattern, x, edge="sigmoid(s)")
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    with torch.cuda.device(current):
        found = run(f"cuda:{other}")
        assert torch.cuda.current_device() == current
        with pytest.raises(ValueError, match=r"row\[1\] = 9 is outside"):
            fusedmm.CSR.from_coo(*torch.tensor([[0, 9], [1, 1]], device=f"cuda:{other}").unbind(), shape=(3, 3))
    for here, there in zip(run("cpu"), found, strict=True):
        assert there.device.index == other
        torch.testing.assert_close(there.cpu(), here)
