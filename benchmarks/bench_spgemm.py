"""Sparse times sparse, A A (A Aᵀ where A is not square): the whole product with sorted columns, by every algorithm, and
without; and the values alone where the structure is known. Beside it torch's CSR @ CSR; on the CPU scipy, on CUDA every
algorithm of cuSPARSE, which alone of them has a phase for values. Ours is timed once more on a square matrix whose rows
and columns were numbered by reverse Cuthill-McKee. And R A P, with R the transpose of P, a pattern that joins four rows
with neighbouring numbers, in both orders.

The wall is a copy of as many bytes as A, B and C have, by the same threads: what a product would take that read and
wrote each of them once. How far off it one thread and more are says what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from benchmarks import cusparse
from benchmarks.case import random
from benchmarks.hypergraph import of_warps, traffic
from benchmarks.jobs import Job, Options
from benchmarks.trial import Step, Trial
from fusedmm.ops.products import COLOURED

MOST = {"cpu": 3 * 10**8, "cuda": 2 * 10**9}  # products; more are left out
LARGE = ["5-point 1000^2", "9-point 1000^2", "7-point 100^3", "27-point 50^3", "33-point 200000^1"]  # on CUDA too
CHECKED, ORDERED = 2**20, 10**7  # rows that are compared with float64, entries that are numbered anew, at most
PATIENCE = 0.5  # seconds that a peer's step may take to be measured
JOINED = 4  # rows that P makes one
PLANNED, COPY = "A A with a plan", "a copy of as many bytes"
FIRST, SPACE = 512, 4  # entries of kkmem's first table, and slots for each entry of the others


def jobs(graph: str, adj: fusedmm.CSR, options: Options) -> Iterator[Job]:
    """The whole product, sorted or not, and its values alone."""
    a = adj.with_values(random(adj.nnz, 1, dtype=options.dtype, device=options.device, seed=1)[:, 0])
    b = a if a.shape[0] == a.shape[1] else a.t()
    products = int(b.degree()[a.idx.long()].sum())
    if products > MOST[options.device]:
        return
    square = a.shape[0] == a.shape[1]
    number = bandwidth_order(b) if square and a.nnz <= ORDERED else None
    other = None if number is None else a.subgraph(number.argsort())
    facts = {"flops": 2 * products, "products": products} | shape_of(a, b, number)
    facts |= {} if other is None else {"making_other": other_making(a, other)}
    parts = joining(a) if square else None
    if parts:
        transposed = [m.t() for m in parts[::-1]]
        facts |= {"left_first": products_in_turn(*parts), "right_first": products_in_turn(*transposed)}
    cuda = options.device == "cuda"
    for label in ("A A sorted", *["A A unsorted"] * (not cuda), PLANNED):  # on CUDA columns always rise
        if options.wants(label):
            make, waits = partial(trials, a, b, label, facts["nnz_c"], other), cuda and label == "A A sorted"
            moved, of = read_by_warps(a, b) if cuda and label == PLANNED else ({}, {})
            yield Job(label, make, patience=PATIENCE, waits=waits, facts=facts | moved, of=of)
    if parts and options.wants("R A P"):
        least = min(facts["left_first"], facts["right_first"])
        yield Job("R A P", partial(coarsening, *parts), facts=facts | {"flops": 2 * least})


def joining(a: fusedmm.CSR) -> tuple[fusedmm.CSR, fusedmm.CSR, fusedmm.CSR]:
    """R, A and P."""
    node = torch.arange(a.shape[0], device=a.device)
    p = fusedmm.CSR.from_coo(node, node // JOINED, torch.ones_like(node, dtype=a.val.dtype))
    return p.t(), a, p


def products_in_turn(r: fusedmm.CSR, a: fusedmm.CSR, p: fusedmm.CSR) -> int:
    """How many products (R A) P has."""
    ra = fusedmm.spgemm_plan(r, a).c
    return sum(int(y.degree()[x.idx.long()].sum()) for x, y in ((r, a), (ra, p)))


def coarsening(r: fusedmm.CSR, a: fusedmm.CSR, p: fusedmm.CSR) -> list[Trial]:
    """R A P: ours by the rule and in both orders, and the peers' faster order."""

    def ours(order: str) -> Step:
        return lambda: (fusedmm.triple_product(r, a, p, order=order).val,)

    names = {"auto": "auto", "left": "(R A) P", "right": "R (A P)"}
    found = [Trial(name, partial(ours, order), "ours") for order, name in names.items()]
    x, y, z = (m.to_torch() for m in (r, a, p))
    found.append(Trial("torch (R A) P", lambda: lambda: (((x @ y) @ z).values(),)))
    found.append(Trial("torch R (A P)", lambda: lambda: ((x @ (y @ z)).values(),)))
    if a.device.type == "cpu":
        u, v, w = (scipys_view(m) for m in (x, y, z))
        found.append(Trial("scipy (R A) P", lambda: lambda: (torch.from_numpy(((u @ v) @ w).data),)))
        found.append(Trial("scipy R (A P)", lambda: lambda: (torch.from_numpy((u @ (v @ w)).data),)))
    return found


def shape_of(a: fusedmm.CSR, b: fusedmm.CSR, number: Tensor | None) -> dict[str, Any]:
    """Entries of the product; what share of the products is left when B's columns are packed in words, and when they
    have other numbers, if these are given; what share of both phases the symbolic one takes; KiB of a table of
    kkmem's pool; on the CPU what lines of memory the schedule moves; and on CUDA what a plan keeps beside C, and how
    many times as long it takes to make as one that keeps nothing."""
    plan = fusedmm.spgemm_plan(a, b)
    found, values = _least(lambda: fusedmm.spgemm_plan(a, b)), _least(lambda: plan(a.val, b.val))
    facts = {"nnz_c": plan.c.nnz, "compressed": left_when_packed(a, b), "symbolic": round(found / (found + values), 3)}
    beyond = SPACE * (int(plan.c.degree().max()) - FIRST) if plan.c.nnz else 0
    facts["pool_kib"] = 2 ** (beyond - 1).bit_length() * (4 + a.val.element_size()) // 1024 if beyond > 0 else 0
    if number is not None:
        facts["reordered"] = left_when_packed(a, b, number)
    if a.device.type == "cpu":
        return facts | traffic(plan, a.val.element_size())
    without = _least(lambda: fusedmm.spgemm_plan(a, b, algorithm="kkspeed"))
    return facts | {"kept_mib": round(plan.products.numel() / 2**18, 1), "making": round(found / without, 2)}


def read_by_warps(a: fusedmm.CSR, b: fusedmm.CSR) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """What each algorithm with a plan moves on CUDA by the model, C's values and the copy's bytes with it; and of each
    the flops for a double that it reads, the products of a window and the windows of an entry of A."""
    plan, width = fusedmm.spgemm_plan(a, b), a.val.element_size()
    read, products = of_warps(plan, width), int(b.degree()[a.idx.long()].sum())
    moved = {name: r.bytes + plan.c.nnz * width for name, r in read.items()}
    moved[COPY] = size_of(a, b, plan.c.nnz, width)  # half of it read, half written
    of = {
        name: {
            "flops_per_double": round(16 * products / max(1, r.bytes), 3),
            "of_window": round(products / max(1, r.windows), 1),
            "visits": round(r.visits, 2),
        }
        for name, r in read.items()
    }
    return {"moved": moved}, of


def size_of(a: fusedmm.CSR, b: fusedmm.CSR, nnz: int, width: int) -> int:
    """Bytes of A, B and C, which has ``nnz`` entries."""
    return (a.nnz + b.nnz + nnz) * (4 + width) + 8 * (2 * a.shape[0] + b.shape[0])


def other_making(a: fusedmm.CSR, other: fusedmm.CSR) -> float:
    """How many times as long a plan takes to make where rows and columns have other numbers."""
    as_is, renumbered = (_least(partial(fusedmm.spgemm_plan, m, m)) for m in (a, other))
    return round(renumbered / as_is, 2)


def left_when_packed(a: fusedmm.CSR, b: fusedmm.CSR, number: Tensor | None = None) -> float:
    """The share of A B's products that is left when the columns of B in one word of 64 are one; columns may be numbered
    anew."""
    row, col, _ = b.coo()
    words = b.shape[1] // 64 + 1
    taken = torch.unique(row * words + (col if number is None else number[col]) // 64)
    runs = torch.bincount(taken // words, minlength=b.shape[0])
    return round(int(runs[a.idx.long()].sum()) / max(1, int(b.degree()[a.idx.long()].sum())), 3)


def bandwidth_order(b: fusedmm.CSR) -> Tensor:
    """A number for each column, by reverse Cuthill-McKee: neighbours get neighbouring numbers."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = torch.from_numpy(reverse_cuthill_mckee(scipys_view(b.to_torch().cpu())).astype("int64"))
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order))).to(b.device)


def _least(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of seven runs."""
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def trials(a: fusedmm.CSR, b: fusedmm.CSR, label: str, nnz: int, other: fusedmm.CSR | None) -> list[Trial]:
    """Ours, by ``auto`` alone where columns need not rise, and on the matrix with other numbers, if there is one; the
    wall; and the peers. C has ``nnz`` entries."""
    half = torch.zeros(size_of(a, b, nnz, a.val.element_size()) // 8, device=a.device)
    to = torch.empty_like(half)
    found = [Trial(COPY, lambda: lambda: (to.copy_(half),), "wall")]
    names = [x.name for x in fusedmm.algorithms("spgemm", a.device) if x.name != "reference"]
    if label == PLANNED:
        found += [Trial(name, partial(planned, a, b, name), "ours") for name in ["auto", *names] if pays(a, name)]
    else:
        whole = partial(fusedmm.spgemm, a, b, sorted=label == "A A sorted")
        check = partial(checked, a, b, whole) if label == "A A sorted" else None
        found.append(Trial("auto", lambda: lambda: (whole().val,), "ours", check=check))
    if label == "A A sorted":
        found += [Trial(name, partial(multiplied, a, b, name), "ours") for name in names if name not in COLOURED]
    if other is not None:
        again = partial(fusedmm.spgemm, other, other, sorted=label == "A A sorted")
        make = partial(planned, other, other, "auto") if label == PLANNED else lambda: lambda: (again().val,)
        found.append(Trial("auto, renumbered", make, "ours"))
    x, y = a.to_torch(), b.to_torch()
    cpu = a.device.type == "cpu"
    # On CUDA the peer of values alone is cuSPARSE's reuse, which keeps memory that torch's product would need.
    if cpu or label != PLANNED:
        found.append(Trial("torch CSR @ CSR", lambda: lambda: ((x @ y).values(),)))
    if cpu:
        found.append(Trial("scipy", lambda: partial(scipys, x, y)))
        if label == "A A sorted":  # as ours then are; neither peer's columns rise otherwise
            found.append(Trial("torch, then sorted", lambda: partial(torchs_sorted, x, y)))
            found.append(Trial("scipy, then sorted", lambda: partial(scipys, x, y, sort=True)))
    elif label == PLANNED:
        found.append(Trial("cuSPARSE reuse", partial(cusparse.planned, a, b)))
    else:
        for name in cusparse.ALGORITHMS:
            found.append(Trial(f"cuSPARSE {name}", lambda name=name: partial(cusparse.multiplied, a, b, name)))
    return found


def pays(a: fusedmm.CSR, name: str) -> bool:
    """Whether an algorithm is measured: a hub has as many neighbours of different colours as the product's row."""
    return name not in COLOURED or int(a.degree().max()) <= 64


def multiplied(a: fusedmm.CSR, b: fusedmm.CSR, name: str) -> Step:
    """Both phases; the algorithm is that of the second one."""
    return lambda: (fusedmm.spgemm(a, b, algorithm=name).val,)


def planned(a: fusedmm.CSR, b: fusedmm.CSR, name: str) -> Step:
    """The values alone."""
    plan = fusedmm.spgemm_plan(a, b, algorithm=name)
    return lambda: (plan(a.val, b.val).val,)


def checked(a: fusedmm.CSR, b: fusedmm.CSR, whole: Any) -> tuple[float, float]:
    """The largest error beside the sum of a sum's magnitudes, and what it may be; exact is scipy's in float64, or for
    products on CUDA, which may be large, the CPU's of the first rows."""
    x, y = (m.to("cpu", torch.float64) for m in (a if a.shape[0] <= CHECKED else a[:CHECKED], b))
    pairs = (x, y), (x.with_values(x.val.abs()), y.with_values(y.val.abs()))
    if a.device.type == "cpu":
        exact, magnitude = (scipys(first.to_torch(), second.to_torch(), sort=True)[0] for first, second in pairs)
    else:
        exact, magnitude = (fusedmm.spgemm(first, second).val for first, second in pairs)
    least = torch.finfo(torch.float64).tiny  # a value may be 0, and so all that a sum has
    found = whole().val[: exact.numel()].double().cpu()
    error = ((found - exact).abs() / magnitude.clamp(min=least)).max() if exact.numel() else 0.0
    return float(error), 4 * float(a.degree().max()) ** 0.5 * torch.finfo(a.val.dtype).eps / 2


def scipys_view(t: Tensor) -> Any:
    """A CSR tensor as scipy's, of the same memory."""
    import scipy.sparse

    parts = (t.values().numpy(), t.col_indices().numpy(), t.crow_indices().numpy())
    return scipy.sparse.csr_matrix(parts, shape=tuple(t.shape))


def torchs_sorted(x: Tensor, y: Tensor) -> tuple[Tensor]:
    """torch's product, brought in order by scipy, which sorts rows in place."""
    product = scipys_view(x @ y)
    product.sort_indices()
    return (torch.from_numpy(product.data),)


def scipys(x: Tensor, y: Tensor, sort: bool = False) -> tuple[Tensor]:
    """scipy's product of the same tensors, of which it makes views."""
    product = scipys_view(x) @ scipys_view(y)
    if sort:
        product.sort_indices()
    return (torch.from_numpy(product.data),)
