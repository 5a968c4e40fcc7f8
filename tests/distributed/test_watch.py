"""All ranks end, and name the one that is dead or late, though they wait on their GPUs: over NCCL, and over gloo with
waits that are made up."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from distributed.watch_worker import SECONDS

import fusedmm

ENDS = {"killed": "does not answer", "late": "is late", "killed on a mesh": "does not answer"}


def said(folder: Path, ranks: int, end: str, backend: str) -> list:
    """(exit code, seconds from the last word on, errors) of each rank."""
    worker = Path(__file__).with_name("watch_worker.py")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}
    command = [[sys.executable, worker, str(rank), str(ranks), folder, end, backend] for rank in range(ranks)]
    started = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for c in command]
    found = []
    try:
        last = [float(process.stdout.readline() or "nan") for process in started]
        for begun, process in zip(last, started, strict=True):
            _, err = process.communicate(timeout=60)
            found.append((process.returncode, time.monotonic() - begun, err))
    finally:
        for process in started:
            process.kill()
    return found


def check(found: list, end: str, backend: str) -> None:
    last = len(found) - 1
    asked = range(2 if end == "killed on a mesh" else last)
    others = "; ".join(f"rank {other} was at call {2 + (other == 0)}, a product" for other in asked)
    for rank, (code, seconds, err) in enumerate(found):
        if end != "late" and rank == last:
            assert code == -9
            continue
        assert code == 1 and seconds <= SECONDS[backend] + 10, (rank, code, seconds, err[-3000:])
        assert re.search(rf"^fusedmm: rank {last} {ENDS[end]}; {others}", err, re.MULTILINE), err[-3000:]
        assert (f"rank {last} was at call 1, a product" in err) == (end == "late")


@pytest.mark.parametrize("end", ["killed", pytest.param("late", marks=pytest.mark.slow)])
def test_all_ranks_end_and_name_the_one(end, tmp_path):
    check(said(tmp_path, 3, end, "gloo"), end, "gloo")


def test_a_rank_asks_those_for_whom_others_wait(tmp_path):
    """Rank 0 shares rows with rank 1 alone; it is rank 1 that waits for the dead one."""
    check(said(tmp_path, 4, "killed on a mesh", "gloo"), "killed on a mesh", "gloo")


@pytest.mark.parametrize("end", ["killed", "late"])
def test_over_nccl(end, two_gpus, tmp_path):
    check(said(tmp_path, min(3, torch.cuda.device_count()), end, "nccl"), end, "nccl")
