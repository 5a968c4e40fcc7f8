"""SpMM by windows in shared memory, in every type: the widths of a strip, long rows, and what no window takes."""

import pytest
import torch
from support.bounds import assert_within, spmm_oracle
from test_sddmm_tiles import COLS, KINDS, ROWS, matrix

import fusedmm

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALVES = TYPES[2:]


def made(kind, dtype, cuda):
    ptr, idx = (t.to(cuda) for t in matrix(kind))
    val = torch.randn(idx.numel(), device=cuda).to(dtype)
    return fusedmm.CSR.from_csr(ptr, idx, val, shape=(ROWS, COLS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("feat", [8, 32, 72, 128, 264])
def test_spmm_tiles(kind, dtype, feat, cuda):
    adj = made(kind, dtype, cuda)
    x = torch.randn(COLS, feat, device=cuda).to(dtype)
    wide = torch.full((COLS, feat + 8), torch.nan, dtype=dtype, device=cuda)
    wide[:, :feat] = x
    for matrix_, reduce in ((adj, "sum"), (adj.pattern(), "mean")):
        y = fusedmm.spmm(matrix_, x, reduce=reduce, algorithm="tiles")
        assert_within(y, *spmm_oracle(matrix_, x, reduce), dtype, f"{kind} {reduce}")
        assert torch.equal(y, fusedmm.spmm(matrix_, wide[:, :feat], reduce=reduce, algorithm="tiles"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("each", [0.01, 0.5, 22, 33, 48.3, 64.5, 80, 80.1])
@pytest.mark.parametrize("feat", [32, 264])
def test_spmm_tiles_of_any_number_of_rows(each, feat, dtype, cuda):
    """So many for each multiprocessor are dealt out evenly, for one strip and for several. Where the fullest of 16
    warps would have a row more than most, there are 20."""
    rows = int(each * torch.cuda.get_device_properties(cuda).multi_processor_count)
    kept = torch.rand(rows, 300, device=cuda) < 0.2
    adj = fusedmm.CSR.from_dense((kept * torch.randn(rows, 300, device=cuda)).to(dtype))
    x = torch.randn(300, feat, device=cuda).to(dtype)
    y = fusedmm.spmm(adj, x, algorithm="tiles")
    assert_within(y, *spmm_oracle(adj, x, "sum"), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_of_many_terms_are_put_aside(dtype, cuda):
    """Equal terms: one sum after the other would leave the bound, and rounding on the way even more."""
    rows, cols = 64, 20_000
    ptr = torch.arange(rows + 1, device=cuda) * cols
    idx = torch.arange(cols, device=cuda).repeat(rows)
    adj = fusedmm.CSR.from_csr(ptr, idx, torch.full((idx.numel(),), 0.1, device=cuda).to(dtype), shape=(rows, cols))
    x = torch.full((cols, 64), 0.3, device=cuda).to(dtype)
    assert_within(fusedmm.spmm(adj, x, algorithm="tiles"), *spmm_oracle(adj, x, "sum"), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_lies_apart_is_declined_and_taken_otherwise(dtype, cuda):
    """A copy into shared memory has four bytes or more."""
    adj = made("uniform", dtype, cuda)
    for x in (torch.randn(COLS, 12, device=cuda).to(dtype), torch.randn(COLS, 9, device=cuda).to(dtype)[:, 1:]):
        with pytest.raises(ValueError, match="tiles does not support this call"):
            fusedmm.spmm(adj, x, algorithm="tiles")
        assert_within(fusedmm.spmm(adj, x), *spmm_oracle(adj, x, "sum"), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_even_rows_choose_it(dtype, cuda):
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(1500, 1500, generator=generator) < 0.2
    row, col = kept.nonzero(as_tuple=True)
    adj = fusedmm.CSR.from_coo(row.to(cuda), col.to(cuda), torch.randn(len(row), device=cuda).to(dtype), (1500, 1500))
    x = torch.randn(1500, 64, device=cuda).to(dtype)
    assert torch.equal(fusedmm.spmm(adj, x), fusedmm.spmm(adj, x, algorithm="tiles"))
