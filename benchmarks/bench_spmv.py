"""SpMV, y = A x with random values: every format and algorithm beside torch, scipy and, on CUDA, cupy.

The wall is a copy of as many bytes as a product moves that reads the matrix in its smallest format, x once, and writes
y. ``GB/s`` of a contender are the bytes of its own format over its time. Alone: ``python -m benchmarks spmv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.bench_forms import limit
from benchmarks.case import random, sparse_csr
from benchmarks.jobs import Job, Options, small
from benchmarks.trial import Trial
from fusedmm import formats

MAKERS = {"coo": formats.to_coo, "dia": formats.to_dia, "ell": formats.to_ell}
MAKERS |= {"hyb": formats.to_hyb, "sell": formats.to_sell}
Product = Callable[[], Any]


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """One product with a vector."""
    label = "A x"
    if options.wants(label):
        advice = formats.advise(adj.with_values(random(adj.nnz, dtype=options.dtype, device=options.device, seed=2)))
        facts = {"flops": 2 * adj.nnz, "best_format": advice.best, "bytes": advice.bytes}
        yield Job(label, partial(trials, adj, options), host=small(adj), replay=small(adj), facts=facts)


def trials(adj: fusedmm.CSR, options: Options) -> list[Trial]:
    """Ours in every format that fits, the peers, and the copy."""
    adj = adj.with_values(random(adj.nnz, dtype=options.dtype, device=options.device, seed=2))
    x = random(adj.n_cols, dtype=options.dtype, device=options.device, seed=3)
    exact = fusedmm.spmv(adj.to(dtype=torch.float64), x.double(), algorithm="reference")
    advice = formats.advise(adj)
    matrices: dict[str, Any] = {"csr": adj} | {name: MAKERS[name](adj) for name in advice.fits}
    found = [trial("auto", partial(fusedmm.spmv, adj, x), exact)]
    if advice.best != "csr":
        found.append(trial(f"auto, {advice.best}", partial(fusedmm.spmv, matrices[advice.best], x), exact))
    for a in fusedmm.algorithms("spmv", options.device):
        family = a.name.partition(":")[0]
        if (":" in a.name and not a.name.startswith("cusparse")) or family == "reference":
            continue
        kind = "peer" if family == "cusparse" else "ours"
        theirs = a.name.removeprefix("cusparse:").partition("_")[0]
        wanted = fusedmm.CSR if theirs == "csr" else formats.FORMATS.get(theirs)
        for matrix in matrices.values():
            if wanted is None or type(matrix) is wanted:
                found.append(trial(a.name, partial(fusedmm.spmv, matrix, x, algorithm=a.name), exact, kind))
    found += peers(adj, x, exact)
    return [*found, copy(min(advice.bytes.values()), x, adj.shape[0])]


def peers(adj: fusedmm.CSR, x: Tensor, exact: Tensor) -> list[Trial]:
    """torch with indices of both widths; scipy on the CPU, cupy on CUDA."""
    assert adj.val is not None
    found = []
    for index in (torch.int32, torch.int64):
        matrix = sparse_csr(adj, adj.val, index)
        found.append(trial(f"torch, {str(index)[6:]}", partial(torch.mv, matrix, x), exact, "peer"))
    parts = adj.val, adj.idx, adj.ptr.to(torch.int32)
    if adj.val.dtype not in (torch.float32, torch.float64):
        return found
    if x.is_cuda:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        theirs = csr_matrix(tuple(cupy.from_dlpack(t) for t in parts), adj.shape)
        vector = cupy.from_dlpack(x)
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)  # its own is not what the clock sees

        def multiply() -> Tensor:
            with stream:
                return torch.from_dlpack(theirs @ vector)

        found.append(trial("cupy", multiply, exact, "peer"))
    else:
        from scipy.sparse import csr_array

        ours, numbers = csr_array(tuple(t.numpy() for t in parts), adj.shape), x.numpy()
        found.append(trial("scipy", lambda: torch.from_numpy(ours @ numbers), exact, "peer"))
    return found


def trial(name: str, run: Product, exact: Tensor, kind: str = "ours") -> Trial:
    """A product and its error."""

    @torch.no_grad()
    def step() -> tuple[Tensor, ...]:
        return (run(),)

    def check() -> tuple[float, float]:
        found = run()
        return float((found - exact).norm() / exact.norm()), limit(found.dtype)

    return Trial(name, lambda: step, kind, check=check)


def copy(matrix: int, x: Tensor, rows: int) -> Trial:
    """Half of the bytes are read and half are written."""
    half = torch.zeros((matrix + (x.numel() + rows) * x.element_size()) // 8, device=x.device)
    to = torch.empty_like(half)
    return Trial("a copy of as many bytes", lambda: lambda: (to.copy_(half),), "wall")
