"""SpMM on CUDA where rows are no whole 16 bytes: whichever vectors they are read by, the bits are the same."""

import pytest
import torch
from support.bounds import assert_within, spmm_oracle

import fusedmm

ROWS, COLS, HUB = 300, 400, 9000
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def matrix(cuda, dtype, heads=()):
    """Short rows and one that is cut in pieces, in the caller's order or sorted."""
    generator = torch.Generator().manual_seed(1)
    count = 12 * ROWS + HUB
    row = torch.randint(ROWS, (count,), generator=generator)
    row[:HUB] = 7
    col = torch.randint(COLS, (count,), generator=generator)
    val = torch.randn(count, *heads, generator=generator).to(dtype)
    return fusedmm.CSR.from_coo(row.to(cuda), col.to(cuda), val.to(cuda), (ROWS, COLS))


def apart(x):
    """The same numbers, in rows of which no two can be read at once."""
    wide = x.new_full((x.shape[0], *x.shape[1:-1], 2 * x.shape[-1] + 1), torch.nan)
    wide[..., 1 : x.shape[-1] + 1] = x
    return wide[..., 1 : x.shape[-1] + 1]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("packs", [1, 3, 7, 9, 31, 43, 65])
def test_rows_of_whole_eight_bytes(packs, dtype, cuda):
    feat = packs * 8 // dtype.itemsize
    x = torch.randn(COLS, feat, device=cuda).to(dtype)
    given = matrix(cuda, dtype)
    in_order = fusedmm.CSR.from_csr(given.ptr, given.idx, given.val[given.eid.long()], (ROWS, COLS))
    for adj in (given, in_order, given.pattern()):
        for reduce in ("sum", "mean", "max"):
            y = fusedmm.spmm(adj, x, reduce=reduce, algorithm="segments")
            assert_within(y, *spmm_oracle(adj, x, reduce), dtype, reduce)
            assert torch.equal(y, fusedmm.spmm(adj, apart(x), reduce=reduce, algorithm="segments"))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_heads_of_whole_eight_bytes(dtype, cuda):
    """Each head has values of its own: heads lie side by side, and none of them shares a vector with another."""
    given = matrix(cuda, dtype, heads=(3,))
    order = given.eid.long()
    adj = fusedmm.CSR.from_csr(given.ptr, given.idx, given.val[order], (ROWS, COLS))
    x = torch.randn(COLS, 3, 5 * 8 // dtype.itemsize, device=cuda).to(dtype)
    y = fusedmm.spmm(adj, x, algorithm="segments")
    assert torch.equal(y, fusedmm.spmm(adj, apart(x), algorithm="segments"))
    for head in range(3):
        one = fusedmm.CSR.from_csr(given.ptr, given.idx, given.val[order, head].contiguous(), (ROWS, COLS))
        assert_within(y[:, head], *spmm_oracle(one, x[:, head].contiguous(), "sum"), dtype)
