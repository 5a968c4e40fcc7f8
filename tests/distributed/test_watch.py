"""All ranks end, and name the one that is dead or late, though they wait on their GPUs: over NCCL, and over gloo with
waits that are made up."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from distributed.watch_worker import PATIENCE, SECONDS
from support.processes import run_ranks

ENDS = {"killed": "does not answer", "late": "is late", "killed on a mesh": "does not answer"}


def said(folder: Path, ranks: int, end: str, backend: str) -> list:
    """(exit code, seconds from the last word on, errors) of each rank."""
    worker = Path(__file__).with_name("watch_worker.py")
    found = run_ranks(worker, ranks, folder, end, backend, seconds=PATIENCE)
    return [(code, at - float(out.partition("\n")[0] or "nan"), err) for code, out, err, at in found]


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


@pytest.fixture(scope="module")
def over_nccl(two_gpus, tmp_path_factory):
    """What each rank said of each end; the two groups wait at the same time."""
    ranks = min(3, torch.cuda.device_count())
    with ThreadPoolExecutor(2) as pool:
        ends = {end: pool.submit(said, tmp_path_factory.mktemp(end), ranks, end, "nccl") for end in ("killed", "late")}
    return {end: found.result() for end, found in ends.items()}


@pytest.mark.parametrize("end", ["killed", "late"])
def test_over_nccl(end, over_nccl):
    check(over_nccl[end], end, "nccl")
