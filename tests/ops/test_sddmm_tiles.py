"""SDDMM by windows in shared memory: every width of a block, and what no window takes."""

import pytest
import torch

import fusedmm

ROWS, COLS = 700, 1300  # several blocks; windows of 512, 256, 128 and 64 columns, the last of them not full
U = 2.0**-24


def columns(kind: str) -> torch.Tensor:
    """The positions that have an entry, as row * COLS + col."""
    generator = torch.Generator().manual_seed(0)
    share = {"full": 1.0, "sparse": 0.01}.get(kind, 0.15)
    kept = torch.rand(ROWS, COLS, generator=generator) < share
    if kind == "empty rows":
        kept[::3] = False
    elif kind == "hub":
        kept[17] = True
    elif kind == "one window":
        kept[:, 100:] = False
    return kept


def matrix(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(ptr, idx)."""
    row, col = columns(kind).nonzero(as_tuple=True)
    ptr = torch.searchsorted(row, torch.arange(ROWS + 1))
    if kind == "columns in no order":
        keys = row * 2.0 + torch.rand(row.numel(), generator=torch.Generator().manual_seed(1))
        col = col[keys.argsort()]
    elif kind == "columns twice":
        col[1:] = torch.where(row[1:] == row[:-1], torch.maximum(col[:-1] // 2 * 2, col[1:] // 2 * 2), col[1:])
    return ptr, col


def assert_right(e: torch.Tensor, row: torch.Tensor, col: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within 4 sqrt(feat) u of the sums of magnitudes."""
    a, b = a.double(), b.double()
    exact, size = (a[row] * b[col]).sum(1), (a[row] * b[col]).abs().sum(1)
    bound = (4 * max(a.shape[1], 1) ** 0.5 + 1) * U * size
    assert bool(((e.double() - exact).abs() <= bound).all())


KINDS = ["uniform", "full", "sparse", "empty rows", "hub", "one window", "columns in no order", "columns twice"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feat", [0, 1, 4, 31, 32, 33, 64, 100, 128, 129, 132, 255, 256])
def test_sddmm_tiles(kind, feat, cuda):
    ptr, idx = (t.to(cuda) for t in matrix(kind))
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(ROWS, COLS))
    a, b = torch.randn(ROWS, feat, device=cuda), torch.randn(COLS, feat, device=cuda)
    row, col, _ = adj.coo()
    e = fusedmm.sddmm(adj, a, b, algorithm="tiles")
    assert_right(e, row, col, a, b)
    assert torch.equal(e, fusedmm.sddmm(adj, a, b, algorithm="tiles"))
    # Rows apart in memory, and NaN between them.
    wide = [torch.full((t.shape[0], feat + 3), torch.nan, device=cuda) for t in (a, b)]
    for t, w in zip((a, b), wide, strict=True):
        w[:, 1 : feat + 1] = t
    assert_right(fusedmm.sddmm(adj, *[w[:, 1 : feat + 1] for w in wide], algorithm="tiles"), row, col, a, b)


@pytest.mark.parametrize("rows", [1, 60, 3000, 4267, 9000])
def test_sddmm_tiles_of_any_number_of_rows(rows, cuda):
    """Rows are dealt out evenly: none to some warps, or two to one and three to another."""
    adj = fusedmm.CSR.from_dense((torch.rand(rows, 300, device=cuda) < 0.2).float()).pattern()
    a, b = torch.randn(rows, 100, device=cuda), torch.randn(300, 100, device=cuda)
    row, col, _ = adj.coo()
    assert_right(fusedmm.sddmm(adj, a, b, algorithm="tiles"), row, col, a, b)


@pytest.mark.parametrize("bad", [-1, COLS, -(2**31), 2**31 - 1])
def test_columns_outside_are_skipped(bad, cuda):
    """Their entries are 0, all others right."""
    ptr, idx = (t.to(cuda) for t in matrix("uniform"))
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(ROWS, COLS))
    a, b = torch.randn(ROWS, 40, device=cuda), torch.randn(COLS, 40, device=cuda)
    row, col, _ = adj.coo()
    lost = torch.arange(5, adj.nnz, 1000, device=cuda)
    adj.idx.data[lost] = bad
    e = fusedmm.sddmm(adj, a, b, algorithm="tiles")
    assert bool((e[lost] == 0).all())
    kept = torch.ones_like(e, dtype=torch.bool).index_fill_(0, lost, False)
    assert_right(e[kept], row[kept], col[kept], a, b)


def test_what_it_does_not_take(cuda):
    """Values, another order of edges, heads, other types and wider rows."""
    ptr, idx = (t.to(cuda) for t in matrix("uniform"))
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(ROWS, COLS))
    a, b = torch.randn(ROWS, 8, device=cuda), torch.randn(COLS, 8, device=cuda)
    row, col, _ = adj.coo()
    for other, left, right in (
        (adj.with_values(torch.ones(adj.nnz, device=cuda)), a, b),
        (fusedmm.CSR.from_coo(row.flip(0), col.flip(0), shape=(ROWS, COLS)), a, b),
        (adj, a.view(ROWS, 2, 4), b.view(COLS, 2, 4)),
        (adj, a.double(), b.double()),
        (adj, a.repeat(1, 40), b.repeat(1, 40)),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            fusedmm.sddmm(other, left, right, algorithm="tiles")
