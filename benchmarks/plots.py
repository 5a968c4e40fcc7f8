"""Plots: speed-ups over the best peer or over one, GFLOP/s bars of pruned layers, time and memory of a few sides;
curves.py has the others."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks import curves
from benchmarks.reading import Document, best, gflops, machine, role, setting, shape, size_text, time_text
from benchmarks.store import draw, load


def dots(document: Document, found: list[tuple[str, str, float]], path: Path) -> None:
    """Speedups over the best peer on a logarithmic axis; found: line, colour, speedup."""
    from matplotlib.figure import Figure

    lines = list(dict.fromkeys(line for line, _, _ in found))[::-1]
    colours = list(dict.fromkeys(colour for _, colour, _ in found))
    figure = Figure(figsize=(9, 1.5 + 0.33 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for k, colour in enumerate(colours):
        of_colour = [(line, speedup) for line, other, speedup in found if other == colour]
        height = [lines.index(line) - 0.6 * ((k + 0.5) / len(colours) - 0.5) for line, _ in of_colour]
        axes.scatter([speedup for _, speedup in of_colour], height, s=16, label=colour, color=f"C{k % 10}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="times faster than the best peer", yticks=range(len(lines)), yticklabels=lines)
    axes.set_title(
        ", ".join([document["op"], *([document["dtype"]] if "dtype" in document else []), machine(document)])
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    draw(figure, path)


def _kinds(cases: list[Document]) -> list[str]:
    dense = dict.fromkeys(n for c in cases for n, r in c["contenders"].items() if role(r) == "dense")
    return ["ours", "best peer", *dense]


def bars(document: Document, path: Path) -> None:
    """GFLOP/s of the entries' products for each pruned layer; dense products are counted by the same entries."""
    from matplotlib.figure import Figure

    cases = [c for c in document["cases"] if shape(c)]
    feats, kinds = sorted({c["feat"] for c in cases}), _kinds(cases)
    figure = Figure(figsize=(13, 3.6 * len(feats)), layout="constrained")
    all_axes = figure.subplots(len(feats), 1, squeeze=False)[:, 0]
    for axes, feat in zip(all_axes, feats, strict=True):
        of_feat = [c for c in cases if c["feat"] == feat]
        for k, kind in enumerate(kinds):
            places = [i + (k + 0.5) / len(kinds) * 0.8 - 0.4 for i in range(len(of_feat))]
            axes.bar(places, [gflops(c, kind) for c in of_feat], 0.8 / len(kinds), label=kind)
        axes.set_xticks(range(len(of_feat)), [c["graph"] for c in of_feat], rotation=90, fontsize="x-small")
        axes.set(title=f"{document['op']}, {feat} columns", ylabel="GFLOP/s of the entries", yscale="log")
        axes.grid(axis="y", alpha=0.3)
    all_axes[0].legend(fontsize="x-small")
    draw(figure, path)


def sides(document: Document, title: str, names: dict[str, str], path: Path) -> None:
    """Bars of time and memory, graph by graph; names: of a contender, and how it is called in the picture.

    Beside a peer's bar stands how many times ours it is; who did not run has the reason instead of a bar.
    """
    from matplotlib.figure import Figure

    cases, colours = document["cases"][::-1], ["#0b6e4f", "#e8973a", "#9aa0a6"]
    figure = Figure(figsize=(9, 1.4 + 0.95 * len(cases)), layout="constrained", facecolor="white")
    both = figure.subplots(1, 2, sharey=True)
    panels = (("us", time_text, "time of a step"), ("peak_mib", size_text, "peak memory"))
    for axes, (key, shown_as, label) in zip(both, panels, strict=True):
        least = min(c["contenders"]["auto"][key] for c in cases) / 3
        most = max(f[key] for c in cases for f in c["contenders"].values())
        for k, (name, shown) in enumerate(names.items()):
            for y, c in enumerate(cases):
                place, found = y + 0.28 - 0.28 * k, c["contenders"].get(name)
                width = found[key] if found else least
                text = shown_as(found[key]) if found else c["refused"].get(name, "not run").split(":")[0]
                if found and k:
                    times = found[key] / c["contenders"]["auto"][key]
                    text += f"  ({times:.{int(times < 9.95)}f} x)"
                bold = "bold" if k == 0 else "normal"
                axes.barh(place, width - least, 0.26, left=least, color=colours[k], label=shown if not y else None)
                axes.text(1.15 * width, place, text, va="center", fontsize=10, fontweight=bold)
        axes.set(xscale="log", xlim=(least, most * (most / least) ** 0.42), xticks=[], title=label)
        axes.minorticks_off()
        axes.tick_params(length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    graphs = [c["graph"].replace("s-symmetric", "s' size").replace("-symmetric", "'s size") for c in cases]
    edges = [f"{graph}\n{c['nnz']:,} edges" for graph, c in zip(graphs, cases, strict=True)]
    both[0].set_yticks(range(len(cases)), edges, fontsize=10)
    figure.suptitle(f"{title}\n{machine(document)}; logarithmic, shorter is better", fontsize=11)
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False, fontsize=10)
    draw(figure, path)


def epochs(path: Path) -> None:
    """Draws every GPU's epoch whose results lie beside ``path`` in one picture there, ``epochs-cuda.png``."""
    documents = [load(file) for file in sorted(path.parent.glob("epochs-cuda*.json"))]
    cases = [c | {"graph": f"{setting(c).split()[0]}, {c['graph']}"} for found in documents for c in found["cases"]]
    names = {"auto": "fusedmm", "PyG compiled": "PyG, compiled", "PyG with torch.sparse": "PyG on torch.sparse"}
    title = "An epoch of two layers with Adam, 128 features, float32"
    sides(documents[0] | {"cases": cases}, title, names, path.with_name("epochs-cuda.png"))


def over(document: Document, peer: str) -> dict[str, dict[int, float]]:
    """For each matrix and width how many times faster ours is than the best contender whose name begins so."""
    found: dict[str, dict[int, float]] = {}
    for c in document["cases"]:
        times = best(c, peer) / best(c, "ours")
        if not math.isnan(times):
            found.setdefault(c["graph"], {}).setdefault(c["feat"], times)
    return found


def speedups(document: Document, peer: str) -> str:
    """The same as a Markdown table; nothing where no case has that peer."""
    found, feats = over(document, peer), sorted({c["feat"] for c in document["cases"]})
    if not found:
        return ""
    lines = [f"| times faster than {peer} | {' | '.join(f'K {f}' for f in feats)} |", "|" + "---|" * (len(feats) + 1)]
    for graph, times in found.items():
        lines.append(f"| {graph} | {' | '.join(f'{times[f]:.2f}' if f in times else '' for f in feats)} |")
    return "\n".join(lines) + "\n"


def squares(document: Document, peer: str, path: Path) -> None:
    """The same drawn: matrices by widths, coloured by the speedup."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    found, feats = over(document, peer), sorted({c["feat"] for c in document["cases"]})
    if not found:
        return
    values = [[times.get(f, math.nan) for f in feats] for times in found.values()]
    most = max(v for row in values for v in row if not math.isnan(v))
    figure = Figure(figsize=(2 + 0.9 * len(feats), 1.2 + 0.36 * len(values)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(values, aspect="auto", cmap="RdYlGn", norm=TwoSlopeNorm(1, 0, max(2.0, most)))
    for y, row in enumerate(values):
        for x, v in enumerate(row):
            if not math.isnan(v):
                axes.text(x, y, f"{v:.2f}", ha="center", va="center", fontsize="small")
    axes.set_xticks(range(len(feats)), [f"K {f}" for f in feats])
    axes.set_yticks(range(len(values)), list(found))
    axes.set_title(f"{document['op']}, {document['dtype']}: times faster than {peer}", fontsize="medium")
    draw(figure, path)


def beside(document: Document, path: Path, ceilings: Path) -> None:
    """The plots that go with a suite, next to ``path``; of cases that say how wide they are, where there are widths."""
    if document["op"] == "epochs":
        if document["device"] == "cuda":
            epochs(path)
        return
    if document["op"] == "spgemm":
        curves.profiles(document, path.with_name(f"{path.stem}-profiles.png"))
        if document["device"] == "cpu":
            curves.model(document, path.with_name(f"{path.stem}-model.png"))
        return
    document = {**document, "cases": [c for c in document["cases"] if c.get("feat")]}
    if document["suite"] == "pruned":
        bars(document, path.with_name(f"{path.stem}-bars.png"))
    if document["suite"] == "sweeps":
        curves.sweeps(document, path.with_name(f"{path.stem}-sweeps.png"))
    if document["suite"] == "twins":
        squares(document, "cusparse", path.with_name(f"{path.stem}-cusparse.png"))
    if ceilings.exists():
        curves.roofline(document, load(ceilings), path.with_name(f"{path.stem}-roofline.png"))
