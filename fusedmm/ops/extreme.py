"""SpMM with max or min, whose gradient goes to the entries that reached the extreme, in even shares.

With M[p,c] = 1 where entry p = (i, j) reached y[i,c], three sums are each other's derivatives, so that
gradients of any order exist (csrc/spmm/extreme.c):

    rows (w, z)[i] = sum over row i's p of     w[p] M[p] z[j]
    cols (w, g)[j] = sum over column j's p of  w[p] M[p] g[i]
    edges(z, g)[p] = sum over channels of      M[p] z[j] g[i]

y = max_p val[p] x[j]:  share = gy / rows(1, 1), which "counts" keeps in the dtype of sums;
                        gx = cols(val, share);  gval = edges(x, share).
M itself counts as constant: the extreme has no derivative where another entry becomes the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fusedmm._lib import numbers_of, ops
from fusedmm.matrix.base import Matrix
from fusedmm.ops.autograd import Formula, Needs, Operands, Values, added, differentiable, flat_operand, flat_values
from fusedmm.ops.spmm_sddmm import SpMM, as_channels, half, kind_of, like_values, run, serves_all

ROWS, COLS, EDGES, COUNTS = numbers_of("FMM_EXTREME_", "rows", "cols", "edges", "counts").values()


Reached = tuple[Matrix, bool, Values, Tensor, Tensor]  # adj, transposed, val, x, y: what M is made of


def extreme(adj: Matrix, transposed: bool, val: Values, x: Tensor, reduce: int, algorithm: int) -> Tensor:
    """Computes y[i] = max or min over row i's entries of val * x[j]; 0 for an empty row."""
    return _extreme((adj, transposed, reduce, algorithm), val, x)


def extreme_sums(m: Reached, form: int, weight: Values = None, z: Values = None, g: Values = None) -> Tensor:
    """Computes one of the three sums, differentiable in weight, z and g; or the counts, which are constant."""
    adj, transposed, *tensors = m
    return _extreme_sums((adj, transposed, form), *tensors, weight, z, g)


def _counts(m: Reached) -> Tensor:
    """Tells how many entries reached each extreme, one where none did."""
    return extreme_sums(m, COUNTS).clamp_(min=1)


def _edges(m: Reached, weight: Tensor, z: Values, g: Values) -> Tensor:
    """Returns the form "edges" like weight; heads that share weights are channels of one sum where they share values
    too."""
    assert z is not None and g is not None
    adj, transposed, val, x, y = m
    kind = kind_of(weight)
    if serves_all(kind, z) and (val is None or serves_all(kind_of(val), z)):
        x, y, z, g = as_channels(x, y, z, g)
        m = adj, transposed, None if val is None else val.reshape(-1), x, y
    return like_values(extreme_sums(m, EDGES, None, z, g), kind)


class Extreme(Formula):
    """Computes y, with its gradient in shares; a call is (adj, transposed, reduce, algorithm)."""

    run = SpMM.run

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return (*operands, output), None

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        val, x, _ = saved
        m = _reached(call, saved)
        share = (g / _counts(m)).to(g.dtype)
        gval = _edges(m, val, x, share) if needs[0] and val is not None else None
        return gval, extreme_sums(m, COLS, val, None, share) if needs[1] else None

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Tensor:
        """Returns the mean of the tangents of the entries that reached the extreme."""
        (val, x), (dval, dx), parts = operands, tangents, []
        m = _reached(call, (val, x, output))
        if dx is not None:
            parts.append(extreme_sums(m, ROWS, val, dx))
        if dval is not None:
            parts.append(extreme_sums(m, ROWS, dval, x))
        return (added(parts) / _counts(m)).to(output.dtype)

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        val, x = operands
        x, heads = flat_operand(x, dims[1], batch)
        y = _extreme(call, flat_values(val, dims[0], batch, heads), x)
        return y.reshape(y.shape[0], batch, *([heads] if heads else []), y.shape[-1]), 1


def _reached(call: Any, tensors: Operands) -> Reached:
    val, x, y = (None if t is None else t.detach() for t in tensors)
    assert x is not None and y is not None
    return call[0], call[1], val, x, y


class ExtremeSums(Formula):
    """Computes one of the three sums; its derivatives are the other two. A call is (adj, transposed, form).

    It is linear in each of weight, z and g; val, x and y count as constant.
    """

    @staticmethod
    def run(call: Any, val: Values, x: Tensor, y: Tensor, weight: Values, z: Values, g: Values) -> Tensor:
        adj, transposed, form = call
        ptr, idx, eid, plan = half(adj, not transposed if form == COLS else transposed)
        val, weight, z, g = (adj.none if t is None else t for t in (val, weight, z, g))
        result: Tensor = run(ops._extreme.default, x, ptr, idx, eid, plan, val, weight, x, y, z, g, form)
        return result

    @staticmethod
    def saved(needs: Needs, operands: Operands, output: Tensor) -> tuple[Operands, Any]:
        return operands, None

    @staticmethod
    def backward(call: Any, saved: Operands, note: Any, needs: Needs, g: Tensor) -> Operands:
        adj, transposed, form = call
        if form == COUNTS:
            return (None,) * 6
        val, x, y, weight, z, up = saved
        assert x is not None and y is not None
        m = adj, transposed, val, x, y
        gweight = gz = gup = None
        if needs[3] and weight is not None:
            gweight = _edges(m, weight, g if form == COLS else z, g if form == ROWS else up)
        if needs[4]:
            gz = extreme_sums(m, COLS, weight if form == ROWS else g, None, g if form == ROWS else up)
        if needs[5]:
            gup = extreme_sums(m, ROWS, weight if form == COLS else g, g if form == COLS else z, None)
        return None, None, None, gweight, gz, gup

    @staticmethod
    def jvp(call: Any, operands: Operands, output: Tensor, tangents: Operands) -> Values:
        constant, linear, parts = operands[:3], operands[3:], []
        for k, t in enumerate(tangents[3:]):
            if t is not None:
                parts.append(_extreme_sums(call, *constant, *linear[:k], t, *linear[k + 1 :]))
        return added(parts) if parts else None

    @staticmethod
    def vmap(call: Any, batch: int, dims: Sequence[int | None], *operands: Any) -> tuple[Tensor, int]:
        val, x, y, weight, z, g = operands
        x, heads = flat_operand(x, dims[1], batch)
        y, _ = flat_operand(y, dims[2], batch)
        z, g = (None if t is None else flat_operand(t, d, batch)[0] for t, d in ((z, dims[4]), (g, dims[5])))
        val, weight = (flat_values(t, d, batch, heads) for t, d in ((val, dims[0]), (weight, dims[3])))
        found = _extreme_sums(call, val, x, y, weight, z, g)
        behind = [] if call[2] == EDGES else [found.shape[-1]]
        return found.reshape(found.shape[0], batch, *([heads] if heads else []), *behind), 1


_extreme, _extreme_sums = differentiable(Extreme), differentiable(ExtremeSums)
