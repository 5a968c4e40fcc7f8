"""The command line on shards: one process or those of torchrun, checkpoints, and what ends it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from distributed.graphs import COL, CUTS, ROW, N, normal

import fusedmm
from fusedmm.__main__ import main
from fusedmm.distributed import partition


@pytest.fixture
def shards(tmp_path):
    y = torch.arange(N) % 3
    masks = {name: torch.arange(N) % 4 == k for k, name in enumerate(("train", "val", "test"))}
    x = normal(N, 6) + 3 * torch.nn.functional.one_hot(y, 6)
    alike = fusedmm.CSR.from_coo(ROW, COL // 3 * 3 + ROW % 3, shape=(N, N))
    partition(alike, 4, method="nnz").write(tmp_path / "shards", x=x, y=y, **masks)
    return tmp_path / "shards"


def losses(text: str) -> list[str]:
    return re.findall(r"loss [0-9.]+", text)


def result(text: str) -> str:
    return re.search(r"test accuracy .*", text)[0]


def train(capsys, *options) -> tuple[str, str]:
    main(["train", "--graph", *map(str, options)])
    out, err = capsys.readouterr()
    return out, err


@pytest.mark.parametrize("model", ["gat", "gcn", "sage"])
def test_learns_and_goes_on(shards, tmp_path, capsys, model):
    whole, _ = train(capsys, shards, "--model", model, "--epochs", 24)
    assert "1 ranks, epochs 0 to 24" in whole and re.search(r"rank 0: 60 rows, \d+ entries, .* ms an epoch", whole)
    assert float(re.search(r"accuracy ([0-9.]+)%", whole)[1]) > 60
    kept = tmp_path / "kept"
    train(capsys, shards, "--model", model, "--epochs", 11, "--checkpoint", kept)
    (kept / "epoch-000015").mkdir()  # of somebody who was interrupted while writing
    again, _ = train(capsys, shards, "--model", model, "--epochs", 24, "--checkpoint", kept)
    assert "epochs 11 to 24" in again and result(again) == result(whole)
    assert {place.name for place in kept.glob("*/.metadata")} == {".metadata"}
    assert sorted(place.parent.name for place in kept.glob("*/.metadata")) == ["epoch-000020", "epoch-000024"]


def test_checkpoints_that_are_none_of_this_network(shards, tmp_path, capsys):
    kept, file = tmp_path / "kept", tmp_path / "file"
    train(capsys, shards, "--model", "gat", "--epochs", 1, "--checkpoint", kept)
    file.touch()
    for folder, message in (
        (kept, "epoch-000001: of another network or graph: first.att_"),
        (file, file),
    ):
        with pytest.raises(SystemExit):
            train(capsys, shards, "--model", "gcn", "--epochs", 2, "--checkpoint", folder)
        assert str(message) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["test", "y"])
def test_shards_without_what_training_needs(tmp_path, capsys, name):
    nodes = {"x": normal(N, 6), "y": torch.arange(N) % 3} | dict.fromkeys(("train", "val", "test"), torch.arange(N) < 9)
    del nodes[name]
    partition(CUTS["mirrored"]().csr, 2, method="nnz").write(tmp_path / "shards", **nodes)
    with pytest.raises(SystemExit):
        train(capsys, tmp_path / "shards")
    assert f"training needs {name} of each node" in capsys.readouterr().err


def torchrun(ranks: int, *options) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "fusedmm", "train", "--graph", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gat", "gcn"])
def test_torchrun_is_one_process(shards, tmp_path, capsys, model):
    whole, _ = train(capsys, shards, "--model", model, "--epochs", 16)
    kept = tmp_path / "kept"
    first = torchrun(2, shards, "--model", model, "--epochs", 10, "--checkpoint", kept)
    assert first.returncode == 0, first.stderr
    assert "rank 1: " in first.stdout and "2 ranks, epochs 0 to 10" in first.stdout
    second = torchrun(3, shards, "--model", model, "--epochs", 16, "--checkpoint", kept, "--overlap", "split")
    assert second.returncode == 0, second.stderr
    assert "3 ranks, epochs 10 to 16" in second.stdout and result(second.stdout) == result(whole)


@pytest.mark.slow
def test_errors_end_all_processes(shards):
    found = torchrun(2, shards, "--model", "gat", "--device", "cuda:9" if torch.cuda.is_available() else "cuda")
    assert found.returncode != 0 and "--device" in found.stderr
    found = torchrun(6, shards, "--model", "gat")
    assert found.returncode != 0 and "4 parts serve 1 to 4 ranks, not 6" in found.stderr


@pytest.mark.slow
def test_a_killed_process_ends_all_and_the_last_checkpoint_stays(shards, tmp_path, capsys):
    kept, code = tmp_path / "kept", tmp_path / "sitecustomize.py"
    code.write_text(  # the second rank dies in its 13th backward pass, and says when
        "import os, signal, time, torch\nseen = []\ntrue = torch.Tensor.backward\n"
        "def backward(self, *args, **kwargs):\n    seen.append(1)\n"
        "    if len(seen) == 13 and os.environ.get('RANK') == '1':\n"
        f"        open({str(tmp_path / 'died')!r}, 'w').write(str(time.time()))\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return true(self, *args, **kwargs)\ntorch.Tensor.backward = backward\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{Path(fusedmm.__file__).parents[1]}"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", "fusedmm"]
    command += ["train", "--graph", str(shards), "--epochs", "20", "--checkpoint", str(kept), "--timeout", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, timeout=200, check=False)
    assert ended.returncode != 0 and "SIGKILL" in ended.stderr
    assert time.time() - float((tmp_path / "died").read_text()) <= 20 + 10  # the timeout and ten seconds
    whole, _ = train(capsys, shards, "--model", "gat", "--epochs", 20)
    again, _ = train(capsys, shards, "--model", "gat", "--epochs", 20, "--checkpoint", kept)
    assert "epochs 10 to 20" in again and result(again) == result(whole)
