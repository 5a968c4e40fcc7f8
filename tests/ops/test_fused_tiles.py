"""fused by windows in shared memory: every width of a block, and what no window takes."""

import pytest
import torch
from support.fused_oracle import Stages, assert_near, for_edge, forward
from test_sddmm_tiles import COLS, KINDS, ROWS, matrix

import fusedmm


def operands(feat, device):
    x, y = torch.randn(ROWS, feat, device=device), torch.randn(COLS, feat, device=device)
    return x / max(feat, 1) ** 0.5, y


def assert_right(out, adj, x, y, edge="s*a", reduce="sum"):
    """Within the oracle's bound: all rows, or of large matrices every so many, the longest and the last."""
    step = 2 * (adj.nnz * x.shape[1] // 2**22) + 1  # odd, so that all places of a block have their turn
    longest = int(adj.degree().argmax())
    rows = torch.tensor(sorted({*range(0, adj.shape[0], step), longest, adj.shape[0] - 1}), device=x.device)
    row, col, val = for_edge(adj, edge).coo()
    kept = torch.isin(row, rows)
    val = None if val is None else val[kept]
    some = fusedmm.CSR.from_coo(torch.searchsorted(rows, row[kept]), col[kept], val, (len(rows), adj.shape[1]))
    assert_near(out[rows], *forward(some, x[rows], y, y, Stages(edge=edge, reduce=reduce)), torch.float32)


def fused(adj, x, y, **more):
    return fusedmm.fused(adj, x, y, algorithm="tiles", **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feat", [0, 1, 4, 31, 32, 33, 64, 100, 128])
def test_fused_tiles(kind, feat, cuda):
    ptr, idx = (t.to(cuda) for t in matrix(kind))
    val = torch.randn(idx.numel(), device=cuda)
    adj = fusedmm.CSR.from_csr(ptr, idx, val, shape=(ROWS, COLS))
    x, y = operands(feat, cuda)
    out = fused(adj, x, y)
    assert_right(out, adj, x, y)
    assert torch.equal(out, fused(adj, x, y))
    assert_right(fused(adj.pattern(), x, y, edge="sigmoid(s)", reduce="mean"), adj, x, y, "sigmoid(s)", "mean")
    # Rows apart in memory, and NaN between them.
    wide = [torch.full((t.shape[0], feat + 3), torch.nan, device=cuda) for t in (x, y)]
    for t, w in zip((x, y), wide, strict=True):
        w[:, 1 : feat + 1] = t
    assert_right(fused(adj, *[w[:, 1 : feat + 1] for w in wide]), adj, x, y)


@pytest.mark.parametrize("rows", [1, 60, 3000, 4267, 9000])
@pytest.mark.parametrize("feat", [20, 128])
def test_as_segments_at_any_number_of_rows(rows, feat, cuda):
    """More or fewer rows to a warp, none of which may leave the bound."""
    kept = torch.rand(rows, 300, device=cuda) < 0.2
    adj = fusedmm.CSR.from_dense(kept * torch.randn(rows, 300, device=cuda))
    x, y = torch.randn(rows, feat, device=cuda), torch.randn(300, feat, device=cuda)
    assert_right(fused(adj, x, y), adj, x, y)
    assert_right(fusedmm.fused(adj, x, y, algorithm="segments"), adj, x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_values_of_another_type_in_another_order(dtype, cuda):
    ptr, idx = matrix("uniform")
    row = torch.repeat_interleave(torch.arange(ROWS), ptr.diff())
    order = torch.randperm(idx.numel())
    val = torch.randn(idx.numel(), dtype=dtype, device=cuda)
    adj = fusedmm.CSR.from_coo(row[order].to(cuda), idx[order].to(cuda), val, shape=(ROWS, COLS))
    x, y = operands(40, cuda)
    assert_right(fused(adj, x, y), adj, x, y)


@pytest.mark.parametrize("bad", [-1, COLS, -(2**31), 2**31 - 1])
def test_columns_outside_are_skipped(bad, cuda):
    ptr, idx = (t.to(cuda) for t in matrix("uniform"))
    adj = fusedmm.CSR.from_csr(ptr, idx, torch.randn(idx.numel(), device=cuda), shape=(ROWS, COLS))
    x, y = operands(40, cuda)
    row, col, val = adj.coo()
    lost = torch.cat([torch.arange(5, adj.nnz, 1000, device=cuda), torch.arange(300, 340, device=cuda)])
    adj.idx.data[lost] = bad
    kept = torch.ones(adj.nnz, dtype=torch.bool, device=cuda).index_fill_(0, lost, False)
    rest = fusedmm.CSR.from_coo(row[kept], col[kept], val[kept], shape=(ROWS, COLS))
    assert_right(fused(adj, x, y), rest, x, y)


def test_what_absent_rows_hold_does_not_matter(cuda):
    """Rows of y without entries may be NaN, and a pole of the edge function at 0 is met by none."""
    ptr, idx = matrix("uniform")
    idx = idx // 2 * 2
    adj = fusedmm.CSR.from_csr(ptr.to(cuda), idx.to(cuda), shape=(ROWS, COLS))
    x, y = torch.rand(ROWS, 100, device=cuda), torch.rand(COLS, 100, device=cuda)
    y[1::2] = torch.nan
    out = fused(adj, x, y, edge="1/s")
    assert_near(out, *forward(adj, x, y, y, Stages(edge="1/s")), torch.float32)
    assert bool(out.isfinite().all())


def uniform(rows, cols, share, device, hub=False):
    """A matrix with values, and with more than four times the mean of entries in one row."""
    kept = torch.rand(rows, cols, device=device) < share
    kept[5] |= hub
    row, col = kept.nonzero(as_tuple=True)
    ptr = torch.searchsorted(row, torch.arange(rows + 1, device=device))
    return fusedmm.CSR.from_csr(ptr, col, torch.randn(col.numel(), device=device), shape=(rows, cols))


@pytest.mark.parametrize(
    ("rows", "share", "feat", "hub", "chosen"),
    [
        (1200, 0.2, 128, False, "tiles"), (1200, 0.1, 128, False, "segments"), (1200, 0.1, 32, False, "tiles"),
        (1200, 0.2, 16, False, "segments"), (9000, 0.2, 32, False, "segments"), (1200, 0.2, 128, True, "segments"),
        (1200, 0.2, 132, False, "segments"), (900, 0.2, 128, False, "segments"), (900, 0.2, 32, False, "tiles"),
        (8192, 0.1, 128, False, "tiles"), (9000, 0.1, 128, False, "segments"), (8192, 0.08, 128, False, "segments"),
        (4200, 0.1, 32, False, "tiles"), (4300, 0.1, 32, False, "segments"), (8192, 0.1, 32, False, "tiles"),
    ],
)  # fmt: skip
def test_the_choice(rows, share, feat, hub, chosen, cuda):
    adj = uniform(rows, 1000, share, cuda, hub)
    x, y = torch.randn(rows, feat, device=cuda) / feat**0.5, torch.randn(1000, feat, device=cuda)
    auto = fusedmm.fused(adj, x, y)
    assert torch.equal(auto, fusedmm.fused(adj, x, y, algorithm=chosen))
    assert_right(auto, adj, x, y)


def test_what_it_does_not_take(cuda):
    """Other forms, interpreted functions, another z, heads, other types and wider rows."""
    ptr, idx = (t.to(cuda) for t in matrix("uniform"))
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(ROWS, COLS))
    x, y = operands(8, cuda)
    for left, right, more in (
        (x, y, {"score": "sqdist"}),
        (x, y, {"message": "add"}),
        (x, y, {"reduce": "max"}),
        (x, y, {"activation": "relu"}),
        (x, y, {"edge": "s**3 + s"}),
        (x, y, {"z": y.clone()}),
        (x.view(ROWS, 2, 4), y.view(COLS, 2, 4), {}),
        (x.double(), y.double(), {}),
        (x.repeat(1, 17), y.repeat(1, 17), {}),
    ):
        with pytest.raises(ValueError, match="algorithm"):
            fused(adj, left, right, **more)
