"""A matrix that ranks share, here with one rank: under torchrun the same lines run on many."""

import tempfile

import torch

import fusedmm
from fusedmm import data, nn
from fusedmm.distributed import load, partition

torch.manual_seed(0)
adj = data.stencil(20, 20)
x = torch.randn(400, 8)
part = partition(adj, parts=8, method="nnz")
layer = nn.GATConv(8, 4, heads=2)
with tempfile.TemporaryDirectory() as folder:
    part.write(folder, x=x)
    mine = load(folder, None)  # None is one rank; else init_device_mesh("cpu", (ranks,), mesh_dim_names=("rows",))
    out = layer(mine.x, mine.adj)  # this rank's rows
    summed = fusedmm.spmm(mine.adj, mine.x)
    print(f"8 parts, this rank has {out.shape[0]} of 400 rows")
    torch.testing.assert_close(part.undo(out), layer(x, adj))
    torch.testing.assert_close(part.undo(summed), adj @ x)
