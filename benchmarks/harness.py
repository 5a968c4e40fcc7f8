"""Times contenders side by side, interleaved: CUDA by device events and with a cold L2, the CPU with warm caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

Call = Callable[[], Tensor]
LEAST, MOST = 5, 1000  # runs of a contender that stays
BEHIND = 3.0  # times slower than the fastest: two runs are enough
LONG, FEW = 0.1, 3  # seconds of a round beyond which that many runs do
CYCLES = 2e9  # of the device's clock in a second, at most


@dataclass(frozen=True)
class Contender:
    """One way to compute a case; ours, or a peer's.

    What stands beside for comparison, as another operation, is no peer and not checked: ``dense`` products, and a
    ``wall``, which only reads what is needed.
    """

    name: str
    call: Call
    ours: bool = False
    dense: bool = False
    wall: bool = False

    @property
    def peer(self) -> bool:
        """Whether it computes the same and is not ours."""
        return not (self.ours or self.dense or self.wall)


class Clock:
    """Times calls on one device."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        if self.cuda:
            # Writing it takes longer than enqueueing a contender of one or a few kernels: no host time stands between
            # the events. What takes the host longer needs a ``lead``.
            l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self.flush = torch.empty(max(3 * l2, 2**29), dtype=torch.uint8, device="cuda")

    def run(self, calls: list[Call], lead: float = 0.0) -> list[float]:
        """Seconds of each call, one after the other.

        The device waits ``lead`` seconds before each, so that the host has enqueued all of it before the time begins.
        """
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
            if lead:
                torch.cuda._sleep(int(lead * CYCLES))
            self.flush.zero_()
            start.record()
            call()
            end.record()
        self._wait()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def _ahead(contenders: list[Contender], runs: list[list[float]]) -> list[int]:
    """Those that may be the fastest of their kind; the others have shown what they can do."""
    least = [min(times) for times in runs]
    of_walls = min((t for c, t in zip(contenders, least, strict=True) if c.wall), default=0.0)
    fastest = min((t for c, t in zip(contenders, least, strict=True) if not c.wall and not c.dense), default=0.0)
    limits = [1.2 * of_walls if c.wall else BEHIND * fastest for c in contenders]
    return [k for k, c in enumerate(contenders) if c.name == "auto" or c.dense or least[k] <= limits[k]]


def measure(contenders: list[Contender], clock: Clock, seconds: float) -> list[list[float]]:
    """Seconds of every run of every contender.

    Those far behind in two runs drop out, with the quicker of the two: something else may have disturbed the other. The
    others go on in rounds, each in an order of its own, so that nobody always finds the caches as the same other one
    left them: a least number of rounds, and more for ``seconds``.
    """
    runs = [[t] for t in clock.run([c.call for c in contenders])]
    ahead = _ahead(contenders, runs)
    behind = [k for k in range(len(runs)) if k not in ahead]
    for k, t in zip(behind, clock.run([contenders[k].call for k in behind]), strict=True):
        runs[k] = [min(runs[k][0], t)]
    active = _ahead(contenders, runs)
    start = time.perf_counter()
    for k in active:
        runs[k] = []
    for r in range(MOST):
        order = Random(r).sample(active, len(active))
        begin = time.perf_counter()
        for k, t in zip(order, clock.run([contenders[k].call for k in order]), strict=True):
            runs[k].append(t)
        now = time.perf_counter()
        if r + 1 >= (FEW if now - begin > LONG else LEAST) and now - start > seconds:
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
