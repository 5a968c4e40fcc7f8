"""Coordinates into compressed rows.

The library counts and places entries in one call where that is quickest (``in_one_call``); elsewhere torch sorts.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops, raise_translated
from fusedmm.matrix.arguments import require_range
from fusedmm.matrix.structure import DEFERRED, Plan, inside, numbers, own, plan_of

_compress: Any = ops._compress.default
_check_wait: Any = ops._check_wait.default

Places = tuple[str, str]  # what errors call an element of row and of col, with braces for its number

EDGE_PLACES: Places = ("edge_index[1, {}]", "edge_index[0, {}]")
TICKETS = itertools.count()  # one for each check that is DEFERRED, by which its answer is found
COUNTED = 2**21  # entries and rows up to which a thread that counts beats a sort


def eid_dtype(nnz: int) -> torch.dtype:
    return torch.int32 if nnz < 2**31 else torch.int64


def as_eid(order: Tensor) -> Tensor:
    return order.to(eid_dtype(order.numel()))


def pointers(row: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
    """Finds where each row begins among entries that order, or none, sorts by row."""
    if row.is_cpu:
        row = row.clone()  # torch reads it twice, and another thread may write to the caller's between
    if row.is_cpu and inside(row, rows):
        ptr = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")  # counting is quicker than a search for each row
        torch.cumsum(torch.bincount(row, minlength=rows), 0, out=ptr[1:])
        return ptr
    rising = row.contiguous() if order is None else row.index_select(0, order)
    bounds = torch.arange(rows + 1, dtype=rising.dtype, device=rising.device)
    return torch.searchsorted(rising, bounds)


def rows_of(ptr: Tensor, nnz: int) -> Tensor:
    """Returns the row of each entry, int32; inside, whatever unchecked pointers say."""
    if ptr.is_cpu and type(ptr) is Tensor and not torch.compiler.is_compiling():
        degree = ptr[1:] - ptr[:-1]
        if not nnz or (bool((degree >= 0).all()) and int(degree.sum()) == nnz):  # repeats must not go beyond
            row = torch.arange(degree.numel(), dtype=torch.int32, device="cpu")
            return torch.repeat_interleave(row, degree, output_size=nnz) if nnz else row[:0]
    row = torch.searchsorted(ptr[1:], torch.arange(nnz, device=ptr.device), right=True, out_int32=True)
    return row.clamp_(max=ptr.shape[0] - 2)


def keys_of(row: Tensor, col: Tensor) -> Tensor:
    """Returns row * 2^32 + col: in the order of a CSR, with the column in the lower half."""
    return torch.add(col, row, alpha=2**32)


def is_few(nnz: int, rows: int, cols: int) -> bool:
    return max(nnz, rows, cols) < COUNTED


def count_in_range(row: Tensor, col: Tensor, rows: int, cols: int, places: Places, what: Tensor) -> int:
    """Tells how many of the booleans are true; first raises where a coordinate is outside. One synchronisation."""
    low_row, high_row, low_col, high_col, found = numbers(*torch.aminmax(row), *torch.aminmax(col), what.sum())
    if low_row < 0 or high_row >= rows or low_col < 0 or high_col >= cols:
        require_inside(row, col, rows, cols, places)
    return found


def in_one_call(where: Tensor, nnz: int, rows: int, cols: int) -> bool:
    """Tells whether the library makes a structure of that size itself: on a GPU of as many entries as int32 counts."""
    return is_few(nnz, rows, cols) if where.is_cpu else max(nnz + min(rows, cols), rows, cols) < 2**31 - 1


def made_of(
    row: Tensor, col: Tensor, rows: int, cols: int, loops: bool, check: int, places: Places
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Returns (ptr, idx, eid, plan, rest) of coordinates, in one call of the library.

    eid has no elements where it would be the identity. With loops, rest begins with the numbers of the entries that are
    no self loops; it has no elements where all of them stay. Coordinates outside raise. Without a check they give None
    on the CPU and some matrix on a GPU; so they do with a check of DEFERRED plus a ticket, if rest has an element, and
    then ``is_outside`` has its answer.
    """
    try:
        made: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _compress(row, col, rows, cols, loops, check)
    except RuntimeError as error:
        if row.device.type == "meta":
            raise TypeError("edge_index must be on cpu or cuda: on meta it has no edges that could be read") from None
        if not is_refused(error):
            raise_translated(error, row.device)
        if not check:
            return None
        require_inside(row, col, rows, cols, places)
        raise_translated(error, row.device)  # another thread has mended them since
    return made


def require_inside(row: Tensor, col: Tensor, rows: int, cols: int, places: Places) -> None:
    """Raises at the first coordinate that is outside."""
    try:
        require_range(places[0], row, rows)
        require_range(places[1], col, cols)
    except ValueError as error:
        if rows == cols:
            raise
        hint = f"size is (sources, targets) = ({cols}, {rows}), shape is (rows, cols) = ({rows}, {cols})"
        raise ValueError(f"{error}; {hint}") from None


def is_outside(there: Tensor, ticket: int) -> bool:
    """Tells whether a deferred check, made where a tensor is, found a coordinate outside; waits for its answer."""
    try:
        _check_wait(there, ticket)
    except RuntimeError as error:
        if is_refused(error):
            return True
        raise_translated(error, there.device)
    return False


def is_refused(error: RuntimeError) -> bool:
    """Tells whether the library found that content is malformed, and not that memory is short."""
    return str(error).startswith("invalid: ")


def compress(
    row: Tensor, col: Tensor, rows: int, cols: int, check: int, places: Places
) -> tuple[Tensor, Tensor, Tensor, Plan, int | None]:
    """Returns (ptr, idx, eid, plan, ticket) of int64 coordinates in any order; places are what errors call a row and a
    column.

    The ticket is that of a check that was DEFERRED, or None.
    """
    nnz = row.shape[0]
    if in_one_call(row, nnz, rows, cols):
        ticket = next(TICKETS) if check == DEFERRED else 0
        made = made_of(row, col, rows, cols, False, check + ticket, places)
        if made is not None:
            ptr, idx, eid, plan, rest = made
            if not eid.shape[0] and nnz:
                eid = (
                    row.new_empty(0, dtype=torch.uint8) if check else torch.arange(nnz, dtype=torch.int32, device="cpu")
                )
            return ptr, idx, eid, plan_of(ptr, idx, cols, bool(check), plan), ticket if rest.shape[0] else None
    ptr, idx, eid = _sorted(row, col, rows, cols, bool(check), places)
    return ptr, idx, eid, plan_of(ptr, idx, cols, bool(check)), None


def _sorted(
    row: Tensor, col: Tensor, rows: int, cols: int, check: bool, places: Places
) -> tuple[Tensor, Tensor, Tensor]:
    """Does what ``compress`` does by sorting, for sizes and contents that the library does not take."""
    if check and row.numel():
        keys = keys_of(row, col)
        if not count_in_range(row, col, rows, cols, places, keys[1:] < keys[:-1]):
            eid = torch.empty(0, dtype=torch.uint8, device=row.device)
            return pointers(row, rows), own(col, torch.int32), eid
        del keys
    if row.is_cpu:
        order = torch.sort(row * cols + col, stable=True).indices
    else:  # a GPU's sort goes over the bytes of its keys: twice 32 bits are fewer, and take less memory, than 64
        order = torch.sort(col.int(), stable=True).indices
        order = order.index_select(0, torch.sort(row.int().index_select(0, order), stable=True).indices)
    return pointers(row, rows, order), col.index_select(0, order).to(torch.int32), as_eid(order)


def compress_with_loops(
    row: Tensor, col: Tensor, rows: int, cols: int, places: Places
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Returns (ptr, idx, eid, plan, others) of entries without their self loops, and with one loop at the end of each
    row.

    The loops are numbered after the other entries. others, int64, says which of the entries given those are; None
    stands for all of them.
    """
    made = made_of(row, col, rows, cols, True, True, places)
    assert made is not None
    ptr, idx, eid, plan, rest = made
    count = idx.shape[0] - min(rows, cols)
    return ptr, idx, eid, plan, None if count == row.shape[0] else rest[:count]
