"""The command line and the training program."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.machine import real_graph

from fusedmm import __main__ as command
from fusedmm import build_info, train
from fusedmm.networks import MODELS, PYG, TORCH


def small(tmp_path, without=(), **changes):
    """Two groups of 30 nodes, dense within and sparse between, whose features say a little."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 30)
    upper = np.triu(rng.random((60, 60)) < np.where(y[:, None] == y, 0.3, 0.02), 1)
    row, col = np.nonzero(upper | upper.T)
    x = rng.random((60, 4)) + 0.3 * np.eye(4)[y]
    arrays = {
        "indptr": np.searchsorted(row, np.arange(61)),
        "indices": col,
        "shape": np.array([60, 60]),
        "x_indptr": np.arange(61) * 4,
        "x_indices": np.tile(np.arange(4), 60),
        "x_data": x.ravel(),
        "x_shape": np.array([60, 4]),
        "y": y,
        "train": np.array([0, 1, 30, 31]),
        "val": np.arange(5, 60, 5),
        "test": np.arange(7, 60, 5),
    }
    np.savez(tmp_path / "small.npz", **{k: v for k, v in {**arrays, **changes}.items() if k not in without})
    return tmp_path / "small.npz"


def trained(tmp_path, *options):
    out = tmp_path / "out.json"
    command.main(["train", "--json", str(out), *options])
    return json.loads(out.read_text())


def test_info_is_json_and_text(capsys):
    run = [sys.executable, "-m", "fusedmm", "info", "--json"]
    assert json.loads(subprocess.run(run, capture_output=True, check=True).stdout) == build_info()
    command.main(["info"])
    text = capsys.readouterr().out
    assert build_info()["version"] in text and torch.__version__ in text


def test_info_of_a_build_with_cuda_is_text_too(monkeypatch, capsys):
    cuda = {"architectures": ["8.0", "9.0"], "compiler": "nvcc 13.0.88", "runtime": "13.0", "needed_driver": "580"}
    monkeypatch.setattr(command, "build_info", lambda: {**build_info(), "cuda": cuda})
    command.main(["info"])
    said = capsys.readouterr().out
    assert "architectures 8.0 9.0, compiler nvcc 13.0.88, runtime 13.0, needed driver 580" in said
    if build_info()["cuda"]:
        assert build_info()["cuda"].keys() == cuda.keys()


def test_digits_from_the_shell(tmp_path):
    out = tmp_path / "out.json"
    model = ["--model", "gcn"]
    run = [sys.executable, "-m", "fusedmm", "train", "--epochs", "5", "--seeds", "1", "--json", str(out), *model]
    done = subprocess.run(run, capture_output=True, check=True, text=True)
    assert "test accuracy" in done.stdout and "torch.sparse" in done.stdout and "epoch" in done.stderr
    assert "Warning" not in done.stderr
    result = json.loads(out.read_text())
    assert len(result["accuracy"]) == 1 and 0.2 < result["accuracy"][0] <= 1
    assert result["epoch_ms"] > 0 and result["memory_bytes"] > 2**20
    assert set(result["beside"]) == {"torch.sparse", "without the graph"}
    assert result["conditions"]["graph"] == "digits" and result["conditions"]["epochs"] == 5


@pytest.mark.parametrize("model", MODELS)
def test_graph_file(tmp_path, capsys, model):
    options = ["--graph", str(small(tmp_path)), "--model", model, "--epochs", "30", "--seeds", "2"]
    result = trained(tmp_path, *options)
    beside = {way: by["accuracy"] for way, by in result["beside"].items()}
    alone = beside[train.ALONE]
    assert list(beside) == train.ways(MODELS[model])[1:]
    assert len(result["accuracy"]) == len(alone) == 2
    assert np.mean(result["accuracy"]) > 0.8 and np.mean(result["accuracy"]) > np.mean(alone)
    if TORCH in beside:
        np.testing.assert_allclose(result["accuracy"], beside[TORCH], atol=0.1)  # one of eleven: rounding may part them
    elif PYG in beside:  # which drops other weights
        assert np.mean(beside[PYG]) > 0.8
    assert f"{model} on small" in capsys.readouterr().out
    if model == "gat":  # each model goes through the same loop
        assert trained(tmp_path, *options)["accuracy"] == result["accuracy"]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_beside_computes_the_same(model):
    """Outputs and gradients of both ways to compute a network, with self loops and a node without neighbours."""
    if not MODELS[model].has_theirs():
        pytest.skip("PyG is not installed")
    row, col = torch.tensor([0, 0, 1, 1, 2, 3, 3]), torch.tensor([0, 1, 0, 2, 1, 0, 3])
    adj = train.CSR.from_coo(row, col, None, (5, 5))
    kind, x, found = MODELS[model], torch.randn(5, 3), []
    for build, graph in ((kind.ours, adj), (kind.theirs, kind.matrix(adj))):
        torch.manual_seed(0)
        network = build(3, 2).eval()
        out = network(x, graph)
        wanted = [p for p in network.parameters() if p.requires_grad]
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_pyg_its_row_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train.ways(MODELS["gat"]) == [train.OURS, train.ALONE]
    assert train.ways(MODELS["gcn"]) == [train.OURS, TORCH, train.ALONE]


def test_split_of_a_file_without_one_follows_the_seed(tmp_path):
    y = np.repeat([0, 1], 150)
    empty = {"indptr": np.zeros(301, dtype=int), "indices": np.zeros(0, dtype=int), "shape": np.array([300, 300])}
    x = {"x_indptr": np.arange(301), "x_indices": y, "x_data": np.full(300, 7.0), "x_shape": np.array([300, 2])}
    path = small(tmp_path, ("train", "val", "test"), y=y, **empty, **x)
    graph_of = train.graphs(str(path))
    assert graph_of(0).train.numel() == 40 and graph_of(0).val.numel() == 60 and graph_of(0).test.numel() == 200
    assert torch.equal(graph_of(1).train, graph_of(1).train) and not torch.equal(graph_of(1).train, graph_of(2).train)
    assert graph_of(0).x.sum(1).tolist() == [1] * 300  # rows add to one


WRONG = {
    "no file": (["--graph", "no-such-graph.npz"], "no no-such-graph.npz"),
    "no model": (["--model", "nothing"], "gcn"),
    "no device": (["--device", "nowhere"], "nowhere"),
    "absent device": (["--device", "cuda:99"], "cuda:99"),
    "other device": (["--device", "meta"], "meta"),
    "no epochs": (["--epochs", "0"], "at least 1"),
    "no seeds": (["--seeds", "-1"], "at least 1"),
    "no folder": (["--json", "/no/such/folder/out.json"], "/no/such/folder"),
    "a folder": (["--json", "/"], "/ is a folder"),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_line_and_exit_code_2(capsys, options, said):
    with pytest.raises(SystemExit) as end:
        command.main(["train", *options])
    assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("without", "changes", "said"),
    [
        (["y"], {}, "labels"),
        (["x_indptr"], {}, "features"),
        (["val"], {}, "train, val and test"),
        ([], {"test": np.zeros(0, dtype=int)}, "none of them empty"),
        ([], {"shape": np.array([60, 61])}, "square"),
        (["train", "val", "test"], {}, "every class needs more than 50"),
        ([], {"y": np.zeros(3, dtype=int)}, "small.npz: y: 3 elements for 60 nodes"),
        ([], {"y": np.array([{}], dtype=object)}, "small.npz: y: "),
        ([], {"x_data": np.where(np.arange(240) == 9, np.nan, 1)}, "feature 1 of node 2 is nan"),
    ],
)
def test_wrong_files_are_one_line_and_exit_code_2(tmp_path, capsys, without, changes, said):
    path = small(tmp_path, without, **changes)
    with pytest.raises(SystemExit) as end:
        command.main(["train", "--graph", str(path)])
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_usage_names_the_command_that_there_is(capsys):
    with pytest.raises(SystemExit):
        command.main(["train", "--help"])
    assert "usage: python -m fusedmm train" in capsys.readouterr().out


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit) as end:
        command.main(["train"])
    assert end.value.code == 2 and "scikit-learn: pip install fusedmm[demo]" in capsys.readouterr().err


def test_peak_memory_is_that_of_one_way():
    """What was held before and given back is not counted again."""
    if not os.access(train.CLEAR, os.W_OK):
        pytest.skip(f"{train.CLEAR} cannot be written")
    cpu, size = torch.device("cpu"), 2**28
    train._forget_peak(cpu)
    held = torch.ones(size, dtype=torch.uint8)
    most = train._peak(cpu)
    del held
    train._forget_peak(cpu)
    assert train._peak(cpu) < most - size // 2


@pytest.mark.parametrize(
    ("name", "model", "least"),
    [("cora", "gat", 0.65), ("cora", "gcn", 0.7), ("citeseer", "gcn", 0.58), ("citeseer", "gat", 0.55)],
)
def test_citation_graphs_learn(tmp_path, name, model, least):
    """Fifteen of the two hundred epochs, after which a few per cent are still missing."""
    real_graph(name)
    result = trained(tmp_path, "--graph", f"{name}.npz", "--model", model, "--seeds", "1", "--epochs", "15")
    assert result["accuracy"][0] > least
