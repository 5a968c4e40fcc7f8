"""The softmax over each row's entries and its logarithm's sum, with gradients of any order.

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
from fusedmm.matrix.base import Matrix
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, differentiable
from fusedmm.ops.spmm_sddmm import half, run, sddmm_half, spmm_half, widened

ADDITIVE = NUMBERS["FMM_ADDITIVE"]


def _columns(adj: Matrix) -> int:
    """Returns the number of columns. Compiled code reads it off a tensor's size, since dynamo loses the number."""
    if adj.ptr_t is not None and torch.compiler.is_compiling():
        return adj.ptr_t.shape[0] - 1
    return adj.n_cols


def over_rows(adj: Matrix, x: Tensor) -> Tensor:
    """Sums x [nnz, heads] over each row's entries: [rows, heads]."""
    return spmm_half(adj, False, x, x.new_ones(1, 1, 1).expand(_columns(adj), x.shape[1], 1))[..., 0]


def to_entries(adj: Matrix, x: Tensor) -> Tensor:
    """Gives every entry its row's number of x [rows, heads]: [nnz, heads]."""
    return sddmm_half(adj, False, None, x[..., None], x.new_ones(1, 1, 1).expand(_columns(adj), x.shape[1], 1))


def _nothing(adj: Matrix, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns q and k for a score of nothing but the bias: zeros, expanded so that they take no memory."""
    zero, heads = logits.new_zeros(1, 1, 1), logits.shape[1]
    return zero.expand(adj.shape[0], heads, 1), zero.expand(_columns(adj), heads, 1)


def lse_and_rest(adj: Matrix, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns lse [rows, heads] and its rest, the part that rounding removed from lse, in the dtype of sums."""
    (q, k), none = _nothing(adj, logits), adj.none
    operands = (*half(adj, False), q, k, k, none, logits, none, none)
    out: Any = run(ops._attention.default, q, *operands, 1.0, 1.0, 0.0, ADDITIVE, 0, 0)
    return out[1], out[2]


def weights(adj: Matrix, logits: Tensor, lse: Tensor, rest: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
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
    def run(adj: Matrix, logits: Tensor) -> Tensor:
        if logits.is_cpu:
            found: Tensor = run(ops._row_softmax.default, logits, *half(adj, False), logits)
            return found
        return weights(adj, logits, *lse_and_rest(adj, logits), None, 0.0)

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        """A gradient is made of w, which is computed again from the logits where it was rounded to 16 bits."""
        return (output if output.dtype == sums_dtype(output) else operands[0],), None

    @staticmethod
    def backward(adj: Matrix, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        (w,) = saved
        assert w is not None
        dtype = w.dtype
        w = w if dtype == sums_dtype(w) else softmax(adj, *widened(w))
        (g,) = widened(g)
        return (softmax_back(adj, w, g).to(dtype),)

    @staticmethod
    def jvp(adj: Matrix, operands: Operands, output: Tensor, tangents: Operands) -> Values:
        (t,), (saved, note) = tangents, Softmax.saved((True,), operands, output)
        assert t is not None
        return Softmax.backward(adj, saved, note, (True,), t)[0]  # the matrix of its derivatives is symmetric

    @staticmethod
    def vmap(adj: Matrix, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        return softmax(adj, _flat(operands[0], dims[0])).unflatten(1, (batch, -1)), 1


class SoftmaxBack(Formula):
    """w (g - s), where s sums w g over each row's entries; a call is the matrix. All are in the dtype of sums."""

    @staticmethod
    def run(adj: Matrix, w: Tensor, g: Tensor) -> Tensor:
        if w.is_cpu:
            found: Tensor = run(ops._row_softmax_back.default, w, *half(adj, False), g, w)
            return found
        return w * (g - _spread(adj, w * g))

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(adj: Matrix, saved: Operands, note: Any, needs: Needs, u: Tensor) -> Operands:
        w, g = saved
        assert w is not None and g is not None
        gw = u * (g - _spread(adj, w * g)) - g * _spread(adj, w * u) if needs[0] else None
        return gw, softmax_back(adj, w, u) if needs[1] else None

    @staticmethod
    def jvp(adj: Matrix, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        (w, g), (tw, tg) = operands, tangents
        assert w is not None and g is not None
        along = torch.zeros_like(w) if tg is None else softmax_back(adj, w, tg)
        return along if tw is None else along + tw * (g - _spread(adj, w * g)) - w * _spread(adj, tw * g)

    @staticmethod
    def vmap(adj: Matrix, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        both = [t.unsqueeze(1) if d is None else t.movedim(d, 1) for t, d in zip(operands, dims, strict=True)]
        w, g = (t.expand(-1, batch, -1).flatten(1) for t in both)
        return softmax_back(adj, w, g).unflatten(1, (batch, -1)), 1


class LogSumExp(Formula):
    """Computes lse of logits [nnz, heads]; a call is the matrix."""

    @staticmethod
    def run(adj: Matrix, logits: Tensor) -> Tensor:
        return lse_and_rest(adj, logits)[0]

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(adj: Matrix, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        (logits,) = saved
        assert logits is not None
        return ((softmax(adj, *widened(logits)) * to_entries(adj, g)).to(logits.dtype),)

    @staticmethod
    def jvp(adj: Matrix, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        logits, t = widened(operands[0], tangents[0])  # type: ignore[arg-type]
        return over_rows(adj, softmax(adj, logits) * t)

    @staticmethod
    def vmap(adj: Matrix, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        return log_sum_exp(adj, _flat(operands[0], dims[0])).unflatten(1, (batch, -1)), 1


def _spread(adj: Matrix, x: Tensor) -> Tensor:
    """Gives every entry the sum of x over the entries of its row."""
    return to_entries(adj, over_rows(adj, x))


def _flat(logits: Tensor, dim: int | None) -> Tensor:
    """Logits [nnz, heads] of each sample, the batch at dim, as [nnz, batch * heads]."""
    assert dim is not None  # of a function of one operand, it is this one that has the batch
    return logits.movedim(dim, 1).flatten(1)


softmax = differentiable(Softmax)  # edge_softmax of logits [nnz, heads]
softmax_back = differentiable(SoftmaxBack)  # its gradient, of the softmax and of the result's gradient
log_sum_exp = differentiable(LogSumExp)  # [rows, heads] of logits [nnz, heads]; -inf for a row without entries
