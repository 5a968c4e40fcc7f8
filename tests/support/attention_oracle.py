"""Graph attention in float64 from plain torch, with a bound for every number that the operator gives.

With u the unit of the sums (float32; float64 for float64), an entry's logit is off by at most

    d = 4 sqrt(F) u (its terms' magnitudes) + 4 u |logit|

and a row's weights, by the largest d of the row, by a factor of at most exp(2 d + 16 u + 4 sqrt(n) u)
and by the smallest normal number, below which they may be 0.
From there errors add up: products over C channels like sddmm's, sums over n entries like spmm's, and
delta = <out, gout> also has out's rounding to its dtype. Each result is rounded once to its dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import accuracy
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

import fusedmm
from support.bounds import UNIT, LongSum, accumulator
from support.generate import small

SCORES = ["dot", "additive", "gatv2", "cosine"]


class Given(NamedTuple):
    """Operands [n, H, F] as the caller gave them; weight and bias [nnz, H]; by: keep / (1 - dropout)."""

    q: Tensor
    k: Tensor
    v: Tensor
    att: Tensor | None
    bias: Tensor | None
    weight: Tensor | None
    by: Tensor | None


class Result(NamedTuple):
    exact: Tensor
    bound: Tensor  # before the rounding to the result's dtype


def over(index: Tensor, n: int, x: Tensor) -> Tensor:
    """Sums x over entries with the same index."""
    y: Tensor = LongSum.apply(index, n, x)
    return y


def row_max(row: Tensor, n: int, x: Tensor, empty: float) -> Tensor:
    return x.new_full((n, x.shape[1]), empty).scatter_reduce(0, row[:, None].expand_as(x), x, "amax")


def logits_of(g: Given, row: Tensor, col: Tensor, score: str, scale: float, slope: float) -> tuple[Tensor, Tensor]:
    """Logits [nnz, H], and the sums of the absolute values of their terms."""
    q, k = g.q[row], g.k[col]
    bias = torch.zeros((), dtype=torch.float64) if g.bias is None else g.bias
    if score == "dot":
        return scale * (q * k).sum(-1) + bias, abs(scale) * (q * k).abs().sum(-1) + bias.abs()
    if score == "additive":
        t, size = (q + k)[..., 0] + bias, (q.abs() + k.abs())[..., 0] + bias.abs()
        return leaky_relu(t, slope), size
    size = (g.att.abs() * (q.abs() + k.abs())).sum(-1)
    return (g.att * leaky_relu(q + k, slope)).sum(-1) + bias, size + bias.abs()


def softmax_of(row: Tensor, n: int, logit: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [nnz, H] and lse [n, H]."""
    top = row_max(row, n, logit.detach(), -torch.inf)
    zero = torch.where(top.isinf() & (top < 0), 0.0, top)
    powers = (logit - zero[row]).exp()
    total = over(row, n, powers)
    safe = torch.where(total == 0, 1.0, total)
    return powers / safe[row], torch.where(total == 0, -torch.inf, safe.log() + zero)


def attention_oracle(
    adj: fusedmm.CSR,
    given: Given,
    score: str,
    scale: float,
    slope: float,
    gout: Tensor,
    dtype: torch.dtype,
    exact_logits: Tensor | None = None,
) -> dict[str, Result]:
    """out, lse, u and the gradients of all operands for gout, by their names.

    exact_logits [nnz] marks entries whose logits have no error; those of -infinity never have one.
    """
    row, col, _ = (None if t is None else t.cpu() for t in adj.coo())
    n, u = adj.shape[0], UNIT[accumulator(dtype)]
    g = Given(*(None if t is None else t.detach().double().cpu().requires_grad_() for t in given))
    gout = gout.detach().double().cpu()
    logit, size = logits_of(g, row, col, score, scale, slope)
    w, lse = softmax_of(row, n, logit)
    by = torch.ones_like(w) if g.by is None else g.by
    use = w * by if g.weight is None else w * by * g.weight
    out = over(row, n, use[..., None] * g.v[col])
    wanted = {name: t for name, t in g._asdict().items() if t is not None and name != "by"}
    grads = torch.autograd.grad(out, list(wanted.values()), gout)

    with torch.no_grad():
        degree = adj.degree().cpu().double()[:, None]
        feat, feat_v = g.q.shape[-1], g.v.shape[-1]
        one = 2 if dtype == torch.float64 else 1  # the oracle is of the same precision
        noise, of_v = 4 * one * u, 4 * one * u * feat_v**0.5
        d = noise * (max(feat, 1) ** 0.5 * size + logit.abs())
        d = torch.where(logit == -torch.inf, 0.0, d)
        d = d if exact_logits is None else d.masked_fill(exact_logits[:, None], 0.0)
        d_row = row_max(row, n, d, 0.0)
        rel = torch.expm1(2 * d_row + 4 * noise + noise * degree.sqrt())[row]  # of w
        e_w = w * rel + torch.finfo(accumulator(dtype)).smallest_normal
        factor = by if g.weight is None else by * g.weight
        values, ups = g.v.abs()[col], gout.abs()[row]
        e_out = over(row, n, (factor.abs() * (e_w + w * noise * degree.sqrt()[row]))[..., None] * values)
        dot, dots = (gout[row] * g.v[col]).sum(-1), (ups * values).sum(-1)
        delta, deltas = (out * gout).sum(-1), (out * gout).abs().sum(-1)
        e_delta = ((e_out + UNIT[dtype] * out.abs()) * gout.abs()).sum(-1) + of_v * deltas
        slant = w * (factor * dot - delta[row])
        slants = (factor * dots).abs() + deltas[row]
        e_slant = e_w * slants + w * (of_v * factor.abs() * dots + e_delta[row]) + noise * w * slants
        bounds = {
            "v": over(col, adj.shape[1], (factor.abs() * e_w)[..., None] * ups)
            + noise * _root(col, adj.shape[1]) * over(col, adj.shape[1], use.abs()[..., None] * ups),
            "weight": by * (e_w + w * (of_v + noise)) * dots,
        }
        toward_q, toward_k, toward_att, gain = _toward(g, row, col, score, scale, slope, logit)
        bounds["bias"] = e_slant * gain
        for name, index, count, step in (("q", row, n, toward_q), ("k", col, adj.shape[1], toward_k)):
            root = _root(index, count)
            bounds[name] = over(index, count, e_slant[..., None] * step)
            bounds[name] += noise * (1 + root) * over(index, count, (w * slants)[..., None] * step)
        if toward_att is not None:
            per = (e_slant + noise * row.numel() ** 0.5 * w * slants)[..., None] * toward_att
            bounds["att"] = per.sum(0) + UNIT[dtype] * (slant[..., None] * toward_att).abs().sum(0)
        found = {
            "out": Result(out, e_out),
            "lse": Result(lse, (d_row + 4 * noise + noise * degree.sqrt() + noise * lse.abs()).nan_to_num()),
            "use": Result(use, factor.abs() * e_w),
        }
    for name, exact in zip(wanted, grads, strict=True):
        found["g" + name] = Result(exact, bounds[name])
    return {name: Result(r.exact.detach(), r.bound.detach()) for name, r in found.items()}


def _root(index: Tensor, n: int) -> Tensor:
    return torch.bincount(index, minlength=n).double().sqrt()[:, None, None]


def _toward(
    g: Given, row: Tensor, col: Tensor, score: str, scale: float, slope: float, logit: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """|d logit / d q|, of k, of att [nnz, H, F], and of bias [nnz, H]."""
    q, k = g.q[row], g.k[col]
    if score == "dot":
        return abs(scale) * k.abs(), abs(scale) * q.abs(), None, torch.ones_like(logit)
    if score == "additive":
        t = (q + k)[..., 0] if g.bias is None else (q + k)[..., 0] + g.bias
        gain = torch.where(t > 0, 1.0, abs(slope))
        return gain[..., None], gain[..., None], None, gain
    turn = g.att.abs() * torch.where(q + k > 0, 1.0, abs(slope))
    return turn, turn, leaky_relu(q + k, slope).abs(), torch.ones_like(logit)


def assert_close(
    name: str, computed: Tensor, result: Result, dtype: torch.dtype, *roundings: torch.dtype, operator: str = ""
) -> None:
    """computed, of ``dtype``, is within result's bound; ``roundings`` are others on the way; operator: of the table."""
    assert computed.dtype == dtype and computed.shape == result.exact.shape, (name, computed.dtype, computed.shape)
    bound = result.bound + sum(UNIT[t] for t in (dtype, *roundings)) * result.exact.abs()
    bound = bound + 4 * max(torch.finfo(t).smallest_normal * UNIT[t] for t in (dtype, *roundings))
    error = (computed.detach().double().cpu() - result.exact).abs()
    accuracy.record(operator, computed, error, bound)
    computed = computed.detach().double().cpu()
    same = (computed == result.exact) | ((computed - result.exact).abs() <= bound)
    if not bool(same.all()):
        at = tuple((~same).nonzero()[0].tolist())
        raise AssertionError(
            f"{name}: {int((~same).sum())} of {same.numel()} outside the bound, first at {list(at)}: "
            f"{computed[at].item()!r} for {result.exact[at].item()!r}, bound {bound[at].item():.3g}"
        )


def philox(seed: int, edges: int, heads: int) -> Tensor:
    """Words [edges, heads] of Philox4x32-10: key (seed low, high), counter (edge low, high, head / 4, 0)."""
    edge, group = torch.arange(edges)[:, None].expand(edges, heads), (torch.arange(heads) // 4).expand(edges, heads)
    low = (1 << 32) - 1
    word = [edge & low, edge >> 32, group, torch.zeros_like(edge)]
    key = [seed & low, seed >> 32 & low]
    for _ in range(10):
        high0, low0 = _product(0xD2511F53, word[0])
        high1, low1 = _product(0xCD9E8D57, word[2])
        word = [high1 ^ word[1] ^ key[0], low1, high0 ^ word[3] ^ key[1], low0]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return torch.stack(word)[torch.arange(heads) % 4, torch.arange(edges)[:, None], torch.arange(heads)]


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low words of a times b, whose product leaves int64."""
    part, rest = a * (b & 0xFFFF), a * (b >> 16)
    middle = rest + (part >> 16)
    return middle >> 16, (middle << 16 | part & 0xFFFF) & (1 << 32) - 1


def keeps(seed: int, edges: int, heads: int, dropout: float) -> Tensor:
    """keep / (1 - dropout), [edges, heads] in float64."""
    kept = philox(seed, edges, heads).double() >= dropout * 2.0**32
    return kept.double() / (1 - dropout) if dropout < 1 else torch.zeros(edges, heads, dtype=torch.float64)


# ---- what the tests share ----


def algorithms(device):
    return ["auto", *(a.name for a in fusedmm.algorithms("attention", device))]


def operands(score, device, heads=2, dtype=torch.float64, feat=4, adj=None):
    """A pattern, of 12 x 15 with empty rows if none is given; q, k, v and options of the score."""
    adj = small(device=device).pattern() if adj is None else adj
    rows, cols = adj.shape
    size = [] if heads is None else [heads]
    width = [] if score == "additive" else [feat]
    q, k, v = (
        torch.randn(n, *size, *w, dtype=dtype, device=device, requires_grad=True)
        for n, w in ((rows, width), (cols, width), (cols, [3]))
    )
    att = torch.randn(*size, feat, dtype=dtype, device=device, requires_grad=True) if score == "gatv2" else None
    return adj, q, k, v, {"score": score, "att": att}
