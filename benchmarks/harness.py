"""Times contenders side by side, interleaved: CUDA by device events and with a cold L2, the CPU with warm caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], Tensor]
LEAST, MOST = 5, 1000  # runs of a contender


@dataclass(frozen=True)
class Contender:
    """One way to compute a case; ours or a peer's."""

    name: str
    call: Call
    ours: bool = False
    dense: bool = False  # another operation that stands beside for comparison: no peer, and not checked


class Clock:
    """Times calls on one device."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        if self.cuda:
            # Writing it takes longer than enqueueing any contender: no host time stands between the events.
            l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self.flush = torch.empty(max(3 * l2, 2**29), dtype=torch.uint8, device="cuda")

    def run(self, calls: list[Call]) -> list[float]:
        """Seconds of each call, one after the other."""
        if not self.cuda:
            seconds = []
            for call in calls:
                call()  # otherwise the one before it, which may be larger or share its operands, decides the caches
                begin = time.perf_counter_ns()
                result = call()
                seconds.append((time.perf_counter_ns() - begin) / 1e9)
                del result
            return seconds
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
        for call, (start, end) in zip(calls, events, strict=True):
            self.flush.zero_()
            start.record()
            call()
            end.record()
        self._wait()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def measure(contenders: list[Contender], clock: Clock, seconds: float) -> list[list[float]]:
    """Seconds of every run of every contender.

    Each round runs all of them, starting with another one each time. After the least number of rounds those
    that never came within four times the fastest drop out, and the others go on for ``seconds``.
    """
    runs: list[list[float]] = [[] for _ in contenders]
    active = list(range(len(contenders)))
    clock.run([c.call for c in contenders])  # warms up
    start = 0.0
    for r in range(MOST):
        order = active[r % len(active) :] + active[: r % len(active)]
        for k, t in zip(order, clock.run([contenders[k].call for k in order]), strict=True):
            runs[k].append(t)
        if r + 1 == LEAST:
            fastest = min(min(times) for c, times in zip(contenders, runs, strict=True) if not c.dense)
            active = [k for k in active if min(runs[k]) <= 4 * fastest]
            start = time.perf_counter()
        if r + 1 >= LEAST and time.perf_counter() - start > seconds:
            break
    return runs


def poisoned(call: Call, like: Tensor) -> tuple[Tensor, bool]:
    """A result, and whether the memory it lies in held NaN before: what a call leaves unwritten shows."""
    room = like.numel() * like.element_size()
    for _ in range(4):
        trash = [torch.full_like(like, torch.nan) for _ in range(4)]
        places = [t.data_ptr() for t in trash]
        del trash
        probe = torch.empty_like(like)
        nan = probe.data_ptr() in places and bool(probe.view(-1)[like.numel() // 2].isnan())
        del probe
        result = call()
        result = result.values() if result.layout == torch.sparse_csr else result
        ends = (result.data_ptr(), result.data_ptr() + room - 1)  # small neighbours merge: room rounded up to 512
        if nan and all(any(p <= end < p + room + 512 for p in places) for end in ends):
            return result, True
    return result, False
