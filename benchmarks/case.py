"""A case: one matrix, one width, everyone who can compute it; and its measurement."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.check import Oracle
from benchmarks.harness import Call, Clock, Contender, measure, poisoned
from benchmarks.trial import captured, warm_minimum

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support is in beta|invariant checks)")

DENSE = 0.005  # share of entries from which dense products stand beside
FIRST_PLUGIN = 1000  # numbers from here on come from fusedmm.load_algorithms
WALL = "gather_wall"  # algorithms of a plug-in whose names begin so only gather: csrc/lessons/spmm_gather_wall.cu
CLOSE = 1.25  # times slower than the fastest: warm runs are measured too


@dataclass(frozen=True)
class Choice:
    """Which algorithms of the registry are timed."""

    reference: bool = False
    plugins: tuple[str, ...] | None = None  # beginnings of the names of plug-ins' algorithms; None: all
    preprocess: bool = False  # cuSPARSE with its state kept across calls

    def wants(self, algorithm: fusedmm.Algorithm) -> bool:
        """The walls always; the reference only where it is asked for."""
        if algorithm.number < FIRST_PLUGIN:
            return self.reference or not algorithm.name.startswith("reference")
        return self.plugins is None or algorithm.name.startswith((WALL, *self.plugins))


@dataclass(frozen=True)
class Case:
    """Contenders for one result, which is shaped like ``like``."""

    contenders: list[Contender]
    oracle: Oracle
    like: Tensor
    small: bool = False  # launches decide the time: replays from a CUDA graph are measured too


def random(*size: int, dtype: torch.dtype, device: str, seed: int) -> Tensor:
    """Normal values, made on the device from a seed."""
    return torch.randn(*size, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype)


def sparse_csr(adj: fusedmm.CSR, val: Tensor, index: torch.dtype) -> Tensor:
    """The matrix as torch.sparse has it."""
    return torch.sparse_csr_tensor(adj.ptr.to(index), adj.idx.to(index), val, adj.shape)


def ours(op: str, device: str, choice: Choice, call: Callable[[str], Tensor]) -> list[Contender]:
    """auto and the algorithms of the registry; the vendors' and those of plug-ins are peers."""
    contenders = [Contender("auto", partial(call, "auto"), True)]
    for a in fusedmm.algorithms(op, device):
        if choice.wants(a) and not a.name.startswith(WALL):
            own = a.number < FIRST_PLUGIN and not a.name.startswith(("cusparse", "cublas"))
            contenders.append(Contender(a.name, partial(call, a.name), own))
    return contenders


def walls(pattern: fusedmm.CSR, x: Tensor) -> list[Contender]:
    """What only gathers the rows of x that the pattern names."""
    names = [a.name for a in fusedmm.algorithms("spmm", x.device.type) if a.name.startswith(WALL)]
    return [Contender(n, partial(fusedmm.spmm, pattern, x, algorithm=n), wall=True) for n in names]


def dense(device: str, dtype: torch.dtype, left: Call, right: Call) -> list[Contender]:
    """The dense product of the same shape, as torch has it; on CUDA in fp32 also with TF32 and in bf16."""
    a, b = left(), right()

    def product(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return a @ b
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    found = [Contender(f"dense {str(dtype)[6:]}", partial(product, a, b, False), dense=True)]
    if device == "cuda" and dtype == torch.float32:
        found.append(Contender("dense tf32", partial(product, a, b, True), dense=True))
        found.append(Contender("dense bf16", partial(product, a.bfloat16(), b.bfloat16(), False), dense=True))
    return found


def replayed(call: Call, clock: Clock, seconds: float) -> dict[str, Any]:
    """Microseconds of a replay from a CUDA graph, the least with warm caches and the median with cold ones."""
    try:
        replay = captured(lambda: (call(),))
    except RuntimeError as error:
        torch.cuda.synchronize()
        return {"replay_refused": str(error).split("\n")[0][:120]}
    cold = statistics.median(t for _ in range(5) for t in clock.run([replay]))
    return {
        "replay_us": round(warm_minimum(replay, True, seconds) * 1e6, 3),
        "replay_cold_us": round(cold * 1e6, 3),
    }


def _able(contenders: list[Contender]) -> tuple[list[Contender], dict[str, str]]:
    """Those that compute the case here, and what the others say."""
    able, refused = [], {}
    for c in contenders:
        try:
            c.call()
            able.append(c)
        except (ValueError, RuntimeError) as error:
            if c.name == "auto":
                raise
            refused[c.name] = str(error).split("\n")[0][:120]
    return able, refused


def _spread(times: list[float]) -> dict[str, Any]:
    """Median and quartiles in microseconds."""
    low, median, high = (round(t * 1e6, 3) for t in (statistics.quantiles(times, n=4) if times[1:] else times * 3))
    return {"us": median, "us_quartiles": [low, high], "runs": len(times)}


def _checked(c: Contender, case: Case) -> dict[str, Any]:
    """How right it is."""
    result, was_poisoned = poisoned(c.call, case.like)
    relative, over_bound = case.oracle.errors(result)
    return {
        "error": float(f"{relative:.3g}"),
        "error_over_bound": float(f"{over_bound:.3g}"),
        "poisoned": was_poisoned,
    }


def run(case: Case, clock: Clock, seconds: float) -> dict[str, Any]:
    """Times and errors of every contender, and how auto compares with the best peer."""
    contenders, refused = _able(case.contenders)
    results: dict[str, dict[str, Any]] = {}
    for c, times in zip(contenders, measure(contenders, clock, seconds), strict=True):
        kind = {"dense": True} if c.dense else {"wall": True} if c.wall else {}
        results[c.name] = {"ours": c.ours, **kind, **_spread(times)}
        if not kind:
            results[c.name] |= _checked(c, case)
    peer = min((c.name for c in contenders if c.peer), key=lambda n: results[n]["us"], default=None)
    for c in contenders:
        if c.name in ("auto", peer) or results[c.name]["us"] <= CLOSE * results["auto"]["us"]:
            results[c.name]["warm_us"] = round(warm_minimum(c.call, clock.cuda, max(seconds, 0.1)) * 1e6, 3)
            if clock.cuda and case.small and not c.dense:
                results[c.name] |= replayed(c.call, clock, seconds)
    picked = case.oracle.picked
    return {
        "best_peer": peer,
        "speedup": round(results[peer]["us"] / results["auto"]["us"], 3) if peer else None,
        "checked": "all" if picked is None else f"{picked.numel()} of {case.like.shape[0]}, all finite",
        "contenders": results,
        "refused": refused,
    }
