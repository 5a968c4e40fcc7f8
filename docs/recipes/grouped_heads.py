"""Grouped queries: eight heads of queries share two of keys and values."""

import torch

from fusedmm import attention, data

torch.manual_seed(0)
adj = data.banded(64, 8)  # each token sees eight on either side
q = torch.randn(64, 8, 16)
k, v = torch.randn(2, 64, 2, 16)
out = attention(adj, q, k, v)

mask = adj.to_dense().bool()
exact = torch.nn.functional.scaled_dot_product_attention(
    *(t.transpose(0, 1)[None] for t in (q, k, v)), attn_mask=mask, enable_gqa=True
)
print(f"queries {tuple(q.shape)}, keys {tuple(k.shape)}, {adj.nnz} of {64 * 64} pairs")
torch.testing.assert_close(out, exact[0].transpose(0, 1))
