"""Ends a process whose ranks wait for one that is dead or late, where torch itself cannot raise an error.

Over NCCL a rank waits on its GPU: a collective returns at once, and the process then hangs in whatever reads a result.
torch's own watchdog notices that at the timeout, but takes a minute more for a report before it ends the process, and
names no rank. So each process has a thread that looks after what it has begun. At the timeout the thread leaves a sign
in the store of the process group, with the ranks that take part, at which the threads of all other processes end
theirs too. Each leaves word of what it waits for itself, asks what these ranks did and those that they wait for, prints
that and ends its process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ENDED = "fusedmm/ended"  # the sign: some rank has given up
EVERY = 0.5  # seconds between two looks
LastWords = Callable[[Any, list[int]], str]


class Watch:
    """Looks after the collectives of a process.

    Args:
        store: a connection to the process group's store that nobody else uses.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.begun: deque[tuple[float, Callable[[], bool], list[int], LastWords]] = deque()
        self.latest: LastWords | None = None
        threading.Thread(target=self._look, name="fusedmm watch", daemon=True).start()

    def begin(self, seconds: float, ended: Callable[[], bool], members: list[int], last_words: LastWords) -> None:
        """Looks after a collective until ``ended`` is true, which is once those before it have ended.

        Args:
            seconds: how long it may take.
            ended: whether it has ended.
            members: the ranks that take part.
            last_words: of a store and of ranks, what these did, and which of them do not answer or are late.
        """
        while self.begun and self.begun[0][1]():
            self.begun.popleft()
        self.latest = last_words
        self.begun.append((time.monotonic() + seconds, ended, members, last_words))

    def _look(self) -> None:
        while True:
            time.sleep(EVERY)
            lost = self._overdue() or self._sign()
            if lost is None:
                continue
            members, last_words = lost
            with suppress(RuntimeError):  # where the process that holds the store is dead, which the last words tell
                self.store.set(ENDED, ",".join(map(str, members)))
            print(f"fusedmm: {last_words(self.store, members)}", file=sys.stderr, flush=True)
            time.sleep(2 * EVERY)  # in which others read what this rank did, if its process holds the store
            os._exit(1)  # nothing gentler ends a process that waits for its GPU

    def _overdue(self) -> tuple[list[int], LastWords] | None:
        """The ranks of a collective that has taken too long, and who knows what they did."""
        try:
            limit, ended, members, last_words = self.begun[0]
        except IndexError:
            return None
        return (members, last_words) if time.monotonic() > limit and not ended() else None

    def _sign(self) -> tuple[list[int], LastWords] | None:
        """The same of another process that gave up, and what this one waits for. A store that is gone, as when all end,
        says nothing."""
        with suppress(RuntimeError):
            if self.latest is not None and self.store.check([ENDED]):
                waiting = [words for _, ended, _, words in self.begun if not ended()]
                given_up = self.store.get(ENDED).decode().split(",")
                return [int(rank) for rank in given_up], waiting[0] if waiting else self.latest
        return None
