"""spmv where work is cut: rows that begin and end about every border, long runs of empty ones, sizes of nothing, places
that break alignment; and the same bits a thousand times. Whole numbers, so that every result is exact."""

import pytest
import torch
from support.matvec import FORMATS, algorithms_of, made, oracle, products, rows_of_lengths

import fusedmm

# Entries of a warp and a block, twice as many where rows are long; rows of a slice; entries of a CPU's piece.
SHARE, BLOCK, SLICE, PIECE = 128, 1024, 2048, 16384


def whole(adj, dtype=torch.float32):
    """The same structure with small whole numbers, and an x of such."""
    val = (torch.arange(adj.nnz, device=adj.device) % 5 - 2).to(dtype)
    x = (torch.arange(adj.shape[1], device=adj.device) % 7 - 3).to(dtype)
    return adj.with_values(val), x


def ends_at(places, step):
    """Lengths of rows that end at these entries, with `step` empty rows behind every third."""
    found, before = [], 0
    for k, place in enumerate(sorted(set(places))):
        found += [place - before, *([0] * step if k % 3 == 0 else [])]
        before = place
    return found


BORDERS = {
    "of every warp": ends_at([SHARE * k + d for k in range(1, 90) for d in (-1, 0, 1)], 1),
    "of every warp, in short rows": ends_at(
        [SHARE * k + d for k in range(90) for d in (1, 9, 20, 43, 77, 126, 127)], 1
    ),
    "of every second warp": ends_at([2 * SHARE * k + (-1, 0, 1)[k % 3] for k in range(1, 60)], 2),
    "of every block": ends_at([BLOCK * k + d for k in range(1, 12) for d in (-1, 0, 1)], 3),
    "of blocks that a row fills": ends_at([1, *(3 * BLOCK * k + (-1, 0, 1)[k % 3] for k in range(1, 9)), 30_000], 1),
    "of a CPU's pieces": ends_at([PIECE * k + d for k in range(1, 4) for d in (-1, 0, 1)], 1),
    "of turns of short rows on a CPU": [*[2] * 60, 129, *[3] * 67, *[0] * 127, 128, 600, *[6] * 127, *[7] * 129],
    "of turns of long rows": [*[12] * 128, *[16, 17, 0, 33, 1] * 40, 2047, 2048, 2049, *[40] * 125, 5000, *[20] * 131],
    "of turns with more products than are kept": [*[100] * 128, *[1] * 64, *[128] * 17, *[11] * 130],
    "of four warps that share a row": [
        *(n + d for n in (0, 32, 128, 512, 1024, 8192) for d in (-1, 0, 1) if n + d >= 0),
        0,
        20_000,
    ],
    "one row": [5 * BLOCK],
    "one row behind empty ones": [*[0] * 9, 40 * BLOCK + 1],
    "one row before empty ones": [33 * BLOCK, *[0] * (SLICE + 1)],
    "slices of empty rows": [3, *[0] * 3 * SLICE, 2, *[0] * (SLICE - 1), 1, *[0] * SLICE, *[4] * 700, *[0] * 2 * SLICE],
    "whole slices": [*[0] * SLICE, 7, *[0] * (SLICE - 1), *[0] * SLICE, 1],
    "a few entries in many rows": [int(k % 5000 == 77) for k in range(60_000)],
    "no entry": [0] * (2 * SLICE + 5),
    "of more shares than warps search for": [*[40] * 20_000, *[0] * 3 * SLICE, 900_000, *[1, 0] * 9000],
}


@pytest.mark.parametrize("name", ["csr", "coo", "hyb", "sell"])
@pytest.mark.parametrize("borders", BORDERS)
def test_rows_about_borders(borders, name, device):
    adj, x = whole(rows_of_lengths(BORDERS[borders], 700, device))
    y = (torch.arange(adj.shape[0], device=device) % 3).float()
    for alpha, beta in ((1, 0), (2, 3)):
        exact = oracle(adj, x, alpha, beta, y)[0].float()
        nan = torch.full_like(y, torch.nan)
        for note, found in products(adj, name, x, alpha=alpha, beta=beta, y=y if beta else nan):
            assert torch.equal(found.cpu(), exact), note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_long_rows_pass_over_columns_outside(dtype, device):
    """Rows that fill vectors: what an entry outside holds, infinite here, goes nowhere."""
    adj, x = whole(rows_of_lengths([20] * 300, 700, device), dtype)
    wrong = torch.arange(adj.nnz, device=device) % 7 == 3
    exact = oracle(adj.with_values(adj.val.where(~wrong, 0)), x, 1, 0, x[:300])[0].to(dtype)
    outside = torch.tensor([-1, 700, -(2**31), 2**31 - 1], device=device, dtype=torch.int32)
    outside = outside[torch.arange(adj.nnz, device=device) % 4]
    forged = adj.with_values(adj.val.where(~wrong, torch.inf))
    object.__setattr__(forged, "idx", adj.idx.where(~wrong, outside))
    for note, found in products(forged, "csr", x):
        assert torch.equal(found.cpu(), exact), note


@pytest.mark.parametrize("offsets", [(0,), (-1, 0, 1), tuple(range(-5, 6))])
def test_diagonals_larger_than_caches(offsets, device):
    """64 MiB of them, up to the last rows, which are no whole block."""
    rows = 2**24 // len(offsets) + 77
    val = (torch.arange(rows * len(offsets), device=device) % 5 - 2).float().view(len(offsets), rows)
    x = (torch.arange(rows, device=device) % 7 - 3).float()
    exact = torch.zeros(rows, device=device)
    for diagonal, off in zip(val, offsets, strict=True):
        low, high = max(0, -off), rows - max(0, off)
        exact[low:high] += diagonal[low:high] * x[low + off : high + off]
    matrix = fusedmm.formats.DIA((rows, rows), val, torch.tensor(offsets, device=device))
    assert torch.equal(fusedmm.spmv(matrix, x), exact)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2 * SLICE + 7, 3)])
def test_what_has_no_entry_is_beta_y(shape, name, device):
    """cuSPARSE failed on sizes of 0, and torch's early exit for them forgot beta."""
    none = torch.zeros(0, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(none, none, torch.zeros(0, device=device), shape)
    x, y = torch.full((shape[1],), torch.inf, device=device), torch.arange(shape[0], device=device) + 1.0
    for beta in (0, 1, 0.5):
        given = y if beta else torch.full_like(y, torch.nan)
        for note, found in products(adj, name, x, beta=beta, y=given):
            assert torch.equal(found, beta * y), note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("off", [1, 2, 3, 5])
def test_any_place_in_memory(off, dtype, device):
    """Operands that begin where no vector of 16 bytes does."""

    def moved(t):
        return torch.cat([t.new_zeros(off), t, t.new_zeros(3)])[off : off + t.numel()]

    adj = rows_of_lengths([k % 11 for k in range(900)], 300, device)
    adj, x = whole(adj.pattern(), dtype)
    adj = fusedmm.CSR.from_csr(moved(adj.ptr), moved(adj.idx), moved(adj.val), adj.shape)
    y = moved((torch.arange(900, device=device) % 3).to(dtype))
    exact = oracle(adj, x, 2, 1, y)[0].to(dtype)
    for name in FORMATS:
        for note, found in products(adj, name, moved(x), alpha=2, beta=1, y=y):
            assert torch.equal(found.cpu(), exact), note


@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_times(name, device):
    lengths = [9] * 500 if name in ("dia", "ell") else [*[k % 9 for k in range(2000)], 6000, *[2] * 900]
    adj = rows_of_lengths(lengths, 300, device)
    x, matrix = torch.randn(300, device=device), made(adj, name)
    for algorithm in ["auto", *(a for a in algorithms_of(name, device) if ":" not in a and a != "reference")]:
        first = fusedmm.spmv(matrix, x, algorithm=algorithm)
        assert all(torch.equal(fusedmm.spmv(matrix, x, algorithm=algorithm), first) for _ in range(1000)), algorithm


@pytest.mark.parametrize("width", [8, 9, 33, 129])
@pytest.mark.parametrize("odd", [None, 0, 13, 14, 15, 30])
def test_rows_that_are_alike(odd, width, device):
    """Rows whose columns are those of the row before, moved by one, as a grid has them: four are taken as one, up to a
    row that differs in one column, and up to the last columns of the matrix."""
    rows = 43
    row = torch.arange(rows).repeat_interleave(width)
    col = row + torch.arange(width).repeat(rows)
    if odd is not None:  # still in order, behind a gap
        col[(odd + 1) * width - 1] += 1
    size = rows, int(col.max()) + 1
    adj, x = whole(fusedmm.CSR.from_coo(row, col, shape=size).to(device))
    exact = oracle(adj, x)[0].float()
    for note, found in products(adj, "csr", x):
        assert torch.equal(found.cpu(), exact), note
