"""One process of several that measure together: times of the slowest, memory of the fullest, and bytes that travel."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Clock
from fusedmm.distributed.halo import Group

WARM = 3
LEAD, MOST = 4_000_000, 40_000_000  # cycles that a GPU waits before a run, in which the host enqueues all of it
CYCLES = 2e9  # in a second


class Bench:
    """One process of the benchmark."""

    def __init__(self, device: torch.device, ranks: Group, mesh: Any, runs: int) -> None:
        self.device, self.ranks, self.mesh, self.runs = device, ranks, mesh, runs
        self.cuda = device.type == "cuda"
        self.flush = torch.empty(2**28 if self.cuda else 1, dtype=torch.uint8, device=device)
        self.tick = torch.zeros(1, device=device)
        self.sent, self.kept = 0, 0
        self.lead, self.host = LEAD, 0.0

    # ---- time, memory and bytes ----

    def ms(self, call: Callable[[], Any], together: bool = True) -> float:
        """The median over the runs, each of which takes as long as the slowest rank. ``host`` is that of the host's
        milliseconds on this rank."""
        times, hosts = [], []
        for k in range(WARM + self.runs):
            self.flush.zero_()
            if together and not self.cuda:
                self.ranks.gather(self.tick)
            seconds, host = self._events(call, together) if self.cuda else (Clock.run(self._clock, [call])[0], 0.0)
            self.lead = int(min(max(LEAD, 2 * CYCLES * host), MOST))
            if k >= WARM:
                times.append(seconds)
                hosts.append(host)
        self.host = 1e3 * statistics.median(hosts)
        found = torch.stack(self.ranks.gather(torch.tensor(times, dtype=torch.float64, device=self.device)))
        return 1e3 * statistics.median((found.amax(0) if together else found[0]).tolist())

    _clock = Clock("cpu")

    def _events(self, call: Callable[[], Any], together: bool) -> tuple[float, float]:
        """Seconds of the GPU and of the host."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(self.lead)
        if together:
            self.ranks.gather(self.tick)  # no GPU begins before the others, however late its host was
        start.record()
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3, host

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Leaves what the benchmark itself keeps out of ``peak``."""
        self.kept += size_of(tensors)

    def leave_out(self, *but: Tensor) -> None:
        """Leaves all that is allocated now out of ``peak``, but these tensors."""
        gc.collect()
        self.wait(empty=True)
        self.kept = (torch.cuda.memory_allocated() if self.cuda else 0) - size_of(but)

    def peak(self, call: Callable[[], Any]) -> float:
        """GB that are allocated at most while it runs, on the rank that has the most."""
        if not self.cuda:
            call()
            return 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        used = (torch.cuda.max_memory_allocated() - self.kept) / 1e9
        return self.most(used)

    def peak_of_all(self, call: Callable[[], Any]) -> float:
        """``peak`` of a call of all ranks, and the memory that others copy rows out of, which torch's allocator does
        not count. It is made anew, as large as this call needs it."""
        self.wait()
        self.ranks.gather(self.tick)
        self.wait()
        self.ranks.copies = None
        call()
        room = self.ranks.copies.room.numel() / 1e9 if self.ranks.copies else 0.0
        return self.peak(call) + room

    def most(self, number: float) -> float:
        """The largest of the ranks' numbers."""
        return float(max(self.ranks.gather(torch.tensor(number, dtype=torch.float64, device=self.device))))

    def say(self, *what: Any) -> None:
        """Rank 0 prints."""
        if self.ranks.rank == 0:
            print(*what, flush=True)

    def wait(self, empty: bool = False) -> None:
        """Waits for the device, and gives back what torch keeps of its memory."""
        if self.cuda:
            torch.cuda.synchronize()
            if empty:
                torch.cuda.empty_cache()

    def all(self, truth: bool) -> bool:
        """Whether it holds on all ranks."""
        return not self.most(not truth)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts in ``sent`` the bytes that this rank gives to others."""
        start, self.sent = self.ranks.start, 0

        def counting(rows: Tensor, *how: Any) -> Callable[[], None]:
            self.sent += rows.numel() * rows.element_size()
            return start(rows, *how)

        self.ranks.start = counting  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.ranks.start  # type: ignore[method-assign]


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
