"""Host time of one small product, where the arithmetic is nothing: 16 x 16, five entries per row, 16 columns."""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.case import sparse_csr
from benchmarks.store import write

CALLS = 20  # per block; on CUDA few enough that the launch queue never fills
FORMS = ("operator", "forward", "forward + backward in x", "forward + backward in x and values")
AIMS = {"cpu": (0.85, None, 0.45, 0.45), "cuda": (0.35, 0.5, 0.5, 0.5)}  # of torch.sparse.mm
OPERATOR, FORWARD, BACKWARD, BACKWARD_BOTH = FORMS


def _calls(device: str) -> dict[tuple[str, str], Callable[[], Any]]:
    """What is timed, by form and contender; the private operator stands beside the others' forward."""
    generator = torch.Generator().manual_seed(0)
    idx = torch.stack([torch.randperm(16, generator=generator)[:5].sort().values for _ in range(16)]).view(-1)
    val = torch.randn(80, generator=generator).to(device)
    x, gy = (torch.randn(16, 16, generator=generator).to(device) for _ in range(2))
    adj = fusedmm.CSR.from_csr(torch.arange(0, 81, 5), idx, shape=(16, 16)).to(device).with_values(val)
    csr = sparse_csr(adj.cache_transpose(), val, torch.int64)
    dense = csr.to_dense()
    wx, wval, wcsr, wdense = (t.clone().requires_grad_() for t in (x, val, csr, dense))
    private = partial(torch.ops.fusedmm._spmm.default, adj.ptr, adj.idx, adj.eid, adj.plan, val, x, 0, 0)
    torch.testing.assert_close(private().double(), dense.double() @ x.double(), rtol=1e-5, atol=1e-5)
    contenders: dict[str, tuple[Callable[..., Tensor], Any, Any, Tensor]] = {
        "fusedmm": (fusedmm.spmm, adj, adj.with_values(wval), wval),
        "torch.sparse.mm": (torch.sparse.mm, csr, wcsr, wcsr),
        "dense @": (operator.matmul, dense, wdense, wdense),
    }

    def backward(multiply: Callable[..., Tensor], matrix: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(multiply(matrix, wx), inputs, gy)

    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, (multiply, fixed, learnt, values) in contenders.items():
        calls[FORWARD, name] = partial(multiply, fixed, x)
        calls[BACKWARD, name] = partial(backward, multiply, fixed, wx)
        calls[BACKWARD_BOTH, name] = partial(backward, multiply, learnt, values, wx)
    return {**calls, (OPERATOR, "fusedmm"): private}


def _block(call: Callable[[], Any], device: str) -> float:
    """Microseconds of host time per call; what the device does is not waited for."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1e3


def run(device: str, seconds: float) -> list[dict[str, Any]]:
    """Median microseconds of every form and contender in this process, interleaved in blocks."""
    calls = _calls(device)
    times: dict[tuple[str, str], list[float]] = {}
    for key, call in calls.items():
        try:
            _block(call, device)
            times[key] = []
        except RuntimeError as error:
            if key[1] == "fusedmm":
                raise
            print(f"{key} is left out: {error}")
    end = time.monotonic() + max(seconds, 0.1) * len(calls)
    while time.monotonic() < end or len(times[FORWARD, "fusedmm"]) < 20:
        for key, measured in times.items():
            measured.append(_block(calls[key], device))
    return [{"form": form, "name": name, "us": statistics.median(t)} for (form, name), t in times.items()]


def save(document: dict[str, Any], path: Path) -> None:
    """JSON and a table of the fastest process's medians; prints the table."""
    us: dict[tuple[str, str], float] = {}
    for c in document["cases"]:
        us[c["form"], c["name"]] = min(c["us"], us.get((c["form"], c["name"]), c["us"]))
    lines = [f"# Host time on {document['device']}: 16 x 16, five entries per row, 16 columns", ""]
    lines += [f"- {k}: {v}" for k, v in document["conditions"].items()]
    lines += ["", "µs of host time per call, f32: median of a process, the lowest of several processes (torch.sparse"]
    lines += ["varies between them). The private operator stands beside the others' forward.", ""]
    lines += ["| form | fusedmm | torch.sparse.mm | dense @ | fusedmm / torch.sparse.mm | aim | fusedmm / dense |"]
    lines += ["|" + "---|" * 7]
    for form, aim in zip(FORMS, AIMS[document["device"]], strict=True):
        own = us[form, "fusedmm"]
        peer, dense = (
            us.get((FORWARD if form == OPERATOR else form, n), math.nan) for n in ("torch.sparse.mm", "dense @")
        )
        cells = [form, *(f"{t:.2f}" for t in (own, peer, dense, own / peer)), str(aim or ""), f"{own / dense:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    write(document, "\n".join(lines) + "\n", path)
