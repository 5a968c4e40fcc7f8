"""What a number of no algorithm does, and one that a removed algorithm left."""

import pytest
import torch
from support.generate import small

import fusedmm
from fusedmm.edge.parse import parse

HIGHEST = 1000 + 255  # of the numbers that plug-ins may get


def call(number):
    adj = small()
    return torch.ops.fusedmm._spmm(adj.ptr, adj.idx, adj.eid, adj.plan, adj.val, torch.ones(15, 3), 0, number)


def test_a_plug_in_that_is_not_loaded_is_named_as_what_is_missing():
    with pytest.raises(RuntimeError, match=f"number {HIGHEST} on cpu: numbers from 1000 on are those of plug-ins"):
        call(HIGHEST)


def test_a_number_that_nobody_had_is_refused():
    with pytest.raises(RuntimeError, match=r"^invalid: spmm has no algorithm number 999 on cpu$"):
        call(999)


def test_every_number_that_is_listed_is_found():
    for algorithm in fusedmm.algorithms("spmm"):
        try:
            torch.testing.assert_close(call(algorithm.number), call(0))
        except RuntimeError as error:  # another machine's, or a plug-in's that takes other calls
            assert f"algorithm {algorithm.name} does not support" in str(error)


def test_a_number_that_a_removed_algorithm_left_runs_the_default():
    """CPU only: 6 was back_to_back of fused, which exported programs may hold. Nothing lists it or finds its name."""
    assert {a.number for a in fusedmm.algorithms("fused")}.isdisjoint({6})
    assert "back_to_back" not in {a.name for a in fusedmm.algorithms("fused")}
    adj, x, a = small(), torch.randn(15, 3), torch.randn(12, 3)
    kinds = fusedmm._lib.SCORES["dot"], fusedmm._lib.MESSAGES["scale"], fusedmm._lib.ACTIVATIONS[None], 0
    given = adj.ptr, adj.idx, adj.eid, adj.plan, adj.val, a, x, x, parse("s*a").program(False), *kinds
    assert torch.equal(torch.ops.fusedmm._fused(*given, 6), torch.ops.fusedmm._fused(*given, 0))
    with pytest.raises(RuntimeError, match=r"^invalid: fused has no algorithm number 7 on cpu$"):
        torch.ops.fusedmm._fused(*given, 7)
