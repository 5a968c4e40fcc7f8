"""attention and edge_softmax: extremes, derivatives, dropout, refused input."""

import pytest
import torch
from support.attention_oracle import SCORES, algorithms, keeps, operands
from support.generate import run_or_decline, small, tiny

import fusedmm
from fusedmm._lib import algorithm_number, ops

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INF = float("inf")


def dense_softmax(adj, logits):
    """softmax over rows by entries, [nnz, H], in plain torch."""
    row, _, _ = adj.coo()
    spread = logits.new_full((adj.shape[0], adj.nnz, logits.shape[1]), -INF)
    spread = spread.index_put((row, torch.arange(adj.nnz, device=row.device)), logits)
    return torch.softmax(spread, 1)[row, torch.arange(adj.nnz, device=row.device)]


# ---- edge_softmax ----


@pytest.mark.parametrize("heads", [None, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edge_softmax(dtype, heads, device):
    """Within 32 units of the sums' type and one rounding, forward and backward."""
    adj = small(device=device).pattern()
    logits = torch.randn(60, *([] if heads is None else [heads]), device=device).to(dtype).requires_grad_()
    w = fusedmm.edge_softmax(adj, logits)
    exact = logits.detach().double().reshape(60, -1).requires_grad_()
    expected = dense_softmax(adj, exact)
    gw = torch.randn(w.shape, device=device).to(dtype)
    (found,), (right,) = (
        torch.autograd.grad(out, x, g) for out, x, g in ((w, logits, gw), (expected, exact, gw.double().view(60, -1)))
    )
    unit = max(torch.finfo(dtype).eps, 16 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps)
    assert w.dtype == found.dtype == dtype and w.shape == logits.shape
    torch.testing.assert_close(w.double().view(60, -1), expected.detach(), rtol=unit, atol=0)
    torch.testing.assert_close(found.double().view(60, -1), right, rtol=8 * unit, atol=8 * unit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edge_softmax_of_extremes(dtype, device):
    """Logits of any size, to the units of their logarithms; -inf is a weight of 0, also of a whole row."""
    row = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4], device=device)
    adj = fusedmm.CSR.from_coo(row, torch.arange(8, device=device), shape=(6, 8))
    logits = torch.tensor([1e4, 1e4, -1e4, 0.0, 3.0, -INF, -INF, -1e4], device=device).to(dtype).requires_grad_()
    w = fusedmm.edge_softmax(adj, logits)
    right, bound = (
        torch.tensor([0.5, 0.5, 0, 1, 1, 0, 0, 1]),
        4e4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps,
    )
    torch.testing.assert_close(w.detach().cpu(), right.to(dtype), rtol=bound, atol=0)
    (g,) = torch.autograd.grad(w, logits, torch.arange(8, device=device).to(dtype))
    # w (g - sum of w g) cancels: its error is the bound of w times the largest g.
    torch.testing.assert_close(
        g.cpu(), torch.tensor([-0.25, 0.25, 0, 0, 0, 0, 0, 0]).to(dtype), rtol=0, atol=2 * 7 * bound
    )
    assert g[2].item() == g[5].item() == g[6].item() == 0  # no weight, no gradient


@pytest.mark.parametrize("heads", [None, 2])
def test_edge_softmax_derivatives(heads, device):
    adj = tiny(device).pattern()
    size = [adj.nnz] if heads is None else [adj.nnz, heads]
    logits = torch.randn(size, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fusedmm.edge_softmax(adj, x), logits)
    assert torch.autograd.gradgradcheck(lambda x: fusedmm.edge_softmax(adj, x), logits)


# ---- extremes ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_scores_of_ten_thousand(score, dtype, device):
    """The largest logit takes all, at 1e4 as at -1e4, and no gradient is NaN."""
    adj = fusedmm.CSR.from_coo(*torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]], device=device).unbind(), shape=(3, 3))
    k = torch.tensor([1e4, 5e3, -1e4], dtype=dtype, device=device).requires_grad_()
    q, one = torch.ones(3, dtype=dtype, device=device).requires_grad_(), torch.ones(1, dtype=dtype, device=device)
    v = torch.tensor([[1.0], [2.0], [3.0]], dtype=dtype, device=device).requires_grad_()
    options = {"score": score, "slope": 1.0, **{"gatv2": {"att": one}, "dot": {"scale": 1.0}}.get(score, {})}
    wide = (q, k) if score == "additive" else (q[:, None], k[:, None])
    for algorithm in algorithms(device):
        found = run_or_decline(fusedmm.attention, adj, *wide, v, return_lse=True, algorithm=algorithm, **options)
        if found is None:
            continue
        assert found[0].flatten().tolist() == [1.0, 2.0, 0.0], algorithm
        right = torch.tensor([k[0].item(), k[1].item(), -INF]) + (0 if score == "dot" else 1)
        torch.testing.assert_close(found[1].flatten().cpu(), right.to(found[1].dtype), rtol=1e-6, atol=0)
        for g in torch.autograd.grad(found[0].sum(), (q, k, v)):
            assert bool(g.isfinite().all()), algorithm


@pytest.mark.parametrize("heads, feat", [(8, 8), (1, 64), (8, 64), (2, 5)])
def test_a_gradient_of_scores_that_cancels(heads, feat, device):
    """Where all v are alike no score matters. What is left of a column of 20,000 entries is their roundings, which do
    not add up: 4 units of the root of their terms' squares, where a sum of all before the difference leaves 10."""
    n = 20_000
    ends = torch.arange(1, n), torch.arange(n)  # every row has itself and column 0
    adj = fusedmm.CSR.from_coo(torch.cat(ends), torch.cat([ends[0] * 0, ends[1]]), shape=(n, n)).to(device)
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(n, heads, generator=generator).to(device).requires_grad_() for _ in range(2))
    v = (torch.rand(1, heads, feat, generator=generator) + 0.5).expand(n, -1, -1).to(device)
    gout = (torch.rand(n, heads, feat, generator=generator) + 0.5).to(device)
    near, far = (torch.nn.functional.leaky_relu(q.detach().double() + t, 0.2) for t in (k.detach(), k.detach()[:1]))
    terms = torch.sigmoid(far - near)[1:] * (gout.double() * v).sum(-1)[1:]
    for algorithm in algorithms(device):
        out = run_or_decline(fusedmm.attention, adj, q, k, v, score="additive", algorithm=algorithm)
        if out is not None:
            gk = torch.autograd.grad(out, k, gout)[0][0]
            assert bool((gk.abs() <= 4 * 2**-24 * terms.square().sum(0).sqrt()).all()), algorithm


def test_infinite_and_nan_logits(device):
    """Masked entries, rows of nothing but them, and NaN, which stays in its row."""
    row = torch.tensor([0, 0, 1, 1, 2, 3], device=device)
    adj = fusedmm.CSR.from_coo(row, torch.tensor([0, 1, 0, 1, 2, 2], device=device), shape=(5, 3))
    bias = torch.tensor([0.0, -INF, -INF, -INF, float("nan"), 0.0], device=device).requires_grad_()
    q, k = (torch.zeros(n, 4, device=device, requires_grad=True) for n in (5, 3))
    v = torch.tensor([[1.0, 2], [3, 4], [5, 6]], device=device, requires_grad=True)
    for algorithm in algorithms(device):
        found = run_or_decline(fusedmm.attention, adj, q, k, v, bias=bias, return_lse=True, algorithm=algorithm)
        if found is None:
            continue
        out, lse = (t.cpu() for t in found)
        assert out[[0, 1, 3, 4]].tolist() == [[1, 2], [0, 0], [5, 6], [0, 0]], algorithm
        assert bool(out[2].isnan().all()) and lse.flatten()[[0, 1, 3, 4]].tolist() == [0, -INF, 0, -INF], algorithm
        grads = torch.autograd.grad(found[0].sum(), (q, bias, v))
        assert bool(grads[0][[0, 1, 3, 4]].isfinite().all()), algorithm
        assert grads[1].tolist()[:4] == [0, 0, 0, 0] and grads[2][:2].tolist() == [[1, 1], [0, 0]], algorithm


def test_values_that_no_entry_reaches_do_not_matter(device):
    """Also of other columns than a row's own: lanes without an entry read something."""
    adj, q, k, v, options = operands("gatv2", device, dtype=torch.float32)
    _, col, _ = adj.coo()
    far = torch.ones(15, dtype=torch.bool, device=device)
    far[col] = False
    k2, v2 = k.detach().clone(), v.detach().clone()
    k2[far], v2[far] = float("nan"), INF
    wanted = [q, options["att"]]
    for algorithm in algorithms(device):
        first = run_or_decline(fusedmm.attention, adj, q, k, v, algorithm=algorithm, **options)
        if first is None:
            continue
        other = fusedmm.attention(adj, q, k2, v2, algorithm=algorithm, **options)
        assert torch.equal(first, other), algorithm
        for one, two in zip(
            torch.autograd.grad(first.sum(), wanted), torch.autograd.grad(other.sum(), wanted), strict=True
        ):
            assert torch.equal(one, two), algorithm


# ---- derivatives ----


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("score", SCORES)
def test_derivatives(score, heads, device):
    """First and second, of every operand, with bias and edge weights, and through lse and the weights.

    The second ones in a random direction: by differences in all of them they take most of the time.
    """
    adj, q, k, v, options = operands(score, device, heads, feat=2, adj=tiny(device).pattern())
    att = options.pop("att")
    size = [adj.nnz] if heads is None else [adj.nnz, heads]
    bias, weight = (torch.randn(size, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    given = [q, k, v, bias, weight, *([] if att is None else [att])]

    def f(q, k, v, bias, weight, att=None):
        out, lse, u = fusedmm.attention(
            adj, q, k, v, att=att, bias=bias, edge_weight=weight, return_lse=True, return_weights=True, **options
        )
        return out, torch.where(lse.isinf(), 0.0, lse), u

    assert torch.autograd.gradcheck(f, given) and torch.autograd.gradgradcheck(f, given, fast_mode=True)


def test_derivatives_under_dropout(device):
    """The mask of a seed is the same one in every pass."""
    adj, q, k, v, options = operands("dot", device, feat=2, adj=tiny(device).pattern())

    def f(q, k, v):
        torch.manual_seed(3)
        return fusedmm.attention(adj, q, k, v, dropout=0.4, **options)

    assert torch.autograd.gradcheck(f, (q, k, v)) and torch.autograd.gradgradcheck(f, (q, k, v), fast_mode=True)


# ---- dropout ----


def test_dropout_is_philox_of_the_seed(device):
    """Edge by edge, in the caller's order, whatever the rows; and the weights come out scaled."""
    adj, q, k, v, options = operands("dot", device, heads=6, dtype=torch.float32)
    torch.manual_seed(11)
    seed = torch.randint(2**63 - 1, (1,), device=device).item()
    torch.manual_seed(11)
    _, u = fusedmm.attention(adj, q, k, v, dropout=0.25, return_weights=True, **options)
    _, w = fusedmm.attention(adj, q, k, v, return_weights=True, **options)
    torch.testing.assert_close(u.detach().double().cpu(), w.detach().double().cpu() * keeps(seed, 60, 6, 0.25))


def test_dropout_may_know_edges_by_keys(device):
    """A seed with a key for each edge behind it drops the edges that those numbers stand for, in every algorithm."""
    adj, q, k, v, _ = operands("dot", device, heads=6, dtype=torch.float32)
    seed, keys, none = torch.tensor([2**40 + 3]), torch.randperm(2**10)[:60], adj.none
    keyed = torch.cat([seed, keys]).to(device)
    expected = keeps(seed.item(), 2**10, 6, 0.25)[keys]

    def run(algorithm, seed, dropout):
        half = adj.ptr, adj.idx, adj.eid, adj.plan
        given = (q, k, v, none, none, none, seed)
        out, lse, rest, *_ = ops._attention.default(*half, *given, 1.0, 0.2, dropout, 0, 0, algorithm)
        u = ops._attention_weights.default(*half, *given, lse, rest, 1.0, 0.2, dropout, 0, algorithm)
        return out, u

    with torch.no_grad():
        for algorithm in algorithms(device):
            try:
                number = algorithm_number("attention", device, algorithm)
                _, w = run(number, none, 0.0)
            except (RuntimeError, ValueError) as error:
                assert "does not support this call" in str(error) or "cannot run here" in str(error)
                continue
            out, u = run(number, keyed, 0.25)
            torch.testing.assert_close(u.double().cpu(), w.double().cpu() * expected)
            row, col, _ = adj.coo()
            terms = torch.zeros_like(out).index_add(0, row, u[..., None] * v[col])
            torch.testing.assert_close(out, terms)
        with pytest.raises(RuntimeError, match="seed must be one number, or that and a key for each edge"):
            run(0, keyed[:-1], 0.25)
        with pytest.raises(RuntimeError, match="seed must be one number, or that and a key for each edge"):
            run(0, torch.cat([keyed, keyed])[::2][:61], 0.25)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share(dropout, device):
    """Of 2,000,000 numbers within five standard deviations, in each head, and the mean of out is that without it."""
    n, heads = 250_000, 8
    adj = fusedmm.CSR.from_csr(torch.tensor([0, n], device=device), torch.arange(n, device=device))
    q, k = torch.zeros(1, heads, 1, device=device), torch.zeros(n, heads, 1, device=device)
    v = torch.ones(n, heads, 1, device=device)
    out, u = fusedmm.attention(adj, q, k, v, dropout=dropout, return_weights=True)
    kept = (u > 0).double().mean(0)
    deviation = (dropout * (1 - dropout) / n) ** 0.5
    assert bool(((kept - (1 - dropout)).abs() < 5 * deviation).all()), kept
    torch.testing.assert_close(out.flatten().double(), kept / (1 - dropout), rtol=1e-4, atol=0)
    agree = ((u[:, 0] > 0) == (u[:, 1] > 0)).double().mean().item()
    assert abs(agree - (dropout**2 + (1 - dropout) ** 2)) < 5 * 0.5 / n**0.5, "heads share their masks"


def test_dropout_follows_torchs_generator(device):
    adj, q, k, v, options = operands("dot", device)

    def draw(seed, **more):
        torch.manual_seed(seed)
        return fusedmm.attention(adj, q, k, v, **options, **more)

    assert torch.equal(draw(1, dropout=0.5), draw(1, dropout=0.5))
    assert not torch.equal(draw(1, dropout=0.5), draw(2, dropout=0.5))
    assert torch.equal(draw(1, dropout=0.5, training=False), draw(1))
    out = draw(1, dropout=1.0)
    assert not out.any() and not torch.autograd.grad(out.sum(), v)[0].any()


# ---- refused ----


def test_refused_by_name(device):
    """Each says what is wrong, and the next call works."""
    adj, q, k, v, _ = (t.detach() if isinstance(t, torch.Tensor) else t for t in operands("dot", device))
    expected = fusedmm.attention(adj, q, k, v)
    att, edges = torch.ones(2, 4, dtype=torch.float64, device=device), torch.ones(60, device=device)
    one = [
        (ValueError, "score must be one of", {"score": "softmax"}),
        (ValueError, r"dropout must be in \[0, 1\], not 1.5", {"dropout": 1.5}),
        (ValueError, r"dropout must be in \[0, 1\], not nan", {"dropout": float("nan")}),
        (TypeError, "dropout must be a number, not None", {"dropout": None}),
        (TypeError, "slope must be a number, not '0.2'", {"slope": "0.2"}),
        (TypeError, "scale must be a number, not ", {"scale": torch.ones(2)}),
        (TypeError, "scale gets no gradient; multiply", {"scale": torch.ones((), requires_grad=True)}),
        (ValueError, "score must be one of .* not ", {"score": ["dot"]}),
        (ValueError, "att must be given for gatv2", {"score": "gatv2"}),
        (ValueError, "att must be given for gatv2 and for no other", {"att": att}),
        (ValueError, r"att must be \[2, 4\]", {"score": "gatv2", "att": att[:, :2]}),
        (ValueError, r"att must be \[2, 4\], not \[4, 2\]", {"score": "gatv2", "att": att.t()}),
        (ValueError, r"att must be \[2, 4\], not \[8\]", {"score": "gatv2", "att": att.flatten()}),
        (TypeError, "att must be float32, .* not torch.int64", {"score": "gatv2", "att": att.long()}),
        (TypeError, "att must be float32, .* not list", {"score": "gatv2", "att": [1.0]}),
        (ValueError, "scale is of dot and cosine scores, not of gatv2", {"score": "gatv2", "att": att, "scale": 2.0}),
        (ValueError, "k must be .* for additive", {"score": "additive"}),
        (ValueError, r"bias must be \[60\]", {"bias": edges[:5]}),
        (TypeError, "bias must be a tensor", {"bias": 1.0}),
        (ValueError, "edge_weight has 3 heads", {"edge_weight": edges[:, None].expand(60, 3)}),
        (ValueError, "attention", {"algorithm": "nobody"}),
        (TypeError, "q is torch.float32", {"q": q.float()}),
        (ValueError, "heads must agree", {"q": q[:, :1]}),
        (ValueError, "q has 3 features and k 4", {"q": q[..., :3]}),
        (ValueError, "q", {"q": q[:-1]}),
        (ValueError, "k", {"k": k[:-1]}),
        (ValueError, "v", {"v": v[:-1]}),
        (TypeError, "v", {"v": v.long()}),
        (TypeError, "k", {"k": None}),
    ]
    for error, text, change in one:
        given = {"q": q, "k": k, "v": v} | change
        with pytest.raises(error, match=text):
            fusedmm.attention(adj, **given)
        assert torch.equal(fusedmm.attention(adj, q, k, v), expected), change
    for error, text, logits in (
        (TypeError, "logits must be a tensor", [1.0]),
        (TypeError, "logits must be float32", edges.long()),
        (ValueError, r"logits must be \[60\]", edges[:3]),
    ):
        with pytest.raises(error, match=text):
            fusedmm.edge_softmax(adj, logits)
    assert torch.isfinite(fusedmm.edge_softmax(adj, edges)).all()


def test_numbers_of_all_heads_may_have_an_axis_for_them(device):
    adj, q, k, v, _ = (t.detach() if isinstance(t, torch.Tensor) else t for t in operands("dot", device))
    bias, weight = torch.rand(2, adj.nnz).to(v)
    flat = fusedmm.attention(adj, q, k, v, bias=bias, edge_weight=weight)
    assert torch.equal(fusedmm.attention(adj, q, k, v, bias=bias[:, None], edge_weight=weight[:, None]), flat)
    assert torch.equal(fusedmm.attention(adj.with_values(weight[:, None]), q, k, v, bias=bias), flat)


def test_operators_refuse_wrong_tensors(device):
    """What programs that call the operators themselves get."""
    adj, q, k, v, options = operands("gatv2", device)
    q, k, v, att = (t.detach() for t in (q, k, v, options["att"]))
    half, none = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.none
    good = (*half, q, k, v, att, none, none, none, 1.0, 0.2, 0.0, 2, 0, 0)
    for at, other, text in (
        (4, q[:, :, :2], "k is"),
        (5, k[:-1], "v is"),
        (7, none, "att must be given"),
        (8, q[:, :, 0], "bias"),
        (13, 0.5, "seed must be given"),
        (13, 2.0, "dropout 2 is outside"),
        (14, 9, "no score 9"),
        (15, 1, "pos and pos_w are of additive scores"),
        (16, 99, "99"),
    ):
        bad = list(good)
        bad[at] = other
        with pytest.raises(RuntimeError, match=text):
            ops._attention.default(*bad)
        ops._attention.default(*good)
