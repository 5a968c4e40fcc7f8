"""Pieces of rows get longer with the matrix: sums of more than 512 entries are put aside on the way, on CUDA."""

import functools

import pytest
import torch
from support.bounds import UNIT

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


def step(call, *operands, up=1.0):
    operands = [t.requires_grad_() for t in operands]
    out = call(*operands)
    return out, *torch.autograd.grad(out, operands, torch.full_like(out, up))


def assert_equal_terms(found, exact, terms):
    bound = (4 * terms**0.5 + 1) * UNIT[torch.float32] * abs(exact)
    error = (found.double() - exact).abs().max().item()
    assert error <= bound, f"{error / bound} of the bound"


def test_equal_terms_stay_within_the_bound(case):
    """One after the other in float32 they would not, in rows of one piece: the errors have one sign."""
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
    """One after the other the gradients of 2,045 and 4,093 would be 1.27 times as far off, out of 2,045 1.35 times."""
    adj, each = case
    wide = () if score == "additive" else (FEAT,)
    q, k = (torch.full((adj.shape[0], 2, *wide), 0.7, device="cuda") for _ in range(2))
    v = torch.full((adj.shape[0], 2, FEAT), 0.3, device="cuda")
    out, _, _, gv = step(lambda q, k, v: fusedmm.attention(adj, q, k, v, score=score), q, k, v, up=0.85)
    assert_equal_terms(out, v[0, 0, 0].item(), 2 * each)  # weights, and what they weigh
    assert_equal_terms(gv, torch.tensor(0.85).item(), 2 * each)


CALLS = {
    "spmm": (1, lambda adj, x, **o: fusedmm.spmm(adj, x, **o)),
    "max": (1, lambda adj, x, **o: fusedmm.spmm(adj, x, reduce="max", **o)),
    "fused": (3, lambda adj, x, y, z, **o: fusedmm.fused(adj, x, y, z, edge="sigmoid(s)", **o)),
    "l1": (1, lambda adj, x, **o: fusedmm.fused(adj, x, score="l1", edge="exp(-s/8)", message="add", **o)),
    "dot": (3, fusedmm.attention),
    "gatv2": (3, lambda adj, q, k, v, **o: fusedmm.attention(adj, q, k, v, score="gatv2", att=q[0], **o)),
    "additive": (3, lambda adj, q, k, v, **o: fusedmm.attention(adj, q[..., 0], k[..., 0], v, score="additive", **o)),
}
OFF = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2, torch.float16: 1e-3}  # of a norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("each", [4093, 8197])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_lost_on_the_way(name, each, dtype, cuda):
    """Scores that rise along the rows move the maximum that attention's sums are relative to."""
    operands, call = CALLS[name]
    adj = circulant(61e6, each)
    generator = torch.Generator(cuda).manual_seed(0)
    x = torch.randn(operands, adj.shape[0], 2, FEAT, generator=generator, device=cuda)
    x[min(1, operands - 1)] += torch.linspace(-2, 2, adj.shape[0], device=cuda)[:, None, None]  # k
    assert_like_the_reference(functools.partial(call, adj), x.to(dtype))


def assert_like_the_reference(call, x):
    found, exact = (
        step(functools.partial(call, algorithm=algorithm), *x.unbind()) for algorithm in ("segments", "reference")
    )
    for mine, theirs in zip(found, exact, strict=True):
        off = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert off <= OFF[x.dtype], off


@functools.lru_cache(maxsize=1)
def mixed():
    """11 million entries in rows and columns of 1 to 900, several of which a warp takes at a time, and of a hub.

    With values of four heads, and a bias of -infinity in the first 600 entries of every other row.
    """
    g = torch.Generator("cuda").manual_seed(0)
    lengths = torch.randint(1, 901, (24_000,), generator=g, device="cuda")
    lengths[7] = 50_000
    row = torch.repeat_interleave(lengths)
    ptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    idx = row[torch.randperm(row.numel(), generator=g, device="cuda")]
    first = (torch.arange(row.numel(), device="cuda") - ptr[row] < 600) & (row % 2 == 0)
    val, bias = torch.randn(2, row.numel(), 4, generator=g, device="cuda")
    adj = fusedmm.CSR.from_csr(ptr, idx, val, shape=(len(lengths), len(lengths))).cache_transpose()
    return adj, bias.masked_fill(first[:, None], -torch.inf)


def dropped(adj, bias, q, k, v, **o):
    torch.manual_seed(0)
    return fusedmm.attention(adj.pattern(), q, k, v, bias=bias, edge_weight=adj.val, dropout=0.3, **o)


MIXED = {
    "spmm": (1, 1, 160, lambda adj, bias, x, **o: fusedmm.spmm(adj.pattern(), x, **o)),
    "spmm of heads": (1, 4, 24, lambda adj, bias, x, **o: fusedmm.spmm(adj, x, **o)),
    "mean": (1, 2, 5, lambda adj, bias, x, **o: fusedmm.spmm(adj.pattern(), x, reduce="mean", **o)),
    "fused": (3, 1, 160, lambda adj, bias, *x, **o: fusedmm.fused(adj.pattern(), *x, edge="sigmoid(s)", **o)),
    "sqdist": (1, 4, 9, lambda adj, bias, x, **o: fusedmm.fused(adj, x, score="sqdist", edge="a/(1+s)", **o)),
    "dot": (3, 4, 8, lambda adj, bias, *x, **o: fusedmm.attention(adj.pattern(), *x, **o)),
    "wide dot": (3, 1, 144, lambda adj, bias, *x, **o: fusedmm.attention(adj.pattern(), *x, **o)),
    "with edges": (3, 4, 8, dropped),
    "gatv2, k is v": (
        2, 4, 8,
        lambda adj, bias, q, k, **o: fusedmm.attention(adj.pattern(), q, k, k, score="gatv2", att=q[0], **o),
    ),
    "additive": (
        3, 4, 8,
        lambda adj, bias, q, k, v, **o: fusedmm.attention(
            adj.pattern(), q[..., 0], k[..., 0], v, score="additive", bias=bias, **o
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_rows_of_many_lengths_and_forms(name, dtype, cuda):
    operands, heads, feat, call = MIXED[name]
    adj, bias = mixed()
    generator = torch.Generator(cuda).manual_seed(0)
    x = torch.randn(operands, adj.shape[0], heads, feat, generator=generator, device=cuda) / feat**0.25
    assert_like_the_reference(functools.partial(call, adj.to(dtype=dtype), bias.to(dtype)), x.to(dtype))
