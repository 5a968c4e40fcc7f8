"""A graph of papers100M's size, made on the devices, and training steps of a two-layer GCN in bfloat16 on it.

    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    torchrun --nproc-per-node 4 -m benchmarks.bench_papers --out FILE.json

Every rank lists its share of the edges, which go to the owners of their rows. The graph is generated: both ends of an
edge are drawn with hubs from seven tenths of the nodes, and hubs have numbers like others, so that a rank needs most of
these from the others. It says nothing about how real papers cite each other. A rank has N / P rows with 128 features.
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
from torch.nn import functional as F

from fusedmm import nn
from fusedmm.distributed import DistCSR, cross_entropy, replicate
from fusedmm.distributed.halo import Ranks, ranks_of

NODES, EDGES = 111_059_956, 1_615_685_872
FEATURES, CLASSES, STEPS = 128, 172, 3
PIECE = 2**26  # edges that are drawn at a time
JOINED, SKEW = 0.7, 2.0  # an end is the node of number JOINED * N * u^SKEW, u uniform in [0, 1), before nodes are mixed
MIX = 1_000_000_007  # a prime, by which numbers are multiplied so that hubs lie anywhere


def draw(count: int, nodes: int, generator: torch.Generator) -> Tensor:
    """Ends of edges, int64."""
    u = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return u.pow_(SKEW).mul_(JOINED * nodes).long().mul_(MIX).remainder_(nodes)


def edges_of(rank: int, ranks: int, nodes: int, edges: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A rank's share of the edges, and a loop at each of its nodes; rows and columns, int64."""
    count = edges * (rank + 1) // ranks - edges * rank // ranks
    loops = torch.arange(nodes * rank // ranks, nodes * (rank + 1) // ranks, device=device)
    both = torch.empty(2, count + loops.numel(), dtype=torch.int64, device=device)
    generator = torch.Generator(device).manual_seed(rank)
    for begin in range(0, count, PIECE):
        end = min(begin + PIECE, count)
        both[0, begin:end] = draw(end - begin, nodes, generator)
        both[1, begin:end] = draw(end - begin, nodes, generator)
    both[:, count:] = loops
    return both[0], both[1]


class Gcn(torch.nn.Module):
    """Two layers; loops are among the edges already."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.GCNConv(FEATURES, FEATURES, add_self_loops=False, cached=True)
        self.second = nn.GCNConv(FEATURES, classes, add_self_loops=False, cached=True)

    def forward(self, x: Tensor, adj: DistCSR) -> Tensor:
        """The logits."""
        return self.second(F.relu(self.first(x, adj), inplace=True), adj)


def timed(ranks: Ranks, device: torch.device, call: Callable[[], Any]) -> tuple[Any, float, float]:
    """(what it returns, seconds, GB that were allocated at most), of the slowest rank and of the fullest."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ranks.sum(torch.zeros(1, device=device))
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    found = call()
    wait()
    most = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    numbers = torch.tensor([time.perf_counter() - begin, most], dtype=torch.float64, device=device)
    seconds, memory = torch.stack(ranks.gather(numbers)).amax(0).tolist()
    return found, seconds, memory


def run(mesh: Any, device: torch.device, nodes: int, edges: int, classes: int) -> dict[str, Any]:
    """All times and the memory."""
    ranks = ranks_of(mesh)
    offsets = torch.tensor([nodes * r // ranks.count for r in range(ranks.count + 1)])
    found: dict[str, Any] = {"ranks": ranks.count, "nodes": nodes, "edges": edges, "classes": classes}

    def note(name: str, call: Callable[[], Any]) -> Any:
        made, found[f"{name}_s"], found[f"{name}_gb"] = timed(ranks, device, call)
        if ranks.rank == 0:
            print(f"{name}: {found[f'{name}_s']:.3f} s, {found[f'{name}_gb']:.1f} GB", flush=True)
        return made

    ends = list(note("draw", lambda: edges_of(ranks.rank, ranks.count, nodes, edges, device)))
    adj = note("from_edges", lambda: DistCSR.from_edges(ends.pop(0), ends.pop(), None, offsets, mesh))
    found["halo"] = max(int(n) for n in ranks.gather(torch.tensor([adj.part.remote.numel()], device=device)))
    note("transpose", adj.cache_transpose)
    own = adj.shape[0]
    generator = torch.Generator(device).manual_seed(ranks.rank)
    x = torch.randn(own, FEATURES, generator=generator, device=device, dtype=torch.bfloat16)
    y = torch.randint(CLASSES, (own,), generator=generator, device=device)
    train = torch.rand(own, generator=generator, device=device) < 0.01
    torch.manual_seed(0)
    model = replicate(Gcn(classes).to(device, torch.bfloat16), mesh)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> float:
        optimiser.zero_grad()
        loss = cross_entropy(model(x, adj), y, train, mesh)
        loss.backward()
        optimiser.step()
        return loss.item()

    if device.type == "cuda":
        torch.cuda.empty_cache()
    found["loss"] = [note(f"step {k}", step) for k in range(STEPS)]
    return found


def main() -> None:
    """Runs in each process of torchrun's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument(
        "--classes", type=int, default=CLASSES, help="columns of the logits; 176 are whole loads of a GPU"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh(args.device, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("rows",))
    found = {"torch": torch.__version__} | run(mesh, device, args.nodes, args.edges, args.classes)
    found["device"] = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    if not int(os.environ["RANK"]):
        args.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
