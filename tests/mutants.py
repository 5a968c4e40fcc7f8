"""Faults made by hand in the kernels: the tests named beside each must find it.

    python tests/mutants.py          # make mutants
    python tests/mutants.py cuda     # on a machine with a GPU, whose Python has torch and pytest

All happens in a copy of the checkout under build/mutants: the tests pass first, then with one fault at a time, for
which what it changed is compiled anew, they have to fail. The loops of the CPU are compiled as for the sanitizers
(sanitize.mk), and of CUDA's files one alone, since a header is read by files that take nvcc minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "mutants"
FAILED = 1  # what pytest returns where a test fails; a signal that ends the process is negative
CFLAGS = "-O0 '-DFMM_INLINE=static inline' -Wno-psabi"
SPMM, F32 = "tests/ops/test_spmm.py::test_covering_array", "spmm/cuda_f32.cu"


class Mutant(NamedTuple):
    name: str
    file: str  # under csrc
    before: str  # once in it
    after: str
    tests: str
    only: str = ""  # the file that is compiled anew, where many read what changed and the tests need no more


CPU = [
    Mutant(
        "the last entry of a row is dropped",
        "spmm/cpu_rows.inc",
        "(sum, table, stride, at, w, n, feat,",
        "(sum, table, stride, at, w, n > 1 ? n - 1 : n, feat,",
        SPMM,
    ),
    Mutant("a mean is a sum", "spmm/cpu_rows.inc", "scaled = mean || sign < 0;", "scaled = sign < 0;", SPMM),
    Mutant(
        "an empty row keeps what a maximum starts from",
        "spmm/cpu_rows.inc",
        "sum[v] = (VECTOR){0};",
        "sum[v] = (VECTOR){0} - (ACC)max;",
        SPMM,
    ),
    Mutant("heads are taken for neighbours", "spmm/cpu_rows.inc", "h * x->head_stride + c;", "h * x->feat + c;", SPMM),
    Mutant(
        "NaN does not win a maximum",
        "cpu/isa_scalar.h",
        "vf32_max(float a, float b) { return a > b || a != a ? a : b; }",
        "vf32_max(float a, float b) { return a > b ? a : b; }",
        "tests/ops/test_spmm.py::test_nan_and_infinity_stay_in_the_rows_that_touch_them",
    ),
    Mutant("a row is lost where chunks meet", "cpu/rows.c", "first = last;\n    }", "first = last + 1;\n    }", SPMM),
    Mutant(
        "a round of dropout's generator is missing",
        "core/philox.h",
        "FMM_ROUND(9);",
        "",
        "tests/ops/test_attention_rules.py::test_dropout_is_philox_of_the_seed",
    ),
    Mutant(
        "lse_rest is left out",
        "attention/cpu_back.inc",
        "if (s->call->lse_rest.data) {",
        "if (0) {",
        "tests/ops/test_huge_logits.py",
    ),
    Mutant(
        "the softmax's gradient forgets its mean",
        "attention/cpu_back.inc",
        "b->t[k] - b->glogit[k])",
        "b->t[k] - 0 * b->glogit[k])",
        "tests/ops/test_attention_rules.py::test_derivatives",
    ),
    Mutant(
        "columns are not checked",
        "core/checks.c",
        "for (int64_t p = begin; bad && p < end; p++)",
        "for (int64_t p = end; bad && p < end; p++)",
        "tests/robustness/test_contract.py",
    ),
    Mutant(
        "bfloat16 is cut instead of rounded",
        "cpu/isa_scalar.h",
        "bf16_store(uint16_t *p, float v) { *p = bf16_of(v); }",
        "bf16_store(uint16_t *p, float v) { *p = (uint16_t)(f32_bits(v) >> 16); }",
        SPMM,
    ),
]
CUDA = [
    Mutant("a mean is a sum", "spmm/cuda_terms.cuh", "reduce == FMM_MEAN && terms ?", "reduce == 99 ?", SPMM, F32),
    Mutant(
        "heads are taken for neighbours",
        "spmm/cuda.cuh",
        "head * s.x_head : 0",
        "head * s.feat_out : 0",
        "tests/ops/test_shapes_of_others.py::test_a_batch_that_is_not_transposed_is_told_so",
        "spmm/cuda_f64.cu",
    ),
    Mutant(
        "empty rows are not written",
        "spmm/cuda.cuh",
        "store<T, VEC>(y + row * s.out_row + i * STEP, zeros);",
        "(void)zeros;",
        SPMM,
        F32,
    ),
    Mutant(
        "one sum takes a row of any length",
        "spmm/cuda.cuh",
        "if (ADDS && done && done % CHAIN == 0)",
        "if (ADDS && done < 0)",
        "tests/ops/test_long_pieces.py",
        F32,
    ),
    Mutant(
        "columns are trusted",
        "sddmm/cuda.cuh",
        "there[e] = (uint32_t)near_next[e] < (uint32_t)s.a.cols;",
        "there[e] = true;",
        "tests/robustness/test_forged.py",
        "sddmm/cuda_f32.cu",
    ),
    Mutant(
        "lse_rest is left out",
        "attention/cuda_accumulate.cuh",
        "if (large && s.lse_rest.data)",
        "if (false)",
        "tests/ops/test_huge_logits.py",
        "attention/cuda_f32.cu",
    ),
]


def run(*command: str, cuda: bool) -> subprocess.CompletedProcess[str]:
    chosen = {"FUSEDMM_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "9.0"} if cuda else {"FUSEDMM_CUDA": "0", "CFLAGS": CFLAGS}
    environment = os.environ | chosen | {"PYTHONPATH": str(PLACE / "checkout")}
    return subprocess.run(
        [sys.executable, *command], cwd=PLACE / "checkout", env=environment, capture_output=True, text=True
    )


def build(cuda: bool) -> None:
    made = run("setup.py", "-q", "build_ext", "--inplace", cuda=cuda)
    if made.returncode:
        sys.exit(made.stdout[-2000:] + made.stderr[-2000:])


def tested(tests: str, cuda: bool) -> int:
    return run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split(), cuda=cuda).returncode


def copy_checkout() -> Path:
    """What is under git, with its times, so that what is compiled stays so."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        target = PLACE / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return PLACE / "checkout"


def found(mutant: Mutant, checkout: Path, cuda: bool) -> bool:
    """Whether the tests see the fault, after which nothing of it is left."""
    path, objects = checkout / "csrc" / mutant.file, checkout / "build" / "objects"
    text, times = path.read_text(), path.stat()
    if text.count(mutant.before) != 1:
        sys.exit(f"{mutant.name}: {mutant.file} has {text.count(mutant.before)} times {mutant.before!r}")
    shutil.rmtree(PLACE / "objects", ignore_errors=True)
    shutil.copytree(objects, PLACE / "objects")
    path.write_text(text.replace(mutant.before, mutant.after))
    if mutant.only:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        (objects / (mutant.only.replace("/", "_") + ".o")).unlink()
    try:
        build(cuda)
        code = tested(mutant.tests, cuda)
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        shutil.rmtree(objects)
        shutil.move(PLACE / "objects", objects)
    return code == FAILED or code < 0


def main() -> int:
    cuda = sys.argv[1:] == ["cuda"]
    mutants, checkout = CUDA if cuda else CPU, copy_checkout()
    build(cuda)
    for tests in sorted({mutant.tests for mutant in mutants}):
        if tested(tests, cuda):
            sys.exit(f"without any fault {tests} does not pass")
    missed = 0
    for mutant in mutants:
        seen = found(mutant, checkout, cuda)
        missed += not seen
        print(f"{'found ' if seen else 'MISSED'}  {mutant.name} ({mutant.file}): {mutant.tests}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
