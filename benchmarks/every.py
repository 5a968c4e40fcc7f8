"""Every table of benchmarks/results for one device, one process after the other: ``python -m benchmarks every``.

The order is that of worth, for a machine that is there for a short time only; what takes longer than ``--limit``
seconds is stopped, and its table is of the cases measured so far.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MODULE = [sys.executable, "-m", "benchmarks"]
BUILD = Path(__file__).parents[1] / "build"  # what `make lessons` and `make build/benchmarks/gather_wall.so` leave
PLUGINS = {"cpu": BUILD / "benchmarks" / "gather_wall.so", "cuda": BUILD / "lessons" / "lessons.so"}
ALL = {
    "cpu": [
        "host",
        "spmm",
        "sddmm",
        "fused",
        "attention",
        "layers",
        "forms",
        "construction",
        "spmv",
        "spmv --suite stencils",
        "messages",
        "spgemm",
        "spgemm --suite meshes",
        "epochs",
    ],
    "cuda": [
        "host",
        "ceilings",
        "spmm",
        "sddmm",
        "attention",
        "layers",
        "gat_layer",
        "fused",
        "spmm --suite twins",
        "sddmm --suite twins",
        "spmm --suite pruned",
        "sddmm --suite pruned",
        "fused --suite twins",
        "fused --suite pruned",
        "forms",
        "construction",
        "spmv",
        "spmv --suite twins",
        "spmv --suite stencils",
        "spgemm",
        "spgemm --dtype f64",
        "spgemm --suite laplacians",
        "messages",
        "spmm --suite sweeps",
        "sddmm --suite sweeps",
        "fused --suite sweeps",
        "spmm --dtype f16",
        "spmm --dtype bf16",
        "sddmm --dtype f16",
        "sddmm --dtype bf16",
        "spmm --suite sweeps --dtype f64",
        "sddmm --suite sweeps --dtype f64",
        "spmm --features 16 48 100 512",
        "sddmm --features 16 48 100 512",
        "attention --compile",
        "layers --compile",
        "epochs --compile",
        "masks",
    ],
}


def so_far(results: Path) -> Path:
    """Where the cases measured so far go: the table of before stays until there is another."""
    return results.with_suffix(".partial")


def run(device: str, limit: float, results: Callable[[list[str]], Path]) -> int:
    """Runs them all, printing how each ended; ``results`` says where one writes. Returns how many did not end well."""
    plugins = ["--plugins", str(PLUGINS[device])] if PLUGINS[device].exists() else []
    bad = 0
    for words in ALL[device]:
        more = [] if words in ("host", "ceilings") else plugins
        options = [*words.split(), "--device", device]
        began = time.monotonic()
        # In a session of its own: what it starts ends with it.
        job = subprocess.Popen(
            [*MODULE, *options, *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = job.communicate(timeout=limit)
            said = "" if not job.returncode else (errors.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            said = "stopped"
            if (cut := so_far(results(options))).exists():
                cut.replace(results(options))
            subprocess.run([*MODULE, "plot", str(results(options))], capture_output=True)
        bad += bool(said)
        print(f"{time.monotonic() - began:6.0f} s  {words}  {said}", flush=True)
    return bad
