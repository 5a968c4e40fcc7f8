"""Steps of training beside each other: time, host time, replay from a CUDA graph, peak memory, error.

A step gives what it computed, results first and then gradients. Everything is measured in one process,
contenders interleaved, within a time that the caller bounds; who runs out of memory or refuses a case
stays in the table with the reason.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import CYCLES, Call, Clock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler that counts memory writes two lines per use

Step = Callable[[], tuple[Tensor, ...]]
LEAST, MOST, WARM, HOST = 3, 200, 20, 20  # runs: at least, at most, of the warm minimum, per block of host time
PLENTY = 2**34  # bytes that may stay reserved between contenders
WARM_LEAD = 5e-4  # seconds before each warm run, in which the host launches the call
LEAD = 0.02  # seconds the device waits for the host at most: who takes longer waits for the device anyway
FREE = {"cpu": 2**32, "cuda": 100 * 2**30}  # bytes a peer may be expected to take: two of them must not fill a card


@dataclass(frozen=True)
class Trial:
    """One way to take a step: "ours", a "peer"'s, or a "wall", which does less and that nobody can pass.

    ``make`` prepares it and gives the step; ``results`` of what the step gives are results, the others
    gradients, which no peer can do without; ``expected`` bytes beyond the device's keep it from being tried.
    """

    name: str
    make: Callable[[], Step]
    kind: str = "peer"
    results: int = 1
    expected: int = 0
    check: Callable[[], tuple[float, float]] | None = None  # error, and the most it may be


@dataclass(frozen=True)
class Wanted:
    """What is measured beside the cold median, how many seconds a peer's step may take to be measured, and whether
    steps wait for the device."""

    seconds: float = 1.0
    host: bool = False
    replay: bool = False
    patience: float = math.inf
    waits: bool = False


def compiled(function: Callable[..., Any], run: Callable[[Any], Any], dynamic: bool) -> Any:
    """The function by torch.compile, in a form that ``run`` has run once.

    Tiled along three axes, as by default, a graph as large as reddit has too many blocks for one launch.
    """
    torch._dynamo.reset()  # after eight forms of one function it would go on uncompiled
    form = torch.compile(function, dynamic=dynamic)
    try:
        run(form)
    except RuntimeError as error:
        if "invalid argument" not in str(error):  # as a launch of too many blocks says
            raise
        form = None
    if form is None:  # what the error holds is free again
        torch._dynamo.reset()
        form = torch.compile(function, dynamic=dynamic, options={"triton.max_tiles": 2})
        run(form)
    return form


def peak_bytes(step: Step, results: int, cuda: bool) -> tuple[int, int]:
    """The most memory a step holds at a time beyond what was there and the gradients it gives; and its results'."""
    if cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            found = step()
        held = peak = 0
        records = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
        for record in sorted(records, key=lambda e: e.start_ns()):
            held += record.nbytes()
            peak = max(peak, held)
    size = [t.numel() * t.element_size() for t in found]
    return max(0, peak - sum(size[results:])), sum(size[:results])


def captured(step: Step) -> Call:
    """The step as a CUDA graph; calling replays it.

    Raises:
        RuntimeError: the step waits for the device. A capture that it breaks off would keep the allocator from giving
            memory back for good, so that is found out before.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> Tensor:
        graph.replay()
        return kept[0]

    return replay


def warm_minimum(call: Callable[[], Any], cuda: bool, seconds: float) -> float:
    """The least of 20 runs one after the other, caches warm, in seconds, as papers report; fewer if they take long."""
    least, end = float("inf"), time.perf_counter() + seconds
    for _ in range(WARM):
        if cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(WARM_LEAD * CYCLES))
            start.record()
            call()
            stop.record()
            stop.synchronize()
            least = min(least, start.elapsed_time(stop) / 1e3)
        else:
            begin = time.perf_counter()
            call()
            least = min(least, time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return least


def host_time(call: Callable[[], Any], cuda: bool, seconds: float) -> float:
    """Seconds until a call returns, the device not waited for: the median of blocks."""
    blocks: list[float] = []
    end = time.perf_counter() + seconds
    while len(blocks) < 3 or time.perf_counter() < end:
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(HOST):
            call()
        blocks.append((time.perf_counter() - begin) / HOST)
    return statistics.median(blocks)


def _enqueueing(step: Step) -> float:
    """Seconds until a step returns, the device idle before."""
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _rounds(steps: dict[str, Step], clock: Clock, seconds: float, lead: float) -> dict[str, list[float]]:
    """Seconds of each run: rounds of all, starting with another each time; those beyond four times the
    fastest drop out after the least number of rounds, and nobody goes on beyond the time."""
    runs: dict[str, list[float]] = {name: [] for name in steps}
    active, start = list(steps), time.perf_counter()
    for r in range(MOST):
        order = active[r % len(active) :] + active[: r % len(active)]
        calls: list[Any] = [steps[name] for name in order]
        for name, t in zip(order, clock.run(calls, lead), strict=True):
            runs[name].append(t)
        if r + 1 == LEAST:
            fastest = min(map(min, runs.values()))
            active = [name for name in active if min(runs[name]) <= 4 * fastest]
        if r + 1 >= LEAST and time.perf_counter() - start > seconds:
            break
    return runs


def release(cuda: bool) -> None:
    """Gives memory back that nobody holds any more, if it is much."""
    if not cuda or torch.cuda.memory_reserved() > PLENTY:  # collecting takes longer than most contenders
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()


def _reason(error: BaseException) -> str:
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error)
    return "out of memory" if memory else f"{type(error).__name__}: {str(error).partition(chr(10))[0][:100]}"


def _checked(check: Callable[[], tuple[float, float]]) -> dict[str, Any]:
    """The error and the most it may be, or why there was no check: it holds more than a step does."""
    try:
        error, limit = check()
    except (RuntimeError, MemoryError) as raised:
        if (reason := _reason(raised)) != "out of memory":
            raise
        return {"not_checked": reason}
    return {"error": float(f"{error:.3g}"), "error_limit": float(f"{limit:.3g}")}


def run(trials: list[Trial], clock: Clock, wanted: Wanted) -> dict[str, Any]:
    """Figures of every trial, who was left out and why, and our speedup over the best peer.

    Raises:
        RuntimeError: ours does not run; peers are allowed to fail.
    """
    cuda = clock.cuda
    steps: dict[str, Step] = {}
    figures: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    lead = 0.0
    for trial in trials:
        if trial.expected > FREE["cuda" if cuda else "cpu"]:
            refused[trial.name] = f"not tried: it would take {trial.expected >> 30} GiB"
            continue
        try:
            step = trial.make()
            step()
            begin = time.perf_counter()
            peak, size = (round(b / 2**20, 3) for b in peak_bytes(step, trial.results, cuda))
            took = time.perf_counter() - begin
            if took > wanted.patience and trial.name != "auto":
                refused[trial.name] = f"not measured: a step takes {took:.2g} s"
            else:
                steps[trial.name] = step
                if cuda and not wanted.waits:
                    lead = max(lead, 2 * _enqueueing(step))
                figures[trial.name] = {"kind": trial.kind, "peak_mib": peak, "result_mib": size}
            del step
        except Exception as error:  # whatever a peer raises is its reason
            if trial.name == "auto":
                raise
            refused[trial.name] = _reason(error)
        release(cuda)
    for name, times in _rounds(steps, clock, wanted.seconds, min(lead, LEAD)).items():
        low, median, high = statistics.quantiles(times, n=4)
        figures[name] |= {"us": median * 1e6, "us_quartiles": [low * 1e6, high * 1e6], "runs": len(times)}
    for trial in trials:
        if trial.name not in steps:
            continue
        step, found = steps[trial.name], figures[trial.name]
        found["warm_us"] = warm_minimum(step, cuda, wanted.seconds) * 1e6
        if wanted.host:
            found["host_us"] = host_time(step, cuda, wanted.seconds / 2) * 1e6
        if wanted.replay and cuda:
            try:
                replay = captured(step)
                found["replay_us"] = warm_minimum(replay, cuda, wanted.seconds) * 1e6
                found["replay_cold_us"] = statistics.median(t for _ in range(5) for t in clock.run([replay])) * 1e6
                del replay
            except RuntimeError as error:
                torch.cuda.synchronize()
                found["replay_refused"] = _reason(error)
        if trial.check is not None:
            found |= _checked(trial.check)
        for key, value in found.items():
            if key.endswith("us"):
                found[key] = round(value, 3)
        release(cuda)
    peers = {n: f["us"] for n, f in figures.items() if f["kind"] == "peer"}
    best = min(peers, key=lambda n: peers[n]) if peers else None
    own = figures["auto"]["us"]
    return {
        "best_peer": best,
        "speedup": round(peers[best] / own, 3) if best else None,
        "contenders": figures,
        "refused": refused,
    }
