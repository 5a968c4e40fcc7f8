"""Runs a list of jobs: one case after the other, with a progress bar, each saved as soon as it is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import graphs
from benchmarks.harness import Clock
from benchmarks.trial import Trial, Wanted, run
from fusedmm import CSR


@dataclass(frozen=True)
class Options:
    """What the command line asks of every job."""

    device: str = "cpu"
    seconds: float = 0.3
    graphs: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()  # each several words that a label must have
    compile: bool = False
    sizes: tuple[int, ...] = field(default=())

    def wants(self, label: str) -> bool:
        """Whether a case was asked for; all are unless some are named."""
        return not self.cases or any(all(word in label for word in case.split()) for case in self.cases)


@dataclass(frozen=True)
class Job:
    """One case: its name, how to get its contenders, and what is measured of them."""

    label: str
    trials: Callable[[], list[Trial]]
    host: bool = False
    replay: bool = False


def small(adj: CSR) -> bool:
    """Whether launches rather than bytes decide the time, so that a CUDA graph may help."""
    return adj.nnz <= 300_000


def collect(
    jobs_of: Callable[[CSR, Options], Iterator[Job]], document: dict[str, Any], options: Options, partial: Path
) -> dict[str, Any]:
    """The document with the results of every job on every graph; ``partial`` has what was measured so far."""
    from tqdm import tqdm

    clock, cases = Clock(options.device), document.setdefault("cases", [])
    with tqdm(disable=None) as bar:
        for name in options.graphs:
            adj = graphs.load(name, options.device)
            head = {"graph": name, "rows": adj.shape[0], "cols": adj.shape[1], "nnz": adj.nnz}
            for job in jobs_of(adj, options):
                bar.set_description(f"{name} {job.label}")
                wanted = Wanted(options.seconds, job.host, job.replay)
                cases.append(head | {"case": job.label} | run(job.trials(), clock, wanted))
                partial.write_text(json.dumps(document))
                bar.update()
            del adj
    return document
