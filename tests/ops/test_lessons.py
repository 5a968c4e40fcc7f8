"""The published algorithms of csrc/lessons: they build, register, and pass the tests of the operators.

They are a plug-in, and what a plug-in registers stays: so they are loaded in processes of their own.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.bounds import assert_within
from support.machine import ROOT, missing

SOURCES = sorted((ROOT / "csrc" / "lessons").glob("*_*.cu"))
SPMM = """thread_per_output:32 thread_per_output:64 thread_per_output:128 thread_per_output:256
    shared:32 shared:128 shared:256 shared_swapped:32 shared_swapped:128 shared_swapped:256
    row_split:4 row_split:16 multi_spmv_scalar multi_spmv_vector crc warp_merge:2 warp_merge:4 warp_merge:8
    row_vector merge_path gather_wall:1x4 gather_wall:1x8 gather_wall:2x2 gather_wall:4x2""".split()
SDDMM = """edge_search:64 edge_search:128 edge_search:256 edge_shared dense_grid row_blocks padded_rows
    row_vector:4 row_vector:8 row_vector:16 row_vector:32 row_vector:auto dynamic""".split()
FUSED = "blocks_atomic:32 blocks_atomic:64 blocks_atomic:128 blocks_atomic:256 row_vector".split()


@pytest.fixture(scope="session")
def lessons() -> Path:
    """The plug-in: $FUSEDMM_LESSONS if it is built elsewhere, else what `make lessons` makes."""
    given = os.environ.get("FUSEDMM_LESSONS")
    if given:
        return Path(given).resolve()
    if shutil.which("nvcc") is None or shutil.which("make") is None:
        missing("there is no nvcc to build the lessons with", "FUSEDMM_REQUIRE_CUDA")
    cores = len(os.sched_getaffinity(0))
    subprocess.run(["make", "-s", f"-j{max(2, cores // 2)}", "lessons"], cwd=ROOT, check=True)
    return ROOT / "build" / "lessons" / "lessons.so"


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow  # without a GPU too they are compiled
def test_they_register_and_those_with_atomics_say_so(lessons):
    code = "import fusedmm, sys\nfor a in fusedmm.load_algorithms(sys.argv[1]): print(a.name, a.deterministic)"
    found = [line.split() for line in run("-c", code, str(lessons)).splitlines()]
    assert [name for name, _ in found] == SPMM + SDDMM + FUSED
    for name, deterministic in found:
        assert (deterministic == "False") == name.startswith(("blocks_atomic", "gather_wall")), name


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_each_says_what_it_teaches(source):
    """One file, one lesson: what it is, what it teaches, what to expect, whose it is."""
    text = source.read_text()
    head = text[: text.index("*/")]
    for part in ("Teaches: ", "xpected", "Source: "):
        assert part in head, part
    for name in re.findall(r'lesson\("([a-z_]+)', text):
        assert name in head, name
    assert len(text.splitlines()) <= 210
    assert re.search(rf"X\(\w+, {source.stem}\)", (source.parent / "lessons.cu").read_text())


@pytest.mark.parametrize(
    "tests",
    [
        ["tests/ops/test_spmm.py::test_covering_array", "tests/ops/test_sddmm.py::test_covering_array"],
        ["tests/ops/test_spmm.py", "tests/ops/test_sddmm.py", "-k", "cuda and (million or nan or denormals)"],
        ["tests/ops/test_fused.py", "-k", "cuda and not grad and not bfloat16 and not float16"],
        [
            f"tests/ops/test_{name}.py::test_every_algorithm_keeps_its_word"
            for name in ("determinism", "fused_contract")
        ],
        ["tests/ops/test_vendor.py::test_a_hundred_matrices"],
    ],
    ids=["covering_array", "numbers", "fused", "determinism", "vendors"],
)
def test_they_pass_the_tests_of_the_operators(tests, lessons, cuda):
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, FUSEDMM_PLUGINS=str(lessons))
    assert re.search(r"\b[1-9]\d* passed", out), out


def test_the_wall_is_the_plain_sum(lessons, cuda):
    """Hubs in pieces, short rows in bundles, empty rows, and every layout of lanes."""
    code = f"""
import sys, torch, fusedmm
sys.path.insert(0, "tests")
from {assert_within.__module__} import assert_within
walls = [a.name for a in fusedmm.load_algorithms(sys.argv[1]) if a.name.startswith("gather_wall")]
row, col = torch.randint(5000, (200_000,), device="cuda"), torch.randint(3000, (200_000,), device="cuda")
row[:50_000], row[50_000:60_000] = 7, 4999
row[row % 10 == 3] = 8
adj = fusedmm.CSR.from_coo(row, col, shape=(5000, 3000))
degree = adj.degree().cpu()[:, None]
for dtype in (torch.float32, torch.float64):
    for feat in (4, 8, 16, 32, 64, 96, 128, 256, 512, 1028):
        x = torch.randn(3000, feat, device="cuda", dtype=dtype)
        terms, zero = x.double()[col], x.new_zeros(5000, feat, dtype=torch.float64)
        exact, size = (zero.index_add(0, row, t).cpu() for t in (terms, terms.abs()))
        for name in walls:
            y = fusedmm.spmm(adj, x, algorithm=name)
            assert_within(y, exact, size, degree, dtype, name)
            print(name)
"""
    assert len(set(run("-c", code, str(lessons)).split())) == 4


@pytest.mark.slow  # without a GPU too it is compiled
def test_the_wall_of_tiles_runs_in_every_shape():
    """It sums nothing, so there is no product to compare with: it repeats itself, and leaves values to `tiles`."""
    if shutil.which("nvcc") is None or shutil.which("make") is None:
        missing("there is no nvcc to build the wall with", "FUSEDMM_REQUIRE_CUDA")
    subprocess.run(["make", "-s", "build/benchmarks/tiles_wall.so"], cwd=ROOT, check=True)
    code = """
import sys, torch, fusedmm
(wall,) = fusedmm.load_algorithms(sys.argv[1])
print(wall.name)
for rows in (1, 60, 3000, 4267, 9000) if torch.cuda.is_available() else ():
    adj = fusedmm.CSR.from_dense((torch.rand(rows, 1100, device="cuda") < 0.2).float()).pattern()
    for feat in (4, 32, 64, 128, 264):
        x = torch.randn(1100, feat, device="cuda")
        once, again = (fusedmm.spmm(adj, x, algorithm=wall.name)[:, :32].view(torch.int32) for _ in range(2))
        assert torch.equal(once, again) and once[:, 0].any()
    try:
        fusedmm.spmm(adj.with_values(torch.ones(adj.nnz, device="cuda")), x, algorithm=wall.name)
    except ValueError:
        print("declined")
"""
    found = run("-c", code, str(ROOT / "build" / "benchmarks" / "tiles_wall.so")).split()
    assert found == ["gather_wall:tiles"] + ["declined"] * (5 if torch.cuda.is_available() else 0)


def test_the_wall_of_a_cpu_is_the_plain_sum(tmp_path):
    """Empty rows, a hub, the last entries, which fetch for none behind them, and one thread or two."""
    source, plugin = ROOT / "benchmarks" / "gather_wall.c", tmp_path / "gather_wall.so"
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{ROOT / 'csrc' / 'include'}"]
    subprocess.run([str(compiler), *flags, str(source), "-o", str(plugin)], check=True)
    code = f"""
import sys, torch, fusedmm
sys.path.insert(0, "tests")
from {assert_within.__module__} import assert_within
walls = [a.name for a in fusedmm.load_algorithms(sys.argv[1])]
row, col = torch.randint(700, (9000,)), torch.randint(300, (9000,))
row[:1000], row[row % 10 == 3] = 7, 8
adj = fusedmm.CSR.from_coo(row, col, shape=(700, 300))
for feat in (32, 64, 128, 256):
    x = torch.randn(300, feat)
    terms, zero = x.double()[col], x.new_zeros(700, feat, dtype=torch.float64)
    exact, size = (zero.index_add(0, row, t) for t in (terms, terms.abs()))
    for name in walls:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = fusedmm.spmm(adj, x, algorithm=name)
            assert_within(y, exact, size, adj.degree()[:, None], x.dtype, name)
            print(name)
try:
    fusedmm.spmm(adj, torch.randn(300, 48), algorithm=walls[0])
except ValueError:
    print("declined")
"""
    assert sorted(set(run("-c", code, str(plugin)).split())) == ["declined", "gather_wall:0", "gather_wall:12"]
