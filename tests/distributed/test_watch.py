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


def at_once(ranks: dict[str, int], backend: str, factory: pytest.TempPathFactory) -> dict[str, list]:
    """What each rank said, of groups that end in several ways and wait at the same time."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        ends = {end: pool.submit(said, factory.mktemp("ranks"), count, end, backend) for end, count in ranks.items()}
    return {end: found.result() for end, found in ends.items()}


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory):
    """Of the mesh rank 0 shares rows with rank 1 alone; it is rank 1 that waits for the dead one."""
    return at_once({"killed": 3, "killed on a mesh": 4}, "gloo", tmp_path_factory)


@pytest.mark.parametrize("end", ["killed", "killed on a mesh"])
def test_all_ranks_end_and_name_the_dead_one(end, over_gloo):
    check(over_gloo[end], end, "gloo")


@pytest.mark.slow
def test_all_ranks_end_and_name_the_late_one(tmp_path):
    check(said(tmp_path, 3, "late", "gloo"), "late", "gloo")


@pytest.fixture(scope="module")
def over_nccl(two_gpus, tmp_path_factory):
    return at_once(dict.fromkeys(("killed", "late"), min(3, torch.cuda.device_count())), "nccl", tmp_path_factory)


@pytest.mark.parametrize("end", ["killed", "late"])
def test_over_nccl(end, over_nccl):
    check(over_nccl[end], end, "nccl")
