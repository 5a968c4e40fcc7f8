"""Coarsening: a graph of groups from a graph of nodes, as a product of three matrices."""

import torch

from fusedmm import CSR, data, triple_product

side = 16
A = data.stencil(side, side).remove_self_loops()
A = A.with_values(torch.ones(A.nnz))
x, y = torch.arange(side * side) // side, torch.arange(side * side) % side
group = (x // 4) * 4 + y // 4  # squares of four by four points
P = CSR.from_coo(torch.arange(side * side), group, torch.ones(side * side), (side * side, 16))
coarse = triple_product(P.t(), A, P)  # how many edges lead from group to group
print(coarse)
torch.testing.assert_close(coarse.to_dense(), P.to_dense().T @ A.to_dense() @ P.to_dense())
assert float(coarse.sum()) == A.nnz
assert coarse.remove_self_loops().degree().tolist() == data.stencil(4, 4).remove_self_loops().degree().tolist()
