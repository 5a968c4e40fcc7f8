"""A few calls of every CUDA operator and algorithm, for compute-sanitizer (make gpu-sanitize).

Small structures, so that a tool that watches every access ends soon: forward and backward, each dtype,
an odd number of features, empty rows, a row long enough to be split, rows that are sorted and even,
structures written behind the check, and layers on edges that are new to them. The argument is the tool's
name. Numbers are looked at only as far as being there; the test suite compares them. What each part of the sample took
is printed, so that a part that grew too long is seen.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fusedmm
from fusedmm.formats import to_coo, to_dia, to_ell, to_hyb, to_sell
from fusedmm.nn import AGNNConv, GATConv, GATv2Conv, GCNConv, SAGEConv, TransformerConv

WIDTHS = {torch.float32: 32, torch.bfloat16: 7, torch.float64: 5, torch.float16: 64}  # of each dtype
SOME = list(WIDTHS)[:2]
# These two take several times as long as the others. Barriers, and who shares memory with whom, are the same for every
# dtype.
if "synccheck" in sys.argv or "racecheck" in sys.argv:
    WIDTHS = {dtype: WIDTHS[dtype] for dtype in SOME}
WILD = {"ptr": (2**62, -1), "idx": (2**31 - 1, -1), "eid": (2**31 - 1, -1)}


def names_of(op: str) -> list[str]:
    """The algorithms of an operator that this tool looks at.

    racecheck watches the shared memory of every kernel, and reports that threads of cuSPARSE's csrmv_v3 and coomv write
    the same 16-bit words. Nobody here can mend those kernels, so it is not shown them.
    """
    names = [a.name for a in fusedmm.algorithms(op, "cuda")]
    return [name for name in names if not ("racecheck" in sys.argv and name.startswith(("cusparse", "cublas")))]


def structure(long_row: bool) -> fusedmm.CSR:
    """33 x 40 with empty rows, edges in no order; a long row is cut in segments by the plan."""
    g = torch.Generator().manual_seed(1)
    row, col = torch.randint(0, 30, (300,), generator=g), torch.randint(0, 40, (300,), generator=g)
    if long_row:
        row = torch.cat([row, torch.full((1500,), 7)])
        col = torch.cat([col, torch.randint(0, 40, (1500,), generator=g)])
    order = torch.randperm(row.numel(), generator=g)
    return fusedmm.CSR.from_coo(row[order].cuda(), col[order].cuda(), shape=(33, 40))


def long_pieces() -> fusedmm.CSR:
    """16 x 40 with so many entries that their pieces, of 1,024, put their sums aside."""
    degree = 700_000
    idx = torch.arange(40, dtype=torch.int32).repeat_interleave(degree // 40).repeat(16)
    return fusedmm.CSR.from_csr(torch.arange(0, 16 * degree + 1, degree).cuda(), idx.cuda(), shape=(16, 40))


def even() -> fusedmm.CSR:
    """300 x 600, every 15th column of each row, in order: several blocks of `tiles`, several windows each."""
    col = torch.arange(0, 600, 15).repeat(300) + torch.arange(300).remainder(15).repeat_interleave(40)
    return fusedmm.CSR.from_csr(torch.arange(0, 40 * 300 + 1, 40).cuda(), col.cuda(), shape=(300, 600))


def forged(name: str, value: int) -> fusedmm.CSR:
    """One number is not what the constructor saw; the transpose is from before."""
    adj = structure(False).cache_transpose()
    getattr(adj, name).data[5] = value
    return adj


def tensor(*size: int, dtype: torch.dtype, grad: bool) -> Tensor:
    g = torch.Generator().manual_seed(2)
    return torch.randn(size, generator=g).to(dtype).cuda().requires_grad_(grad)


def attempt(call: Callable[[], Any], grad: bool) -> bool:
    """Runs a call, and its gradient; an algorithm may decline by name."""
    try:
        out = call()
    except ValueError as error:
        if "algorithm" not in str(error) and " takes " not in str(error):
            raise
        return False
    if grad:
        out.float().square().sum().backward()
    torch.cuda.synchronize()
    return True


def calls(
    adj: fusedmm.CSR, algorithms: dict[str, str], dtype: torch.dtype, feat: int, grad: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call) of every operator with these algorithms."""
    new = partial(tensor, dtype=dtype, grad=grad)
    weighted = adj.with_values(new(adj.nnz))
    rows, cols = adj.shape
    x, q, att, one, two = new(cols, 2, feat), new(rows, 2, feat), new(2, feat), new(rows, 2), new(cols, 2)
    spmm = partial(fusedmm.spmm, weighted, x, algorithm=algorithms["spmm"])
    yield from (("spmm", partial(spmm, reduce=reduce)) for reduce in ("sum", "max"))
    yield "sddmm", partial(fusedmm.sddmm, weighted, q, x, algorithm=algorithms["sddmm"])
    attention = partial(fusedmm.attention, adj, algorithm=algorithms["attention"])
    yield "attention", partial(attention, q, x, x)
    yield "attention", partial(attention, q * 100, x, x)  # what lse's rounding took is read
    yield "attention", partial(attention, one, two, x, score="additive", dropout=0.5)
    yield "attention", partial(attention, q, x, x, score="gatv2", att=att, bias=new(adj.nnz, 2))
    fused = partial(fusedmm.fused, weighted, q, x, edge="sigmoid(s)*a", algorithm=algorithms["fused"])
    yield from (("fused", partial(fused, message=message)) for message in ("scale", "sub"))


def tiles(adj: fusedmm.CSR, dtype: torch.dtype, feat: int) -> int:
    """How many calls of the kernels with windows in shared memory ran; they decline some types by name."""
    q, x = (tensor(nodes, feat, dtype=dtype, grad=False) for nodes in adj.shape)
    weighted = adj.with_values(tensor(adj.nnz, dtype=dtype, grad=False))
    spmm = [partial(fusedmm.spmm, matrix, x, algorithm="tiles") for matrix in (adj, weighted)]
    fused = [partial(fusedmm.fused, matrix, q, x, algorithm="tiles") for matrix in (adj, weighted)]
    fused.append(partial(fusedmm.fused, weighted, q, x, edge="sigmoid(s)*a", algorithm="tiles"))
    sddmm = partial(fusedmm.sddmm, adj, q, x, algorithm="tiles")
    return sum(attempt(call, False) for call in (*spmm, sddmm, *fused))


def heads(adj: fusedmm.CSR) -> int:
    """How many calls of attention's kernels for heads that whole lanes fill ran, with their gradients."""
    ran = 0
    # torch's sum over att's parts reads, and drops, what threads without a column left of its scratch: 192 columns have
    # such threads, 256 have none.
    count = 4 if "initcheck" in sys.argv else 3
    for feat in (8, 64, 128):
        q, k, v = (tensor(n, count, feat, dtype=torch.float32, grad=True) for n in (adj.shape[0], *adj.shape[1:] * 2))
        one, two, att = q[..., 0], k[..., 0], tensor(count, feat, dtype=torch.float32, grad=True)
        attention = partial(fusedmm.attention, adj)
        made = [partial(attention, q, k, v), partial(attention, one, two, v, score="additive")]
        made += [partial(attention, q, k, to, score="gatv2", att=att) for to in (k, v)]
        ran += sum(attempt(call, True) for call in made)
    return ran


def matvecs(adj: fusedmm.CSR, dtype: torch.dtype) -> int:
    """How many calls of SpMV ran: each format by each of its algorithms, alone and added to a y."""
    x, y = (tensor(n, dtype=dtype, grad=False) for n in adj.shape[::-1])
    weighted = adj.with_values(tensor(adj.nnz, dtype=dtype, grad=False))
    loose = {"growth": math.inf}  # whatever padding takes
    made = [weighted, adj, to_coo(weighted), to_dia(weighted, **loose), to_ell(weighted, **loose)]
    made += [to_hyb(weighted, **loose), to_sell(weighted, **loose)]
    names = ["auto", *names_of("spmv")]
    spmv = [partial(fusedmm.spmv, matrix, x, algorithm=name) for matrix in made for name in names]
    return sum(attempt(call, False) + attempt(partial(call, alpha=2, beta=0.5, y=y), False) for call in spmv)


def products(adj: fusedmm.CSR, dtype: torch.dtype, grad: bool) -> int:
    """How many sparse products ran: each algorithm, sorted or not, and with a mask."""
    a = adj.with_values(tensor(adj.nnz, dtype=dtype, grad=grad))
    b, mask = a.t(), fusedmm.CSR.from_coo(*(torch.arange(adj.shape[0]).to(adj.ptr.device),) * 2)
    names = ["auto", *names_of("spgemm")]
    plans = [partial(fusedmm.spgemm_plan, a, b, algorithm=name) for name in names]
    made = [partial(plan, **more) for plan in plans for more in ({}, {"sorted": False}, {"mask": mask})]
    return sum(attempt(lambda plan=plan: plan()(a.val, b.val).val, grad) for plan in made)


def apart(rows: int, cols: int, nnz: int, *hubs: int) -> fusedmm.CSR:
    """Entries among the first 30 rows, none repeated, 200 more in each hub, and one in each of 40 rows."""
    g = torch.Generator().manual_seed(3)
    key = [torch.randperm(30 * cols, generator=g)[:nnz], torch.arange(40) * (cols + 1) + 31 * cols]
    key += [hub * cols + torch.arange(200) for hub in hubs]
    row, col = (torch.cat(key).unique() // cols).cuda(), (torch.cat(key).unique() % cols).cuda()
    return fusedmm.CSR.from_coo(row, col, shape=(rows, cols))


def whole_products(dtype: torch.dtype) -> int:
    """How many whole products ran: few rows, hubs in one block; columns packed; and rows in lists, merged or hashed."""
    made = [structure(False), apart(80, 300, 600, 31, 32, 41), structure(True), apart(60_000, 50, 300)]
    weighted = [adj.with_values(tensor(adj.nnz, dtype=dtype, grad=False)) for adj in made]
    return sum(attempt(lambda a=a: fusedmm.spgemm(a, a.t()).val, False) for a in weighted)


def messages(adj: fusedmm.CSR, dtype: torch.dtype, grad: bool) -> int:
    """How many messages ran and entries, of one channel, of some, and broadcast over heads."""
    ran = 0
    for op, algorithm in itertools.product(("add", "div", "copy_rhs"), ("auto", *names_of("messages"))):
        for size, other in (((), ()), ((33,), (1,)), ((2, 8), (2, 1))):
            x = tensor(adj.shape[1], *size, dtype=dtype, grad=grad)
            q, e = (tensor(n, *other, dtype=dtype, grad=grad) for n in (adj.shape[0], adj.nnz))
            rows = [partial(fusedmm.gspmm, adj, op, reduce, x, e) for reduce in ("sum", "max")]
            made = [*rows, partial(fusedmm.gsddmm, adj, "dot" if op == "add" and size else op, x, q)]
            ran += sum(attempt(partial(call, algorithm=algorithm), grad) for call in made)
    return ran


def layers(dtype: torch.dtype) -> int:
    """How many layers took a step on edges they had not seen: construction, self loops, weights, their kernels."""
    edges = torch.stack(structure(True).coo()[:2]).long().clamp(max=32)
    x = tensor(33, 20, dtype=dtype, grad=True)
    made = [GCNConv(20, 12), SAGEConv(20, 12), GATConv(20, 12, heads=3), GATv2Conv(20, 8, heads=2)]
    made += [TransformerConv(20, 8, heads=2), AGNNConv()]
    return sum(attempt(partial(layer.cuda().to(dtype), x, edges), True) for layer in made)


def main() -> int:
    done: dict[str, int] = {}
    began = time.monotonic()

    def tell(part: str) -> None:
        nonlocal began
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()

    def run(adj: fusedmm.CSR, algorithms: dict[str, str], dtype: torch.dtype, feat: int, grad: bool) -> None:
        for name, call in calls(adj, algorithms, dtype, feat, grad):
            done[name] = done.get(name, 0) + attempt(call, grad)

    operators = ("spmm", "sddmm", "attention", "fused")
    auto = dict.fromkeys(operators, "auto")
    listed = [names_of(op) for op in operators]
    for turn, names in enumerate(itertools.zip_longest(*listed, fillvalue="auto")):
        chosen = dict(zip(operators, names, strict=True))
        run(structure(turn % 2 == 0), chosen, torch.float32, 33, False)
        for dtype, feat in list(WIDTHS.items())[1:]:
            run(structure(turn % 2 == 0), chosen, dtype, feat, False)
    tell("algorithms")
    for feat in (4, 33, 128):  # 16-byte loads or not, one window's width or several
        for dtype in WIDTHS:
            done["tiles"] = done.get("tiles", 0) + tiles(even(), dtype, feat)
    tell("tiles")
    for dtype, feat in WIDTHS.items():
        run(structure(True), auto, dtype, feat, True)
    tell("gradients")
    if "memcheck" in sys.argv:
        # Not initcheck: a plan that is cut to what it holds is copied with the gaps in it. Not racecheck and synccheck:
        # 11 million entries pass the barriers that fewer pass, and are put aside where no other thread writes. The last
        # call of each operator stands for its others.
        for call in dict(calls(long_pieces(), auto, torch.float32, 4, True)).values():
            attempt(call, True)
        tell("long pieces")
    for name, values in WILD.items():
        if "initcheck" in sys.argv:
            continue  # torch adds up gradients in which nobody wrote what forged edges leave out
        for value in values:
            run(forged(name, value), auto, torch.float32, 33, name != "ptr")
    tell("forged")
    done["spmv"] = sum(matvecs(adj, dtype) for adj in (structure(True), even()) for dtype in SOME)
    tell("spmv")
    some = SOME[: 1 if "racecheck" in sys.argv else 2]  # a symbolic phase looks at no value, and takes most of the time
    done["spgemm"] = sum(products(structure(long), dtype, long) for long in (False, True) for dtype in some)
    done["spgemm"] += sum(whole_products(dtype) for dtype in some)
    tell("spgemm")
    done["messages"] = sum(messages(structure(True), dtype, True) for dtype in SOME)
    tell("messages")
    done["heads"] = sum(heads(structure(long_row)) for long_row in (False, True))
    tell("heads")
    for dtype in WIDTHS:
        done["layers"] = done.get("layers", 0) + layers(dtype)
    tell("layers")
    print(", ".join(f"{n} calls of {name}" for name, n in done.items()))
    parts = (*operators, "tiles", "heads", "spmv", "spgemm", "messages", "layers")
    return 0 if all(done.get(part) for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
