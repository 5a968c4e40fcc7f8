"""SpMM and SDDMM against their definitions in float64, with first and second derivatives."""

from itertools import product

import pytest
import torch
from support.generate import small, tiny

import fusedmm
from fusedmm import reference
from fusedmm.ops.spmm_sddmm import as_channels


@pytest.mark.parametrize("heads", [None, 1, 3])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_spmm_gradients(heads, reduce, device):
    adj = tiny(device, heads=heads)
    x = torch.randn(5, *([] if heads is None else [heads]), 3, dtype=torch.float64, device=device, requires_grad=True)
    val = adj.val.clone().requires_grad_()
    torch.testing.assert_close(fusedmm.spmm(adj, x, reduce=reduce), reference.spmm(adj, x, reduce))

    def f(val, x):
        return fusedmm.spmm(adj.with_values(val), x, reduce=reduce)

    assert torch.autograd.gradcheck(f, (val, x)) and torch.autograd.gradgradcheck(f, (val, x))


@pytest.mark.parametrize("heads", [None, 1, 3])
def test_sddmm_gradients(heads, device):
    adj = tiny(device, heads=heads)
    size = [] if heads is None else [heads]
    a = torch.randn(4, *size, 3, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(5, *size, 3, dtype=torch.float64, device=device, requires_grad=True)
    val = adj.val.clone().requires_grad_()
    torch.testing.assert_close(fusedmm.sddmm(adj, a, b), reference.sddmm(adj, a, b))

    def f(val, a, b):
        return fusedmm.sddmm(adj.with_values(val), a, b)

    assert torch.autograd.gradcheck(f, (val, a, b)) and torch.autograd.gradgradcheck(f, (val, a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("feat", [8, 16, 17, 64, 144])
def test_gradients_of_an_extreme_at_widths_of_vectors(feat, reduce, dtype, device):
    """Small integers, of which several often reach the extreme of a row, in rows of 0 to 11 entries."""
    generator = torch.Generator().manual_seed(feat)
    counts = torch.arange(36) % 12
    row = torch.arange(36).repeat_interleave(counts)
    col = torch.cat([torch.randperm(20, generator=generator)[:n] for n in counts.tolist()])
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(36, 20))
    x = torch.randint(-8, 9, (20, feat), generator=generator).to(device, dtype)
    val = (2.0 ** (2 * torch.randint(0, 2, (adj.nnz,), generator=generator))).to(device, dtype)
    gout = torch.randint(0, 2, (36, feat), generator=generator).to(device, dtype)

    def gradients(f, *operands):
        operands = [t.clone().requires_grad_() for t in operands]
        return torch.autograd.grad(f(*operands), operands, gout.to(operands[0].dtype))

    def dense(val, x):
        rows = (val[:, None] * x[col.to(device)]).split(counts.tolist())
        return torch.stack([getattr(torch, f"a{reduce}")(r, 0) if len(r) else x.new_zeros(feat) for r in rows])

    found = gradients(lambda val, x: fusedmm.spmm(adj.with_values(val), x, reduce=reduce), val, x)
    exact = gradients(dense, val.double(), x.double())
    unit = torch.finfo(dtype).eps
    for got, right in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=0, atol=4096 * unit)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_shares_of_long_rows(reduce, dtype, device):
    """70,000 entries: more than float16 can say, and no count that bfloat16 rounds."""
    n = 70_000
    row = torch.zeros(n, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(row, torch.arange(n, device=device), shape=(1, n)).cache_transpose()
    expected = torch.tensor(1000 / n).to(dtype).item()
    gy = torch.full((1, 2), 1000.0, dtype=dtype, device=device)

    def gradient(f):
        x = torch.ones(n, 2, dtype=dtype, device=device, requires_grad=True)
        return torch.autograd.grad(f(x), x, gy)[0].unique().tolist()

    assert gradient(lambda x: fusedmm.spmm(adj, x, reduce=reduce)) == [expected]
    if reduce == "mean":
        halves = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
        assert gradient(lambda x: torch.ops.fusedmm.spmm(*halves, adj.none, x, 1, 0)) == [expected]
        ones = torch.ones(1, 1, dtype=dtype, device=device)
        y = torch.ones(n, 1, dtype=dtype, device=device)
        assert gradient(lambda z: fusedmm.fused(adj, ones, y, z, edge="1", reduce="mean")) == [expected]


def one_entry(shape, dtype, device):
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    val = torch.ones(shape, dtype=dtype, device=device, requires_grad=True)
    return fusedmm.CSR.from_coo(zero, zero, shape=(1, 1)).cache_transpose(), val


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "call", ["spmm", "mean", "max", "registered spmm", "sddmm", "registered sddmm", "fused", "fused mean", "attention"]
)
def test_heads_whose_products_cancel_out(call, dtype, shape, device):
    """Each of them leaves float16; their sum, the gradient of a value that serves both, is 4096."""
    adj, val = one_entry(shape, dtype, device)
    halves = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
    low = torch.float16 if dtype == torch.float32 else dtype
    ones = torch.ones(1, 2, 1, dtype=low, device=device)
    x, up = 1024 * ones, torch.tensor([[[129.0], [-125.0]]], dtype=low, device=device)
    if call == "registered spmm":
        y = torch.ops.fusedmm.spmm(*halves, val, x, 0, 0)
    elif call == "registered sddmm":
        y, up = torch.ops.fusedmm.sddmm(*halves, val, x, ones, 0), up[..., 0]
    elif call == "sddmm":
        y, up = fusedmm.sddmm(adj.with_values(val), x, ones), up[..., 0]
    elif call == "attention":
        weight = val if val.dim() == 1 else val[:, 0]
        y = fusedmm.attention(adj, ones, ones, x, edge_weight=weight)
    elif call.startswith("fused"):
        y = fusedmm.fused(adj.with_values(val), ones, ones, x, reduce=call[6:] or "sum")
    else:
        y = fusedmm.spmm(adj.with_values(val), x, reduce=call if call in ("mean", "max") else "sum")
    y.backward(up)
    assert val.grad.flatten().tolist() == [4096.0]


def test_heads_become_channels_without_a_copy():
    for a in (torch.ones(5, 3, 4), torch.ones(5, 4, 3).mT, torch.ones(1).expand(5, 3, 4), torch.ones(5, 3, 9)[..., :4]):
        contiguous = a.stride(1) == 4 * a.stride(2) or a.stride(2) == 3
        assert (as_channels(a, a)[0].data_ptr() == a.data_ptr()) == contiguous
    a, b = torch.rand(5, 3, 4), torch.rand(5, 4, 3).mT  # of two kinds: the channels still meet
    torch.testing.assert_close((a * b).sum((1, 2)), torch.linalg.vecdot(*as_channels(a, b)))


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(
    "call, learns",
    [*product(("sum", "mean"), ("val", "b")), *product(("sddmm",), ("val", "a", "b"))],
)
def test_backward_keeps_only_what_it_reads(call, learns, registered, device):
    """Each result is linear in each operand: the only one that wants a gradient may be written to before it."""
    adj = small(device=device, dtype=torch.float64).cache_transpose()
    halves = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
    given = {"val": adj.val, "a": torch.randn(12, 3, device=device), "b": torch.randn(15, 3, device=device)}
    given = {name: t.double() for name, t in given.items()}

    def f(val, a, b):
        if call == "sddmm":
            with_val = adj.with_values(val)
            return torch.ops.fusedmm.sddmm(*halves, val, a, b, 0) if registered else fusedmm.sddmm(with_val, a, b)
        if registered:
            return torch.ops.fusedmm.spmm(*halves, val, b, ["sum", "mean"].index(call), 0)
        return fusedmm.spmm(adj.with_values(val), b, reduce=call)

    leaf, found = given[learns].requires_grad_(), []
    for write in (False, True):
        operand = leaf * 1
        y = f(**{**given, learns: operand})
        if write:
            with torch.no_grad():
                operand.add_(1)
        found.append(torch.autograd.grad(y.square().sum(), leaf)[0])
    torch.testing.assert_close(*found)
