"""PageRank: a vector times a matrix until nothing changes."""

import torch

from fusedmm import data, spmv

links = data.rmat(9, 6).coalesce()  # row i holds what page i links to
pages = links.shape[0]
out = links.degree().double()
dangling = out == 0
# Page i passes its rank on in equal shares: the columns of the transpose add up to one.
share = links.with_values(torch.ones(links.nnz, dtype=torch.float64)).scale(rows=1 / out.clamp(min=1)).t()
rank, change, steps = torch.full((pages,), 1 / pages, dtype=torch.float64), 1.0, 0
while change > 1e-12:
    new = 0.85 * (spmv(share, rank) + rank[dangling].sum() / pages) + 0.15 / pages
    change, rank, steps = (new - rank).abs().sum().item(), new, steps + 1
print(f"{steps} steps; the best page is {int(rank.argmax())} with {float(rank.max()):.4f}")

dense = share.to_dense()
dense[:, dangling] = 1 / pages
exact = torch.linalg.solve(
    torch.eye(pages, dtype=torch.float64) - 0.85 * dense, torch.full((pages,), 0.15 / pages, dtype=torch.float64)
)
torch.testing.assert_close(rank, exact, rtol=1e-8, atol=1e-12)
