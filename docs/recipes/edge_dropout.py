"""Edge dropout: dropping values of a matrix keeps its structure, and its transpose and schedule with it."""

import torch
from torch.nn.functional import dropout

from fusedmm import CSR, data

torch.manual_seed(0)
adj = data.uniform(200, 200, 2000)
A = CSR.from_csr(adj.ptr, adj.idx, torch.rand(2000), adj.shape)
x = torch.rand(200, 8)
dropped = A.with_values(dropout(A.val, p=0.3))
assert dropped.ptr is A.ptr and dropped.idx is A.idx
print(f"{int((dropped.val == 0).sum())} of {A.nnz} edges count as 0")

# Undirected: both directions of an edge share one draw.
both = A + A.t()
row, col, val = both.coalesce().coo()
draw = torch.rand(200, 200).triu()
kept = (draw + draw.triu(1).T)[row, col] >= 0.3
symmetric = CSR.from_coo(row, col, val * kept / 0.7, both.shape)
assert symmetric.equal(symmetric.t().coalesce())

mean = torch.stack([A.with_values(dropout(A.val, p=0.3)) @ x for _ in range(300)]).mean(0)
error = ((mean - A @ x).norm() / (A @ x).norm()).item()
print(f"the mean of 300 draws is off by {error:.3f}")
assert error < 0.03
