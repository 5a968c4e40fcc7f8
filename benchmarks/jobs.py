"""Runs a list of jobs: one case after the other, with a progress bar, each saved as soon as it is measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import graphs
from benchmarks.harness import Clock
from benchmarks.trial import Trial, Wanted, release, run
from fusedmm import CSR


@dataclass(frozen=True)
class Options:
    """What the command line asks of every job."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    seconds: float = 0.3
    graphs: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()  # each several words that a label must have
    compile: bool = False
    threads: int | None = None

    def wants(self, label: str) -> bool:
        """Whether a case was asked for; all are unless some are named."""
        return not self.cases or any(all(word in label for word in case.split()) for case in self.cases)


@dataclass(frozen=True)
class Job:
    """One case: its name, how to get its contenders, and what is measured of them.

    A step that ``waits`` for the device is timed with the host's part, which no lead of the host can take out.
    ``facts`` go into the results as they are; "flops" among them makes a rate of every time, and "moved", bytes by
    contender, one of those that it names. What is known of a contender, ``of`` its name, goes into its own results.
    """

    label: str
    trials: Callable[[], list[Trial]]
    host: bool = False
    replay: bool = False
    seconds: float | None = None
    patience: float = math.inf
    waits: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    of: dict[str, dict[str, float]] = field(default_factory=dict)


def small(adj: CSR) -> bool:
    """Whether launches and the host that makes them may decide the time rather than bytes: a CUDA graph helps then."""
    return adj.nnz <= 4_000_000


def collect(
    jobs_of: Callable[[str, CSR, Options], Iterator[Job]], document: dict[str, Any], options: Options, partial: Path
) -> dict[str, Any]:
    """The document with the results of every job on every graph; ``partial`` has what was measured so far."""
    from tqdm import tqdm

    clock, cases = Clock(options.device), document.setdefault("cases", [])
    with tqdm(disable=None) as bar:
        for name in options.graphs:
            adj = graphs.load(name, options.device)
            head = {"graph": name, "rows": adj.shape[0], "cols": adj.shape[1], "nnz": adj.nnz}
            for job in jobs_of(name, adj, options):
                bar.set_description(f"{name} {job.label}")
                seconds = options.seconds if job.seconds is None else job.seconds
                wanted = Wanted(seconds, job.host, job.replay, job.patience, job.waits)
                label = job.label + (
                    f", {options.threads} thread{'s' * (options.threads > 1)}" if options.threads else ""
                )
                release(clock.cuda)  # before the next operands settle in a large block that has become free
                cases.append(head | {"case": label} | job.facts | run(job.trials(), clock, wanted))
                for found in cases[-1]["contenders"].values():
                    if "flops" in job.facts and found["kind"] != "wall":
                        found["gflops"] = round(1e-3 * job.facts["flops"] / found["us"], 2)
                for contender, moved in job.facts.get("moved", {}).items():
                    if contender in cases[-1]["contenders"]:
                        found = cases[-1]["contenders"][contender]
                        found["gbs"] = round(1e-3 * moved / found["us"], 1)
                for contender, known in job.of.items():
                    if contender in cases[-1]["contenders"]:
                        cases[-1]["contenders"][contender] |= known
                partial.parent.mkdir(parents=True, exist_ok=True)
                partial.write_text(json.dumps(document))  # a run that is cut short has not been in vain
                bar.update()
            del adj
    return document
