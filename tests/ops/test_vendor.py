"""Every algorithm against the vendors' and float64 on 100 random matrices, as the papers check theirs.

cuSPARSE and cuBLAS are algorithms of the CUDA operators, bound at run time (csrc/cuda/vendor/vendor.h). That
they agree with ours is said here, within a bound wider than ours: their order of addition is theirs.
"""

import random
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from support.bounds import sddmm_oracle, spmm_oracle
from support.fused_oracle import Stages, for_edge, forward
from support.fused_oracle import assert_near as assert_fused_near
from support.generate import run_or_decline
from support.machine import ROOT

import fusedmm

VENDORS = ("cusparse", "cublas")


def vendors(op: str) -> list[str]:
    return [a.name for a in fusedmm.algorithms(op, "cuda") if a.name.partition(":")[0] in VENDORS]


def assert_near(result: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor, what: object) -> None:
    """Within 2^12 roundings of the sum of magnitudes: wrong entries, rows or columns are far outside."""
    unit = torch.finfo(result.dtype).eps
    error = (result.detach().cpu().double() - exact.cpu()).abs()
    smallest = unit * torch.finfo(result.dtype).smallest_normal
    allowed = (2**12 if result.dtype in (torch.float32, torch.float64) else 8) * unit * magnitude.cpu() + smallest
    assert bool((error <= allowed).all()), (what, float((error / allowed).max()))


def matrix(seed: int, dtype: torch.dtype) -> tuple[fusedmm.CSR, int, int | None]:
    """A random matrix, features and heads: from empty to dense, sometimes with empty rows and duplicates."""
    choose = random.Random(seed)
    rows, cols = choose.choice([1, 7, 64, 500]), choose.choice([1, 9, 65, 700])
    nnz = int(rows * cols * choose.choice([0, 0.01, 0.1, 0.5, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    row = (torch.rand(nnz, generator=generator) ** choose.choice([1, 3]) * rows).long()
    col = torch.randint(0, cols, (nnz,), generator=generator)
    heads = choose.choice([None, None, 3])
    shape = (nnz,) if heads is None or choose.random() < 0.5 else (nnz, heads)
    val = None if choose.random() < 0.3 else torch.randn(shape, generator=generator).to(dtype).cuda()
    adj = fusedmm.CSR.from_coo(row.cuda(), col.cuda(), val, shape=(rows, cols))
    return adj, choose.choice([1, 4, 31, 32, 64, 128]), heads


def dense(rows: int, feat: int, heads: int | None, dtype: torch.dtype, seed: int) -> torch.Tensor:
    shape = (rows, feat) if heads is None else (rows, heads, feat)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).cuda()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_hundred_matrices(dtype, cuda):
    taken: set[str] = set()
    for seed in range(100):
        adj, feat, heads = matrix(seed, dtype)
        x = dense(adj.shape[1], feat, heads, dtype, seed)
        a = dense(adj.shape[0], feat, heads, dtype, seed + 1000)
        exact, magnitude, _ = spmm_oracle(adj, x, "sum")
        for algorithm in fusedmm.algorithms("spmm", cuda):
            y = run_or_decline(fusedmm.spmm, adj, x, algorithm=algorithm.name)
            if y is not None:
                assert_near(y, exact, magnitude, (seed, algorithm.name))
                taken.add("spmm " + algorithm.name)
        exact, magnitude, _ = sddmm_oracle(adj, a, x)
        row, col, _ = adj.coo()
        if torch.unique(row * adj.n_cols + col).numel() < adj.nnz:
            continue  # of repeated entries cuSPARSE's SDDMM computes some only
        for algorithm in fusedmm.algorithms("sddmm", cuda):
            e = run_or_decline(fusedmm.sddmm, adj, a, x, algorithm=algorithm.name)
            if e is not None:
                assert_near(e, exact, magnitude, (seed, algorithm.name))
                taken.add("sddmm " + algorithm.name)
    wide = dtype in (torch.float32, torch.float64)
    expected = {f"spmm {n}" for n in vendors("spmm") if wide or n != "cublas"}
    expected |= {f"sddmm {n}" for n in vendors("sddmm")} if wide else set()
    assert expected <= taken, expected - taken


def test_values_of_another_type_and_order(cuda):
    """Values through the edge order, as they are when they want a gradient, and in half precision."""
    cell = torch.randperm(900, device=cuda)[:200]
    row, col = cell // 30, cell % 30
    val = torch.randn(200, device=cuda).half()
    adj = fusedmm.CSR.from_coo(row, col, val.requires_grad_(), shape=(30, 30))
    x, a = torch.randn(30, 12, device=cuda), torch.randn(30, 12, device=cuda)
    for name in vendors("spmm"):
        torch.testing.assert_close(fusedmm.spmm(adj, x, algorithm=name), fusedmm.spmm(adj, x), msg=name)
    for name in vendors("sddmm"):
        torch.testing.assert_close(fusedmm.sddmm(adj, a, x, algorithm=name), fusedmm.sddmm(adj, a, x), msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("edge", ["s*a", "s", "sigmoid(s)", "exp(-s/2)*a", "softplus(s + a)"])
def test_fused_in_two_calls(edge, dtype, cuda):
    """Their SDDMM, our edge function between, their SpMM: with values in another order, per head, and not at all."""
    assert vendors("fused") == list(VENDORS)
    cell = torch.randperm(2500, generator=torch.Generator().manual_seed(1))[:600]  # of repeated ones they take some
    row, col = cell.cuda() // 50, cell.cuda() % 50
    for heads, values in ((None, None), (None, (600,)), (3, (600,)), (3, (600, 3))):
        val = None if values is None else torch.randn(values, device=cuda, dtype=dtype).requires_grad_()
        adj = fusedmm.CSR.from_coo(row, col, val, shape=(50, 50))
        x, y, z = (dense(50, feat, heads, dtype, feat) / 4 for feat in (32, 32, 12))
        adj = for_edge(adj, edge)
        wanted = forward(adj, x, y, z, Stages("dot", edge))
        for name in vendors("fused"):
            out = fusedmm.fused(adj, x, y, z, edge=edge, algorithm=name)
            assert_fused_near(out, *wanted, dtype, f"{name} {heads} {values}")


def test_what_they_decline(cuda):
    """By name, so that a table of benchmarks has a gap and not a wrong figure."""
    index = torch.zeros(2, 1, dtype=torch.int64, device=cuda)
    adj = fusedmm.CSR.from_coo(index[0], index[1], shape=(1, 1))
    for name in vendors("spmm"):
        with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
            fusedmm.spmm(adj, torch.ones(1, 4, device=cuda), reduce="max", algorithm=name)
    for name in vendors("sddmm"):
        half = torch.ones(1, 4, device=cuda, dtype=torch.float16)
        with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
            fusedmm.sddmm(adj, half, half, algorithm=name)
    one = torch.ones(1, 4, device=cuda)
    for name in vendors("fused"):
        for x, options in (
            (half, {}), (one, {"reduce": "max"}), (one, {"reduce": "mean"}), (one, {"score": "l1"}),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
                fusedmm.fused(adj, x, algorithm=name, **options)
    twice = fusedmm.CSR.from_coo(index[0].repeat(2), index[1].repeat(2), shape=(1, 1))  # more entries than places
    for name in ("cusparse:csr_default", "cusparse:csr_alg2"):
        with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
            fusedmm.spmm(twice, one, algorithm=name)
    torch.testing.assert_close(fusedmm.spmm(twice, one), 2 * one)


def header(name: str) -> Path | None:
    """The folder of one of NVIDIA's headers: in the pip packages, else in a toolkit."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    places = [*packages.glob(f"**/include/{name}"), *Path("/usr/local").glob(f"cuda*/**/include/{name}")]
    return places[0].parent if places else None


def test_our_prototypes_are_theirs():
    """Compiled against their headers, which only this test needs: pip install nvidia-cusparse nvidia-cublas."""
    folders = [header(name) for name in ("cusparse.h", "cublas_v2.h", "cuda_runtime_api.h")]
    compiler = shutil.which("g++") or shutil.which("clang++")
    crt = header("crt/host_defines.h")  # some packages of the runtime leave it to the compiler's
    if compiler is None or None in folders or crt is None:
        pytest.skip("there is no C++ compiler, or no headers of cuSPARSE, cuBLAS and CUDA")
    flags = ["-std=c++20", "-fsyntax-only", *(f"-I{folder}" for folder in [*folders, crt.parent])]
    done = subprocess.run([compiler, *flags, ROOT / "tests" / "vendor_check.cpp"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_they_are_listed_and_say_why_they_cannot_run():
    for op in ("spmm", "sddmm", "fused"):
        assert vendors(op), op
        if fusedmm.build_info()["cuda"] is None:
            assert all(a.unavailable for a in fusedmm.algorithms(op, "cuda") if a.name in vendors(op)), op


def test_side_stream(cuda):
    """On the caller's stream, whose work a second stream does not wait for."""
    row, col = torch.randint(0, 50, (2, 400), device=cuda)
    adj = fusedmm.CSR.from_coo(row, col, torch.randn(400, device=cuda), shape=(50, 50))
    x = torch.randn(50, 32, device=cuda)
    expected = fusedmm.spmm(adj, x)
    for name in vendors("spmm"):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.testing.assert_close(fusedmm.spmm(adj, x, algorithm=name), expected, msg=name)
            torch.cuda.current_stream().synchronize()
