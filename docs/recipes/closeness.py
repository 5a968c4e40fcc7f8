"""Closeness: how near a node is to all others, by hops from all nodes at once."""

import networkx
import torch

from fusedmm import CSR, gspmm

club = networkx.karate_club_graph()
A = CSR.from_scipy(networkx.to_scipy_sparse_array(club, weight=None)).pattern()
hops = torch.full((34, 34), torch.inf).fill_diagonal_(0)  # [node, start]
one = torch.ones(A.nnz, 1)
while True:
    nearer = torch.minimum(hops, gspmm(A, "add", "min", hops, one))
    if torch.equal(nearer, hops):
        break
    hops = nearer
closeness = 33 / hops.sum(0)

print(f"the most central member is {int(closeness.argmax())}")
torch.testing.assert_close(closeness, torch.tensor(list(networkx.closeness_centrality(club).values())))
