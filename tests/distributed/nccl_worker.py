"""One rank of a process group over NCCL, started by test_two_gpus.py: ``nccl_worker.py RANK RANKS FOLDER``.

It computes every call of ``every_call`` on its own GPU alone and then with the others, and prints a line of JSON for
each. At the end the last rank kills itself.
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
from distributed.every_call import NODES, calls, graph, normal
from distributed.worker import raised, training
from support.ranks import Rounded, known, randint
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fusedmm
from fusedmm import nn
from fusedmm.distributed import DistCSR, copies, halo, overlap

TIMEOUT = 12.0
PATIENCE = 75.0  # seconds that a rank may take for all it does; alone on four GPUs it takes half of them
REPEATS = 100
CUTS = {"balanced": 1300, "a hub alone": 78, "no rows": 0}


def say(name: str, found) -> None:
    print(json.dumps([name, found]), flush=True)


def alone(whole, compute, operands):
    """The result of one device, the gradients of all operands, and what is put on the result."""
    leaves = {name: t.clone().requires_grad_() for name, (_, t) in operands.items()}
    known.generator = torch.Generator().manual_seed(7)
    with Rounded():
        out = compute(whole.csr, **leaves)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
        (out * upstream).sum().backward()
    return out.detach(), {name: t.grad for name, t in leaves.items()}, upstream


def differences(whole, part, compute, operands, role, expected):
    """What of a rank's result and gradients is not what one device has; parameters' gradients are sums of ranks'."""
    result, grads, upstream = expected
    own = {name: whole.cut(t, role, part).clone().requires_grad_() for name, (role, t) in operands.items()}
    known.generator = torch.Generator().manual_seed(7 + dist.get_rank())
    with Rounded():
        out = compute(part, **own)
        (out * whole.cut(upstream, role, part)).sum().backward()
    wrong = [] if torch.equal(out, whole.cut(result, role, part)) else ["the result"]
    for name, (role_of, _) in operands.items():
        if role_of == "p":
            total = part.ranks.sum(own[name].grad)
            near = torch.allclose(total, grads[name], rtol=1e-4, atol=1e-4 * float(grads[name].abs().max()))
            wrong += [] if near else [f"the gradient of {name}"]
        elif not torch.equal(own[name].grad, whole.cut(grads[name], role_of, part)):
            wrong.append(f"the gradient of {name}")
    return wrong


def repeats(part, device):
    """How many of a hundred runs have other bits than the first."""
    own = part.shape[0]
    x = normal(own, 128, device=device)
    torch.manual_seed(0)
    layer = nn.GATConv(128, 8, heads=8).to(device)
    first, others = None, 0
    for _ in range(REPEATS):
        x.grad = None
        leaf = x.clone().requires_grad_()
        y = fusedmm.spmm(part, leaf)
        z = layer(y, part)
        (y.sum() + z.square().sum()).backward()
        found = [y.detach(), z.detach(), leaf.grad]
        first = first or found
        others += not all(map(torch.equal, found, first))
    return others


def halves(part, whole_y, x, cut):
    """How far a product of own and of remote columns is from one device's, and how many of 20 have other bits."""
    adj, own = overlap(part, "split"), cut(x, "c", part)
    first = fusedmm.spmm(adj, own)
    apart = (first - cut(whole_y, "r", part)).abs().max() / whole_y.abs().max() if own.numel() else first.new_zeros(())
    return float(apart), sum(not torch.equal(fusedmm.spmm(adj, own), first) for _ in range(20))


def bytes_of(part, group, device):
    """Bytes that this rank gives to others in a product, and those of its rows that others need, each counted once."""
    sent, start, x = [], group.start, normal(part.shape[0], 128, device=device)
    group.start = lambda rows, *how: sent.append(rows.numel() * rows.element_size()) or start(rows, *how)
    fusedmm.spmm(part, x)
    del group.start
    return sum(sent), sum(part.part.cols.out) * 128 * 4


def memory_of(part, device):
    """Bytes that a product leaves allocated, and has at most; those of its result; and those of x with the halo behind
    it and of partial sums, of which there may be one for each row and one for each 64 entries."""
    width = 1024
    x = normal(part.shape[0], width, device=device)
    fusedmm.spmm(part, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = fusedmm.spmm(part, x)
    torch.cuda.synchronize()
    left, most = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    sums = (part.shape[0] + part.part.idx.numel() // 64) * (width + width // 32) * 4
    return left, most, y.nbytes, x.nbytes + sum(part.part.cols.into) * width * 4 + sums


def main(rank: int, ranks: int, folder: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    torch.set_num_threads(1)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    patience = timedelta(seconds=TIMEOUT)
    dist.init_process_group("nccl", f"file://{folder}/store", rank=rank, world_size=ranks, timeout=patience)
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("rows",))
    torch.randint = randint
    group = halo.ranks_of(mesh)

    wholes = {name: graph(device, [0, *[at] * (ranks - 1), NODES]) for name, at in CUTS.items()}
    parts = {name: whole.part(group) for name, whole in wholes.items()}
    for name, compute, given, role in calls(device, wholes["balanced"].nnz):
        try:
            expected = alone(wholes["balanced"], compute, given)
            for cut, part in parts.items():
                for pieces in (1, 2) if cut == "balanced" else (1,):
                    group.pieces = (1,) * pieces
                    halo.LEAST = 1 if pieces == 2 else copies.LEAST  # by copy engines, whatever the size
                    say(f"{name}, {cut}, {pieces}", differences(wholes[cut], part, compute, given, role, expected))
        except Exception as error:
            say(f"{name}", [f"{type(error).__name__}: {error}"])
            raise
    say("copied", group.copies.count if group.copies else 0)
    group.pieces, halo.LEAST = (), copies.LEAST
    grid = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("rows", "features"))
    whole = graph(device, [0, *[1300] * (ranks // 2 - 1), NODES])
    shared = whole.part(halo.ranks_of(grid))
    for name, compute, given, role in calls(device, whole.nnz):
        expected = alone(whole, compute, given)
        say(f"{name}, features", differences(whole, shared, compute, given, role, expected))
    part = parts["balanced"]
    say("bytes", bytes_of(part, group, device))
    say("memory", memory_of(part, device))
    say("repeats", repeats(part, device))
    x = normal(NODES, 128, device=device)
    say("split", halves(part, whole_y=fusedmm.spmm(wholes["balanced"].csr, x), x=x, cut=wholes["balanced"].cut))
    say("training", training(wholes["balanced"], mesh, f"{folder}/shards"))
    width = 11 if rank else 9
    say("refuses width", raised(lambda: fusedmm.spmm(part, torch.ones(part.shape[0], width, device=device))))
    bad = torch.tensor([0, NODES if rank else 1], device=device)
    offsets = wholes["balanced"].offsets
    say("refuses edge", raised(lambda: DistCSR.from_edges(bad, bad.clamp(max=1), None, offsets, mesh)))
    say("again", raised(lambda: fusedmm.spmm(part, torch.ones(part.shape[0], 9, device=device))))
    torch.cuda.synchronize()
    start = time.monotonic()
    say("alone from", 0)
    if rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    text = raised(lambda: float(group.sum(fusedmm.spmm(part, torch.ones(part.shape[0], 9, device=device)).sum())))
    say("end", [text, time.monotonic() - start])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
