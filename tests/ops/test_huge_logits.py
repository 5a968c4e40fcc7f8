"""Softmax of logits so large that their lse, one number, has no room for the logarithm of the sum."""

import pytest
import torch
from support.attention_oracle import Given, algorithms, assert_close, attention_oracle
from support.generate import run_or_decline

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


# ---- attention, whose weights and gradients are made of logits and lse as well ----

NAMES = "q", "k", "v", "att", "bias"
LOWEST = "the lowest number"


class Tied:
    """Rows of one tie, of logits of which one is far below the others and one masked, and of nothing.

    The tied row's logits are its bias alone, to which such a size would round any other number.
    """

    def __init__(self, score, value, dtype, count, device):
        torch.manual_seed(count)
        few, heads, feat = torch.tensor([0.5, 1.0, -50.0, -torch.inf]), 3, 1 if score == "additive" else 4
        self.row = torch.cat([torch.zeros(count, dtype=torch.int64), torch.ones(4, dtype=torch.int64)])
        self.col = torch.cat([torch.arange(count), torch.arange(4)])
        self.adj = fusedmm.CSR.from_coo(self.row, self.col, shape=(3, count)).to(device)
        self.score, self.device, self.dtype = score, device, dtype
        value = torch.finfo(dtype).min if value == LOWEST else value
        q = torch.randn(3, heads, feat) * torch.tensor([0, 1, 1])[:, None, None]
        k = torch.randn(count, heads, feat) if score == "dot" else torch.zeros(count, heads, feat)
        v, self.gout = torch.randn(count, heads, 5), torch.randn(3, heads, 5).to(device, dtype)
        att = torch.randn(heads, feat) if score == "gatv2" else None
        bias = torch.cat([torch.full((count,), value, dtype=torch.float64), few.double()])[:, None].repeat(1, heads)
        self.given = [None if t is None else t.to(device, dtype) for t in (q, k, v, att, bias)]

    def exact(self):
        """out, u and the gradients by their names, in float64, with bounds; the tied logits have no error."""
        given, tied = Given(*self.given, None, None), self.row == 0
        return attention_oracle(self.adj, given, self.score, 1.0, 0.2, self.gout, self.dtype, exact_logits=tied)

    def found(self, learn, algorithm):
        """The same of this package, or None."""
        leaves = [
            None if t is None else t.clone().requires_grad_(n in learn) for n, t in zip(NAMES, self.given, strict=True)
        ]
        q, k, v, att, bias = leaves
        q, k = (q[..., 0], k[..., 0]) if self.score == "additive" else (q, k)
        options = {"score": self.score, "att": att, "bias": bias, "scale": 1.0 if self.score == "dot" else None}
        out = run_or_decline(fusedmm.attention, self.adj, q, k, v, algorithm=algorithm, **options)
        if out is None:
            return None
        with torch.no_grad():
            use = fusedmm.attention(self.adj, q, k, v, algorithm=algorithm, return_weights=True, **options)[1]
        learnt = {n: leaf for n, leaf in zip(NAMES, leaves, strict=True) if leaf is not None and n in learn}
        gradients = torch.autograd.grad(out, list(learnt.values()), self.gout)
        named = {"g" + n: g for n, g in zip(learnt, gradients, strict=True)}
        return {"out": out.detach(), "use": use, **named}


@pytest.mark.parametrize("count", [10, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [1e3, -1e5, -1e9, LOWEST], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_ties_in_attention(score, value, dtype, count, device):
    tied = Tied(score, value, dtype, count, device)
    exact = tied.exact()
    for algorithm in algorithms(device):
        for learn in (NAMES, NAMES[:4]):  # additive scores walk over the rows where their bias learns, and else not
            for name, found in (tied.found(learn, algorithm) or {}).items():
                assert_close(f"{algorithm} {learn} {name}", found, exact[name], dtype)


@pytest.mark.parametrize("score", ["dot", "gatv2"])
@pytest.mark.parametrize("heads, feat", [(8, 8), (1, 64), (2, 40)])
@pytest.mark.parametrize("size", [2, 300])
def test_ties_of_products(size, heads, feat, score, device):
    """No bias: other kernels. Sums of whole numbers are exact, so that all logits are equal up to their scale."""
    count = 300
    col = torch.arange(count, device=device)
    adj = fusedmm.CSR.from_coo(torch.zeros_like(col), col, shape=(1, count))
    torch.manual_seed(feat)
    q, k = (torch.randint(-size, size + 1, (1, heads, feat), device=device).float() for _ in range(2))
    k = k.repeat(count, 1, 1)
    att = torch.randint(-4, 5, (heads, feat), device=device).float() if score == "gatv2" else None
    v = torch.randn(count, heads, feat, device=device, requires_grad=True)
    gout = torch.randn(1, heads, feat, device=device)
    for algorithm in algorithms(device):
        out = run_or_decline(fusedmm.attention, adj, q, k, v, score=score, slope=0.25, att=att, algorithm=algorithm)
        if out is not None:
            torch.testing.assert_close(out, v.mean(0, keepdim=True), rtol=1e-5, atol=1e-5)
            (gv,) = torch.autograd.grad(out, v, gout)
            torch.testing.assert_close(gv, gout.expand_as(gv) / count, rtol=1e-5, atol=1e-7)
