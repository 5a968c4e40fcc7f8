"""The tables of docs/attention.md about what a GPU takes: beside peers, in bfloat16, beside the gather, and in memory.

A line is a score and a shape, a column a graph. Cases with compiled peers have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.reading import Document, best, grid, machine, time_text
from benchmarks.store import named

STEM = "attention-cuda"
COMPILED = (f"{STEM}-compiled", f"{STEM}-compiled-reddit")
PEERS = ("gather, softmax, scatter", "gather, softmax, scatter, compiled", "torch.sparse")
BACKWARD = "forward + backward"
ITEM = {"float32": 4, "bfloat16": 2}
GRADIENTS = {"dot": 3, "additive": 1, "gatv2": 2}  # as large as the result; those of one number a head come on top
Cell = Callable[[dict[str, Document]], str]  # of a graph's cases of one score and shape, by type and way


def _cases(results: Path, *stems: str) -> list[Document]:
    """Those of all files, a case of several in the first of them."""
    found: dict[tuple[str, str], Document] = {}
    for stem in stems:
        for case in named(results, stem)["cases"]:
            found.setdefault((case["graph"], case["case"]), case)
    return list(found.values())


def _table(results: Path, stems: tuple[str, ...], cell: Cell) -> str:
    """From the smallest graph to the largest; a line or column without any cell is left out."""
    lines: dict[str, dict[str, dict[str, Document]]] = {}
    if not (cases := sorted(_cases(results, *stems), key=lambda c: c["nnz"])):
        return ""
    for case in cases:
        score, shape, form = case["case"].split(" ", 2)
        lines.setdefault(f"{score} {shape}", {}).setdefault(case["graph"], {})[form] = case
    graphs = dict.fromkeys(case["graph"] for case in cases)
    columns = {graph: [cell(of.get(graph, {})) for of in lines.values()] for graph in graphs}
    there = {graph: cells for graph, cells in columns.items() if any(cells)}
    rows = [row for row in zip(lines, *there.values(), strict=True) if any(row[1:])]
    return f"{machine(named(results, STEM))}:\n\n{grid(['case', *there], [list(row) for row in rows])}"


def _us(case: Document | None) -> float:
    return float(case["contenders"]["auto"]["us"]) if case else math.nan


def _figures(numbers: list[float], form: str) -> str:
    """Separated by commas, a dash for what was not measured; nothing where none was."""
    texts = ["-" if math.isnan(n) else form.format(n) for n in numbers]
    return ", ".join(texts) if set(texts) != {"-"} else ""


def beside(results: Path) -> str:
    """Forward and backward in float32: our time, and how many times as long the peers take."""

    def cell(forms: dict[str, Document]) -> str:
        if not (case := forms.get(f"float32 {BACKWARD}")):
            return ""
        own, there = _us(case), case["contenders"]
        ratios = [there[name]["us"] / own if name in there else math.nan for name in PEERS]
        return f"{time_text(own)}: {_figures(ratios, '{:.1f}') or 'none ran'}"

    return _table(results, (*COMPILED, STEM), cell)


def halves(results: Path) -> str:
    """bfloat16's share of float32's time, forward and with backward."""

    def cell(forms: dict[str, Document]) -> str:
        shares = [_us(forms.get(f"bfloat16 {way}")) / _us(forms.get(f"float32 {way}")) for way in ("forward", BACKWARD)]
        return _figures(shares, "{:.2f}")

    return _table(results, (STEM,), cell)


def wall(results: Path) -> str:
    """The time of the gather alone over that of a forward pass, in float32 and bfloat16."""

    def cell(forms: dict[str, Document]) -> str:
        cases = [forms.get(f"{dtype} forward") for dtype in ITEM]
        return _figures([100 * best(c, "wall") / _us(c) if c else math.nan for c in cases], "{:.0f} %")

    return _table(results, (STEM,), cell)


def memory(results: Path) -> str:
    """Over 1.5 times the result and 16 bytes a row and head, the most that a step holds without the gradients, in
    float32 and bfloat16; and that with the gradients on both sides, in float32."""

    def share(case: Document | None, gradients: bool) -> float:
        if case is None:
            return math.nan
        score, shape, dtype, _ = case["case"].split(" ", 3)
        mib, heads = 2.0**-20, int(shape.split("x")[0])
        result = case["contenders"]["auto"]["result_mib"]
        small = 2 * case["rows"] * heads * ITEM[dtype] * mib * (score == "additive")
        more = (GRADIENTS[score] * result + small) * gradients
        aim = 1.5 * (result + more) + 16 * case["rows"] * heads * mib
        return float((case["contenders"]["auto"]["peak_mib"] + more) / aim)

    def cell(forms: dict[str, Document]) -> str:
        of = {dtype: forms.get(f"{dtype} {BACKWARD}") for dtype in ITEM}
        return _figures([*(share(case, False) for case in of.values()), share(of["float32"], True)], "{:.2f}")

    return _table(results, (STEM,), cell)


TABLES: dict[str, Callable[[Path], str]] = {  # of a page's mark
    "attention_beside": beside,
    "attention_halves": halves,
    "attention_wall": wall,
    "attention_memory": memory,
}
