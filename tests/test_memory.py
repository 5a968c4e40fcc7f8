"""Tensors that cannot be allocated: a named error at every allocation of every operator, and nothing lost.

A process whose posix_memalign refuses on request (refuse.c) fails allocation 0, 1, 2, ... of a call, once and
from there on, until the call gets by. The library itself allocates nothing: tests/c/test_memory.c.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CHILD = """
import ctypes, sys, torch, fusedmm
torch.set_num_threads(1)
refuse = ctypes.CDLL(None).refuse
asked_for = ctypes.CDLL(None).asked_for

class Heap(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks f k".split()]

def held():
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return heap.uordblks + heap.hblkhd

def check(name, call):
    expected = call()
    refuse(-1, 0)
    call()
    sites = asked_for()
    assert sites > 0, name
    failures = 0
    before = held()
    for turn in range(1 + 200 // sites):
        for site in range(sites):
            for always in (0, 1):
                refuse(site, always)
                try:
                    call()
                except (MemoryError, RuntimeError) as error:
                    text = str(error)
                    assert "memory" in text or "could not allocate" in text, (name, site, always, text)
                    failures += 1
                    del error
                finally:
                    refuse(-1, 0)
    assert failures >= 2 * sites * (1 + 200 // sites) - failures // 8, (name, sites, failures)
    lost = held() - before
    assert lost < 100 * 8192, (name, lost)  # a tensor has 40 KB, and failed some hundred times
    for a, b in zip(expected, call()):
        assert torch.equal(a, b), name
    print(name, sites, failures, lost)

g = torch.Generator().manual_seed(0)
row, col = torch.randint(0, 100, (2, 1000), generator=g)
adj = fusedmm.CSR.from_coo(row, col, shape=(100, 100)).cache_transpose()
val, x = torch.randn(1000, generator=g), torch.randn(100, 4, 25, generator=g)
att = torch.randn(4, 25, generator=g)
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
check("construction", lambda: (fusedmm.CSR.from_coo(row, col, shape=(100, 100)).idx,))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
def test_every_allocation_may_fail(tmp_path):
    library = tmp_path / "refuse.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", HERE / "refuse.c", "-o", library, "-ldl"], check=True)
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 11
