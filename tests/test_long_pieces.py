"""Pieces of rows get longer with the matrix: sums of more than 512 entries are put aside on the way, on CUDA."""

import functools

import pytest
import torch
from bounds import UNIT

import fusedmm

# entries, how many of them a piece of a row holds at most, and those of each row: in one piece, and in three
SIZES = [
    (n, piece, each) for n, piece in ((11e6, 1024), (25e6, 2048), (61e6, 4096)) for each in (piece - 3, 2 * piece + 5)
]
FEAT = 8


@functools.lru_cache(maxsize=1)
def circulant(entries, each):
    """As many entries in every column as in every row."""
    n = int(entries) // each + 1
    row = torch.arange(n, device="cuda")[:, None]
    idx = (row + torch.arange(each, device="cuda")) % n
    return fusedmm.CSR.from_csr(torch.arange(n + 1, device="cuda") * each, idx.flatten(), shape=(n, n), check=False)


@pytest.fixture(params=SIZES, ids=str)
def case(request, cuda):
    entries, piece, each = request.param
    adj = circulant(entries, each)
    assert adj.plan[20:24].view(torch.int32).item() == piece, "the plan's header"
    return adj, each


def step(call, *operands):
    operands = [t.requires_grad_() for t in operands]
    out = call(*operands)
    return out, *torch.autograd.grad(out, operands, torch.ones_like(out))


def assert_equal_terms(found, exact, terms):
    bound = (4 * terms**0.5 + 1) * UNIT[torch.float32] * abs(exact)
    error = (found.double() - exact).abs().max().item()
    assert error <= bound, f"{error / bound} of the bound"


def test_equal_terms_stay_within_the_bound(case):
    """One after the other in float32 they would not: the errors have one sign."""
    adj, each = case
    n = adj.shape[0]
    val, x = torch.full((adj.nnz,), 0.1, device="cuda"), torch.full((n, FEAT), 0.3, device="cuda")
    term = val[0].item() * x[0, 0].item()
    y, gx = step(lambda x: fusedmm.spmm(adj.with_values(val), x), x)
    assert_equal_terms(y, each * term, each)
    assert_equal_terms(gx, each * val[0].item(), each)
    y, *g = step(lambda x, y: fusedmm.fused(adj.with_values(val), x, y, score="none"), x, x.clone())
    assert_equal_terms(y, each * term, each)
    assert_equal_terms(g[1], each * val[0].item(), each)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_equal_weights_stay_within_the_bound(case, score):
    adj, each = case
    wide = () if score == "additive" else (FEAT,)
    q, k = (torch.full((adj.shape[0], 2, *wide), 0.7, device="cuda") for _ in range(2))
    v = torch.full((adj.shape[0], 2, FEAT), 0.3, device="cuda")
    out, _, _, gv = step(lambda q, k, v: fusedmm.attention(adj, q, k, v, score=score), q, k, v)
    assert_equal_terms(out, v[0, 0, 0].item(), 2 * each)  # weights, and what they weigh
    assert_equal_terms(gv, 1.0, 2 * each)


CALLS = {
    "spmm": (1, lambda adj, x, **o: fusedmm.spmm(adj, x, **o)),
    "max": (1, lambda adj, x, **o: fusedmm.spmm(adj, x, reduce="max", **o)),
    "fused": (3, lambda adj, x, y, z, **o: fusedmm.fused(adj, x, y, z, edge="sigmoid(s)", **o)),
    "l1": (1, lambda adj, x, **o: fusedmm.fused(adj, x, score="l1", edge="exp(-s/8)", message="add", **o)),
    "dot": (3, fusedmm.attention),
    "gatv2": (3, lambda adj, q, k, v, **o: fusedmm.attention(adj, q, k, v, score="gatv2", att=q[0], **o)),
    "additive": (3, lambda adj, q, k, v, **o: fusedmm.attention(adj, q[..., 0], k[..., 0], v, score="additive", **o)),
}
OFF = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}  # of a norm


@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("each", [4093, 8197])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_lost_on_the_way(name, each, dtype, cuda):
    """Logits that rise along the rows move the maximum that attention's sums are relative to."""
    operands, call = CALLS[name]
    adj = circulant(61e6, each)
    generator = torch.Generator(cuda).manual_seed(0)
    x = torch.randn(operands, adj.shape[0], 2, FEAT, generator=generator, device=cuda)
    x[0] += torch.linspace(-2, 2, adj.shape[0], device=cuda)[:, None, None]
    found, exact = (
        step(functools.partial(call, adj, algorithm=algorithm), *x.to(dtype).unbind())
        for algorithm in ("segments", "reference")
    )
    for mine, theirs in zip(found, exact, strict=True):
        off = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert off <= OFF[dtype], off
