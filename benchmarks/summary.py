"""The tables of README.md and docs/benchmarks.md, and others that are made of several results: how many times faster
each operation is than its best peer.

A line stands for the cases that its pattern finds in one or more results. Of a case that was measured twice, as with
and without compiled peers, the smaller figure counts.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import absolute, attention_report
from benchmarks.reading import Document, best, card, geomean, grid, setting
from benchmarks.store import named

PEERS = {  # beginnings of contenders' names, and how they are called here
    "gather, softmax, scatter, compiled": "torch.compile",
    "gather": "plain torch",
    "cusparse": "cuSPARSE",
    "cuSPARSE": "cuSPARSE",
    "cublas": "cuBLAS",
    "sampled_addmm": "torch.sparse",
    "torch.sparse": "torch.sparse",
    "torch.matmul": "torch.sparse",
    "torch CSR": "torch.sparse",
    "torch (R A)": "torch.sparse",
    "torch R (A": "torch.sparse",
    "scipy": "scipy",
    "PyG with torch.sparse": "PyG on torch.sparse",
    "back_to_back": "SDDMM, then SpMM",
    "sddmm, then spmm": "SDDMM, then SpMM",
    "two sorts": "torch.sort",
    "PyG by": "PyG",
    "in float32": "`spmm` in float32",
}
ATTENTION = tuple(f"attention-cuda{form}" for form in ("-compiled", "-compiled-reddit", "-compiled-products", ""))
LAYERS = ("layers-cuda-compiled", "layers-cuda-compiled-reddit")
SAMPLED = "fresh edges of"
PRODUCTS = r"[AR] [^,]*"


@dataclass(frozen=True)
class Line:
    """What a line is about; ``graphs`` is one of them;
    ``split`` finds the part of a case's name by which docs/benchmarks.md splits it."""

    operation: str
    graphs: str
    stems: tuple[str, ...]
    pattern: str = ""
    split: str = ""
    peer: str = "best peer"  # or a family of contenders


def _fused(operation: str, graphs: str, stem: str) -> Line:
    return Line(operation, graphs, (stem,), split=r"K=\d+ forward.*")


CUDA = [
    Line("`GATConv`, 8 heads of 8", "graph", ("gat-layer-cuda",), split="GATConv"),
    Line("attention layers", "graph", LAYERS, r"^(GAT|Transformer|AGNN)", r"^\w+ \w+"),
    Line("`GCNConv`, `SAGEConv`", "graph", ("layers-cuda", *LAYERS), r"^(GCNConv|SAGEConv) \d", r"^\w+ \w+"),
    Line("`attention`", "graph", ATTENTION, r"float32 forward \+ backward", r"^\w+ \w+"),
    Line("`spmm`", "real graph", ("spmm-cuda",), split=r"K \d+"),
    Line("`spmm`", "large twin", ("spmm-cuda-twins",), split=r"K \d+"),
    Line("`spmm`", "pruned layer", ("spmm-cuda-pruned",), split=r"K \d+"),
    Line("`sddmm`", "real graph", ("sddmm-cuda",), split=r"K \d+"),
    Line("`sddmm`", "large twin", ("sddmm-cuda-twins",), split=r"K \d+"),
    Line("`sddmm`", "pruned layer", ("sddmm-cuda-pruned",), split=r"K \d+"),
    _fused("`fused`", "real graph", "fused-cuda"),
    _fused("`fused`", "large twin", "fused-cuda-twins"),
    _fused("`fused`", "pruned layer", "fused-cuda-pruned"),
    Line("making a `CSR` of edges", "twin", ("construction-cuda",), "^edges", "^[^,]*"),
    *(
        Line(f"`{name}`, fresh edges", "sampled twin", ("construction-cuda",), f"{name} 32 .*{SAMPLED}", "of .* nodes")
        for name in ("GATConv", "GCNConv", "SAGEConv")
    ),
    Line("`GCNConv`, `SAGEConv`, whole graph fresh", "twin", ("construction-cuda",), "fresh edges,", r"^\w+"),
    Line("`spmv`", "real graph", ("spmv-cuda",), split="A x|a step"),
    Line("`spmv`, float64", "real graph", ("spmv-cuda-f64",), split="A x|a step"),
    Line("`spmv`", "large twin", ("spmv-cuda-twins",), split="A x|a step"),
    Line("`spmv`", "grid", ("spmv-cuda-stencils",), split="A x|a step"),
    Line("`spgemm`", "pattern", ("spgemm-cuda",), split=PRODUCTS),
    Line("`spgemm`, float64", "pattern", ("spgemm-cuda-f64",), split=PRODUCTS),
    Line("`spgemm`", "large grid", ("spgemm-cuda-laplacians",), split=PRODUCTS),
    Line("layers of kinds of edges", "graph", ("layers-cuda-relations",), split=r"^\w+"),
]
FRONT = [  # of README.md
    *CUDA[:6],
    *CUDA[7:9],
    Line("`spmm`, `sddmm`", "pruned layer", ("spmm-cuda-pruned", "sddmm-cuda-pruned")),
    Line("`fused`", "graph", ("fused-cuda", "fused-cuda-twins")),
    CUDA[13],
    Line("layers, fresh mini-batches", "sampled twin", ("construction-cuda",), f"Conv 32 .*{SAMPLED}"),
]
MORE = [  # of a GPU too, in docs/benchmarks.md alone
    *(
        Line(f"`{op}`, {dtype}", "real graph", (f"{op}-cuda-{stem}",), split=r"K \d+")
        for op in ("spmm", "sddmm")
        for stem, dtype in (("f16", "float16"), ("bf16", "bfloat16"))
    ),
    Line("`spmm`, float64", "real graph", ("spmm-cuda-f64",), split=r"K \d+"),
    *(
        Line(f"`{op}`, other widths", "real graph", (f"{op}-cuda-k16-48-100-512",), split=r"K \d+")
        for op in ("spmm", "sddmm")
    ),
    Line("`spmm`, cuSPARSE preprocessed", "real graph", ("spmm-cuda-preprocessed",), split=r"K \d+"),
    *(
        Line(f"`{op}`, {dtype}, sizes and shares of zeros", "pattern", (f"{op}-cuda-sweeps{stem}",), split=r"K \d+")
        for op in ("spmm", "sddmm")
        for stem, dtype in (("", "float32"), ("-f64", "float64"))
    ),
]
ONE = [
    Line("`spmm`", "real graph", ("spmm-cuda",), split=r"K \d+", peer="torch.sparse"),
    Line("`spmm`", "real graph", ("spmm-cuda",), split=r"K \d+", peer="cusparse"),
    Line("`spmm`", "large twin", ("spmm-cuda-twins",), split=r"K \d+", peer="torch.sparse"),
    Line("`spmm`", "large twin", ("spmm-cuda-twins",), split=r"K \d+", peer="cusparse"),
    Line("`sddmm`", "real graph", ("sddmm-cuda",), split=r"K \d+", peer="sampled_addmm"),
    Line("`sddmm`", "real graph", ("sddmm-cuda",), split=r"K \d+", peer="cusparse"),
    Line("`sddmm`", "large twin", ("sddmm-cuda-twins",), split=r"K \d+", peer="sampled_addmm"),
    Line("`sddmm`", "large twin", ("sddmm-cuda-twins",), split=r"K \d+", peer="cusparse"),
]
CPU = [
    Line("attention layers", "graph", ("layers-cpu",), r"^(GAT|Transformer|AGNN)", r"\d thread.*"),
    Line("`attention`", "graph", ("attention-cpu",), split=r"\d thread.*"),
    Line("`spmm`", "real graph", ("spmm-cpu",), split=r"K \d+, \d thread"),
    Line("`sddmm`", "real graph", ("sddmm-cpu",), split=r"K \d+, \d thread"),
]
KINDS = r"^(sum|mean|max|min),"
LEARNT = ("forms-cpu-trained",)
AIMS_CPU = [  # of docs/cpu.md
    Line("`spmm` in bfloat16", "graph", ("forms-cpu-bf16-beside",), "^beside", r"\d+ columns.*"),
    Line("a maximum, forward + backward", "graph", LEARNT, "^trained", r"\d thread.*"),
    Line("`edge_softmax`", "graph", LEARNT, "^edge_softmax", r"forward( \+ backward)?"),
    Line("an epoch", "graph", ("epochs-cpu",), split=r"^\w+ epoch, \d thread.*"),
]
MORE_CPU = [
    Line("`GCNConv`, `SAGEConv`", "graph", ("layers-cpu",), r"^(GCNConv|SAGEConv) \d", r"\d thread.*"),
    Line("`fused`", "graph", ("fused-cpu",), split=r"\d thread.*"),
    Line("`spmm`, few columns", "real graph", ("spmm-cpu-narrow",), split=r"K \d+"),
    Line("`sddmm`, few columns", "real graph", ("sddmm-cpu-narrow",), split=r"K \d+"),
    *(
        Line(f"`spmm` sums, means, maxima, minima, {dtype}", "graph", (f"forms-cpu{stem}",), KINDS, r"^\w+")
        for stem, dtype in (("", "float32"), ("-f64", "float64"), ("-f16", "float16"), ("-bf16", "bfloat16"))
    ),
    Line("`spgemm`", "graph", ("spgemm-cpu",), split=PRODUCTS),
    Line("`spgemm`", "pattern", ("spgemm-cpu-meshes",), split=PRODUCTS),
    Line("making a `CSR` of edges", "twin", ("construction-cpu",), "^edges", r"\d thread.*"),
    Line("layers, fresh edges", "twin", ("construction-cpu",), "fresh edges", r"^\w+"),
]


def _times(case: Document, peer: str) -> float:
    if peer == "best peer":
        return float(case["speedup"] or math.nan)
    return best(case, peer) / float(case["contenders"]["auto"]["us"])


def cases(line: Line, results: Path) -> list[tuple[float, Document]]:
    """The cases of a line, each once, and how many times faster ours is."""
    found: dict[tuple[str, str, str], tuple[float, Document]] = {}
    for stem in line.stems:
        document = named(results, stem)
        for case in document["cases"]:
            key, times = (document["op"], case["graph"], setting(case)), _times(case, line.peer)
            if re.search(line.pattern, key[2]) and not math.isnan(times) and times < found.get(key, (math.inf, {}))[0]:
                found[key] = times, case
    return list(found.values())


def _names(found: list[tuple[float, Document]]) -> str:
    """The best peers, from the most frequent on."""
    first = (next((n for k, n in PEERS.items() if c["best_peer"].startswith(k)), c["best_peer"]) for _, c in found)
    return ", ".join(name for name, _ in Counter(first).most_common())


def _counted(line: Line, found: list[tuple[float, Document]]) -> str:
    graphs = {c["graph"] for _, c in found}
    return f"{len(graphs)} {line.graphs}{'s' * (len(graphs) > 1)}"


def _links(line: Line, results: Path, folder: str) -> str:
    there = [stem for stem in line.stems if (results / f"{stem}.json").exists()]
    return ", ".join(f"[{k}]({folder}/{stem}.md)" for k, stem in enumerate(there, 1))


def _devices(line: Line, results: Path) -> str:
    """What its results were measured on."""
    documents = [named(results, stem) for stem in line.stems]
    return ", ".join(sorted({card(document) for document in documents if document["cases"]}))


def front(results: Path) -> str:
    """README's table: a line each, the median and the least; a GPU's lines, then a CPU's."""
    rows = []
    for line in (*FRONT, *CPU):
        if found := cases(line, results):
            times = [t for t, _ in found]
            figures = [f"{statistics.median(times):.1f}", f"{min(times):.2f}"]
            about = [_devices(line, results), line.operation, _counted(line, found), _names(found)]
            rows.append([*about, *figures, _links(line, results, "benchmarks/results")])
    head = ["on", "operation", "measured on", "best peer", "median", "least", "all figures"]
    return grid(head, rows)


def long(lines: list[Line], folder: str) -> Callable[[Path], str]:
    """The form of docs/benchmarks.md: split by case, with who is the least and how often a peer is ahead."""

    def make(results: Path) -> str:
        rows = []
        for line in lines:
            groups: dict[str, list[tuple[float, Document]]] = {}
            for times, case in cases(line, results):
                part = re.search(line.split, setting(case))
                groups.setdefault(part[0] if part else "", []).append((times, case))
            for part_, found in groups.items():
                every, (least, case) = [t for t, _ in found], min(found, key=lambda f: f[0])
                graphs = _counted(line, found)
                peer = _names(found) if line.peer == "best peer" else PEERS[line.peer]
                mean, most, slower = geomean(every), max(every), sum(t < 1 for t in every)
                figures = [f"{mean:.2f}", f"{least:.2f} ({case['graph']})", f"{most:.1f}", f"{slower} of {len(found)}"]
                about = [_devices(line, results), line.operation, part_, graphs, peer]
                rows.append([*about, *figures, _links(line, results, folder)])
        head = ["on", "operation", "case", "measured on", "peer", "mean", "least", "most", "slower", "all"]
        return grid(head, rows)

    return make


AT = "../benchmarks/results"
TABLES: dict[str, Callable[[Path], str]] = {  # of a page's mark
    "readme_headline": absolute.headline,
    "readme_results": front,
    "bench_gat": absolute.gat,
    "bench_cuda": long(CUDA, AT),
    "bench_more": long(MORE, AT),
    "bench_one": long(ONE, AT),
    "bench_large": absolute.large,
    "bench_halves": absolute.halves,
    "bench_edges": absolute.edges,
    "bench_training": absolute.training,
    "bench_epochs": absolute.epochs,
    "bench_cpu": long(CPU, AT),
    "bench_more_cpu": long(MORE_CPU, AT),
    "cpu_beside": long(AIMS_CPU, AT),
    **attention_report.TABLES,
}


def made(name: str, results: Path) -> str:
    """What stands between the marks of a table; nothing where there are no results for it."""
    text = TABLES[name](results)
    return f"\n{text}\n" if text else ""
