"""What the benchmarks write is right: their small files, and the tables of pages that are made from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusedmm
from benchmarks import (
    absolute,
    answers,
    attention_report,
    bench_spgemm,
    hypergraph,
    jobs,
    plots,
    report,
    store,
    table,
)
from benchmarks.harness import Clock


def test_shares_of_a_copy_are_of_those_that_ran() -> None:
    """A contender that was far behind, or a copy that did not run, has no bytes a second."""
    copy, dia = {"gbs": 4000.0, "kind": "wall"}, {"gbs": 3000.0, "kind": "ours"}
    ran = {"graph": "grid", "contenders": {answers.COPY: copy, "dia": dia, "sell": {"us": 9.0}}}
    without = {"graph": "road", "contenders": {"dia": dia, answers.COPY: {}}}
    lines = answers.of_peak({"cases": [ran, without]}).splitlines()
    assert lines[-2] == "| grid |  |  |  |  |  | 75 % | 100 % |" and lines[-1] == "| road |  |  |  |  |  | 75 % |  |"
    assert answers.of_peak({"cases": [without]}) == ""


def test_a_small_file_has_what_tables_need_and_the_raw_one_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RAW", tmp_path / "raw")
    auto = {"us": 12.34567, "us_quartiles": [12.0, 13.25], "runs": 9, "ours": True}
    peer = {"us": 23456.78, "us_quartiles": [2.0, 3.0], "runs": 7, "peak_mib": 1.5}
    case = {"graph": "cora", "feat": 8, "threads": None, "contenders": {"auto": auto, "peer": peer}}
    document = {"op": "spmm", "cases": [case | {"refused": {"b": "too large", "c": "too large"}}]}
    store.save(document, tmp_path / "small.json")
    assert json.loads((tmp_path / "raw" / "small.json").read_text()) == document
    found = store.load(tmp_path / "small.json")["cases"][0]
    assert found["graph"] == "cora" and found["threads"] is None
    assert found["contenders"]["auto"] == {**auto, "us": 12.35, "ours": 1}
    assert found["contenders"]["peer"] == {"us": 23460, "peak_mib": 1.5}
    assert found["refused"] == {"b": "too large", "c": "too large"}
    assert store.load(tmp_path / "raw" / "small.json") == document


def test_the_hypergraph_counts_lines_by_hand() -> None:
    """Four rows of A want row 0 of B, which has 10 entries: 80 bytes of columns and values, so two lines."""
    zeros, ones = torch.zeros(4, dtype=torch.int64), torch.ones(4)
    a = fusedmm.CSR.from_coo(torch.arange(4), zeros, ones, shape=(4, 2))
    b = fusedmm.CSR.from_coo(zeros.repeat(3)[:10], torch.arange(10) * 2, torch.ones(10), shape=(2, 20))
    plan = fusedmm.spgemm_plan(a, b)
    for first, parts in (([0] + [4] * 512, 1), ([0, 2] + [4] * 511, 2), ([0, 1, 2, 3] + [4] * 509, 4)):
        schedule = torch.tensor([1, *first])
        found = hypergraph.traffic(replace(plan, schedule=schedule))
        # 40 products; columns 0 to 14 and 16 to 18 are two lines of sums
        exact = (round(2 * 40 / (parts * 2 * 8), 2), parts, 1 - parts / 4, 1 - parts * 2 / 40)
        assert tuple(found.values()) == exact


def test_the_hypergraph_of_a_gpu_counts_windows_by_hand() -> None:
    """A row of four entries of A, of which each has 600 columns of C for itself: three windows of 800 sums, or seven
    whose hash table has room for 384. An entry is sought in 20 steps at most, each a sector."""
    a = fusedmm.CSR.from_coo(torch.zeros(4, dtype=torch.int64), torch.arange(4), torch.ones(4), shape=(1, 4))
    b = fusedmm.CSR.from_coo(torch.arange(4).repeat_interleave(600), torch.arange(2400), torch.ones(2400))
    plan = fusedmm.spgemm_plan(a, b)
    found = hypergraph.of_warps(replace(plan, products=plan.products[:0]))

    def read(windows: int, columns: int) -> int:
        """Of each entry: itself, its row's place and the search, in each window; the row, cut at any place. Of C the
        columns, unless sums are found without; and where rows of A and C begin."""
        return 4 * (windows * (8 + 32 + 20 * 32) + 600 * 8 + windows * (64 - 8)) + columns * 4 + 16

    assert found["kkspeed"] == hypergraph.Read(read(3, 0), 3.0, 3)
    assert found["auto"] == hypergraph.Read(read(3, 2400), 3.0, 3)
    assert found["kkmem"] == found["sort"] == hypergraph.Read(read(7, 2400), 7.0, 7)
    # 75 windows of 32 entries, records of two bytes, and 100 runs of eight: each has a sector more of B
    kept = torch.zeros((75 * 24 + 2400 * 2 + 100 * 8) // 4, dtype=torch.int32)
    found = hypergraph.of_warps(replace(plan, products=kept))
    assert found["auto"] == hypergraph.Read(4 * kept.numel() + 100 * 32 + 2400 * 4, 25.0, 75)


def test_small_rows_are_read_once_on_a_gpu() -> None:
    """A grid's rows are merged, by ``auto`` and where tables are sorted; dense sums of 25 columns that lie far apart
    take a window each."""
    a = fusedmm.data.stencil(50, 50, 50, points=7)
    plan = fusedmm.spgemm_plan(a, a)
    found = hypergraph.of_warps(replace(plan, products=plan.products[:0]))
    assert found["auto"] == found["sort"] and found["auto"].visits == found["kkmem"].visits == 1.0
    assert found["kkspeed"].visits > 3 and found["kkspeed"].bytes > 3 * found["auto"].bytes


def test_rates_stand_beside_what_is_read() -> None:
    """A line for each case that says what is read: GFLOP/s, flops for a double and products of a window; and what the
    second could be at most: 2 * 1,000 flops over 16 entries of 8 bytes and 5 pointers, which are 21 doubles."""
    known = {"us": 10.0, "gflops": 0.2, "flops_per_double": 1.234, "of_window": 1234.5}
    contenders = {"auto": known, "sort": {**known, "us": 20.0}, answers.COPY: {"us": 4.0}}
    case = {"graph": "g", "case": "A A with a plan", "rows": 4, "nnz": 16, "products": 1000, "contenders": contenders}
    document = {"dtype": "f32", "cases": [case, case | {"contenders": {"auto": {"us": 10.0}}}]}
    lines = answers.read(document).splitlines()
    assert lines[2:] == ["| g | 0.2, 1.23, 1,234 |  |  | 0.2, 1.23, 1,234 | 95.2 | 40 % |"]
    assert answers.read({"dtype": "f32", "cases": document["cases"][1:]}) == ""


def test_what_plans_keep_stands_where_it_was_measured() -> None:
    """Values by a plan beside cuSPARSE's reuse, what the plan keeps, and what it takes to make one."""
    contenders = {"auto": {"us": 10.0}, "cuSPARSE reuse": {"us": 12.5}, "torch CSR @ CSR": {"us": 99.0}}
    case = {"graph": "g", "case": "A A with a plan", "contenders": contenders}
    assert answers.kept({"cases": [case]}) == ""
    lines = answers.kept({"cases": [case, case | {"kept_mib": 3.5, "making": 1.25}]}).splitlines()
    assert lines[2:] == ["| g | 10.0 | 12.5 | 1.25 | 3.5 | 1.25 |", "| geometric mean |  |  | 1.25 |  |  |"]


def test_a_table_of_messages_has_a_column_for_each_width() -> None:
    """The best peer's time over ours; on a CPU the threads are told."""
    contenders = {
        name: {"kind": kind, "us": us} for name, kind, us in (("auto", "ours", 2.0), ("index_add", "peer", 3.0))
    }
    of = [f"copy_rhs sum, {feat} features, sorted edges, 2 threads" for feat in (1, 8)]
    table = answers.messages({"cases": [{"graph": "g", "case": case, "contenders": contenders} for case in of]})
    assert "| graph | call | edges | threads | F 1 | F 8 |" in table
    assert "| g | copy_rhs sum | sorted | 2 | 1.50 | 1.50 |" in table


def test_epochs_of_all_graphs_share_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file's cases are there, under the name of their layer, and the picture lies beside the files."""
    contenders = {name: {"us": us, "peak_mib": us} for name, us in (("auto", 2.0), ("PyG compiled", 6.0))}
    case = {"case": "GATConv epoch", "nnz": 7, "contenders": contenders, "refused": {"PyG": "not tried: too large"}}
    head = {"op": "epochs", "device": "cuda", "conditions": {"gpu": "a GPU", "torch": "2"}}
    for graph in ("arxiv-symmetric", "products-symmetric"):
        document = {**head, "cases": [case | {"graph": graph}]}
        (tmp_path / f"epochs-cuda-{graph}.json").write_text(json.dumps(document))
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "sides", lambda document, *rest: drawn.append((document["cases"], rest[-1])))
    plots.beside(json.loads((tmp_path / "epochs-cuda-arxiv-symmetric.json").read_text()), tmp_path / "a.png", tmp_path)
    ((cases, path),) = drawn
    assert [c["graph"] for c in cases] == ["GATConv, arxiv-symmetric", "GATConv, products-symmetric"]
    assert path == tmp_path / "epochs-cuda.png"


def attention(form: str, us: float, **figures: dict[str, float]) -> dict[str, Any]:
    """A case of attention with 2^16 rows, whose result takes 1 MiB and whose step 3."""
    auto = {"kind": "ours", "us": us, "peak_mib": 3.0, "result_mib": 1.0}
    head = {"graph": "reddit-symmetric", "rows": 2**16, "nnz": 7, "case": f"additive 1x4 {form}", "refused": {}}
    speedup = figures["torch.sparse"]["us"] / us if "torch.sparse" in figures else None
    peer = {"best_peer": "torch.sparse" if speedup else None, "speedup": speedup}
    return head | peer | {"contenders": {"auto": auto, **figures}}


def test_tables_of_attention_say_what_they_should(tmp_path: Path) -> None:
    """Ratios, shares and memory by hand; where nobody else ran, the case stands all the same."""
    wall, sparse = {"kind": "wall", "us": 4.5}, {"kind": "peer", "us": 24.0, "peak_mib": 9.0}
    cases = [
        attention("float32 forward", 5.0, **{"gather only": wall}),
        attention("float32 forward + backward", 12.0, **{"torch.sparse": sparse}),
        attention("bfloat16 forward", 4.0),
    ]
    assert attention_report.beside(tmp_path) == ""
    head = {"op": "attention", "conditions": {"gpu": "NVIDIA H100", "cpu": "", "torch": "2"}}
    (tmp_path / "attention-cuda.json").write_text(json.dumps({**head, "cases": cases}))
    last = {name: make(tmp_path).splitlines()[-1] for name, make in attention_report.TABLES.items()}
    assert last["attention_beside"] == "| additive 1x4 | 12.0 µs: -, -, 2.0 |"
    assert last["attention_halves"] == "| additive 1x4 | 0.80, - |"
    assert last["attention_wall"] == "| additive 1x4 | 90 %, - |"
    # 3 over 1.5 + 1 MiB; gradients of v, 1 MiB, and of q and k, 0.5: 4.5 over 1.5 * 2.5 + 1
    assert last["attention_memory"] == "| additive 1x4 | 1.20, -, 0.95 |"
    alone = attention("float32 forward + backward", 12.0)
    older = {"op": "attention", "conditions": {"gpu": "NVIDIA H200"}, "cases": [alone]}
    (tmp_path / "attention-cuda-compiled-products.json").write_text(json.dumps(older))
    about = "reddit-symmetric | additive 1x4 float32 | 12.0 µs, 3.00 MiB"
    assert absolute.large(tmp_path).splitlines()[2:] == [
        f"| H100 | {about} | 24.0 µs, 9.00 MiB | torch.sparse | 2.0 |",
        f"| H200 | {about} |  | none ran |  |",
    ]


def test_what_windows_read_on_a_gpu_goes_into_files_and_a_picture(tmp_path: Path) -> None:
    """What a run on CUDA knows of each algorithm, beside times of a CPU: the model reads the structure alone."""
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")

    def measured(name: str, adj: fusedmm.CSR, options: jobs.Options) -> Iterator[jobs.Job]:
        a = adj.with_values(torch.rand(adj.nnz))
        moved, of = bench_spgemm.read_by_warps(a, a)
        for job in bench_spgemm.jobs(name, adj, options):
            yield replace(job, facts=job.facts | moved, of=of)

    options = jobs.Options(seconds=0.0, graphs=("5-point 9^2",), cases=(bench_spgemm.PLANNED,))
    document = {"op": "spgemm", "device": "cpu", "dtype": "f32", "suite": "graphs"}
    document["conditions"] = report.conditions("cpu", Clock("cpu"))
    made = jobs.collect(measured, document, options, tmp_path / "partial.json")
    (found,) = made["cases"]
    auto, copy = (found["contenders"][name] for name in ("auto", bench_spgemm.COPY))
    assert auto["visits"] == 1.0 and auto["gbs"] > 0 and "flops_per_double" not in found["contenders"]["scipy"]
    size = 8 * (2 * found["nnz"] + found["nnz_c"]) + 24 * found["rows"]
    assert found["moved"][bench_spgemm.COPY] == size and copy["gbs"] == round(1e-3 * size / copy["us"], 1)
    reads = 16 * found["products"] / auto["flops_per_double"]
    assert found["moved"]["auto"] == pytest.approx(reads + 4 * found["nnz_c"], rel=2e-3)
    table.save(made, tmp_path / "spgemm.json")
    table.plot(made, tmp_path / "spgemm.png")
    text = (tmp_path / "spgemm.md").read_text()
    assert "| flops per double read | products of a window | windows of an entry of A |" in text
    assert "| flops per double, at most |" in text and (tmp_path / "spgemm-bandwidth.png").exists()
