"""Signed graphs: friends and foes are two matrices, and two camps follow from them."""

import torch

from fusedmm import CSR

torch.manual_seed(0)
nodes = 100
camp = torch.arange(nodes) % 2 * 2.0 - 1
source, target = torch.randint(nodes, (2, 800))
sign = camp[source] * camp[target] * torch.where(torch.rand(800) < 0.1, -1.0, 1.0)  # one tie in ten is odd
both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
A = CSR.from_edge_index(both, sign.repeat(2), nodes)
friends, foes = A.with_values(A.val.clamp(min=0)), A.with_values((-A.val).clamp(min=0))

guess = torch.randn(nodes, 1)
for _ in range(30):  # like friends, unlike foes
    guess = friends @ guess - foes @ guess
    guess = guess / guess.norm()
right = (guess[:, 0].sign() == camp).float().mean()
right = max(right, 1 - right)
print(f"{right:.2f} of the nodes were put into the right camp")
assert right > 0.95
torch.testing.assert_close(friends.to_dense() - foes.to_dense(), A.to_dense())
