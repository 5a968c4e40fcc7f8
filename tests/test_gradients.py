"""SpMM and SDDMM against their definitions in float64, with first and second derivatives."""

import pytest
import torch

import fusedmm
from fusedmm import reference


def matrix(heads, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (60,) if heads is None else (60, heads)
    row, col = torch.randint(0, 12, (60,), generator=g), torch.randint(0, 15, (60,), generator=g)
    return fusedmm.CSR.from_coo(row, col, torch.randn(shape, dtype=torch.float64, generator=g), shape=(12, 15))


@pytest.mark.parametrize("heads", [None, 1, 3])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_spmm_gradients(heads, reduce):
    adj = matrix(heads)
    x = torch.randn(15, *([] if heads is None else [heads]), 5, dtype=torch.float64, requires_grad=True)
    val = adj.val.clone().requires_grad_()
    torch.testing.assert_close(fusedmm.spmm(adj, x, reduce=reduce), reference.spmm(adj, x, reduce))

    def f(val, x):
        return fusedmm.spmm(adj.with_values(val), x, reduce=reduce)

    assert torch.autograd.gradcheck(f, (val, x)) and torch.autograd.gradgradcheck(f, (val, x))


@pytest.mark.parametrize("heads", [None, 1, 3])
def test_sddmm_gradients(heads):
    adj = matrix(heads)
    size = [] if heads is None else [heads]
    a = torch.randn(12, *size, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(15, *size, 5, dtype=torch.float64, requires_grad=True)
    val = adj.val.clone().requires_grad_()
    torch.testing.assert_close(fusedmm.sddmm(adj, a, b), reference.sddmm(adj, a, b))

    def f(val, a, b):
        return fusedmm.sddmm(adj.with_values(val), a, b)

    assert torch.autograd.gradcheck(f, (val, a, b)) and torch.autograd.gradgradcheck(f, (val, a, b))
