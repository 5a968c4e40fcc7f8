"""Tensors that cannot be allocated: a named error at every allocation of every operator, and nothing lost;
and memory that stays flat over thousands of calls.

A process whose posix_memalign and cudaMalloc refuse on request (support/refuse.c) fails allocation 0, 1, 2, ... of a
call, once and from there on, until the call gets by. The library itself allocates nothing: tests/c/test_memory.c.
"""

import ctypes
import gc
import os
import subprocess
import sys

import pytest
import torch
from support.machine import ROOT

import fusedmm

CALLS = 1_000  # in a round, of which there are four
CHILD = """
import ctypes, gc, re, sys, torch, fusedmm
gc.freeze()
torch.set_num_threads(1)
device = sys.argv[1]
process = ctypes.CDLL(None)
refuse, asked_for = process.refuse, process.asked_for
if device == "cuda":
    with open("/proc/self/maps") as maps:
        runtime = ctypes.CDLL(next(line.split()[-1] for line in maps if "/libcudart" in line))
    process.refuse_cuda(*(ctypes.cast(f, ctypes.c_void_p) for f in (runtime.cudaMalloc, runtime.cudaFree)))

LIMIT = {"cpu": 16_384, "cuda": 0}[device]  # bytes, or blocks; the tensors below have 16,000 bytes and more

class Heap(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks f k".split()]

def held():
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return process.cuda_blocks_held()
    process.mallinfo2.restype = Heap
    heap = process.mallinfo2()
    return heap.uordblks + heap.hblkhd

def lost(name, call):
    '''The least that a round of failures left behind: a leak is in every round, first uses and caches are not.'''
    expected = call()
    refuse(-1, 0)
    call()
    sites = asked_for()
    assert sites > 0, name
    failures, turns, growth = 0, 1 + 5 // sites, []
    for _ in range(3):
        before = held()
        for site in list(range(sites)) * turns:
            for always in (0, 1):
                refuse(site, always)
                try:
                    call()
                except (MemoryError, RuntimeError) as error:
                    text = str(error)
                    assert "memory" in text or "could not allocate" in text, (name, site, always, text)
                    if device == "cpu" or text.startswith("fusedmm"):  # torch's errors of CUDA may name no size
                        assert re.search(r"\\d (bytes|elements|entries)", text), (name, site, always, text)
                    failures += 1
                    del error
                finally:
                    refuse(-1, 0)
        growth.append(held() - before)
    assert failures >= 0.85 * len(growth) * 2 * sites * turns, (name, sites, failures)
    for a, b in zip(expected, call()):
        assert torch.equal(a, b), name
    print(name, sites, failures, growth)
    return min(growth)

def check(name, call):
    growth = lost(name, call)
    assert growth <= LIMIT, (name, growth)

def gets_by(call):
    '''Tells of how many single allocations the failure changes nothing.'''
    expected = call()
    refuse(-1, 0)
    call()
    count = 0
    for site in range(asked_for()):
        refuse(site, 0)
        try:
            count += torch.equal(call()[0], expected[0])
        except (MemoryError, RuntimeError):
            pass
        finally:
            refuse(-1, 0)
    return count

torch.manual_seed(0)
torch.set_default_device(device)
row, col = torch.randint(0, 100, (2, 1000))
adj = fusedmm.CSR.from_coo(row, col, shape=(100, 100)).cache_transpose()
val, x = torch.randn(1000), torch.randn(100, 4, 25)
att = torch.randn(4, 25)
strided = torch.stack([x, x], -1)[..., 0]

def gradients(run, *leaves):
    def call():
        given = [t.detach().clone().requires_grad_() for t in leaves]
        out = run(*given)
        return (out.detach(), *torch.autograd.grad(out.sum(), given))
    return call

check("spmm", lambda: (fusedmm.spmm(adj.with_values(val), x),))
check("spmm of a copy", lambda: (fusedmm.spmm(adj, strided),))
check("sddmm", lambda: (fusedmm.sddmm(adj, x, x),))
check("attention", lambda: (fusedmm.attention(adj, x, x, x, score="gatv2", att=att),))
check("fused", lambda: (fusedmm.fused(adj, x),))
check("spmm's gradient", gradients(lambda v, t: fusedmm.spmm(adj.with_values(v), t), val, x))
check("max's gradient", gradients(lambda v, t: fusedmm.spmm(adj.with_values(v), t, reduce="max"), val, x))
check("sddmm's gradient", gradients(lambda q, k: fusedmm.sddmm(adj, q, k), x, x))
check("attention's gradient", gradients(lambda q, a: fusedmm.attention(adj, q, x, x, score="gatv2", att=a), x, att))
check("fused's gradient", gradients(lambda q, k: fusedmm.fused(adj, q, k), x, x))
plan = fusedmm.spgemm_plan(adj, adj).cache_transpose()
check("spgemm", lambda: (fusedmm.spgemm(adj, adj).val,))
if device == "cpu":
    assert gets_by(lambda: (fusedmm.spgemm(adj, adj).val,)) == 1  # its stage
check("spgemm's gradient", gradients(lambda u, v: fusedmm.spgemm(adj.with_values(u), adj.with_values(v)).val, val, val))
check("a plan's gradient", gradients(lambda u, v: plan(u, v).val, val, val))
check("a masked gradient", gradients(lambda u: fusedmm.spgemm(adj.with_values(u), adj, mask=adj).val, val))
check("R A P", gradients(lambda u: fusedmm.triple_product(adj, adj.with_values(u), adj, order="left").val, val))
check("construction", lambda: (fusedmm.CSR.from_coo(row, col, shape=(100, 100)).idx,))

kept = []

def leak():
    kept.append(torch.zeros(5000))
    out = torch.zeros(5000)
    kept.pop()
    return (out,)

assert lost("what keeps its tensor when it fails", leak) > LIMIT
"""


def test_every_allocation_may_fail(tmp_path, device):
    source, library = ROOT / "tests" / "support" / "refuse.c", tmp_path / "refuse.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]).lstrip(os.pathsep)
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [sys.executable, "-c", CHILD, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 17


class Heap(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def held(device: str) -> tuple[int, ...]:
    """Live bytes of the heap; on CUDA bytes and blocks of torch's pool."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_stats()["active.all.current"]
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return (heap.uordblks + heap.hblkhd,)


def least_growth(call, device: str, rounds: int = 4, calls: int = CALLS) -> tuple[int, ...]:
    """The least of what a round of calls left behind: a leak is in every round, first uses and caches are not."""
    growth = []
    for _ in range(rounds):
        before = held(device)
        for _ in range(calls):
            call()
        growth.append([after - b for b, after in zip(before, held(device), strict=True)])
    return tuple(map(min, zip(*growth, strict=True)))


def calls(device: str):
    """What is called over and over: name -> function."""
    edge_index = torch.randint(0, 20, (2, 60), device=device)
    adj = fusedmm.CSR.from_edge_index(edge_index, size=20).cache_transpose()
    val, x = (torch.randn(*size, device=device, requires_grad=True) for size in ((60, 2), (20, 2, 4)))

    def spmm(reduce):
        fusedmm.spmm(adj.with_values(val), x, reduce=reduce).sum().backward()
        x.grad = val.grad = None

    def through(f):
        torch.autograd.grad(f().sum(), x)

    def fails():
        with pytest.raises(ValueError):
            fusedmm.spmm(adj, x[1:])

    return {
        "spmm": lambda: spmm("sum"),
        "max": lambda: spmm("max"),
        "sddmm": lambda: through(lambda: fusedmm.sddmm(adj, x, x)),
        "fused": lambda: through(lambda: fusedmm.fused(adj, x)),
        "attention": lambda: through(lambda: fusedmm.attention(adj, x, x, x, dropout=0.5)),
        "fresh edges": lambda: fusedmm.as_csr(edge_index.clone()).cache_transpose(),
        "a failure": fails,
    }


@pytest.mark.parametrize("name", ["spmm", "max", "sddmm", "fused", "attention", "fresh edges", "a failure"])
def test_memory_is_flat_over_thousands_of_calls(name, device):
    call = calls(device)[name]
    call()
    growth = least_growth(call, device)
    assert growth[0] < (CALLS * 16 if device == "cpu" else 1) and max(growth[1:], default=0) <= 0, growth


def test_a_tensor_kept_by_every_call_is_seen(device):
    kept = []
    growth = least_growth(lambda: kept.append(torch.zeros(1, device=device)), device)
    assert growth[0] > CALLS * 16 and min(growth[1:], default=1) > 0
