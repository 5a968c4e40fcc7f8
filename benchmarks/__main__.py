"""Command line: ``python -m benchmarks NAME --device cpu|cuda``, ``python -m benchmarks plot FILE.json``,
``python -m benchmarks answers``, which fills the tables of README.md and docs/ from the results,
``python -m benchmarks every``."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fusedmm
from benchmarks import (
    CPUS,
    answers,
    bench_attention,
    bench_ceilings,
    bench_construction,
    bench_epochs,
    bench_forms,
    bench_fused,
    bench_gat_layer,
    bench_host,
    bench_layers,
    bench_masks,
    bench_messages,
    bench_sddmm,
    bench_spgemm,
    bench_spmm,
    bench_spmv,
    case,
    every,
    graphs,
    jobs,
    plots,
    report,
    store,
    table,
)
from benchmarks.harness import Clock

RESULTS = Path(__file__).parent / "results"
CASES = {"spmm": bench_spmm.case, "sddmm": bench_sddmm.case}
TWINS = list(graphs.SYMMETRIC)
REAL_SMALL = ["cora", "musae_github"]
REAL = ["amazon_photo", "coauthor_cs", "musae_github", "ogbl_ddi_train", "usa_road_ny"]
JOBS = {  # what lists its own cases, and on which matrices by default; none: all files of graphs
    "attention": (bench_attention.jobs, {"cpu": ["cora", "musae_github"], "cuda": ["musae_github", *TWINS]}),
    "layers": (
        bench_layers.jobs,
        {"cpu": ["cora", *bench_layers.EPOCHS], "cuda": ["cora", *bench_layers.EPOCHS, "musae_github", *TWINS]},
    ),
    "epochs": (bench_epochs.jobs, {"cpu": ["amazon_photo", "musae_github"], "cuda": TWINS}),
    "gat_layer": (
        bench_gat_layer.jobs,
        {"cpu": REAL_SMALL, "cuda": [*REAL_SMALL, "arxiv-symmetric", "reddit-symmetric"]},
    ),
    "masks": (bench_masks.jobs, {"cpu": ["512x512 95%"], "cuda": bench_masks.MASKS}),
    "fused": (bench_fused.jobs, {"cpu": ["cora", "musae_github"], "cuda": REAL}),
    "forms": (bench_forms.jobs, {"cpu": ["musae_github"], "cuda": ["ogbl_ddi_train", *TWINS]}),
    "spmv": (bench_spmv.jobs, {"cpu": [*REAL_SMALL, "usa_road_ny", "arxiv-size"], "cuda": []}),
    "messages": (
        bench_messages.jobs,
        {"cpu": ["cora", "musae_github"], "cuda": ["musae_github", "ogbl_ddi_train", "arxiv-size"]},
    ),
    "spgemm": (
        bench_spgemm.jobs,
        {
            "cpu": ["cora", "amazon_photo", "coauthor_cs", "ppi_n2v", "delaunay_n15", "usa_road_ny"],
            "cuda": ["cora", "citeseer", "delaunay_n15", "ppi_n2v", *REAL, "arxiv-size", *bench_spgemm.LARGE],
        },
    ),
    "construction": (bench_construction.jobs, {"cpu": ["arxiv-size"], "cuda": ["arxiv-size", "products-size"]}),
}
WIDTHS = {"twins": [32, 64, 128, 256, 512], "pruned": [32, 128], "sweeps": [32, 128]}  # the graphs': below
PLUGINS = {"twins": (), "pruned": ()}  # suites in which a plug-in's algorithms are too many, but for the walls
ALONE = {"host": bench_host, "ceilings": bench_ceilings}  # what needs no matrix
WRITERS = {**ALONE, "gat_layer": bench_gat_layer}  # what writes or draws its results itself
WAITS = ("construction", "gat_layer")  # whose steps are timed with the host's part
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def arguments(argv: list[str]) -> argparse.Namespace:
    """The options, completed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="fusedmm beside torch.sparse")
    parser.add_argument("op", choices=[*CASES, *JOBS, *ALONE, "plot", "answers", "every"])
    parser.add_argument("file", type=Path, nargs="?", help="results to plot")
    parser.add_argument("--suite", choices=list(graphs.SUITES), default="graphs")
    parser.add_argument("--graphs", type=lambda s: s.split(","), help="names, separated by commas; all by default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--features", type=int, nargs="+", help="widths; by default those of the suite")
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32")
    parser.add_argument(
        "--threads", type=int, nargs="+", help="CPU; by default 1 and all; for host 1, in five processes"
    )
    parser.add_argument("--cases", type=lambda s: s.split(","), default=[], help="words a case must have, as 'dot 8x8'")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the peers too, where there is one")
    parser.add_argument("--seconds-per-case", type=float, help="by default 0.3, in suites with many cases 0.1")
    parser.add_argument("--reference", action="store_true", help="time the reference algorithms too")
    parser.add_argument("--plugins", type=Path, nargs="+", default=[], help="libraries with more algorithms to time")
    parser.add_argument("--algorithms", type=lambda s: tuple(s.split(",")), help="of the plug-ins: names or beginnings")
    parser.add_argument("--limit", type=float, default=600, help="seconds that `every` gives to each table")
    parser.add_argument("--preprocess", action="store_true", help="SpMM: cuSPARSE with its state kept across calls too")
    parser.add_argument(
        "--json", type=Path, help="by default in benchmarks/results, named after the options; a .md goes beside it"
    )
    parser.add_argument("--plot", type=Path, help="by default beside the results")
    options = parser.parse_args(argv)
    name = [options.op.replace("_", "-"), options.device, *[options.suite] * (options.suite != "graphs")]
    name += [options.dtype] * (options.dtype != "f32") + ["compiled"] * options.compile
    name += [f"k{'-'.join(map(str, options.features))}"] if options.features else []
    options.json = options.file or options.json or RESULTS / f"{'-'.join(name)}.json"
    many = options.device == "cuda" and options.suite in WIDTHS and options.op in CASES
    options.seconds_per_case = options.seconds_per_case or (0.1 if many else 0.3)
    options.features = options.features or WIDTHS.get(options.suite, [32, 128, 256])
    options.plot = options.plot or options.json.with_suffix(".png")
    options.threads = options.threads or (
        [1] * 5
        if options.op == "host"
        else [os.cpu_count() or 1]
        if options.op == "ceilings"
        else sorted({1, os.cpu_count() or 1})
    )
    return options


def collect(options: argparse.Namespace, threads: int | None) -> dict[str, Any]:
    """Runs every case in this process."""
    for plugin in options.plugins:
        fusedmm.load_algorithms(plugin)
    clock = Clock(options.device)
    document = {"op": options.op, "device": options.device, "dtype": options.dtype, "suite": options.suite}
    document["conditions"] = report.conditions(options.device, clock)
    if options.op in JOBS:
        jobs_of, default = JOBS[options.op]
        if options.device == "cuda":
            lead = (
                "the host's part included"
                if options.op in WAITS
                else "before each run the device waits until it is enqueued"
            )
            document["conditions"]["timing"] += f"; {lead}"
        chosen = (options.suite == "graphs" and default[options.device]) or graphs.names(options.suite)
        asked = jobs.Options(
            device=options.device,
            dtype=DTYPES[options.dtype],
            seconds=options.seconds_per_case,
            graphs=tuple(options.graphs or chosen),
            cases=tuple(options.cases),
            compile=options.compile,
            threads=threads,
        )
        return jobs.collect(jobs_of, document, asked, every.so_far(options.json))
    if options.op == "ceilings":
        return {**document, "cases": bench_ceilings.run(options.device, options.seconds_per_case)}
    if options.op == "host":
        document["conditions"]["timing"] = f"host clock, interleaved blocks of {bench_host.CALLS} calls"
        return {**document, "cases": bench_host.run(options.device, options.seconds_per_case)}
    return measure(document, clock, options, threads)


def measure(document: dict[str, Any], clock: Clock, options: argparse.Namespace, threads: int | None) -> dict[str, Any]:
    """SpMM or SDDMM on every matrix of a suite, in every width. SDDMM has values on the graphs only: no peer has."""
    from tqdm import tqdm

    cases: list[dict[str, Any]] = document.setdefault("cases", [])
    options.json.parent.mkdir(parents=True, exist_ok=True)
    choice = case.Choice(options.reference, options.algorithms or PLUGINS.get(options.suite), options.preprocess)
    weights = [True] if options.op == "spmm" else [True, False] if options.suite == "graphs" else [False]
    names = options.graphs or graphs.names(options.suite)
    with tqdm(total=len(names) * len(options.features) * len(weights), disable=None) as bar:
        for name in names:
            adj = graphs.load(name, options.device)
            for feat, weighted in itertools.product(options.features, weights):
                bar.set_description(f"{name} K {feat}")
                head = {"graph": name, "rows": adj.shape[0], "cols": adj.shape[1], "nnz": adj.nnz}
                head |= {"feat": feat, "weighted": weighted, "threads": threads}
                made = CASES[options.op](adj, feat, DTYPES[options.dtype], weighted, choice)
                cases.append(head | case.run(made, clock, options.seconds_per_case))
                del made
                every.so_far(options.json).write_text(json.dumps(document))  # cut short, it has not been in vain
                bar.set_postfix_str(f"{cases[-1]['speedup']} of {cases[-1]['best_peer']}")
                bar.update()
            del adj
    return document


def per_process(argv: list[str], threads: list[int]) -> dict[str, Any]:
    """One process per number of threads, bound: a pool that changes its size times erratically."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for n in threads:
            path, root = Path(folder) / f"{n}.json", str(RESULTS.parents[1])
            environment = {
                **os.environ,
                **report.CPU_ENVIRONMENT,
                "OMP_NUM_THREADS": str(n),
                "BENCHMARK_PART": str(path),
            }
            environment["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, "-m", "benchmarks", *argv]
            subprocess.run(command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, CPUS), check=True)
            parts.append(json.loads(path.read_text()))
    return {**parts[0], "cases": [c for part in parts for c in part["cases"]]}


def writer(op: str) -> Any:
    """The module that writes a benchmark's results."""
    return WRITERS.get(op) or (table if op in JOBS else report)


def main(argv: list[str]) -> None:
    """Measures, writes the files, prints the table."""
    options = arguments(argv)
    if options.op == "answers":
        for page in answers.PAGES:
            answers.fill(page, RESULTS)
        return
    if options.op == "every":
        sys.exit(every.run(options.device, options.limit, lambda argv: arguments(argv).json))
    try:
        for name in options.graphs or []:
            graphs.require(name)
    except FileNotFoundError as error:
        sys.exit(f"python -m benchmarks: --graphs: {error}")
    if part := os.environ.get("BENCHMARK_PART"):
        threads = int(os.environ["OMP_NUM_THREADS"])
        torch.set_num_threads(threads)
        Path(part).write_text(json.dumps(collect(options, threads)))
        sys.stdout.flush()
        os._exit(0)  # torch.sparse's gradient in values on CUDA at times aborts an orderly exit
    if options.op == "plot":
        document = store.load(options.json)
    elif options.device == "cpu" or options.op == "host":
        document = per_process(argv, options.threads)
    else:
        document = collect(options, None)
    writer(document["op"]).save(document, options.json)
    every.so_far(options.json).unlink(missing_ok=True)
    if document["op"] != "host":
        try:
            writer(document["op"]).plot(document, options.plot)
            if document["op"] in (*CASES, "fused", "spgemm", "epochs"):
                plots.beside(document, options.plot, RESULTS / f"ceilings-{document['device']}.json")
        except ImportError as error:
            print(f"no plot ({error}); where matplotlib is: python -m benchmarks plot {options.json}")


if __name__ == "__main__":
    main(sys.argv[1:])
