"""Command line: ``python -m benchmarks spmm|sddmm|host --device cpu|cuda``, ``python -m benchmarks plot FILE.json``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fusedmm
from benchmarks import bench_host, bench_sddmm, bench_spmm, case, graphs, report
from benchmarks.harness import Clock

RESULTS = Path(__file__).parent / "results"
CASES = {"spmm": (bench_spmm.case, [True]), "sddmm": (bench_sddmm.case, [True, False])}  # with values or without
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def arguments(argv: list[str]) -> argparse.Namespace:
    """The options, completed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="fusedmm beside torch.sparse")
    parser.add_argument("op", choices=[*CASES, "host", "plot"])
    parser.add_argument("file", type=Path, nargs="?", help="results to plot")
    parser.add_argument("--suite", choices=["graphs", "twins"], default="graphs")
    parser.add_argument("--graphs", type=lambda s: s.split(","), help="names, separated by commas; all by default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--features", type=int, nargs="+", default=[32, 128, 256])
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32")
    parser.add_argument(
        "--threads", type=int, nargs="+", help="CPU; by default 1 and all; for host 1, in five processes"
    )
    parser.add_argument("--seconds-per-case", type=float, default=0.3)
    parser.add_argument("--reference", action="store_true", help="time the reference algorithms too")
    parser.add_argument("--plugins", type=Path, nargs="+", default=[], help="libraries with more algorithms to time")
    parser.add_argument("--json", type=Path, help="by default benchmarks/results/OP-DEVICE.json; a .md goes beside it")
    parser.add_argument("--plot", type=Path, help="by default beside the JSON")
    options = parser.parse_args(argv)
    name = [options.op, options.device, *[options.suite] * (options.suite != "graphs")]
    options.json = (
        options.file
        or options.json
        or RESULTS / f"{'-'.join([*name, *[options.dtype][: options.dtype != 'f32']])}.json"
    )
    options.plot = options.plot or options.json.with_suffix(".png")
    options.threads = options.threads or ([1] * 5 if options.op == "host" else sorted({1, os.cpu_count() or 1}))
    return options


def collect(options: argparse.Namespace, threads: int | None) -> dict[str, Any]:
    """Runs every case in this process."""
    for plugin in options.plugins:
        fusedmm.load_algorithms(plugin)
    clock = Clock(options.device)
    document = {"op": options.op, "device": options.device, "dtype": options.dtype}
    document["conditions"] = report.conditions(options.device, clock)
    if options.op == "host":
        document["conditions"]["timing"] = f"host clock, interleaved blocks of {bench_host.CALLS} calls"
        return {**document, "cases": bench_host.run(options.device, options.seconds_per_case)}
    make, weights = CASES[options.op]
    cases: list[dict[str, Any]] = []
    for name, adj in graphs.suite(options.suite, options.device, options.graphs):
        for feat in options.features:
            for weighted in weights:
                made = make(adj, feat, DTYPES[options.dtype], weighted, options.reference)
                head = {"graph": name, "rows": adj.shape[0], "cols": adj.shape[1], "nnz": adj.nnz}
                head |= {"feat": feat, "weighted": weighted, "threads": threads}
                cases.append(head | case.run(made, clock, options.seconds_per_case))
                print(f"{head} {cases[-1]['speedup']} of {cases[-1]['best_peer']}", file=sys.stderr, flush=True)
    return {**document, "cases": cases}


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
            subprocess.run([sys.executable, "-m", "benchmarks", *argv], env=environment, check=True)
            parts.append(json.loads(path.read_text()))
    return {**parts[0], "cases": [c for part in parts for c in part["cases"]]}


def main(argv: list[str]) -> None:
    """Measures, writes the files, prints the table."""
    options = arguments(argv)
    if part := os.environ.get("BENCHMARK_PART"):
        threads = int(os.environ["OMP_NUM_THREADS"])
        torch.set_num_threads(threads)
        Path(part).write_text(json.dumps(collect(options, threads)))
        return
    if options.op != "plot":
        if options.device == "cpu" or options.op == "host":
            document = per_process(argv, options.threads)
        else:
            document = collect(options, None)
        (bench_host if options.op == "host" else report).save(document, options.json)
    if options.op != "host":
        try:
            report.plot(json.loads(options.json.read_text()), options.plot)
        except ImportError as error:
            print(f"no plot ({error}); where matplotlib is: python -m benchmarks plot {options.json}")


if __name__ == "__main__":
    main(sys.argv[1:])
