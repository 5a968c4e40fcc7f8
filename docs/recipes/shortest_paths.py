"""Shortest paths: sums along edges and minima over them, until nothing gets nearer (Bellman and Ford)."""

import scipy.sparse.csgraph
import torch

from fusedmm import CSR, gspmm

torch.manual_seed(0)
nodes = 200
source, target = torch.randint(nodes, (2, 900))
length = torch.rand(900, dtype=torch.float64)
A = CSR.from_coo(target, source, shape=(nodes, nodes))  # row: where an edge leads
starts = torch.arange(16)
distance = torch.full((nodes, 16), torch.inf, dtype=torch.float64)
distance[starts, starts] = 0
unreached = A.degree() == 0  # a node without edges into it gets 0 from a minimum over nothing
while True:
    arrived = gspmm(A, "add", "min", distance, length).masked_fill(unreached[:, None], torch.inf)
    nearer = torch.minimum(distance, arrived)
    if torch.equal(nearer, distance):
        break
    distance = nearer

print(f"16 starts, {float(distance.isfinite().double().mean()):.2f} of the pairs are connected")
matrix = CSR.from_coo(source, target, length, (nodes, nodes)).coalesce("min").to_scipy()
torch.testing.assert_close(distance.T, torch.from_numpy(scipy.sparse.csgraph.dijkstra(matrix, indices=range(16))))
