"""Self loops: seeing them, removing, adding and weighing them."""

import torch

from fusedmm import CSR

row, col = torch.tensor([[0, 1, 1, 2, 3], [1, 1, 2, 0, 3]])
A = CSR.from_coo(row, col, torch.tensor([1.0, 5.0, 2.0, 3.0, 7.0]), (4, 4))
assert A.diag().tolist() == [0, 5, 0, 7]
assert A.remove_self_loops().nnz == 3
assert A.add_self_loops().diag().tolist() == [1, 5, 1, 7]  # a loop that is there keeps its weight
assert A.set_self_loops(2.0).diag().tolist() == [2, 2, 2, 2]
assert A.set_self_loops(torch.arange(4.0)).diag().tolist() == [0, 1, 2, 3]
assert (A + CSR.eye(4, dtype=torch.float32)).diag().tolist() == [1, 6, 1, 8]
isolated = (A.remove_self_loops().degree() == 0) & (A.remove_self_loops().t().degree() == 0)
print("nodes without other neighbours:", isolated.nonzero().flatten().tolist())
assert isolated.tolist() == [False, False, False, True]
