"""The benchmarks run on a tiny graph and what they time is right."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.machine import ROOT

import fusedmm
from benchmarks import (
    answers,
    bench_ceilings,
    bench_forms,
    bench_fused,
    bench_sddmm,
    bench_spmm,
    case,
    check,
    every,
    graphs,
    jobs,
    plots,
    reading,
    report,
    summary,
    table,
    trial,
)
from benchmarks.harness import Clock, Contender, measure
from benchmarks.trial import Trial, Wanted, compiled, peak_bytes, run

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
        ("forms", ()),
        ("epochs", ()),
        ("construction", ()),
        ("spgemm", ()),
    ],
)
def test_benchmarks_run_within_bounds(
    module: str, cases: tuple[str, ...], tiny: fusedmm.CSR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module in ("layers", "construction", "epochs", "forms"):
        pytest.importorskip("torch_geometric")
    pytest.importorskip("tqdm")
    monkeypatch.setattr(graphs, "load", lambda name, device: tiny)
    monkeypatch.setattr(trial, "WARM", 1)
    monkeypatch.setattr(trial, "HOST", 1)
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
        assert auto["kind"] == "ours" and auto["us"] > 0
        assert auto["peak_mib"] >= auto["result_mib"] > 0 or module == "epochs"  # whose result is one number
        assert (
            "error" in auto
            or module in ("construction", "epochs")
            or (module == "spgemm" and found["case"] != "A A sorted")
        )
    assert "| tiny |" in (tmp_path / "result.md").read_text()
    if module == "spgemm":
        pytest.importorskip("matplotlib")
        plots.beside(made, tmp_path / "spgemm.png", tmp_path / "none.json")
        assert {"spgemm-profiles.png", "spgemm-model.png"} <= {path.name for path in tmp_path.iterdir()}


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
        assert auto["gflops"] == pytest.approx(4e-3 * c["nnz"] * c["feat"] / auto["us"], rel=0.01, abs=0.01)
        assert c["contenders"]["sddmm, then spmm"]["kind"] == "peer" and "gflops" not in c["contenders"]["spmm alone"]
    table.save(made, tmp_path / "fused.json")
    assert "| GFLOP/s |" in (tmp_path / "fused.md").read_text()
    plots.beside(made, tmp_path / "fused.png", tmp_path / "none.json")
    assert (tmp_path / "fused-bars.png").exists()
    (tmp_path / "fused-cuda-pruned.json").write_text(json.dumps(made))
    text = answers.made("fused_algorithms", tmp_path)
    assert "| K | zeros | spmm alone / auto | most GFLOP/s |" in text and "| 32 | 90 % | " in text


def test_what_a_cpu_is_held_against_is_right_and_gets_its_tables(
    tiny: fusedmm.CSR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers compute the same, gradients too; each of the file's cases is a line of docs/cpu.md."""
    pytest.importorskip("torch_geometric")
    pytest.importorskip("tqdm")
    monkeypatch.setattr(graphs, "load", lambda name, device: tiny)
    document = {"op": "forms", "device": "cpu", "conditions": report.conditions("cpu", Clock("cpu"))}
    for stem, dtype, cases in (
        ("forms-cpu-trained", torch.float32, ("trained", "edge_softmax")),
        ("forms-cpu-bf16-beside", torch.bfloat16, ("beside",)),
    ):
        options = jobs.Options(seconds=0.0, graphs=("tiny",), cases=cases, dtype=dtype, threads=1)
        made = jobs.collect(bench_forms.jobs, {**document, "cases": []}, options, tmp_path / "partial.json")
        assert len(made["cases"]) == (7 if dtype == torch.float32 else 3)
        for c in made["cases"]:
            assert not c["refused"] and len(c["contenders"]) == (2 if "beside" in c["case"] else 3)
            assert all(f["error"] <= f["error_limit"] for f in c["contenders"].values()), c
        table.save(made, tmp_path / f"{stem}.json")
    lines = summary.made("cpu_beside", tmp_path).splitlines()
    cells = [line.split(" | ")[1:5:3] for line in lines if line.startswith("| CPU")]
    assert cells[0] == ["`spmm` in bfloat16", "`spmm` in float32"] and ["`edge_softmax`", "PyG"] in cells
    assert ["a maximum, forward + backward", "torch.sparse"] in cells


def test_walls_stand_by_threads(tiny: fusedmm.CSR, tmp_path: Path) -> None:
    document = suite_of("spmm", tiny, "tiny")
    for c in document["cases"]:
        c["threads"] = 1
    (tmp_path / "spmm-cpu-wall.json").write_text(json.dumps(document))
    assert "| best peer / ours and wall / ours | K 32 | K 64 |" in answers.made("cpu_one_thread", tmp_path)
    assert "K 32" not in answers.made("cpu_two_threads", tmp_path)


def test_who_waits_too_long_is_left_out_with_the_time() -> None:
    def slow() -> tuple[torch.Tensor, ...]:
        time.sleep(0.02)
        return (torch.zeros(10),)

    trials = [Trial("auto", lambda: slow, "ours"), Trial("slow", lambda: slow)]
    found = run(trials, Clock("cpu"), Wanted(seconds=0.0, patience=0.01))
    assert list(found["contenders"]) == ["auto"] and "not measured: a step takes" in found["refused"]["slow"]


@pytest.mark.parametrize("waits", [False, True])
def test_the_host_leads_but_for_steps_that_wait(waits: bool, cuda: str) -> None:
    leads: list[float] = []

    class Seen(Clock):
        def run(self, calls: list[Any], lead: float = 0.0) -> list[float]:
            leads.append(lead)
            return super().run(calls, lead)

    step = Trial("auto", lambda: lambda: (torch.zeros(10, device=cuda),), "ours")
    run([step], Seen(cuda), replace(QUICK, waits=waits))
    assert leads and all((lead == 0) == waits for lead in leads)


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


def test_what_there_was_no_memory_to_check_is_not_checked(tmp_path: Path) -> None:
    """The case stands with its time; any other error of a check ends the run."""

    def raises(error: RuntimeError) -> Trial:
        return Trial("auto", lambda: lambda: (torch.zeros(10),), "ours", check=lambda: (_ for _ in ()).throw(error))

    found = run([raises(torch.OutOfMemoryError("much too large"))], Clock("cpu"), QUICK)
    assert found["contenders"]["auto"]["not_checked"] == "out of memory"
    document = {"op": "attention", "device": "cpu", "conditions": {}}
    document["cases"] = [{"graph": "g", "nnz": 1, "case": "c", **found}]
    table.save(document, tmp_path / "a.json")
    assert " | not checked |" in (tmp_path / "a.md").read_text()
    with pytest.raises(RuntimeError, match="the real cause"):
        run([raises(RuntimeError("the real cause"))], Clock("cpu"), QUICK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_that_is_not_finite_is_seen(dtype: torch.dtype, device: str) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        numbers = torch.randn(50, 4, device=device).to(dtype).requires_grad_()
        assert check.finite(numbers)
        numbers.data[31, 2] = bad
        assert not check.finite(numbers)


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
    made = case.run(bench_spmm.case(graphs.load(name, "cpu"), 32, torch.float32, True, case.Choice()), clock, 0.0)
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


def suite_of(op: str, tiny: fusedmm.CSR, graph: str, feats: tuple[int, ...] = (32, 64)) -> dict:
    """A document as a suite on a GPU makes it, with a stand-in for the wall."""
    clock, make = Clock("cpu"), {"spmm": bench_spmm.case, "sddmm": bench_sddmm.case}[op]
    document = {"op": op, "device": "cpu", "dtype": "f32", "suite": "twins", "cases": []}
    for feat in feats:
        made = make(tiny, feat, torch.float32, op == "spmm", case.Choice())
        lower = Contender("gather_wall:1x4", lambda: torch.zeros(1), wall=True)
        far = Contender("cusparse_coo", lambda make=made.contenders[0].call: (time.sleep(0.05), make())[1])
        lesson = Contender("shared:32", made.contenders[0].call)
        made = replace(made, contenders=[*made.contenders, lower, far, lesson])
        head = {"graph": graph, "rows": tiny.shape[0], "cols": tiny.shape[1], "nnz": tiny.nnz, "feat": feat}
        document["cases"].append(head | {"weighted": op == "spmm", "threads": None} | case.run(made, clock, 0.0))
    document["conditions"] = report.conditions("cpu", clock)
    return document


def test_a_disturbed_run_does_not_count() -> None:
    """Who was slow in the first round is asked again; who is slow in both has the quicker run, and no more."""
    times = {"auto": [1.0], "disturbed": [30.0, 2.0], "slow": [30.0, 20.0]}
    names = {name: (lambda name=name: name) for name in times}

    class Told(Clock):
        def run(self, calls: list[Any], lead: float = 0.0) -> list[float]:
            found = [times[call()] for call in calls]
            return [left.pop(0) if left[1:] else left[0] for left in found]

    auto, disturbed, slow = measure([Contender(name, call) for name, call in names.items()], Told("cpu"), 0.0)
    assert (statistics.median(auto), statistics.median(disturbed), slow) == (1.0, 2.0, [20.0])
    assert len(auto) == len(disturbed) > 1


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_the_wall_is_no_peer_and_who_is_far_behind_has_one_run(op: str, tiny: fusedmm.CSR, tmp_path: Path) -> None:
    document = suite_of(op, tiny, "tiny")
    for c in document["cases"]:
        found = c["contenders"]
        assert found["gather_wall:1x4"]["wall"] and "error" not in found["gather_wall:1x4"]
        assert found["cusparse_coo"]["runs"] == 1 and found["cusparse_coo"]["error_over_bound"] <= 1
        assert found["auto"]["runs"] >= 3 and c["best_peer"] not in ("gather_wall:1x4", "cusparse_coo")
        assert 0 < reading.wall_share(c) < 1
    report.save(document, tmp_path / "twins.json")
    text = (tmp_path / "twins.md").read_text()
    assert "times faster than cusparse | K 32 | K 64 |" in text and " % |" in text
    pytest.importorskip("matplotlib")
    report.plot(document, tmp_path / "twins.png")
    plots.beside(document, tmp_path / "twins.png", tmp_path / "none.json")
    assert (tmp_path / "twins-cusparse.png").stat().st_size > 0


def test_a_case_that_no_peer_computes_stands_without_a_speedup(tiny: fusedmm.CSR, tmp_path: Path) -> None:
    made = bench_sddmm.case(tiny, 8, torch.float32, False, case.Choice())
    alone = replace(made, contenders=[c for c in made.contenders if not c.peer])
    head = {"graph": "tiny", "nnz": tiny.nnz, "feat": 8, "weighted": False, "threads": None}
    cases = [head | case.run(one, Clock("cpu"), 0.0) for one in (alone, made)]
    document = {"op": "sddmm", "device": "cpu", "dtype": "f32", "suite": "graphs", "conditions": {}, "cases": cases}
    report.save(document, tmp_path / "alone.json")
    assert cases[0]["best_peer"] is None and cases[1]["speedup"] > 0
    assert list(document["summary"]["geomean_speedup"].values()) == [pytest.approx(cases[1]["speedup"], abs=1e-3)]
    assert "| none ran |" in (tmp_path / "alone.md").read_text()


def test_pages_get_their_tables(tiny: fusedmm.CSR, tmp_path: Path) -> None:
    sweeps = suite_of("spmm", tiny, "512x256 90%")
    for suite, document in (("twins", suite_of("spmm", tiny, "tiny")), ("sweeps", sweeps), ("pruned", sweeps)):
        (tmp_path / f"spmm-cuda-{suite}.json").write_text(json.dumps(document))
    for name in ("spmm", "sddmm", "fused", "spmv", "spgemm"):
        page = tmp_path / f"{name}.md"
        page.write_text((ROOT / "docs" / f"{name}.md").read_text())
        before = page.read_text()
        marks = [m[2] for m in answers.MARKED.finditer(before)]
        assert marks and set(marks) == {key for key in answers.TABLES if key.startswith(f"{name}_")}
        answers.fill(page, tmp_path)
        once = page.read_text()
        answers.fill(page, tmp_path)
        assert page.read_text() == once and (once == before) == (name != "spmm")
    text = (tmp_path / "spmm.md").read_text()
    assert "| best peer / ours and wall / ours | K 32 | K 64 |" in text and "| 512x256 90% | 32 |" in text


def test_choice_of_algorithms() -> None:
    def algorithm(name: str, number: int) -> fusedmm.Algorithm:
        return fusedmm.Algorithm(number, name, "", "", True)

    few = case.Choice(plugins=("row_split",))
    assert few.wants(algorithm("gather_wall:1x4", 1000)) and few.wants(algorithm("row_split:4", 1001))
    assert not few.wants(algorithm("crc", 1002)) and case.Choice().wants(algorithm("crc", 1002))
    assert few.wants(algorithm("segments", 2)) and not few.wants(algorithm("reference", 1))


def test_a_graph_that_does_not_exist_is_named_beside_those_that_do(monkeypatch) -> None:
    main = importlib.import_module("benchmarks.__main__")
    monkeypatch.setattr(graphs, "names", lambda suite: ["cora"])
    with pytest.raises(SystemExit, match=r"--graphs: no nope\.npz: .*; there are cora, arxiv-size, "):
        main.main(["spgemm", "--graphs", "arxiv-size,5-point 9^2,nope"])


def test_every_benchmark_is_one_that_there_is_and_says_how_it_ended(monkeypatch, capsys, tmp_path) -> None:
    main = importlib.import_module("benchmarks.__main__")
    for device, lines in every.ALL.items():
        written = [main.arguments([*line.split(), "--device", device]).json for line in lines]
        assert len(set(written)) == len(lines)
    monkeypatch.setattr(every, "ALL", {"cpu": ["nothing"]})
    assert every.run("cpu", 60, lambda argv: tmp_path / "absent.json") == 1
    assert "invalid choice: 'nothing'" in capsys.readouterr().out
    monkeypatch.setattr(every, "ALL", {"cpu": ["slow", "slower"]})
    monkeypatch.setattr(every, "MODULE", [sys.executable, "-c", "import time; time.sleep(1)"])
    every.so_far(tmp_path / "absent.json").write_text("so far")
    assert every.run("cpu", 0.01, lambda argv: tmp_path / "absent.json") == 2
    assert capsys.readouterr().out.count("stopped") == 2
    assert (tmp_path / "absent.json").read_text() == "so far"


def test_what_cannot_be_launched_is_compiled_anew():
    """With other tiles; any other error is the peer's reason."""
    seen = []

    def run(form):
        seen.append(form)
        if len(seen) == 1:
            raise RuntimeError("CUDA driver error: invalid argument")

    assert compiled(torch.sin, run, dynamic=False) is seen[1] is not seen[0]
    with pytest.raises(RuntimeError, match="the real cause"):
        compiled(torch.sin, lambda _: (_ for _ in ()).throw(RuntimeError("the real cause")), dynamic=False)
