"""sddmm against its definition in float64, within the stated bound: every algorithm."""

import pytest
import torch
from support.bounds import UNIT, accumulator, assert_values_gradient, assert_within, sddmm_oracle, spmm_oracle
from support.generate import Case, cases, own_algorithms, run_or_decline

import fusedmm


def operands(case: Case, device: str):
    adj = case.matrix(device)
    return adj, case.dense(adj.shape[0], device, seed=1), case.dense(adj.shape[1], device, seed=2)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_covering_array(case: Case, device):
    adj, a, b = operands(case, device)
    exact, magnitude, n = sddmm_oracle(adj, a, b)
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj, a, b, algorithm=algorithm)
        if e is None:
            continue
        assert e.is_contiguous() and e.device == adj.device
        assert_within(e, exact, magnitude, n, case.dtype, algorithm, "sddmm dot")
        if case.data == "powers":
            assert torch.equal(e.cpu(), exact.to(case.dtype)), algorithm


@pytest.mark.parametrize("heads", [(), (2,)], ids=["flat", "2 heads"])
@pytest.mark.parametrize("weighted", [True, False], ids=["values", "no values"])
@pytest.mark.parametrize("feat", [512, 516, 1020, 1024, 1028])
def test_rows_of_many_columns(feat, weighted, heads, device):
    """Those that CUDA keeps in registers, and wider ones; edges in no order."""
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 40, (300,), generator=g), torch.randint(0, 30, (300,), generator=g)
    adj = fusedmm.CSR.from_coo(row, col, torch.randn(300, generator=g) if weighted else None, (40, 30)).to(device)
    a, b = (torch.randn(n, *heads, feat, generator=g).to(device) for n in (40, 30))
    exact, magnitude, n = sddmm_oracle(adj, a, b)
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj, a, b, algorithm=algorithm)
        if e is not None:
            assert_within(e, exact, magnitude, n, torch.float32, algorithm, "sddmm dot")


@pytest.mark.parametrize("case", cases(seed=1), ids=str)
def test_the_two_operands_may_lie_differently(case: Case, device):
    """a in one layout, b in another: each has its own strides."""
    adj, a, _ = operands(case, device)
    b = case.dense(adj.shape[1], device, seed=2).contiguous()
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj, a, b, algorithm=algorithm)
        swapped = run_or_decline(fusedmm.sddmm, adj.t(), b, a, algorithm=algorithm)
        if e is not None and swapped is not None:
            assert_within(e, *sddmm_oracle(adj, a, b), case.dtype, algorithm)
            assert_within(swapped, *sddmm_oracle(adj, a, b), case.dtype, f"{algorithm}, transposed")


@pytest.mark.parametrize("case", [c for c in cases() if c.feat], ids=str)
def test_gradients_over_the_covering_array(case: Case, device):
    """ga and gb are SpMMs with ge * val, rounded once to its dtype before; gval is ge times an SDDMM."""
    adj, a, b = operands(case, device)
    a, b, free = a.requires_grad_(), b.requires_grad_(), adj.val is None
    val = None if free else adj.val.requires_grad_()
    e = fusedmm.sddmm(adj.with_values(val), a, b)
    ge = case._fill(tuple(e.shape), 30).to(case.dtype).to(device)
    ga, gb, *rest = torch.autograd.grad(e, [a, b] if free else [a, b, val], ge)
    weight = ge.double()
    if not free:
        weight = weight * (val if val.dim() == ge.dim() else val[:, None]).detach().double()
    weighted = adj.with_values(weight)
    for gradient, matrix, operand in ((ga, weighted, b), (gb, weighted.t(), a)):
        exact, magnitude, n = spmm_oracle(matrix, operand, "sum")
        unit = UNIT[accumulator(case.dtype)]
        rounded = magnitude * (1 + UNIT[case.dtype] / (4 * unit * n.clamp(min=1).sqrt()))
        assert_within(gradient, exact, rounded, n, case.dtype)
    if not free:
        per_head = sddmm_oracle(adj.pattern().with_values(ge.detach()), a, b)
        assert_values_gradient(rest[0], val, *per_head, case.dtype)


def test_nan_and_infinity_stay_in_the_entries_that_touch_them(device):
    adj = fusedmm.CSR.from_coo(*torch.tensor([[0, 0, 1, 2], [0, 1, 0, 2]], device=device).unbind(), shape=(4, 4))
    a, b = torch.ones(4, 33, device=device), torch.ones(4, 33, device=device)
    a[1, 7], b[2, 32], a[3], b[3] = float("nan"), float("inf"), float("nan"), float("nan")
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj, a, b, algorithm=algorithm)
        if e is not None:
            expected = torch.tensor([33.0, 33.0, float("nan"), float("inf")])
            torch.testing.assert_close(e.cpu(), expected, equal_nan=True, rtol=0, atol=0)


def test_a_long_dot_product_of_equal_terms(device):
    """One sequential sum in float32 would be outside: no accumulator adds more than 512 in a row."""
    n = 200_000
    adj = fusedmm.CSR.from_coo(*torch.zeros(2, 1, dtype=torch.int64, device=device).unbind(), shape=(1, 1))
    a, b = torch.full((1, n), 0.1, device=device), torch.full((1, n), 0.3, device=device)
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj, a, b, algorithm=algorithm)
        if e is not None:
            assert_within(e, *sddmm_oracle(adj, a, b), torch.float32, algorithm, "sddmm dot")


def test_it_is_the_gradient_of_spmm(device):
    """The identity that the package stands on: d<gy, A x>/d val = sddmm(pattern of A, gy, x)."""
    case = Case("power_law", 33, 3, torch.float64, "odd", "head", True, "random")
    adj, gy, x = operands(case, device)
    val = adj.val.requires_grad_()
    (fusedmm.spmm(adj.with_values(val), x) * gy).sum().backward()
    assert torch.equal(val.grad, fusedmm.sddmm(adj.pattern(), gy, x))
