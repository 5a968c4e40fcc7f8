"""Softmax over each row's entries, with gradients of any order.

On a CPU it has loops of its own (csrc/row_softmax). On CUDA the kernels of attention do it: scores of nothing
but a bias, lse from the forward pass and weights from it. With w = softmax and s = sum over a row's entries of
w * g, the gradient is w (g - s). Where it is differentiated again it is made of a softmax, an SpMM and an SDDMM;
that of lse is w.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import NUMBERS, ops, sums_dtype
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import FLOATS, require_strided
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, differentiable
from fusedmm.ops.checks import autocast, require_pattern
from fusedmm.ops.spmm_sddmm import half, run, sddmm_half, spmm_half, widened

ADDITIVE = NUMBERS["FMM_ADDITIVE"]


def edge_softmax(adj: Any, logits: Tensor) -> Tensor:
    """Normalises numbers of entries over each row: ``w[p] = exp(logits[p]) / sum of exp(logits) in p's row``.

    Args:
        adj: a ``CSR`` without values, or what ``as_csr`` takes, without values too: the formula has none. Of a
            holder that always has some (scipy's, a torch sparse tensor) give ``as_csr(adj).pattern()``; where
            they are the logits, give them as ``logits``.
        logits: float32, float64, float16 or bfloat16, [nnz] or [nnz, heads], in the caller's edge order.

    Returns:
        w, like logits. Any size of logits is fine; a row of nothing but -inf gives 0.

    Raises:
        TypeError: wrong types or devices.
        ValueError: another shape, a malformed matrix, or one with values.

    Gradient: reaches logits, of any order.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), shape=(2, 2))
        >>> fusedmm.edge_softmax(A, torch.tensor([0., 0., 5.]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    given, adj = adj, adj if type(adj) is CSR else as_csr(adj)
    require_pattern("edge_softmax", "the formula names no values", adj, given)
    require_logits("edge_softmax", "logits", logits, adj)
    logits = autocast(logits)
    if logits.dim() == 1:
        return softmax(adj, logits[:, None])[:, 0]
    return softmax(adj, logits)


def require_logits(op: str, name: str, x: Tensor, adj: CSR) -> None:
    """Requires that x is a floating tensor [nnz] or [nnz, heads] on the matrix's device.

    Raises:
        TypeError: not a tensor, a dtype without a kernel, another device.
        ValueError: another shape.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, not {type(x).__name__}")
    if x.dtype not in FLOATS:
        hint = "; torch.where(mask, 0.0, -torch.inf) makes one of a mask" if x.dtype == torch.bool else ""
        raise TypeError(f"{op}: {name} must be float32, float64, float16 or bfloat16, not {x.dtype}{hint}")
    require_strided(f"{op}: {name}", x)
    if x.device != adj.ptr.device:
        raise TypeError(f"{op}: {name} is on {x.device}, the matrix on {adj.ptr.device}")
    if x.dim() not in (1, 2) or x.shape[0] != adj.nnz:
        raise ValueError(f"{op}: {name} must be [{adj.nnz}] or [{adj.nnz}, heads], not {list(x.shape)}")


def _columns(adj: CSR) -> int:
    """Returns the number of columns. Compiled code reads it off a tensor's size, since dynamo loses the number."""
    if adj.ptr_t is not None and torch.compiler.is_compiling():
        return adj.ptr_t.shape[0] - 1
    return adj.n_cols


def over_rows(adj: CSR, x: Tensor) -> Tensor:
    """Sums x [nnz, heads] over each row's entries: [rows, heads]."""
    return spmm_half(adj, False, x, x.new_ones(1, 1, 1).expand(_columns(adj), x.shape[1], 1))[..., 0]


def to_entries(adj: CSR, x: Tensor) -> Tensor:
    """Gives every entry its row's number of x [rows, heads]: [nnz, heads]."""
    return sddmm_half(adj, False, None, x[..., None], x.new_ones(1, 1, 1).expand(_columns(adj), x.shape[1], 1))


def _nothing(adj: CSR, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns q and k for a score of nothing but the bias: zeros, expanded so that they take no memory."""
    zero, heads = logits.new_zeros(1, 1, 1), logits.shape[1]
    return zero.expand(adj.shape[0], heads, 1), zero.expand(_columns(adj), heads, 1)


def lse_and_rest(adj: CSR, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns lse [rows, heads] and its rest, the part that rounding removed from lse, in the dtype of sums."""
    (q, k), none = _nothing(adj, logits), adj.none
    operands = (*half(adj, False), q, k, k, none, logits, none, none)
    out: Any = run(ops._attention.default, q, *operands, 1.0, 1.0, 0.0, ADDITIVE, 0, 0)
    return out[1], out[2]


def weights(adj: CSR, logits: Tensor, lse: Tensor, rest: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
    """Returns exp(logits - lse - rest of the row), times keep / (1 - dropout) where there is a seed.

    Dropout has no default: of a default torch.compile makes a symbol, which a step of autograd cannot take.
    """
    (q, k), none = _nothing(adj, logits), adj.none
    given = none if seed is None else seed
    operands = (*half(adj, False), q, k, none, none, logits, none, given, lse, rest)
    found: Tensor = run(ops._attention_weights.default, q, *operands, 1.0, 1.0, dropout, ADDITIVE, 0)
    return found


class Softmax(Formula):
    """Computes w = softmax of logits [nnz, heads]; a call is the matrix."""

    @staticmethod
    def run(adj: CSR, logits: Tensor) -> Tensor:
        if logits.is_cpu:
            found: Tensor = run(ops._row_softmax.default, logits, *half(adj, False), logits)
            return found
        return weights(adj, logits, *lse_and_rest(adj, logits), None, 0.0)

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        """A gradient is made of w, which is computed again from the logits where it was rounded to 16 bits."""
        return (output if output.dtype == sums_dtype(output) else operands[0],), None

    @staticmethod
    def backward(adj: CSR, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        (w,) = saved
        assert w is not None
        dtype = w.dtype
        w = w if dtype == sums_dtype(w) else softmax(adj, *widened(w))
        (g,) = widened(g)
        return (softmax_back(adj, w, g).to(dtype),)

    @staticmethod
    def jvp(adj: CSR, operands: Operands, output: Tensor, tangents: Operands) -> Values:
        (t,), (saved, note) = tangents, Softmax.saved((True,), operands, output)
        assert t is not None
        return Softmax.backward(adj, saved, note, (True,), t)[0]  # the matrix of its derivatives is symmetric

    @staticmethod
    def vmap(adj: CSR, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        return softmax(adj, _flat(operands[0], dims[0])).unflatten(1, (batch, -1)), 1


class SoftmaxBack(Formula):
    """w (g - s), where s sums w g over each row's entries; a call is the matrix. All are in the dtype of sums."""

    @staticmethod
    def run(adj: CSR, w: Tensor, g: Tensor) -> Tensor:
        if w.is_cpu:
            found: Tensor = run(ops._row_softmax_back.default, w, *half(adj, False), g, w)
            return found
        return w * (g - _spread(adj, w * g))

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(adj: CSR, saved: Operands, note: Any, needs: Needs, u: Tensor) -> Operands:
        w, g = saved
        assert w is not None and g is not None
        gw = u * (g - _spread(adj, w * g)) - g * _spread(adj, w * u) if needs[0] else None
        return gw, softmax_back(adj, w, u) if needs[1] else None

    @staticmethod
    def jvp(adj: CSR, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        (w, g), (tw, tg) = operands, tangents
        assert w is not None and g is not None
        along = torch.zeros_like(w) if tg is None else softmax_back(adj, w, tg)
        return along if tw is None else along + tw * (g - _spread(adj, w * g)) - w * _spread(adj, tw * g)

    @staticmethod
    def vmap(adj: CSR, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        both = [t.unsqueeze(1) if d is None else t.movedim(d, 1) for t, d in zip(operands, dims, strict=True)]
        w, g = (t.expand(-1, batch, -1).flatten(1) for t in both)
        return softmax_back(adj, w, g).unflatten(1, (batch, -1)), 1


class LogSumExp(Formula):
    """Computes lse of logits [nnz, heads]; a call is the matrix."""

    @staticmethod
    def run(adj: CSR, logits: Tensor) -> Tensor:
        return lse_and_rest(adj, logits)[0]

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(adj: CSR, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        (logits,) = saved
        assert logits is not None
        return ((softmax(adj, *widened(logits)) * to_entries(adj, g)).to(logits.dtype),)

    @staticmethod
    def jvp(adj: CSR, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        logits, t = widened(operands[0], tangents[0])  # type: ignore[arg-type]
        return over_rows(adj, softmax(adj, logits) * t)

    @staticmethod
    def vmap(adj: CSR, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        return log_sum_exp(adj, _flat(operands[0], dims[0])).unflatten(1, (batch, -1)), 1


def _spread(adj: CSR, x: Tensor) -> Tensor:
    """Gives every entry the sum of x over the entries of its row."""
    return to_entries(adj, over_rows(adj, x))


def _flat(logits: Tensor, dim: int | None) -> Tensor:
    """Logits [nnz, heads] of each sample, the batch at dim, as [nnz, batch * heads]."""
    assert dim is not None  # of a function of one operand, it is this one that has the batch
    return logits.movedim(dim, 1).flatten(1)


softmax = differentiable(Softmax)  # edge_softmax of logits [nnz, heads]
softmax_back = differentiable(SoftmaxBack)  # its gradient, of the softmax and of the result's gradient
log_sum_exp = differentiable(LogSumExp)  # [rows, heads] of logits [nnz, heads]; -inf for a row without entries
