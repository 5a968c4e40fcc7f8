"""Sizes beyond 2^31, where an index of 32 bits would wrap: elements of operands and results, and entries. CUDA only."""

import gc

import pytest
import torch

import fusedmm

OVER = 2**31


@pytest.fixture
def room(cuda):
    """Skips where the GPU has less free memory than a test needs, in GiB; frees what it took."""

    def need(gib: float) -> str:
        free = torch.cuda.mem_get_info()[0] / 2**30
        if free < gib:
            pytest.skip(f"needs {gib} GiB of GPU memory, {free:.0f} are free")
        return cuda

    yield need
    gc.collect()
    torch.cuda.empty_cache()


def two_per_row(rows: int, cols: int, device: str) -> fusedmm.CSR:
    """Row i has the columns 7 i and 7 i + 3, modulo their number."""
    first = 7 * torch.arange(rows, device=device) % cols
    idx = torch.stack([first, (first + 3) % cols], 1).flatten()
    return fusedmm.CSR.from_csr(2 * torch.arange(rows + 1, device=device), idx, shape=(rows, cols))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_spmm_with_more_elements_than_int32_counts(reduce, room):
    """In its result, then in its operand: y of one call is the gathered table of the other."""
    device, rows, cols, feat = room(24), 2**20 + 5, 1003, 2100
    assert rows * feat > OVER
    adj = two_per_row(rows, cols, device)
    x = torch.randint(0, 64, (cols, feat), device=device).half()
    y = fusedmm.spmm(adj, x, reduce=reduce)

    def expected(i, table):
        pair = table[7 * i % cols], table[(7 * i + 3) % cols]
        return torch.maximum(*pair) if reduce == "max" else sum(pair) / (2 if reduce == "mean" else 1)

    i = torch.cat([torch.arange(n, n + 500, device=device) for n in (0, OVER // feat - 250, rows - 500)])
    assert torch.equal(y[i], expected(i, x))
    far = fusedmm.CSR.from_csr(torch.arange(i.numel() + 1, device=device), i, shape=(i.numel(), rows))
    assert torch.equal(fusedmm.spmm(far, y, reduce=reduce), y[i])


def test_gradient_of_more_elements_than_int32_counts(room):
    device, rows, feat = room(24), 2**20 + 5, 2100
    i = torch.tensor([0, OVER // feat, rows - 1], device=device)
    adj = fusedmm.CSR.from_csr(torch.arange(4, device=device), i, shape=(3, rows))
    x = torch.ones(rows, feat, dtype=torch.float16, device=device, requires_grad=True)
    gy = torch.randn(3, feat, device=device).half()
    (gx,) = torch.autograd.grad(fusedmm.spmm(adj, x), x, gy)
    assert torch.equal(gx[i], gy) and int(gx.count_nonzero()) == int(gy.count_nonzero())


@pytest.mark.parametrize("op", ["dot", "add", "mul"])
def test_sddmm_with_more_elements_than_int32_counts(op, room):
    """nnz * feat in the results of add and mul, rows * feat in the operand of dot."""
    device, cols, feat = room(32), 1003, 65
    rows = OVER // 2 // feat + 1000 if op != "dot" else OVER // feat + 1000
    adj = two_per_row(rows, cols, device)
    a = (torch.arange(rows, device=device) % 13)[:, None].half().expand(rows, feat).contiguous()
    b = torch.randint(0, 8, (cols, feat), device=device).half()
    assert max(a.numel(), adj.nnz * feat * (op != "dot")) > OVER
    e = fusedmm.sddmm(adj, a, b, op=op)
    exact = {"dot": lambda a, b: (a.float() * b).sum(-1).half(), "add": torch.add, "mul": torch.mul}
    for p in (0, adj.nnz // 2 - 3, adj.nnz - 7):
        i = torch.arange(p, p + 6, device=device) // 2
        left, right = a[i], b[adj.idx[p : p + 6].long()]
        assert torch.equal(e[p : p + 6], exact[op](left, right)), p


@pytest.mark.parametrize("order", ["own", "reversed"])
def test_more_entries_than_int32_counts(order, room):
    """Position p in the caller's order is an int64 there. Row i has 33,000 entries, entry p column p mod 1000."""
    device, rows, cols, per = room(64 if order == "reversed" else 40), 66_000, 1000, 33_000
    nnz = rows * per
    assert nnz > OVER
    ptr = per * torch.arange(rows + 1, device=device)
    idx = torch.arange(cols, dtype=torch.int32, device=device).repeat(nnz // cols)
    none = torch.empty(0, dtype=torch.uint8, device=device)
    eid = none if order == "own" else torch.arange(nnz - 1, -1, -1, device=device)
    adj = fusedmm.CSR.make(ptr, idx, eid, None, cols, True)
    x = torch.randint(-4, 5, (cols, 3), device=device).float()
    y = fusedmm.spmm(adj, x)  # every row has each column 33 times
    assert torch.equal(y, (per // cols * x.sum(0)).expand(rows, 3))
    a = (torch.arange(rows, device=device) % 5).half()[:, None]
    e = fusedmm.sddmm(adj, a, torch.arange(cols, device=device).half()[:, None])
    for p in (0, OVER - 500, nnz - 1000):
        at = torch.arange(p, p + 1000, device=device)
        exact = (at // per % 5 * (at % cols)).half()
        assert torch.equal(e[nnz - 1 - at if order == "reversed" else at], exact), p
    val = torch.zeros(nnz, dtype=torch.float16, device=device)
    last = nnz - 1 if order == "own" else 0  # the caller's name of the last row's last entry
    val[last] = 2
    val.requires_grad_()  # read through eid, not permuted once
    y = fusedmm.spmm(adj.with_values(val), x).detach()
    assert torch.equal(y[-1], 2 * x[-1]) and not y[:-1].any()


@pytest.mark.parametrize("apart", [2**32 + 64, 64])
def test_nodes_farther_apart_than_uint32_counts(apart, room):
    """Additive scores find a node's row with 32 bits where that does: wrapped, the second would be read 64 further."""
    heads, feat = 2, 16
    memory = torch.full((apart + heads * feat,), 3.0, dtype=torch.bfloat16, device=room(12))
    x = memory.as_strided((2, heads, feat), (apart, feat, 1))
    values = torch.randint(-4, 5, (2, heads, feat)).bfloat16()
    x.copy_(values)
    att = torch.randint(-4, 5, (2, 1, heads, feat)).bfloat16()
    for score, a in zip(torch.ops.fusedmm._node_scores(x, *att.to(x.device)), att, strict=True):
        assert torch.equal(score.cpu(), (values * a).sum(-1, keepdim=True))


def test_spmv_with_more_entries_than_int32_counts(room):
    device, cols, each = room(60), 1003, 1025
    rows = OVER // each + 100
    idx = torch.arange(rows * each, device=device).remainder_(cols).to(torch.int32)
    adj = fusedmm.CSR.from_csr(each * torch.arange(rows + 1, device=device), idx, shape=(rows, cols))
    x = torch.randint(-8, 8, (cols,), device=device).float()
    i = torch.cat([torch.arange(n, n + 50, device=device) for n in (0, OVER // each - 25, rows - 50)])
    exact = x[(each * i[:, None] + torch.arange(each, device=device)) % cols].sum(1)
    for algorithm in ("auto", "csr_vector", "csr_segmented", "merge"):
        assert torch.equal(fusedmm.spmv(adj, x, algorithm=algorithm)[i], exact), algorithm
