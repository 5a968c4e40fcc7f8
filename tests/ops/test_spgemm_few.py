"""Sparse products with few rows, at the limits beyond which CUDA makes lists of rows (csrc/spgemm/cuda_few.cuh).

A whole product finds few rows by launches of their own. A plan, which keeps where products go, does not.
"""

import numpy as np
import pytest
import scipy.sparse
import torch
from support.bounds import assert_within
from support.spgemm_oracle import random_csr

import fusedmm
from fusedmm import CSR

LIMITS = {  # rows, inner, columns, entries of a, entries of b; and which of these is at its limit
    "rows": (2**14, 9000, 300, 40_000, 20_000, 0),
    "columns": (300, 3000, 2**14, 2000, 60_000, 2),
    "entries of a": (4000, 2**14 + 1, 2000, 2**17, 50_000, 3),  # eight a row of b would have its columns packed
    "entries of b": (3000, 9000, 4000, 20_000, 2**17, 4),
    "rows of b": (500, 2**17, 1000, 3000, 5000, 1),
    "bits": (2**14, 9000, 504 * 32, 20_000, 20_000, 2),  # of as many columns are the bits of all rows kept
}


def in_order(rows, cols, nnz, dtype):
    """Columns rise in each row, and none repeats."""
    key = torch.randint(rows * cols, (2 * nnz,)).unique()
    key = key[torch.randperm(len(key))[:nnz]].sort().values
    return CSR.from_coo(key // cols, key % cols, torch.randn(nnz, dtype=dtype), shape=(rows, cols))


def of_lengths(lengths, cols, falling=False):
    """A row of each length, whose columns are apart from each other and rise, or fall."""
    idx = [torch.randperm(cols)[:n].sort(descending=falling).values for n in lengths]
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    return CSR.from_csr(ptr, torch.cat(idx), torch.randn(int(ptr[-1])), shape=(len(lengths), cols))


ROWS = {
    "hubs are neighbours": lambda: (of_lengths([3] * 20 + [129, 500, 128, 700] * 4 + [2] * 30, 800), 90),
    "hubs alone": lambda: (of_lengths([600] * 9, 800), 2**14),
    "one row": lambda: (of_lengths([5], 3000), 50),
    "one long row": lambda: (of_lengths([3000], 3000), 50),
    "first and last rows are empty": lambda: (of_lengths([0] * 9 + [7, 0, 0, 200, 1] + [0] * 9, 300), 40),
    "columns packed, read out by warps": lambda: (of_lengths([50, 60, 0, 200] * 15, 300), 90),
    "columns packed, read out by blocks": lambda: (of_lengths([50, 60, 0, 200] * 15, 300), 5000),
    "no row has entries": lambda: (of_lengths([0] * 50, 300), 40),
}


def to_scipy(adj, what):
    """Entries that repeat are added, which products of them are as well."""
    row, col, val = (t.cpu().numpy() for t in adj.coo())
    return scipy.sparse.coo_matrix((what(val.astype(np.float64)), (row, col)), shape=adj.shape).tocsr()


def assert_whole(a, b, device):
    """The product is scipy's within the bound, and has the bits that a plan gives."""
    a, b = a.to(device), b.to(device)
    whole, plan = fusedmm.spgemm(a, b), fusedmm.spgemm_plan(a, b)(a.val, b.val)
    exact, magnitude, terms = (to_scipy(a, what) @ to_scipy(b, what) for what in (np.copy, np.abs, np.ones_like))
    for found in (exact, magnitude, terms):
        found.sort_indices()
    for c in (whole, plan, fusedmm.spgemm_plan(a, b, algorithm="kkmem").c):
        assert torch.equal(c.ptr.cpu(), torch.from_numpy(terms.indptr).long())
        assert torch.equal(c.idx.cpu(), torch.from_numpy(terms.indices).int())
    of_scipy = (torch.from_numpy(found.data) for found in (exact, magnitude, terms))
    assert_within(whole.val, *of_scipy, whole.val.dtype, operator="spgemm")
    assert torch.equal(whole.val, plan.val), "a plan has other bits"


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("make", [in_order, random_csr], ids=["in order", "repeated"])
def test_at_the_limits(make, name, beyond, device):
    *sizes, at = LIMITS[name]
    sizes[at] += beyond
    rows, inner, cols, nnz_a, nnz_b = sizes
    assert_whole(make(rows, inner, nnz_a, torch.float32), make(inner, cols, nnz_b, torch.float32), device)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_kind(name, falling, device):
    a, cols = ROWS[name]()
    assert_whole(a, of_lengths([n % 40 for n in range(a.shape[1])], cols, falling), device)


def test_the_last_column_that_32_bits_number(cuda):
    cols = 2**31 - 1
    far = torch.tensor([0, cols - 1, 5, cols - 2, cols - 1], device=cuda)
    row = torch.tensor([0, 0, 1, 2, 2], device=cuda)
    b = CSR.from_coo(row, far, torch.rand(5, device=cuda), shape=(3, cols))
    c = CSR.eye(3, device=cuda).with_values(torch.tensor([2.0, 4.0, 8.0], device=cuda)) @ b
    assert c.ptr.tolist() == [0, 2, 3, 5] and torch.equal(c.idx, b.idx)
    assert torch.equal(c.val, b.val * torch.tensor([2.0, 2.0, 4.0, 8.0, 8.0], device=cuda))
