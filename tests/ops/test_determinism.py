"""Bitwise equal results: over repeats, threads, callers and processes; and nothing of old memory in them."""

import os
import signal
import threading
import time

import pytest
import torch
from support.generate import own_algorithms, run_or_decline

import fusedmm

REPEATS = 100


def operands(device, dtype=torch.float32, heads=2):
    """A power-law graph with a row of 5,000 entries: split rows, many chunks, odd features."""
    g = torch.Generator().manual_seed(0)
    row = (3000 * torch.rand(30_000, generator=g) ** 4).long()
    row[:5000] = 11
    col = (2000 * torch.rand(30_000, generator=g) ** 2).long()
    val = torch.randn(30_000, heads, generator=g).to(dtype)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), val.to(device), shape=(3000, 2000))
    a, x = (torch.randn(n, heads, 33, generator=g).to(dtype).to(device) for n in (3000, 2000))
    return adj, a, x


def everything(adj, a, x, spmm="auto", sddmm="auto", reduce="sum"):
    """Forward and backward of both operators: y, gx, gval, e, ga, gb, gval."""
    val, x, a = adj.val.detach().requires_grad_(), x.detach().requires_grad_(), a.detach().requires_grad_()
    y = fusedmm.spmm(adj.with_values(val), x, reduce=reduce, algorithm=spmm)
    e = fusedmm.sddmm(adj.with_values(val), a, x, algorithm=sddmm)
    gy, ge = torch.ones_like(y) / 3, torch.ones_like(e) / 7
    return [t.detach() for t in (y, e, *torch.autograd.grad(y, (x, val), gy), *torch.autograd.grad(e, (a, x, val), ge))]


def assert_equal(first, second, note=""):
    for k, (one, other) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(one, other), (note, k, int((one != other).sum()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_repeats(reduce, dtype, device):
    adj, a, x = operands(device, dtype)
    first = everything(adj, a, x, reduce=reduce)
    for _ in range(REPEATS if reduce == "sum" and dtype == torch.float32 else REPEATS // 10):
        keep = torch.full((torch.randint(1, 10_000, ()),), float("nan"), device=device)  # other memory each time
        assert_equal(first, everything(adj, a, x, reduce=reduce), reduce)
        del keep


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_every_algorithm_keeps_its_word(op, device):
    """Those that the registry calls deterministic repeat their bits."""
    adj, a, x = operands(device)
    for algorithm in fusedmm.algorithms(op, device):
        given = (adj, x) if op == "spmm" else (adj, a, x)
        results = [run_or_decline(getattr(fusedmm, op), *given, algorithm=algorithm.name) for _ in range(4)]
        if results[0] is not None and algorithm.deterministic:
            for other in results[1:]:
                assert torch.equal(results[0], other), algorithm.name


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_threads_do_not_matter(reduce, threads):
    """CPU only: one thread, two, and more than there are cores."""
    adj, a, x = operands("cpu")
    threads(1)
    first = everything(adj, a, x, reduce=reduce)
    for count in (2, 5):
        threads(count)
        assert_equal(first, everything(adj, a, x, reduce=reduce), count)


def test_threads_do_not_matter_to_few_columns(threads):
    adj, _, x = operands("cpu", heads=1)
    for feat in range(1, 9):
        few = x[..., :feat].contiguous()
        threads(1)
        first = fusedmm.spmm(adj, few)
        for count in (2, 5):
            threads(count)
            assert torch.equal(first, fusedmm.spmm(adj, few)), (feat, count)


def test_a_fresh_matrix_gives_the_same_bits(device):
    """The transpose and the plan are made in one way only."""
    assert_equal(everything(*operands(device)), everything(*operands(device)))


def test_eight_callers_share_one_matrix(device):
    """They race for its transpose; all of them get the same bits, and one transpose is made."""
    expected = everything(*operands(device))
    adj, a, x = operands(device)
    results: list = [None] * 8
    start = threading.Barrier(8)

    def work(k):
        start.wait()
        for _ in range(3):
            results[k] = everything(adj, a, x)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(timeout=120)
        assert not w.is_alive(), "a caller hangs"
    for result in results:
        assert_equal(expected, result)
    assert adj.t().ptr is adj.with_values(None).t().ptr


def test_a_forked_child_does_not_hang():
    """CPU only: the parent's threads are gone in the child, where we must not wait for them."""
    adj, a, x = operands("cpu")
    before = [t.numpy().tobytes() for t in everything(adj, a, x)[:2]]  # the parent has used its threads
    child = os.fork()
    if child == 0:
        status = 1
        try:
            y = fusedmm.spmm(adj, x)
            e = fusedmm.sddmm(adj, a, x)
            same = [y.numpy().tobytes(), e.numpy().tobytes()] == before  # torch.equal would hang: torch's threads
            status = 0 if same else 2
        finally:
            os._exit(status)  # without pytest's end in the child
    deadline = time.monotonic() + 30
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(status) == 0, "1: an exception in the child, 2: another result"


def poison(device, size):
    """Leaves NaN in the memory that the next tensor of this size gets."""
    for _ in range(4):
        torch.full(size, float("nan"), device=device)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_old_memory_does_not_leak(reduce, device):
    """Outputs are written, not added to: rows without entries, features without a full vector."""
    for rows, feat in ((400, 1), (400, 33), (5, 1000), (70_000, 2)):
        adj = fusedmm.CSR.from_coo(*torch.tensor([[rows - 1], [0]], device=device).unbind(), shape=(rows, 3))
        x = torch.ones(3, feat, device=device)
        for algorithm in own_algorithms("spmm", device):
            poison(device, (rows, feat))
            y = run_or_decline(fusedmm.spmm, adj, x, reduce=reduce, algorithm=algorithm)
            if y is not None:
                assert not y[:-1].any() and bool((y[-1] == 1).all()), algorithm
        poison(device, (3, feat))
        x.requires_grad_()
        fusedmm.spmm(adj, x, reduce=reduce).sum().backward()
        assert not x.grad[1:].any() and bool((x.grad[0] == 1).all())


def test_products_without_features_are_zero(device):
    """A sum of nothing is 0, whatever stood in the memory."""
    adj, a, x = operands(device)
    for algorithm in own_algorithms("sddmm", device):
        poison(device, (30_000, 2))
        e = run_or_decline(fusedmm.sddmm, adj, a[..., :0], x[..., :0], algorithm=algorithm)
        assert e is None or (not e.any() and e.shape == (30_000, 2)), algorithm


@pytest.mark.parametrize(
    "form", [{"message": "add", "activation": "relu"}, {"score": "sqdist", "edge": "exp(-s)"}], ids=str
)
def test_gradients_of_fused_maxima_have_the_same_bits(form, device):
    """Those of operands that are gathered with torch; with as many threads as there are."""
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(2000, (2, 100_000), generator=g).to(device)
    adj = fusedmm.CSR.from_coo(row, col, shape=(2000, 2000))
    x, up = torch.randn(2, 2000, 16, generator=g).to(device)
    x.requires_grad_()
    found = [torch.autograd.grad(fusedmm.fused(adj, x, reduce="max", **form), x, up)[0] for _ in range(4)]
    assert all(torch.equal(found[0], again) for again in found[1:])
