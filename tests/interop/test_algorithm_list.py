"""The list of algorithms says what cannot run here and why, and a refusal gives that reason."""

import pytest
import torch
from support.generate import small
from support.machine import no_cuda

import fusedmm
from fusedmm import _lib

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


def test_the_list_of_this_machine():
    for op in _lib.OPERATORS:
        assert all(bool(a.unavailable) == bool(no_cuda()) for a in fusedmm.algorithms(op, "cuda"))
