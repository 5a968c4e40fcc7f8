"""One rank of a group whose last one dies or is late: ``watch_worker.py RANK RANKS FOLDER END BACKEND``.

Over NCCL the others wait for it on their GPUs. Over gloo rank 0 has a wait that never ends, as if it stood on a GPU. On
a mesh of two axes it waits for rank 1, with which it shares rows, and that one waits for the last.
"""

import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fusedmm._torch_compat import default_store
from fusedmm.distributed import halo
from fusedmm.distributed.watch import Watch

SECONDS = {"gloo": 1.0, "nccl": 8.0}
PATIENCE = 80.0  # seconds that a rank may take for all it does


def main(rank: int, ranks: int, folder: str, end: str, backend: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # of whoever waits for ever, the test shows where
    patience = timedelta(seconds=30 if backend == "gloo" else SECONDS[backend])
    kind = "cpu" if backend == "gloo" else "cuda"
    device = torch.device(kind, rank if kind == "cuda" else 0)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, f"file://{folder}/{end}", rank=rank, world_size=ranks, timeout=patience)
    shape, names = ((2, ranks // 2), ("rows", "features")) if end == "killed on a mesh" else ((ranks,), ("rows",))
    group = halo.ranks_of(init_device_mesh(kind, shape, mesh_dim_names=names))
    number = torch.ones(1, device=device)
    for _ in range(3):
        assert float(group.sum(number)) == shape[0]
    group.agree("first", lambda: "a product")
    for _ in range(1 + (rank == 0) if rank < ranks - 1 else 0):
        group.agree("first", lambda: "a product")
    print(time.monotonic(), flush=True)
    if rank == ranks - 1 and end != "late":
        os.kill(os.getpid(), signal.SIGKILL)
    if backend == "gloo":
        watch, lone = Watch(default_store().clone()), halo.Ranks()
        watch.begin(0.0, lambda: True, [rank], lambda *_: f"{lone} has ended and is not to blame")
        if end == "killed on a mesh":
            group = group.beside if rank == 0 else group.rows
        watch.begin(SECONDS[backend] if rank == 0 else 60.0, lambda: False, group.members, group.last_words)
    elif rank < ranks - 1:
        print(float(group.sum(number)), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
