"""One rank of a real process group, started by test_processes.py: ``worker.py RANK RANKS FOLDER END``.

It runs all cases and prints a line of JSON for each. Each compares what this rank has with its rows of what one device
computes. The last one, END, breaks the group: a rank dies, or does something else than the others.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from distributed.graphs import CUTS, WIDE, N, normal
from support.ranks import Rounded, Whole, known, randint
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fusedmm
from fusedmm import nn
from fusedmm.distributed import DistCSR, cross_entropy, dropout, halo, load, replicate

TIMEOUT = 12.0
PATIENCE = 70.0  # seconds that a rank may take for all it does; with the grace of its test, less than a test may take
OFFSETS = {2: [0, 24, 60], 3: [0, 24, 24, 60], 4: [0, 8, 30, 31, 60]}


def graph(ranks: int) -> Whole:
    whole = CUTS["two even ranks"]()
    return Whole(whole.row, whole.col, whole.shape, OFFSETS[ranks])


def differences(whole: Whole, mesh, compute, operands, role: str = "r"):
    """What of a result and of its gradients is not what one device has."""
    leaves = {name: t.clone().requires_grad_() for name, (_, t) in operands.items()}
    known.generator = torch.Generator().manual_seed(7)
    expected = compute(whole.csr, **leaves)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    (expected * upstream).sum().backward()

    part = whole.part(halo.ranks_of(mesh))
    own = {name: whole.cut(t, role, part).clone().requires_grad_() for name, (role, t) in operands.items()}
    known.generator = torch.Generator().manual_seed(7 + dist.get_rank())
    out = compute(part, **own)
    (out * whole.cut(upstream, role, part)).sum().backward()
    wrong = [] if torch.equal(out, whole.cut(expected, role, part)) else ["the result"]
    for name, (role_of, _) in operands.items():
        if not torch.equal(own[name].grad, whole.cut(leaves[name].grad, role_of, part)):
            wrong.append(f"the gradient of {name}")
    return wrong


def operators(whole, mesh):
    torch.randint = randint
    rows, cols = whole.shape
    x, v = ("c", normal(cols, 8)), ("e", normal(whole.nnz))
    a, heads = ("r", normal(rows, 8)), ("e", normal(whole.nnz, 3))
    q, k = ("r", normal(rows, 3, 4)), ("c", normal(cols, 3, 4))
    for reduce in ("sum", "mean", "max", "min"):
        given = {"v": v, "x": x}
        yield f"spmm {reduce}", lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x, reduce=reduce), given, "r"  # noqa: B023
    yield "sddmm", lambda adj, v, a, b: fusedmm.sddmm(adj.with_values(v), a, b), {"v": v, "a": a, "b": x}, "e"
    yield "edge_softmax", lambda adj, v: fusedmm.edge_softmax(adj, v), {"v": heads}, "e"
    yield "fused", lambda adj, x: fusedmm.fused(adj, x), {"x": a}, "r"
    for score in ("dot", "cosine"):
        given = {"q": q, "k": k, "v": k, "b": heads}
        yield (
            f"attention {score}",
            lambda adj, q, k, v, b: fusedmm.attention(adj, q, k, v, score=score, bias=b, dropout=0.4),  # noqa: B023
            given,
            "r",
        )
    for make in (lambda: nn.GATConv(8, 4, 2), lambda: nn.GCNConv(8, 4), lambda: nn.GATv2Conv(8, 4, 2)):
        torch.manual_seed(0)
        layer = make()
        yield type(layer).__name__, lambda adj, x, layer=layer: layer(x, adj), {"x": a}, "r"


def raised(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(whole, mesh):
    """Errors that all ranks raise before anything travels; the group works on after them."""
    rank = dist.get_rank()
    part = whole.part(halo.ranks_of(mesh))
    own = part.shape[0]
    yield "width", raised(lambda: fusedmm.spmm(part, torch.ones(own, 11 if rank == 1 else 9)))
    yield "dtype", raised(lambda: fusedmm.spmm(part, torch.ones(own, 9).to([torch.float32, torch.float64][rank == 1])))
    other = [lambda: fusedmm.spmm(part, torch.ones(own, 13)), lambda: fusedmm.sddmm(part, *[torch.ones(own, 13)] * 2)]
    yield "operator", raised(other[rank == 1])
    row = torch.tensor([0, 99 if rank == 1 else 1])
    yield "edge", raised(lambda: DistCSR.from_edges(row, row.clamp(max=1), None, whole.offsets, mesh))
    offsets = whole.offsets - (torch.arange(whole.count + 1) == 1).long() * (rank == 1)
    yield "offsets", raised(lambda: DistCSR.from_edges(row[:1], row[:1], None, offsets, mesh))
    yield "again", raised(lambda: fusedmm.spmm(part, torch.ones(own, 9)))


def training(whole, mesh, folder):
    """Three steps of a network with all kinds of dropout, from shards; the losses."""
    data = load(folder, mesh)
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([nn.GATConv(6, 4, 2, dropout=0.3), nn.GCNConv(8, 3)])
    model = replicate(layers.to(data.x.device), mesh)
    optimiser, losses = torch.optim.Adam(model.parameters(), 0.05), []
    for step in range(3):
        known.generator = torch.Generator().manual_seed(step)
        optimiser.zero_grad()
        hidden = model[0](dropout(data.x, 0.2, data.adj), data.adj).relu()
        loss = cross_entropy(model[1](hidden, data.adj), data.y, data.train, mesh)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(rank: int, ranks: int, folder: str, end: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # of whoever waits for ever, the test shows where
    torch.set_num_threads(1)
    patience = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks, timeout=patience)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("rows",))

    def say(name: str, found) -> None:
        print(json.dumps([name, found]), flush=True)

    whole = graph(ranks)
    for name, compute, given, role in operators(whole, mesh):
        with Rounded():
            say(name, differences(whole, mesh, compute, given, role))
    if ranks == 3:
        wide = Whole(*WIDE, (40, 90), [0, 5, 30, 40], [0, 50, 50, 90])
        given = {"v": ("e", normal(wide.nnz)), "x": ("c", normal(90, 7))}
        say("rectangular", differences(wide, mesh, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given))
        halo.MESSAGE, kept = 64, halo.MESSAGE  # of two rows: many rounds
        say("rounds", differences(wide, mesh, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given))
        halo.MESSAGE = kept
        group, given = halo.ranks_of(mesh), {"v": given["v"], "x": ("c", normal(90, 160))}
        group.pieces = (1, 1)
        say("pieces", differences(wide, mesh, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given))
        group.pieces = ()
        part = whole.part(group)
        x = normal(N, 8)[: part.shape[0]]
        compiled = torch.compile(lambda t: fusedmm.spmm(part, t).relu(), backend="eager")
        say("compiled", [] if torch.equal(compiled(x), fusedmm.spmm(part, x).relu()) else ["the result"])
    if ranks == 4:
        grid, even = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "features")), CUTS["two even ranks"]()
        given = {"v": ("e", normal(even.nnz)), "x": ("c", normal(N, 160))}
        say("features", differences(even, grid, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given))
    for name, text in refusals(whole, mesh):
        say(f"refuses {name}", text)
    say("training", training(whole, mesh, f"{folder}/shards"))

    part = whole.part(halo.ranks_of(mesh))
    own = part.shape[0]
    for width in (3, 5):
        fusedmm.spmm(part, torch.ones(own, width))
    start = time.monotonic()
    if end == "killed" and rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "different":  # what all have agreed on before, but not at once
        found = raised(
            lambda: fusedmm.spmm(part, torch.ones(own, 3)) if rank else fusedmm.sddmm(part, *[torch.ones(own, 3)] * 2)
        )
    else:
        found = raised(lambda: fusedmm.spmm(part, torch.ones(own, 3)))
    say("end", [found, time.monotonic() - start])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    assert N == 60
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
