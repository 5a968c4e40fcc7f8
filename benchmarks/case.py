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

DENSE = 0.04  # share of entries from which dense products stand beside
FIRST_PLUGIN = 1000  # numbers from here on come from fusedmm.load_algorithms


@dataclass(frozen=True)
class Case:
    """Contenders for one result, which is shaped like ``like``."""

    contenders: list[Contender]
    oracle: Oracle
    like: Tensor
    products: int
    small: bool = False  # launches decide the time: replays from a CUDA graph are measured too


def random(*size: int, dtype: torch.dtype, device: str, seed: int) -> Tensor:
    """Normal values, made on the device from a seed."""
    return torch.randn(*size, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype)


def sparse_csr(adj: fusedmm.CSR, val: Tensor, index: torch.dtype) -> Tensor:
    """The matrix as torch.sparse has it."""
    return torch.sparse_csr_tensor(adj.ptr.to(index), adj.idx.to(index), val, adj.shape)


def ours(op: str, device: str, reference: bool, call: Callable[[str], Tensor]) -> list[Contender]:
    """auto and the algorithms of the registry; the vendors' and those of plug-ins are peers."""
    contenders = [Contender("auto", partial(call, "auto"), True)]
    for a in fusedmm.algorithms(op, device):
        if reference or not a.name.startswith("reference"):
            own = a.number < FIRST_PLUGIN and not a.name.startswith(("cusparse", "cublas"))
            contenders.append(Contender(a.name, partial(call, a.name), own))
    return contenders


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


def run(case: Case, clock: Clock, seconds: float) -> dict[str, Any]:
    """Times and errors of every contender, and how auto compares with the best peer."""
    contenders, refused = _able(case.contenders)
    results: dict[str, dict[str, Any]] = {}
    for c, times in zip(contenders, measure(contenders, clock, seconds), strict=True):
        if c.dense:
            results[c.name] = {"ours": False, "dense": True, "us": round(statistics.median(times) * 1e6, 3)}
            results[c.name]["warm_us"] = round(warm_minimum(c.call, clock.cuda, seconds) * 1e6, 3)
            continue
        result, was_poisoned = poisoned(c.call, case.like)
        relative, over_bound = case.oracle.errors(result)
        del result
        low, median, high = (round(t * 1e6, 3) for t in statistics.quantiles(times, n=4))
        results[c.name] = {
            "ours": c.ours,
            "us": median,
            "us_quartiles": [low, high],
            "warm_us": round(warm_minimum(c.call, clock.cuda, seconds) * 1e6, 3),
            "runs": len(times),
            "gflops": round(2e-3 * case.products / median, 2),
            "gather_gbs": round(1e-3 * case.products * case.like.element_size() / median, 2),
            "error": float(f"{relative:.3g}"),
            "error_over_bound": float(f"{over_bound:.3g}"),
            "poisoned": was_poisoned,
        }
        if clock.cuda and case.small:
            results[c.name] |= replayed(c.call, clock, seconds)
    peer = min((n for n, r in results.items() if not r["ours"] and not r.get("dense")), key=lambda n: results[n]["us"])
    picked = case.oracle.picked
    return {
        "best_peer": peer,
        "speedup": round(results[peer]["us"] / results["auto"]["us"], 3),
        "checked": "all" if picked is None else f"{picked.numel()} of {case.like.shape[0]}, all finite",
        "contenders": results,
        "refused": refused,
    }
