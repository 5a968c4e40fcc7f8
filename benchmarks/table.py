"""Results of trials as JSON, Markdown tables and a plot."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.curves import bandwidths
from benchmarks.plots import dots
from benchmarks.reading import Document, most_flops
from benchmarks.report import write

EXTRAS = {
    "gflops": "GFLOP/s",
    "gbs": "GB/s",
    "flops_per_double": "flops per double read",
    "of_window": "products of a window",
    "visits": "windows of an entry of A",
    "host_us": "host µs",
    "replay_us": "replayed, warm µs",
    "replay_cold_us": "replayed, cold µs",
}
FACTS = {  # of SpGEMM, as bench_spgemm.py has them
    "products": "products",
    "nnz_c": "entries of C",
    "compressed": "left when packed",
    "reordered": "left when reordered",
    "symbolic": "symbolic share",
    "pool_kib": "pool's table, KiB",
    "left_first": "products of (R A) P",
    "right_first": "products of R (A P)",
    "most_flops": "flops per double, at most",
    "flops_per_double": "flops per double",
    "reads_of_b": "reads of a line of B",
    "b_kept": "B kept",
    "sums_kept": "sums kept",
    "kept_mib": "a plan keeps, MiB",
    "making": "making it / one that keeps nothing",
    "making_other": "making a plan, renumbered / as it is",
}


def summarize(cases: list[Document]) -> Document:
    """Geometric means of the speedups by case, what a peer wins, and errors beyond what they may be."""
    logs: dict[str, list[float]] = {}
    found: Document = {"geomean_speedup": {}, "slower": [], "out_of_bound": [], "not_run": []}
    for c in cases:
        label = f"{c['graph']}, {c['case']}"
        if c["speedup"] is not None:
            logs.setdefault(c["case"], []).append(math.log(c["speedup"]))
            if c["speedup"] < 1:
                found["slower"].append(f"{label}: {c['speedup']} of {c['best_peer']}")
        for name, f in c["contenders"].items():
            if "error" in f and f["kind"] == "ours" and not f["error"] <= f["error_limit"]:
                found["out_of_bound"].append(f"{label}: {name} {f['error']}")
        found["not_run"] += [f"{label}: {name} ({reason})" for name, reason in c["refused"].items()]
    found["geomean_speedup"] = {k: round(math.exp(sum(v) / len(v)), 3) for k, v in logs.items()}
    return found


def _time(us: float) -> str:
    return f"{us / 1e3:.4g} ms" if us >= 1e3 else f"{us:.4g} µs"


def _cell(c: Document, name: str | None) -> str:
    if name is None:
        return "none ran"
    f = c["contenders"][name]
    return f"{_time(f['us'])}, {f['peak_mib']:,.4g} MiB"


def _row(c: Document) -> list[str]:
    auto = c["contenders"]["auto"]
    wall = [f["us"] for f in c["contenders"].values() if f["kind"] == "wall"]
    peer = c["best_peer"]
    return [
        c["graph"],
        f"{c['nnz']:,}",
        c["case"],
        _cell(c, "auto"),
        _cell(c, peer) + (f" ({peer})" if peer else ""),
        "" if c["speedup"] is None else f"{c['speedup']:.2f}",
        f"{100 * min(wall) / auto['us']:.0f} %" if wall else "",
        f"{auto['error']:.1e}" if "error" in auto else "not checked" if "not_checked" in auto else "",
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def markdown(document: Document) -> str:
    """Conditions, ours beside the best peer, everyone, summary."""
    cases, summary = document["cases"], document["summary"]
    lines = [f"# {document['op']} on {document['device']}", ""]
    lines += [f"- {k}: {v}" for k, v in document["conditions"].items()]
    lines += ["", "Median time, and peak memory beyond the operands and the gradients; speedup: time of the best peer"]
    lines += ["over ours; wall: time of the contender that does less than is needed, over ours; error: the largest"]
    lines += ["norm of a difference from float64 over the norm, where it was checked.", ""]
    head = ["graph", "nnz", "case", "ours (auto)", "best peer", "speedup", "of the wall", "error"]
    lines += _table(head, [_row(c) for c in cases])
    rows: list[list[str]] = []
    extras = {k: v for k, v in EXTRAS.items() if any(k in f for c in cases for f in c["contenders"].values())}
    for c in cases:
        for name, f in c["contenders"].items():
            rest = [f"{f[k]:.4g}" if k in f else "" for k in extras]
            rows.append(
                [c["graph"], c["case"], name, _time(f["us"]), _time(f["warm_us"]), f"{f['peak_mib']:,.4g}", *rest]
            )
    lines += ["Everyone; warm: the least of up to 20 runs without a flush.", ""]
    lines += _table(["graph", "case", "contender", "median", "warm", "peak MiB", *extras.values()], rows)
    first: dict[str, Document] = {}  # with one thread, where there are several numbers of them
    for c in cases:
        first.setdefault(c["graph"], c | {"most_flops": most_flops(c, document.get("dtype", "f32"))})
    facts = {k: v for k, v in FACTS.items() if any(c.get(k) is not None for c in first.values())}
    if facts:
        of_graph = [[f"{c[k]:,}" if c.get(k) is not None else "" for k in facts] for c in first.values()]
        lines += ["What there is to do (docs/spgemm.md explains the columns):", ""]
        lines += _table(["graph", *facts.values()], [[graph, *row] for graph, row in zip(first, of_graph, strict=True)])
    lines += _table(
        ["case", "geometric mean of speedups"], [[k, str(v)] for k, v in summary["geomean_speedup"].items()]
    )
    for key in ("slower", "out_of_bound", "not_run"):
        lines += [f"{key.replace('_', ' ').capitalize()}: {'; '.join(summary[key]) or 'none'}.", ""]
    return "\n".join(lines)


def plot(document: Document, path: Path) -> None:
    """Speedup over the best peer, one dot per graph and case, where there are peers."""
    found = [(c["case"], c["graph"], c["speedup"]) for c in document["cases"] if c["speedup"] is not None]
    if found:
        dots(document, found, path)
    if any("gbs" in f for c in document["cases"] for f in c["contenders"].values()):
        bandwidths(document, path.with_name(f"{path.stem}-bandwidth.png"))


def save(document: Document, path: Path) -> None:
    """The results at path, the tables beside it and printed."""
    document["summary"] = summarize(document["cases"])
    write(document, markdown(document), path)
