"""``python -m fusedmm train --graph FOLDER``: full-graph training on shards, by one process or by those of torchrun."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fusedmm._extra import extra
from fusedmm.distributed.derived import overlap
from fusedmm.distributed.halo import Ranks, ranks_of
from fusedmm.distributed.load import Data, load
from fusedmm.distributed.model import cross_entropy, dropout, replicate
from fusedmm.matrix.arguments import require_device
from fusedmm.networks import MODELS, Network

Best = tuple[float, float]  # the best validation accuracy, and the test accuracy of its epoch
EVERY = 10  # epochs from checkpoint to checkpoint


def main(args: argparse.Namespace, memory: Callable[[torch.device], int]) -> None:
    """Trains as the options say; rank 0 prints. A process of torchrun's ends here.

    Raises:
        OSError, ValueError, ImportError: a wrong file or option, or a missing package, where there is one process.
    """
    if "WORLD_SIZE" not in os.environ:
        _train(args, None, require_device("--device", args.device), memory)
        return
    try:
        _train(args, *_mesh(args), memory)
    except BaseException as error:
        # Python would wait for the collectives that never end, and torchrun for Python.
        if isinstance(error, (OSError, ValueError, ImportError)):
            print(f"rank {os.environ['RANK']}: {error}", file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Where Python takes a process group down while its threads still run, the process now and then aborts.
    sys.stdout.flush()
    os._exit(0)


def _mesh(args: argparse.Namespace) -> tuple[Any, torch.device]:
    """A mesh of all processes, and this one's device."""
    from torch.distributed.device_mesh import init_device_mesh

    kind, ranks = torch.device(args.device).type, int(os.environ["WORLD_SIZE"])
    device = require_device("--device", f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=args.timeout)
    torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=patience)
    return init_device_mesh(kind, (ranks,), mesh_dim_names=("rows",)), device


def _train(args: argparse.Namespace, mesh: Any, device: torch.device, memory: Callable[[torch.device], int]) -> None:
    ranks, data = ranks_of(mesh), load(args.graph, mesh)
    missing = [name for name in ("x", "y", "train", "val", "test") if data.nodes.get(name) is None]
    if missing:
        raise ValueError(f"{args.graph}: training needs {', '.join(missing)} of each node")
    adj = data.adj if args.overlap is None else overlap(data.adj, args.overlap)
    data = Data(adj, {name: t.bool() if name in ("train", "val", "test") else t for name, t in data.nodes.items()})
    x, y = data.nodes["x"].float(), data.nodes["y"].long()
    classes = int(max(ranks.gather(y.max() if y.numel() else y.new_tensor(-1)))) + 1
    torch.manual_seed(0)
    network = replicate(MODELS[args.model].ours(x.shape[1], classes).to(device), mesh)
    layers = zip((network.first, network.second), network.model.decay, strict=True)
    groups = [{"params": layer.parameters(), "weight_decay": decay} for layer, decay in layers]
    optimiser = torch.optim.Adam(groups, lr=network.model.rate)
    begin, best = restore(args.checkpoint, ranks, network, optimiser)
    seconds = []
    tqdm = extra("tqdm").tqdm
    with tqdm(total=args.epochs, initial=begin, unit="epoch", leave=False, disable=ranks.rank > 0) as progress:
        for epoch in range(begin, args.epochs):
            start = time.perf_counter()
            torch.manual_seed(epoch)  # so that who goes on from a checkpoint drops what it would have dropped
            network.train()
            optimiser.zero_grad()
            loss = cross_entropy(forward(network, x, data.adj), y, data.nodes["train"], mesh)
            loss.backward()
            optimiser.step()
            shown = loss.item()  # which waits for a GPU
            seconds.append(time.perf_counter() - start)
            val, test = accuracies(network, x, y, data, ranks)
            best = max(best, (val, test), key=lambda pair: pair[0])
            progress.set_postfix_str(f"loss {shown:.3f}, validation {val:.1%}", refresh=False)
            progress.update()
            if args.checkpoint is not None and ((epoch + 1) % EVERY == 0 or epoch + 1 == args.epochs):
                save(args.checkpoint, epoch + 1, best, ranks, network, optimiser)
    mine = [statistics.median(seconds) if seconds else 0.0, float(memory(device)), float(data.adj.shape[0])]
    table = ranks.gather(torch.tensor([*mine, float(data.adj.nnz)], dtype=torch.float64, device=device))
    if ranks.rank == 0:
        print(f"{args.model} on {args.graph}, {ranks.count} ranks, epochs {begin} to {args.epochs}")
        print(f"test accuracy {best[1]:.2%} at the best validation accuracy, {best[0]:.2%}")
        for rank, (epoch_s, used, rows, nnz) in enumerate(t.tolist() for t in table):
            what = f"{int(rows)} rows, {int(nnz)} entries"
            print(f"rank {rank}: {what}, {1e3 * epoch_s:.2f} ms an epoch, at most {used / 2**20:.0f} MiB")


def forward(network: Network, x: Tensor, adj: Any) -> Tensor:
    """What the network computes, with dropout by place in the whole graph."""
    rate, training = network.model.dropout, network.training
    x = network.apply_layer(network.first, dropout(x, rate, adj, training), adj)
    return network.apply_layer(network.second, dropout(network.model.activation(x), rate, adj, training), adj)


@torch.no_grad()
def accuracies(network: Network, x: Tensor, y: Tensor, data: Data, ranks: Ranks) -> tuple[float, float]:
    """The share of all ranks' nodes whose class is found, of those to validate and of those to test."""
    network.eval()
    right = forward(network, x, data.adj).argmax(1) == y
    masks = [data.nodes[name] for name in ("val", "test")]
    counts = torch.stack([n for mask in masks for n in ((right & mask).sum(), mask.sum())])
    found, val, hit, test = ranks.sum(counts).tolist()
    return found / max(val, 1), hit / max(test, 1)


# ---- checkpoints ----


def save(folder: Path, epoch: int, best: Best, ranks: Ranks, network: Network, optimiser: Optimizer) -> None:
    """Writes a checkpoint beside the two before, of which the older goes once this one is whole."""
    _checkpoint("save", _state(network, optimiser, best), _place(folder, epoch), ranks)
    for old in _whole(folder)[:-2] if ranks.rank == 0 else []:
        shutil.rmtree(_place(folder, old))


def restore(folder: Path | None, ranks: Ranks, network: Network, optimiser: Optimizer) -> tuple[int, Best]:
    """Takes up the newest whole checkpoint, of any number of ranks; returns the epoch to go on with, and the best.

    Raises:
        OSError: a folder that is none.
        ValueError: a checkpoint of another network.
    """
    if folder is not None:
        ranks.together(lambda: folder.mkdir(parents=True, exist_ok=True))
    epochs = [] if folder is None else _whole(folder)
    epoch = int(ranks.first(torch.tensor(max(epochs, default=0))))
    if folder is None or not epoch:
        return 0, (-1.0, 0.0)
    ranks.together(lambda: _require_same(network, _place(folder, epoch)))
    for p in network.parameters():  # the optimiser has its state from a first step on
        p.grad = torch.zeros_like(p)
    optimiser.step()
    optimiser.zero_grad()
    state = _state(network, optimiser, (0.0, 0.0))
    _checkpoint("load", state, _place(folder, epoch), ranks)
    network.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    val, test = state["best"].tolist()
    return epoch, (val, test)


def _require_same(network: Network, place: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    kept = FileSystemReader(place).read_metadata().state_dict_metadata
    there = {name[6:]: list(getattr(t, "size", ())) for name, t in kept.items() if name.startswith("model.")}
    here = {name: list(t.shape) for name, t in network.state_dict().items()}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            what = f"{name} is {here.get(name, 'absent')} here and {there.get(name, 'absent')} there"
            raise ValueError(f"{place}: of another network or graph: {what}")


def _state(network: Network, optimiser: Optimizer, best: Best) -> dict[str, Any]:
    of_best = torch.tensor(best, dtype=torch.float64)
    return {"model": network.state_dict(), "optimiser": optimiser.state_dict(), "best": of_best}


def _checkpoint(name: str, state: dict[str, Any], place: Path, ranks: Ranks) -> None:
    """Calls torch's ``save`` or ``load``."""
    from torch.distributed import checkpoint  # which takes long to import

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be in one process
        group = getattr(ranks, "aside", None)  # which tells objects over gloo
        getattr(checkpoint, name)(state, checkpoint_id=place, process_group=group, no_dist=ranks.count == 1)


def _place(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06}"


def _whole(folder: Path) -> list[int]:
    """The epochs of the checkpoints that were written to their end, which is when torch writes .metadata."""
    return sorted(int(place.parent.name[6:]) for place in folder.glob("epoch-*/.metadata"))
