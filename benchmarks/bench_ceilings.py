"""What this device can do at most, as rooflines need it: copying, gathering rows from tables of many sizes, and
multiplying.

The gather is fusedmm.spmm without values over a matrix of 64 uniformly random columns in each of its equal
rows: nothing to balance, hardly anything to compute; so it is a stand-in for a kernel that only reads.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.case import random
from benchmarks.harness import Call, Clock
from benchmarks.store import draw, write

DEGREE, WIDTHS = 64, (32, 128)
TABLES = {"cpu": [2**k for k in range(16, 29, 2)], "cuda": [2**k for k in range(20, 33)]}  # bytes
GATHERED = {"cpu": 2**28, "cuda": 2**34}  # bytes of a run
PLAIN = {"cpu": 2**27, "cuda": 2**31}  # bytes that are copied
MATRIX = {"cpu": 1024, "cuda": 8192}


def _gather(table: int, width: int, gathered: int, device: str) -> tuple[Call, int]:
    """A run over a table of that many bytes, and the bytes it gathers."""
    rows = max(1, table // (4 * width))
    lines = max(1, gathered // (4 * width * DEGREE))
    generator = torch.Generator(device).manual_seed(0)
    idx = torch.randint(rows, (lines * DEGREE,), generator=generator, device=device, dtype=torch.int32)
    ptr = torch.arange(lines + 1, device=device) * DEGREE
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(lines, rows))
    x = random(rows, width, dtype=torch.float32, device=device, seed=1)
    return lambda: fusedmm.spmm(adj, x), lines * DEGREE * width * 4


def _measured(call: Call, clock: Clock, seconds: float) -> float:
    """Median seconds, about that long."""
    first = min(clock.run([call, call]))
    runs = max(3, min(50, int(seconds / max(first, 1e-6))))
    return statistics.median(clock.run([call] * runs))


def _plain(size: int, device: str, clock: Clock, seconds: float) -> list[dict[str, Any]]:
    """GB/s of copying and of reading that many numbers."""
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    calls: dict[str, tuple[Call, int]] = {"copy": (lambda: target.copy_(source), 8), "read": (source.sum, 4)}
    return [
        {"what": what, "gbs": b * size / _measured(call, clock, seconds) / 1e9} for what, (call, b) in calls.items()
    ]


def run(device: str, seconds: float) -> list[dict[str, Any]]:
    """GB/s of copies and gathers, GFLOP/s of dense products."""
    from tqdm import tqdm

    clock = Clock(device)
    cases: list[dict[str, Any]] = []
    cases += _plain(PLAIN[device] // 4, device, clock, seconds)
    for table in tqdm(TABLES[device], desc="gather", disable=None):
        for width in WIDTHS:
            call, size = _gather(table, width, GATHERED[device], device)
            rate = size / _measured(call, clock, seconds) / 1e9
            cases.append({"what": "gather", "table": table, "feat": width, "gbs": rate})
    n = MATRIX[device]
    a, b = (random(n, n, dtype=torch.float32, device=device, seed=k) for k in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, allow, operands in (("fp32", False, (a, b)), ("tf32", True, (a, b)), ("bf16", False, None)):
            if device == "cpu" and name != "fp32":
                continue
            torch.backends.cuda.matmul.allow_tf32 = allow
            left, right = operands or (a.bfloat16(), b.bfloat16())

            def product(left: Tensor = left, right: Tensor = right) -> Tensor:
                return left @ right

            cases.append({"what": f"dense {name}", "gflops": 2 * n**3 / _measured(product, clock, seconds) / 1e9})
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return [{k: round(v, 1) if isinstance(v, float) else v for k, v in case.items()} for case in cases]


def save(document: dict[str, Any], path: Path) -> None:
    """JSON and a table; prints the table."""
    lines = [f"# Ceilings of this {document['device']} device", ""]
    lines += [f"- {k}: {v}" for k, v in document["conditions"].items()]
    lines += ["", "| what | table, MiB | K | GB/s | GFLOP/s |", "|---|---|---|---|---|"]
    for c in document["cases"]:
        table = f"{c['table'] / 2**20:g}" if c.get("table") else ""
        lines.append(
            f"| {c['what']} | {table} | {c.get('feat') or ''} | {c.get('gbs') or ''} | {c.get('gflops') or ''} |"
        )
    write(document, "\n".join(lines) + "\n", path)


def plot(document: dict[str, Any], path: Path) -> None:
    """Gathered GB/s by the size of the table, with copying beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for k, width in enumerate(WIDTHS):
        points = [(c["table"] / 2**20, c["gbs"]) for c in document["cases"] if c.get("feat") == width]
        axes.plot(*zip(*points, strict=True), marker="o", color=f"C{k}", label=f"gather, K {width}")
    copied = next(c["gbs"] for c in document["cases"] if c["what"] == "copy")
    axes.axhline(copied, color="black", linewidth=0.8, label="copy")
    axes.set(xscale="log", xlabel="table, MiB", ylabel="GB/s", ylim=(0, None))
    axes.set_title(f"Ceilings, {document['conditions'].get('gpu', document['conditions']['cpu'])}")
    axes.grid(alpha=0.3)
    axes.legend()
    draw(figure, path)
