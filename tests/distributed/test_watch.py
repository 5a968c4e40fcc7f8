"""All ranks end, and name the one that is dead or late, though they wait on their GPUs: over NCCL, and over gloo with
waits that are made up."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from distributed.watch_worker import SECONDS

import fusedmm

ENDS = {"killed": "does not answer", "late": "is late"}


def said(folder: Path, ranks: int, backend: str) -> dict:
    """(exit code, seconds from the last word on, errors) of each rank; both ends at once, but for GPUs."""
    worker = Path(__file__).with_name("watch_worker.py")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}
    found = {}
    for ends in [[*ENDS]] if backend == "gloo" else [[end] for end in ENDS]:
        started = {
            (end, rank): subprocess.Popen(
                [sys.executable, worker, str(rank), str(ranks), folder, end, backend],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
            )
            for end in ends
            for rank in range(ranks)
        }  # fmt: skip
        try:
            last = {key: float(process.stdout.readline() or "nan") for key, process in started.items()}
            for key, process in started.items():
                _, err = process.communicate(timeout=60)
                found[key] = (process.returncode, time.monotonic() - last[key], err)
        finally:
            for process in started.values():
                process.kill()
    return found


def check(found: dict, ranks: int, backend: str) -> None:
    for (end, rank), (code, seconds, err) in found.items():
        if (end, rank) == ("killed", ranks - 1):
            assert code == -9
            continue
        assert code == 1 and seconds <= SECONDS[backend] + 10, (end, rank, code, seconds, err[-3000:])
        others = "; ".join(f"rank {other} was at call 2, a product" for other in range(ranks - 1))
        assert re.search(rf"^fusedmm: rank {ranks - 1} {ENDS[end]}; {others}", err, re.MULTILINE), err[-3000:]
        assert (f"rank {ranks - 1} was at call 1, a product" in err) == (end == "late")


def test_all_ranks_end_and_name_the_one(tmp_path):
    check(said(tmp_path, 3, "gloo"), 3, "gloo")


def test_over_nccl(two_gpus, tmp_path):
    ranks = min(3, torch.cuda.device_count())
    check(said(tmp_path, ranks, "nccl"), ranks, "nccl")
