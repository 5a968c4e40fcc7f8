"""A matrix shared by several GPUs against the same on one: products and layers, what travels, memory, and a trace.

    torchrun --nproc-per-node 2 -m benchmarks.bench_distributed reddit-size products-size --out FILE.json

Every process computes each case on its own GPU alone, then all of them together. Both sides run in one process, with a
cold L2, on matrices with values. The rows that a rank finds are compared with those of one GPU, bit by bit. GPUs begin
a run together, once their hosts have enqueued it, and its time is that of the slowest. The host's time is apart.

The parts of a product are timed by themselves too: rows that go out are gathered (pack), travel (wire), own rows are
copied beside those that come (copy), and the kernel runs. The bound is the larger of wire and kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fusedmm
from benchmarks import graphs
from benchmarks.ranks import Bench
from fusedmm import nn
from fusedmm._lib import ops
from fusedmm.distributed import DistCSR, overlap
from fusedmm.distributed.halo import Group, ranks_of

WIDTH, RUNS = 128, 15
SHARES = {"1": (1,), "1:1": (1, 1), "1:1:1:1": (1,) * 4}  # of the columns that travel in a piece
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "GAT 8x8": lambda: nn.GATConv(WIDTH, 8, heads=8),
    "GCN-128": lambda: nn.GCNConv(WIDTH, WIDTH, cached=True),
}
Row = dict[str, Any]


def balanced(adj: fusedmm.CSR, ranks: int) -> Tensor:
    """First rows of ranks that have as many entries and as many rows as each other, counted together."""
    rows = adj.shape[0]
    load = adj.ptr + torch.arange(rows + 1, device=adj.device) * (adj.nnz / max(rows, 1))
    marks = torch.arange(1, ranks, device=adj.device) * load[-1] / ranks
    inner = torch.searchsorted(load, marks).cpu()
    return torch.cat([torch.tensor([0]), inner, torch.tensor([rows])])


def step(layer: torch.nn.Module, x: Tensor, adj: fusedmm.CSR, up: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's result and its gradient by x."""
    leaf = x.detach().requires_grad_()
    for p in layer.parameters():
        p.grad = None
    out = layer(leaf, adj)
    out.backward(up)
    assert leaf.grad is not None
    return out.detach(), leaf.grad


def close(found: Tensor, expected: Tensor) -> float:
    """The largest difference, of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def one_gpu(
    b: Bench, adj: fusedmm.CSR, val: Tensor, x: Tensor, own: slice
) -> tuple[Row, dict[str, tuple[Tensor, ...]]]:
    """Times and memory of one GPU, and what a rank's rows of the results have to be."""
    weighted = adj.with_values(val)
    row: Row = {"one": {"spmm": b.ms(lambda: fusedmm.spmm(weighted, x), together=False)}}
    row["one_memory"] = {"spmm": b.peak(lambda: fusedmm.spmm(weighted, x))}
    expected: dict[str, tuple[Tensor, ...]] = {"spmm": (fusedmm.spmm(weighted, x)[own].clone(),)}
    b.keep(expected["spmm"])
    for key in LAYERS:
        layer, up = layer_of(key, b.device), upstream(key, x)
        go = lambda layer=layer, up=up: step(layer, x, adj, up)  # noqa: E731
        expected[key] = tuple(t[own].clone() for t in go())
        b.keep(expected[key])
        row["one"][key] = b.ms(go, together=False)
        row["one_memory"][key] = b.peak(go)
    alone = DistCSR.from_rows(adj.ptr, adj.idx, val, torch.tensor([0, adj.shape[0]]), None)
    row["one_rank"] = b.ms(lambda: fusedmm.spmm(alone, x), together=False)
    return row, expected


def layer_of(key: str, device: torch.device) -> torch.nn.Module:
    """The same parameters at every call."""
    torch.manual_seed(0)
    return LAYERS[key]().to(device)


def upstream(key: str, x: Tensor) -> Tensor:
    """The gradient of a layer's result, which has a row for each of x."""
    generator = torch.Generator(x.device).manual_seed(2)
    width = 64 if key.startswith("GAT") else WIDTH
    return torch.randn(x.shape[0], width, generator=generator, device=x.device)


def case(b: Bench, name: str, trace: bool) -> Row:
    """Everything about one graph."""
    b.leave_out()
    adj = graphs.load(name, str(b.device))
    n, nnz, rank = adj.shape[0], adj.nnz, b.ranks.rank
    generator = torch.Generator(b.device).manual_seed(1)
    val = torch.rand(nnz, generator=generator, device=b.device) - 0.5
    x = torch.randn(n, WIDTH, generator=generator, device=b.device)
    row: Row = {"graph": name, "nodes": n, "entries": nnz, "ranks": b.ranks.count}
    offsets = balanced(adj, b.ranks.count)
    own = slice(*offsets[rank : rank + 2].tolist())
    alone, expected = one_gpu(b, adj, val, x, own)
    row |= alone
    b.say(name, "one:", rounded(row["one"]), "one rank:", round(row["one_rank"], 3))

    edges = slice(nnz * rank // b.ranks.count, nnz * (rank + 1) // b.ranks.count)
    coordinates = [t[edges].clone() for t in adj.coo()[:2]]
    mine, x = val[edges].clone(), x[own].clone()
    ups = {key: upstream(key, torch.empty(n, 0, device=b.device))[own].clone() for key in LAYERS}
    del adj, val
    b.leave_out(x, mine, *coordinates)
    begin = time.perf_counter()
    shared = DistCSR.from_edges(*coordinates, None, offsets, b.mesh)
    b.wait()
    row["from_edges_s"] = b.most(time.perf_counter() - begin)
    weighted = shared.with_values(shared.route(mine))
    del coordinates, mine
    begin = time.perf_counter()
    overlap(shared, "split").cache_transpose()  # of a matrix of its own: layers transpose the one with self loops
    b.wait(empty=True)
    row["transpose_s"] = b.most(time.perf_counter() - begin)
    row |= several(b, weighted, shared, x, ups, expected)
    b.say(name, rounded(row["several"]), "bits:", row["bits"], "parts:", rounded(row["parts"]))
    if trace and b.cuda:
        row["trace"] = {key: traced(b, lambda: fusedmm.spmm(weighted, x), shares) for key, shares in SHARES.items()}
    return row


def several(
    b: Bench, weighted: DistCSR, shared: DistCSR, x: Tensor, ups: dict[str, Tensor], expected: dict[str, Any]
) -> Row:
    """What all ranks find together, how long it takes, and what travels."""
    part, group = shared.part, b.ranks
    times: Row = {}
    row: Row = {"several": times, "host": {}, "bits": {}, "memory": {}, "apart": {}}
    row["halo"], row["own"] = b.most(part.remote.numel()), b.most(x.shape[0])
    row["rank_entries"] = b.most(part.idx.numel())
    remote = fusedmm.spmm(
        shared.local(), (torch.arange(part.remote.numel() + x.shape[0], device=b.device) >= x.shape[0])[:, None].float()
    )
    row["interior_rows"] = 1 - b.most(float((remote > 0).float().mean()))
    row["interior_entries"] = b.most(float((shared.degree() * (remote[:, 0] == 0)).sum()) / max(part.idx.numel(), 1))
    calls: dict[str, Callable[[], tuple[Tensor, ...]]] = {"spmm": lambda: (fusedmm.spmm(weighted, x),)}
    for key, up in ups.items():
        layer = layer_of(key, b.device)
        calls[key] = lambda layer=layer, up=up: step(layer, x, shared, up)
    for key, go in calls.items():
        for pieces, shares in list(SHARES.items())[: 1 if key.startswith("GAT") else None]:  # attention is not cut
            group.pieces = shares
            found = go()
            same = [torch.equal(t, e) for t, e in zip(found, expected[key], strict=True)]
            row["bits"][f"{key}, {pieces}"] = b.all(all(same))
            row["apart"][f"{key}, {pieces}"] = max(
                b.most(close(*pair)) for pair in zip(found, expected[key], strict=True)
            )
            del found
            times[f"{key}, {pieces}"] = b.ms(go)
        group.pieces = ()
        times[key], row["host"][key] = b.ms(go), b.most(b.host)
        row["memory"][key] = b.peak_of_all(go)
    one, two, layer = overlap(weighted, "split"), overlap(shared, "split"), layer_of("GCN-128", b.device)
    halves: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "spmm, split": lambda: (fusedmm.spmm(one, x),),
        "GCN-128, split": lambda: step(layer, x, two, ups["GCN-128"]),
    }
    for key, go in halves.items():
        found = go()
        row["apart"][key] = max(b.most(close(*pair)) for pair in zip(found, expected[key[:-7]], strict=True))
        del found
        times[key], row["memory"][key] = b.ms(go), b.peak_of_all(go)
    with b.counted():
        calls["spmm"]()
    row["sent_bytes"], row["unique_bytes"] = b.most(b.sent), b.most(part.cols.send.numel() * WIDTH * 4)
    row["parts"] = parts(b, weighted, x)
    return row


def parts(b: Bench, adj: DistCSR, x: Tensor) -> Row:
    """Milliseconds of what a product consists of, each by itself."""
    part, group = adj.part, b.ranks
    packed = x.index_select(0, part.cols.send)
    (whole,) = part.cols.fetch([x])
    val = adj.constant_values(False)
    given = [adj.ptr, part.idx, adj.none if val is not None else adj.eid, part.plan]
    values = adj.val if val is None else val
    beside = torch.empty_like(whole)
    came = whole.new_empty(sum(part.cols.into), WIDTH)

    def wire() -> None:
        cols = part.cols
        group.start(packed.view(torch.uint8), cols.out, cols.into, came.view(torch.uint8), cols.theirs, cols.whole)()

    return {
        "pack": b.ms(lambda: ops._pick_into(x.view(torch.uint8), part.cols.send, packed.view(torch.uint8))),
        "index_select": b.ms(lambda: x.index_select(0, part.cols.send)),
        "wire": b.ms(wire),
        "copy": b.ms(lambda: beside[: x.shape[0]].copy_(x)),
        "kernel": b.ms(lambda: ops._spmm.default(*given, values, whole, 0, 0, 2)),
        "kernels": {
            key: b.ms(lambda shares=shares: _in_pieces(given, values, whole, shares))  # type: ignore[misc]
            for key, shares in SHARES.items()
        },
    }


def _in_pieces(given: list[Any], values: Tensor, x: Tensor, shares: tuple[int, ...]) -> Tensor:
    """The kernel alone as often as there are pieces; they lie in one tensor here, which is read as fast."""
    y = x.new_empty(given[0].shape[0] - 1, WIDTH)
    for k in range(len(shares)):
        some = slice(*(WIDTH * sum(shares[:n]) // sum(shares) for n in (k, k + 1)))
        ops._spmm_into.default(*given, values, x[:, some], y[:, some], 0, 0, 2)
    return y


def traced(b: Bench, call: Callable[[], Any], pieces: tuple[int, ...]) -> list[list[Any]]:
    """What ran on rank 0's GPU in one call: name, stream, begin and microseconds."""
    b.ranks.pieces = pieces
    for _ in range(2):
        call()
    b.ranks.gather(b.tick)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as seen:
        call()
        torch.cuda.synchronize()
    b.ranks.pieces = ()
    events = [
        [e.name()[:80], e.device_resource_id(), e.start_ns() / 1e3, e.duration_ns() / 1e3]
        for e in seen.profiler.kineto_results.events()
        if e.device_type() == torch.autograd.DeviceType.CUDA
    ]
    first = min((e[2] for e in events), default=0.0)
    return sorted([name, stream, round(at - first, 2), round(long, 2)] for name, stream, at, long in events)


def rounded(times: Row) -> Row:
    """For those who watch."""
    return {key: round(t, 3) for key, t in times.items() if isinstance(t, float)}


def host(b: Bench) -> Row:
    """Microseconds of the host for a call on 16 rows, of a CSR and of one rank's DistCSR."""
    number = torch.arange(16, device=b.device)
    x = torch.randn(16, 16, device=b.device)
    both = fusedmm.CSR.from_coo(number, number), DistCSR.from_edges(number, number, None, torch.tensor([0, 16]), None)
    found: list[list[float]] = [[], []]
    for _ in range(9):
        for times, adj in zip(found, both, strict=True):
            begin = time.perf_counter()
            for _ in range(500):
                fusedmm.spmm(adj, x)
            times.append((time.perf_counter() - begin) / 500 * 1e6)
            b.wait()
    return {"csr": min(found[0]), "one rank": min(found[1])}


def main() -> None:
    """Runs in each process of torchrun's; rank 0 writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", type=int, default=RUNS)
    args = parser.parse_args()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh(args.device, (count,), mesh_dim_names=("rows",))
    ranks = ranks_of(mesh)
    assert isinstance(ranks, Group)
    b = Bench(device, ranks, mesh, args.runs)
    machine = torch.cuda.get_device_name() if b.cuda else "cpu"
    found: Row = {"device": machine, "torch": torch.__version__, "ranks": count, "host_us": host(b), "rows": []}
    for k, name in enumerate(args.graphs):
        begin = time.perf_counter()
        found["rows"].append(case(b, name, trace=k == len(args.graphs) - 1))
        b.say(name, f"{time.perf_counter() - begin:.0f} s")
        if rank == 0:
            args.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
