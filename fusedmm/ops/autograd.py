"""The forms in which torch wants to be told of derivatives, all made of one formula.

torch has three, and each is the best somewhere:

- The classic form, ``forward(ctx, ...)`` of ``autograd.Function``, costs the host the least per call.
- The form with ``setup_context`` takes half as long again. torch.func and forward mode need it, with rules for a batch
  and for tangents, so it is chosen only while one of them is at work.
- ``register_autograd`` belongs to operators that are called as ``torch.ops.fusedmm.spmm`` is: by exported programs and
  by C++, which know tensors and numbers alone. It costs the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._torch_compat import are_transforms_active, in_forward_mode, plain_apply
from fusedmm.matrix.base import Matrix
from fusedmm.matrix.structure import Half
from fusedmm.ops.checks import needs_rules

Values = Tensor | None
Operands = Sequence[Values]
Needs = Sequence[bool]


class Formula:
    """Defines an operator with its derivatives: a subclass gives each of these functions and is never instantiated.

    ``call`` is everything that is no operand, such as the matrix; operands are tensors, or None where one is absent.
    """

    run: Callable[..., Tensor]  # (call, *operands) -> the result, without a gradient

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        """Returns the tensors that ``backward`` reads, and a note for it which holds none; the rest may be freed or
        changed."""
        raise NotImplementedError

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        """Returns the gradients of the operands that need one, each differentiable itself; g is that of the result."""
        raise NotImplementedError

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Values:
        """Returns the tangent of the result."""
        raise NotImplementedError

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        """Returns the results of a whole batch, which lies in dimension dims[k] of operand k, and the dimension of
        theirs."""
        raise NotImplementedError


class Step(torch.autograd.Function):
    """The base of autograd functions in the classic form, which are called only while no transform is at work."""

    apply = plain_apply


class Held:
    """Holds a call that torch.func leaves alone: in a tuple it would find the matrix, and wrap the matrix's tensors."""

    def __init__(self, call: Any) -> None:
        self.call = call


def differentiable(formula: type[Formula]) -> Callable[..., Tensor]:
    """Returns the operator of a formula as a function of (call, *operands), with gradients of any order."""
    run, saved, gradients = formula.run, formula.saved, formula.backward

    class Classic(Step):
        @staticmethod
        def forward(ctx: Any, call: Any, *operands: Any) -> Tensor:
            output = run(call, *operands)
            tensors, ctx.note = saved(ctx.needs_input_grad[1:], operands, output)
            ctx.save_for_backward(*tensors)
            ctx.call = call
            return output

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, *gradients(ctx.call, ctx.saved_tensors, ctx.note, ctx.needs_input_grad[1:], g)

    class Functional(torch.autograd.Function):
        @staticmethod
        def forward(held: Held, *operands: Any) -> Tensor:
            return run(held.call, *operands)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            held, *operands = inputs
            tensors, ctx.note = saved(ctx.needs_input_grad[1:], operands, output)
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*operands, output)
            ctx.call = held.call

        backward = Classic.backward

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Values:
            *operands, output = ctx.saved_tensors
            return formula.jvp(ctx.call, operands, output, tangents[1:])

        @staticmethod
        def vmap(info: Any, in_dims: Any, held: Held, *operands: Any) -> tuple[Tensor, int]:
            return formula.vmap(held.call, info.batch_size, in_dims[1:], *operands)

    def apply(call: Any, *operands: Any) -> Tensor:
        if (are_transforms_active() or in_forward_mode()) and needs_rules(*operands):  # a call saved, nearly always
            return Functional.apply(Held(call), *operands)
        if torch.is_grad_enabled():
            for t in operands:
                if t is not None and t.requires_grad:
                    return Classic.apply(call, *operands)
        return run(call, *operands)

    return apply


class Given(Matrix):
    """Stands for a matrix of the tensors that a call of ``torch.ops.fusedmm`` was given: without a transpose, four are
    empty."""

    def transpose_half(self) -> Half:
        """Returns (ptr, idx, eid, plan) of the transpose.

        Raises:
            RuntimeError: they are not there.
        """
        if not self.ptr_t.numel():  # type: ignore[union-attr]
            raise RuntimeError("fusedmm: a gradient needs the transpose: give ptr_t, idx_t, eid_t and plan_t")
        return super().transpose_half()


def register(name: str, formula: type[Formula], operands: int) -> None:
    """Registers a formula's gradients for ``torch.ops.fusedmm``'s operator of that name.

    Its arguments are ptr, idx, eid and plan of a matrix and of its transpose, then so many operands, then the numbers
    that end the formula's ``call``, then what the rows of the two are like. The last operand has a row for each column
    of the matrix.
    """
    behind = 8 + operands

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors, ctx.note = formula.saved(ctx.needs_input_grad[8:behind], inputs[8:behind], output)
        ctx.save_for_backward(*inputs[:8], *tensors)
        *ctx.numbers, rows_are, rows_are_t = inputs[behind:]
        ctx.rows_are = rows_are, rows_are_t

    def backward(ctx: Any, g: Tensor) -> Operands:
        ptr, idx, eid, plan, *transposed = ctx.saved_tensors[:8]
        tensors = ctx.saved_tensors[8:]
        cols = transposed[0].shape[0] - 1 if tensors[-1] is None else tensors[-1].shape[0]
        adj = Given(ptr, idx, None, eid, plan, ptr.new_empty(0, dtype=torch.uint8), cols, *transposed, *ctx.rows_are)
        needs = ctx.needs_input_grad[8:behind]
        found = formula.backward((adj, False, *ctx.numbers), tensors, ctx.note, needs, g)
        return *[None] * 8, *found, *[None] * len((*ctx.numbers, *ctx.rows_are))

    torch.library.register_autograd(f"fusedmm::{name}", backward, setup_context=setup_context)


# ---- a batch of torch.func's as more heads of one call ----


def _batch_behind(t: Tensor, dim: int | None, batch: int) -> Tensor:
    """Returns [n, ...] with a batch at dim (or none) as [n, batch, ...]."""
    return t.movedim(dim, 1) if dim is not None else t.unsqueeze(1).expand(t.shape[0], batch, *t.shape[1:])


def flat_operand(x: Tensor, dim: int | None, batch: int) -> tuple[Tensor, int]:
    """Returns an operand [n, F] or [n, H, F] of each sample as [n, batch * H, F], and H (0 where it had no heads)."""
    x = _batch_behind(x, dim, batch)
    heads = x.shape[2] if x.dim() == 4 else 0
    return x.reshape(x.shape[0], -1, x.shape[-1]), heads


def flat_values(val: Values, dim: int | None, batch: int, heads: int) -> Values:
    """Returns values as [nnz, batch * heads]; [nnz] where one value serves all."""
    if val is None or (dim is None and val.dim() == 1):
        return val
    val = _batch_behind(val, dim, batch)
    if val.dim() == 2:
        val = val.unsqueeze(2).expand(*val.shape, max(heads, 1))
    elif val.shape[2] == 1:
        val = val.expand(*val.shape[:2], max(heads, 1))
    return val.reshape(val.shape[0], -1)


def added(parts: list[Tensor]) -> Tensor:
    """Returns the sum of the parts of a tangent, of which there is at least one."""
    return sum(parts[1:], parts[0])
