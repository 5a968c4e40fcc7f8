"""Infinities and NaN in any operand of attention: in the results exactly where the formula has them in float64, and
in results and gradients of training in the same places, where an infinity may have become NaN."""

import pytest
import torch
from support.attention_oracle import Given, Result, algorithms, assert_close, attention_oracle, softmax_of
from support.bounds import assert_within
from support.generate import run_or_decline
from support.turns import in_turn
from torch.nn.functional import leaky_relu

import fusedmm

INF, NAN = float("inf"), float("nan")
LENGTHS = (1, 3, 8, 33)
PLACES = (0, 0.5, 1)  # of an entry in its row: first, in the middle, last
SHAPES = [(8, 8), (1, 64), (2, 5), (3, 12)]  # lanes of a GPU with and without columns, of one load
WIDE = (1, 600)  # and of more; the specification on the CPU, which takes each channel by itself, takes seconds for it


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
    """out [n, H, F], lse [n, H] and logits in float64; a row without an entry above -infinity gives 0."""
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
    return out.masked_fill(lse[..., None] == -INF, 0), lse, logit


def oracle(adj, score, q, k, v, att, bias, gout):
    """attention_oracle of finite operands, as the tests call attention."""
    q, k = (t[..., None] if score == "additive" else t for t in (q, k))
    return attention_oracle(adj, Given(q, k, v, att, bias, None, None), score, 1.0, 0.2, gout, v.dtype)


def assert_close_at(where, name, found, right):
    """Those numbers of found are within right's bounds."""
    assert_close(name, found.detach().cpu()[where], Result(*(t[where] for t in right)), found.dtype)


def scale_of(score):
    """Of dot 1 instead of the default; no other score here has one."""
    return 1.0 if score == "dot" else None


def operands(score, rows, cols, heads, feat, dtype, device):
    """Logits stay below about 8."""
    torch.manual_seed(1)
    width = [] if score == "additive" else [feat]
    q, k, v = (
        torch.randn(n, heads, *w, device=device).clamp(-2, 2) for n, w in ((rows, width), (cols, width), (cols, [feat]))
    )
    att = torch.randn(heads, feat, device=device) / feat**0.5 if score == "gatv2" else None
    return [None if t is None else t.to(dtype) for t in ((q / feat**0.5 if score == "dot" else q), k, v, att)]


SCORES = ["dot", "additive", "gatv2"]
WHERE = ["v", "k", "k is v", "q", "bias"]


def exists(score, where, *_):
    """k of additive scores is one number a head, which v is not."""
    return (score, where) != ("additive", "k is v")


FORWARD = [
    *(case for case in in_turn(SCORES, WHERE, SHAPES, [torch.float32, torch.bfloat16]) if exists(*case.values)),
    ("dot", "q", WIDE, torch.bfloat16),
    ("gatv2", "v", WIDE, torch.float32),
    *(("additive", where, WIDE, torch.float32) for where in WHERE if exists("additive", where)),
    *(pytest.param("dot", where, WIDE, torch.float32, marks=pytest.mark.slow) for where in WHERE if where != "q"),
    *(pytest.param("gatv2", where, WIDE, torch.bfloat16, marks=pytest.mark.slow) for where in WHERE if where != "v"),
]


@pytest.mark.parametrize("score, where, shape, dtype", FORWARD, ids=str)
def test_forward(score, where, shape, dtype, device):
    heads, feat = shape
    adj, at, what = rows_with_one(device)
    q, k, v, att = operands(score, *adj.shape, heads, feat, dtype, device)
    bias = torch.zeros(adj.nnz, heads, dtype=dtype, device=device)
    clean = [q.clone(), k.clone(), k.clone() if where == "k is v" else v.clone(), att]
    row = adj.coo()[0].long()[at]
    index, poisoned = {"v": (at, v), "k": (at, k), "k is v": (at, k), "q": (row, q), "bias": (at, bias)}[where]
    poisoned[(index, *(-1 for _ in poisoned.shape[1:]))] = what.to(dtype)  # the last number of the last head
    if where == "k is v":
        v = k
    *right, logit = exact(adj, score, q, k, v, att, bias)
    # What stays finite is what finite operands give without the entries whose logits are -infinity.
    finite = oracle(adj, score, *clean, torch.where(logit == -INF, -INF, 0.0), torch.zeros_like(right[0]))
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
            one, there = one.cpu().view_as(exactly), exactly.isfinite()
            assert_close_at(there, f"{algorithm} {name}", one, finite[name])
            same = (one == exactly) | (one.isnan() & exactly.isnan())
            assert bool((same | there).all()), (algorithm, name, one[~same & ~there], exactly[~same & ~there])


TRAINED = [
    *((score, *shape) for score in SCORES for shape in SHAPES),
    ("additive", *WIDE),
    *(pytest.param(score, *WIDE, marks=pytest.mark.slow) for score in ("dot", "gatv2")),
]


@pytest.mark.parametrize("score, heads, feat", TRAINED)
def test_gradient_of_v(score, heads, feat, device):
    """What is not finite in out's gradient reaches the rows' own columns, in whichever place of a column it is."""
    adj, at, what = rows_with_one(device)
    adj = adj.t()
    q, k, v, att = operands(score, *adj.shape, heads, feat, torch.float32, device)
    gout = torch.randn(adj.shape[0], heads, feat, device=device)
    gout[at, -1, -1] = what
    row, col, _ = (None if t is None else t.cpu().long() for t in adj.coo())  # one entry a row: its weight is 1
    terms = gout.double().cpu()[row]
    right, size = (torch.zeros(v.shape, dtype=torch.float64).index_add(0, col, t) for t in (terms, terms.abs()))
    finite, count = right.isfinite(), torch.bincount(col, minlength=len(v))[:, None, None].expand(v.shape)
    for algorithm in algorithms(device):
        leaf = v.clone().requires_grad_()
        out = run_or_decline(fusedmm.attention, adj, q, k, leaf, score=score, att=att, algorithm=algorithm)
        if out is None:
            continue
        (found,) = torch.autograd.grad(out, leaf, gout)
        found = found.cpu()
        assert torch.equal(found.isfinite(), finite), algorithm  # an infinity may have become NaN
        assert_within(found[finite], right[finite], size[finite], count[finite], torch.float32, algorithm)


@pytest.mark.parametrize("score, heads, feat", TRAINED)
def test_training_keeps_them_in_their_rows(score, heads, feat, device):
    """The forward that keeps what a gradient needs, and a gradient that no poisoned row reaches."""
    adj, at, what = rows_with_one(device)
    q, k, v, att = operands(score, *adj.shape, heads, feat, torch.float32, device)
    bias, before = torch.zeros(adj.nnz, heads), v.clone()
    v[at, -1, -1] = what
    there = exact(adj, score, q, k, v, att, bias)[0].isfinite()
    clean = there.all(-1).all(-1)
    gout = clean[:, None, None].expand(there.shape).float()
    right = oracle(adj, score, q, k, before, att, bias, gout)
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
        assert torch.equal(out.isfinite().cpu(), there), algorithm
        assert_close_at(there, f"{algorithm} out", out, right["out"])
        (gradient,) = torch.autograd.grad(out[clean.to(device)].sum(), leaf)
        assert_close_at(clean, f"{algorithm} gq", gradient.view(right["gq"].exact.shape), right["gq"])
