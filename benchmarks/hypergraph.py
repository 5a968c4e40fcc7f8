"""How many cache lines a sparse product moves, by a hypergraph of its rows: a model beside the measured times.

Each row of B, and each line of a dense row of sums, is a net; it joins the rows of A that touch it. The schedule cuts
the rows in parts, its chunks. If a cache holds what one part touches and nothing of the part before, a net is brought
once for each part that it joins, as Akbudak and Aykanat count volume (Exploiting locality in sparse matrix-matrix
multiplication on many-core architectures, IEEE TPDS 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fusedmm

LINE = 64  # bytes


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
