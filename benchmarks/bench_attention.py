"""fusedmm.attention beside attention in plain torch, compiled and in torch.sparse, features given.

The wall is what only gathering the same rows takes: fusedmm.spmm without values over a table as wide as
all that an entry reads of its column, forward and, for the backward, its two passes' tables as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import fusedmm
from benchmarks.attend import Entries, Exact, Formula, by_torch_sparse, gathered, operands, stepped
from benchmarks.case import random
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Step, Trial, compiled

PATIENCE = 5.0  # seconds of a peer's step: what takes longer is left out with that time
SCORES = ("additive", "dot", "gatv2")
SHAPES = ((8, 8, torch.float32), (8, 64, torch.float32), (1, 64, torch.float32), (8, 8, torch.bfloat16))


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """Every score and shape, forward and with backward."""
    row, col, _ = adj.coo()
    at = Entries(row.long(), col.long(), adj.shape[0])
    for heads, feat, dtype in SHAPES:
        for score in SCORES:
            for backward in (False, True):
                label = f"{score} {heads}x{feat} {str(dtype)[6:]} {'forward + backward' if backward else 'forward'}"
                if options.wants(label):
                    make = partial(trials, adj, at, score, heads, feat, dtype, backward, options)
                    yield Job(label, make, host=small(adj), replay=small(adj), patience=PATIENCE)


def attend(adj: fusedmm.CSR, score: str, *x: Tensor) -> Tensor:
    """Ours, of the operands of ``operands``."""
    q, k, third = x
    if score == "gatv2":
        out = fusedmm.attention(adj, q, k, k, score=score, att=third)
    else:
        out = fusedmm.attention(adj, q, k, third, score=score)
    assert isinstance(out, Tensor)
    return out


def trials(
    adj: fusedmm.CSR,
    at: Entries,
    score: str,
    heads: int,
    feat: int,
    dtype: torch.dtype,
    backward: bool,
    options: Options,
) -> list[Trial]:
    """Ours, the peers and the wall."""
    device, n = adj.device.type, adj.shape[0]
    x = operands(score, n, heads, feat, dtype, device)
    gout = random(n, heads, feat, dtype=dtype, device=device, seed=8)
    roles = ["node", "node", "whole" if score == "gatv2" else "node"]
    exact = Exact(partial(gathered, score), adj, x, roles, heads * feat)

    def call(formula: Formula, upstream: Tensor) -> tuple[Tensor, ...]:
        return stepped(formula, x, upstream, backward)

    def trial(name: str, formula, kind: str, expected: int = 0) -> Trial:  # type: ignore[no-untyped-def]
        def make() -> Step:
            return partial(call, formula, gout)

        return Trial(name, make, kind, expected=expected, check=lambda: exact.error(call(formula, exact.gout)))

    if backward:
        adj.cache_transpose()
    width = heads * feat
    gathers = 2 if backward else 1  # what autograd keeps beside what is computed
    expected = gathers * 4 * adj.nnz * width * x[0].element_size()
    found = [
        trial("auto", partial(attend, adj, score), "ours"),
        trial("gather, softmax, scatter", partial(gathered, score, at), "peer", expected),
        trial("torch.sparse", partial(by_torch_sparse, score, adj, at), "peer", expected * (score == "gatv2")),
    ]
    if options.compile:

        def plain(*x: Tensor) -> Tensor:
            return gathered(score, at, *x)

        made: list[Formula] = []

        def by_compiler() -> Step:
            made[:] = [compiled(plain, lambda formula: call(formula, gout), dynamic=False)]
            return partial(call, made[0], gout)

        name = "gather, softmax, scatter, compiled"
        found.append(Trial(name, by_compiler, check=lambda: exact.error(call(made[0], exact.gout))))
    # Forward: k and v of a column (one table for gatv2). The row pass reads the same; the column pass reads
    # of a row q, the gradient, and of each head lse and delta.
    key = {"dot": width, "additive": heads, "gatv2": 0}[score]
    query = {"dot": width, "additive": heads, "gatv2": width}[score]
    widths = [key + width, key + width, query + width + 2 * heads] if backward else [key + width]
    sides = [adj, adj, adj.t()] if backward else [adj]

    def gathering() -> Step:  # tables that only a step holds are free again where it is refused
        tables = [random(n, w, dtype=dtype, device=device, seed=10 + k) for k, w in enumerate(widths)]
        return lambda: tuple(fusedmm.spmm(side, table) for side, table in zip(sides, tables, strict=True))

    return [*found, Trial("gather only", gathering, "wall")]
