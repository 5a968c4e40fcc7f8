"""The error bound where it is hardest to keep: rows of many entries, of every dtype, constant and cancelling.

More than 512 x 512, so that sums of sums are summed again; and, which is slow, a million.
"""

import functools
import json

import accuracy
import pytest
import torch
from support.attention_oracle import Given, assert_close, attention_oracle
from support.bounds import assert_within, sddmm_oracle, spmm_oracle
from support.fused_oracle import Stages, assert_near, for_edge, forward
from support.generate import Case
from support.turns import in_turn

import fusedmm

MANY = pytest.mark.parametrize("n", [270_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DATA = ["random", "constant", "cancelling"]
IN_TURN = pytest.mark.parametrize("dtype, data", list(in_turn(DTYPES, DATA)), ids=str)


def fill(data, dtype, device, *size, seed=0):
    case = Case("one", 1, None, dtype, "contiguous", "entry", False, data)
    return case._fill(size, seed).to(dtype).to(device)


def long_row(n, device, val=None):
    """Row 1 of three has every entry."""
    ptr = torch.tensor([0, 0, n, n], device=device)
    return fusedmm.CSR.from_csr(ptr, torch.arange(n, device=device), val)


@MANY
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_spmm(dtype, data, n, device):
    adj = long_row(n, device, fill(data, dtype, device, n, seed=1))
    x = fill(data, dtype, device, n, 3, seed=2) / 256  # sums of float16 stay below its largest number
    for reduce in ("sum", "mean", "max", "min"):
        y = fusedmm.spmm(adj, x, reduce=reduce)
        assert_within(y, *spmm_oracle(adj, x, reduce), dtype, f"{data} {reduce}", f"spmm {reduce}")


@MANY
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sddmm(dtype, data, n, device):
    """Many channels, and many entries."""
    row = torch.tensor([0, 1, 1], device=device)
    adj = fusedmm.CSR.from_coo(row, row, shape=(2, 2))
    a, b = (fill(data, dtype, device, 2, n, seed=k) / 16 for k in (1, 2))
    assert_within(fusedmm.sddmm(adj, a, b), *sddmm_oracle(adj, a, b), dtype, data, "sddmm dot")
    adj = long_row(n, device)
    a, b = fill(data, dtype, device, 3, 5, seed=1), fill(data, dtype, device, n, 5, seed=2)
    assert_within(fusedmm.sddmm(adj, a, b), *sddmm_oracle(adj, a, b), dtype, data, "sddmm dot")


def fused_operands(dtype, data, n, device):
    adj = long_row(n, device, fill(data, dtype, device, n, seed=1))
    return adj, *(fill(data, dtype, device, m, 4, seed=s) / 32 for s, m in ((2, 3), (3, n), (4, n)))


@functools.cache
def exact_fused(dtype, data, n, stages):
    """Computed once for all devices: adding up in long double takes seconds."""
    adj, *operands = fused_operands(dtype, data, n, "cpu")
    return forward(for_edge(adj, stages.edge), *operands, stages)


@MANY
@IN_TURN
def test_fused(dtype, data, n, device):
    adj, x, y, z = fused_operands(dtype, data, n, device)
    for stages in (Stages(), Stages("dot", "sigmoid(s)"), Stages("none", "a", "add", None, "mean")):
        given = (x, y, z) if stages.message == "scale" else (x, y)
        out = fusedmm.fused(for_edge(adj, stages.edge), *given, **stages._asdict())
        assert_near(out, *exact_fused(dtype, data, n, stages), dtype, f"{data} {stages}", "fused")


@MANY
@IN_TURN
def test_attention_and_edge_softmax(dtype, data, n, device):
    """Attention's weights for q = k = 0 and a bias are the softmax over the bias."""
    adj = long_row(n, device)
    q, k, v = (fill(data, dtype, device, m, 1, 4, seed=s) / 4 for s, m in ((1, 3), (2, n), (3, n)))
    out = fusedmm.attention(adj, q, k, v)
    expected = attention_oracle(adj, Given(q, k, v, None, None, None, None), "dot", 0.5, 0.2, out, dtype)
    assert_close(data, out, expected["out"], dtype, operator="attention")
    logits, none = fill(data, dtype, device, n, 1, seed=4), torch.zeros(n, 1, 1, dtype=dtype)
    given = Given(none[:3], none, none, None, logits, None, None)
    expected = attention_oracle(adj, given, "additive", 1.0, 1.0, none[:3], dtype)
    assert_close(data, fusedmm.edge_softmax(adj, logits), expected["use"], dtype, operator="edge_softmax")


def test_the_table_has_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "worst", {})
    computed = torch.zeros(2, dtype=torch.float16)
    accuracy.record("fused", computed, torch.tensor([0.1, 0.5]), torch.tensor([1.0, 2.0]))
    accuracy.record("fused", computed, torch.tensor([0.0]), torch.tensor([0.0]))
    accuracy.record("", computed, torch.tensor([3.0]), torch.tensor([1.0]))
    accuracy.write(str(tmp_path / "a.json"))
    found = json.loads((tmp_path / "a.json").read_text())
    assert found == {"cpu": {"fused": {"float16": 0.25}}}
    larger = {"cpu": {"fused": {"float16": 0.251}, "spmm sum": {"float32": 0.07}}}
    table = accuracy.table(accuracy.merge([found, larger]))
    assert "| fused |  |  | 0.26 |  |" in table and "| spmm sum | 0.07 |  |  |  |" in table
