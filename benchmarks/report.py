"""Results as JSON, a Markdown table and a plot."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import fusedmm
from benchmarks.harness import Clock
from benchmarks.plots import speedups

Document = dict[str, Any]

# Set before the process starts: threads stay on their cores, and freed outputs are not given back to the
# system, so that page faults are not timed and the poison of one run is what the next one gets.
CPU_ENVIRONMENT = {"OMP_PROC_BIND": "true", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**36)}


def conditions(device: str, clock: Clock) -> Document:
    """What the figures depend on."""
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    info = fusedmm.build_info()
    found = {k: info[k] for k in ("version", "compiler", "torch")}
    found |= {
        "python": platform.python_version(),
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
    }
    found["method"] = "medians, contenders interleaved in one process; values and operands normal, none of them ones"
    if device == "cpu":
        found |= {"isa": info["isa"], "environment": {k: os.environ.get(k) for k in CPU_ENVIRONMENT}}
        found["timing"] = "host clock, one untimed call before each timed one, one process per number of threads"
        return found
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError) as error:
        found["driver"] = f"unknown ({type(error).__name__})"
    found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "build": info["cuda"]}
    cold = f"L2 cold, {clock.flush.numel() >> 20} MiB are written before each run"
    found["timing"] = f"CUDA events; {cold}; warm: the least of 20 runs without that"
    return found


def _setting(c: Document) -> str:
    threads = f", {c['threads']} thread{'s' * (c['threads'] > 1)}" if c["threads"] else ""
    return f"K {c['feat']}{threads}{'' if c['weighted'] else ', no values'}"


def summarize(cases: list[Document]) -> Document:
    """Geometric means of the speedups, the cases that a peer wins, and results that are not right or not poisoned."""
    logs: dict[str, list[float]] = {}
    found: Document = {"geomean_speedup": {}, "slower": [], "out_of_bound": [], "not_poisoned": []}
    for c in cases:
        label = f"{c['graph']}, {_setting(c)}"
        logs.setdefault(_setting(c), []).append(math.log(c["speedup"]))
        if c["speedup"] < 1:
            found["slower"].append(f"{label}: {c['speedup']} of {c['best_peer']}")
        for name, r in c["contenders"].items():
            if r.get("dense"):
                continue
            if not r["error_over_bound"] <= 1:
                found["out_of_bound"].append(f"{label}: {name}")
            if not r["poisoned"]:
                found["not_poisoned"].append(f"{label}: {name}")
    found["geomean_speedup"] = {k: round(math.exp(sum(v) / len(v)), 3) for k, v in logs.items()}
    return found


def markdown(document: Document) -> str:
    """Conditions, table, summary."""
    lines = [f"# {document['op']} on {document['device']}, {document['dtype']}", ""]
    lines += [f"- {k}: {v}" for k, v in document["conditions"].items()]
    lines += ["", "Times in µs; GB/s of gathered rows; speedup: time of the best peer over that of auto. Results", ""]
    lines[-2] += " are checked against float64, of large matrices a sample of rows or entries (JSON: checked)."
    beside = list(dict.fromkeys(n for c in document["cases"] for n, r in c["contenders"].items() if r.get("dense")))
    head = ["graph", "nnz", "case", "auto", "best of ours", "best peer", "speedup", "warm: auto, least of the peers"]
    head += ["GFLOP/s", "GB/s", "error", "error/bound", *beside]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for c in document["cases"]:
        auto, peer = c["contenders"]["auto"], c["contenders"][c["best_peer"]]
        named = [(r["us"], n) for n, r in c["contenders"].items() if r["ours"] and n != "auto"]
        warm = min(r["warm_us"] for r in c["contenders"].values() if not r["ours"] and not r.get("dense"))
        us, best = min(named, default=(auto["us"], "auto"))
        cells = [c["graph"], f"{c['nnz']:,}", _setting(c), f"{auto['us']:.1f}", f"{us:.1f} {best}"]
        cells += [f"{peer['us']:.1f} {c['best_peer']}", f"{c['speedup']:.2f}"]
        cells += [f"{auto['warm_us']:.1f}, {warm:.1f}", f"{auto['gflops']:.1f}"]
        cells += [f"{auto['gather_gbs']:.1f}", f"{auto['error']:.1e}", f"{auto['error_over_bound']:.2f}"]
        cells += [f"{c['contenders'][n]['us']:.1f}" if n in c["contenders"] else "" for n in beside]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(speedups(document, peer) for peer in ("torch.sparse", "cusparse"))]
    summary = document["summary"]
    lines += ["", "| case | geometric mean of speedups |", "|---|---|"]
    lines += [f"| {k} | {v} |" for k, v in summary["geomean_speedup"].items()]
    for key in ("slower", "out_of_bound", "not_poisoned"):
        lines += ["", f"{key.replace('_', ' ').capitalize()}: {'; '.join(summary[key]) or 'none'}."]
    return "\n".join(lines) + "\n"


def plot(document: Document, path: Path) -> None:
    """Speedup over the best peer, one dot per case."""
    from matplotlib.figure import Figure

    settings = list(document["summary"]["geomean_speedup"])
    graphs = list(dict.fromkeys(c["graph"] for c in document["cases"]))[::-1]
    figure = Figure(figsize=(8, 1.5 + 0.35 * len(graphs)), layout="constrained")
    axes = figure.subplots()
    for k, setting in enumerate(settings):
        cases = [c for c in document["cases"] if _setting(c) == setting]
        height = [graphs.index(c["graph"]) - 0.6 * ((k + 0.5) / len(settings) - 0.5) for c in cases]
        axes.scatter([c["speedup"] for c in cases], height, s=16, label=setting, color=f"C{k % 10}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="times faster than the best of torch", yticks=range(len(graphs)), yticklabels=graphs)
    machine = document["conditions"].get("gpu", document["conditions"]["cpu"])
    axes.set_title(f"{document['op']}, {document['dtype']}, {machine}, torch {document['conditions']['torch']}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def save(document: Document, path: Path) -> None:
    """JSON at path, the table beside it and printed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document["summary"] = summarize(document["cases"])
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(document))
    print(markdown(document))
