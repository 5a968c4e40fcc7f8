"""Derivatives of fused by differences, of every score, message and reduction."""

import random

import pytest
import torch
from support.fused_oracle import for_edge
from support.turns import in_turn

import fusedmm
from fusedmm._lib import MESSAGES, REDUCTIONS, SCORES

SMOOTH = ["s*a", "sigmoid(s)", "a/(1+s**2)", "exp(-s/2)*a", "softplus(s + a)", "tanh(s)*a - s"]


@pytest.mark.parametrize(
    "score, message, reduce", in_turn([s for s in SCORES if s != "additive"], MESSAGES, REDUCTIONS)
)
def test_gradcheck(score, message, reduce):
    """First and second derivatives by differences, with and without heads; the second ones in a random direction."""
    pick = random.Random(f"{score}{message}{reduce}")
    heads, edge, activation = pick.choice([None, 2]), pick.choice(SMOOTH), pick.choice([None, "sigmoid", "tanh"])
    inner = [] if heads is None else [heads]
    row, col = torch.tensor([0, 0, 0, 2, 2, 3, 1, 1]), torch.tensor([0, 1, 4, 2, 2, 3, 0, 4])
    adj = fusedmm.CSR.from_coo(row, col, shape=(5, 5))
    x, y, z = (torch.randn(5, *inner, 2, dtype=torch.float64).div(2).requires_grad_() for _ in range(3))
    val = torch.randn(8, *inner, dtype=torch.float64, requires_grad=True)

    def f(val, x, y, z):
        given = (x, y, z) if message == "scale" else (x, y)
        weighted = for_edge(adj.with_values(val), edge)
        out = fusedmm.fused(
            weighted, *given, score=score, edge=edge, message=message, activation=activation, reduce=reduce
        )
        return out + 0 * (z.sum() + val.sum())

    assert torch.autograd.gradcheck(f, (val, x, y, z))
    assert torch.autograd.gradgradcheck(f, (val, x, y, z), fast_mode=True)
