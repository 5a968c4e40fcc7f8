"""What went wrong in other libraries' sparse products, each as a test that names it; and their matrices in products
with ours. Larger numbers than 32 bits count are in test_spgemm_large.py: products (spECK, CUDALibrarySamples 38),
entries (cupy 6864) and columns (spECK)."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from support.machine import ROOT
from support.spgemm_oracle import assert_product, dense, products, random_csr

import fusedmm
from fusedmm import CSR


def rows_of(adj):
    return adj.idx.split(adj.degree().tolist())


def test_scipy_drops_entries_whose_products_cancel(device):
    one = torch.tensor([1.0], device=device)
    at = torch.tensor([[0, 0], [0, 1]], device=device)
    a = CSR.from_coo(*at, torch.cat([one, -one]), shape=(1, 2))
    b = CSR.from_coo(at[1], 0 * at[1], torch.cat([one, one]), shape=(2, 1))
    assert [(c.nnz, c.val.tolist()) for _, c in products(a, b, device)] == [(1, [0.0])] * len(products(a, b, device))
    assert (scipy.sparse.csr_matrix(dense(a).astype(float)) @ scipy.sparse.csr_matrix(dense(b).astype(float))).nnz == 0


def test_pytorch_95491_columns_do_not_rise(device):
    """Nor do they where those of A and B do not, of any algorithm."""
    a, b = random_csr(40, 40, 300, device=device), random_csr(40, 90, 500, device=device)
    for name, c in [("whole", a @ b), *products(a, b, device)]:
        assert all(bool((row.diff() > 0).all()) for row in rows_of(c)), name


def test_pytorch_95224_results_are_of_32_bits(device):
    c = random_csr(9, 9, 30, device=device) @ random_csr(9, 9, 30, device=device)
    assert c.ptr.dtype == torch.int64


def test_kokkos_kernels_402_a_times_its_transpose(device):
    """It crashed, or was wrong, where A has more rows than columns."""
    for rows, cols in ((300, 7), (7, 300), (1, 50), (50, 1)):
        a = random_csr(rows, cols, 400, device=device)
        for name, c in products(a, a.t(), device):
            assert_product(c, a, a.t(), f"{name} {rows} x {cols}")


def test_kokkos_kernels_2194_rows_are_sorted_after_other_values_too(device):
    a = random_csr(60, 60, 400, device=device)
    plan = fusedmm.spgemm_plan(a, a)
    for _ in range(2):
        c = plan(torch.randn_like(a.val), a.val)
        assert all(bool((row.diff() > 0).all()) for row in rows_of(c))


def test_kokkos_kernels_counts_into_what_a_pointer_held_before(device):
    """There a row pointer full of 123 was counted into. Here nobody gives one: both phases run in memory full of it."""
    a = random_csr(200, 200, 3000, device=device)
    exact = a @ a
    for _ in range(5):
        trash = [torch.full((n,), 123, dtype=torch.int64, device=device) for n in (201, 514, exact.nnz, 40_000)]
        del trash
        c = fusedmm.spgemm_plan(a, a)(a.val, a.val)
        assert torch.equal(c.ptr, exact.ptr) and torch.equal(c.idx, exact.idx) and torch.equal(c.val, exact.val)


@pytest.mark.parametrize("empty", ["a", "b", "both"])
def test_kokkos_kernels_empty_factors(empty, device):
    a = random_csr(8, 6, 0 if empty != "b" else 20, device=device)
    b = random_csr(6, 5, 0 if empty != "a" else 20, device=device)
    for name, c in [("whole", a @ b), *products(a, b, device)]:
        assert c.shape == (8, 5) and c.nnz == 0 and c.ptr.tolist() == [0] * 9, name


def test_kokkos_kernels_1161_devices_differ(cuda):
    a = random_csr(90, 90, 900)
    here, there = a @ a, a.to(cuda) @ a.to(cuda)
    assert torch.equal(here.ptr, there.ptr.cpu()) and torch.equal(here.idx, there.idx.cpu())
    torch.testing.assert_close(here.val, there.val.cpu())


def test_torch_sparse_45_no_gradients_of_values(device):
    """Its tests multiply identity matrices; these are of other structures."""
    a, b = random_csr(9, 7, 25, torch.float64, device), random_csr(7, 8, 20, torch.float64, device)
    u, v = (m.val.clone().requires_grad_() for m in (a, b))
    weight = torch.randn(9, 8, dtype=torch.float64, device=device)
    (fusedmm.spgemm(a.with_values(u), b.with_values(v)).to_dense() * weight).sum().backward()
    x, y = (m.val.clone().requires_grad_() for m in (a, b))
    ((a.with_values(x).to_dense() @ b.with_values(y).to_dense()) * weight).sum().backward()
    torch.testing.assert_close(u.grad, x.grad)
    torch.testing.assert_close(v.grad, y.grad)


def test_pytorch_and_cupy_coalesce_repeated_entries_first():
    """Repeated entries add, and gradients reach each of them."""
    at = torch.tensor([[0, 0, 0], [1, 1, 0]])
    val = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    c = CSR.from_coo(*at, val, shape=(1, 2)) @ CSR.from_coo(at[1], 0 * at[1], torch.tensor([1.0, 10.0, 100.0]), (2, 1))
    assert c.val.tolist() == [33.0 + 400.0]
    c.val.sum().backward()
    assert val.grad.tolist() == [11.0, 11.0, 100.0]


SORTED_ON = """
import hashlib, sys, torch, fusedmm
sys.path.insert(0, "tests")
from fusedmm.data import stencil
from support.spgemm_oracle import random_csr
torch.manual_seed(0)
found = hashlib.sha256()
pairs = [(random_csr(40, n, 300), random_csr(n, m, nnz))
         for n, m, nnz in ((50, 70, 400), (90, 30, 900), (20, 9000, 6000), (300, 300, 900))]
for grid, points in (((9, 60), 5), ((9, 60), 9), ((4, 5, 50), 27)):
    adj = stencil(*grid, points=points)
    pairs.append([adj.with_values(torch.randn(adj.nnz))] * 2)
for a, b in pairs:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        c = fusedmm.spgemm(a.to(dtype=dtype), b.to(dtype=dtype))
        for t in (c.ptr, c.idx, c.val.view(torch.int16)):
            found.update(t.numpy().tobytes())
print(found.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    """Rows of a whole product are sorted, and rows that are alike added up, by a set's own vectors; an ``auto`` of
    another set runs in another process."""
    found = set()
    sets = {
        "scalar",
        *(x.name.partition(":")[2] for x in fusedmm.algorithms("spmm", "cpu") if x.name.startswith("rows:")),
    }
    for name in sorted(sets):
        ran = subprocess.run(
            [sys.executable, "-c", SORTED_ON],
            env=os.environ | {"FUSEDMM_ISA": name},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(ran.stdout.strip())
    assert len(found) == 1 and len(sets) > 1, sets
    assert np.all([len(x) == 64 for x in found])


@pytest.mark.parametrize("form", ["scipy", "scipy csc", "torch csr", "torch csc", "torch coo"])
def test_matmul_takes_other_libraries_sparse_matrices(form):
    a, b = random_csr(300, 20, 700, torch.float64), random_csr(20, 6, 40, torch.float64)
    as_scipy = scipy.sparse.csr_matrix(b.to_dense().numpy())
    other = {
        "scipy": as_scipy,
        "scipy csc": as_scipy.tocsc(),
        "torch csr": b.to_dense().to_sparse_csr(),
        "torch csc": b.to_dense().to_sparse_csc(),
        "torch coo": b.to_dense().to_sparse().requires_grad_(),
    }[form]
    for c in (a @ other, fusedmm.spgemm(a, other)):
        assert isinstance(c, CSR)
        torch.testing.assert_close(c.to_dense(), a.to_dense() @ b.to_dense())
    left = other @ b.t()
    assert isinstance(left, CSR)
    torch.testing.assert_close(left.to_dense(), b.to_dense() @ b.to_dense().t())
    if form == "torch coo":
        (a @ other).val.sum().backward()
        exact = a.to_dense().sum(0)[:, None] * (b.to_dense() != 0)
        torch.testing.assert_close(other.grad.to_dense(), exact)
