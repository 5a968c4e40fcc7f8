"""Attention with a bias for each edge: here the distance, as position encodings of transformers have it."""

import torch

from fusedmm import attention, data

torch.manual_seed(0)
side, heads = 8, 4
adj = data.stencil(side, side, points=9)
row, col, _ = adj.coo()
place = torch.stack([torch.arange(64) // side, torch.arange(64) % side], 1).float()
distance = (place[row] - place[col]).norm(dim=1)
slope = torch.tensor([0.5, 1.0, 2.0, 4.0], requires_grad=True)  # one for each head
q, k, v = torch.randn(3, 64, heads, 16)
bias = -distance[:, None] * slope
out, weight = attention(adj, q, k, v, bias=bias, return_weights=True)
out.square().sum().backward()

logits = torch.full((heads, 64, 64), -torch.inf)
logits[:, row, col] = bias.detach().T
exact = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), attn_mask=logits)
own = weight[row == col].mean(0)
print("mean weight of the own place, head by head:", [round(w, 2) for w in own.tolist()])
torch.testing.assert_close(out, exact.transpose(0, 1))
assert slope.grad.abs().min() > 0 and own.argmax() == 3
