"""SpMV, y = A x with random values: every format and algorithm beside torch, scipy and, on CUDA, cupy.

A wall is a copy of as many bytes as a product moves that reads the matrix in its smallest format, x once, and writes
y; another one, on CUDA, reads what a product of CSR reads (reads.py). GB/s of a contender are the bytes of its own
format, x and y over its time.
A step of an iteration is what docs/spmv.md writes, with everyone's product in it. Alone: ``python -m benchmarks spmv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks.bench_forms import limit
from benchmarks.case import random, sparse_csr
from benchmarks.cusparse import VECTOR, VectorProduct
from benchmarks.jobs import Job, Options, small
from benchmarks.reads import EACH, reading
from benchmarks.trial import Trial
from fusedmm import formats

MAKERS = {"coo": formats.to_coo, "dia": formats.to_dia, "ell": formats.to_ell}
MAKERS |= {"hyb": formats.to_hyb, "sell": formats.to_sell}
COPY, READS = "a copy of as many bytes", "reads alone"
Product = Callable[[], Any]
Multiply = Callable[[Any], Any]  # of one library's vectors


def jobs(name: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """One product with a vector."""
    label = "A x"
    if options.wants(label):
        advice = formats.advise(adj.with_values(random(adj.nnz, dtype=options.dtype, device=options.device, seed=2)))
        vectors = sum(adj.shape) * torch.finfo(options.dtype).bits // 8
        moved = {name: advice.bytes[form] + vectors for name, form in sources(options.device).items()}
        moved |= {"auto": advice.bytes["csr"] + vectors, COPY: min(advice.bytes.values()) + vectors}
        facts = {"flops": 2 * adj.nnz, "best_format": advice.best, "bytes": advice.bytes, "moved": moved}
        yield Job(label, partial(trials, adj, options), host=small(adj), replay=small(adj), facts=facts)
    for label, of in ITERATIONS.items():
        few = small(adj) or not of.columns  # several vectors are another operator's matter
        if options.wants(label) and few and adj.shape[0] == adj.shape[1]:
            yield Job(label, partial(iterations, of, adj, options), replay=small(adj))


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
    for name, form in sources(options.device).items():
        if form in matrices:
            kind = "peer" if name.startswith("cusparse") else "ours"
            found.append(trial(name, partial(fusedmm.spmv, matrices[form], x, algorithm=name), exact, kind))
    found += peers(adj, x, exact)
    found.append(copy(min(advice.bytes.values()), x, adj.shape[0]))
    return found + [reads(adj, x, each) for each in EACH if x.is_cuda and x.element_size() >= 4]


def sources(device: str) -> dict[str, str]:
    """The algorithms, those for one instruction set and the reference apart, and the format that each takes."""
    names = [a.name for a in fusedmm.algorithms("spmv", device) if a.name != "reference"]
    found = {}
    for name in names:
        family = name.removeprefix("cusparse:").partition("_")[0]
        if name.startswith("cusparse") or ":" not in name:
            found[name] = family if family in MAKERS else "csr"
    return found


def peers(adj: fusedmm.CSR, x: Tensor, exact: Tensor) -> list[Trial]:
    """torch with indices of both widths; scipy on the CPU; on CUDA cupy, and cuSPARSE with all that it can keep."""
    assert adj.val is not None
    found = []
    for index in (torch.int32, torch.int64):
        matrix = sparse_csr(adj, adj.val, index)
        found.append(trial(f"torch, {str(index)[6:]}", partial(torch.mv, matrix, x), exact, "peer"))
    if adj.val.dtype in (torch.float32, torch.float64):
        if x.is_cuda:
            kept = {name: VectorProduct(adj, x, name) for name in VECTOR}
            found += [trial(f"cusparse:{name}, kept", product, exact, "peer") for name, product in kept.items()]
        name, multiply, alike = library(adj, x)
        found.append(trial(name, lambda: alike(multiply, x), exact, "peer"))
    return found


def library(adj: fusedmm.CSR, x: Tensor) -> tuple[str, Multiply, Callable[..., Tensor]]:
    """cupy on CUDA, else scipy: its name, its product, and what calls a function of its arrays with tensors."""
    assert adj.val is not None
    parts = adj.val, adj.idx, adj.ptr.to(torch.int32)
    if not x.is_cuda:
        from scipy.sparse import csr_array

        ours = csr_array(tuple(t.numpy() for t in parts), adj.shape)
        return "scipy", ours.__matmul__, lambda f, *v: torch.from_numpy(f(*(t.numpy() for t in v)))
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    theirs = csr_matrix(tuple(cupy.from_dlpack(t) for t in parts), adj.shape)

    def alike(function: Callable[..., Any], *vectors: Tensor) -> Tensor:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):  # its own is not what the clock sees
            return torch.from_dlpack(function(*(cupy.from_dlpack(t) for t in vectors)))

    return "cupy", theirs.__matmul__, alike


def pagerank(product: Multiply, x: Any, b: Any) -> tuple[Any, ...]:
    """A step from ranks x, and how much it changes them."""
    new = 0.85 * product(x) + 0.15 * b
    return new, abs(new - x).sum()


def power(product: Multiply, x: Any, b: Any) -> tuple[Any, ...]:
    """A step of power iteration: the next vector, and the eigenvalue so far."""
    y = product(x)
    return y / (y * y).sum() ** 0.5, (x * y).sum() / (x * x).sum()


def gradients(product: Multiply, x: Any, b: Any) -> tuple[Any, ...]:
    """A step of conjugate gradients from x = 0, with residual and direction b: the next x, residual and direction."""
    Ap, norm = product(x), (b * b).sum(0)
    step = norm / (x * Ap).sum(0)
    r = b - step * Ap
    return x + step * x, r, r + (r * r).sum(0) / norm * x


def labels(product: Multiply, x: Any, b: Any) -> tuple[Any, ...]:
    """A step of label propagation from x, with seeds b."""
    return (0.9 * product(x) + 0.1 * b,)


def searches(product: Multiply, x: Any, b: Any) -> tuple[Any, ...]:
    """The second step of searches from many sources: x is 1 where they are now, b the distance, or 2 where it is not
    known. What is found gets the distance 1."""
    new = product(x).clip(0, 1) * (b >= 2)
    return b - new, new


@dataclass(frozen=True)
class Iteration:
    """Its step; how many vectors it has, one behind the other in rows; whether entries count as ones."""

    step: Callable[..., tuple[Any, ...]]
    columns: int = 0
    ones: bool = False


ITERATIONS = {
    "a step of PageRank": Iteration(pagerank),
    "a step of power iteration": Iteration(power),
    "a step of conjugate gradients": Iteration(gradients),
    "a step of conjugate gradients, 8 right sides": Iteration(gradients, 8),
    "a step of label propagation, 10 classes": Iteration(labels, 10),
    "a step of closeness, 64 sources": Iteration(searches, 64, ones=True),
}


def iterations(of: Iteration, adj: fusedmm.CSR, options: Options) -> list[Trial]:
    """One step by ours in CSR and, of one vector, in the format that reads least, by torch, and by scipy or cupy.

    Several vectors are spmm's. Of ones, ours reads no values; the peers have no matrix without.
    """
    about = {"dtype": options.dtype, "device": options.device}
    shape = (adj.n_cols, of.columns) if of.columns else (adj.n_cols,)
    x, b = (random(*shape, **about, seed=k) for k in (3, 4))
    adj = adj.with_values(torch.ones(adj.nnz, **about) if of.ones else random(adj.nnz, **about, seed=2))
    if of.ones:  # the sources, and what their first step has found
        x = (x > 2).to(x)
        b = 2 - x
    assert adj.val is not None
    ours, wide = adj.pattern() if of.ones else adj, adj.to(dtype=torch.float64)
    times = fusedmm.spmm if of.columns else fusedmm.spmv
    exact = of.step(partial(times, wide, algorithm="reference"), x.double(), b.double())[0]
    best, theirs = formats.advise(adj).best, sparse_csr(adj, adj.val, torch.int32)
    found = [trial("auto", lambda: of.step(partial(times, ours), x, b)[0], exact)]
    if best != "csr" and not of.columns:
        padded = MAKERS[best](adj)
        found.append(trial(f"auto, {best}", lambda: of.step(partial(fusedmm.spmv, padded), x, b)[0], exact))
    found.append(trial("torch, int32", lambda: of.step(theirs.__matmul__, x, b)[0], exact, "peer"))
    name, multiply, alike = library(adj, x)
    return [*found, trial(name, lambda: alike(lambda *v: of.step(multiply, *v)[0], x, b), exact, "peer")]


def trial(name: str, run: Product, exact: Tensor, kind: str = "ours") -> Trial:
    """A product and its error."""

    @torch.no_grad()
    def step() -> tuple[Tensor, ...]:
        return (run(),)

    def check() -> tuple[float, float]:
        found = run()
        return float((found - exact).norm() / exact.norm()), limit(found.dtype)

    return Trial(name, lambda: step, kind, check=check)


def reads(adj: fusedmm.CSR, x: Tensor, each: int) -> Trial:
    """What a product of CSR reads, and no product."""

    def make() -> Callable[[], tuple[Tensor, ...]]:
        run = reading(adj, x, each)
        return lambda: (run(),)

    return Trial(f"{READS}, {each} a thread", make, "wall")


def copy(matrix: int, x: Tensor, rows: int) -> Trial:
    """Half of the bytes are read and half are written."""
    half = torch.zeros((matrix + (x.numel() + rows) * x.element_size()) // 8, device=x.device)
    to = torch.empty_like(half)
    return Trial(COPY, lambda: lambda: (to.copy_(half),), "wall")
