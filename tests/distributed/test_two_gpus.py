"""Two and four GPUs over NCCL: the bits of one, a hundred times the same, refusals and the end of a rank."""

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


@pytest.fixture(scope="module", params=[2, 4])
def said(request, two_gpus, tmp_path_factory):
    """What each rank said of each case, and when it ended."""
    ranks = request.param
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"{ranks} GPUs are wanted")
    folder = tmp_path_factory.mktemp("ranks")
    part = partition(SMALL["two even ranks"]().csr, 4, method="nnz")
    part.write(folder / "shards", x=normal(N, 6), y=torch.arange(N) % 3, train=torch.arange(N) < 9)
    worker = Path(__file__).with_name("nccl_worker.py")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}
    command = [[sys.executable, worker, str(rank), str(ranks), folder] for rank in range(ranks)]
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
    } | {f"{name}, features" for name, *_ in calls("cpu", 1)}
    for rank, cases in enumerate(said):
        assert expected <= cases.keys(), cases["stderr"][-3000:]
        wrong = {name: cases[name] for name in expected if cases[name]}
        assert not wrong, f"rank {rank}: {wrong}"


def test_engines_copied(said):
    assert said[0]["copied"] > 20 and all(cases["copied"] == said[0]["copied"] for cases in said)


def test_repeats(said):
    assert [cases["repeats"] for cases in said] == [0] * len(said)


def test_own_columns_first(said):
    for cases in said:
        apart, others = cases["split"]
        assert apart < 1e-5 and others == 0


def test_training_is_the_same_on_all(said):
    assert all(cases["training"] == said[0]["training"] for cases in said) and len(said[0]["training"]) == 3


def test_refusals_name_the_rank(said):
    for cases in said:
        assert re.search(
            r"rank 0 has spmm on .* float32\[n, 9\].*; rank 1 has .* float32\[n, 11\]", cases["refuses width"]
        )
        assert re.search(r"^ValueError: rank 1: row\[1\] = 3000 is outside", cases["refuses edge"])
        assert cases["again"] == "nothing"


def test_a_dead_rank_ends_the_others(said):
    """They wait on their GPUs; their errors name the dead one."""
    *others, dead = said
    assert dead["code"] == -9 and "end" not in dead
    last = f"rank {len(others)} does not answer; rank 0 was at call"
    for cases in others:
        assert cases["ended"] - dead["ended"] <= TIMEOUT + 10
        assert cases["code"] == 1 and "end" not in cases
        assert re.search(rf"^fusedmm: {last} \d+, spmm on", cases["stderr"], re.MULTILINE), cases["stderr"][-3000:]
