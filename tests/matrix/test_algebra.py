"""The algebra of CSR against dense matrices in float64, whatever the shape, the order of edges and the heads."""

import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matrices import dense, matrices, stored

import fusedmm
from fusedmm import CSR

quick = settings(max_examples=60, deadline=None)


def same(found, expected):
    assert isinstance(found, CSR)
    assert torch.equal(dense(found), expected), (dense(found), expected)
    assert torch.equal(found.to_dense().double(), expected)  # its tensors, and those of its transpose, agree
    assert torch.equal(found.t().to_dense().double(), expected.transpose(0, 1))


def in_order_of_rows(adj):
    row, col, _ = adj.coo()
    assert torch.equal(row, row.sort(stable=True).values)
    return row * max(adj.shape[1], 1) + col


def choices(size):
    """What rows or columns may be chosen by, and the ids that it stands for."""
    ids = st.lists(st.integers(0, size - 1), max_size=8) if size else st.just([])
    ends = st.one_of(st.none(), st.integers(-8, 8))
    return st.one_of(
        st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1, -3])),
        ids,
        ids.map(lambda k: torch.tensor(k, dtype=torch.int32)),
        st.lists(st.booleans(), min_size=size, max_size=size).map(lambda m: torch.tensor(m, dtype=torch.bool)),
    )


def ids_of(choice, size):
    if isinstance(choice, slice):
        return torch.tensor(range(size)[choice], dtype=torch.int64)
    choice = torch.as_tensor(choice)
    return choice.nonzero()[:, 0] if choice.dtype == torch.bool else choice.long()


@quick
@given(st.data())
def test_parts_of_a_matrix(data):
    adj = data.draw(matrices())
    (rows, cols), whole = adj.shape, dense(adj)
    r, c = data.draw(choices(rows)), data.draw(choices(cols))
    ri, ci = ids_of(r, rows), ids_of(c, cols)
    for found, expected in ((adj[r], whole[ri]), (adj[:, c], whole[:, ci]), (adj[r, c], whole[ri][:, ci])):
        same(found, expected)
        assert found is adj or in_order_of_rows(found) is not None
        assert (found.val is None) == (adj.val is None)
    assert adj[r, c].equal(adj[r][:, c]) and adj[:] is adj[:, :] is adj


@quick
@given(st.data())
def test_a_subgraph_is_that_of_the_nodes(data):
    adj = data.draw(matrices(square=True))
    nodes = data.draw(choices(adj.shape[0]))
    ids = ids_of(nodes, adj.shape[0])
    same(adj.subgraph(nodes), dense(adj)[ids][:, ids])


@quick
@given(st.data(), st.sampled_from(["add", "sub", "mul"]))
def test_two_matrices_entry_by_entry(data, op):
    a = data.draw(matrices())
    b = data.draw(matrices(*a.shape, heads=(None, *([3] if a.val is None or a.val.dim() == 1 else [a.val.shape[1]]))))
    x, y = dense(a), dense(b)
    if x.dim() != y.dim():
        x, y = (t if t.dim() == 3 else t[..., None] for t in (x, y))
    found = getattr(operator, op)(a, b)
    same(found, getattr(torch, op)(x, y))
    wanted = ((stored(a) > 0) & (stored(b) > 0)) if op == "mul" else (stored(a) + stored(b) > 0)
    assert torch.equal(stored(found) > 0, wanted)
    if not a.nnz or not fusedmm.matrix.algebra.entries.is_same(a, b):  # one structure keeps its order of edges
        keys = in_order_of_rows(found)
        assert bool((keys[1:] > keys[:-1]).all())


def test_python_adds_up_matrices(device):
    a, b = (fusedmm.CSR.eye(3, dtype=torch.float64).to(device) * s for s in (1.0, 2.0))
    same(sum([a, b, b]).cpu(), torch.eye(3, dtype=torch.float64) * 5)
    for other in (1, 0.0, False):
        with pytest.raises(TypeError, match="unsupported operand"):
            other + a


@quick
@given(st.data())
def test_matrices_of_one_structure_keep_it(data):
    a = data.draw(matrices(values=(True,)))
    b = a.with_values(a.val + 1)
    for found, expected in ((a + b, 2 * a.val + 1), (a - b, torch.full_like(a.val, -1))):
        assert found.idx is a.idx and torch.equal(found.val, expected)
    same(a * b, dense(a) * dense(b))  # which adds repeated entries up before
    if not bool((stored(a) > 1).any()):
        assert (a * b).idx is a.idx and torch.equal((a * b).val, a.val * b.val)


@quick
@given(matrices(), st.sampled_from([2, 0.5, -4.0, True]))
def test_numbers_multiply_and_divide_the_values(adj, s):
    for factor in (s, torch.tensor(float(s), dtype=torch.float64)):
        for found, expected in ((adj * factor, dense(adj) * s), (factor * adj, dense(adj) * s)):
            same(found, expected)
            assert found.idx is adj.idx
        same(adj / factor, dense(adj) / s)
    same(-adj, -dense(adj))


@quick
@given(st.data())
def test_scaled_rows_and_columns(data):
    adj = data.draw(matrices())
    count = data.draw(
        st.sampled_from([None, 1, 3] if adj.val is None or adj.val.dim() == 1 else [None, adj.val.shape[1]])
    )
    whole = dense(adj)
    sizes = [(n,) if count is None else (n, count) for n in adj.shape]
    r, c = (torch.randint(-3, 4, size).double() for size in sizes)
    wide = whole.dim() == 3 or count is not None
    full = whole[..., None] if wide and whole.dim() == 2 else whole
    left, right = (t.view(*t.shape, *[1] * (full.dim() - 1 - t.dim())) for t in (r, c))
    for given_, expected in (
        ({"rows": r}, full * left[:, None]),
        ({"cols": c}, full * right[None]),
        ({"rows": r, "cols": c}, full * left[:, None] * right[None]),
    ):
        found = adj.scale(**given_)
        same(found, expected)
        assert found.idx is adj.idx


@quick
@given(matrices(), st.sampled_from(["sum", "mean", "max", "min"]), st.sampled_from([0, 1, -1, -2, np.int64(1), None]))
def test_reductions_of_stored_entries(adj, reduce, dim):
    found = getattr(adj, reduce)(dim)
    row, col, _ = adj.coo()
    val = torch.ones(adj.nnz) if adj.val is None else adj.val
    where = torch.zeros_like(row) if dim is None else (row if dim in (1, -1) else col)
    size = 1 if dim is None else adj.shape[0 if dim in (1, -1) else 1]
    expected = torch.zeros(size, *val.shape[1:], dtype=torch.float64)
    for i in range(size):
        mine = val.double()[where == i]
        if len(mine):
            expected[i] = getattr(torch, {"max": "amax", "min": "amin"}.get(reduce, reduce))(mine, 0)
    torch.testing.assert_close(found.double(), expected[0] if dim is None else expected)
    assert found.dtype == val.dtype


@quick
@given(matrices(), st.sampled_from([0, 1]))
def test_softmax_over_rows_and_columns(adj, dim):
    found = adj.softmax(dim)
    assert found.idx is adj.idx
    row, col, _ = adj.coo()
    where = row if dim else col
    val = torch.ones(adj.nnz) if adj.val is None else adj.val
    for i in range(adj.shape[0 if dim else 1]):
        torch.testing.assert_close(found.val[where == i], val[where == i].softmax(0))


@quick
@given(matrices(), st.sampled_from(["sum", "add", "mean", "max", "min"]))
def test_coalesced_entries(adj, reduce):
    found = adj.coalesce(reduce)
    keys = in_order_of_rows(found)
    assert bool((keys[1:] > keys[:-1]).all()) and torch.equal(stored(found), stored(adj).clamp(max=1))
    row, col, _ = adj.coo()
    whole = torch.zeros(dense(adj).shape, dtype=torch.float64)
    val = torch.ones(adj.nnz) if adj.val is None else adj.val.double()
    for i, j in set(zip(row.tolist(), col.tolist(), strict=True)):
        mine = val[(row == i) & (col == j)]
        whole[i, j] = getattr(torch, {"max": "amax", "min": "amin", "add": "sum"}.get(reduce, reduce))(mine, 0)
    torch.testing.assert_close(dense(found), whole)
    assert found.coalesce().equal(found) or found.val is None


@quick
@given(matrices(square=True))
def test_self_loops(adj):
    whole, nodes = dense(adj), adj.shape[0]
    eye = torch.eye(nodes, dtype=torch.float64).view(nodes, nodes, *[1] * (whole.dim() - 2))
    (row, col, val), bare = adj.coo(), adj.remove_self_loops()
    others = row != col
    same(bare, whole * (1 - eye))
    assert torch.equal(bare.coo()[0], row[others]) and torch.equal(bare.coo()[1], col[others])
    assert bare.val is None if val is None else torch.equal(bare.val, val[others])
    same(adj.set_self_loops(3.0), whole * (1 - eye) + 3 * eye)
    same(adj.set_self_loops(), whole * (1 - eye) + eye)
    loops = torch.arange(nodes).double()
    same(adj.set_self_loops(loops), whole * (1 - eye) + torch.diag(loops).view(eye.shape))
    assert torch.equal(adj.diag().double(), whole.diagonal().movedim(-1, 0))
    assert (adj.set_self_loops().val is None) == (val is None)


@quick
@given(matrices(heads=(None, 1)))
def test_the_diagonal_of_any_matrix(adj):
    assert torch.equal(adj.diag().double(), dense(adj).diagonal().movedim(-1, 0))


@quick
@given(st.data(), st.integers(0, 3))
def test_products_from_the_left(data, n):
    adj = data.draw(matrices(heads=(None, 1)))
    x = torch.randint(-3, 4, (n, adj.shape[0])).double()
    whole = dense(adj).reshape(adj.shape)
    assert torch.equal(x @ adj, x @ whole)
    assert torch.equal(
        x[:1].reshape(-1) @ adj if n else torch.zeros(adj.shape[1]),
        (x[:1] @ whole).reshape(-1) if n else torch.zeros(adj.shape[1]),
    )


def test_identity_and_words(device):
    eye = CSR.eye(3, dtype=torch.float16, device=device)
    assert torch.equal(eye.to_dense(), torch.eye(3, dtype=torch.float16, device=device))
    assert CSR.eye(2).val is None and CSR.eye(2).dtype is None and CSR.eye(0).shape == (0, 0)
    adj = CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), (2, 3)).to(device)
    assert adj.dtype == torch.float32 and adj.size() == (2, 3) and adj.size(-1) == adj.size(1) == 3
    assert adj.numel() == adj.nnz == 2
    words = [adj.half(), adj.bfloat16(), adj.double(), adj.float()]
    assert [m.dtype for m in words] == [torch.float16, torch.bfloat16, torch.float64, torch.float32]
    assert words[-1] is adj and adj.pattern().half().val is None
    assert adj.T.shape == adj.t().shape == (3, 2)


def test_what_is_equal(device):
    row, col, val = torch.tensor([1, 0, 0]), torch.tensor([0, 2, 1]), torch.tensor([3.0, 2.0, 1.0])
    adj = CSR.from_coo(row, col, val, (2, 3)).to(device)
    order = torch.tensor([2, 1, 0])
    other = CSR.from_coo(row[order], col[order], val[order], (2, 3)).to(device)
    assert adj.equal(other) and adj != other and adj.equal(adj)
    assert not adj.equal(other * 2) and not adj.equal(adj.double()) and not adj.equal(adj.pattern())
    assert adj.pattern().equal(other.pattern()) and not adj.equal(adj.t())
    assert not adj.equal(CSR.from_coo(row, col, val, (2, 4)).to(device))
    assert not adj.equal(CSR.from_coo(row, 2 - col, val, (2, 3)).to(device))
    nan = adj.with_values(torch.full_like(adj.val, float("nan")))
    assert not nan.equal(nan)


def test_sixteen_bits_are_added_in_float32(device):
    """4,096 entries of 0.1 at one place: float16 would stop growing at 256."""
    n = 4096
    zero = torch.zeros(n, dtype=torch.int64, device=device)
    adj = CSR.from_coo(zero, zero, torch.full((n,), 0.1, dtype=torch.float16, device=device), (1, 1))
    exact = torch.tensor(n * float(torch.tensor(0.1).half()))
    for found in (adj.coalesce().val, adj.sum(), adj.sum(1), adj.diag(), (adj + adj.t()).sum() / 2):
        torch.testing.assert_close(found.float().cpu().reshape(()), exact, rtol=2e-3, atol=0)


def test_structures_are_found_once(device):
    adj = CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.rand(3), (2, 2)).to(device)
    other = adj.with_values(adj.val + 1)
    for call in (CSR.coalesce, CSR.remove_self_loops, CSR.set_self_loops):
        assert call(adj).idx is call(other).idx


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_structure_that_was_found_in_inference_mode_serves_gradients(mode):
    """CPU only: it is the same code."""
    adj = CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1]), torch.rand(3), (2, 2))
    with mode():
        adj.coalesce(), adj.diag(), adj.remove_self_loops(), adj[[1, 0]], adj * adj.t(), fusedmm.block_diag([adj, adj])
    val = torch.rand(3, requires_grad=True)
    mine = adj.with_values(val)
    (mine.coalesce().sum() + mine.diag().sum() + mine.remove_self_loops().sum()).backward()
    assert val.grad.tolist() == [2, 2, 2]
