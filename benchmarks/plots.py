"""Plots of results of SpMM, SDDMM and fused: rooflines, GFLOP/s bars of pruned layers, sweeps, speed-ups."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

Document = dict[str, Any]
PRUNED = re.compile(r"(\d+)x(\d+) (\d+)%")


def _best(case: Document, kind: str) -> float | None:
    """Least microseconds of ours, the peers or a dense product by name."""
    of_kind = {
        "ours": lambda n, r: n == "auto",
        "best peer": lambda n, r: r["kind"] == "peer" if "kind" in r else not r["ours"] and not r.get("dense"),
    }.get(kind, lambda n, r: n == kind)
    return min((r["us"] for n, r in case["contenders"].items() if of_kind(n, r)), default=None)


def _gflops(case: Document, kind: str) -> float:
    us = _best(case, kind)
    return math.nan if us is None else 1e-3 * _flops(case) / us


def _flops(case: Document) -> float:
    return float(case.get("flops", 2 * case["nnz"] * case["feat"]))


def _kinds(cases: list[Document]) -> list[str]:
    dense = dict.fromkeys(n for c in cases for n, r in c["contenders"].items() if r.get("dense"))
    return ["ours", "best peer", *dense]


def bars(document: Document, path: Path) -> None:
    """GFLOP/s of the entries' products for each pruned layer; dense products are counted by the same entries."""
    from matplotlib.figure import Figure

    cases = [c for c in document["cases"] if PRUNED.fullmatch(c["graph"])]
    feats, kinds = sorted({c["feat"] for c in cases}), _kinds(cases)
    figure = Figure(figsize=(13, 3.6 * len(feats)), layout="constrained")
    all_axes = figure.subplots(len(feats), 1, squeeze=False)[:, 0]
    for axes, feat in zip(all_axes, feats, strict=True):
        of_feat = [c for c in cases if c["feat"] == feat]
        for k, kind in enumerate(kinds):
            places = [i + (k + 0.5) / len(kinds) * 0.8 - 0.4 for i in range(len(of_feat))]
            axes.bar(places, [_gflops(c, kind) for c in of_feat], 0.8 / len(kinds), label=kind)
        axes.set_xticks(range(len(of_feat)), [c["graph"] for c in of_feat], rotation=90, fontsize="x-small")
        axes.set(title=f"{document['op']}, {feat} columns", ylabel="GFLOP/s of the entries", yscale="log")
        axes.grid(axis="y", alpha=0.3)
    all_axes[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def sweeps(document: Document, path: Path) -> None:
    """Time over the size of the matrix at 90 % zeros, and over the share of zeros at the largest size."""
    from matplotlib.figure import Figure

    found = [(c, [int(g) for g in PRUNED.fullmatch(c["graph"]).groups()]) for c in document["cases"]]  # type: ignore[union-attr]
    largest = max(size[0] for _, size in found)
    sides = [
        ("rows", sorted({s[0] for _, s in found if s[2] == 90}), lambda s, v: s[0] == v and s[2] == 90),
        ("zeros, %", sorted({s[2] for _, s in found}), lambda s, v: s[0] == largest and s[2] == v),
    ]
    feats = sorted({c["feat"] for c, _ in found})
    figure = Figure(figsize=(10, 3.6 * len(feats)), layout="constrained")
    grid = figure.subplots(len(feats), 2, squeeze=False)
    for row, feat in zip(grid, feats, strict=True):
        for axes, (label, values, fits) in zip(row, sides, strict=True):
            names = dict.fromkeys(n for c, _ in found for n in c["contenders"])
            for name in names:
                points = [
                    (v, c["contenders"][name]["us"])
                    for v in values
                    for c, s in found
                    if fits(s, v) and c["feat"] == feat and name in c["contenders"]
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            axes.set(xlabel=label, ylabel="µs", yscale="log", title=f"{document['op']}, {feat} columns")
            axes.grid(alpha=0.3)
    grid[0][1].legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def roofline(document: Document, ceilings: Path, path: Path) -> None:
    """GFLOP/s over the flops per byte that memory must move at least, under the measured ceilings.

    Memory must deliver the matrix, the dense operand and the result once; the caches must deliver a row of the
    dense operand for every entry, which is 2 flops for every 4 bytes whatever the matrix (4 for fused, which uses
    it twice). So the second roof, of gathers from a table that the cache holds, is flat.
    """
    from matplotlib.figure import Figure

    limits = json.loads(ceilings.read_text())["cases"]
    copy = next(c["gbs"] for c in limits if c["what"] == "copy")
    dense = next(c["gflops"] for c in limits if c["what"] == "dense fp32")
    gather = max(c["gbs"] for c in limits if c["what"] == "gather")
    item = {"f64": 8, "f32": 4}.get(document["dtype"], 2)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    reach = []
    for k, feat in enumerate(sorted({c["feat"] for c in document["cases"]})):
        points = []
        for c in (c for c in document["cases"] if c["feat"] == feat):
            moved = c["nnz"] * (4 + item) + 8 * c["rows"] + (c["rows"] + c["cols"]) * feat * item
            points.append((_flops(c) / moved, _gflops(c, "ours")))
        reach += [p[0] for p in points]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=16, color=f"C{k}", label=f"ours, K {feat}")
    span = [min(reach) / 2, max(reach) * 2]
    axes.plot(span, [min(copy * s, dense) for s in span], color="black", linewidth=0.8, label="memory (copy)")
    uses = _flops(document["cases"][0]) / (document["cases"][0]["nnz"] * document["cases"][0]["feat"])
    axes.axhline(uses * gather / item, color="C7", linewidth=0.8, label="gather from a cached table")
    axes.axhline(dense, color="black", linestyle=":", linewidth=0.8, label="dense fp32")
    axes.set(xscale="log", yscale="log", xlabel="flops per byte that must come from memory", ylabel="GFLOP/s")
    axes.set_title(f"{document['op']}, {document['dtype']}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def speedups(document: Document, peer: str) -> str:
    """A Markdown table, matrices by widths, of how many times faster ours is than the best of that peer."""
    feats = sorted({c["feat"] for c in document["cases"]})
    if not any(n.startswith(peer) for c in document["cases"] for n in c["contenders"]):
        return ""
    lines = [f"| times faster than {peer} | {' | '.join(f'K {f}' for f in feats)} |", "|" + "---|" * (len(feats) + 1)]
    for graph in dict.fromkeys(c["graph"] for c in document["cases"]):
        cells = []
        for feat in feats:
            of = [c for c in document["cases"] if c["graph"] == graph and c["feat"] == feat]
            times = [r["us"] for c in of for n, r in c["contenders"].items() if n.startswith(peer)]
            cells.append(f"{min(times) / of[0]['contenders']['auto']['us']:.2f}" if of and times else "")
        lines.append(f"| {graph} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def beside(document: Document, path: Path, ceilings: Path) -> None:
    """The plots that go with a suite, next to ``path``; of cases that say how wide they are."""
    document = {**document, "cases": [c for c in document["cases"] if "feat" in c]}
    if document["suite"] == "pruned":
        bars(document, path.with_name(f"{path.stem}-bars.png"))
    if document["suite"] == "sweeps":
        sweeps(document, path.with_name(f"{path.stem}-sweeps.png"))
    if ceilings.exists():
        roofline(document, ceilings, path.with_name(f"{path.stem}-roofline.png"))
