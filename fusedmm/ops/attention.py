"""Graph attention: softmax over each row's entries and the weighted sum in one pass, differentiable to any order.

A forward keeps lse, two numbers per row and head; a backward computes the weights again from it, in one
pass over the rows and one over the columns (csrc/attention/attention.c). Additive scores whose q needs a gradient
keep the part of out from entries with a positive argument as well, and need no pass over the rows.
Nothing of the size edges x heads exists but what the caller asks for. Where a gradient is itself
differentiated, it is taken through the same formula written with edge_softmax and spmm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from fusedmm._lib import (
    WANT_GATT,
    WANT_GBIAS,
    WANT_GK,
    WANT_GQ,
    WANT_GV,
    WANT_GWEIGHT,
    WANT_POS,
    algorithm_number,
    numbers_of,
    ops,
    sums_dtype,
)
from fusedmm.matrix.adapters import operand
from fusedmm.matrix.arguments import require_flags, require_number
from fusedmm.matrix.csr import CSR
from fusedmm.ops.attention_operands import Operands, Optional, masked, operands_of
from fusedmm.ops.autograd import Step
from fusedmm.ops.checks import needs_rules, require_scalar, rows_of
from fusedmm.ops.row_softmax import log_sum_exp, softmax, weights
from fusedmm.ops.sddmm import elementwise
from fusedmm.ops.spmm_sddmm import (
    gradients,
    half,
    kind_of,
    like_values,
    run,
    sddmm_half,
    serves_all,
    spmm_half,
    widened,
)

# SCALED is DOT by 1 / sqrt(F), which the library computes: to compiled code that is another number for each F.
DOT, ADDITIVE, GATV2, SCALED = numbers_of("FMM_", "dot", "additive", "gatv2", "scaled").values()
LARGEST = torch.finfo(torch.float32).max
SCORES = {"dot": DOT, "additive": ADDITIVE, "gatv2": GATV2, "cosine": DOT}

_forward: Any = ops._attention.default
_rows: Any = ops._attention_rows.default
_cols: Any = ops._attention_cols.default
# (gout, out, lse, its rest, glse or none, pos, pos_w, q or none, slope) -> delta, gq where pos is there, and what
# backward_cols of additive scores takes as packed: csrc/attention/node_sums.c
row_sums: Any = ops._node_delta.default


class Options(NamedTuple):
    """Holds the part of a call that is no tensor."""

    adj: CSR
    score: int
    scale: float
    slope: float
    dropout: float
    algorithm: int
    pos: bool  # whether forward also gives what the gradient of q follows from


@overload
def attention(
    adj: Any, q: Tensor, k: Tensor, v: Tensor, *, score: str = ..., scale: float | None = ..., slope: float = ...,
    att: Tensor | None = ..., bias: Tensor | None = ..., mask: Tensor | None = ..., edge_weight: Tensor | None = ...,
    dropout: float = ..., training: bool = ..., return_lse: Literal[False] = ..., return_weights: Literal[False] = ...,
    algorithm: str = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    adj: Any, q: Tensor, k: Tensor, v: Tensor, *, score: str = ..., scale: float | None = ..., slope: float = ...,
    att: Tensor | None = ..., bias: Tensor | None = ..., mask: Tensor | None = ..., edge_weight: Tensor | None = ...,
    dropout: float = ..., training: bool = ..., return_lse: Literal[True], return_weights: Literal[False] = ...,
    algorithm: str = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    adj: Any, q: Tensor, k: Tensor, v: Tensor, *, score: str = ..., scale: float | None = ..., slope: float = ...,
    att: Tensor | None = ..., bias: Tensor | None = ..., mask: Tensor | None = ..., edge_weight: Tensor | None = ...,
    dropout: float = ..., training: bool = ..., return_lse: Literal[False] = ..., return_weights: Literal[True],
    algorithm: str = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    adj: Any, q: Tensor, k: Tensor, v: Tensor, *, score: str = ..., scale: float | None = ..., slope: float = ...,
    att: Tensor | None = ..., bias: Tensor | None = ..., mask: Tensor | None = ..., edge_weight: Tensor | None = ...,
    dropout: float = ..., training: bool = ..., return_lse: Literal[True], return_weights: Literal[True],
    algorithm: str = ...,
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    adj: Any, q: Tensor, k: Tensor, v: Tensor, *, score: str = ..., scale: float | None = ..., slope: float = ...,
    att: Tensor | None = ..., bias: Tensor | None = ..., mask: Tensor | None = ..., edge_weight: Tensor | None = ...,
    dropout: float = ..., training: bool = ..., return_lse: bool = ..., return_weights: bool = ...,
    algorithm: str = ...,
) -> Tensor | tuple[Tensor, ...]: ...  # fmt: skip
def attention(
    adj: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: str = "dot",
    scale: float | None = None,
    slope: float = 0.2,
    att: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    edge_weight: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = True,
    return_lse: bool = False,
    return_weights: bool = False,
    algorithm: str = "auto",
) -> Any:
    """Attends from each row to the columns of its entries: ``out[i] = sum_p u[p] v[j]``, p = (i, j).

    ``u = val * dropout(softmax over row i's entries of logit)`` with, per head, one of

        dot       scale * <q[i], k[j]> + bias           scale defaults to 1 / sqrt(F)
        cosine    scale * cos(q[i], k[j]) + bias        scale defaults to 1
        additive  leaky_relu(q[i] + k[j] + bias)        q and k are one number per head (GAT)
        gatv2     <att, leaky_relu(q[i] + k[j])> + bias

    Args:
        adj: a ``CSR`` [rows, cols], or what ``as_csr`` takes. Its values val multiply the weights after the
            softmax; a pattern counts as ones.
        q: float32, float64, float16 or bfloat16, [rows, heads, F], or [rows, F] for one head without
            a heads axis in all of q, k, v and out. Additive: [rows, heads], [rows, heads, 1], or [rows] for one.
            The axis of nodes comes FIRST: give a batch [batch, rows, F] as ``q.transpose(0, 1)``. Where batch and
            rows are equal nothing can tell the two apart, and the batch is taken for the nodes.
        k: the same of [cols].
        v: the same dtype, [cols, heads, C] or [cols, C]. Where k and v have fewer heads than q, a number that divides
            q's, each serves as many neighbouring heads of q (grouped queries).
        score: as above.
        scale: multiplies the product of dot and cosine; for no other score.
        slope: of leaky_relu below 0.
        att: [heads, F] (or [1, heads, F], or for one head [F]), for gatv2.
        bias: [nnz, heads] or [nnz, heads, 1], or for all heads [nnz] or [nnz, 1], in the caller's edge order, added to
            the logits. -inf masks an entry, and a large negative number masks it where a row has others.
        mask: booleans shaped like bias: true where an entry takes part.
        edge_weight: shaped like bias; stands in the place of val.
        dropout: probability that a weight becomes 0; the others are divided by 1 - dropout. The mask
            depends on torch's generator (one seed per call), the edge and the head alone.
        training: False turns dropout off.
        return_lse: also returns log(sum(exp(logit))), [rows, heads], float32 (float64 for float64).
        return_weights: also returns u, [nnz, heads], in the caller's edge order.
        algorithm: a name from ``fusedmm.algorithms("attention", device)``, or "auto".

    Returns:
        out, [rows, heads, C] or [rows, C], of v's dtype; 0 for rows without an entry above -inf. With
        lse and weights behind it where they are asked for. The gradient needs out as it is: what is to
        be written to in place is a copy of it.

    Raises:
        TypeError: wrong types, operands of several dtypes or devices.
        ValueError: shapes that do not fit, a malformed matrix, unknown names.

    Gradient: reaches q, k, v, att, bias and adj's values (or edge_weight), of any order.

    Cost: every entry gathers one row of k and of v; memory for two numbers per row and head. For the
    gradient of additive scores' q one more tensor of out's size is kept until the backward, in float32
    (float64 for float64), unless bias or edge_weight needs a gradient too. On a GPU rows of more
    than 32 entries (4,096 in large matrices) are cut in pieces of as many; each takes heads (C + 2) numbers meanwhile.
    Under torch.func and with forward mode's tangents the weights are in memory.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> x = torch.tensor([[1., 0.], [0., 1.]])
        >>> fusedmm.attention(A, x, x, x, scale=0.0)
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
    """
    if not isinstance(score, str) or score not in SCORES:
        raise ValueError(f"attention: score must be one of {', '.join(SCORES)}, not {score!r}")
    for name, number in (("scale", 0.0 if scale is None else scale), ("slope", slope), ("dropout", dropout)):
        if type(number) is not float:
            require_scalar("attention", name, number)
    if not (type(training) is type(return_lse) is type(return_weights) is bool):  # without a call, as they mostly are
        require_flags("attention", training=training, return_lse=return_lse, return_weights=return_weights)
    if scale is not None and score not in ("dot", "cosine"):
        raise ValueError(f"attention: scale is of dot and cosine scores, not of {score}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"attention: dropout must be in [0, 1], not {dropout}")
    if type(adj) is not CSR:
        adj = operand("attention", "adj", adj, rows_of(v, q))
    edge_weight = adj.val if edge_weight is None else edge_weight
    rules = needs_rules(q, k, v, att, bias, edge_weight)
    x, flat = operands_of(adj, q, k, v, score, att, bias, edge_weight)
    if mask is not None:
        x = masked(x, adj, mask, score == "additive" and slope <= 0)
    if scale is not None and abs(scale) > LARGEST and v.dtype != torch.float64:
        require_number("attention: scale", float(scale), torch.float32)
    kind = SCALED if score == "dot" and scale is None else SCORES[score]
    scale = 1.0 if scale is None else scale
    if torch.compiler.is_compiling():  # which refuses an autograd function that is given one tensor twice
        k = x.k.clone() if x.k is x.q else x.k
        x = x._replace(k=k, v=x.v.clone() if x.v is x.q or x.v is x.k else x.v)
    rate = float(dropout) if training else 0.0
    if rate:
        x = x._replace(seed=torch.randint(2**63 - 1, (1,), device=v.device))
    chosen = 0 if algorithm == "auto" else algorithm_number("attention", v.device.type, algorithm)
    learns = [t is not None and t.requires_grad for t in x] if torch.is_grad_enabled() else [False] * len(x)
    pos = kind == ADDITIVE and learns[0] and not (learns[4] or learns[5])
    options = Options(adj, kind, float(scale), float(slope), rate, chosen, pos)
    lses = None
    if rules:
        out, lse = composite(options, x)
    elif any(learns):
        out, lse = Attention.apply(options, *x)
    else:
        out, *lses, _, _ = forward(options, x)
        lse = lses[0]
    found = [out.squeeze(1) if flat else out]  # a view, and so is its gradient
    if return_lse:
        found.append(lse)
    if return_weights:
        found.append(_weights(options, x, lses))
    return found[0] if len(found) == 1 else tuple(found)


def arguments(o: Options, x: Operands, transposed: bool) -> list[Tensor]:
    """Returns the tensors that all passes read: those of a half, and the operands."""
    none = o.adj.none
    if x.bias is not None and x.bias.shape[1] != x.q.shape[1]:
        x = x._replace(bias=x.bias.expand(-1, x.q.shape[1]))
    return [*half(o.adj, transposed), *[none if t is None else t for t in x]]


def numbers(o: Options, want: int = 0) -> tuple[float, ...]:
    """Returns the numbers that end a pass's arguments, but no zeros at their end, which stand for absent ones: to read
    one takes torch as long as a tensor."""
    first = o.scale, o.slope, o.dropout, o.score
    return (*first, want, o.algorithm) if o.algorithm else (*first, want) if want else first


def forward(o: Options, x: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns out, lse, its rest that rounding removed, and the parts of out and of the weights' sum from positive
    arguments.

    The parts are empty unless o.pos.
    """
    found: Any = run(_forward, x.v, *arguments(o, x, False), *numbers(o, WANT_POS if o.pos else 0))
    return found


def backward_rows(
    o: Options, x: Operands, lses: Sequence[Tensor], delta: Tensor, gout: Tensor, want: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of q, att in parts, bias and weight; what has no bit in want (WANT_G...) is empty."""
    found: Any = run(_rows, gout, *arguments(o, x, False), *lses, delta, gout, *numbers(o, want))
    return found


def backward_cols(
    o: Options, x: Operands, lses: Sequence[Tensor], delta: Tensor, gout: Tensor, want: int, packed: Optional = None
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of k and of v; what has no bit in want is empty."""
    behind = *lses, delta, gout, o.adj.none if packed is None else packed, *numbers(o, want)
    found: Any = run(_cols, gout, *arguments(o, x, True), *behind)
    return found


class Attention(Step):
    """Computes out and lse, with a gradient that keeps neither weights nor logits."""

    @staticmethod
    def forward(ctx: Any, o: Options, *operands: Any) -> tuple[Tensor, Tensor]:
        x = Operands(*operands)
        out, lse, rest, pos, pos_w = forward(o, x)
        ctx.save_for_backward(*x, out, lse, rest, pos, pos_w)
        ctx.set_materialize_grads(False)
        ctx.o = o
        return out, lse

    @staticmethod
    def backward(ctx: Any, gout: Optional, glse: Optional) -> tuple[Optional, ...]:
        *operands, out, lse, rest, pos, pos_w = ctx.saved_tensors
        o, x, needs = ctx.o, Operands(*operands), ctx.needs_input_grad[1:]
        gout = torch.zeros_like(out) if gout is None else gout
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return None, *_differentiable(o, x, needs, gout, torch.zeros_like(lse) if glse is None else glse)
        gq = gk = gv = gatt = gbias = gweight = None
        none = o.adj.none
        packs = o.score == ADDITIVE and (needs[1] or needs[2]) and x.q.is_cuda
        given = none if glse is None else glse, pos, pos_w, x.q.unsqueeze(2) if packs else none
        delta, gq, packed = run(row_sums, gout, gout, out, lse, rest, *given, o.slope)
        gq = gq.squeeze(2) if o.pos else None
        want = needs[0] * WANT_GQ | needs[3] * WANT_GATT | needs[4] * WANT_GBIAS | needs[5] * WANT_GWEIGHT
        if not o.pos and want:
            edges = zip(x[4:6], needs[4:6], strict=True) if needs[4] or needs[5] else ()
            kinds = [kind_of(t) if need and t is not None else None for t, need in edges]
            shared = any(kind is not None and serves_all(kind, x.v) for kind in kinds)
            # A number of all heads gets the sum of their gradients, which is to be rounded once.
            of, g = (in_sums(x), widened(gout)[0]) if shared else (x, gout)
            gq, gatt, *rows = backward_rows(o, of, (lse, rest), delta, g, want)
            gq = gq.to(x.q.dtype) if shared else gq
            gatt = gatt.sum(0).to(x.q.dtype) if needs[3] else None
            if kinds:
                gbias, gweight = (None if k is None else like_values(r, k) for r, k in zip(rows, kinds, strict=True))
        want = needs[1] * WANT_GK | needs[2] * WANT_GV
        if want:
            gk, gv = backward_cols(o, x, (lse, rest), delta, gout, want, packed)
        return (
            None,
            gq if needs[0] else None,
            gk if needs[1] else None,
            gv if needs[2] else None,
            gatt,
            gbias,
            gweight,
            None,
        )


# ---- the same formula in differentiable parts ----


def in_sums(x: Operands) -> Operands:
    """Returns the operands in the dtype of sums."""
    seed, given = x.seed, x._replace(seed=None)
    wide: Any = (None if t is None else t.to(sums_dtype(t)) for t in given)
    return Operands(*wide)._replace(seed=seed)


def _logits(o: Options, x: Operands) -> Tensor:
    if o.score in (DOT, SCALED):
        scale = o.scale if o.score == DOT or not x.q.shape[2] else x.q.shape[2] ** -0.5
        logit = scale * sddmm_half(o.adj, False, None, x.q, x.k)
        return logit if x.bias is None else logit + x.bias
    t = elementwise(o.adj.pattern(), x.q, x.k, "add")
    if o.score == GATV2:
        assert x.att is not None
        logit = (leaky_relu(t, o.slope) * x.att).sum(-1)
        return logit if x.bias is None else logit + x.bias
    return leaky_relu(t if x.bias is None else t + x.bias, o.slope)


def _thinned(o: Options, x: Operands, w: Tensor) -> Tensor:
    """Returns the weights w times edge weights and dropout's mask, which are the kernel's weights for logits and lse
    0."""
    if x.weight is not None:
        w = w * (x.weight[:, None] if x.weight.dim() == 1 else x.weight)
    if x.seed is None:
        return w
    zero = torch.zeros_like(w, requires_grad=False)
    lse = zero.new_zeros(o.adj.shape[0], w.shape[1], dtype=torch.promote_types(w.dtype, torch.float32))
    return w * weights(o.adj, zero, lse, lse, x.seed, o.dropout)


def _weights(o: Options, x: Operands, lses: Sequence[Tensor] | None) -> Tensor:
    """Returns u, from the kernel where ``lses`` of a forward are given; that is the case where nobody wants a
    gradient."""
    if lses is None:
        y = in_sums(x)
        return _thinned(o, y, softmax(o.adj, _logits(o, y))).to(x.v.dtype)
    *first, _, att, bias, weight, seed = arguments(o, x, False)
    operands = (*first, o.adj.none, att, bias, weight, seed, *lses)
    return run(ops._attention_weights.default, x.q, *operands, *numbers(o))


def composite(o: Options, x: Operands) -> tuple[Tensor, Tensor]:
    """Computes out and lse in the dtype of sums by operations that torch differentiates; the weights are in memory."""
    dtype, x = x.v.dtype, in_sums(x)
    logits = _logits(o, x)
    out = spmm_half(o.adj, False, _thinned(o, x, softmax(o.adj, logits)), x.v)
    return out.to(dtype), log_sum_exp(o.adj, logits)


def _differentiable(
    o: Options, x: Operands, needs: tuple[bool, ...], gout: Tensor, glse: Tensor
) -> tuple[Optional, ...]:
    """Returns the gradients, computed by differentiable operations, for gradients of gradients."""
    with torch.enable_grad():
        copies: Any = (t.view_as(t) if t is not None and need else t for t, need in zip(x, needs, strict=True))
        copy = Operands(*copies)
        out, lse = composite(o, copy)
    return gradients((out, lse), (gout, glse), copy, needs)
