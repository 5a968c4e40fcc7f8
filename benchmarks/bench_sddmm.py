"""SDDMM beside torch.sparse.sampled_addmm. Alone: ``python benchmarks/bench_sddmm.py --device cpu``.

Two things are computed: ``e = val * <a_i, b_j>`` with random values, where the peers multiply their
sampled products by val in place; and ``e = <a_i, b_j>`` without values, which is all sampled_addmm does.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

import fusedmm
from benchmarks import check
from benchmarks.case import DENSE, Case, Choice, dense, ours, random, sparse_csr, walls
from benchmarks.harness import Contender
from benchmarks.jobs import small

GATHER_BYTES = {"cpu": 2**30, "cuda": 2**35}  # the largest gathered operand of the plain torch peer


def case(pattern: fusedmm.CSR, feat: int, dtype: torch.dtype, weighted: bool, choice: Choice) -> Case:
    """A matrix and a width, with everyone who can compute it."""
    device, nnz = pattern.device.type, pattern.nnz
    val = random(nnz, dtype=dtype, device=device, seed=2)
    a = random(pattern.shape[0], feat, dtype=dtype, device=device, seed=3)
    b = random(pattern.n_cols, feat, dtype=dtype, device=device, seed=4)
    adj = pattern.with_values(val if weighted else None)
    contenders = ours("sddmm", device, choice, lambda name: fusedmm.sddmm(adj, a, b, algorithm=name))
    contenders += walls(pattern, b)

    def sampled(matrix: Tensor, right: Tensor) -> Tensor:
        result = torch.sparse.sampled_addmm(matrix, a, right, beta=0)
        return result.values().mul_(val) if weighted else result

    def gather(row: Tensor, col: Tensor) -> Tensor:
        e = (a[row] * b[col]).sum(-1)
        return e.mul_(val) if weighted else e

    transposed = b.t().contiguous()
    for index in (torch.int64, torch.int32):
        matrix, name = sparse_csr(adj, val, index), f"sampled_addmm {str(index)[6:]}"
        contenders.append(Contender(name, partial(sampled, matrix, b.t())))
        contenders.append(Contender(f"{name} b contiguous", partial(sampled, matrix, transposed)))
    if nnz * feat * a.element_size() <= GATHER_BYTES[device]:
        contenders.append(Contender("gather, multiply, sum", partial(gather, *adj.coo()[:2])))
    if nnz > DENSE * adj.shape[0] * adj.n_cols:
        contenders += dense(device, dtype, lambda: a, b.t)
    return Case(contenders, check.sddmm(adj, adj.val, a, b), a.new_empty(nnz), small(adj))


if __name__ == "__main__":
    from benchmarks.__main__ import main

    main(["sddmm", *sys.argv[1:]])
