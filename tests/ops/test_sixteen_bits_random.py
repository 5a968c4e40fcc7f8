"""float16 and bfloat16 drawn at random: results and gradients of every operator within the bound, against float64.

Hypothesis draws sizes, exponents and what cancels; a failure shrinks to the smallest graph that shows it.
"""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_oracle import Given, Result, assert_close, attention_oracle
from support.bounds import UNIT, accumulator, assert_values_gradient, assert_within, sddmm_oracle, spmm_oracle
from support.fused_oracle import Stages, assert_near, forward, gradients
from torch import Tensor

import fusedmm

HALVES = [torch.float16, torch.bfloat16]
LIMIT = 13  # of a sum's exponent: 2^15 at most, which float16 has, before the numbers' own spread


@st.composite
def cases(draw: Any, values: tuple[str, ...] = ("none", "entry", "head", "float32")) -> dict[str, Any]:
    """A graph, and what its operands are like."""
    heads = draw(st.sampled_from([None, 1, 2, 5, 0]))
    rows, cols = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    return {
        "rows": rows,
        "cols": cols,
        "nnz": draw(st.integers(0, 40)) if rows and cols else 0,
        "feat": draw(st.sampled_from([1, 2, 3, 8, 17, 40, 0])),
        "repeated": draw(st.sampled_from([None, None, 0, 1, -1])),  # the axis of stride 0
        "heads": heads,
        "dtype": draw(st.sampled_from(HALVES)),
        "values": draw(st.sampled_from([v for v in values if v != "head" or heads is not None])),
        "cancel": draw(st.booleans()),
        "exponents": draw(st.lists(st.integers(-6, 6), min_size=4, max_size=4)),
        "seed": draw(st.integers(0, 2**16)),
    }


class Numbers:
    """The operands of a case, on a device."""

    def __init__(self, case: dict[str, Any], device: str, factors: int) -> None:
        self.__dict__ |= case
        self.device, self.g = device, torch.Generator().manual_seed(case["seed"])
        # Of all exponents together no more than keeps sums of products in float16, whatever is multiplied.
        spare = max(sum(max(e, 0) for e in case["exponents"][:factors]) - (LIMIT - 2 * factors - 4), 0)
        self.scale = [2.0 ** (e - -(-spare // factors)) for e in case["exponents"]]
        row = torch.randint(0, max(self.rows, 1), (self.nnz,), generator=self.g).to(device)
        col = torch.randint(0, max(self.cols, 1), (self.nnz,), generator=self.g).to(device)
        size = (self.nnz, self.heads) if self.values == "head" else (self.nnz,)
        kind = torch.float32 if self.values == "float32" else self.dtype
        val = None if self.values == "none" else self.fill(0, *size).detach().to(kind).requires_grad_()
        self.adj = fusedmm.CSR.from_coo(row, col, val, (self.rows, self.cols)).cache_transpose()
        self.size = [] if self.heads is None else [self.heads]

    def fill(self, scale: int, *size: int) -> Tensor:
        """Numbers of one sign and size, whose small differences are what is left where they cancel; or any."""
        x = torch.randn(size, generator=self.g, dtype=torch.float64)
        x = (x.sign() * 2 + x / 64) if self.cancel else x
        return (self.scale[scale] * x).to(self.dtype).to(self.device).requires_grad_()

    def dense(self, scale: int, rows: int, feat: int | None = None) -> Tensor:
        x = self.fill(scale, rows, *self.size, self.feat if feat is None else feat)
        if self.repeated is None:
            return x
        first = x.detach().movedim(self.repeated, 0)
        return first[:1].expand_as(first).movedim(0, self.repeated).requires_grad_()


def examples(test: Any) -> Any:
    """The same examples at every run: one that fails is one that failed before."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=quiet)(test)


def double(adj: fusedmm.CSR, *times: Tensor) -> fusedmm.CSR:
    """adj on the CPU with the product of the numbers given, in float64, as its values."""
    val = torch.ones(adj.nnz, dtype=torch.float64)
    for t in times:
        t = t.detach().double().cpu()
        val = val[:, None] * t if t.dim() > val.dim() else val * (t if t.dim() == val.dim() else t[:, None])
    return adj.to("cpu").with_values(val)


@examples
@given(case=cases(), reduce=st.sampled_from(["sum", "mean"]))
def test_spmm(case, reduce, device):
    n = Numbers(case, device, 3)
    x, gy = n.dense(1, n.cols), n.dense(2, n.rows).detach()
    val, wanted = n.adj.val, [t for t in (x, n.adj.val) if t is not None]
    y = fusedmm.spmm(n.adj, x, reduce=reduce)
    assert_within(y.detach(), *spmm_oracle(n.adj, x, reduce), n.dtype, f"spmm {reduce}")
    gx, *gval = torch.autograd.grad(y, wanted, gy)
    row = n.adj.to("cpu").coo()[0]
    share = 1 / n.adj.degree().cpu().double().clamp(min=1)[row] if reduce == "mean" else torch.ones(n.nnz).double()
    back = double(n.adj, share, *([] if val is None else [val])).t()
    assert_within(gx, *_wide(spmm_oracle(back, gy.double().cpu(), "sum"), n.dtype), n.dtype, "gx")
    if val is not None:
        exact, size, feat = sddmm_oracle(double(n.adj, share), gy, x)
        assert_values_gradient(gval[0], val, exact, 1.5 * size, feat, n.dtype)


def _wide(oracle: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The oracle of a sum whose terms have two roundings more: of a share, or of a product with a value."""
    exact, size, n = oracle
    return exact, 1.5 * size, n.clamp(min=1)


@examples
@given(case=cases(), reduce=st.sampled_from(["max", "min"]))
def test_extremes(case, reduce, device):
    n = Numbers(case, device, 2)
    x = n.dense(1, n.cols)
    assert_within(
        fusedmm.spmm(n.adj, x, reduce=reduce).detach(), *spmm_oracle(n.adj, x, reduce), n.dtype, f"spmm {reduce}"
    )


@examples
@given(case=cases())
def test_sddmm(case, device):
    n = Numbers(case, device, 4)
    a, b = n.dense(1, n.rows), n.dense(2, n.cols)
    val, wanted = n.adj.val, [t for t in (a, b, n.adj.val) if t is not None]
    e = fusedmm.sddmm(n.adj, a, b)
    assert_within(e.detach(), *sddmm_oracle(n.adj, a, b), n.dtype, "sddmm")
    ge = n.fill(3, *e.shape).detach()
    ga, gb, *gval = torch.autograd.grad(e, wanted, ge)
    weighted = double(n.adj, ge, *([] if val is None else [val]))
    assert_within(ga, *_wide(spmm_oracle(weighted, b.double().cpu(), "sum"), n.dtype), n.dtype, "ga")
    assert_within(gb, *_wide(spmm_oracle(weighted.t(), a.double().cpu(), "sum"), n.dtype), n.dtype, "gb")
    if val is not None:
        exact, size, feat = sddmm_oracle(double(n.adj, ge), a, b)
        assert_values_gradient(gval[0], val, exact, size, feat, n.dtype)


@examples
@given(case=cases(("none", "entry")), op=st.sampled_from(["add", "sub", "mul"]))
def test_elementwise_sddmm(case, op, device):
    n = Numbers(case, device, 4)
    a, b = n.dense(1, n.rows), n.dense(2, n.cols)
    e = fusedmm.sddmm(n.adj, a, b, op=op)
    ge = n.fill(3, *e.shape).detach()
    found = torch.autograd.grad(e, (a, b), ge)
    row, col, val = n.adj.to("cpu").coo()
    up = ge.double().cpu() * (1 if val is None else val.detach().double().view(-1, *[1] * (ge.dim() - 1)))
    for got, index, other, sign in ((found[0], row, b[n.adj.coo()[1]], 1), (found[1], col, a[n.adj.coo()[0]], -1)):
        terms = up * (other.detach().double().cpu() if op == "mul" else sign if op == "sub" else 1)
        zero = torch.zeros(got.shape, dtype=torch.float64)
        count = torch.bincount(index, minlength=got.shape[0]).clamp(min=1).view(-1, *[1] * (zero.dim() - 1))
        size = 1.5 * zero.index_add(0, index, terms.abs())
        assert_within(got, zero.index_add(0, index, terms), size, count, n.dtype, op)


STAGES = [
    *(
        Stages("dot", edge, "scale", None, reduce)
        for edge in ("s*a", "leaky_relu(s, 0.2)*a")
        for reduce in ("sum", "mean")
    ),
    Stages("sqdist", "a*exp(-s/64)"),
    Stages("none", "a", "mul"),
    Stages("l1", "a*s", "add", "tanh", "mean"),
]


@examples
@given(case=cases(("none", "entry", "head")), stages=st.sampled_from(STAGES))
def test_fused(case, stages, device):
    n = Numbers(case, device, 4)
    x, y, z = n.dense(1, n.rows), n.dense(2, n.cols), n.dense(3, n.cols)
    scale = stages.message == "scale"
    out = fusedmm.fused(n.adj, x, y, *([z] if scale else []), **stages._asdict())
    assert_near(out.detach(), *forward(n.adj, x, y, z, stages), n.dtype, str(stages))
    g = n.fill(0, *out.shape).detach()
    wanted = {"x": x, "y": y, "z": z if scale else None, "val": n.adj.val}
    wanted = {name: t for name, t in wanted.items() if t is not None}
    exact = gradients(n.adj, x, y, z, g, stages)
    for name, got in zip(wanted, torch.autograd.grad(out, list(wanted.values()), g, allow_unused=True), strict=True):
        expected, error = exact[name]
        if got is None:
            assert not expected.any(), name
            continue
        if got.dim() < expected.dim():  # one number for all heads
            error = (error + 4 * UNIT[accumulator(n.dtype)] * expected.abs()).sum(1)
            expected = expected.sum(1)
        error = error + 16 * torch.finfo(n.dtype).smallest_normal * UNIT[n.dtype]
        assert_near(got, expected, error, n.dtype, f"{name} {stages}")


@examples
@given(
    case=cases(("none", "entry", "head")),
    score=st.sampled_from(["dot", "additive", "gatv2"]),
    bias=st.sampled_from(["none", "entry", "head"]),
)
def test_attention(case, score, bias, device):
    case = case | {"heads": 2 if case["heads"] is None else case["heads"]}
    n = Numbers(case, device, 4)
    feat = 1 if score == "additive" else n.feat
    q, k = (n.dense(s, rows, feat) for s, rows in ((1, n.rows), (2, n.cols)))
    v, att = n.dense(3, n.cols, 3), n.fill(3, n.heads, n.feat) if score == "gatv2" else None
    of_edges = None if bias == "none" else n.fill(1, n.nnz, *([n.heads] if bias == "head" else []))
    narrow = [t[..., 0] if score == "additive" else t for t in (q, k)]
    out = fusedmm.attention(n.adj, *narrow, v, score=score, att=att, bias=of_edges)
    gout = n.fill(0, *out.shape).detach()
    per_head = [t if t is None or t.dim() == 2 else t[:, None].expand(-1, n.heads) for t in (of_edges, n.adj.val)]
    scale = feat**-0.5 if score == "dot" and feat else 1.0
    exact = attention_oracle(n.adj, Given(q, k, v, att, *per_head, None), score, scale, 0.2, gout, n.dtype)
    assert_close("out", out, exact["out"], n.dtype)
    wanted = {"gq": q, "gk": k, "gv": v, "gatt": att, "gbias": of_edges, "gweight": n.adj.val}
    wanted = {name: t for name, t in wanted.items() if t is not None}
    for name, got in zip(wanted, torch.autograd.grad(out, list(wanted.values()), gout), strict=True):
        expected = exact[name]
        if got.dim() < expected.exact.dim() and name in ("gbias", "gweight"):  # one number for all heads
            spread = 4 * UNIT[accumulator(n.dtype)] * expected.exact.abs().sum(1)
            expected = Result(expected.exact.sum(1), expected.bound.sum(1) + spread)
        assert_close(name, got.reshape(expected.exact.shape), expected, n.dtype)


@examples
@given(case=cases(("none",)))
def test_edge_softmax(case, device):
    n = Numbers(case, device, 1)
    logits = n.fill(0, n.nnz, *n.size)
    w, up = fusedmm.edge_softmax(n.adj, logits), n.fill(1, n.nnz, *n.size).detach()
    got = torch.autograd.grad(w, logits, up)[0]
    wide = logits.detach().double().cpu().requires_grad_()
    exact = fusedmm.edge_softmax(n.adj.to("cpu"), wide)
    gradient = torch.autograd.grad(exact, wide, up.double().cpu())[0]
    exact = exact.detach()
    relative = 2.0**-24 * (64 + 16 * logits.detach().double().abs().amax().item() if logits.numel() else 1)
    least = torch.finfo(torch.float32).smallest_normal  # of an exponential, which may be 0 below
    assert_near(w.detach(), exact, relative * exact + least, n.dtype, "edge_softmax")
    largest = up.double().abs().amax().item() if up.numel() else 1
    assert_near(got, gradient, 8 * (relative * exact + least) * largest, n.dtype, "its gradient")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_bound_sees_one_rounding_too_many(dtype, device):
    """A product per head, rounded and then added, is not what these tests take for a sum."""
    each = torch.arange(64, device=device)
    adj = fusedmm.CSR.from_coo(each, each, torch.ones(64, dtype=dtype, device=device), (64, 64))
    a, b = (torch.randn(64, 1, 5).to(dtype).to(device) for _ in range(2))
    a, b = torch.cat([a, -a], 1), torch.cat([b, (b * 0.97).to(dtype)], 1)
    exact, size, feat = sddmm_oracle(adj, a, b)
    assert_values_gradient(exact.sum(1).to(dtype).to(device), adj.val, exact, size, feat, dtype)
    with pytest.raises(AssertionError):
        assert_values_gradient(exact.to(dtype).sum(1).to(device), adj.val, exact, size, feat, dtype)
