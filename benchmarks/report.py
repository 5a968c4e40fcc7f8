"""Results of SpMM and SDDMM as JSON, Markdown tables and a plot; what every benchmark says of its conditions."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from pathlib import Path

import torch

import fusedmm
from benchmarks.harness import Clock
from benchmarks.plots import dots, speedups
from benchmarks.reading import ITEM, Document, best, flops, setting, wall_share
from benchmarks.sources import LIBRARY, source_hash
from benchmarks.store import write

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
    found["source"] = source_hash(LIBRARY)
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


def _geomean(values: list[float]) -> float:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3)


def summarize(cases: list[Document]) -> Document:
    """Geometric means of the speedups and of the shares of the wall, the cases that a peer wins, and results that are
    not right or not poisoned."""
    settings: dict[str, list[Document]] = {}
    found: Document = {"slower": [], "out_of_bound": [], "not_poisoned": []}
    for c in cases:
        label = f"{c['graph']}, {setting(c)}"
        settings.setdefault(setting(c), []).append(c)
        if c["speedup"] is not None and c["speedup"] < 1:
            found["slower"].append(f"{label}: {c['speedup']} of {c['best_peer']}")
        for name, r in c["contenders"].items():
            if "error" not in r:
                continue
            if not r["error_over_bound"] <= 1:
                found["out_of_bound"].append(f"{label}: {name}")
            if not r["poisoned"]:
                found["not_poisoned"].append(f"{label}: {name}")
    speedups_of = {k: [c["speedup"] for c in v if c["speedup"] is not None] for k, v in settings.items()}
    found["geomean_speedup"] = {k: _geomean(v) for k, v in speedups_of.items() if v}
    shares = {k: [w for c in v if (w := wall_share(c))] for k, v in settings.items()}
    found["geomean_of_the_wall"] = {k: _geomean(v) for k, v in shares.items() if v}
    return found


def _row(c: Document, dense: list[str], item: int) -> list[str]:
    """A case's line; item: bytes of a number."""
    auto, peer = c["contenders"]["auto"], c["best_peer"]
    us, name = min(((r["us"], n) for n, r in c["contenders"].items() if r["ours"] and n != "auto"), default=(0, ""))
    low, high = auto["us_quartiles"]
    share, warm = wall_share(c), best(c, "best peer", "warm_us")
    rate = 1e-3 * flops(c) / auto["us"]
    cells = [c["graph"], f"{c['nnz']:,}", setting(c), f"{auto['us']:.1f} ({low:.1f}-{high:.1f})"]
    cells += [f"{us:.1f} {name}" if name else ""]
    cells += [f"{c['contenders'][peer]['us']:.1f} {peer}", f"{c['speedup']:.2f}"] if peer else ["none ran", ""]
    cells += [f"{100 * share:.0f} %" if share else "", f"{auto['warm_us']:.1f}, {warm:.1f}", f"{rate:.1f}"]
    cells += [f"{rate / 2 * item:.1f}", f"{auto['error']:.1e}", f"{auto['error_over_bound']:.2f}"]
    return cells + [f"{c['contenders'][n]['us']:.1f}" if n in c["contenders"] else "" for n in dense]


def markdown(document: Document) -> str:
    """Conditions, table, summary."""
    cases, summary = document["cases"], document["summary"]
    lines = [f"# {document['op']} on {document['device']}, {document['dtype']}", ""]
    lines += [f"- {k}: {v}" for k, v in document["conditions"].items()]
    lines += ["", "Times in µs, of auto with quartiles; speedup: time of the best peer over that of auto; of the wall:"]
    lines += ["time of a kernel that only gathers the same rows, over that of auto; GFLOP/s and GB/s of gathered rows:"]
    lines += ["auto's. Results are checked against float64, of large matrices a sample of rows or"]
    lines += ["entries. Who was far behind in two runs had no more, and has the quicker one.", ""]
    dense = list(dict.fromkeys(n for c in cases for n, r in c["contenders"].items() if r.get("dense")))
    head = ["graph", "nnz", "case", "auto", "best of ours", "best peer", "speedup", "of the wall"]
    head += ["warm: auto, least of the peers", "GFLOP/s", "GB/s", "error", "error/bound", *dense]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_row(c, dense, ITEM[document['dtype']]))} |" for c in cases]
    lines += ["", *(speedups(document, peer) for peer in ("torch.sparse", "sampled_addmm", "cusparse"))]
    lines += ["", "| case | geometric mean of speedups | of the wall |", "|---|---|---|"]
    for k, v in summary["geomean_speedup"].items():
        share = summary["geomean_of_the_wall"].get(k)
        lines.append(f"| {k} | {v} | {f'{100 * share:.0f} %' if share else ''} |")
    for key in ("slower", "out_of_bound", "not_poisoned"):
        lines += ["", f"{key.replace('_', ' ').capitalize()}: {'; '.join(summary[key]) or 'none'}."]
    return "\n".join(lines) + "\n"


def plot(document: Document, path: Path) -> None:
    """Speedup over the best peer, one dot per case."""
    found = [(c["graph"], setting(c), c["speedup"]) for c in document["cases"] if c["speedup"] is not None]
    dots(document, found, path)


def save(document: Document, path: Path) -> None:
    """The results at path, the tables beside it and printed."""
    document["summary"] = summarize(document["cases"])
    write(document, markdown(document), path)
