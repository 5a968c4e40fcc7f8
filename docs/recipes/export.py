"""torch.export: a program for graphs of any size, without Python's layers."""

import io

import torch

from fusedmm import data, nn

torch.manual_seed(0)
layer = nn.TransformerConv(6, 4, heads=2).eval()
nodes = torch.export.Dim("nodes", min=2)
adj, x = data.uniform(30, 30, 100).cache_transpose(), torch.randn(30, 6)
program = torch.export.export(layer, (x, adj))
file = io.BytesIO()
torch.export.save(program, file)
file.seek(0)
again = torch.export.load(file).module()
print(f"{len(file.getvalue()) / 1024:.0f} KiB, {len(list(program.graph.nodes))} nodes in the program")
torch.testing.assert_close(again(x, adj), layer(x, adj))
