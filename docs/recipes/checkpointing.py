"""Checkpointing: a deep network keeps the input of each block, and computes the rest again in backward."""

import torch
from torch.utils.checkpoint import checkpoint

from fusedmm import data, nn

torch.manual_seed(0)
adj = data.uniform(400, 400, 4000)
blocks = torch.nn.ModuleList([nn.GATConv(32, 8, heads=4, dropout=0.1) for _ in range(6)])
x = torch.randn(400, 32)


def step(again):
    """The gradients and the bytes that forward keeps for backward."""
    kept = 0

    def pack(t):
        nonlocal kept
        kept += t.numel() * t.element_size()
        return t

    torch.manual_seed(1)
    h = x
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        for block in blocks:
            h = h + (checkpoint(block, h, adj, use_reentrant=False) if again else block(h, adj)).relu()
    return torch.autograd.grad(h.square().mean(), list(blocks.parameters())), kept


(plain, all_kept), (again, few_kept) = step(False), step(True)
print(f"kept for backward: {all_kept / 2**20:.1f} MiB, with checkpoints {few_kept / 2**20:.1f} MiB")
torch.testing.assert_close(again, plain, rtol=0, atol=0)  # the same bits, dropout included
assert few_kept < all_kept / 2
