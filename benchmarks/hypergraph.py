"""What a sparse product reads, by a hypergraph of its rows: a model beside the measured times.

Each row of B, and each line of a dense row of sums, is a net; it joins the rows of A that touch it. The schedule cuts
the rows in parts, its chunks. If a cache holds what one part touches and nothing of the part before, a net is brought
once for each part that it joins, as Akbudak and Aykanat count volume (Exploiting locality in sparse matrix-matrix
multiplication on many-core architectures, IEEE TPDS 2017).

On CUDA the parts are windows of rows of C, each of which a warp computes in shared memory. An algorithm cuts a row as
its tables ask for, so that the parts are its own. A window reads its part of each row of B that it wants, and no cache
is taken to hold anything between two windows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fusedmm

LINE = 64  # bytes
SECTOR = 32  # bytes of a GPU's memory that are read at once, at least
# Of csrc/spgemm: bytes of a warp's table, entries of A that a sum takes before it is put aside, warps of a block,
# threads of a warp, entries of a small row of A, entries of C that are worth a window.
ROOM, TERMS, WARPS, LANES, SMALL, FEWEST = 6 << 10, 128, 8, 32, 12, 64
WINDOW = 24  # bytes that a plan keeps of each window of entries, beside what it keeps of products


def traffic(plan: fusedmm.SpGEMMPlan[Any], width: int = 4) -> dict[str, float]:
    """What part of the traffic the schedule leaves, of values of ``width`` bytes.

    Returns:
        ``flops_per_double``: two flops a product, over the doubles of the lines of B that are brought. ``reads_of_b``:
        how often a line of B that is used at all is brought on average. ``b_kept``: the share of the entries of A that
        find their row of B there already. ``sums_kept``: the share of the entries of C that find the line of their sum
        there already.
    """
    part = _part_of_rows(plan)
    row, col, _ = plan.a.coo()
    lengths = plan.b.ptr[1:] - plan.b.ptr[:-1]
    lines = (lengths * (4 + width) + LINE - 1) // LINE
    brought = torch.unique(part[row] * plan.a.shape[1] + col) % plan.a.shape[1]
    reads, least = int(lines[brought].sum()), int(lines[torch.unique(col)].sum())
    products = int(lengths[col].sum())
    row, col, _ = plan.c.coo()
    wide = plan.c.shape[1] * width // LINE + 1
    visits = torch.unique(part[row] * wide + col * width // LINE).numel()
    return {
        "flops_per_double": round(2 * products / max(1, reads * LINE // 8), 2),
        "reads_of_b": round(reads / max(1, least), 2),
        "b_kept": round(1 - reads / max(1, int(lines[plan.a.idx.long()].sum())), 3),
        "sums_kept": round(1 - visits / max(1, plan.c.nnz), 3),
    }


def _part_of_rows(plan: fusedmm.SpGEMMPlan[Any]) -> Tensor:
    """The chunk of each row."""
    first = plan.schedule[1:]
    return torch.searchsorted(first, torch.arange(plan.a.shape[0]), right=True) - 1


@dataclass(frozen=True)
class Read:
    """What an algorithm on CUDA reads: bytes, how many windows want an entry of A on average, and how many windows
    there are, that is how often a warp begins anew."""

    bytes: int
    visits: float
    windows: int


def of_warps(plan: fusedmm.SpGEMMPlan[Any], width: int = 4) -> dict[str, Read]:
    """By algorithm, what the values of a plan's product read where values have ``width`` bytes.

    A window reads each entry of A of its row, where that one's row of B begins, and its own part of this row, which it
    finds by two bisections if it is not all of the row. A stretch of memory that begins anywhere takes a sector more,
    less an entry. Columns of C are taken to be evenly spread in a row; where they are not, a table may be too small for
    a window, which is then cut in halves. "auto" reads what its plan keeps, if that is there (cuda_kept.cu).
    """
    own, entries, lengths = plan.a.degree(), plan.c.degree(), plan.b.degree()
    some = entries > 0
    span = torch.zeros_like(own)
    span[some] = (plan.c.idx[plan.c.ptr[1:][some] - 1] - plan.c.idx[plan.c.ptr[:-1][some]]).long() + 1
    row, col, _ = plan.a.coo()
    length, products = lengths[col].double(), int(lengths[col].sum())
    steps = 2 * torch.ceil(torch.log2(length + 1))
    sought = SECTOR * torch.minimum(steps, torch.ceil(length * 4 / SECTOR) + 1)
    rows = plan.a.shape[0]
    most = 16 if rows < 8192 else 32 if rows < 65536 else 96
    small = (own <= SMALL) & (entries <= most)
    found = {}
    for name in ("auto", "kkspeed", "kkmem", "sort"):
        windows = _windows(name, width, own, entries.clamp(min=1), span)
        merged = small & (name in ("auto", "sort"))  # by a thread each, which reads no columns of C
        windows[merged] = 1
        begun = int(windows[some & ~merged].sum()) + -(-int(merged.sum()) // LANES)
        times = windows[row].double()
        a = times * (4 + width + SECTOR) + sought * times * (times > 1)
        b = length * (4 + width) + torch.minimum(length, times) * (2 * SECTOR - 4 - width)
        fits = span * _slot(width, own) <= ROOM
        dense = torch.ones_like(merged) if name == "kkspeed" else fits & (name == "auto")
        c = 4 * int(entries[~(merged | dense)].sum()) + 16 * rows
        found[name] = Read(int((a + b).sum()) + c, float(times.mean()) if times.numel() else 0.0, begun)
    kept = 4 * plan.products.numel()
    if kept > 4:  # a number alone says that rows are small
        narrow = 32 if plan.c.nnz <= 1 << 17 else 64 if plan.c.nnz <= 1 << 20 else 256 if plan.c.nnz <= 1 << 26 else 512
        begun = math.ceil(plan.c.nnz / narrow)
        runs = (kept - WINDOW * begun - 2 * products) // 8
        found["auto"] = Read(kept + runs * SECTOR + products * width, runs / max(1, plan.a.nnz), begun)
    return found


def _slot(width: int, own: Tensor) -> Tensor:
    """Bytes of a sum, and of what was put aside of it."""
    return width * (1 + (own > TERMS).long())


def _windows(name: str, width: int, own: Tensor, entries: Tensor, span: Tensor) -> Tensor:
    """In how many windows an algorithm cuts a row of C: window_entries in csrc/spgemm/cuda_windows.cuh."""
    slot, apart = _slot(width, own), span // entries
    each = ROOM // (2 * (slot + 4))  # what can be hashed
    if name in ("auto", "kkspeed"):
        size = slot * apart if name == "kkspeed" else slot + apart // 4
        even = ROOM * 3 // 4 // size.clamp(min=1) * (size < ROOM)
        each = even.clamp(min=1) if name == "kkspeed" else torch.maximum(each, even)
        each = torch.where(span * slot <= ROOM, entries, each)
    parts = _up(own, TERMS)
    members = sum(((parts > 2**k).long() << k for k in range(3)), torch.ones_like(own))
    least = torch.where(members == 1, 1, torch.minimum((entries // FEWEST).clamp(min=1), WARPS // members))
    return _up(entries, _up(entries, _up(_up(entries, each), least) * least))


def _up(number: Tensor, by: Tensor | int) -> Tensor:
    """The quotient, rounded up."""
    return (number + by - 1) // by
