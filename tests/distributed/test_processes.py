"""Real processes over gloo: the same bits as one device, and errors that name the rank. One group runs all cases."""

import json
import re
from pathlib import Path

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from distributed.worker import PATIENCE, TIMEOUT, graph, training
from support.processes import run_ranks
from support.ranks import randint

from fusedmm.distributed import partition

ENDS = {2: "different", 3: "killed", 4: "killed"}


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def said(request, tmp_path_factory):
    """What each rank said of each case."""
    ranks, folder = request.param, tmp_path_factory.mktemp("ranks")
    whole = CUTS["two even ranks"]()
    masks = {"train": torch.arange(N) < 9}
    part = partition(whole.csr, 4, method="nnz")
    part.write(folder / "shards", x=normal(N, 6), y=torch.arange(N) % 3, **masks)
    worker = Path(__file__).with_name("worker.py")
    found = []
    for _, out, err, _ in run_ranks(worker, ranks, folder, ENDS[ranks], seconds=PATIENCE):
        lines = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
        found.append(dict(lines) | {"stderr": err, "ranks": ranks, "folder": folder})
    return found


def test_bits_of_one_device(said):
    for rank, cases in enumerate(said):
        compared = {
            name: wrong for name, wrong in cases.items() if isinstance(wrong, list) and name not in ("end", "training")
        }
        assert len(compared) == 12 + {2: 0, 3: 4, 4: 1}[cases["ranks"]], cases["stderr"]
        assert not any(compared.values()), f"rank {rank}: {compared}"


def test_disagreements_name_both(said):
    messages = {
        "width": r"ranks disagree at call \d+: rank 0 has spmm on a matrix of 60 x 60 .* float32\[n, 9\].*; "
        r"rank 1 has spmm on .* float32\[n, 11\]",
        "dtype": r"rank 1 has spmm on .* float64\[n, 9\]",
        "operator": r"rank 0 has spmm on .* rank 1 has sddmm on .*",
        "edge": r"^ValueError: rank 1: row\[1\] = 99 is outside \[0, 60\)",
        "offsets": r"rank 1 has a matrix of 60 rows and 60 columns, offsets of digest",
        "again": "^nothing$",
    }
    for cases in said:
        for name, message in messages.items():
            text = cases[f"refuses {name}"]
            assert re.search(message, text), text


def test_training_is_that_of_one_process(said):
    kept, torch.randint = torch.randint, randint
    try:
        losses = training(graph(2), None, f"{said[0]['folder']}/shards")
    finally:
        torch.randint = kept
    for cases in said:
        assert "training" in cases, cases["stderr"]
        assert cases["training"] == said[0]["training"]
        assert cases["training"] == pytest.approx(losses, rel=1e-4)


def test_the_end_names_the_rank(said):
    last = said[0]["ranks"] - 1
    for rank, cases in enumerate(said):
        if ENDS[cases["ranks"]] == "killed" and rank == last:
            assert "end" not in cases
            continue
        assert "end" in cases, cases["stderr"]
        text, seconds = cases["end"]
        assert seconds <= TIMEOUT + 10
        assert text.startswith("RuntimeError"), text
        if ENDS[cases["ranks"]] == "killed":
            assert f"rank {last} does not answer" in text and "was at call" in text
        else:
            assert "rank 0 was at call" in text and "sddmm" in text and "rank 1 was at call" in text and "spmm" in text
