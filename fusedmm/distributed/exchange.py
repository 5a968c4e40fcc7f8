"""Rows that travel between ranks in an order that was agreed once: who sends which of them, and where they come to.

``halo`` has the ranks themselves, and all that they say to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm.distributed.halo import Ranks
from fusedmm.matrix.compress import as_eid

WORD = torch.complex128  # the widest numbers that torch copies
NOTHING: Any = ((), list)  # what was begun early, and what ends it
APART = 2**23  # bytes of a message from which an operand travels in a message of its own, without being packed


class Exchange:
    """Rows that travel between ranks in a fixed order.

    Args:
        ranks: who takes part.
        send: the numbers of own rows that go out, those for rank 0 first; kept in 32 bits where those are enough. None
            where all own rows go out in their order.
        sends: int64 [ranks, ranks], how many rows each rank sends to each; the same on all of them.
        keep: whether ``fetch`` puts own rows before those that come.

    Attributes:
        out, into: how many rows go to each rank, and how many come from each.
        theirs: where those that come begin among all that their rank sends.
        most, whole: rows of the largest message, and rows of all messages of the rank that has the most.
        slot: rows for which copy engines keep memory. None where entries travel, which are many, and most of which stay
            where they are.
    """

    def __init__(self, ranks: Ranks, send: Tensor | None, sends: Tensor, keep: bool) -> None:
        self.ranks, self.keep, rank = ranks, keep, ranks.rank
        self.early: tuple[Sequence[Tensor], Callable[[], list[Tensor]]] = NOTHING
        self.kept = None if send is None else as_eid(send)
        self.find: Callable[[], Tensor] | None = None
        self.out: list[int] = sends[rank].tolist()
        self.into: list[int] = sends[:, rank].tolist()
        self.theirs: list[int] = sends[:, :rank].sum(1).tolist()
        self.most, self.whole = int(sends.max()), int(torch.cat([sends.sum(0), sends.sum(1)]).max())
        self.slot = self.whole if keep else 0

    @property
    def send(self) -> Tensor | None:
        """The numbers of own rows that go out, those for rank 0 first; None where all do, in their order."""
        if self.find is not None:
            self.kept, self.find = as_eid(self.find()), None
        return self.kept

    def leave(self, find: Callable[[], Tensor]) -> None:
        """Frees the numbers, which ``find`` gives again once something is sent."""
        self.kept, self.find = None, find

    def fetch(self, operands: list[Tensor]) -> list[Tensor]:
        """For each operand [n, ...] the rows that come, behind the own ones where those are kept."""
        (early, end), self.early = self.early, NOTHING
        others = [t for t in operands if not any(t is s for s in early)]
        later = self.begin(others) if others else list
        found = {id(t): came for t, came in zip((*early, *others), (*end(), *later()), strict=True)}
        return [found[id(t)] for t in operands]

    def begin_early(self, operands: Sequence[Tensor]) -> None:
        """Starts to fetch those of the next ``fetch``'s operands that travel in messages of their own."""
        large = [t for t in operands if self._apart(t)]
        if self.ranks.count > 1 and large:
            self.early = large, self.begin(large)

    def begin(self, operands: list[Tensor], own: bool = True) -> Callable[[], list[Tensor]]:
        """Starts a ``fetch``, and returns what ends it. Rows come to where they are read, and own ones are copied there
        while others travel, if they are wanted. Operands of few bytes are packed in one message."""
        if self.ranks.count == 1 or (self.keep and not self.most):  # nobody needs anything of others
            return lambda: operands
        found, theirs = [], []
        for t in operands:
            first = t.shape[0] if self.keep and own else 0
            found.append(t.new_empty(first + sum(self.into), *t.shape[1:]))
            theirs.append(found[-1][first:])
        large = [k for k, t in enumerate(operands) if self._apart(t)]
        small = [k for k in range(len(operands)) if k not in large]
        groups = [[k] for k in large] + [small] * bool(small)
        ends = [self._start([_bytes(operands[k]) for k in group], [theirs[k] for k in group]) for group in groups]
        for t, whole in zip(operands, found, strict=True):
            if self.keep and own:
                _words(whole[: t.shape[0]], t).copy_(_words(t, whole))

        def end() -> list[Tensor]:
            for each in ends:
                each()
            return found

        return end

    def _apart(self, t: Tensor) -> bool:
        """Whether an operand has a message of its own, which then sets out while the next one is picked."""
        return self.most * t.shape[1:].numel() * t.element_size() >= APART

    def _start(self, rows: list[Tensor], found: list[Tensor]) -> Callable[[], None]:
        """Picks rows of bytes and starts to carry them, side by side, to the tensors found."""
        picked, n, widths = sum(self.out), sum(self.into), [r.shape[1] for r in rows]
        sent = self.ranks.room(rows[0].new_empty(0, sum(widths)), picked, self.slot)
        for r, side in zip(rows, sent.split(widths, 1), strict=True):
            self._pick(r, side)
        in_rounds = self._rounds(sent) > 1
        if not in_rounds and len(found) == 1:
            return self.ranks.start(sent, self.out, self.into, _bytes(found[0]), self.theirs, self.slot)
        came = sent.new_empty(0 if in_rounds else n, sent.shape[1])
        wait = None if in_rounds else self.ranks.start(sent, self.out, self.into, came, self.theirs, self.slot)

        def end() -> None:
            if wait is not None:
                wait()
            whole = self._carry(sent, self.out, self.into) if in_rounds else came
            for t, part in zip(map(_bytes, found), whole.split(widths, 1), strict=True):
                _words(t, part).copy_(_words(part, t))

        return end

    def _pick(self, rows: Tensor, room: Tensor) -> None:
        if self.send is None:
            room.copy_(rows)
        else:
            ops._pick_into(rows, self.send, room)

    def give_back(self, came: Tensor) -> Tensor:
        """Turns a fetch of each row once around: what stands with the fetched rows goes to where they came from."""
        if self.ranks.count == 1:
            return came
        back = _typed(self._carry(_bytes(came), self.into, self.out), came, sum(self.out))
        return back if self.send is None else torch.empty_like(back).index_copy_(0, self.send.long(), back)

    def _carry(self, rows: Tensor, out: list[int], into: list[int]) -> Tensor:
        """``Ranks.swap`` of rows of bytes, in as many rounds as keep each message below its limit."""
        each, rounds = self._each(rows), self._rounds(rows)
        if rounds <= 1:
            return self.ranks.swap(rows, out, into)
        sent, parts = rows.split(out), []
        for k in range(rounds):
            piece = [part[k * each : (k + 1) * each] for part in sent]
            counts = [min(max(n - k * each, 0), each) for n in into]
            parts.append(self.ranks.swap(torch.cat(piece), [len(p) for p in piece], counts).split(counts))
        return torch.cat([part[r] for r in range(len(into)) for part in parts])

    def _each(self, rows: Tensor) -> int:
        """How many rows of bytes a message may have."""
        return max(self.ranks.message // max(rows.shape[1], 1), 1)

    def _rounds(self, rows: Tensor) -> int:
        return -(-self.most // self._each(rows))


def _bytes(t: Tensor) -> Tensor:
    """Rows [n, ...] as rows [n, bytes], which lie apart where they are some columns of a wider operand."""
    if not t.numel():
        t = t.new_empty(t.shape)  # one without numbers may have any strides
    if t.dim() != 2 or t.stride(1) != 1:
        t = t.contiguous().view(t.shape[0], t.shape[1:].numel())
    return t.view(torch.uint8)


def _words(t: Tensor, other: Tensor) -> Tensor:
    """Rows as numbers of 16 bytes where both tensors can be seen so: columns of a wider operand are copied by single
    numbers, and the fewer those are the better."""
    each = WORD.itemsize // t.element_size()
    fit = all(
        s.dim() == 2 and s.stride(1) == 1 and not (s.storage_offset() % each or s.stride(0) % each) for s in (t, other)
    )
    return t.view(WORD) if fit and not t.shape[1] % each else t


def _typed(rows: Tensor, like: Tensor, n: int) -> Tensor:
    """Rows of bytes as rows of like's dtype and shape."""
    return rows.contiguous().view(like.dtype).view(n, *like.shape[1:])


def exchange_of(ranks: Ranks, wanted: Tensor, offsets: Tensor) -> Exchange:
    """The exchange that brings rows to the ranks that want them.

    Args:
        ranks: who takes part.
        wanted: int64, the global numbers of rows of others, rising, so that those of one owner lie together.
        offsets: int64 [ranks + 1], the first row of each rank.
    """
    into = counts_of(wanted, offsets)
    sends = torch.stack(ranks.gather(torch.tensor(into, device=wanted.device))).t()  # who wants: who has to send
    out: list[int] = sends[ranks.rank].tolist()
    asked = ranks.swap(wanted, into, out)
    return Exchange(ranks, asked - int(offsets[ranks.rank]), sends, True)


def numbered(ranks: Ranks, col: Tensor, offsets: Tensor) -> tuple[Tensor, Exchange, Tensor]:
    """Global columns in this rank's numbers, own ones first; how remote rows come; and which they are, rising."""
    first, last = int(offsets[ranks.rank]), int(offsets[ranks.rank + 1])
    own = (col >= first) & (col < last)
    remote = torch.unique(col[~own]).clone()  # a GPU leaves them in memory for all columns that it was given
    if last - first + remote.numel() >= 2**31:
        raise ValueError(f"a rank sees {last - first + remote.numel()} columns; there may be 2^31 - 1: take more ranks")
    place = torch.searchsorted(remote, col) + (last - first)
    return torch.where(own, col - first, place).int(), exchange_of(ranks, remote, offsets), remote


def counts_of(rising: Tensor, offsets: Tensor) -> list[int]:
    """How many of the rising global numbers each rank owns."""
    bounds = torch.searchsorted(rising, offsets.to(rising.device))
    found: list[int] = (bounds[1:] - bounds[:-1]).tolist()
    return found


def order_of(owner: Tensor) -> Tensor | None:
    """The numbers of entries by their owner, each one's in their own order; None where that is how they lie."""
    return None if bool((owner[1:] >= owner[:-1]).all()) else torch.sort(owner, stable=True).indices


def sent_to(ranks: Ranks, order: Tensor | None, out: Tensor) -> Exchange:
    """The exchange that brings a rank's entries to their owners, out[r] of them to rank r: in the order that is given,
    or as they are. What comes is in the order of the ranks, and of each rank's own list."""
    return Exchange(ranks, order, torch.stack(ranks.gather(out)), False)
