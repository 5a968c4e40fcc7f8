"""spmm against its definition in float64, within the stated bound: every algorithm, every reduction."""

import pytest
import torch
from support.bounds import assert_values_gradient, assert_within, sddmm_oracle, spmm_oracle
from support.generate import Case, cases, own_algorithms, run_or_decline

import fusedmm

REDUCTIONS = ["sum", "mean", "max", "min"]


def results(adj, x, device):
    """(reduction, algorithm, result, exact) of all that do not decline, each within its bound."""
    for reduce in REDUCTIONS:
        exact, magnitude, n = spmm_oracle(adj, x, reduce)
        for algorithm in own_algorithms("spmm", device):
            y = run_or_decline(fusedmm.spmm, adj, x, reduce=reduce, algorithm=algorithm)
            if y is not None:
                assert_within(y, exact, magnitude, n, x.dtype, f"{algorithm} {reduce}", f"spmm {reduce}")
                yield reduce, algorithm, y, exact


@pytest.mark.parametrize("case", cases(), ids=str)
def test_covering_array(case: Case, device):
    adj = case.matrix(device)
    x = case.dense(adj.shape[1], device)
    for reduce, algorithm, y, exact in results(adj, x, device):
        assert y.is_contiguous() and y.device == adj.device
        if case.data == "powers" and reduce != "mean":
            assert torch.equal(y.cpu(), exact.to(case.dtype)), (algorithm, reduce)


@pytest.mark.parametrize("case", [c for c in cases() if c.feat], ids=str)
def test_gradients_over_the_covering_array(case: Case, device):
    """The gradients are an SpMM on the transpose and an SDDMM, and keep their bounds."""
    adj, free = case.matrix(device), case.values == "none"
    x = case.dense(adj.shape[1], device).requires_grad_()
    val = None if free else adj.val.requires_grad_()
    y = fusedmm.spmm(adj.with_values(val), x)
    gy = case.dense(adj.shape[0], device, seed=1)
    gx, *rest = torch.autograd.grad(y, [x] if free else [x, val], gy)
    assert_within(gx, *spmm_oracle(adj.t(), gy, "sum"), case.dtype, "gx")
    if not free:
        assert_values_gradient(rest[0], val, *sddmm_oracle(adj.pattern(), gy, x), case.dtype)


@pytest.mark.parametrize("heads", [None, 3])
def test_one_row_of_a_million_equal_terms(heads, device):
    """One sequential sum in float32 would be far outside: no accumulator adds more than 512 in a row."""
    n, size = 1_000_000, () if heads is None else (heads,)
    val = torch.full((n, *size), 0.1, device=device)
    adj = fusedmm.CSR.from_csr(torch.tensor([0, n], device=device), torch.arange(n, device=device), val)
    x = torch.full((n, *size, 2), 0.3, device=device)
    for algorithm in own_algorithms("spmm", device):
        y = run_or_decline(fusedmm.spmm, adj, x, algorithm=algorithm)
        if y is not None:
            term = float(torch.tensor(0.1).double() * torch.tensor(0.3).double())
            exact = torch.full((1, *size, 2), n * term, dtype=torch.float64)
            assert_within(y, exact, exact, n, torch.float32, algorithm, "spmm sum")


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("feat", [*range(1, 10), 12, 16, 17, 31, 32, 40, 64, 65])
def test_narrow_features(feat, dtype, values, device):
    """Rows of every length about which a kernel of few vectors could be wrong, and a row is the same in any matrix."""
    lengths = torch.tensor([0, *range(1, 20), 127, 128, 129, 0, 511, 512, 513, 1, 2047, 2048, 2049, 3])
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    generator = torch.Generator().manual_seed(feat)
    col = torch.randint(0, 99, row.shape, generator=generator)
    val = torch.randn(row.shape, generator=generator).to(device, dtype) if values else None
    shape = (len(lengths), 99)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), val, shape=shape)
    x = torch.randn(99, feat, generator=generator).to(device, dtype)
    half = row < 25
    part = fusedmm.CSR.from_coo(
        row[half].to(device), col[half].to(device), None if val is None else val[half.to(device)], shape=shape
    )
    for reduce, algorithm, y, _ in results(adj, x, device):
        if device == "cpu":
            fewer = fusedmm.spmm(part, x, reduce=reduce, algorithm=algorithm)
            assert torch.equal(fewer[:25], y[:25]), (algorithm, reduce)


def test_nan_and_infinity_stay_in_the_rows_that_touch_them(device):
    adj = fusedmm.CSR.from_coo(
        *torch.tensor([[0, 0, 1, 1, 2, 4], [0, 1, 1, 3, 2, 3]], device=device).unbind(),  # NaN comes last, and first
        torch.tensor([1.0, 0.0, 1.0, 0.0, -1.0, 1.0], device=device),
        shape=(5, 5),
    )
    x = torch.ones(5, 3, device=device)
    x[1, 0], x[2, 1], x[4] = float("nan"), float("inf"), float("nan")  # nobody reads row 4
    nan, inf = float("nan"), float("inf")
    expected = torch.tensor([[nan, 1, 1], [nan, 1, 1], [-1, -inf, -1], [0, 0, 0], [1, 1, 1]])
    for algorithm in own_algorithms("spmm", device):
        for reduce in REDUCTIONS:
            y = run_or_decline(fusedmm.spmm, adj, x, reduce=reduce, algorithm=algorithm)
            if y is None:
                continue
            y = y.cpu()
            assert torch.equal(y.isnan(), expected.isnan()), (algorithm, reduce, y)
            assert torch.equal(y.isinf(), expected.isinf()) and y[2, 1] == -inf, (algorithm, reduce, y)
            assert torch.equal(y[3], torch.zeros(3))
            if reduce == "sum":
                torch.testing.assert_close(y, expected, equal_nan=True)


def test_overflow_and_denormals(device):
    """Half precision overflows to infinity only at the end; numbers below the normal ones count."""
    adj = fusedmm.CSR.from_coo(*torch.zeros(2, 3, dtype=torch.int64, device=device).unbind(), shape=(1, 1))
    big = torch.full((1, 1), 60000.0, dtype=torch.float16, device=device)
    assert fusedmm.spmm(adj, big).item() == float("inf")
    assert fusedmm.spmm(adj, big, reduce="mean").item() == 60000.0
    for dtype in (torch.float16, torch.float32, torch.float64, torch.bfloat16):
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        for algorithm in own_algorithms("spmm", device):
            y = run_or_decline(
                fusedmm.spmm, adj, torch.full((1, 1), least, dtype=dtype, device=device), algorithm=algorithm
            )
            assert y is None or y.item() == 3 * least, (algorithm, dtype)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_share_the_gradient_evenly(reduce, dtype, device):
    """As torch.amax does; after a ReLU ties are the rule."""
    sign = 1.0 if reduce == "max" else -1.0
    dense = sign * torch.tensor([[0.0, 0, 0, 0], [2, 2, 2, 1], [3, 1, 3, 3]], dtype=dtype, device=device)
    x = dense.T.contiguous().requires_grad_()  # [4, 3]: one channel per example
    adj = fusedmm.CSR.from_csr(torch.tensor([0, 4], device=device), torch.arange(4, device=device))
    fusedmm.spmm(adj, x, reduce=reduce).backward(torch.tensor([[4.0, 3.0, 6.0]], dtype=dtype, device=device))
    shares = torch.tensor([[1.0, 1, 2], [1, 1, 0], [1, 1, 2], [1, 0, 2]], dtype=dtype, device=device)
    assert torch.equal(x.grad, shares)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_extremes_of_wider_values_keep_their_gradient(reduce, dtype, device):
    """Every algorithm's result is one that the gradient recognises: of values rounded to what sums are kept in."""
    n = 50
    row = torch.arange(n, device=device)
    val = torch.rand(n, dtype=torch.float64, device=device) + 0.5
    adj = fusedmm.CSR.from_coo(row, row, val, shape=(n, n))
    for algorithm in own_algorithms("spmm", device):
        x = torch.rand(n, 8, device=device).to(dtype).requires_grad_()
        y = run_or_decline(fusedmm.spmm, adj, x, reduce=reduce, algorithm=algorithm)
        if y is not None:
            (gx,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(gx, val.to(dtype)[:, None].expand_as(gx), msg=algorithm)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_a_nan_extreme_passes_no_gradient(reduce, device):
    adj = fusedmm.CSR.from_csr(torch.tensor([0, 2], device=device), torch.arange(2, device=device))
    x = torch.tensor([[torch.nan, 3.0], [1.0, 2.0]], device=device, requires_grad=True)
    y = fusedmm.spmm(adj, x, reduce=reduce)
    assert y[0, 0].isnan() and not y[0, 1].isnan()
    (gx,) = torch.autograd.grad(y.sum(), x)
    assert gx[:, 0].tolist() == [0, 0] and gx[:, 1].sum() == 1


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremes_of_half_precision_values(reduce, device):
    """Values and features of float16: the gradient goes where that of the same numbers in float64 goes."""
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 8, (2, 40), generator=g).to(device)
    val, x = (torch.randint(1, 9, size, generator=g).half().to(device) for size in ((40,), (8, 5)))
    found = []
    for dtype in (torch.float16, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (val, x)]
        y = fusedmm.spmm(fusedmm.CSR.from_coo(row, col, leaves[0], (8, 8)), leaves[1], reduce=reduce)
        found.append([t.float() for t in torch.autograd.grad(y.sum(), leaves)])
    for half, double in zip(*found, strict=True):
        torch.testing.assert_close(half, double, rtol=2**-9, atol=0)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_out_takes_the_result_and_nothing_beside_it(dtype, reduce, device):
    """out may be columns of a larger tensor, whatever they held; what lies beside them stays."""
    generator = torch.Generator().manual_seed(1)
    row, col = torch.randint(0, 40, (2, 200), generator=generator)
    val = torch.randn(200, generator=generator).to(device, dtype)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), val, shape=(50, 40))  # ten rows without entries
    for heads, feat in (((), 5), ((), 64), ((3,), 8)):
        x = torch.randn(40, *heads, feat, generator=generator).to(device, dtype)
        large = torch.full((50, *heads, feat + 9), float("nan"), device=device, dtype=dtype)
        out = large[..., 4 : 4 + feat]
        assert fusedmm.spmm(adj, x, reduce=reduce, out=out) is out
        exact, magnitude, n = spmm_oracle(adj, x, reduce)
        assert_within(out, exact, magnitude, n, dtype, f"out {reduce}", f"spmm {reduce}")
        if not heads:  # those that lie apart are not taken as one row of channels
            assert torch.equal(out, fusedmm.spmm(adj, x, reduce=reduce))
        assert large.isnan().sum() == 50 * 9 * (heads or (1,))[0]


def test_out_that_cannot_be_written_to(device):
    adj = fusedmm.CSR.from_coo(*torch.tensor([[0, 1], [1, 0]], device=device), shape=(2, 2))
    x, out = torch.ones(2, 4, device=device), torch.zeros(2, 4, device=device)
    for wrong, error, says in (
        ([0.0], TypeError, "tensor"),
        (out.double(), TypeError, "float64"),
        (out[:1], ValueError, "1 rows"),
        (out[:, :3], ValueError, "not"),
        (out.t().contiguous().t(), ValueError, "last stride"),
        (x, ValueError, "x"),
        (out.clone().requires_grad_(), ValueError, "gradient"),
    ):
        with pytest.raises(error, match=says):
            fusedmm.spmm(adj, x, out=wrong)
    with pytest.raises(ValueError, match="vector"):
        fusedmm.spmm(adj, x[:, 0], out=out[:, 0])
    with torch.no_grad():
        assert torch.equal(fusedmm.spmm(adj, x.clone().requires_grad_(), out=out), x)
