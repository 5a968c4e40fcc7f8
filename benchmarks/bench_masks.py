"""fusedmm.attention on masks of up to 4,267 tokens, beside FlexAttention and dense attention with the same mask.

FlexAttention knows the mask by blocks of 128 x 128 and leaves out those without an entry; it is compiled. The dense
product gets the mask as booleans, and torch chooses its kernel. Without the mask, where torch's fastest kernels run,
it computes something else and stands beside for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attend import Entries, Exact, gathered, operands, stepped
from benchmarks.case import random
from benchmarks.jobs import Job, Options
from benchmarks.trial import Step, Trial, compiled
from fusedmm import CSR, attention

HEADS, FEAT = 8, 64
MASKS = [f"4096x4096 {zeros}%" for zeros in (99, 98, 95, 90, 80)] + ["65-point 4096^1", "513-point 4096^1"]
MASKS += ["32 full of 118", "ogbl_ddi_train", *(f"{n}x{n} 95%" for n in (512, 1024, 2048))]


def jobs(name: str, adj: CSR, options: Options) -> Iterator[Job]:
    """Both types of numbers, forward and with backward."""
    for dtype in (torch.float32, torch.bfloat16):
        for backward in (False, True):
            label = f"dot {HEADS}x{FEAT} {str(dtype)[6:]} {'forward + backward' if backward else 'forward'}"
            if options.wants(label):
                facts = {"density": round(adj.nnz / (adj.shape[0] * adj.shape[1]), 4)}
                yield Job(label, partial(trials, adj, dtype, backward), facts=facts)


def _heads_first(*x: Tensor) -> list[Tensor]:
    """[1, H, n, F] of [n, H, F], as torch's attention has it."""
    return [t.transpose(0, 1)[None] for t in x]


def trials(adj: CSR, dtype: torch.dtype, backward: bool) -> list[Trial]:
    """Ours, the peers, and dense attention without the mask."""
    device, n = adj.device.type, adj.shape[0]
    row, col, _ = adj.coo()
    at = Entries(row.long(), col.long(), n)
    mask = torch.zeros(n, n, dtype=torch.bool, device=device)
    mask[at.row, at.col] = True
    x = operands("dot", n, HEADS, FEAT, dtype, device)
    gout = random(n, HEADS, FEAT, dtype=dtype, device=device, seed=8)
    exact = Exact(partial(gathered, "dot"), adj, x, ["node"] * 3, HEADS * FEAT)
    adj.cache_transpose()

    def by_blocks() -> Step:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        blocks = create_block_mask(lambda b, h, i, j: mask[i, j], None, None, n, n, device=device)

        def attend(form, *x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            out: Tensor = form(*_heads_first(*x), block_mask=blocks)
            return out[0].transpose(0, 1)

        def run(form) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
            return stepped(partial(attend, form), x, gout, backward)

        return partial(run, compiled(flex_attention, run, dynamic=False))

    def dense(mask: Tensor | None, *x: Tensor) -> Tensor:
        q, k, v = _heads_first(*x)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)

    def trial(name: str, formula, kind: str) -> Trial:  # type: ignore[no-untyped-def]
        check = None if kind == "dense" else lambda: exact.error(stepped(formula, x, exact.gout, backward))
        return Trial(name, lambda: partial(stepped, formula, x, gout, backward), kind, check=check)

    return [
        trial("auto", partial(attention, adj), "ours"),
        Trial("FlexAttention", by_blocks),
        trial("dense, masked", partial(dense, mask), "peer"),
        trial("dense, no mask", partial(dense, None), "dense"),
    ]
