"""The benchmarks run on a tiny graph and what they time is right."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path

import pytest
import torch

import fusedmm
from benchmarks import bench_ceilings, bench_fused, bench_spmm, case, graphs, jobs, plots, report, table
from benchmarks.harness import Clock
from benchmarks.trial import Trial, Wanted, peak_bytes, run

NODES, PAIRS = 60, 200
QUICK = Wanted(seconds=0.0)


@pytest.fixture(scope="module")
def tiny() -> fusedmm.CSR:
    return graphs.symmetric(NODES, PAIRS, "cpu")


def test_symmetric_twins_have_exactly_their_entries(tiny: fusedmm.CSR) -> None:
    dense = tiny.to_dense()
    assert tiny.nnz == 2 * PAIRS == int(dense.sum())
    assert torch.equal(dense, dense.t()) and dense.max() == 1 and not dense.diagonal().any()


def test_pruned_matrices_have_their_shape_and_density() -> None:
    adj = graphs.load("128x96 90%", "cpu")
    assert adj.shape == (128, 96)
    assert abs(adj.nnz / (128 * 96) - 0.1) < 0.02
    assert len(graphs.PRUNED) == 36  # x two widths


@pytest.mark.parametrize(
    ("module", "cases"),
    [
        ("attention", ("8x8 float32", "dot 1x64 float32", "dot 8x8 bfloat16")),
        ("layers", ("8x8", "AGNN", "GCNConv")),
        ("fused", ("K=32",)),
        ("construction", ()),
    ],
)
def test_benchmarks_run_within_bounds(
    module: str, cases: tuple[str, ...], tiny: fusedmm.CSR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module in ("layers", "construction"):
        pytest.importorskip("torch_geometric")
    pytest.importorskip("tqdm")
    monkeypatch.setattr(graphs, "load", lambda name, device: tiny)
    options = jobs.Options(seconds=0.0, graphs=("tiny",), cases=cases)
    document = {"op": module, "device": "cpu", "conditions": report.conditions("cpu", Clock("cpu"))}
    partial = tmp_path / "partial.json"
    made = jobs.collect(importlib.import_module(f"benchmarks.bench_{module}").jobs, document, options, partial)
    assert made["cases"]
    assert json.loads(partial.read_text())["cases"] == made["cases"]
    table.save(made, tmp_path / "result.json")
    assert made["summary"]["out_of_bound"] == []
    for found in made["cases"]:
        assert len(found["contenders"]) >= 2, found["refused"]
        auto = found["contenders"]["auto"]
        assert auto["kind"] == "ours" and auto["us"] > 0 and auto["peak_mib"] >= auto["result_mib"] > 0
        assert "error" in auto or module == "construction"
    assert "| tiny |" in (tmp_path / "result.md").read_text()


def test_fused_measures_pruned_layers_forward_with_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(graphs.SUITES, "pruned", ["128x64 90%"])
    document = {"op": "fused", "device": "cpu", "dtype": "f32", "suite": "pruned"}
    document["conditions"] = report.conditions("cpu", Clock("cpu"))
    options = jobs.Options(seconds=0.0, graphs=("128x64 90%",))
    made = jobs.collect(bench_fused.jobs, document, options, tmp_path / "partial.json")
    assert [c["case"] for c in made["cases"]] == ["s*a K=32 forward", "s*a K=128 forward"]
    for c in made["cases"]:
        auto = c["contenders"]["auto"]
        assert auto["gflops"] == pytest.approx(4e-3 * c["nnz"] * c["feat"] / auto["us"], rel=0.01)
        assert c["contenders"]["back_to_back"]["kind"] == "peer" and "gflops" not in c["contenders"]["spmm alone"]
    table.save(made, tmp_path / "fused.json")
    assert "| GFLOP/s |" in (tmp_path / "fused.md").read_text()
    plots.beside(made, tmp_path / "fused.png", tmp_path / "none.json")
    assert (tmp_path / "fused-bars.png").exists()


def test_who_waits_too_long_is_left_out_with_the_time() -> None:
    def slow() -> tuple[torch.Tensor, ...]:
        time.sleep(0.02)
        return (torch.zeros(10),)

    trials = [Trial("auto", lambda: slow, "ours"), Trial("slow", lambda: slow)]
    found = run(trials, Clock("cpu"), Wanted(seconds=0.0, patience=0.01))
    assert list(found["contenders"]) == ["auto"] and "not measured: a step takes" in found["refused"]["slow"]


def test_who_fails_stays_with_the_reason() -> None:
    def fails() -> tuple[torch.Tensor, ...]:
        raise torch.OutOfMemoryError("much too large")

    def works() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(1000),)

    wrong = Trial("wrong", lambda: works, "ours", check=lambda: (1.0, 0.5))
    trials = [Trial("auto", lambda: works, "ours"), wrong, Trial("large", lambda: fails)]
    trials.append(Trial("huge", lambda: works, expected=2**60))
    found = run(trials, Clock("cpu"), QUICK)
    assert found["refused"]["large"] == "out of memory"
    assert "not tried" in found["refused"]["huge"]
    assert found["best_peer"] is None and found["speedup"] is None
    summary = table.summarize([{"graph": "g", "case": "c", **found}])
    assert summary["out_of_bound"] == ["g, c: wrong 1.0"]


def test_peak_memory_counts_what_is_held_at_a_time_without_gradients() -> None:
    def step() -> tuple[torch.Tensor, ...]:
        one = torch.zeros(1 << 20)
        two = one + 1
        del one
        return two.add(1), torch.zeros(1 << 18)  # a result and a gradient

    peak, result = peak_bytes(step, 1, False)
    assert result == 4 << 20
    assert 8 << 20 <= peak < 9 << 20


def test_pruned_layers_have_dense_products_beside_them_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    name, clock = "128x64 90%", Clock("cpu")
    made = case.run(bench_spmm.case(graphs.load(name, "cpu"), 32, torch.float32, True, False), clock, 0.0)
    assert made["contenders"]["dense float32"]["us"] > 0 and made["best_peer"].startswith("torch.sparse")
    assert made["contenders"]["auto"]["warm_us"] > 0 and made["contenders"]["auto"]["error_over_bound"] <= 1
    head = {"graph": name, "rows": 128, "cols": 64, "nnz": 800, "feat": 32, "weighted": True, "threads": 1}
    document = {"op": "spmm", "device": "cpu", "dtype": "f32", "cases": [head | made]}
    document["conditions"] = report.conditions("cpu", clock)
    report.save(document, tmp_path / "spmm.json")
    text = (tmp_path / "spmm.md").read_text()
    assert "| dense float32 |" in text and "times faster than torch.sparse" in text
    limits = [{"what": "copy", "gbs": 10.0}, {"what": "gather", "gbs": 50.0}, {"what": "dense fp32", "gflops": 100.0}]
    (tmp_path / "ceilings.json").write_text(json.dumps({"cases": limits}))
    for suite in ("pruned", "sweeps"):
        plots.beside({**document, "suite": suite}, tmp_path / f"{suite}.png", tmp_path / "ceilings.json")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"pruned-bars.png", "pruned-roofline.png", "sweeps-sweeps.png", "sweeps-roofline.png"}


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    for name, size in (("TABLES", [2**16]), ("GATHERED", 2**20), ("PLAIN", 2**16), ("MATRIX", 32)):
        monkeypatch.setitem(getattr(bench_ceilings, name), "cpu", size)
    cases = bench_ceilings.run("cpu", 0.0)
    assert [c["what"] for c in cases] == ["copy", "read", "gather", "gather", "dense fp32"]
    assert all(c.get("gbs", c.get("gflops")) > 0 for c in cases)
