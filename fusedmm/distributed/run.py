"""How one operator runs on a rank's part: what travels before its kernel, at once or in pieces, and whose results are.

Rows that travel in pieces of columns or heads come under the kernel of the piece before (``slices`` says of which
operators the bits allow it):

    link      | piece 1 | piece 2 |
    kernels             | kernel of piece 1 | kernel of piece 2 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.distributed.exchange import Exchange
from fusedmm.distributed.part import Part
from fusedmm.distributed.slices import Cut, cut_of

# Bytes of a rank's largest message from which the rows of a product come in pieces. On two H200 two pieces won with 51
# and 346 MiB, and lost with 5 and 16; four lost everywhere, and so did heads of an attention (docs/distributed.md).
OVERLAPS = 2**25
MOST_PIECES = 2  # each more costs the kernel another walk over the entries
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


def pieces_of(part: Part, func: Any, given: Sequence[Any], operands: str) -> Cut | None:
    """How a call is cut so that a piece's rows travel under the kernel of the piece before; None where it is not.

    All ranks find the same, and the bits are those of one call: see ``slices``.
    """
    asked = part.home.ranks.pieces
    if asked == 1 or not part.cols.most:
        return None
    far = {id(given[k]): given[k] for k, role in roles(given, operands).items() if role == "c"}
    row = sum(t.shape[1:].numel() * t.element_size() for t in far.values())
    if not asked and (func is not ops._spmm.default or part.cols.most * row < OVERLAPS):
        return None
    cut = cut_of(func, given, asked or MOST_PIECES, apart=True)
    return cut if cut is None or cut.window * cut.pieces == cut.size else None


def run_in_pieces(
    part: Part, func: Any, given: list[Any], operands: str, results: str, wanted: int, pieces: Cut
) -> Any:
    """``run``, with the rows of all pieces on their way from the beginning."""
    there = roles(given, operands)
    far = [k for k, role in there.items() if role == "c"]
    distinct = list({id(given[k]): given[k] for k in far}.values())
    number = {k: next(n for n, t in enumerate(distinct) if t is given[k]) for k in far}
    place = {n: pieces.operands[k] for k, n in number.items()}
    ends = [
        part.cols.begin([t.narrow(place[n], k * pieces.window, pieces.window) for n, t in enumerate(distinct)])
        for k in range(pieces.pieces)
    ]
    bring_edges(part, func, given, there)
    into = None
    if func is ops._spmm.default:  # which writes its columns where they belong
        into = given[5].new_empty(given[0].shape[0] - 1, pieces.size)
    found = []
    for k, end in enumerate(ends):
        begin = k * pieces.window
        args = [
            t.narrow(pieces.operands[at], begin, pieces.window)
            if at in pieces.operands and at not in number and t.dim() > 1
            else t
            for at, t in enumerate(given)
        ]
        came = end()
        for at, n in number.items():
            args[at] = came[n]
        if into is None:
            found.append(func(*args))
        else:
            y = into.narrow(1, begin, pieces.window)
            ops._spmm_into.default(*args[:6], y, *args[6:8], args[8] if len(args) > 8 else 0, pieces.size)
        del came, args
    if into is not None:
        return into
    each = [(t,) if isinstance(t, Tensor) else t for t in found]
    return owned(part, pieces.join(each), results, wanted)


def roles(given: Sequence[Any], operands: str) -> dict[int, str]:
    """Whom the operands that are there belong to, by their places."""
    return {k: role for k, role in enumerate(operands, 4) if is_there(role, given[k])}


def bring_edges(part: Part, func: Any, given: list[Any], there: dict[int, str]) -> None:
    """Brings edge data to who has the entries, and makes the seed one that all ranks share."""
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
