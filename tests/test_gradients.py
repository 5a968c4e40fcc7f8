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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_shares_of_long_rows(reduce, dtype, device):
    """70,000 entries: more than float16 can say, and no count that bfloat16 rounds."""
    n = 70_000
    row = torch.zeros(n, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(row, torch.arange(n, device=device), shape=(1, n)).cache_transpose()
    expected = torch.tensor(1000 / n).to(dtype).item()
    gy = torch.full((1, 2), 1000.0, dtype=dtype, device=device)

    def gradient(f):
        x = torch.ones(n, 2, dtype=dtype, device=device, requires_grad=True)
        return torch.autograd.grad(f(x), x, gy)[0].unique().tolist()

    assert gradient(lambda x: fusedmm.spmm(adj, x, reduce=reduce)) == [expected]
    if reduce == "mean":
        halves = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
        assert gradient(lambda x: torch.ops.fusedmm.spmm(*halves, adj.none, x, 1, 0)) == [expected]
        ones = torch.ones(1, 1, dtype=dtype, device=device)
        y = torch.ones(n, 1, dtype=dtype, device=device)
        assert gradient(lambda z: fusedmm.fused(adj, ones, y, z, edge="1", reduce="mean")) == [expected]
