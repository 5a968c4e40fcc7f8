"""The tables of the operators' pages, docs/spmm.md to docs/messages.md, out of the results of the suites; those of
README.md and docs/benchmarks.md, which are about all of them, are made by summary.py.

A page has marks, ``<!-- table NAME -->`` and ``<!-- end -->``; what stands between them is replaced. A column is the
microseconds of a contender or of the best of a family of them, or how many times those of the second one the first
one takes, "A / B".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import summary
from benchmarks.reading import Document, best, geomean, gflops, grid, machine, most_flops, shape
from benchmarks.store import load

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("attention", "benchmarks", "cpu", "spmm", "sddmm", "fused", "spmv", "spgemm", "messages", "pyg")
    ),
]
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCKS, TILES = (32, 64, 128, 256), (32, 128, 256)
COPY = "a copy of as many bytes"
READERS = ["auto", "kkspeed", "kkmem", "sort"]
SDDMM_LESSONS = ["edge_search", "edge_shared", "padded_rows", "row_blocks", "dense_grid", "row_vector", "dynamic"]
FUSED_OTHERS = ["spmm alone", "back_to_back", "cusparse", "cublas"]
FUSED_LESSONS = ["row_vector", *(f"blocks_atomic:{b}" for b in BLOCKS)]
SPMV = ["auto", "csr_segmented", "merge", "coo", "coo / merge", "best peer", "best peer / auto"]
SPMV += ["reads alone", "reads alone / auto", "best peer / reads alone"]
SPMV_STENCILS = ["auto", "ell", "sell", "dia", COPY, "best peer", "best peer / auto", "reads alone", f"{COPY} / dia"]
SPMV_ROWS = ["csr_scalar", "csr_vector", "csr_segmented", "merge", "coo", "sell"]
SPMV_FORMS = ["auto", "coo", "ell", "sell", "hyb", "dia", COPY]
PRODUCT = "A x"
WALLS = ["best peer / ours", "wall / ours"]
DDI = ["auto", "tiles", "segments", "cusparse", "cusparse / auto"]
SPMM_LESSONS = ["thread_per_output", "shared", "row_split", "multi_spmv_vector", "crc", "warp_merge", "row_vector"]


def value(case: Document, column: str) -> float:
    """What a column says of a case; NaN where somebody did not run."""
    names = column.split(" / ")
    exact = [c["us"] if (c := case["contenders"].get(name)) else best(case, name) for name in names]
    return exact[0] / exact[1] if len(exact) == 2 else exact[0]


def _cell(number: float, column: str) -> str:
    if math.isnan(number):
        return ""
    return (
        f"{100 * number:.0f} %"
        if column.startswith("wall")
        else f"{number:.2f}"
        if " / " in column
        else f"{number:.1f}"
    )


def listed(columns: list[str]) -> Callable[[Document], str]:
    """A line a case, those of the columns that a case has, and the width where there are several."""

    def make(document: Document) -> str:
        rows, wide = [], all(c.get("feat") for c in document["cases"])
        there = [k for k in columns if not all(math.isnan(value(c, k)) for c in document["cases"])]
        for c in document["cases"]:
            cells = [_cell(value(c, column), column) for column in there]
            if any(cells):
                rows.append([c["graph"], *([str(c["feat"])] if wide else []), *cells])
        head = ["matrix", *(["K"] if wide else []), *(f"{c}, µs" if " / " not in c else c for c in there)]
        return grid(head, rows) if rows else ""

    return make


def of_case(label: str, make: Callable[[Document], str]) -> Callable[[Document], str]:
    """A table of the cases that are called so."""
    return lambda document: make({**document, "cases": [c for c in document["cases"] if c["case"] == label]})


def of_threads(count: int, make: Callable[[Document], str]) -> Callable[[Document], str]:
    """A table of the cases with so many threads."""
    return lambda document: make({**document, "cases": [c for c in document["cases"] if c["threads"] == count]})


def by_rows(document: Document) -> str:
    """A line a matrix, from short rows to long ones: how many times the fastest of ours each of them takes."""
    rows = []
    for c in sorted(document["cases"], key=lambda c: c["nnz"] / c["rows"]):
        times = [value(c, name) for name in SPMV_ROWS]
        least = min(t for t in times if not math.isnan(t))
        rows.append([c["graph"], f"{c['nnz'] / c['rows']:.1f}", *(_cell(t / least, "a / b") for t in times)])
    return grid(["matrix", "entries a row", *SPMV_ROWS], rows) if rows else ""


def of_peak(document: Document) -> str:
    """A line a matrix: bytes of a format over its time, as a share of the fastest copy of the run."""
    cases = document["cases"]
    rates = {c["graph"]: [c["contenders"].get(name, {}).get("gbs", math.nan) for name in SPMV_FORMS] for c in cases}
    peak = max((copy for *_, copy in rates.values() if not math.isnan(copy)), default=math.nan)
    if math.isnan(peak):
        return ""
    rows = [[graph, *(_cell(rate / peak, "wall") for rate in of)] for graph, of in rates.items()]
    head = ["matrix", *SPMV_FORMS]
    return f"The fastest copy: {peak / 1000:.2f} TB/s, read and written.\n\n{grid(head, rows)}"


def warm(document: Document) -> str:
    """A line a matrix that was replayed: ours and the best peer with a cold L2, and replayed with a warm one."""
    rows = []
    for c in document["cases"]:
        times = [value(c, "auto"), best(c, "best peer"), c["contenders"]["auto"].get("replay_us", math.nan)]
        times.append(best(c, "best peer", "replay_us"))
        if not any(math.isnan(t) for t in times):
            rows.append([c["graph"], *(_cell(t, "us") for t in times), _cell(times[3] / times[2], " / ")])
    head = ["matrix", *(f"{who}, {how}, µs" for how in ("cold", "replayed warm") for who in ("auto", "best peer"))]
    return grid([*head, "warm: best peer / auto"], rows) if rows else ""


def by_width(columns: list[str]) -> Callable[[Document], str]:
    """A line a matrix, a column a width, with all that is asked for in one cell."""

    def make(document: Document) -> str:
        feats = sorted({c["feat"] for c in document["cases"]})
        lines: dict[str, dict[int, str]] = {}
        for c in document["cases"]:
            cells = [_cell(value(c, column), column) for column in columns]
            if any(cells):
                lines.setdefault(c["graph"], {}).setdefault(c["feat"], ", ".join(filter(None, cells)))
        rows = [[graph, *(cells.get(f, "") for f in feats)] for graph, cells in lines.items()]
        return grid([" and ".join(columns), *(f"K {f}" for f in feats)], rows) if rows else ""

    return make


def by_case(columns: list[str]) -> Callable[[Document], str]:
    """A line a matrix, with all columns for each case, and their geometric means where they are ratios."""

    def make(document: Document) -> str:
        names = list(dict.fromkeys(c["case"] for c in document["cases"]))
        found: dict[str, dict[tuple[str, str], float]] = {}
        for c in document["cases"]:
            found.setdefault(c["graph"], {}).update({(c["case"], column): value(c, column) for column in columns})
        keys = [(name, column) for name in names for column in columns]
        rows = [[graph, *(_cell(of.get(key, math.nan), key[1]) for key in keys)] for graph, of in found.items()]
        numbers = {key: [x for of in found.values() if not math.isnan(x := of.get(key, math.nan))] for key in keys}
        means = [_cell(geomean(numbers[key]), key[1]) if " / " in key[1] else "" for key in keys]
        head = ["matrix", *(f"{name}: {column}" if " / " in column else f"{name}, µs" for name, column in keys)]
        return grid(head, [*rows, ["geometric mean", *means]])

    return make


def steps(document: Document) -> str:
    """A line a matrix, a column a step of an iteration."""
    cases = [{**c, "case": c["case"].removeprefix("a step of ")} for c in document["cases"] if c["case"] != PRODUCT]
    return by_case(["best peer / auto"])({**document, "cases": cases}) if cases else ""


def kept(document: Document) -> str:
    """A line a matrix: values by a plan and by cuSPARSE's reuse, what the plan keeps for that, and what making it
    takes."""
    columns, ahead = ["auto", "cuSPARSE reuse"], "cuSPARSE reuse / auto"
    cases = [c for c in document["cases"] if "kept_mib" in c and "cuSPARSE reuse" in c["contenders"]]
    rows = [
        [c["graph"], *(_cell(value(c, k), k) for k in (*columns, ahead)), f"{c['kept_mib']}", f"{c['making']}"]
        for c in cases
    ]
    mean = _cell(geomean([value(c, ahead) for c in cases]), ahead) if cases else ""
    head = [
        "matrix",
        *(f"{k}, µs" for k in columns),
        ahead,
        "the plan keeps, MiB",
        "making it / one that keeps nothing",
    ]
    return grid(head, [*rows, ["geometric mean", "", "", mean, "", ""]]) if rows else ""


def read(document: Document) -> str:
    """A line a matrix: of each algorithm GFLOP/s with a plan, and by the model flops for each double that it reads and
    products of a window; the most of the second; and the copy's share of the time of ``auto``."""
    rows = []
    for c in (c for c in document["cases"] if "flops_per_double" in c["contenders"].get("auto", {})):
        known = [c["contenders"].get(name) for name in READERS]
        cells = [
            f"{of['gflops']:.1f}, {of['flops_per_double']:.2f}, {of['of_window']:,.0f}" if of else "" for of in known
        ]
        limits = [f"{most_flops(c, document['dtype']):.1f}", _cell(value(c, f"{COPY} / auto"), "wall")]
        rows.append([c["graph"], *cells, *limits])
    return grid(["matrix", *READERS, "flops per double, at most", "a copy / auto"], rows) if rows else ""


PEERS = ["best peer / ours", "dense float32 / ours", "dense tf32 / ours", "dense bf16 / ours", "wall / ours"]


def layers(columns: list[str]) -> Callable[[Document], str]:
    """Pruned layers by width and share of zeros: geometric means of what was measured, and the most GFLOP/s."""

    def make(document: Document) -> str:
        rows, cases = [], document["cases"]
        there = [k for k in columns if not all(math.isnan(value(c, k)) for c in cases)]
        for feat, zeros in sorted({(c["feat"], s[2]) for c in document["cases"] if (s := shape(c))}):
            of = [c for c in document["cases"] if c["feat"] == feat and (s := shape(c)) and s[2] == zeros]
            most = max(of, key=lambda c: gflops(c, "ours"))
            means = [_cell(geomean([value(c, column) for c in of]), column) for column in there]
            rows.append([str(feat), f"{zeros} %", *means, f"{gflops(most, 'ours'):.0f} ({most['graph'].split()[0]})"])
        return grid(["K", "zeros", *there, "most GFLOP/s"], rows)

    return make


def plain(make: Callable[[Document], str]) -> Callable[[Document], str]:
    """Of fused, the forward with the edge function s*a."""

    def chosen(document: Document) -> str:
        cases = [c for c in document["cases"] if c.get("feat") and c["case"].startswith("s*a ")]
        return make({**document, "cases": cases})

    return chosen


def messages(document: Document) -> str:
    """A line a graph, call and order of edges, by threads on a CPU, and a column a width: best peer / auto."""
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for c in document["cases"]:
        call, feat, order, *threads = c["case"].split(", ")
        cells = lines.setdefault((c["graph"], call, order.split()[0], *(t.split()[0] for t in threads)), {})
        cells[int(feat.split()[0])] = _cell(value(c, "best peer / auto"), "best peer / auto")
    feats = sorted({feat for cells in lines.values() for feat in cells})
    rows = [[*line, *(cells.get(f, "") for f in feats)] for line, cells in lines.items()]
    head = ["graph", "call", "edges", "threads"][: len(next(iter(lines), "123"))]
    return grid([*head, *(f"F {f}" for f in feats)], rows) if rows else ""


def masks(document: Document) -> str:
    """A line a mask and type of numbers: ours, and how many times as long others take, forward and with backward."""
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    others = ("FlexAttention / auto", "dense, masked / auto", "dense, no mask / auto")
    for c in document["cases"]:
        _, _, dtype, form = c["case"].split(" ", 3)
        figures = [_cell(value(c, column), column) for column in ("auto", *others)]
        lines.setdefault((c["graph"], f"{100 * c['density']:.1f} %", dtype), {})[form] = figures
    forms = sorted({form for of in lines.values() for form in of})
    head = ["mask", "entries", "numbers", *(f"{form}: {c}" for form in forms for c in ("auto, µs", *others))]
    rows = [[*line, *(cell for form in forms for cell in of.get(form, [""] * 4))] for line, of in lines.items()]
    return grid(head, rows) if rows else ""


def by_layer(document: Document) -> str:
    """A line a layer, a column a graph: best peer / auto."""
    lines: dict[str, dict[str, str]] = {}
    for c in document["cases"]:
        if (layer := c["case"].removesuffix(" forward + backward")) != c["case"]:
            lines.setdefault(layer, {})[c["graph"]] = _cell(value(c, "best peer / auto"), "best peer / auto")
    names = list(dict.fromkeys(c["graph"] for c in document["cases"]))
    rows = [[f"`{layer}`", *(cells.get(graph, "") for graph in names)] for layer, cells in lines.items()]
    return grid(["layer", *names], rows) if rows else ""


TABLES: dict[str, tuple[str, Callable[[Document], str]]] = {  # of a page's mark: the suite, and what is made of it
    "spmm_twins": ("spmm-cuda-twins", by_width(WALLS)),
    "spmm_ddi": ("spmm-cuda-ddi", listed(DDI)),
    "spmm_kept": ("spmm-cuda-kept", by_width(["cusparse / ours"])),
    "spmm_pruned": ("spmm-cuda-pruned", layers(PEERS)),
    "spmm_algorithms": ("spmm-cuda-sweeps", listed(["ours", "cusparse", "cublas", *SPMM_LESSONS, "merge_path"])),
    "spmm_grid": ("spmm-cuda-sweeps", listed([f"shared:{b} / shared_swapped:{b}" for b in TILES])),
    "spmm_height": ("spmm-cuda-sweeps", listed(["row_split:4", "row_split:16", "row_split:16 / row_split:4"])),
    "spmm_block": ("spmm-cuda-sweeps", listed([f"thread_per_output:{b}" for b in BLOCKS])),
    "spmm_row_split": ("spmm-cuda-sweeps", by_width(["cusparse / row_split"])),
    "sddmm_twins": ("sddmm-cuda-twins", by_width(["best peer / ours", "wall / ours"])),
    "sddmm_ddi": ("sddmm-cuda-ddi", listed(DDI)),
    "sddmm_pruned": ("sddmm-cuda-pruned", layers(PEERS)),
    "sddmm_blocking": ("sddmm-cuda-sweeps", listed(["ours", "cusparse", "cublas", *SDDMM_LESSONS])),
    "sddmm_dynamic": ("sddmm-cuda-sweeps", by_width(["dynamic / row_blocks"])),
    "fused_graphs": ("fused-cuda", plain(by_width(["auto / spmm alone", "back_to_back / auto"]))),
    "fused_twins": ("fused-cuda-twins", plain(by_width(["auto / spmm alone", "back_to_back / auto"]))),
    "fused_algorithms": ("fused-cuda-pruned", plain(layers([f"{other} / auto" for other in FUSED_OTHERS]))),
    "fused_lessons": ("fused-cuda-sweeps", plain(listed(["auto", *FUSED_OTHERS, *FUSED_LESSONS]))),
    "spmv_graphs": ("spmv-cuda", of_case(PRODUCT, listed(SPMV))),
    "spmv_twins": ("spmv-cuda-twins", of_case(PRODUCT, listed(SPMV))),
    "spmv_rows": ("spmv-cuda-twins", of_case(PRODUCT, by_rows)),
    "spmv_stencils": ("spmv-cuda-stencils", of_case(PRODUCT, listed(SPMV_STENCILS))),
    "spmv_peak": ("spmv-cuda-stencils", of_case(PRODUCT, of_peak)),
    "spmv_warm": ("spmv-cuda", of_case(PRODUCT, warm)),
    "spmv_warm_twins": ("spmv-cuda-twins", of_case(PRODUCT, warm)),
    "spmv_steps": ("spmv-cuda", steps),
    "spmv_steps_twins": ("spmv-cuda-twins", steps),
    "spgemm_cuda": ("spgemm-cuda", by_case(["auto", "best peer / auto"])),
    "spgemm_kept": ("spgemm-cuda", kept),
    "spgemm_read": ("spgemm-cuda-plans", read),
    "spgemm_laplacians": ("spgemm-cuda-laplacians", by_case(["auto", "best peer / auto"])),
    "attention_masks": ("masks-cuda", masks),
    "layers_cuda": ("layers-cuda", by_layer),
    "messages_cuda": ("messages-cuda", messages),
    "cpu_one_thread": ("spmm-cpu-wall", of_threads(1, by_width(WALLS))),
    "cpu_two_threads": ("spmm-cpu-wall", of_threads(2, by_width(WALLS))),
    "messages_cpu": ("messages-cpu", messages),
    "sddmm_threads": ("sddmm-cuda-sweeps", listed([f"row_vector:{n}" for n in (4, 8, 16, 32, "auto")])),
}


def made(name: str, results: Path) -> str:
    """A table in f32, and in f64 where that was measured; nothing where neither was."""
    if name in summary.TABLES:
        return summary.made(name, results)
    stem, make = TABLES[name]
    found = []
    for path in (results / f"{stem}.json", results / f"{stem}-f64.json"):
        if path.exists() and (table := make(document := load(path))):
            found.append(f"{document['dtype']}, {machine(document)}:\n\n{table}\n")
    return "\n".join(["", *found]) if found else ""


def fill(page: Path, results: Path) -> None:
    """Writes every table of a page that there are results for."""

    def table(match: re.Match[str]) -> str:
        text = made(match[2], results)
        return f"{match[1]}{text}{match[3]}" if text else match[0]

    page.write_text(MARKED.sub(table, page.read_text()))
