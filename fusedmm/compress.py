"""Coordinates as compressed rows, and the transpose: sorts, counts and searches, each where it is the quickest."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.structure import Half, inside, lasting, numbers, own, plan_of, require_range

Places = tuple[str, str]  # what errors call an element of row and of col, with braces for its number

EDGE_PLACES: Places = ("edge_index[1, {}]", "edge_index[0, {}]")
COUNTED = 2**21  # entries and rows up to which a thread that counts beats a sort, on a GPU fewer calls beat fewer bytes


def eid_dtype(nnz: int) -> torch.dtype:
    return torch.int32 if nnz < 2**31 else torch.int64


def as_eid(order: Tensor) -> Tensor:
    return order.to(eid_dtype(order.numel()))


def pointers(row: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
    """Where each row begins among entries that order, or none, sorts by row."""
    if row.is_cpu and inside(row, rows):
        ptr = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")  # counting is quicker than a search for each row
        torch.cumsum(torch.bincount(row, minlength=rows), 0, out=ptr[1:])
        return ptr
    rising = row.contiguous() if order is None else row.index_select(0, order)
    bounds = torch.arange(rows + 1, dtype=rising.dtype, device=rising.device)
    return torch.searchsorted(rising, bounds)


def rows_of(ptr: Tensor, nnz: int) -> Tensor:
    """The row of each entry, int32."""
    if ptr.is_cpu:
        row = torch.arange(ptr.numel() - 1, dtype=torch.int32, device="cpu")
        return torch.repeat_interleave(row, ptr[1:] - ptr[:-1], output_size=nnz)
    # A search writes int32 at once, and stays inside whatever unchecked pointers say.
    return torch.searchsorted(ptr[1:], torch.arange(nnz, device=ptr.device), right=True, out_int32=True)


def keys_of(row: Tensor, col: Tensor) -> Tensor:
    """row * 2^32 + col: in the order of a CSR, with the column in the lower half."""
    return torch.add(col, row, alpha=2**32)


def by_key(keys: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ptr, the lower halves of the keys, order) of fewer than COUNTED rows, in one sort."""
    keys, order = torch.sort(keys, stable=True)
    bounds = torch.arange(0, rows * 2**32 + 1, 2**32, device=keys.device)
    return torch.searchsorted(keys, bounds), keys.int(), as_eid(order)


def is_few(nnz: int, rows: int, cols: int) -> bool:
    return max(nnz, rows, cols) < COUNTED


def count_in_range(row: Tensor, col: Tensor, rows: int, cols: int, places: Places, what: Tensor) -> int:
    """How many of the booleans are true; first raises where a coordinate is outside. One synchronisation."""
    low_row, high_row, low_col, high_col, found = numbers(*torch.aminmax(row), *torch.aminmax(col), what.sum())
    if low_row < 0 or high_row >= rows or low_col < 0 or high_col >= cols:
        require_range(places[0], row, rows)
        require_range(places[1], col, cols)
    return found


def compress(
    row: Tensor, col: Tensor, rows: int, cols: int, check: bool, places: Places
) -> tuple[Tensor, Tensor, Tensor]:
    """(ptr, idx, eid) of int64 coordinates in any order; places are what errors call a row and a column."""
    keys = None
    if check and row.numel():
        keys = keys_of(row, col)
        if not count_in_range(row, col, rows, cols, places, keys[1:] < keys[:-1]):
            return pointers(row, rows), own(col, torch.int32), torch.empty(0, dtype=torch.uint8, device=row.device)
    few = is_few(row.numel(), rows, cols)
    if few and row.is_cpu and (check or (inside(row, rows) and inside(col, cols))):
        by_col = ops._group(col.contiguous(), col.new_empty(0, dtype=torch.int32), cols)[1]
        ptr, order = ops._group(row.contiguous(), by_col, rows)
        return ptr, col.index_select(0, order).to(torch.int32), order
    if few:
        return by_key(keys_of(row, col) if keys is None else keys, rows)
    del keys
    if row.is_cpu:
        order = torch.sort(row * cols + col, stable=True).indices
    else:  # a GPU's sort goes over the bytes of its keys: twice 32 bits are fewer, and take less memory, than 64
        order = torch.sort(col.int(), stable=True).indices
        order = order.index_select(0, torch.sort(row.int().index_select(0, order), stable=True).indices)
    return pointers(row, rows, order), col.index_select(0, order).to(torch.int32), as_eid(order)


def compress_with_loops(
    row: Tensor, col: Tensor, rows: int, cols: int, places: Places
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(ptr, idx, eid, kept) of fewer than COUNTED entries less their self loops, and a loop at each row's end.

    The loops are numbered behind the other entries; kept, int64, is which those are, or None for all.
    """
    kept, nodes = None, min(rows, cols)
    loop = row == col
    if row.numel() and count_in_range(row, col, rows, cols, places, loop):
        kept = (~loop).nonzero()[:, 0]
        row, col = row.index_select(0, kept), col.index_select(0, kept)
    if row.is_cpu:  # grouped by row behind all others, the loops end their rows
        node = torch.arange(nodes, device="cpu")
        by_col = ops._group(col.contiguous(), col.new_empty(0, dtype=torch.int32), cols)[1]
        last = torch.arange(by_col.numel(), by_col.numel() + nodes, dtype=torch.int32, device="cpu")
        ptr, order = ops._group(torch.cat([row, node]), torch.cat([by_col, last]), rows)
        return ptr, torch.cat([col, node]).index_select(0, order).to(torch.int32), order, kept
    # Bit 31 of a loop's column puts it behind every column of its row.
    loops = torch.arange(2**31, 2**31 + nodes * (2**32 + 1), 2**32 + 1, device=row.device)
    ptr, idx, eid = by_key(torch.cat([keys_of(row, col), loops]), rows)
    return ptr, idx.bitwise_and_(2**31 - 1), eid, kept


@lasting
def transpose(ptr: Tensor, idx: Tensor, eid: Tensor, cols: int, look: bool) -> Half:
    """(ptr, idx, eid, plan) of the transpose: entries sorted by column, each column's rows in order."""
    if idx.is_cpu and max(idx.numel(), cols) < COUNTED and inside(idx, cols):
        ptr_t, order = ops._group(idx, idx.new_empty(0), cols)
    else:
        col, order = torch.sort(idx, stable=True)
        ptr_t = pointers(col, cols)
    idx_t = rows_of(ptr, idx.numel()).index_select(0, order)
    other = eid.index_select(0, order) if eid.numel() else as_eid(order)
    return ptr_t, idx_t, other, plan_of(ptr_t, idx_t, ptr.numel() - 1, look)
