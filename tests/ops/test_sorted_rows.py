"""spmm where rows are sorted and share columns, as in pruned layers: kernels that walk over windows of columns."""

import pytest
import torch
from support.bounds import assert_within, spmm_oracle
from support.generate import own_algorithms, run_or_decline

import fusedmm


def matrix(rows: int, cols: int, density: float, dtype: torch.dtype, device: str) -> fusedmm.CSR:
    """Some rows full, some empty, the others of that density."""
    g = torch.Generator().manual_seed(rows + cols)
    kept = torch.rand(rows, cols, generator=g) < density
    kept[::7] = True
    kept[3::11] = False
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
    val = torch.randn(int(ptr[-1]), generator=g).to(dtype)
    return fusedmm.CSR.from_csr(ptr, kept.nonzero()[:, 1], val, (rows, cols)).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows, cols", [(70, 1300), (3000, 130)])
def test_windows_of_columns(rows: int, cols: int, dtype: torch.dtype, device: str):
    adj = matrix(rows, cols, 0.3, dtype, device)
    for feat in (3, 32, 130):
        x = torch.randn(cols, feat, dtype=dtype, device=device)
        for reduce in ("sum", "mean"):
            exact, magnitude, n = spmm_oracle(adj, x, reduce)
            for algorithm in own_algorithms("spmm", device):
                y = run_or_decline(fusedmm.spmm, adj, x, reduce=reduce, algorithm=algorithm)
                if y is not None:
                    assert_within(y, exact, magnitude, n, dtype, f"{algorithm} {reduce} {feat}")


def test_rows_that_stop_being_sorted(device: str):
    """One entry out of order, a repeated one and, behind the check's back, one outside: the others still count."""
    for change in ("swap", "repeat", "outside"):
        adj = matrix(70, 1300, 0.3, torch.float32, device)
        p = int(adj.ptr[21]) + 200
        if change == "swap":
            adj.idx.data[[p, p + 50]] = adj.idx[[p + 50, p]]
        elif change == "repeat":
            adj.idx.data[p] = adj.idx[p - 1]
        x = torch.randn(1300, 33, device=device)
        assert adj.val is not None
        exact, magnitude, n = spmm_oracle(adj, x, "sum")
        if change == "outside":
            exact[21] -= (adj.val[p].double() * x[adj.idx[p]].double()).cpu()
            adj.idx.data[p] = 1300
        for algorithm in own_algorithms("spmm", device):
            y = run_or_decline(fusedmm.spmm, adj, x, algorithm=algorithm)
            if y is not None:
                assert_within(y, exact, magnitude, n, torch.float32, f"{algorithm} {change}")
