"""attention and edge_softmax against plain torch in float64: every algorithm, score, dtype and gradient."""

import dataclasses
import itertools
from functools import partial

import pytest
import torch
import torch.utils._python_dispatch
from support.attention_oracle import Given, algorithms, assert_close, attention_oracle, keeps
from support.bounds import UNIT, accumulator
from support.generate import Case, cases, run_or_decline
from support.turns import in_turn

import fusedmm

SCORES = ["dot", "additive", "gatv2"]
FEATS = [1, 3, 8, 16, 33, 64, 100, 128]


def seed_of_next_call(device):
    """The seed that the next call with dropout draws; the generator stands before it again."""
    torch.manual_seed(7)
    seed = torch.randint(2**63 - 1, (1,), device=device).item()
    torch.manual_seed(7)
    return seed


@dataclasses.dataclass
class Call:
    """A case's operands, [n, H, F] or [n, F]; additive q and k [n, H] or [n]."""

    adj: fusedmm.CSR
    score: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gout: torch.Tensor
    att: torch.Tensor | None
    bias: torch.Tensor | None
    dropout: float

    @staticmethod
    def of(case, turn, device):
        """Scores and options take turns over the cases."""
        score, heads = SCORES[turn % 3], 1 if case.heads is None else case.heads
        adj, g = case.matrix(device), torch.Generator().manual_seed(turn)
        feat = 1 if score == "additive" else FEATS[turn // 3 % len(FEATS)]
        sides = dataclasses.replace(case, feat=min(feat, 33) if case.structure == "many_rows" else feat)
        q, k = (sides.dense(n, device, seed) for n, seed in ((adj.shape[0], 1), (adj.shape[1], 2)))
        att = torch.randn(heads, q.shape[-1], generator=g).to(case.dtype).to(device) if score == "gatv2" else None
        if score == "additive":
            q, k = q[..., 0], k[..., 0]
        v, gout = case.dense(adj.shape[1], device, 3), case.dense(adj.shape[0], device, 4)
        size = (adj.nnz, heads) if turn % 2 else (adj.nnz,)
        bias = torch.randn(size, generator=g).to(case.dtype).to(device) if turn // 3 % 2 else None
        return Call(adj, score, q, k, v, gout, att, bias, 0.3 if turn // 2 % 3 == 0 else 0.0)

    def options(self):
        return {"score": self.score, "att": self.att, "bias": self.bias, "dropout": self.dropout}

    def oracle(self, scale, slope=0.2):
        """Results as the kernels have them: with a heads axis."""
        heads = 1 if self.v.dim() == 2 else self.v.shape[1]
        sides = zip((self.q, self.k, self.v, self.gout), self.widths(), strict=True)
        q, k, v, gout = (t.reshape(t.shape[0], heads, width) for t, width in sides)
        weight = self.adj.val if self.adj.val is None else self.adj.val.to(v.dtype)
        bias, weight = (t if t is None or t.dim() == 2 else t[:, None].expand(-1, heads) for t in (self.bias, weight))
        by = keeps(seed_of_next_call(v.device), self.adj.nnz, heads, self.dropout) if self.dropout else None
        given = Given(q, k, v, self.att, bias, weight, by)
        return attention_oracle(self.adj, given, self.score, scale, slope, gout, v.dtype)

    def widths(self):
        feat = 1 if self.score == "additive" else self.q.shape[-1]
        return feat, feat, self.v.shape[-1], self.v.shape[-1]


@pytest.mark.parametrize("turn, case", list(enumerate(cases())), ids=str)
def test_covering_array(turn: int, case: Case, device):
    """out, lse, the weights and every gradient within the bounds of attention_oracle.py."""
    call = Call.of(case, turn, device)
    feat = call.widths()[0]
    expected = call.oracle(feat**-0.5 if call.score == "dot" else 1.0)
    names = {"gq": call.q, "gk": call.k, "gv": call.v, "gatt": call.att, "gbias": call.bias, "gweight": call.adj.val}
    names = {name: t for name, t in names.items() if t is not None}
    for t in names.values():
        t.requires_grad_()
    for algorithm in algorithms(device):
        if algorithm == "reference" and call.adj.nnz * case.feat > 50_000:
            continue  # it computes every logit again for every channel
        seed_of_next_call(device)
        found = run_or_decline(
            fusedmm.attention, call.adj, call.q, call.k, call.v, **call.options(), return_lse=True, algorithm=algorithm
        )
        if found is None:
            continue
        out, lse = found
        assert out.is_contiguous() and out.device == call.adj.device
        check(algorithm, "out", out, expected, case.dtype)
        check(algorithm, "lse", lse, expected, torch.float64 if case.dtype == torch.float64 else torch.float32)
        grads = torch.autograd.grad(out, list(names.values()), call.gout)
        for (name, x), got in zip(names.items(), grads, strict=True):
            assert got.dtype == x.dtype and got.shape == x.shape, (algorithm, name, got.dtype, got.shape)
            check(algorithm, name, got, expected, x.dtype, case.dtype)
        if call.score == "additive":
            check_without_gradients_of_edges(call, expected, algorithm)
        with torch.no_grad():
            seed_of_next_call(device)
            out, use = fusedmm.attention(
                call.adj, call.q, call.k, call.v, **call.options(), return_weights=True, algorithm=algorithm
            )
        check(algorithm, "out", out, expected, case.dtype)
        check(algorithm, "use", use, expected, case.dtype)


def check_without_gradients_of_edges(call, expected, algorithm, slope=0.2):
    """Where no gradient of an edge's number is asked for, gq follows from what the forward kept."""
    seed_of_next_call(call.v.device)
    bias, weight = (None if t is None else t.detach() for t in (call.bias, call.adj.val))
    given = [t.detach().requires_grad_() for t in (call.q, call.k, call.v)]
    options = call.options() | {"bias": bias, "edge_weight": weight, "slope": slope, "algorithm": algorithm}
    out = run_or_decline(fusedmm.attention, call.adj, *given, **options)
    if out is None:
        return
    check(algorithm, "out", out, expected, call.v.dtype)
    for name, got in zip(("gq", "gk", "gv"), torch.autograd.grad(out, given, call.gout), strict=True):
        check(algorithm, name, got, expected, call.v.dtype)


def check(algorithm, name, got, expected, *dtypes):
    """got in the shape of what is expected; a number of an edge for all heads gets one sum, rounded once."""
    result = expected[name]
    if got.shape != result.exact.shape and got.dim() < 2 and result.exact.dim() == 2 and name in ("gbias", "gweight"):
        spread = 4 * UNIT[accumulator(dtypes[0])] * result.exact.abs().sum(1)
        result = type(result)(result.exact.sum(1), result.bound.sum(1) + spread)
    operator = "attention" if name == "out" else ""
    assert_close(f"{algorithm} {name}", got.reshape(result.exact.shape), result, *dtypes, operator=operator)


@pytest.mark.parametrize("size, score", in_turn([(1, 700), (5, 20), (40, 3), (64, 1)], SCORES), ids=str)
def test_wide_and_many_heads(size, score, device):
    """More channels than a panel of the CPU's sums or than a warp's registers, more heads than a warp has lanes."""
    heads, feat = size
    g = torch.Generator().manual_seed(heads)
    row, col = torch.randint(0, 20, (150,), generator=g), torch.randint(0, 25, (150,), generator=g)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(20, 25))
    size = [] if score == "additive" else [feat]
    q, k, v, gout = (
        torch.randn(n, heads, *width, generator=g).to(device)
        for n, width in ((20, size), (25, size), (25, [feat]), (20, [feat]))
    )
    att = torch.randn(heads, feat, generator=g).to(device) if score == "gatv2" else None
    call = Call(adj, score, q, k, v, gout, att, None, 0.0)
    expected = call.oracle(feat**-0.5 if score == "dot" else 1.0)
    names = {"gq": q, "gk": k, "gv": v} | ({"gatt": att} if att is not None else {})
    for t in names.values():
        t.requires_grad_()
    for algorithm in algorithms(device):
        out = run_or_decline(fusedmm.attention, adj, q, k, v, score=score, att=att, algorithm=algorithm)
        if out is None:
            continue
        check(algorithm, "out", out, expected, torch.float32)
        for name, got in zip(names, torch.autograd.grad(out, list(names.values()), gout), strict=True):
            check(algorithm, name, got, expected, torch.float32)


SIZES = [(2, 8), (3, 8), (8, 8), (33, 8), (1, 64), (5, 64), (2, 128)]
KINDS = ["dot", "additive", "gatv2", "gatv2, k is v"]


EITHER = [*itertools.product(KINDS, [torch.float32, torch.bfloat16])]


@pytest.mark.parametrize("size, kind", in_turn(SIZES, EITHER), ids=str)
def test_heads_that_lanes_fill(size, kind, device):
    """Sizes that have kernels of their own on a GPU: rows of no, few and 3,000 entries."""
    (heads, feat), (score, dtype) = size, kind
    call, g = long_rows(dtype, device, heads, feat), torch.Generator().manual_seed(1)
    score, same = score.partition(",")[0], "is" in score
    width = () if score == "additive" else (feat,)
    q, k = (torch.randn(n, heads, *width, generator=g).to(dtype).to(device) for n in (800, 700))
    att = torch.randn(heads, feat, generator=g).to(dtype).to(device) if score == "gatv2" else None
    adj = call.adj.pattern()
    call = Call(adj, score, q, k, k if same else call.v, call.gout, att, None, 0.0)
    expected = call.oracle(feat**-0.5 if score == "dot" else 1.0)
    names = {"gq": q} | ({} if same else {"gk": k, "gv": call.v}) | ({} if att is None else {"gatt": att})
    for t in names.values():
        t.requires_grad_()
    attend = partial(fusedmm.attention, adj, q, k, call.v, score=score, att=att, return_lse=True)
    found = attend()
    with torch.no_grad():
        assert all(map(torch.equal, attend(), found)), "what a gradient needs changes no result"
    for name, got in zip(("out", "lse"), found, strict=True):
        check("auto", name, got, expected, dtype if name == "out" else torch.float32)
    for name, got in zip(names, torch.autograd.grad(found[0], list(names.values()), call.gout), strict=True):
        check("auto", name, got, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_half_a_million_equal_entries(dtype, device):
    """The weights' sum is long, and every one of them is 1 / n: out is v."""
    n = 500_000
    adj = fusedmm.CSR.from_csr(torch.tensor([0, n], device=device), torch.arange(n, device=device))
    q, k = torch.ones(1, 2, 4, dtype=dtype, device=device), torch.ones(n, 2, 4, dtype=dtype, device=device)
    v = torch.full((n, 2, 3), 0.7, dtype=dtype, device=device)
    for algorithm in algorithms(device):
        found = run_or_decline(fusedmm.attention, adj, q, k, v, return_lse=True, algorithm=algorithm)
        if found is not None:
            out, lse = found
            torch.testing.assert_close(out, v[:1], rtol=1e-5 if dtype == torch.float32 else 2**-8, atol=0)
            torch.testing.assert_close(lse.double().cpu(), 2 + torch.full((1, 2), float(n)).double().log())


# ---- additive scores keep what the gradient of q needs ----


def long_rows(dtype, device, heads=3, feat=16):
    """A row of 3,000 entries among short and empty ones, with edge weights, bias and dropout."""
    g = torch.Generator().manual_seed(0)
    row, col = ((700 * torch.rand(9_000, generator=g) ** 3).long() for _ in range(2))
    row[:3000] = 11
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(800, 700))
    sizes = ((800, heads), (700, heads), (700, heads, feat), (800, heads, feat), (9_000, heads), (9_000, heads))
    q, k, v, gout, bias, weight = (torch.randn(size, generator=g).to(dtype).to(device) for size in sizes)
    return Call(adj.with_values(weight), "additive", q, k, v, gout, None, bias, 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("slope", [0.0, 1.0, 3.0, -0.5])
def test_slopes(slope, dtype, device):
    call = long_rows(dtype, device, feat=17 if slope == 3.0 else 16)
    expected = call.oracle(1.0, slope)
    for algorithm in algorithms(device):
        check_without_gradients_of_edges(call, expected, algorithm, slope)


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """The operators that run, and the largest number of elements that one gave besides out."""

    def __init__(self):
        super().__init__()
        self.names, self.kept = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.names.append(str(func))
        if str(func) == "fusedmm._attention.default":
            self.kept = max(t.numel() for t in found[3:])
        return found


def test_passes_over_the_entries(device):
    """No walk over the rows where nothing but q, k and v learns, and nothing kept where q does not."""
    call = long_rows(torch.float64, device)
    q, k, v, bias, weight = (t.detach() for t in (call.q, call.k, call.v, call.bias, call.adj.val))

    def step(learns):
        for t in (q, k, v, bias, weight):
            t.requires_grad_(any(t is x for x in learns))
        torch.manual_seed(7)
        with Calls() as calls:
            out, lse = fusedmm.attention(
                call.adj, q, k, v, bias=bias, edge_weight=weight, score="additive", dropout=0.3, return_lse=True
            )
            given = (out, torch.where(lse.isinf(), 0.0, lse)), list(learns), (call.gout, call.gout[..., 0])
            grads = torch.autograd.grad(*given) if learns else ()
        return grads, "fusedmm._attention_rows.default" in calls.names, calls.kept

    (gq, gk, gv), walked, kept = step((q, k, v))
    assert not walked and kept == call.gout.numel()
    for learns in ((q, k, v, bias), (q, k, v, weight)):
        grads, walked, kept = step(learns)
        assert walked and not kept
        torch.testing.assert_close(grads[0], gq, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(grads[1:3], (gk, gv), rtol=1e-10, atol=1e-10)
    assert step((k, v))[1:] == (False, 0) and step(())[1:] == (False, 0)


def test_gradient_of_q_of_rows_without_weight(device):
    """Empty rows, and rows of nothing but -infinity, whatever reaches out and lse."""
    row = torch.tensor([0, 0, 1, 1], device=device)
    adj = fusedmm.CSR.from_coo(row, torch.tensor([0, 1, 0, 1], device=device), shape=(3, 2))
    bias = torch.tensor([0.0, float("-inf"), float("-inf"), float("-inf")], device=device)
    k, v = torch.tensor([1.0, 2.0], device=device), torch.ones(2, 4, device=device)
    for algorithm in algorithms(device):
        q = torch.zeros(3, device=device, requires_grad=True)
        found = run_or_decline(
            fusedmm.attention, adj, q, k, v, score="additive", bias=bias, return_lse=True, algorithm=algorithm
        )
        if found is not None:
            gout = torch.tensor([1.0, float("inf"), float("nan")], device=device)[:, None]
            (gq,) = torch.autograd.grad(found, q, (gout.expand(3, 4), gout))
            assert gq.tolist() == [1, 0, 0], algorithm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_cosine(dtype, device):
    adj = fusedmm.CSR.from_coo(*torch.randint(0, 9, (2, 40)).to(device).unbind(), shape=(9, 9))
    q, k, v = (torch.randn(9, 2, 5, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    unit = [torch.nn.functional.normalize(t, dim=-1) for t in (q, k)]
    out = fusedmm.attention(adj, q, k, v, score="cosine", scale=3.0)
    same = fusedmm.attention(adj, *unit, v, scale=3.0)
    torch.testing.assert_close(out, same)
    gout = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), gout), torch.autograd.grad(same, (q, k, v), gout))
