"""Sparse products on a CPU in which most rows are as the row before, but for a shift (csrc/spgemm/cpu_alike.inc): they
have the bits of the loops that know nothing of it."""

import pytest
import torch

import fusedmm
from fusedmm import CSR
from fusedmm.data import stencil

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16}


def band(rows, reach, step=1):
    """Entries i, i + step, ... on both sides of the diagonal."""
    row = torch.arange(rows).repeat_interleave(2 * reach + 1)
    col = row + step * torch.arange(-reach, reach + 1).repeat(rows)
    inside = (col >= 0) & (col < rows)
    return CSR.from_coo(row[inside], col[inside], shape=(rows, rows))


def with_a_gap(adj):
    """An entry less in one row, and a row that is empty."""
    row, col, _ = adj.coo()
    stays = (row != 100) & ((row != 150) | (col != 151))
    return CSR.from_coo(row[stays], col[stays], shape=adj.shape)


def pooled(adj):
    """R A, where R joins four rows."""
    node = torch.arange(adj.shape[0])
    return CSR.from_coo(node // 4, node), adj


def twice(adj):
    return adj, adj


PAIRS = {
    "5-point": lambda: twice(stencil(13, 60, points=5)),
    "27-point": lambda: twice(stencil(4, 5, 50, points=27)),
    "rows shorter than a vector": lambda: twice(band(300, 1)),
    "rows of many vectors": lambda: twice(band(300, 16)),
    "columns far apart": lambda: twice(band(400, 2, step=37)),
    "a gap": lambda: twice(with_a_gap(band(300, 3))),
    "pooled": lambda: pooled(stencil(10, 240, points=5)),
    "too many products": lambda: twice(band(300, 30)),
    "too many terms": lambda: twice(band(700, 70)),
}


def numbers(nnz, dtype):
    """Some -0, and some infinite, whose products with 0 are NaN and belong to few sums."""
    val = torch.randn(nnz, dtype=torch.float64).to(dtype)
    val[::7] = -0.0
    val[nnz // 2 :: nnz // 3] = torch.inf
    return val


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("threaded", [1, 2])
def test_rows_that_are_alike(name, dtype, threaded, threads):
    threads(threaded)
    a, b = PAIRS[name]()
    a, b = (m.with_values(numbers(m.nnz, dtype)) for m in (a, b))
    plan, plain = (fusedmm.spgemm_plan(a, b, algorithm=how) for how in ("auto", "kkspeed"))
    assert plan.products.numel() == (a.shape[0] + 3) // 4 and not plain.products.numel()
    exact = plain(a.val, b.val)
    wholes = [fusedmm.spgemm(a, b, sorted=sorted) for sorted in (True, False)]
    for c in (plan(a.val, b.val), *wholes):
        assert torch.equal(c.ptr, exact.ptr) and torch.equal(c.idx, exact.idx)
        assert torch.equal(c.val.isnan(), exact.val.isnan())
        real = ~exact.val.isnan()
        assert torch.equal(c.val[real].view(INTEGERS[dtype]), exact.val[real].view(INTEGERS[dtype]))


def test_columns_are_those_of_dense_products():
    for make in PAIRS.values():
        a, b = make()
        found = fusedmm.spgemm_plan(a, b).c
        exact = (a.to_dense() @ b.to_dense()).nonzero()
        row, col, _ = found.coo()
        assert torch.equal(torch.stack([row, col], 1).long(), exact)


def blocks(nodes, freedoms):
    """As of finite elements: the rows of a node's freedoms are equal, and no others are alike."""
    near = (torch.arange(nodes)[:, None] + torch.arange(-2, 3)).clamp(0, nodes - 1)
    near[:, 0] = torch.randint(nodes, (nodes,))
    near = near.repeat_interleave(freedoms, 0)
    row = torch.arange(nodes * freedoms)[:, None, None]
    col = freedoms * near[:, :, None] + torch.arange(freedoms)
    row, col = (t.expand(nodes * freedoms, 5, freedoms).flatten() for t in (row, col))
    return CSR.from_coo(*torch.stack([row, col]).unique(dim=1), shape=(nodes * freedoms,) * 2)


def test_few_rows_that_are_alike_keep_nothing():
    """To learn from a row takes as long as several rows do."""
    for a in (CSR.from_dense((torch.rand(200, 200) < 0.1).float()), stencil(12, 12, 12, points=27), blocks(100, 5)):
        assert not fusedmm.spgemm_plan(a, a).products.numel()


def test_shuffled_edges_transposes_and_gradients():
    """Values in the caller's order, which is not that of entries, and gradients by the same rows."""
    adj = stencil(6, 50, points=5)
    row, col, _ = adj.coo()
    order = torch.randperm(adj.nnz)
    a = CSR.from_coo(row[order], col[order], torch.randn(adj.nnz, dtype=torch.float64), shape=adj.shape)
    for left in (a, a.t()):
        plan = fusedmm.spgemm_plan(left, a)
        assert plan.products.numel()
        exact = left.to_dense() @ a.to_dense()
        torch.testing.assert_close(plan(left.val, a.val).to_dense(), exact, rtol=1e-13, atol=1e-13)
        u, v = (m.val.detach().clone().requires_grad_() for m in (left, a))
        weights = torch.randn(plan.c.nnz, dtype=torch.float64)
        (plan(u, v).val * weights).sum().backward()
        dense = [m.with_values(m.val.detach()).to_dense().requires_grad_() for m in (left, a)]
        ((dense[0] @ dense[1]) * plan.c.with_values(weights).to_dense()).sum().backward()
        for m, found, whole in ((left, u, dense[0]), (a, v, dense[1])):
            at_row, at_col, _ = m.coo()
            torch.testing.assert_close(found.grad, whole.grad[at_row, at_col], rtol=1e-12, atol=1e-12)
