"""Products of which most rows need no other rank: these are computed while remote rows travel.

    link            | remote rows of x |
    kernels         | all rows, of own columns alone                                    |
    another stream                       | outer rows again, of all their columns | copy |

A kernel skips columns outside its operand. Given a rank's own rows of x, it finds the rows that need nothing else, bit
by bit as one device does, and something for the outer rows, which are then computed anew: they have a small matrix of
their own, over those rows of x that they need. So no row of x is copied that no outer row needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.distributed.part import Part
from fusedmm.distributed.run import bring_edges, roles
from fusedmm.matrix.compress import as_eid

FEW = 8  # outer rows have at most one in so many entries, which are the work that is done twice


@dataclass(eq=False)
class Outer:
    """The rows of a part that have remote columns.

    Attributes:
        rows: their numbers.
        place: the places of their entries in the part.
        need: which own rows of x they read, before all that come.
        ptr, idx, plan: their matrix over these.
    """

    rows: Tensor
    place: Tensor
    need: Tensor
    ptr: Tensor
    idx: Tensor
    plan: Tensor


def outer_of(part: Part, func: Any, given: Sequence[Any]) -> Outer | None:
    """The outer rows of a product that is computed so; None where it is not. It is each rank's own choice, since the
    same rows travel in either case."""
    if func is not ops._spmm.default or not part.cols.most:
        return None
    ptr, x, algorithm = given[0], given[5], given[7]
    if not x.is_cuda or algorithm:  # what a caller names may trust every index
        return None
    if part.outer is None and not torch.cuda.is_current_stream_capturing():
        part.outer = _cut(ptr, part.idx, x.shape[0], part.plan) or False
    return part.outer or None


def _cut(ptr: Tensor, idx: Tensor, own: int, plan: Any) -> Outer | None:
    """The outer rows of a part that has so many columns of its own, where they are few."""
    far, most = idx >= own, idx.numel() // FEW
    if int(far.sum()) > most:
        return None
    # Clones, since a GPU leaves unique numbers in memory for all that it was given.
    rows = torch.unique_consecutive(torch.searchsorted(ptr, far.nonzero()[:, 0], right=True) - 1).clone()
    lengths = (ptr[1:] - ptr[:-1]).index_select(0, rows)
    begin = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    count = int(begin[-1])
    if count > most:
        return None
    first = ptr.index_select(0, rows) - begin[:-1]
    place = torch.arange(count, device=ptr.device) + first.repeat_interleave(lengths, output_size=count)
    col = idx.index_select(0, place)
    need = torch.unique(col[col < own]).clone()
    there = torch.searchsorted(need, col)
    col = torch.where(col < own, there, col - own + need.numel()).int()
    made = ops._plan(begin, col, plan.whole["whole_nnz"]).as_subclass(type(plan))
    made.whole = plan.whole
    return Outer(rows, as_eid(place), need, begin, col, made)


def run_inner(part: Part, given: Sequence[Any], outer: Outer, pieces: list[tuple[int, int]] | None) -> Tensor:
    """``run.run`` of such a product, whose rows travel in the pieces that all ranks have found."""
    given = list(given)
    x = given[5]
    coming = [part.cols.begin([x.narrow(1, *p)], own=False) for p in pieces or [(0, x.shape[1])]]
    bring_edges(part, ops._spmm.default, given, roles(given, "ec"))
    eid, val, numbers = given[2], given[4], given[6:]
    half = outer.ptr, outer.idx, eid[:0], outer.plan
    here, aside = torch.cuda.current_stream(), _aside(x.device)
    aside.wait_stream(here)  # and so for all who read what earlier calls left in this stream's memory
    y: Tensor = ops._spmm.default(*given)
    with torch.cuda.stream(aside):
        if val.dtype != torch.uint8:
            val = val.index_select(0, eid.index_select(0, outer.place) if eid.numel() else outer.place)
        came = torch.cat([end()[0] for end in coming], 1)
        some = torch.cat([x.index_select(0, outer.need), came])
        found = ops._spmm.default(*half, val, some, *numbers)
        # Copied here, so that what this stream's memory holds is read on no other: that of a thread beside, which
        # shares the stream, takes the memory of ``found`` as soon as this function ends.
        aside.wait_stream(here)
        y.index_copy_(0, outer.rows, found)
    here.wait_stream(aside)
    return y


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """A stream whose kernels come before those of others wherever blocks of these end."""
    return torch.cuda.Stream(device, priority=-1)
