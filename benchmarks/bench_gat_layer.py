"""README's picture: a step of GATConv, 128 -> 8 heads of 8, beside PyG's as shipped and compiled, on four graphs.

A step is forward and backward. Each side's results and gradients are checked against float64, for a loss that sees a
sample of the nodes. The host's part of a step counts, as it does for whoever trains: on small graphs it decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

import fusedmm
from benchmarks import bench_layers, plots
from benchmarks.attend import Entries, Exact, gathered
from benchmarks.jobs import Job, Options
from benchmarks.reading import Document
from benchmarks.table import save as save
from benchmarks.trial import Step, Trial

LABEL = "GATConv 8x8"
HEADS, WIDTH = 8, 8
SIDES = {"auto": "fusedmm", "PyG compiled": "PyG, torch.compile", "PyG": "PyG, eager"}


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """The one case of a graph."""
    yield Job(f"{LABEL} forward + backward", partial(trials, adj), waits=True)


def attended(at: Entries, x: Tensor, src: Tensor, dst: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """The layer's formula, its parameters in the order of ``layer.parameters()``."""
    value = (x @ weight.t()).view(-1, HEADS, WIDTH)
    return gathered("additive", at, (value * dst).sum(-1), (value * src).sum(-1), value).flatten(1) + bias


def trials(adj: fusedmm.CSR) -> list[Trial]:
    """The sides of bench_layers. PyG is tried whatever it takes: that its memory runs out is a result."""
    return [replace(checked(trial, adj), expected=0) for trial in bench_layers.trials(adj, LABEL, True)]


def checked(trial: Trial, adj: fusedmm.CSR) -> Trial:
    """The trial, its step compared with float64."""
    made: list[Any] = []  # the step, which holds its operands

    def make() -> Step:
        made[:] = [trial.make()]
        return made[0]  # type: ignore[no-any-return]

    def check() -> tuple[float, float]:
        layer, x, graph, _ = made[0].args
        roles = ["node", *["whole"] * 4]
        exact = Exact(attended, adj.add_self_loops().pattern(), [x, *layer.parameters()], roles, HEADS * WIDTH)
        # A score that float32 rounds to the other side of leaky_relu's kink changes most of a term.
        exact.limits = [max(limit, bench_layers.KINK) for limit in exact.limits]
        return exact.error(bench_layers.gradients(layer, x, graph, exact.gout))

    return replace(trial, make=make, check=check)


def plot(document: Document, path: Path) -> None:
    """Time and memory of the sides, graph by graph."""
    plots.sides(document, "GATConv, 128 → 8 heads of 8, forward + backward, float32", SIDES, path)
