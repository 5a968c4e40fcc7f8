"""The diagonal: reading it, and giving a graph self loops or taking them away."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusedmm.matrix import normalize
from fusedmm.matrix.algebra.entries import NOT_SEEN, kept, numbers_of, ones_at, reduced, values_of
from fusedmm.matrix.arguments import FLOATS, one_fill, require_number
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.structure import derived, lasting, was_measured

ONE = 1.0  # of loops without a weight; another object than a 1.0 that is given


class Loops(Matrix):
    """``add_self_loops``, ``remove_self_loops``, ``set_self_loops`` and ``diag``."""

    def add_self_loops(self: M, fill_value: Any = ONE, *, fill: Any = None) -> M:
        """With one self loop per node; see ``fusedmm.matrix.normalize.add_self_loops``. ``fill`` is ``fill_value``."""
        return normalize.add_self_loops(self, one_fill("add_self_loops", fill_value, fill, ONE))

    def remove_self_loops(self: M) -> M:
        """A square matrix without the entries of its diagonal.

        Returns:
            CSR whose entries, and so its values, are those of A that are no loops, in A's edge order.

        Raises:
            ValueError: a matrix that is not square.

        Gradient: reaches the values. The structure is made once for each of A's.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]), torch.tensor([1., 2., 3.]))
            >>> A.remove_self_loops().to_dense()
            tensor([[0., 1.],
                    [3., 0.]])
        """
        normalize.require_square(self)
        pattern, number = derived(self, "no loops", NOT_SEEN, _without)
        return pattern if self.val is None else pattern.with_values(self.val.index_select(0, number))

    def set_self_loops(self: M, fill_value: Any = ONE, *, fill: Any = None) -> M:
        """Gives every node of a square matrix one self loop of this weight, whatever loops it had.

        Args:
            fill_value: a number, or a tensor [nodes] or [nodes, heads] like the values, which gradients reach.
            fill: another name of it.

        Returns:
            CSR whose entries are those of A that are no loops, in A's edge order, and then the loops of nodes 0, 1, ...
            A pattern stays a pattern where ``fill_value`` is the number 1, else it gets values of float32, or of the
            tensor's dtype.

        Raises:
            TypeError: neither a number nor a floating tensor on A's device.
            ValueError: a matrix that is not square, another number of loops, a number that the values' dtype lacks.

        Gradient: reaches the values and ``fill_value``.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([5., 7.]), (2, 2))
            >>> A.set_self_loops(2.0).to_dense()
            tensor([[2., 5.],
                    [0., 2.]])
        """
        normalize.require_square(self)
        weight = one_fill("set_self_loops", fill_value, fill, ONE)
        looped = normalize.with_loops(self)
        if self.val is None and isinstance(weight, Real) and weight == 1:
            return looped.pattern
        val = values_of(self)
        if isinstance(weight, Tensor):
            val = val.to(weight.dtype) if self.val is None else val
            loops = _loop_weights(weight, val, self.shape[0])
        else:
            number = require_number("set_self_loops: fill_value", weight, val.dtype)
            loops = val.new_full((self.shape[0], *val.shape[1:]), number)
        others = val if looped.others is None else val.index_select(0, looped.others)
        return looped.pattern.with_values(torch.cat([others, loops]))

    def diag(self) -> Tensor:
        """The diagonal as a dense vector [min(rows, cols)], or [min(rows, cols), heads].

        Absent entries are 0, repeated ones add; a pattern's entries are float32 ones. Gradients reach the values.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 2]), torch.tensor([0, 1]), torch.tensor([5., 7.]), (3, 3))
            >>> A.diag()
            tensor([5., 0., 0.])
        """
        at = derived(self, "diagonal", NOT_SEEN, _diagonal)
        return reduced(at, False, None, values_of(self), "sum")[: min(self.shape)]


def _loop_weights(weight: Tensor, val: Tensor, nodes: int) -> Tensor:
    if weight.dtype not in FLOATS or weight.device != val.device:
        raise TypeError(
            f"set_self_loops: fill_value must be floating-point on {val.device}, not {weight.dtype} on {weight.device}"
        )
    if weight.shape not in ((nodes,), (nodes, *val.shape[1:])):
        shapes = f"[{nodes}]" if val.dim() == 1 else f"[{nodes}] or [{nodes}, {val.shape[1]}]"
        raise ValueError(f"set_self_loops: fill_value must be {shapes}, not {list(weight.shape)}")
    weight = weight[:, None].expand(-1, val.shape[1]) if weight.dim() < val.dim() else weight
    return weight.to(val.dtype)


@lasting
def _without(adj: M) -> tuple[M, Tensor]:
    stays = adj.idx != rows_of(adj.ptr, adj.nnz)
    ptr, eid, number = kept(adj, stays)
    eid = eid if adj.eid.numel() else adj.none
    return type(adj).make(ptr, adj.idx[stays], eid, None, adj.n_cols, False, was_measured(adj)), number


@lasting
def _diagonal(adj: M) -> M:
    """[rows, nnz]: adds up the entries of the diagonal."""
    loop = adj.idx == rows_of(adj.ptr, adj.nnz)
    return ones_at(adj, pad(loop.cumsum(0), (1, 0))[adj.ptr.clamp(0, adj.nnz)], numbers_of(adj)[loop])
