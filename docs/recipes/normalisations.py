"""Normalisations: means, walks, graph convolutions and Laplacians of one weighted graph."""

import torch

from fusedmm import CSR, data

torch.manual_seed(0)
pattern = data.rmat(6, 4).coalesce()
half = pattern.with_values(torch.rand(pattern.nnz))
A = (half + half.t()).coalesce().remove_self_loops()  # undirected
degree = A.sum(1)
inverse = torch.where(degree > 0, 1 / degree, 0)

mean = A.scale(rows=inverse)  # each row adds up to one
walk = A.scale(cols=inverse)  # each column does
symmetric = A.scale(rows=inverse.sqrt(), cols=inverse.sqrt())
laplacian = CSR.eye(64).set_self_loops(degree) - A
softmax = A.softmax()

busy = degree > 0
torch.testing.assert_close(mean.sum(1)[busy], torch.ones(int(busy.sum())))
torch.testing.assert_close(walk.sum(0)[busy], torch.ones(int(busy.sum())))
torch.testing.assert_close(softmax.sum(1)[busy], torch.ones(int(busy.sum())))
torch.testing.assert_close(laplacian @ torch.ones(64), torch.zeros(64), rtol=0, atol=1e-5)
loops = A.add_self_loops()
scale = loops.sum(1).rsqrt()
assert torch.allclose(A.gcn_norm().to_dense(), loops.scale(rows=scale, cols=scale).to_dense())
largest = torch.linalg.eigvalsh(symmetric.to_dense()).abs().max()
print(f"the largest eigenvalue of the symmetric one is {largest:.4f}")
assert largest < 1 + 1e-5
