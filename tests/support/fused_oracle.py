"""fused in float64, and how far a computed result may be from it: the bound of bounds.py, carried through the edge.

Errors of the score (a sum of F terms) pass through the edge function as its values at both ends of the
score's interval show; the edge function itself is evaluated within 16 roundings of its value and of what
one rounding of s and a does to it. The reduction then adds its own bound. Nothing here is fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import accuracy
import torch
from torch import Tensor

import fusedmm
from fusedmm import reference
from fusedmm.edge.parse import Expression, parse
from support.bounds import UNIT, accumulator, double, long_sum


class Stages(NamedTuple):
    """The five choices of fused."""

    score: str = "dot"
    edge: str = "s*a"
    message: str = "scale"
    activation: str | None = None
    reduce: str = "sum"

    def __str__(self) -> str:
        return "-".join(map(str, self))


def for_edge(adj: fusedmm.CSR, edge: str) -> fusedmm.CSR:
    """adj as fused takes it: a pattern where the edge function names no values."""
    return adj if parse(edge).uses("a") else adj.pattern()


class Parts(NamedTuple):
    """One number, or one per channel, for each entry, head: float64, on the CPU."""

    row: Tensor
    col: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    s: Tensor
    s_error: Tensor
    a: Tensor
    u: float


def parts(adj: fusedmm.CSR, x: Tensor, y: Tensor, z: Tensor, st: Stages) -> Parts:
    """Operands at both ends of each entry, and its score with the bound of its error."""
    u = UNIT[accumulator(x.dtype)]
    row, col, val = double(adj).coo()
    xi, yj, zj = (t.detach().double().cpu()[k] for t, k in ((x, row), (y, col), (z, col)))
    terms = {
        "none": torch.zeros_like(xi),
        "dot": xi * yj,
        "sqdist": (xi - yj) ** 2,
        "l1": (xi - yj).abs(),
        "additive": xi + yj,
    }[st.score]
    s = terms.sum(-1) if st.score != "none" else torch.ones_like(terms.sum(-1))
    size = terms.abs().sum(-1)
    if st.score in ("sqdist", "l1", "additive"):  # the differences are rounded before they are used
        size = size * 3
    s_error = 4 * max(xi.shape[-1], 1) ** 0.5 * u * size
    a = torch.ones_like(s) if val is None else val.reshape(*val.shape, *[1] * (s.dim() - val.dim())).expand_as(s)
    return Parts(row, col, xi, yj, zj, s, s_error, a, u)


def of_edge(e: Expression, p: Parts) -> tuple[Tensor, Tensor]:
    """The edge function at every entry, and the bound of its error."""
    w = e.torch(p.s, p.a)
    spread = torch.maximum((e.torch(p.s + p.s_error, p.a) - w).abs(), (e.torch(p.s - p.s_error, p.a) - w).abs())
    turned = (p.s * e.derivative("s").torch(p.s, p.a)).abs() + (p.a * e.derivative("a").torch(p.s, p.a)).abs()
    return w, spread + 16 * p.u * (w.abs() + turned)


def of_message(st: Stages, p: Parts) -> tuple[Tensor, Tensor]:
    """The message of every entry and channel, and the bound of its error: two roundings and an activation."""
    m, size = {
        "scale": lambda: (p.z, torch.zeros_like(p.z)),
        "add": lambda: (p.x + p.y, (p.x + p.y).abs()),
        "sub": lambda: (p.x - p.y, (p.x - p.y).abs()),
        "mul": lambda: (p.x * p.y, (p.x * p.y).abs()),
        "max": lambda: (torch.maximum(p.x, p.y), torch.zeros_like(p.x)),
        "min": lambda: (torch.minimum(p.x, p.y), torch.zeros_like(p.x)),
    }[st.message]()
    if st.activation is not None:
        m = getattr(torch, st.activation, getattr(torch.nn.functional, st.activation))(m)
        size = size + 8 * m.abs()
    return m, p.u * size


def total(adj: fusedmm.CSR, row: Tensor, error: Tensor, terms: Tensor, u: float, over: str) -> Tensor:
    """The error of a sum, mean or extreme of terms that have errors of their own."""
    n = adj.degree().cpu().double().view(-1, *[1] * (terms.dim() - 1))
    cpu = adj.to("cpu")
    if over in ("max", "min"):
        return reference.spmm_terms(cpu, row, error + u * terms.abs(), "max")
    return reference.spmm_terms(cpu, row, error, over) + 4 * n.sqrt() * u * reference.spmm_terms(
        cpu, row, terms.abs(), over
    )


def forward(adj: fusedmm.CSR, x: Tensor, y: Tensor, z: Tensor, st: Stages) -> list[Tensor]:
    """The result in float64 and the bound of its error before it is rounded to x's dtype."""
    p = parts(adj, x, y, z, st)
    w, w_error = (t.unsqueeze(-1) for t in of_edge(parse(st.edge), p))
    m, m_error = of_message(st, p)
    error = w_error * m.abs() + w.abs() * m_error + w_error * m_error
    add = reference.spmm_terms if st.reduce in ("max", "min") else long_sum
    exact = add(adj.to("cpu"), p.row, w * m, st.reduce)
    return [exact, total(adj, p.row, error, w * m, p.u, st.reduce)]


def gradients(adj: fusedmm.CSR, x: Tensor, y: Tensor, z: Tensor, g: Tensor, st: Stages) -> dict[str, list[Tensor]]:
    """Of a sum or mean: by name x, y, z, val the gradient in float64 and the bound of its error."""
    p, e = parts(adj, x, y, z, st), parse(st.edge)
    gi = g.detach().double().cpu()
    degree = adj.degree().cpu().clamp(min=1).double().view(-1, *[1] * (gi.dim() - 1))
    gi = (gi / degree if st.reduce == "mean" else gi)[p.row]
    g_error = p.u * gi.abs() if st.reduce == "mean" else torch.zeros_like(gi)
    (w, w_error), (ws, ws_error), (wa, wa_error) = (of_edge(k, p) for k in (e, e.derivative("s"), e.derivative("a")))
    m, m_error = of_message(st, p)
    c = (gi * m).sum(-1)
    c_error = (gi.abs() * m_error + g_error * m.abs()).sum(-1)
    c_error = c_error + 4 * m.shape[-1] ** 0.5 * p.u * (gi * m).abs().sum(-1)

    def product(v: Tensor, v_error: Tensor) -> tuple[Tensor, Tensor]:
        return c * v, c_error * v.abs() + c.abs() * v_error + c_error * v_error + p.u * (c * v).abs()

    ds, ds_error = (t.unsqueeze(-1) for t in product(ws, ws_error))
    dm = w.unsqueeze(-1) * gi
    dm_error = w_error.unsqueeze(-1) * gi.abs() + w.unsqueeze(-1).abs() * g_error
    if st.activation is not None:  # by what the activation gave, which is rounded
        raw = of_message(st._replace(activation=None), p)[0].requires_grad_()
        out = getattr(torch, st.activation, getattr(torch.nn.functional, st.activation))(raw)
        slope = torch.autograd.grad(out.sum(), raw)[0]
        smooth = st.activation in ("sigmoid", "tanh")
        dm_error = dm_error * slope.abs() + (dm.abs() * (3 * m_error + 4 * p.u) if smooth else p.u * dm.abs())
        dm = dm * slope

    def side(mine: Tensor, other: Tensor, sign: float) -> list[Tensor]:
        by_score = {
            "none": torch.zeros_like(mine), "dot": other, "sqdist": 2 * (mine - other),
            "l1": (mine - other).sign(), "additive": torch.ones_like(mine),
        }[st.score]  # fmt: skip
        half = 0.5 * (mine == other)
        by_message = {
            "scale": 0.0, "add": 1.0, "sub": sign, "mul": other,
            "max": (mine > other) + half, "min": (mine < other) + half,
        }[st.message]  # fmt: skip
        first = ds * by_score
        second = torch.zeros_like(first) if st.message == "scale" else dm * by_message
        error = ds_error * by_score.abs() + 4 * p.u * first.abs()
        if st.message != "scale":
            error = error + dm_error * torch.as_tensor(by_message).abs() + 2 * p.u * second.abs()
        return [first + second, first.abs() + second.abs(), error]

    found = {}
    for name, index, count, terms in (
        ("x", p.row, x, side(p.x, p.y, 1.0)),
        ("y", p.col, y, side(p.y, p.x, -1.0)),
        ("z", p.col, z, [dm, dm.abs(), dm_error + p.u * dm.abs()] if st.message == "scale" else None),
    ):
        if terms is None:
            continue
        zero = torch.zeros(count.shape[0], *terms[0].shape[1:], dtype=torch.float64)
        exact, size, error = (zero.index_add(0, index, t) for t in terms)
        n = torch.bincount(index, minlength=count.shape[0]).double().view(-1, *[1] * (exact.dim() - 1))
        found[name] = [exact, error + 4 * (2 * n).sqrt() * p.u * size]
    found["val"] = list(product(wa, wa_error))
    return found


def assert_near(
    computed: Tensor, exact: Tensor, error: Tensor, dtype: torch.dtype, note: str = "", operator: str = ""
) -> None:
    """|computed - exact| <= error + u_out |exact| and half a step of the smallest number; operator: its line."""
    assert computed.dtype == dtype and computed.shape == exact.shape, (note, computed.dtype, computed.shape)
    both = 2 if dtype == torch.float64 else 1  # exact was computed in float64 too, and is as far off
    bound = both * error * 1.01 + UNIT[dtype] * exact.abs() + torch.finfo(dtype).smallest_normal * UNIT[dtype]
    found = (computed.detach().double().cpu() - exact).abs()
    wrong = ~(found <= bound) & ~(computed.detach().double().cpu() == exact.to(dtype).double())
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{note}: {int(wrong.sum())} of {wrong.numel()} outside the bound, first at {list(at)}: "
            f"{computed[at].item()!r} for {exact[at].item()!r}, error {found[at].item():.3g} > {bound[at].item():.3g}"
        )
    accuracy.record(operator, computed, found, bound)
