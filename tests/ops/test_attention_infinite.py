"""Infinities and NaN in any operand of attention: in the results exactly where the formula has them in float64, and
in results and gradients of training in the same places, where an infinity may have become NaN."""

import pytest
import torch
from support.attention_oracle import algorithms, softmax_of
from support.bounds import UNIT
from support.generate import run_or_decline
from torch.nn.functional import leaky_relu

import fusedmm

INF, NAN = float("inf"), float("nan")
LENGTHS = (1, 3, 8, 33)
PLACES = (0, 0.5, 1)  # of an entry in its row: first, in the middle, last
SHAPES = [(8, 8), (1, 64), (2, 5), (3, 12), (1, 600)]  # lanes of a GPU with and without columns, of one load and more


def rows_with_one(device):
    """A matrix of one entry a column; the columns at places of rows of each length, and what goes there."""
    lengths = [n for n in LENGTHS for _ in range(10)]
    begin = torch.tensor([0, *lengths]).cumsum(0)
    adj = fusedmm.CSR.from_csr(begin, torch.arange(int(begin[-1])), None, (len(lengths), int(begin[-1])))
    at, what = [], []
    for k, n in enumerate(lengths):
        if k % 10 < 9:  # else a row as it is
            at.append(int(begin[k]) + round(PLACES[k % 3] * (n - 1)))
            what.append((INF, -INF, NAN)[k % 10 // 3])
    return adj.to(device), torch.tensor(at, device=device), torch.tensor(what, device=device)


def exact(adj, score, q, k, v, att, bias):
    """out [n, H, F] and lse [n, H] in float64; a row without an entry above -infinity gives 0."""
    row, col, _ = (None if t is None else t.cpu().long() for t in adj.coo())
    q, k, v, att, bias = (None if t is None else t.double().cpu() for t in (q, k, v, att, bias))
    if score == "dot":
        logit = (q[row] * k[col]).sum(-1) + bias
    elif score == "additive":
        logit = leaky_relu(q[row] + k[col] + bias, 0.2)
    else:
        logit = (att * leaky_relu(q[row] + k[col], 0.2)).sum(-1) + bias
    w, lse = softmax_of(row, len(q), logit)
    out = torch.zeros(len(q), *v.shape[1:], dtype=v.dtype).index_add(0, row, w[..., None] * v[col])
    return out.masked_fill(lse[..., None] == -INF, 0), lse


def scale_of(score):
    """Of dot 1 instead of the default; no other score here has one."""
    return 1.0 if score == "dot" else None


def operands(score, rows, cols, heads, feat, dtype, device):
    """Logits stay below about 8, so that float32 is right to 1e-4."""
    torch.manual_seed(1)
    width = [] if score == "additive" else [feat]
    q, k, v = (
        torch.randn(n, heads, *w, device=device).clamp(-2, 2) for n, w in ((rows, width), (cols, width), (cols, [feat]))
    )
    att = torch.randn(heads, feat, device=device) / feat**0.5 if score == "gatv2" else None
    return [None if t is None else t.to(dtype) for t in ((q / feat**0.5 if score == "dot" else q), k, v, att)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads,feat", SHAPES, ids=str)
@pytest.mark.parametrize("where", ["v", "k", "k is v", "q", "bias"])
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_forward(score, where, heads, feat, dtype, device):
    if score == "additive" and where == "k is v":
        pytest.skip("k is one number a head")
    adj, at, what = rows_with_one(device)
    q, k, v, att = operands(score, *adj.shape, heads, feat, dtype, device)
    bias = torch.zeros(adj.nnz, heads, dtype=dtype, device=device)
    row = adj.coo()[0].long()[at]
    index, poisoned = {"v": (at, v), "k": (at, k), "k is v": (at, k), "q": (row, q), "bias": (at, bias)}[where]
    poisoned[(index, *(-1 for _ in poisoned.shape[1:]))] = what.to(dtype)  # the last number of the last head
    if where == "k is v":
        v = k
    right = exact(adj, score, q, k, v, att, bias)
    options = {"bias": bias} if where == "bias" else {}
    for algorithm in algorithms(device):
        found = run_or_decline(
            fusedmm.attention,
            *(adj, q, k, v),
            **options,
            score=score,
            att=att,
            scale=scale_of(score),
            slope=0.2,
            return_lse=True,
            algorithm=algorithm,
        )
        for name, one, exactly in zip(("out", "lse"), found or (), right, strict=False):
            bound = 1e-4 if one.dtype == torch.float32 else 1e-4 + UNIT[one.dtype]
            torch.testing.assert_close(
                one.double().cpu().view_as(exactly),
                exactly,
                rtol=bound,
                atol=1e-4,
                equal_nan=True,
                msg=lambda text, name=name, algorithm=algorithm: f"{algorithm}, {name}: {text}",
            )


@pytest.mark.parametrize("heads,feat", SHAPES, ids=str)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_gradient_of_v(score, heads, feat, device):
    """What is not finite in out's gradient reaches the rows' own columns, in whichever place of a column it is."""
    adj, at, what = rows_with_one(device)
    adj = adj.t()
    q, k, v, att = operands(score, *adj.shape, heads, feat, torch.float32, device)
    gout = torch.randn(adj.shape[0], heads, feat, device=device)
    gout[at, -1, -1] = what
    row, col, _ = (None if t is None else t.cpu().long() for t in adj.coo())  # one entry a row: its weight is 1
    right = torch.zeros(v.shape, dtype=torch.float64).index_add(0, col, gout.double().cpu()[row])
    for algorithm in algorithms(device):
        leaf = v.clone().requires_grad_()
        out = run_or_decline(fusedmm.attention, adj, q, k, leaf, score=score, att=att, algorithm=algorithm)
        if out is None:
            continue
        (found,) = torch.autograd.grad(out, leaf, gout)
        found, finite = found.double().cpu(), right.isfinite()
        assert torch.equal(found.isfinite(), finite), algorithm  # an infinity may have become NaN
        torch.testing.assert_close(found[finite], right[finite], rtol=1e-4, atol=1e-4, msg=algorithm)


@pytest.mark.parametrize("heads,feat", SHAPES, ids=str)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_training_keeps_them_in_their_rows(score, heads, feat, device):
    """The forward that keeps what a gradient needs, and a gradient that no poisoned row reaches."""
    adj, at, what = rows_with_one(device)
    q, k, v, att = operands(score, *adj.shape, heads, feat, torch.float32, device)
    v[at, -1, -1] = what
    right, _ = exact(adj, score, q, k, v, att, torch.zeros(adj.nnz, heads))
    clean = right.isfinite().all(-1).all(-1)
    for algorithm in algorithms(device):
        leaf = q.clone().requires_grad_()
        out = run_or_decline(
            fusedmm.attention,
            adj,
            leaf,
            k,
            v,
            score=score,
            att=att,
            scale=scale_of(score),
            slope=0.2,
            algorithm=algorithm,
        )
        if out is None:
            continue
        found = out.detach().double().cpu()
        assert torch.equal(found.isfinite(), right.isfinite()), algorithm
        torch.testing.assert_close(found[clean], right[clean], rtol=1e-4, atol=1e-4, msg=algorithm)
        (gradient,) = torch.autograd.grad(out[clean.to(device)].sum(), leaf)
        assert gradient[clean.to(device)].isfinite().all(), algorithm
