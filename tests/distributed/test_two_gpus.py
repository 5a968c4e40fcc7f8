"""Two and four GPUs over NCCL: the bits of one, a hundred times the same, refusals and the end of a rank."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from distributed.every_call import calls
from distributed.graphs import CUTS as SMALL
from distributed.graphs import N, normal
from distributed.nccl_worker import CUTS, PATIENCE, TIMEOUT
from support.processes import run_ranks

from fusedmm.distributed import partition

RANKS = [2, 4]


@pytest.fixture(scope="module")
def groups(two_gpus, tmp_path_factory):
    """What each rank of a group of two and of one of four said. Both run at once: most of their time they start, or
    wait for a dead rank."""
    folders = {ranks: tmp_path_factory.mktemp("ranks") for ranks in RANKS if torch.cuda.device_count() >= ranks}
    part = partition(SMALL["two even ranks"]().csr, 4, method="nnz")
    for folder in folders.values():
        part.write(folder / "shards", x=normal(N, 6), y=torch.arange(N) % 3, train=torch.arange(N) < 9)
    worker = Path(__file__).with_name("nccl_worker.py")
    with ThreadPoolExecutor(len(folders)) as pool:
        running = {
            ranks: pool.submit(run_ranks, worker, ranks, folder, seconds=PATIENCE) for ranks, folder in folders.items()
        }
    return {ranks: future.result() for ranks, future in running.items()}


@pytest.fixture(scope="module", params=RANKS)
def said(request, groups):
    """What each rank said of each case, and when it ended."""
    if request.param not in groups:
        pytest.skip(f"{request.param} GPUs are wanted")
    found = []
    for code, out, err, at in groups[request.param]:
        lines = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
        found.append(dict(lines) | {"stderr": err, "ended": at, "code": code})
    return found


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


def test_rows_that_others_need_travel_once(said):
    assert all(sent == needed for sent, needed in (cases["bytes"] for cases in said)) and said[0]["bytes"][0] > 0


def test_memory(said):
    """A product leaves its result alone, and has beside it one copy of x with the halo, and partial sums of rows. Each
    block of torch's may be a MiB larger than what was asked for."""
    for cases in said:
        left, most, result, beside = cases["memory"]
        assert left <= result + 2**20 and most <= result + beside + 3 * 2**20


def test_repeats(said):
    assert [cases.get("repeats") for cases in said] == [0] * len(said), said[0]["stderr"][-3000:]


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
