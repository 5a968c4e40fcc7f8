"""Trains a graph network on our kernels, and beside it the same network on PyG or torch.sparse, and without edges."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fusedmm._extra import extra
from fusedmm._lib import build_info
from fusedmm.data import Graph, digits, find_graph, load_npz, random_split
from fusedmm.distributed import train as shards
from fusedmm.matrix.arguments import require_device
from fusedmm.matrix.csr import CSR
from fusedmm.networks import MODELS, Model, Network

OURS, ALONE = "fusedmm", "without the graph"
CLEAR = Path("/proc/self/clear_refs")


@dataclass
class Result:
    """Holds what one way to compute the network came to."""

    accuracy: list[float] = field(default_factory=list)
    epoch_ms: float = 0.0
    memory_bytes: int = 0


def fit(
    network: Network, graph: Graph, adj: Any, epochs: int, tick: Callable[[float], object]
) -> tuple[float, list[float]]:
    """Trains on a graph with features, labels and a split.

    Returns:
        The test accuracy at the epoch of the best validation accuracy (among equals, of the least
        validation loss), and the seconds of every epoch's step, without its evaluation.
    """
    assert graph.x is not None and graph.y is not None and graph.val is not None and graph.test is not None
    x, y = network.features(graph.x), graph.y
    optimiser = torch.optim.Adam(
        [
            {"params": layer.parameters(), "weight_decay": decay}
            for layer, decay in zip((network.first, network.second), network.model.decay, strict=True)
        ],
        lr=network.model.rate,
    )
    best, at_best, seconds = (-1.0, 0.0), 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        network.train()
        optimiser.zero_grad()
        F.cross_entropy(network(x, adj)[graph.train], y[graph.train]).backward()
        optimiser.step()
        if y.is_cuda:
            torch.cuda.synchronize(y.device)
        seconds.append(time.perf_counter() - start)
        network.eval()
        with torch.no_grad():
            out = network(x, adj)
        right = (out.argmax(dim=1) == y).float()
        val = float(right[graph.val].mean()), -float(F.cross_entropy(out[graph.val], y[graph.val]))
        if val > best:
            best, at_best = val, float(right[graph.test].mean())
        tick(val[0])
    return at_best, seconds


def run(
    name: str, graph_of: Callable[[int], Graph], seeds: int, epochs: int, device: torch.device, progress: Any
) -> dict[str, Result]:
    """Trains the network in each of its ways for every seed, which also gives them the same initial weights."""
    model = MODELS[name]
    results = {way: Result() for way in ways(model)}
    seconds: dict[str, list[float]] = {way: [] for way in results}
    for seed in range(seeds):
        graph = _to(graph_of(seed), device)
        for way, result in results.items():  # in turn, so that a busy moment falls on all of them
            _forget_peak(device)
            progress.set_description(f"{way}, seed {seed}")
            accuracy, taken = _once(model, way, graph, seed, epochs, progress)
            result.accuracy.append(accuracy)
            seconds[way] += taken
            if seed == 0:
                result.memory_bytes = _peak(device)
    for way, result in results.items():
        result.epoch_ms = 1e3 * statistics.median(seconds[way])
    return results


def ways(model: Model) -> list[str]:
    """Tells how a network is computed: by us, by what is beside us where it is installed, and without edges."""
    return [OURS, *([model.beside] if model.has_theirs() else []), ALONE]


def _once(model: Model, way: str, graph: Graph, seed: int, epochs: int, progress: Any) -> tuple[float, list[float]]:
    assert graph.x is not None and graph.y is not None
    adj: Any = graph.adj
    if way == ALONE:  # without edges every node sees itself alone
        adj = CSR.from_csr(torch.zeros_like(adj.ptr), adj.idx[:0], None, adj.shape)
    elif way == model.beside:
        adj = model.matrix(adj)
    torch.manual_seed(seed)
    build = model.theirs if way == model.beside else model.ours
    network = build(graph.x.size(1), int(graph.y.max()) + 1).to(graph.x.device)

    def tick(val: float) -> None:
        progress.set_postfix_str(f"validation {val:.1%}", refresh=False)
        progress.update()

    return fit(network, graph, adj, epochs, tick)


def _to(graph: Graph, device: torch.device) -> Graph:
    tensors = (graph.x, graph.y, graph.train, graph.val, graph.test)
    return Graph(graph.adj.to(device), *(None if t is None else t.to(device) for t in tensors))


def _forget_peak(device: torch.device) -> None:
    """Starts the count of memory anew, so that what comes next is not charged with what came before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access(CLEAR, os.W_OK):
        CLEAR.write_text("5")  # proc(5): the peak of the resident set starts anew


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if os.access(CLEAR, os.W_OK):  # what getrusage tells is never reset
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def graphs(file: str | None) -> Callable[[int], Graph]:
    """Returns a function from a seed to the graph: the digits, or a file whose features are scaled to rows that add to
    one.

    Digits, and files that bring no split, get one from the seed.

    Raises:
        OSError, ValueError, ImportError: no such file, or one that cannot be trained on.
    """
    if file is None:
        digits()  # here, where a missing package is reported
        return lambda seed: digits(seed=seed)
    path = Path(file) if Path(file).is_file() else find_graph(file)
    graph = load_npz(path)
    if graph.x is None or graph.y is None or not graph.y.numel():
        raise ValueError(f"{path}: training needs features (x_*) and labels (y)")
    if graph.adj.shape[0] != graph.adj.shape[1]:
        raise ValueError(f"{path}: the adjacency must be square, is {graph.adj.shape}")
    if (strange := (~graph.x.isfinite()).nonzero()).numel():
        i, c = strange[0].tolist()
        raise ValueError(f"{path}: feature {c} of node {i} is {float(graph.x[i, c])}: training needs finite features")
    if bool((graph.x >= 0).all()):
        graph = Graph(graph.adj, graph.x / graph.x.sum(1, keepdim=True).clamp(min=1), graph.y, *_split(graph))
    parts = _split(graph)
    if all(part is not None and part.numel() for part in parts):
        return lambda seed: graph
    if any(part is not None for part in parts):
        raise ValueError(f"{path}: a split needs train, val and test, none of them empty")
    random_split(graph)
    return lambda seed: random_split(graph, seed=seed)


def _split(graph: Graph) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return graph.train, graph.val, graph.test


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``python -m fusedmm train``."""
    graph = "a graph file, or a folder of shards, which torchrun's processes share (default: scikit-learn's digits)"
    parser.add_argument("--graph", metavar="FILE.npz", help=graph)
    parser.add_argument("--model", choices=MODELS, default="gat", help="default: gat")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs (default: 3)")
    parser.add_argument("--epochs", type=int, default=200, help="epochs of each run (default: 200)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")
    again = "of shards: a folder to save to, and to go on from, with any number of processes"
    parser.add_argument("--checkpoint", metavar="FOLDER", type=Path, help=again)
    split = "of shards: hide more of what ranks send each other, with other last bits than one process"
    parser.add_argument("--overlap", choices=("split",), help=split)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0, help="of shards: for late ranks")


def main(args: argparse.Namespace) -> None:
    """Trains as the options say, prints a table, and writes the results where ``--json`` says.

    Raises:
        OSError, ValueError, ImportError: a wrong file or option, or a missing package.
    """
    if args.seeds < 1 or args.epochs < 1:
        raise ValueError("--seeds and --epochs must be at least 1")
    if args.graph is not None and Path(args.graph).is_dir():
        shards.main(args, _peak)
        return
    if args.json is not None and not args.json.parent.is_dir():
        raise FileNotFoundError(f"--json: no folder {args.json.parent}")
    if args.json is not None and args.json.is_dir():
        raise IsADirectoryError(f"--json: {args.json} is a folder")
    device = require_device("--device", args.device)
    tqdm = extra("tqdm").tqdm
    graph_of = graphs(args.graph)
    runs = len(ways(MODELS[args.model])) * args.seeds
    with tqdm(total=runs * args.epochs, unit="epoch", leave=False) as progress:
        results = run(args.model, graph_of, args.seeds, args.epochs, device, progress)
    name = "digits" if args.graph is None else Path(args.graph).stem
    print(f"{args.model} on {name}, {device}: {args.seeds} seeds of {args.epochs} epochs")
    print(table(results, device))
    if args.json is not None:
        conditions = {
            "graph": name,
            "model": args.model,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
            "threads": torch.get_num_threads(),
            "seeds": args.seeds,
            "epochs": args.epochs,
            "accuracy": "test at the best validation epoch",
            "epoch_ms": "median step: forward, backward and update",
            "memory_bytes": _memory_name(device),
            "build": build_info(),
        }
        ours = asdict(results[OURS])
        others = {way: asdict(result) for way, result in results.items() if way != OURS}
        args.json.write_text(json.dumps({**ours, "beside": others, "conditions": conditions}, indent=1) + "\n")


def _memory_name(device: torch.device) -> str:
    if device.type == "cuda":
        return "most that tensors held"
    return f"most of the process {'meanwhile' if os.access(CLEAR, os.W_OK) else 'so far'} (resident set)"


def table(results: dict[str, Result], device: torch.device) -> str:
    """Returns the results as lines of text."""
    lines = [f"{'':20}{'test accuracy':>18}{'time per epoch':>17}{'peak memory':>15}"]
    for way, result in results.items():
        mean, spread = statistics.fmean(result.accuracy), statistics.pstdev(result.accuracy)
        accuracy = f"{100 * mean:.1f} ± {100 * spread:.1f} %"
        epoch, memory = f"{result.epoch_ms:.2f} ms", f"{result.memory_bytes / 2**20:.0f} MiB"
        lines.append(f"{way:20}{accuracy:>18}{epoch:>17}{memory:>15}")
    return "\n".join([*lines, f"(peak memory: {_memory_name(device)})"])
