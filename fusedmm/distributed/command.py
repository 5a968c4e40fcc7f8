"""``python -m fusedmm partition``: what a graph costs on many ranks, and its shards."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fusedmm.data import Graph, find_graph, load_matrix_market, load_npz
from fusedmm.distributed.partition import partition
from fusedmm.distributed.partitioners import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``python -m fusedmm partition``."""
    parser.add_argument("file", metavar="FILE", help="a graph file: .npz or Matrix Market's .mtx")
    parser.add_argument("--parts", type=int, default=64, help="number of parts (default: 64)")
    parser.add_argument("--method", choices=METHODS, default="nnz", help="default: nnz, consecutive nodes")
    parser.add_argument("--seed", type=int, default=0, help="of the other methods (default: 0)")
    parser.add_argument("--report", action="store_true", help="print cut, halo, bytes and memory for 1 to PARTS ranks")
    parser.add_argument("--columns", type=int, default=128, help="columns of x in the report (default: 128)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write the shards there")


def main(args: argparse.Namespace) -> None:
    """Partitions a graph, and prints the report or writes the shards as the options say.

    Raises:
        OSError, ValueError, ImportError: a wrong file or option, or a missing package.
    """
    if not args.report and args.out is None:
        raise ValueError("nothing to do: give --report, --out or both")
    path = Path(args.file) if Path(args.file).is_file() else find_graph(args.file)
    graph = Graph(load_matrix_market(path)) if path.suffix == ".mtx" else load_npz(path)
    part = partition(graph.adj, args.parts, args.method, seed=args.seed)
    if args.report:
        part.report(args.columns)
    if args.out is not None:
        nodes = {name: getattr(graph, name) for name in ("x", "y") if getattr(graph, name) is not None}
        for name in ("train", "val", "test"):  # node ids become masks, which are cut as the nodes are
            if (ids := getattr(graph, name)) is not None:
                nodes[name] = torch.zeros(graph.adj.shape[0], dtype=torch.bool).index_fill_(0, ids, True)
        part.write(args.out, **nodes)
        print(f"{args.parts} parts of {path.stem} are in {args.out}")
