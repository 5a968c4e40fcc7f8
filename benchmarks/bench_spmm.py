"""SpMM, y = A x with random values, beside torch.sparse.mm. Alone: ``python benchmarks/bench_spmm.py --device cpu``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import fusedmm
from benchmarks import check, preprocessed
from benchmarks.case import DENSE, Case, Choice, dense, ours, random, sparse_csr, walls
from benchmarks.harness import Contender
from benchmarks.jobs import small


def case(pattern: fusedmm.CSR, feat: int, dtype: torch.dtype, weighted: bool, choice: Choice) -> Case:
    """A matrix and a width, with everyone who can compute it."""
    device = pattern.device.type
    val = random(pattern.nnz, dtype=dtype, device=device, seed=2)
    x = random(pattern.n_cols, feat, dtype=dtype, device=device, seed=3)
    adj = pattern.with_values(val)
    contenders = ours("spmm", device, choice, lambda name: fusedmm.spmm(adj, x, algorithm=name))
    contenders += walls(pattern, x)
    for index in (torch.int64, torch.int32):
        matrix, name = sparse_csr(adj, val, index), f"torch.sparse.mm {str(index)[6:]}"
        contenders.append(Contender(name, partial(torch.sparse.mm, matrix, x)))
        if device == "cpu":  # where torch has this form, which uses other kernels
            contenders.append(Contender(f"{name} reduce", partial(torch.sparse.mm, matrix, x, "sum")))
    if choice.preprocess:
        contenders += preprocessed.contenders(adj, val, x)
    if adj.nnz > DENSE * adj.shape[0] * adj.n_cols:
        contenders += dense(device, dtype, adj.to_dense, lambda: x)
    like = x.new_empty(adj.shape[0], feat)
    return Case(contenders, check.spmm(adj, val, x), like, small(adj))


if __name__ == "__main__":
    from benchmarks.__main__ import main

    main(["spmm", *sys.argv[1:]])
