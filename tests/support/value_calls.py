"""The calls of docs/values.md, and the matrix, operands and graphs that they are written with.

Who imports this needs scipy and PyG.
"""

import re

import pytest
import torch

import fusedmm
from fusedmm import presets
from support.machine import ROOT

scipy_sparse = pytest.importorskip("scipy.sparse")
peer_typing = pytest.importorskip("torch_geometric.typing")

TEXT = (ROOT / "docs/values.md").read_text()
ROWS = [
    (call, cells[2])
    for line in TEXT.splitlines()
    if line.startswith("| `") and (cells := [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
    for call in re.findall(r"`([^`]+)`", cells[0])
]
LAYERS = [row for row in ROWS if re.match(r"(\w+Conv|APPNP)\(", row[0])]
CALLS = [row for row in ROWS if row not in LAYERS]

NODES = 6
ROW = torch.tensor([0, 0, 1, 1, 3, 3, 4, 5])  # by rows, since PyG's sparse tensors are; row 2 is empty, no self loops
COL = torch.tensor([1, 2, 0, 5, 0, 4, 1, 3])
MIXED = torch.tensor([5, 2, 7, 0, 4, 1, 6, 3])  # the order of those calls that PyG has no part in


class SparseTensor(peer_typing.SparseTensor):
    """What PyG's layers and ours ask of torch_sparse's matrix, which need not be installed."""

    def __init__(self, row, col, value):
        self.parts = row, col, value

    def coo(self):
        return self.parts

    def csr(self):
        row, col, value = self.parts
        return torch.searchsorted(row, torch.arange(NODES + 1, device=row.device)), col, value

    def sparse_sizes(self):
        return NODES, NODES

    def sparse_size(self, dim):
        return NODES

    size = sparse_size

    def nnz(self):
        return self.parts[0].numel()

    def is_cuda(self):
        return False

    def requires_grad(self):
        return False

    def set_value(self, value, layout=None):
        return SparseTensor(*self.parts[:2], value)

    def to_torch_sparse_csr_tensor(self):
        ptr, col, value = self.csr()
        value = torch.ones(self.nnz(), dtype=torch.float64) if value is None else value
        return torch.sparse_csr_tensor(ptr, col, value, (NODES, NODES))


def random(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def values(seed, *inner):
    return random(ROW.numel(), *inner, seed=10 + seed)


def names(device, val, order=None):
    """What a line's call is written with, but for the layers and their graphs."""
    row, col = (ROW, COL) if order is None else (ROW[order], COL[order])
    row, col = row.to(device), col.to(device)
    adj = fusedmm.CSR.from_coo(row, col, val, (NODES, NODES))
    plain = val.detach().cpu().numpy()
    place = adj.eid.long() if adj.eid.numel() else torch.arange(adj.nnz, device=device)
    dense = {name: random(NODES, 3, seed=k).to(device) - 0.5 for k, name in enumerate("abx")}
    return {name: getattr(fusedmm, name) for name in fusedmm.__all__} | dense | {
        "A": adj,
        "S": scipy_sparse.coo_matrix((plain, (row.cpu().numpy(), col.cpu().numpy())), (NODES, NODES)),
        "R": (adj.ptr, adj.idx, val[place], (NODES, NODES)),
        "I": torch.stack([col, row]),
        "t": random(3, seed=3).to(device) - 0.5,
        "w": random(row.numel(), seed=4).to(device),
        "e": random(row.numel(), 3, seed=5).to(device),
        "r": torch.arange(row.numel(), device=device) % 2,
        "m": lambda: torch.nn.Linear(3, 2),
        "K": (["n"], [("n", "to", "n")]),
        "presets": presets,
        "torch": torch,
    }  # fmt: skip
