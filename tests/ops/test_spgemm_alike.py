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
    "5-point": lambda: twice(stencil(23, 40, points=5)),
    "27-point": lambda: twice(stencil(5, 6, 20, points=27)),
    "rows shorter than a vector": lambda: twice(band(300, 1)),
    "rows of many vectors": lambda: twice(band(300, 16)),
    "columns far apart": lambda: twice(band(400, 2, step=37)),
    "a gap": lambda: twice(with_a_gap(band(300, 3))),
    "pooled": lambda: pooled(stencil(10, 80, points=5)),
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


def test_rows_that_are_not_alike_keep_nothing():
    a = CSR.from_dense((torch.rand(200, 200) < 0.1).float())
    assert not fusedmm.spgemm_plan(a, a).products.numel()
