"""Softmax of logits so large that their lse, one number, has no room for the logarithm of the sum."""

import pytest
import torch

import fusedmm

LARGEST = torch.finfo(torch.float32).max


def tied(count, value, device, dtype=torch.float32):
    """One row of as many equal logits, and one of three small ones, the last of which is far below the others."""
    col = torch.cat([torch.arange(count), torch.arange(3)])
    row = torch.cat([torch.zeros(count, dtype=torch.int64), torch.ones(3, dtype=torch.int64)])
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(2, count))
    logits = torch.cat([torch.full((count,), value), torch.tensor([0.0, 1.0, -50.0])]).to(device, dtype)
    return adj, logits.requires_grad_()


@pytest.mark.parametrize("value", [1e3, -1e3, 6e4, -1e5, 1e7, -1e9, 1e20, -LARGEST, 2e38])
def test_ties_share_a_row_evenly(value, device):
    adj, logits = tied(10, value, device)
    w = fusedmm.edge_softmax(adj, logits)
    expected = torch.cat([torch.full((10,), 0.1), torch.tensor([0.0, 1.0, -50.0]).softmax(0)])
    torch.testing.assert_close(w.cpu(), expected, rtol=1e-5, atol=0)
    score = torch.arange(13.0, device=device)
    (g,) = torch.autograd.grad((w * score).sum(), logits)
    row = expected[:10], expected[10:]
    exact = torch.cat([p * (s - (p * s).sum()) for p, s in zip(row, score.cpu().split([10, 3]), strict=True)])
    torch.testing.assert_close(g.cpu(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_sixteen_bits(dtype, device):
    adj, logits = tied(10, -6e4, device, dtype)
    w = fusedmm.edge_softmax(adj, logits)
    assert w.dtype == dtype
    torch.testing.assert_close(w[:10].float().cpu(), torch.full((10,), 0.1).to(dtype).float(), rtol=0, atol=0)


def test_logits_a_little_apart(device):
    """Their differences are exact, and decide."""
    adj, logits = tied(10, 2.0**20, device)
    far = logits.detach() + torch.cat([torch.arange(10) / 8, torch.zeros(3)]).to(device)
    expected = (torch.arange(10) / 8).softmax(0)
    torch.testing.assert_close(fusedmm.edge_softmax(adj, far)[:10].cpu(), expected, rtol=1e-5, atol=0)


def test_rows_of_infinities(device):
    adj, logits = tied(10, -torch.inf, device)
    w = fusedmm.edge_softmax(adj, logits.detach())
    assert torch.equal(w[:10], torch.zeros(10, device=device)) and w[10:].sum().item() == pytest.approx(1)
    w = fusedmm.edge_softmax(adj, tied(10, torch.inf, device)[1].detach())
    assert bool(w[:10].isnan().all()) and w[10:].sum().item() == pytest.approx(1)
