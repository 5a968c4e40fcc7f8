"""Plots of sweeps and rooflines, and of sparse products: performance profiles, and a model of their traffic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hypergraph import LINE
from benchmarks.reading import ITEM, Document, best, family, flops, gflops, machine, role, shape
from benchmarks.store import draw

STYLES = ("-", "--", ":")  # for every ten colours
PROFILED = 20  # times the fastest, at most


def _families(cases: list[Document]) -> list[str]:
    """Ours once, and everyone else."""
    found = [family(n, r) for c in cases for n, r in c["contenders"].items() if n == "auto" or role(r) != "ours"]
    return list(dict.fromkeys(found))


def _lines(axes: Any, names: list[str], cases: list[Document], at: Callable[[Document], int]) -> None:
    """One line a family of contenders, its best variant; at: where a case stands."""
    for k, name in enumerate(names):
        points = sorted((at(c), us) for c in cases if not math.isnan(us := best(c, name)))
        if points:
            look: dict[str, Any] = {"color": f"C{k % 10}", "linestyle": STYLES[k // 10 % len(STYLES)]}
            look["linewidth"] = 2.2 if name == "ours" else 1
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, **look)


def _blocks(axes: Any, case: Document) -> None:
    """Times of the variants that differ in a number: the size of a block, the height of a tile."""
    sizes: dict[str, list[tuple[int, float]]] = {}
    for name, r in case["contenders"].items():
        head, _, size = name.partition(":")
        if size.isdigit():
            sizes.setdefault(head, []).append((int(size), r["us"]))
    for head, points in sizes.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=head)
    if sizes:
        axes.legend(fontsize="xx-small")
    axes.set_xscale("log", base=2)


def sweeps(document: Document, path: Path) -> None:
    """Time over the size of the matrix at 90 % zeros, over the share of zeros at the largest size, and over the size
    of blocks there."""
    from matplotlib.figure import Figure

    found = [(c, s) for c in document["cases"] if (s := shape(c))]
    largest = max(s[0] for _, s in found)
    feats, names = sorted({c["feat"] for c, _ in found}), _families([c for c, _ in found])
    figure = Figure(figsize=(16, 3.8 * len(feats)), layout="constrained")
    grid = figure.subplots(len(feats), 3, squeeze=False)
    for row, feat in zip(grid, feats, strict=True):
        of_feat = [(c, s) for c, s in found if c["feat"] == feat]
        _lines(row[0], names, [c for c, s in of_feat if s[2] == 90], lambda c: shape(c)[0])  # type: ignore[index]
        _lines(row[1], names, [c for c, s in of_feat if s[0] == largest], lambda c: shape(c)[2])  # type: ignore[index]
        _blocks(row[2], next((c for c, s in of_feat if s[0] == largest and s[2] == 90), of_feat[0][0]))
        for axes, label in zip(row, ("rows", "zeros, %", "size of a block or tile"), strict=True):
            axes.set(xlabel=label, ylabel="µs", yscale="log", title=f"{document['op']}, {feat} columns")
            axes.grid(alpha=0.3)
    grid[0][1].legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(f"{document['op']}, {document['dtype']}, {machine(document)}")
    draw(figure, path)


def profiles(document: Document, path: Path) -> None:
    """Performance profiles (Dolan, More, Mathematical Programming 91, 2002): of every contender, the share of cases
    that it computes within a factor of the fastest one's time. One picture for each kind of case."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(c["case"].partition(",")[0] for c in document["cases"]))
    figure = Figure(figsize=(4 * len(kinds), 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        those = [c["contenders"] for c in document["cases"] if c["case"].partition(",")[0] == kind]
        cases = [{name: r for name, r in of_case.items() if role(r) != "wall"} for of_case in those]
        for name in dict.fromkeys(name for of_case in cases for name in of_case):
            least = [min(r["us"] for r in of_case.values() if "us" in r) for of_case in cases]
            times = [of_case.get(name, {}).get("us", math.inf) for of_case in cases]
            factors = sorted(t / best for t, best in zip(times, least, strict=True) if t < math.inf)
            share = [(k + 1) / len(cases) for k in range(len(factors))]
            axes.step([1, *factors, PROFILED], [0, *share, (share or [0])[-1]], where="post", label=name)
        axes.set(xscale="log", xlim=(1, PROFILED), ylim=(0, 1.02), xlabel="times the fastest", title=kind)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="xx-small", loc="lower right")
    draw(figure, path)


def model(document: Document, path: Path) -> None:
    """Time a product of every algorithm with a plan, over the bytes that the hypergraph model says it brings: lines of
    B, and of sums, which hashing and sorting keep elsewhere. One column of points for each matrix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[float, float]]] = {}
    for c in document["cases"]:
        if "flops_per_double" not in c or not c["case"].startswith("A A with a plan"):
            continue
        of_sums = LINE * (1 - c["sums_kept"]) * c["nnz_c"]
        place = 2 * 8 / c["flops_per_double"] + of_sums / c["products"]
        ours = {name: r["us"] for name, r in c["contenders"].items() if role(r) == "ours" and name != "auto"}
        for name, us in ours.items():
            points.setdefault(name, []).append((place, 1e3 * us / c["products"]))
        axes.annotate(c["graph"], (place, 1e3 * max(ours.values()) / c["products"]), fontsize="xx-small", rotation=60)
    for name, found in points.items():
        axes.scatter(*zip(*found, strict=True), s=14, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes brought for a product, by the model", ylabel="ns for a product")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    draw(figure, path)


def roofline(document: Document, ceilings: Document, path: Path) -> None:
    """GFLOP/s over flops per byte, each case twice: by the bytes that must come from memory, and by those gathered.

    Memory must deliver the matrix, the dense operands and the result once; the caches must deliver a row of the dense
    operand for every entry besides. Each kind of point has its own roof: copying, and gathering from the table that
    the cache serves best.
    """
    from matplotlib.figure import Figure

    limits = ceilings["cases"]
    copy = next(c["gbs"] for c in limits if c["what"] == "copy")
    dense = next(c["gflops"] for c in limits if c["what"] == "dense fp32")
    gather = max(c["gbs"] for c in limits if c["what"] == "gather")
    item = ITEM[document["dtype"]]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    reach: list[float] = []
    for k, feat in enumerate(sorted({c["feat"] for c in document["cases"]})):
        for mark, of_caches in (("o", False), ("x", True)):
            points = []
            for c in (c for c in document["cases"] if c["feat"] == feat):
                once = c["nnz"] * (4 + item) + 8 * c["rows"] + (c["rows"] + (not of_caches) * c["cols"]) * feat * item
                moved = once + of_caches * c["nnz"] * feat * item
                points.append((flops(c) / moved, gflops(c, "ours")))
            reach += [p[0] for p in points]
            label = f"K {feat}, bytes {'gathered' if of_caches else 'of memory'}"
            axes.scatter(*zip(*points, strict=True), s=16, color=f"C{k}", marker=mark, linewidths=0.8, label=label)
    span = [min(reach) / 2, max(reach) * 2]
    span = [span[0] * (span[1] / span[0]) ** (k / 50) for k in range(51)]
    axes.plot(span, [min(copy * s, dense) for s in span], color="black", linewidth=0.8, label="memory: copy")
    axes.plot(span, [min(gather * s, dense) for s in span], color="C7", linewidth=0.8, label="caches: gather")
    axes.axhline(dense, color="black", linestyle=":", linewidth=0.8, label="dense fp32")
    axes.set(xscale="log", yscale="log", xlabel="flops per byte", ylabel="GFLOP/s")
    axes.set_title(f"{document['op']}, {document['dtype']}, {machine(document)}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="xx-small")
    draw(figure, path)


def bandwidths(document: Document, path: Path) -> None:
    """GFLOP/s over flops per byte where every contender counts the bytes of its own format, or of its own windows in
    the model of a sparse product, under the copy of the same run: one is left of another by what it moves more, and
    below the roof by what its reads wait."""
    from matplotlib.figure import Figure

    cases = [c for c in document["cases"] if c.get("moved")]
    names = dict.fromkeys(n for c in cases for n, r in c["contenders"].items() if role(r) == "ours" and "gbs" in r)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    reach: list[float] = []
    for k, name in enumerate(names):
        there = [(c, c["contenders"][name]) for c in cases if name in c["contenders"]]
        points = [(c["flops"] / c["moved"][name], r["gflops"]) for c, r in there]
        reach += [p[0] for p in points]
        axes.scatter(*zip(*points, strict=True), s=16, color=f"C{k % 10}", marker="ox"[k // 10], label=name)
    of = "of the format, x and y" if document["op"] == "spmv" else "that is moved, by the model"
    copy = max(r["gbs"] for c in cases for r in c["contenders"].values() if role(r) == "wall" and "gbs" in r)
    span = [min(reach) / 1.2, max(reach) * 1.2]
    axes.plot(span, [copy * s for s in span], color="black", linewidth=0.8, label=f"copy, {copy:.0f} GB/s")
    axes.set(xscale="log", yscale="log", xlabel=f"flops per byte {of}", ylabel="GFLOP/s")
    axes.set_title(f"{document['op']}, {document['dtype']}, {machine(document)}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="xx-small")
    draw(figure, path)
