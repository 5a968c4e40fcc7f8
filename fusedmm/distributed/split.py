"""Products of which a rank's own columns are added while remote rows travel, and remote columns afterwards.

    link      | remote rows of x          |
    kernels   | y = A[:, own] x[own]      | y += A[:, remote] x[remote]

So no row of x is copied beside those that come, and all of the link's time is hidden under half of a kernel's. But an
entry's place in its row's sum follows from who owns the column: the last bits are those of this cut, and no longer
those of one device. Nobody gets this without asking for it: ``derived.overlap``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import NUMBERS, ops
from fusedmm.distributed.part import Part
from fusedmm.distributed.run import bring_edges, roles
from fusedmm.matrix.compress import as_eid
from fusedmm.matrix.structure import UNEVEN, written


@dataclass(eq=False)
class Some:
    """Some columns of a rank's part: a pattern, and the places that its entries have in the part."""

    ptr: Tensor
    idx: Tensor
    plan: Tensor
    place: Tensor

    def product(self, val: Tensor, x: Tensor, algorithm: int) -> Tensor:
        """These columns' share of y."""
        none = self.ptr.new_empty(0, dtype=torch.uint8)
        y: Tensor = ops._spmm.default(
            self.ptr, self.idx, none, self.plan, val, x, NUMBERS["FMM_SUM"], algorithm, UNEVEN
        )
        return y


@dataclass(eq=False)
class Halves:
    """A part as its own columns and its remote ones, and the values of both, kept as long as nobody writes to them."""

    own: Some
    far: Some
    kept: tuple[Any, int, tuple[Tensor, Tensor]] | None = None

    @staticmethod
    def of(ptr: Tensor, idx: Tensor, cols: int) -> Halves:
        """Cuts a part that has so many columns of its own."""
        made: list[Some] = []
        for mask, first in ((idx < cols, 0), (idx >= cols, cols)):
            place = mask.nonzero()[:, 0]
            begin = torch.nn.functional.pad(mask.cumsum(0), (1, 0)).index_select(0, ptr)
            some = idx.index_select(0, place) - first
            made.append(Some(begin, some, ops._plan(begin, some), as_eid(place)))
        own, far = made
        return Halves(own, far)

    def values(self, val: Tensor, eid: Tensor) -> tuple[Tensor, Tensor]:
        """Values of own and of remote columns, of values in the order of eid, or of the part without one."""
        if val.dtype == torch.uint8:
            return val, val
        if self.kept is not None and self.kept[0]() is val and self.kept[1] == written(val):
            return self.kept[2]
        places = [eid.index_select(0, some.place) if eid.numel() else some.place for some in (self.own, self.far)]
        own, far = (val.index_select(0, place) for place in places)
        self.kept = weakref.ref(val), written(val), (own, far)
        return own, far


def may_split(part: Part, func: Any, given: Sequence[Any]) -> bool:
    """Whether a call is computed so: sums of x [n, F] in 32 or 64 bits, of whose halves nothing is rounded twice."""
    if not part.split or func is not ops._spmm.default or not part.cols.most:
        return False
    val, x, reduce = given[4:7]
    wide = x.dtype in (torch.float32, torch.float64)
    return wide and x.dim() == 2 and val.dim() < 2 and bool(reduce == NUMBERS["FMM_SUM"])


def run_split(part: Part, given: Sequence[Any]) -> Tensor:
    """``run.run`` of such a product."""
    given = list(given)
    ptr, x, algorithm = given[0], given[5], given[7]
    end = part.cols.begin([x], own=False)
    bring_edges(part, ops._spmm.default, given, roles(given, "ec"))
    if part.halves is None:
        part.halves = Halves.of(ptr, part.idx, x.shape[0])
    halves: Halves = part.halves
    own, far = halves.values(given[4], given[2])
    y = halves.own.product(own, x, algorithm)
    (came,) = end()
    return y.add_(halves.far.product(far, came, algorithm))
