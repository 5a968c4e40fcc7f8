"""Files: a matrix with its values and a model's weights, read without unpickling."""

import tempfile
from pathlib import Path

import torch

from fusedmm import CSR, data, nn

torch.manual_seed(0)
pattern = data.rmat(7, 5)
adj = pattern.with_values(torch.rand(pattern.nnz))
model = nn.TransformerConv(8, 4, heads=2)
x = torch.randn(128, 8)
before = model(x, adj.pattern())

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "graph.pt"
    torch.save({"adj": adj, "model": model.state_dict()}, file)
    stored = torch.load(file, weights_only=True)
    print(f"{file.stat().st_size / 1024:.0f} KiB")

named = CSR.from_tensors(adj.tensors())  # the same as tensors with names, for safetensors and the like
again = nn.TransformerConv(8, 4, heads=2)
again.load_state_dict(stored["model"])
assert stored["adj"].equal(adj) and named.equal(adj)
assert torch.equal(again(x, stored["adj"].pattern()), before)
