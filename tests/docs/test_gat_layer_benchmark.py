"""The benchmark of README's picture runs on a tiny graph, checks every side, and draws who did not run too."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import fusedmm
from benchmarks import bench_gat_layer, bench_layers, graphs, jobs, report
from benchmarks.harness import Clock
from benchmarks.trial import Trial


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> fusedmm.CSR:
    """A graph of 60 nodes; what compiles PyG's layer gives it as it is, which takes no seconds."""
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(bench_layers, "compiled", lambda layer, run, dynamic: layer)
    return graphs.symmetric(60, 200, "cpu")


def test_every_side_is_measured_checked_and_drawn(
    tiny: fusedmm.CSR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(graphs, "load", lambda name, device: tiny)
    document = {"op": "gat_layer", "device": "cpu", "conditions": report.conditions("cpu", Clock("cpu"))}
    options = jobs.Options(seconds=0.0, graphs=("tiny", "larger-symmetric"))
    made = jobs.collect(bench_gat_layer.jobs, document, options, tmp_path / "partial.json")
    assert [c["graph"] for c in made["cases"]] == ["tiny", "larger-symmetric"]
    for case in made["cases"]:
        assert set(case["contenders"]) == set(bench_gat_layer.SIDES)
        for found in case["contenders"].values():
            assert 0 < found["error"] <= found["error_limit"] == pytest.approx(bench_layers.KINK, rel=0.01)
            assert found["us"] > 0 and found["peak_mib"] > 0
    del made["cases"][1]["contenders"]["PyG"]
    made["cases"][1] |= {"best_peer": "PyG compiled", "refused": {"PyG": "out of memory"}}
    main = importlib.import_module("benchmarks.__main__")
    writer = main.writer("gat_layer")
    writer.save(made, tmp_path / "gat-layer.json")
    assert "PyG (out of memory)" in (tmp_path / "gat-layer.md").read_text()
    pytest.importorskip("matplotlib")
    writer.plot(made, tmp_path / "gat-layer.png")
    assert (tmp_path / "gat-layer.png").stat().st_size > 0
    assert main.arguments(["gat_layer", "--device", "cuda"]).plot.name == "gat-layer-cuda.png"


def test_a_wrong_side_is_seen(tiny: fusedmm.CSR) -> None:
    """What deviates by twice the limit is beyond it."""
    trial = next(t for t in bench_gat_layer.trials(tiny) if t.name == "PyG")
    assert isinstance(trial, Trial) and trial.expected == 0 and trial.check is not None
    layer, x, edges, _ = trial.make().args  # type: ignore[attr-defined]
    error, limit = trial.check()
    assert error <= limit
    true = layer.forward
    layer.forward = lambda x, edges: true(x, edges) * (1 + 2 * limit)
    error, limit = trial.check()
    assert error > limit
    assert torch.isfinite(true(x, edges)).all()
