"""Sparse products for tests, and what they should be: long double sums over the entries that are stored."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import fusedmm
from fusedmm import CSR
from support.bounds import assert_within

PLANNED = ("kkmcr", "kkmcw")  # they need a plan, and take no mask


def random_csr(rows: int, cols: int, nnz: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CSR:
    """Entries in any order, some of them repeated, with an order of edges of their own."""
    row, col = torch.randint(max(rows, 1), (nnz,)), torch.randint(max(cols, 1), (nnz,))
    val = torch.randn(nnz, dtype=torch.float64).to(dtype)
    return CSR.from_coo(row.to(device), col.to(device), val.to(device), shape=(rows, cols))


def dense(adj: CSR, what: str = "values") -> np.ndarray:
    """The dense matrix in long double: of the values, of their magnitudes, or of how many entries there are."""
    row, col, val = (t if t is None else t.detach().double().cpu().numpy() for t in adj.coo())
    val = np.ones(adj.nnz) if val is None or what == "entries" else np.abs(val) if what == "magnitudes" else val
    made = np.zeros(adj.shape, dtype=np.longdouble)
    np.add.at(made, (row.astype(int), col.astype(int)), val.astype(np.longdouble))
    return made


def at_entries(full: np.ndarray, adj: CSR) -> Tensor:
    row, col, _ = adj.coo()
    return torch.from_numpy(full[row.cpu().numpy(), col.cpu().numpy()].astype(np.float64))


def assert_product(c: CSR, a: CSR, b: CSR, note: str = "", mask: CSR | None = None) -> None:
    """c is the product of a and b, has the product's structure or the mask's, and is within the bound."""
    terms = dense(a, "entries") @ dense(b, "entries")
    if mask is None:
        row, col, _ = c.coo()
        stored = np.zeros(c.shape, dtype=int)
        np.add.at(stored, (row.cpu().numpy(), col.cpu().numpy()), 1)
        assert np.array_equal(stored, (terms > 0).astype(int)), f"{note}: another structure"
    else:
        assert torch.equal(c.ptr, mask.ptr) and torch.equal(c.idx, mask.idx) and torch.equal(c.eid, mask.eid), note
    exact = at_entries(dense(a) @ dense(b), c)
    magnitude = at_entries(dense(a, "magnitudes") @ dense(b, "magnitudes"), c)
    assert_within(c.val, exact, magnitude, at_entries(terms, c), c.val.dtype, note, "spgemm")


def products(a: CSR, b: CSR, device: str, sorted: bool = True, mask: CSR | None = None) -> list[tuple[str, CSR]]:
    """(algorithm, product) of all algorithms, through a plan."""
    found = []
    for name in ["auto", *(x.name for x in fusedmm.algorithms("spgemm", device))]:
        if mask is None or name not in PLANNED:
            plan = fusedmm.spgemm_plan(a, b, algorithm=name, sorted=sorted, mask=mask)
            found.append((name, plan(a.val, b.val)))
    return found
