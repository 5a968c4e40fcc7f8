"""How one operator runs on a rank's part: what travels before its kernel, at once or in pieces, and whose results are.

The rows of a product may travel in pieces of their columns. Each piece then comes under the kernel of the one before:

    link      | piece 1 | piece 2 |
    kernels             | kernel of piece 1 | kernel of piece 2 |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.distributed.exchange import Exchange
from fusedmm.distributed.part import Part
from fusedmm.distributed.slices import CHANNELS, LOAD

# Bytes that a rank sends or receives from which the rows of a product come in pieces of their columns. On two and four
# H200 two pieces won or cost nothing with 51 MiB and more, and lost with 5 and 16; heads of an attention were slower in
# pieces, since each piece walks over all entries anew.
# From LARGE on a GPU takes more pieces: as wide as what its product reads at once of a row that lies beyond its second
# cache, so that kernels lose nothing, the first one begins early, and two pieces take little memory. They are wider, by
# a power of two, where less than OVERLAPS would travel of each. That needs enough entries for each row that travels:
# else kernels do not hide what travels under them (docs/distributed.md).
OVERLAPS, LARGE, ENTRIES = 2**25, 2**27, 50
LINE = 128  # bytes
# Messages of more than two PIECEs, which no memory would hold otherwise, come in pieces as wide as a power of two too.
PIECE = 2**32  # bytes that a rank has of one piece, but for the last; two are in memory at a time
# Where operators have the seed of dropout.
SEEDS = {
    ops._attention.default: 10,
    ops._attention_weights.default: 10,
    ops._attention_rows.default: 10,
    ops._attention_cols.default: 10,
    ops._attend_self.default: 7,
    ops._attend_self_back.default: 7,
    ops._attend_maps.default: 6,
    ops._attend_maps_back.default: 10,
}


def run(part: Part, func: Any, given: list[Any], operands: str, results: str, wanted: int) -> Any:
    """Brings what other ranks have, calls the library, and takes results of edges to their owners."""
    there = roles(given, operands)
    fetch(part.cols, given, [k for k, role in there.items() if role == "c"])
    bring_edges(part, func, given, there)
    return owned(part, func(*given), results, wanted)


def pieces_of(part: Part, func: Any, given: Sequence[Any]) -> list[tuple[int, int]] | None:
    """(first column, number of columns) of the pieces that a product's rows travel in; None where they travel at once.

    All ranks find the same. Columns have no term in common, and each piece is added up as the whole is: on a GPU in any
    width, on a CPU if the piece is wide enough. On a GPU pieces begin at whole loads.
    """
    if func is not ops._spmm.default or not part.cols.most:
        return None
    val, x = given[4], given[5]
    if x.dim() > 2 or val.dim() > 1:
        return None
    rows, ranks = part.cols.whole, part.home.ranks
    least, width = LOAD // x.element_size() if x.is_cuda else 1, x.shape[1]
    size, shares, step = rows * width * x.element_size(), ranks.pieces, least
    if not shares:
        hidden = part.home.total >= ENTRIES * rows * ranks.count
        line = widest = 1 << max(PIECE // rows, LOAD).bit_length() - 1
        if hidden:
            line = min(max(LINE, 1 << (OVERLAPS // rows).bit_length()), widest)
        lines = size // (rows * line) if x.is_cuda and size >= (LARGE if hidden else 2 * PIECE) else 0
        shares = (1,) * (1 if size < OVERLAPS else max(2, lines or -(-size // PIECE)))
        if len(shares) == lines:
            step = line // x.element_size()  # all are whole lines, and the last one has what is left
    ends = [width * sum(shares[:k]) // sum(shares) // step * step for k in range(len(shares))]
    pieces = [(a, b - a) for a, b in pairwise([*ends, width])]
    fits = all(n >= (least if x.is_cuda else CHANNELS) for _, n in pieces)
    return pieces if fits and len(pieces) > 1 else None


def run_in_pieces(part: Part, given: Sequence[Any], pieces: list[tuple[int, int]]) -> Tensor:
    """A product whose columns travel in pieces: one sets out before the kernel of the one before it begins, so that
    halos of two are there at most."""
    given = list(given)
    x = given[5]
    coming = [part.cols.begin([x.narrow(1, *piece)]) for piece in pieces[:2]]
    bring_edges(part, ops._spmm.default, given, roles(given, "ec"))
    *half, val, _, reduce, algorithm, rows_are = given
    y = x.new_empty(given[0].shape[0] - 1, x.shape[1])
    for k, piece in enumerate(pieces):
        (came,) = coming.pop(0)()
        ops._spmm_into.default(*half, val, came, y.narrow(1, *piece), reduce, algorithm, rows_are)
        del came
        coming += [part.cols.begin([x.narrow(1, *later)]) for later in pieces[k + 2 : k + 3]]
    return y


def roles(given: Sequence[Any], operands: str) -> dict[int, str]:
    """Whom the operands that are there belong to, by their places."""
    return {k: role for k, role in enumerate(operands, 4) if is_there(role, given[k])}


def bring_edges(part: Part, func: Any, given: list[Any], there: dict[int, str]) -> None:
    """Brings edge data to the ranks that have the entries, and makes the seed one that all ranks share."""
    if part.edges is not None and given[2] is part.eid:
        fetch(part.edges, given, [k for k, role in there.items() if role in "ek"])
    for k, role in there.items():
        if role == "s":
            given[k] = keyed(part, given[k], func)
        elif role == "x":
            given[k] = given[2].new_empty(0, dtype=torch.uint8)


def owned(part: Part, found: Any, results: str, wanted: int) -> Any:
    """Takes results of edges to their owners."""
    if part.edges is None or "e" not in results:
        return found
    if isinstance(found, Tensor):
        return part.edges.give_back(found)
    own = (role == "e" and wanted >> k & 1 for k, role in enumerate(results))
    return tuple(part.edges.give_back(t) if mine else t for t, mine in zip(found, own, strict=True))


def has_seed(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call drops edges."""
    return func in SEEDS and is_there("s", args[SEEDS[func]])


def is_there(role: str, t: Tensor) -> bool:
    """Whether an operand is not the tensor that stands for an absent one. A rank without rows has one without numbers
    too, but of another dtype."""
    return t.dim() > 1 or (role != "k" and t.dtype != torch.uint8)


def fetch(exchange: Exchange, given: list[Any], places: list[int]) -> None:
    """Replaces operands by what the exchange makes of them, each tensor once; all travel together."""
    distinct: dict[int, Tensor] = {id(given[k]): given[k] for k in places}
    if distinct:
        found = dict(zip(distinct, exchange.fetch(list(distinct.values())), strict=True))
        for k in places:
            given[k] = found[id(given[k])]


def keyed(part: Part, seed: Tensor, func: Any) -> Tensor:
    """The seed of rank 0 with the global number of each edge behind it, so that all ranks drop the same edges.

    Rank 0's is written into the tensor that a forward pass was given, where backward finds it.
    """
    if func in (ops._attention.default, ops._attention_weights.default):
        agreed = part.home.ranks.first(seed)
        if not torch.equal(seed, agreed):  # a seed that backward has must not change once more
            seed.copy_(agreed)
    return torch.cat([seed, part.edge_keys()])
