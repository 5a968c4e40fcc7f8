"""Small matrices for properties: any shape, empty ones too, repeated and unsorted columns, any edge order, heads."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

import fusedmm


@st.composite
def matrices(draw, rows=None, cols=None, square=False, heads=(None, 1, 3), values=(True, False), dtype=torch.float64):
    """A CSR whose values are small integers, so that sums are exact."""
    rows = draw(st.integers(0, 6)) if rows is None else rows
    cols = rows if square else draw(st.integers(0, 6)) if cols is None else cols
    nnz = draw(st.integers(0, 14)) if rows and cols else 0
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    row, col = torch.randint(max(rows, 1), (nnz,), generator=g), torch.randint(max(cols, 1), (nnz,), generator=g)
    count = draw(st.sampled_from(heads))
    val = None
    if draw(st.sampled_from(values)):
        val = torch.randint(-4, 5, (nnz,) if count is None else (nnz, count), generator=g).to(dtype)
    if draw(st.booleans()):
        return fusedmm.CSR.from_coo(row, col, val, (rows, cols))
    ptr = torch.searchsorted(row.sort().values, torch.arange(rows + 1))  # columns in no order
    return fusedmm.CSR.from_csr(ptr, col, val, (rows, cols))


def dense(adj: fusedmm.CSR) -> Tensor:
    """float64 [rows, cols, ...], by hand."""
    row, col, val = adj.coo()
    val = torch.ones(adj.nnz) if val is None else val
    y = torch.zeros(*adj.shape, *val.shape[1:], dtype=torch.float64)
    for i, j, v in zip(row.tolist(), col.tolist(), val.detach().double().cpu(), strict=True):
        y[i, j] += v
    return y


def stored(adj: fusedmm.CSR) -> Tensor:
    """How many entries each place has, float64 [rows, cols]."""
    return dense(adj.pattern())
