"""sddmm's elementwise forms, channel by channel, against gathers in float64."""

import accuracy
import pytest
import torch
from support.bounds import UNIT, accumulator
from support.generate import cases

import fusedmm

FORMS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


def gathered(adj: fusedmm.CSR, a: torch.Tensor, b: torch.Tensor, op: str) -> torch.Tensor:
    row, col = (t.cpu() for t in adj.coo()[:2])
    e = FORMS[op](a.double().cpu()[row], b.double().cpu()[col])
    if adj.val is None:
        return e
    val = adj.val.double().cpu()
    return e * val.view(*val.shape, *[1] * (e.dim() - val.dim()))


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_is_a_gather(case, op, device):
    adj = case.matrix(device)
    a, b = case.dense(adj.shape[0], device, seed=1), case.dense(adj.shape[1], device, seed=2)
    e = fusedmm.sddmm(adj, a, b, op=op)
    size = gathered(
        adj.with_values(None if adj.val is None else adj.val.abs()), a.abs(), b.abs(), op.replace("sub", "add")
    )
    assert e.dtype == a.dtype
    # Three roundings in the dtype of sums (the value, the sum or product, the product with the value), one to a's.
    exact = gathered(adj, a, b, op)
    error = (e.double().cpu() - exact).abs()
    bound = 4 * UNIT[accumulator(case.dtype)] * size + UNIT[case.dtype] * exact.abs() + torch.finfo(case.dtype).tiny
    assert bool((error <= bound).all()), float((error - bound).max())
    accuracy.record(f"sddmm {op}", e, error, bound)


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(op, weighted, device):
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(5, (2, 12), generator=generator)

    def tensor(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(device).requires_grad_()

    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(5, 5))
    a, b, val = tensor(5, 2, 3), tensor(5, 2, 3), tensor(12, 2) if weighted else None

    def run(a, b, *val):
        return fusedmm.sddmm(adj.with_values(*val) if val else adj, a, b, op=op)

    inputs = (a, b, val) if weighted else (a, b)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize("value, number", [(1e5, 0.1), (0.01, 300.0), (0.5, 60000.0)])
def test_values_beyond_half_precision(op, value, number, device):
    """As with op="dot", neither the value nor what it multiplies needs to be a number of float16."""
    one = torch.zeros(1, dtype=torch.int64, device=device)
    val = torch.tensor([value], device=device, requires_grad=True)
    adj = fusedmm.CSR.from_coo(one, one, val, shape=(1, 1))
    a = torch.full((1, 1), number, dtype=torch.float16, device=device)
    b = -a if op == "sub" else a
    if op == "mul":
        b = b.clamp(max=300)
    e = fusedmm.sddmm(adj, a, b, op=op)
    exact = FORMS[op](a.double(), b.double())
    assert e.dtype == torch.float16
    torch.testing.assert_close(e, (exact * val.double()).half(), rtol=2**-11, atol=0)
    (gval,) = torch.autograd.grad(e.sum(), val)
    torch.testing.assert_close(gval, exact[0].float(), rtol=1e-6, atol=0)


def test_refusals(device):
    adj = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2)).to(device)
    a = torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match="one of dot, add, sub, mul, not 'div'"):
        fusedmm.sddmm(adj, a, a, op="div")
    with pytest.raises(ValueError, match='has one algorithm, "auto"'):
        fusedmm.sddmm(adj, a, a, op="add", algorithm="reference")
    assert torch.equal(fusedmm.sddmm(adj, a, a, op="add"), torch.full((2, 3), 2.0, device=device))
