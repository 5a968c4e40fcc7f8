"""A thread that writes what a call reads: results are unspecified, memory is safe, and the next call is right.

Under AddressSanitizer (tests/sanitize.mk) a write or read outside an argument ends the process.
"""

import contextlib
import threading
import time

import pytest
import torch
from support.generate import own_algorithms, works

import fusedmm
from fusedmm.matrix.normalize import looped_edges

SECONDS = 0.4


@contextlib.contextmanager
def writing(write):
    """Another thread that calls write again and again."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            write()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def again_and_again(call):
    """What was written may make a call fail, by one of the errors that name what is wrong."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ValueError, IndexError):
            call()


def flicker(t, good, bad):
    """A write that takes turns, so that the same call sees both."""
    both = [good.clone(), bad]

    def write():
        both.reverse()
        t.copy_(both[0])

    return write


MAKE = {
    "plain": lambda edges, nodes: fusedmm.CSR.from_edge_index(edges, size=nodes),
    "with loops": lambda edges, nodes: looped_edges(fusedmm.CSR, edges, nodes, nodes),
}


@pytest.mark.parametrize("way", MAKE)
@pytest.mark.parametrize("nodes", [7, 3000])
def test_conversions(nodes, way, device):
    """Coordinates that are inside at one look and outside, or fewer loops, at the next."""
    g = torch.Generator().manual_seed(1)
    good = torch.randint(nodes, (2, 20_000), generator=g).to(device)
    far = good * torch.tensor([[2**31 + 11], [-(2**40)]], device=device)
    edges = good.clone()
    for bad in (far, torch.zeros_like(good), good.flip(1)):
        with writing(flicker(edges, good, bad)):
            again_and_again(lambda: MAKE[way](edges, nodes))
    edges.copy_(good)
    adj, fresh = (fusedmm.CSR.from_edge_index(e, size=nodes) for e in (edges, good.clone()))
    assert torch.equal(adj.idx, fresh.idx) and torch.equal(adj.ptr, fresh.ptr)
    works(device)


def forged(adj):
    """idx, ptr and eid, each with what it never holds."""
    return (
        (adj.idx, torch.full_like(adj.idx, 2**31 - 1)),
        (adj.ptr, adj.ptr.flip(0) * 2**40),
        (adj.eid, torch.full_like(adj.eid, -(2**31))),
    )


@pytest.mark.parametrize("hub", [False, True])
def test_products(hub, device):
    """Every algorithm, of short rows and of one that is too long for a thread's stack."""
    g = torch.Generator().manual_seed(2)
    row, col = torch.randint(300, (2, 20_000), generator=g).to(device)
    row = row.clamp(max=3) if hub else row
    val = torch.randn(20_000, generator=g).to(device).requires_grad_()  # not constant: read through eid
    adj = fusedmm.CSR.from_coo(row, col, val, shape=(300, 300)).cache_transpose()
    x = torch.randn(300, 4, generator=g).to(device)
    q = torch.randn(300, 2, 4, generator=g).to(device)
    calls = [lambda: adj.cache_transpose().t(), lambda: fusedmm.attention(adj, q, q, q)]
    for op, call in {
        "spmm": lambda a: fusedmm.spmm(adj, x, algorithm=a),
        "sddmm": lambda a: fusedmm.sddmm(adj, x, x, algorithm=a),
        "fused": lambda a: fusedmm.fused(adj, x, algorithm=a, edge="sigmoid(s)"),
    }.items():
        names = ["auto", "reference"] if device == "cuda" else own_algorithms(op, device)
        calls += [lambda a=a, call=call: call(a) for a in names]
    calls.append(lambda: torch.autograd.grad(fusedmm.spmm(adj, x, reduce="max").sum(), val))
    calls.append(lambda: torch.ops.fusedmm._transpose(adj.ptr, adj.idx, adj.eid, adj.plan, 300))
    expected = fusedmm.spmm(adj, x)
    for t, bad in forged(adj):
        good = t.clone()
        with writing(flicker(t.data, good, bad)):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                for call in calls:
                    with contextlib.suppress(ValueError, IndexError, RuntimeError):
                        call()
        t.data.copy_(good)
    torch.testing.assert_close(fusedmm.spmm(adj, x), expected)
    works(device)
