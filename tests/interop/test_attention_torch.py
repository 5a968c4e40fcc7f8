"""Attention as torch runs it, compiled, captured, under autocast; and the same bits at every run."""

import threading

import pytest
import torch
from support.attention_oracle import SCORES, Given, assert_close, attention_oracle, operands
from support.generate import run_or_decline
from support.machine import capture
from support.opchecks import check_operator

import fusedmm
from fusedmm._lib import ops


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("score", SCORES)
def test_compiled_is_eager(score, device, fresh_compiler):
    adj, q, k, v, options = operands(score, device)
    adj.cache_transpose()
    given = [t for t in (q, k, v, options["att"]) if t is not None]

    def f(adj, q, k, v, att):
        return fusedmm.attention(adj, q, k, v, score=score, att=att).tanh()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    ours, theirs = (g(adj, q, k, v, options["att"]) for g in (f, compiled))
    torch.testing.assert_close(theirs, ours)
    gout = torch.randn_like(ours)
    for one, two in zip(torch.autograd.grad(ours, given, gout), torch.autograd.grad(theirs, given, gout), strict=True):
        torch.testing.assert_close(two, one)


def test_compiled_dropout_and_edge_softmax(device, fresh_compiler):
    adj, q, k, v, _ = operands("dot", device)
    adj.cache_transpose()

    def f(adj, q, k, v, logits):
        out = fusedmm.attention(adj, q, k, v, dropout=0.5)
        return out, fusedmm.edge_softmax(adj, logits)

    logits = torch.randn(60, 2, dtype=torch.float64, device=device, requires_grad=True)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    out, w = compiled(adj, q, k, v, logits)
    right = fusedmm.edge_softmax(adj, logits)
    torch.testing.assert_close(w, right)
    gw = torch.randn_like(w)
    torch.testing.assert_close(
        torch.autograd.grad(w, logits, gw, retain_graph=True), torch.autograd.grad(right, logits, gw)
    )
    assert bool(torch.autograd.grad(out.sum(), v)[0].isfinite().all())


def test_opcheck(device):
    """torch's own checks of schema and fake kernels, of every pass."""
    adj, q, k, v, options = operands("gatv2", device)
    q, k, v, att = (t.detach() for t in (q, k, v, options["att"]))
    none, bias = adj.none, torch.randn(60, 2, dtype=torch.float64, device=device)
    seed = torch.tensor([5], device=device)
    halves = [(adj.ptr, adj.idx, adj.eid, adj.plan), adj.transpose_half()]
    given, numbers = (q, k, v, att, bias, bias, seed), (1.0, 0.2, 0.3, 2)
    check_operator(ops._attention.default, (*halves[0], *given, *numbers, 0, 0))
    out, *lses, _, _ = ops._attention.default(*halves[0], *given, *numbers, 0, 0)
    additive = (q[..., :1], k[..., :1], v, none, bias, bias, seed, 1.0, 0.2, 0.3, 1)
    for want in (0, 1):
        check_operator(ops._attention.default, (*halves[0], *additive, want, 0))
    check_operator(ops._attention_weights.default, (*halves[0], *given, *lses, *numbers, 0))
    check_operator(ops._attention_weights.default, (*halves[0], q, k, none, *given[3:], *lses, *numbers, 0))
    behind = (*lses, torch.randn_like(lses[0]), torch.randn_like(out))
    for want in (3, 5, 15):  # in whose turns each bit is another
        check_operator(ops._attention_rows.default, (*halves[0], *given, *behind, *numbers, want, 0))
    for want in (1, 3):
        check_operator(ops._attention_cols.default, (*halves[1], *given, *behind, none, *numbers, want, 0))
    packed = torch.randn(q.shape[0], 4 * q.shape[1], dtype=torch.float64, device=device)
    call = (*halves[1], *additive[:7], *behind)
    check_operator(ops._attention_cols.default, (*call, packed, *additive[7:], 3, 0))
    odd = packed.new_empty(packed.numel() + 1)[1:].view(packed.shape)
    for wrong in (packed[1:], packed[:, 1:], packed[None], packed.float(), packed.t().contiguous().t(), odd):
        with pytest.raises(RuntimeError, match=r"^invalid: .*packed must be additive scores' \[n, 4 heads\], aligned"):
            ops._attention_cols(*call, wrong, *additive[7:], 3, 0)
    with pytest.raises(RuntimeError, match="packed must be additive scores'"):
        ops._attention_cols(*halves[1], *given, *behind, packed, *numbers, 3, 0)


def test_inductor_gives_the_same_bits(cuda, fresh_compiler):
    """Compiled code frees what a kernel reads as soon as it is enqueued; the next one must not write there before."""
    n, heads, feat = 40_000, 8, 8
    row, col = torch.randint(n, (2, 4 * n), generator=torch.Generator().manual_seed(0))
    adj = fusedmm.CSR.from_coo(row, col // 64 * 64, shape=(n, n)).to(cuda).cache_transpose()  # most columns are empty
    q, k = (torch.randn(n, heads, device=cuda, requires_grad=True) for _ in range(2))
    v = torch.randn(n, heads, feat, device=cuda, requires_grad=True)

    def gradients(f):
        return torch.autograd.grad(f(adj, q, k, v).square().sum(), (q, k, v))

    def f(adj, q, k, v):
        return fusedmm.attention(adj, q, k, v, score="additive")

    compiled = torch.compile(f, fullgraph=True)
    expected = gradients(f)
    for _ in range(30):
        assert all(map(torch.equal, gradients(compiled), expected))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(low, device):
    adj, q, k, v, options = operands("dot", device, dtype=torch.float32)
    with torch.autocast(device, dtype=low):
        out = fusedmm.attention(adj, q, k, v, **options)
        w = fusedmm.edge_softmax(adj, torch.zeros(60, device=device))
    assert out.dtype == w.dtype == low
    out.float().sum().backward()
    assert q.grad.dtype == k.grad.dtype == v.grad.dtype == torch.float32


def test_cuda_graph_capture(cuda):
    """Captured forward and backward replay on new numbers."""
    adj, q, k, v, options = operands("dot", cuda, dtype=torch.float32)

    def step():
        out = fusedmm.attention(adj, q, k, v, **options)
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    captured, found = capture(step)
    for _ in range(3):
        with torch.no_grad():
            q.copy_(torch.randn_like(q))
        captured.replay()
        for one, two in zip(found, step(), strict=True):
            assert torch.equal(one, two)


# ---- dropout: the gradient has the forward's mask ----


class Dropped:
    """Attention whose v is the identity of each head, so that out is the weights after dropout, [rows, heads, cols]."""

    rate, slope = 0.5, 0.2

    def __init__(self, score, device, rows=20, cols=16, heads=3, feat=5):
        g = torch.Generator().manual_seed(0)
        row, col = torch.randint(rows, (200,), generator=g), torch.randint(cols, (200,), generator=g)
        self.adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(rows, cols)).cache_transpose()
        self.score = score
        width = [] if score == "additive" else [feat]
        q, k, self.gout = (
            torch.randn(*size, generator=g).to(device)
            for size in ((rows, heads, *width), (cols, heads, *width), (rows, heads, cols))
        )
        v = torch.eye(cols, device=device)[:, None].repeat(1, heads, 1)
        self.operands = [t.requires_grad_() for t in (q, k, v)]

    def step(self, dropout=rate):
        """out and the gradients of q, k and v."""
        out = fusedmm.attention(self.adj, *self.operands, score=self.score, slope=self.slope, dropout=dropout)
        return out, *torch.autograd.grad(out, self.operands, self.gout)

    def check(self, found):
        """All of it is within attention_oracle's bounds with the mask that out shows."""
        row, col, _ = (None if t is None else t.cpu() for t in self.adj.coo())
        key = row * self.adj.shape[1] + col
        same = key[:, None] == key
        # Equal entries of a row have one weight: out shows how many of them are kept, and any of them will do.
        share = (found[0].detach() / self.step(0.0)[0].detach()).cpu()[row, :, col]
        count = (share * same.sum(1, keepdim=True) * (1 - self.rate)).round()
        kept = same.tril(-1).sum(1, keepdim=True) < count
        assert 0.4 < float(kept.double().mean()) < 0.6
        q, k, v = ((t[..., None] if t.dim() == 2 else t) for t in self.operands)
        given = Given(q, k, v, None, None, None, kept.double() / (1 - self.rate))
        scale = q.shape[-1] ** -0.5 if self.score == "dot" else 1.0
        right = attention_oracle(self.adj, given, self.score, scale, self.slope, self.gout, torch.float32)
        for name, one in zip(("out", "gq", "gk", "gv"), found, strict=True):
            assert_close(name, one.reshape(right[name].exact.shape), right[name], torch.float32)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_gradients_have_the_mask_of_the_forward(score, device):
    case = Dropped(score, device)
    found = case.step()
    case.check(found)
    with pytest.raises(AssertionError):  # another mask's
        case.check((found[0], *case.step()[1:]))


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_replayed_gradients_have_the_mask_of_their_forward(score, cuda):
    """A mask of its own for every replay, which forward and backward share."""
    case = Dropped(score, cuda)
    captured, found = capture(case.step)
    masks = []
    for _ in range(3):
        with torch.no_grad():
            for t in (*case.operands[:2], case.gout):
                t.copy_(torch.randn_like(t))
        captured.replay()
        case.check(found)
        masks.append(found[0].detach() == 0)
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


# ---- the same bits ----


def large(device, dtype=torch.float32, score="gatv2"):
    """A power-law graph with a row of 3,000 entries, in no order."""
    g = torch.Generator().manual_seed(0)
    row, col = ((900 * torch.rand(15_000, generator=g) ** 3).long() for _ in range(2))
    row[:3000] = 11
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(900, 900))
    width = [] if score == "additive" else [9]
    q, k, v = (torch.randn(900, 3, *w, generator=g).to(dtype).to(device) for w in (width, width, [17]))
    bias, weight = (torch.randn(15_000, 3, generator=g).to(dtype).to(device) for _ in range(2))
    att = torch.randn(3, 9, generator=g).to(dtype).to(device) if score == "gatv2" else None
    return adj, [q, k, v, bias, weight, *([] if att is None else [att])], score


def everything(adj, given, score, algorithm="auto"):
    """out, lse, u and all gradients."""
    q, k, v, bias, weight, *att = (t.detach().requires_grad_() for t in given)
    torch.manual_seed(1)
    out, lse = fusedmm.attention(
        adj, q, k, v, score=score, att=att[0] if att else None, bias=bias, edge_weight=weight,
        dropout=0.2, return_lse=True, algorithm=algorithm,
    )  # fmt: skip
    found = [out.detach(), lse.detach(), *torch.autograd.grad(out, (q, k, v, bias, weight, *att), torch.ones_like(out))]
    if score == "additive":  # gq without a pass over the rows
        torch.manual_seed(1)
        edges = {"bias": bias.detach(), "edge_weight": weight.detach()}
        out = fusedmm.attention(adj, q, k, v, score=score, dropout=0.2, algorithm=algorithm, **edges)
        found += torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    return found


def assert_equal(first, second, note):
    for n, (one, two) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(one, two), (note, n, int((one != two).sum()))


@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_repeats(score, device):
    """Every algorithm that the registry calls deterministic; other memory each time."""
    case = large(device, score=score)
    names = {a.name for a in fusedmm.algorithms("attention", device) if a.deterministic}
    for algorithm in ["auto", *sorted(names - {"reference"})]:
        first = run_or_decline(everything, *case, algorithm=algorithm)
        for _ in range(10 if first is not None else 0):
            keep = torch.full((torch.randint(1, 10_000, ()),), float("nan"), device=device)
            assert_equal(first, everything(*case, algorithm=algorithm), algorithm)
            del keep


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_threads_do_not_matter(score, dtype, threads):
    """CPU only."""
    case = large("cpu", dtype, score)
    threads(1)
    first = everything(*case)
    for count in (2, 5):
        threads(count)
        assert_equal(first, everything(*case), count)


def test_callers_share_one_matrix(device):
    adj, given, _ = large(device)
    seedless = [t.detach() for t in given[:3]]
    expected = fusedmm.attention(adj, *seedless)
    fresh, results = large(device)[0], [None] * 4

    def work(n):
        results[n] = fusedmm.attention(fresh, *seedless)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(timeout=120)
        assert not w.is_alive(), "a caller hangs"
    for result in results:
        assert torch.equal(expected, result)
