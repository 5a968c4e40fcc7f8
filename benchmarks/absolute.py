"""The tables of README.md and docs/benchmarks.md that are times and bytes, not how many times faster."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.reading import Document, card, grid, machine, setting, size_text, time_text
from benchmarks.store import named

SIDES = {"auto": "fusedmm", "PyG compiled": "PyG, compiled", "PyG": "PyG, eager"}
LARGE = (  # what was measured with compiled peers comes first
    "layers-cuda-compiled-reddit",
    "attention-cuda-compiled-reddit",
    "attention-cuda",
    "attention-cuda-compiled-products",
)
LARGE_GRAPHS = ("reddit-symmetric", "products-symmetric")
EPOCHS = tuple(f"epochs-cuda-compiled{graph}" for graph in ("", "-arxiv", "-reddit", "-products"))
SIDES_OF_EPOCHS = {**SIDES, "PyG with torch.sparse": "PyG, torch.sparse"}
HALVES = {"float32": "", "float16": "-f16", "bfloat16": "-bf16"}


def _both(found: Document) -> str:
    return f"{time_text(found['us'])}, {size_text(found['peak_mib'])}"


def _pair(found: Document) -> str:
    return f"{time_text(found['us'])} and {size_text(found['peak_mib'])}"


def headline(results: Path) -> str:
    """README's sentence about the largest graph of its picture."""
    document = named(results, "gat-layer-cuda")
    if not document["cases"]:
        return ""
    case = max(document["cases"], key=lambda c: c["nnz"])
    found, peer, gpu = case["contenders"], case["best_peer"], document["conditions"]["gpu"]
    return (
        f"One `GATConv` layer, forward and backward, on a graph of {case['nnz'] / 1e6:.1f} million edges takes\n"
        f"**{_pair(found['auto'])}** on an {gpu}. {SIDES[peer]}, takes {_pair(found[peer])}.\n"
    )


def gat(results: Path) -> str:
    """Every side of README's picture."""
    document = named(results, "gat-layer-cuda")
    rows = [
        [c["graph"], f"{c['nnz']:,}"]
        + [_both(f) if (f := c["contenders"].get(n)) else c["refused"].get(n, "not run") for n in SIDES]
        for c in document["cases"]
    ]
    return f"{machine(document)}:\n\n{grid(['graph', 'edges', *SIDES.values()], rows)}" if rows else ""


def large(results: Path) -> str:
    """Time and memory at the sizes of reddit and ogbn-products, beside the best peer, where there is one."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for stem in LARGE:
        document = named(results, stem)
        for c in document["cases"]:
            label, name = setting(c).removesuffix(" forward + backward"), c["best_peer"]
            if c["graph"] in LARGE_GRAPHS and "bfloat16" not in label and label != setting(c):
                peer = [_both(c["contenders"][name]), name, f"{c['speedup']:.1f}"] if name else ["", "none ran", ""]
                rows.setdefault((card(document), c["graph"], label), [_both(c["contenders"]["auto"]), *peer])
    head = ["on", "graph", "case", "fusedmm", "best peer", "which", "times faster"]
    order = sorted(rows, key=lambda about: LARGE_GRAPHS.index(about[1]))
    return grid(head, [[*about, *rows[about]] for about in order]) if rows else ""


def halves(results: Path) -> str:
    """Times of ours at 128 columns in 32 and 16 bits, where all of an operation is of one card."""
    rows = []
    for op in ("spmm", "sddmm"):
        documents = [named(results, f"{op}-cuda-twins{stem}") for stem in HALVES.values()]
        cards = {card(document) for document in documents if document["cases"]}
        whole, *others = (
            {c["graph"]: c["contenders"]["auto"]["us"] for c in document["cases"] if c["feat"] == 128}
            for document in documents
        )
        for graph in others[0] if len(cards) == 1 else ():
            shares = [f"{time_text(of[graph])} ({of[graph] / whole[graph]:.2f})" for of in others]
            rows.append([*cards, f"`{op}`", graph, time_text(whole[graph]), *shares])
    return grid(["on", "operation", "graph", *HALVES], rows) if rows else ""


def edges(results: Path) -> str:
    """A ``CSR`` out of edges in any order."""
    rows, document = [], named(results, "construction-cuda")
    for c in document["cases"]:
        if setting(c).startswith("edges"):
            ours = c["contenders"]["auto"]
            held = [size_text(ours["result_mib"]), _both(c["contenders"][c["best_peer"]])]
            rows.append([card(document), c["graph"], f"{c['nnz']:,}", setting(c), _both(ours), *held])
    return grid(["on", "graph", "edges", "what", "fusedmm", "size of the result", "torch.sort"], rows) if rows else ""


def training(results: Path) -> str:
    """Epochs of ``python -m fusedmm train`` with the same model beside."""
    rows = []
    for graph in ("cora", "citeseer"):
        for model in ("gat", "gcn"):
            found = named(results, f"train-{graph}-{model}")
            for name, side in {"fusedmm": found, **found.get("beside", {})}.items():
                if "epoch_ms" in side:
                    accuracy = f"{100 * statistics.mean(side['accuracy']):.1f} %"
                    memory = size_text(side["memory_bytes"] / 2**20)
                    rows.append([card(found), graph, model, name, accuracy, f"{side['epoch_ms']:.2f} ms", memory])
    return grid(["on", "graph", "model", "side", "accuracy", "epoch", "memory"], rows) if rows else ""


def epochs(results: Path) -> str:
    """An epoch of each model on each graph: time and peak memory of every side, and which of them could not run."""
    documents = [named(results, stem) for stem in EPOCHS]
    rows = [
        [c["graph"], setting(c).removesuffix(" epoch")]
        + [_both(f) if (f := c["contenders"].get(n)) else c["refused"].get(n, "") for n in SIDES_OF_EPOCHS]
        for document in documents
        for c in document["cases"]
    ]
    machines = ", ".join(dict.fromkeys(machine(d) for d in documents if d["cases"]))
    return f"{machines}:\n\n{grid(['graph', 'model', *SIDES_OF_EPOCHS.values()], rows)}" if rows else ""
