"""Data parallel training: two processes with graphs of their own, whose gradients DDP averages."""

import tempfile

import torch
import torch.distributed
import torch.multiprocessing
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from fusedmm import data, nn


def train(rank, file, weights):
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.SAGEConv(4, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    adj = data.uniform(100, 100, 500, seed=rank)  # each process has another graph
    x = torch.rand(100, 4, generator=torch.Generator().manual_seed(rank))
    for _ in range(5):
        optimiser.zero_grad()
        mse_loss(model(x, adj), x[:, :2]).backward()
        optimiser.step()
    weights[rank] = [p.detach().numpy().tolist() for p in model.parameters()]
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, torch.multiprocessing.Manager() as manager:
        weights = manager.dict()
        torch.multiprocessing.spawn(train, (f"{folder}/meeting", weights), nprocs=2)
        print("weights of both processes:", weights[0][0][0])
        assert weights[0] == weights[1]
