"""Row sums against float64, and their gradient."""

import pytest
import torch

import fusedmm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_sums_and_gradient(dtype):
    row, col = torch.randint(50, (400,)), torch.randint(30, (400,))
    val = torch.randint(-8, 9, (400,)).to(dtype).requires_grad_()  # sums of these are exact in any order
    adj = fusedmm.CSR.from_coo(row, col, val, shape=(50, 30))
    y = fusedmm.rowsum(adj)
    exact = torch.zeros(50, dtype=torch.float64).index_add_(0, row, val.detach().double())
    assert y.dtype == dtype and torch.equal(y.detach(), exact.to(dtype))
    gy = torch.randn(50, dtype=dtype)
    y.backward(gy)
    assert torch.equal(val.grad, gy[row])
    assert [a.name for a in fusedmm.algorithms("rowsum")] == ["reference"]
    assert fusedmm.algorithms("rowsum", "cuda") == []
    with pytest.raises(ValueError, match="values"):
        fusedmm.rowsum(adj.pattern())
