"""The list of algorithms says what cannot run here and why, and a refusal gives that reason."""

import re
import subprocess

import pytest
import torch
from support.generate import small
from support.machine import ROOT, no_cuda

import fusedmm
from fusedmm import _lib
from fusedmm._cuda_names import CUDA_ALGORITHMS

LEVELS = {"scalar", "avx2", "avx512", "neon"}


@pytest.mark.parametrize("op", _lib.OPERATORS)
def test_a_level_that_the_processor_lacks_is_marked(op):
    """CPU only. No processor has both AVX2 and NEON."""
    here = set(fusedmm.build_info()["isa"])
    found = fusedmm.algorithms(op, "cpu")
    for a in found:
        level = a.name.rpartition(":")[2]
        absent = level in LEVELS and level not in here
        assert a.unavailable == (f"this processor has no {level}" if absent else "")
    if any(a.name.endswith(":neon") for a in found):
        assert any(a.unavailable for a in found)


def test_a_refusal_gives_the_reason_of_the_list():
    """CPU only."""
    adj, x = small(), torch.ones(15, 2)
    absent = [a for a in fusedmm.algorithms("spmm") if a.unavailable]
    for a in absent:
        with pytest.raises(ValueError, match=f"^spmm: algorithm {a.name} cannot run here: {a.unavailable}$"):
            fusedmm.spmm(adj, x, algorithm=a.name)
    for a in fusedmm.algorithms("spmm"):
        if not a.unavailable:
            torch.testing.assert_close(fusedmm.spmm(adj, x, algorithm=a.name), adj @ x)
    assert absent


def test_a_gpu_that_is_not_there_is_the_reason(monkeypatch):
    """CPU only: the registry of a build with CUDA, on machines with and without a GPU."""
    monkeypatch.setattr(_lib, "_registered", lambda op, kind: [_lib.Algorithm(1, "segments", "", "", True)])
    built = fusedmm.build_info()
    for cuda, seen, why in (
        (None, False, "fusedmm was built without CUDA"),
        ({"version": 13}, False, "torch sees no CUDA device"),
        ({"version": 13}, True, ""),
    ):
        monkeypatch.setattr(_lib, "build_info", lambda cuda=cuda: built | {"cuda": cuda})
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        assert [a.unavailable for a in fusedmm.algorithms("spmm", "cuda")] == [why]
        assert [a.unavailable for a in fusedmm.algorithms("spmm", "cpu")] == [""]


def test_a_build_without_cuda_knows_the_names_of_one_with_it():
    """CPU only. What a build with CUDA registers is read from its sources."""
    for op in _lib.OPERATORS:
        source = ROOT / "csrc" / op / "cuda_algorithms.c"
        text = subprocess.run(["cc", "-std=c11", "-E", "-P", source], capture_output=True, text=True, check=True).stdout
        entries = re.findall(r'{\s*(?:\.number = )?(\w+),\s*(?:\.name = )?((?:"[^"]*"\s*)+),', text)
        constants = {name: int(number) for name, number in re.findall(r"enum { (FMM_\w+) = (\d+) }", text)}
        numbers = {
            "".join(re.findall('"([^"]*)"', name)): constants.get(number) or int(number) for number, name in entries
        }
        numbers.pop("auto", None)
        assert numbers == CUDA_ALGORITHMS[op] and len(numbers) > 1
        if fusedmm.build_info()["cuda"] is None:
            assert {a.name: a.number for a in fusedmm.algorithms(op, "cuda")} == numbers


def test_a_name_of_the_other_device_is_told():
    """CPU only."""
    adj, x = small(), torch.ones(15)
    with pytest.raises(
        ValueError, match="spmm has no algorithm 'segments' on cpu, it is one of cuda's; there are auto"
    ):
        fusedmm.spmm(adj, x[:, None], algorithm="segments")
    with pytest.raises(ValueError, match="spmm has no algorithm 'merger' on cpu; there are auto"):
        fusedmm.spmm(adj, x[:, None], algorithm="merger")


def test_the_list_of_this_machine():
    for op in _lib.OPERATORS:
        assert all(bool(a.unavailable) == bool(no_cuda()) for a in fusedmm.algorithms(op, "cuda"))
