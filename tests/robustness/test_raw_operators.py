"""The private operators, given what the package never gives them: the layer between torch and C refuses by name."""

import pytest
import torch
from support.generate import small, works

import fusedmm
from fusedmm.edge.parse import parse

ops = torch.ops.fusedmm


def given(device):
    adj = small(device=device)
    x, a = torch.ones(15, 4, device=device), torch.ones(12, 4, device=device)
    return {"ptr": adj.ptr, "idx": adj.idx, "eid": adj.eid, "plan": adj.plan, "val": adj.val, "a": a, "x": x}


def spmm(ptr, idx, eid, plan, val, a, x):
    return ops._spmm(ptr, idx, eid, plan, val, x, 0, 0)


def sddmm(ptr, idx, eid, plan, val, a, x):
    return ops._sddmm(ptr, idx, eid, plan, val, a, x, 0)


WRONG = {
    "ptr of int32": (lambda g: {"ptr": g["ptr"].int()}, "ptr must be a vector of int64"),
    "ptr of nothing": (lambda g: {"ptr": g["ptr"][:0]}, "ptr must have rows \\+ 1 elements, not 0"),
    "idx of int64": (lambda g: {"idx": g["idx"].long()}, "idx must be a vector of int32"),
    "idx of two dimensions": (lambda g: {"idx": g["idx"][None]}, "idx must be a vector of int32"),
    "idx with gaps": (lambda g: {"idx": g["idx"].repeat(2)[::2]}, "idx must be contiguous"),
    "eid of int64": (lambda g: {"eid": g["eid"].long()}, "eid must be a vector of int32"),
    "eid too short": (lambda g: {"eid": g["eid"][1:]}, "eid has 59 elements for 60 entries"),
    "plan of int32": (lambda g: {"plan": g["eid"]}, "plan must be a vector of uint8"),
    "x of one dimension": (lambda g: {"x": g["x"][0]}, "x must have 2 or 3 dimensions, not 1"),
    "x of integers": (lambda g: {"x": g["x"].int()}, "x must be float32, float64, float16 or bfloat16"),
    "val too short": (lambda g: {"val": g["val"][1:]}, "val has 59 values for 60 entries"),
    "val of heads": (lambda g: {"val": g["val"][:, None].repeat(1, 2)}, "val has 2 heads"),
    "val of three dimensions": (lambda g: {"val": g["val"][:, None, None]}, "val must have 1 or 2 dimensions, not 3"),
    "val of integers": (lambda g: {"val": g["val"].int()}, "val must be float32, float64, float16 or bfloat16"),
}


@pytest.mark.parametrize("call", [spmm, sddmm])
@pytest.mark.parametrize("name", WRONG)
def test_refused_by_name(name, call, device):
    change, text = WRONG[name]
    good = given(device)
    if call is sddmm and name.startswith("x "):
        text = text.replace("x must", "b must")
    with pytest.raises(RuntimeError, match="^invalid: .*" + text):
        call(**{**good, **change(good)})
    assert call(**good).isfinite().all()


def parts(m):
    return m.ptr, m.idx, m.eid, m.plan


NUMBERS = [
    (lambda m, x: ops._spmm(*parts(m), m.none, x, 9, 0), "spmm: no reduction number 9"),
    (lambda m, x: ops._spmm(*parts(m), m.none, x, 0, 99), "spmm has no algorithm number 99"),
    (lambda m, x: ops._spmm(*parts(m), m.none, x, 2**32, 0), "spmm: no reduction number 2147483647"),
    (lambda m, x: ops._spmm(*parts(m), m.none, x, 0, 2**32 + 2), "spmm has no algorithm number 2147483647"),
    (lambda m, x: ops._spmm(*parts(m), m.none, x, 0, -(2**32)), "spmm has no algorithm number -2147483648"),
    (lambda m, x: ops._sddmm(*parts(m), m.none, x[:12], x, 2**32), "sddmm has no algorithm number 2147483647"),
    (lambda m, x: ops._sddmm(*parts(m), m.none, x, x, 0), r"sddmm: a is f32 \[15, 1, 3\], should be f32 \[12, 1, 3\]"),
    (
        lambda m, x: ops._extreme(*parts(m), m.none, m.none, x, x[:12], m.none, m.none, 2**32),
        "extreme: no form 2147483647",
    ),
    (
        lambda m, x: ops._fused(*parts(m), m.none, x[:12], x, x, parse("s").program(), 1, 0, 0, 2**32, 0),
        "2147483647",
    ),
    (
        lambda m, x: ops._attention(
            *parts(m), x[:12, None], x[:, None], x[:, None], *[m.none] * 4, 1.0, 0.2, 0.0, 2**32, 0, 0
        ),
        "2147483647",
    ),
]


@pytest.mark.parametrize("call, text", NUMBERS, ids=[f"{k} {n[1]}" for k, n in enumerate(NUMBERS)])
def test_numbers_of_nothing(call, text, device):
    """Exported programs call the operators with what they have: numbers are not cut to 32 bits either."""
    with pytest.raises(RuntimeError, match=text):
        call(small(device=device), torch.ones(15, 3, device=device))
    works(device)


def test_operands_of_two_dtypes(device):
    good = given(device)
    with pytest.raises(RuntimeError, match=r"^invalid: sddmm: b is f32 \[15, 1, 4\], should be f64 \[15, 1, 4\]"):
        sddmm(**{**good, "a": good["a"].double()})


def test_a_plan_is_taken_where_none_is_needed():
    """CPU only: a structure that came from a GPU may have kept its own."""
    good = given("cpu")
    assert torch.equal(spmm(**good), spmm(**{**good, "plan": torch.zeros(64, dtype=torch.uint8)}))


@pytest.mark.parametrize(("count", "dtype"), [(1, torch.int32), (2, torch.int64)], ids=str)
def test_a_seed_that_is_not_one_int64(count, dtype, device):
    q = torch.ones(12, 1, 4, device=device)
    k, adj = torch.ones(15, 1, 4, device=device), small(device=device)
    seed = torch.zeros(count, dtype=dtype, device=device)
    with pytest.raises(RuntimeError, match=r"seed must be (int64|one number)"):
        ops._attention(
            adj.ptr, adj.idx, adj.eid, adj.plan, q, k, k, *[q.new_empty(0)] * 3, seed, 1.0, 0.2, 0.5, 0, 0, 0
        )
    assert fusedmm.attention(adj, q, k, k).isfinite().all()


def test_operands_on_two_devices(cuda):
    good = given("cpu")
    with pytest.raises(RuntimeError):
        spmm(**{**good, "x": good["x"].to(cuda)})
    good = given(cuda)
    with pytest.raises(RuntimeError, match="x is on another device than the first tensor"):
        ops._spmm(*list(good.values())[:5], good["x"].cpu(), 0, 0)
    assert fusedmm.spmm(small(device=cuda), good["x"]).isfinite().all()
