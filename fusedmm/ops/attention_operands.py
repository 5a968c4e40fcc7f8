"""What attention is given, checked and brought into one form: one dtype, an axis of heads, masks as biases."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fusedmm.matrix.arguments import FLOATS, is_strided, require_strided
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast, normalize, require_dense
from fusedmm.ops.edge_softmax import require_logits

Optional = Tensor | None


class Operands(NamedTuple):
    """The tensors of a call: [n, H, F], q and k of additive scores [n, H], att [H, F], bias and weight [nnz, H], or
    [nnz, 1] and [nnz] for all heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    att: Optional
    bias: Optional
    weight: Optional
    seed: Optional


def operands_of(
    adj: CSR, q: Tensor, k: Tensor, v: Tensor, score: str, att: Optional, bias: Optional, weight: Optional
) -> tuple[Operands, bool]:
    """The operands in one dtype and with an axis of heads, and whether v came without that axis."""
    require_dense("attention", "v", v, adj, adj.n_cols, "columns")
    flat = v.dim() == 2
    v = autocast(v[:, None] if flat else v)
    heads, given, dim = v.shape[1], [], 2 if score == "additive" else 3
    for name, x, rows, axis in (("k", k, adj.n_cols, "columns"), ("q", q, adj.shape[0], "rows")):
        if isinstance(x, Tensor) and x.dim() != dim and is_strided(x):
            if dim == 2 and x.dim() == 3 and x.shape[2] == 1:  # DGL's shape
                x = x[..., 0]
            elif dim == 2 and (x.dim() != 1 or heads != 1):
                raise ValueError(f"attention: {name} must be [{axis}, heads] for additive scores, not {list(x.shape)}")
            x = x[:, None] if flat and x.dim() == dim - 1 else x
        require_dense("attention", name, x, adj, rows, axis)
        shape = x.shape
        if len(shape) != dim or shape[1] != heads:
            if len(shape) == dim and name == "q" and heads and shape[1] > heads and shape[1] % heads == 0:
                if k.dim() < dim:
                    raise ValueError(f"attention: q is {list(shape)} and k {list(k.shape)}; k and v need heads too")
                times = shape[1] // heads
                return operands_of(adj, q, _repeated(k, times), _repeated(v, times), score, att, bias, weight)
            more = ", or q's be a multiple of those of k and v" if name == "q" else ""
            raise ValueError(f"attention: {name} is {list(shape)} and v {list(v.shape)}; heads must agree{more}")
        given.append(autocast(x))
    k, q = given
    if q.dtype != v.dtype or k.dtype != v.dtype:
        raise TypeError(f"attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; they must be of one dtype")
    if dim == 3 and q.shape[2] != k.shape[2]:
        raise ValueError(f"attention: q has {q.shape[2]} features and k {k.shape[2]}")
    if score == "cosine":
        q, k = normalize(q), normalize(k)
    if (att is None) == (score == "gatv2"):
        raise ValueError("attention: att must be given for gatv2 and for no other score")
    if att is not None:
        if not isinstance(att, Tensor) or att.dtype not in FLOATS:
            kind = att.dtype if isinstance(att, Tensor) else type(att).__name__
            raise TypeError(f"attention: att must be float32, float64, float16 or bfloat16, not {kind}")
        require_strided("attention: att", att)
        each = [heads, q.shape[2]]
        if list(att.shape) not in (each, [1, *each], each[heads == 1 :]):
            raise ValueError(f"attention: att must be {each}, not {list(att.shape)}")
        if att.device != v.device:
            raise TypeError(f"attention: att is on {att.device}, v on {v.device}")
        att = att.reshape(heads, q.shape[2]).to(v.dtype)
    if bias is not None:
        bias = _per_edge("bias", bias, adj, v)
        bias = bias[:, None] if bias.dim() == 1 else bias
    if weight is not None:
        weight = _per_edge("adj.val" if weight is adj.val else "edge_weight", weight, adj, v)
    return Operands(q, k, v, att, bias, weight, None), flat


def _repeated(x: Tensor, times: int) -> Tensor:
    """Heads of x [n, heads, ...], each so many times over; the gradient adds up what each got."""
    return x.repeat_interleave(times, 1) if isinstance(x, Tensor) and x.dim() > 1 else x


def masked(x: Operands, adj: CSR, mask: Tensor, is_lost: bool) -> Operands:
    """Adds -inf to the logits of entries that a mask leaves out.

    is_lost: whether the score would turn -inf into something else.

    Raises:
        TypeError: no booleans, or another device.
        ValueError: another shape, or a score that loses the mask.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"attention: mask must be booleans, not {found}; what is added to the logits is bias")
    require_strided("attention: mask", mask)
    if is_lost:
        raise ValueError("attention: a mask of additive scores needs slope above 0, which keeps -inf what it is")
    none = torch.zeros((), dtype=x.v.dtype, device=mask.device)
    bias = _per_edge("mask", none.expand(mask.shape), adj, x.v)  # for the errors of its shape
    keeps = mask.reshape(bias.shape) if bias.dim() == 2 else mask.reshape(-1, 1)
    bias = torch.where(keeps, 0.0 if x.bias is None else x.bias, -torch.inf).to(x.v.dtype)
    return x._replace(bias=bias)


def _per_edge(name: str, x: Tensor, adj: CSR, v: Tensor) -> Tensor:
    require_logits("attention", name, x, adj)
    x = x[..., 0] if x.dim() == 3 else x
    if x.dim() == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.dim() == 2 and x.shape[1] != v.shape[1]:
        raise ValueError(f"attention: {name} has {x.shape[1]} heads, v {v.shape[1]}")
    return x.to(v.dtype)
