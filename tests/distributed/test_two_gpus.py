"""Two GPUs over NCCL: the bits of one, a hundred times the same, refusals that name the rank, and the end of a rank."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from distributed.every_call import calls
from distributed.graphs import CUTS as SMALL
from distributed.graphs import N, normal
from distributed.nccl_worker import CUTS, PATIENCE, TIMEOUT

import fusedmm
from fusedmm.distributed import partition


@pytest.fixture(scope="module")
def said(two_gpus, tmp_path_factory):
    """What each rank said of each case, and when it ended."""
    folder = tmp_path_factory.mktemp("ranks")
    part = partition(SMALL["two even ranks"]().csr, 4, method="nnz")
    part.write(folder / "shards", x=normal(N, 6), y=torch.arange(N) % 3, train=torch.arange(N) < 9)
    worker = Path(__file__).with_name("nccl_worker.py")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}
    command = [[sys.executable, worker, str(rank), "2", folder] for rank in range(2)]
    started = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for c in command]
    found = []
    try:
        for process in reversed(started):  # the last one dies first
            out, err = process.communicate(timeout=PATIENCE + 20)
            lines = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
            found.append(dict(lines) | {"stderr": err, "ended": time.monotonic(), "code": process.returncode})
    finally:
        for process in started:
            process.kill()
    return found[::-1]


def test_bits_of_one_device(said):
    expected = {
        f"{name}, {cut}, {pieces}"
        for name, *_ in calls("cpu", 1)
        for cut, pieces in [("balanced", 2), *zip(CUTS, [1] * 3, strict=True)]
    }
    for rank, cases in enumerate(said):
        assert expected <= cases.keys(), cases["stderr"][-3000:]
        wrong = {name: cases[name] for name in expected if cases[name]}
        assert not wrong, f"rank {rank}: {wrong}"


def test_repeats(said):
    assert [cases["repeats"] for cases in said] == [0, 0]


def test_training_is_the_same_on_both(said):
    assert said[0]["training"] == said[1]["training"] and len(said[0]["training"]) == 3


def test_refusals_name_the_rank(said):
    for cases in said:
        assert re.search(
            r"rank 0 has spmm on .* float32\[n, 9\].*; rank 1 has .* float32\[n, 11\]", cases["refuses width"]
        )
        assert re.search(r"^ValueError: rank 1: row\[1\] = 3000 is outside", cases["refuses edge"])
        assert cases["again"] == "nothing"


def test_a_dead_rank_ends_the_other(said):
    """It waits on its GPU; its errors name the dead one."""
    assert said[1]["code"] == -9 and "end" not in said[1]
    assert said[0]["ended"] - said[1]["ended"] <= TIMEOUT + 10
    assert said[0]["code"] == 1 and "end" not in said[0]
    assert re.search(
        r"^fusedmm: rank 1 does not answer; rank 0 was at call \d+, spmm on", said[0]["stderr"], re.MULTILINE
    )
