"""We agree with torch.sparse.mm and torch.sparse.sampled_addmm, gradients included: the whole comparison."""

import pytest
import torch
from support.generate import lay

import fusedmm

ROWS, COLS, FEAT = 60, 40, 33


def graph(device, dtype, layout=torch.sparse_csr):
    """A torch sparse matrix with empty rows, a full one and values."""
    g = torch.Generator().manual_seed(0)
    dense = torch.randn(ROWS, COLS, generator=g, dtype=torch.float64) * (torch.rand(ROWS, COLS, generator=g) < 0.2)
    dense[7], dense[::5] = torch.randn(COLS, generator=g, dtype=torch.float64), 0
    return dense.to(dtype).to(device).to_sparse(layout=layout)


def leaf(rows, device, dtype, layout, seed):
    x = torch.randn(rows, FEAT, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lay(x.to(dtype).to(device), layout).requires_grad_()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("sparse", [torch.sparse_csr, torch.sparse_coo, torch.sparse_csc], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_spmm_is_torch_sparse_mm(sparse, dtype, layout, device):
    with_values = sparse != torch.sparse_csc  # torch cannot accumulate a gradient in CSC
    ours, theirs = (graph(device, dtype, sparse).requires_grad_(with_values) for _ in range(2))
    x, x2 = (leaf(COLS, device, dtype, layout, 1) for _ in range(2))
    gy = leaf(ROWS, device, dtype, layout, 2).detach()
    y = fusedmm.spmm(ours, x)
    y2 = torch.sparse.mm(theirs if with_values else graph(device, dtype), x2)
    torch.testing.assert_close(y, y2)
    y.backward(gy)
    y2.backward(gy)
    torch.testing.assert_close(x.grad, x2.grad)
    if with_values:
        torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_reductions_are_torch_sparse_mm_reduce(reduce):
    """torch.sparse.mm(reduce=) is there on the CPU only; its ties go to one entry, so there are none here."""
    dtype = torch.float32
    a, x = graph("cpu", dtype), leaf(COLS, "cpu", dtype, "contiguous", 1)
    x2 = x.detach().clone().requires_grad_()
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    y, y2 = fusedmm.spmm(a, x, reduce=reduce), torch.sparse.mm(a.requires_grad_(), x2, name)
    torch.testing.assert_close(y, y2)
    gy = torch.randn(ROWS, FEAT)
    y.backward(gy)
    y2.backward(gy)
    torch.testing.assert_close(x.grad, x2.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sddmm_is_sampled_addmm(dtype, device):
    """sampled_addmm(S, a, b^T, beta=0, alpha=1) has the products at S's entries; ours multiplies by S's values."""
    sparse = graph(device, dtype)
    a, b = leaf(ROWS, device, dtype, "contiguous", 1), leaf(COLS, device, dtype, "transposed", 2)
    e = fusedmm.sddmm(sparse, a, b)
    sampled = torch.sparse.sampled_addmm(sparse, a.detach(), b.detach().mT, beta=0.0)
    torch.testing.assert_close(e, sparse.values() * sampled.values())
    # its gradient is that of the dense formula, which is what torch can differentiate everywhere
    a2, b2 = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    row, col, val = fusedmm.as_csr(sparse).coo()
    e2 = val * (a2 @ b2.mT)[row, col]
    ge = torch.randn(e.shape, dtype=dtype, device=device)
    for ours, theirs in zip(torch.autograd.grad(e, (a, b), ge), torch.autograd.grad(e2, (a2, b2), ge), strict=True):
        torch.testing.assert_close(ours, theirs)
