"""sddmm's elementwise forms, channel by channel, against gathers in float64."""

import accuracy
import pytest
import torch
from bounds import UNIT
from generate import cases

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
    # Three roundings: the value to the operand's dtype, the sum or product, the product with the value.
    error = (e.double().cpu() - gathered(adj, a, b, op)).abs()
    bound = 4 * UNIT[case.dtype] * size + torch.finfo(case.dtype).tiny
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


def test_refusals(device):
    adj = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2)).to(device)
    a = torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match="one of dot, add, sub, mul, not 'div'"):
        fusedmm.sddmm(adj, a, a, op="div")
    with pytest.raises(ValueError, match='has one algorithm, "auto"'):
        fusedmm.sddmm(adj, a, a, op="add", algorithm="reference")
    assert torch.equal(fusedmm.sddmm(adj, a, a, op="add"), torch.full((2, 3), 2.0, device=device))
