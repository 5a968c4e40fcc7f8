"""Ends a process whose ranks wait for one that is dead or late, where torch itself cannot raise an error.

Over NCCL a rank waits on its GPU: a collective returns at once, and the process then hangs in whatever reads a result.
torch's own watchdog notices that at the timeout, but takes a minute more for a report before it ends the process, and
names no rank. So each process has a thread that looks after what it has begun. At the timeout the thread leaves a sign
in the store of the process group, at which all other ranks end too. It asks what they did, prints that and ends its
process.
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


class Watch:
    """Looks after the collectives of one process group.

    Args:
        seconds: how long one may take.
        store: a connection to the process group's store that nobody else uses.
        last_words: says what all ranks did, and which of them do not answer or are late.
    """

    def __init__(self, seconds: float, store: Any, last_words: Callable[[Any], str]) -> None:
        self.seconds, self.store, self.last_words = seconds, store, last_words
        self.begun: deque[tuple[float, Callable[[], bool]]] = deque()  # when each must have ended, and what tells
        threading.Thread(target=self._look, name="fusedmm watch", daemon=True).start()

    def begin(self, ended: Callable[[], bool]) -> None:
        """Looks after a collective until ``ended`` is true. Collectives of a group end in the order they begin in."""
        while self.begun and self.begun[0][1]():
            self.begun.popleft()
        self.begun.append((time.monotonic() + self.seconds, ended))

    def _look(self) -> None:
        while not (self._overdue() or self._others_ended()):
            time.sleep(EVERY)
        with suppress(RuntimeError):  # where the process that holds the store is dead, which the last words tell
            self.store.set(ENDED, "")
        print(f"fusedmm: {self.last_words(self.store)}", file=sys.stderr, flush=True)
        time.sleep(2 * EVERY)  # in which others read what this rank did, if its process holds the store
        os._exit(1)  # nothing gentler ends a process that waits for its GPU

    def _overdue(self) -> bool:
        try:
            limit, ended = self.begun[0]
        except IndexError:
            return False
        return time.monotonic() > limit and not ended()

    def _others_ended(self) -> bool:
        """Whether another rank gave up. A store that is gone, as when all processes end, says nothing."""
        with suppress(RuntimeError):
            return bool(self.store.check([ENDED]))
        return False
