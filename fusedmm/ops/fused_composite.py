"""fused, made of differentiable operations, with what is computed on the way in memory.

Gradients of maxima, second derivatives and torch.func go through it. It stores one score per edge where it is sddmm and
spmm, and several numbers per edge and channel where it is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fusedmm import reference
from fusedmm._lib import ACTIVATIONS, MESSAGES, REDUCTIONS, SCORES
from fusedmm.edge.parse import Expression, parse
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, from_rows
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, added, differentiable
from fusedmm.ops.extreme import extreme
from fusedmm.ops.fused_extreme import Gathered
from fusedmm.ops.spmm_sddmm import sddmm_half, spmm_half, widened


class Spec(NamedTuple):
    """Says what to compute, and by which algorithm."""

    score: str
    edge: str
    message: str
    activation: str | None
    reduce: str
    algorithm: int

    def kinds(self) -> tuple[int, int, int]:
        return SCORES[self.score], MESSAGES[self.message], ACTIVATIONS[self.activation]

    def is_sddmm_spmm(self) -> bool:
        """Tells whether the composite is these two operators, with one number per edge and head between them."""
        return self.score in ("dot", "none") and self.message == "scale" and self.activation is None


class Edge(Formula):
    """Computes w(s, a), whose derivatives are expressions again: the ones the kernels compute. A call is the
    expression."""

    @staticmethod
    def run(expression: Expression, s: Tensor, a: Tensor) -> Tensor:
        w = expression.torch(s, a)
        # The functions s and a give back what they were given; torch takes neither that nor a view of it.
        return w.clone() if expression.graph.nodes[expression.root].op in ("s", "a") else w

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(expression: Expression, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        return tuple(
            g * edge_function(expression.derivative(name), *saved) if needed else None
            for name, needed in zip("sa", needs, strict=True)
        )

    @staticmethod
    def jvp(expression: Expression, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        return added(
            [
                t * edge_function(expression.derivative(name), *operands)
                for name, t in zip("sa", tangents, strict=True)
                if t is not None
            ]
        )

    @staticmethod
    def vmap(expression: Expression, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        s, a = (t if d is None else t.movedim(d, 0) for t, d in zip(operands, dims, strict=True))
        return edge_function(expression, s, a), 0


edge_function = differentiable(Edge)


def composite(adj: CSR, val: Values, x: Tensor, y: Tensor, z: Tensor, spec: Spec) -> Tensor:
    """Computes the same by differentiable operations, with one score per edge in memory; in the dtype of sums
    throughout."""
    first, second, third = widened(x, y, z)
    return wide_composite(adj, val, first, second, third, spec).to(x.dtype)


def wide_composite(adj: CSR, val: Values, x: Tensor, y: Tensor, z: Tensor, spec: Spec) -> Tensor:
    """Computes the composite of operands that are in the dtype of sums, which its result is then in, too."""

    def weight(s: Tensor, a: Tensor) -> Tensor:
        return edge_function(parse(spec.edge), s, a.expand_as(s))

    if spec.is_sddmm_spmm():
        if spec.score == "dot":
            s = sddmm_half(adj, False, None, x, y)
        else:
            s = x.new_ones(adj.nnz, *x.shape[1:-1])
        a = s.new_ones(()) if val is None else val.to(s.dtype).reshape(*val.shape, *[1] * (s.dim() - val.dim()))
        compute = spmm_half if spec.reduce in ("sum", "mean") else extreme
        return compute(adj, False, weight(s, a), z, REDUCTIONS[spec.reduce], 0)
    given: Any = x, y, z
    if type(adj) is not CSR:  # whose columns may be another rank's: products bring them
        sides = from_rows(adj), from_columns(adj), from_columns(adj)
        given = (Gathered(spmm_half(m, False, None, t)) for m, t in zip(sides, given, strict=True))
        parted: Any = adj
        adj = parted.local()
    with_val = adj.pattern() if val is None else adj.with_values(val)
    x, y, z = given
    return reference.fused(with_val, x, y, z, weight, spec.score, spec.message, spec.activation, spec.reduce)
