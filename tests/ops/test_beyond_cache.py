"""Rows of x that the second cache cannot hold are gathered 128 bytes at a time on CUDA, which changes no bit."""

import pytest
import torch
from support.bounds import assert_within

import fusedmm

pytestmark = pytest.mark.usefixtures("cuda")
ROW, NARROW = 512, 64  # bytes of a row of x, and of a stretch of it that the cache holds for all rows


@pytest.fixture(scope="module")
def adj():
    """Rows of 2 to 66 entries and a hub, over as many columns as have ROW bytes each beyond the cache."""
    n = torch.cuda.get_device_properties("cuda").L2_cache_size // ROW + 1
    g = torch.Generator("cuda").manual_seed(0)
    lengths = torch.randint(2, 67, (n,), generator=g, device="cuda")
    lengths[7] = 20_000
    ptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    entries = int(ptr[-1])
    assert entries > 32 * n, "each row of x is read often"
    idx = torch.randint(0, n, (entries,), generator=g, device="cuda")
    return fusedmm.CSR.from_csr(ptr, idx, torch.randn(entries, generator=g, device="cuda"), (n, n))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_columns_have_the_bits_that_they_have_alone(reduce, dtype, adj):
    adj = adj.with_values(adj.val.to(dtype))
    columns, few = ROW // dtype.itemsize, NARROW // dtype.itemsize
    x = torch.randn(adj.shape[1], columns, device="cuda").to(dtype)
    y = fusedmm.spmm(adj, x, reduce=reduce, algorithm="segments")
    for begin in range(0, columns, few):
        alone = fusedmm.spmm(adj, x[:, begin : begin + few].contiguous(), reduce=reduce, algorithm="segments")
        assert torch.equal(y[:, begin : begin + few], alone), begin


@pytest.mark.parametrize("columns", [96, 100, 128, 256])
def test_sums_stay_within_the_bound(columns, adj):
    x = torch.randn(adj.shape[1], columns, device="cuda")
    y = fusedmm.spmm(adj, x, algorithm="segments")
    some = torch.arange(0, adj.shape[0], 7, device="cuda")
    adj, x = adj.with_values(adj.val.double()), x.double()
    exact = fusedmm.spmm(adj, x, algorithm="reference")
    magnitude = fusedmm.spmm(adj.with_values(adj.val.abs()), x.abs(), algorithm="reference")
    exact, magnitude, terms = (t[some].cpu() for t in (exact, magnitude, adj.degree().double()[:, None]))
    assert_within(y[some], exact, magnitude, terms, torch.float32, operator="spmm sum")
