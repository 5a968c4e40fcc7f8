"""Which calls use a matrix's values: every line of the table in docs/values.md is computed, and no call is missing."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from support.value_calls import CALLS, COL, LAYERS, MIXED, NODES, ROW, ROWS, SparseTensor, names, random, values

import fusedmm
from fusedmm import nn
from fusedmm._lib import REDUCTIONS
from fusedmm.ops.attention import SCORES
from fusedmm.ops.sddmm import ELEMENTWISE

# ---- the formulas in float64 ----


def over_rows(n, terms, reduce="sum"):
    """Reduces terms [nnz, ...] over the entries of each row; 0 where there are none."""
    found = []
    for i in range(NODES):
        mine = terms[n.row == i]
        if not len(mine) or reduce in ("sum", "mean"):
            found.append(mine.sum(0) / (max(len(mine), 1) if reduce == "mean" else 1))
        else:
            found.append(getattr(mine, f"a{reduce}")(0))
    return torch.stack(found)


def weighed(n, logits):
    """The sum over each row of val softmax(logits) b."""
    exp = logits.exp()
    return over_rows(n, (n.val * exp / over_rows(n, exp)[n.row])[:, None] * n.b[n.col])


def leaky(x):
    return torch.where(x > 0, x, 0.2 * x)


def cosine(a, b):
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def normalised(dense):
    scale = torch.where(dense.sum(1) == 0, 0, dense.sum(1)) ** -0.5
    scale = scale.masked_fill(scale.isinf(), 0)
    return scale[:, None] * dense * scale


def combined(op):
    return lambda n: n.val[:, None] * op(n.a[n.row], n.b[n.col])


FORMULAS = {
    "spmm(A, x)": lambda n: over_rows(n, n.val[:, None] * n.x[n.col]),
    'spmm(A, x, reduce="mean")': lambda n: over_rows(n, n.val[:, None] * n.x[n.col], "mean"),
    'spmm(A, x, reduce="max")': lambda n: over_rows(n, n.val[:, None] * n.x[n.col], "max"),
    'spmm(A, x, reduce="min")': lambda n: over_rows(n, n.val[:, None] * n.x[n.col], "min"),
    "A @ x": lambda n: n.dense @ n.x,
    "spmv(A, x[:, 0])": lambda n: n.dense @ n.x[:, 0],
    "spgemm(A, A)": lambda n: n.dense @ n.dense,
    "A @ A": lambda n: n.dense @ n.dense,
    "triple_product(A, A, A)": lambda n: n.dense @ n.dense @ n.dense,
    "sddmm(A, a, b)": lambda n: n.val * n.dot,
    'sddmm(A, a, b, op="add")': combined(torch.add),
    'sddmm(A, a, b, op="sub")': combined(torch.sub),
    'sddmm(A, a, b, op="mul")': combined(torch.mul),
    "fused(A, a, b)": lambda n: over_rows(n, (n.dot * n.val)[:, None] * n.b[n.col]),
    'fused(A, a, b, edge="sigmoid(s)*a", reduce="mean")': lambda n: over_rows(
        n, (n.dot.sigmoid() * n.val)[:, None] * n.b[n.col], "mean"
    ),
    "attention(A, a, b, b)": lambda n: weighed(n, n.dot / 3**0.5),
    'attention(A, a, b, b, score="cosine")': lambda n: weighed(n, cosine(n.a[n.row], n.b[n.col])),
    'attention(A, a[:, 0], b[:, 0], b, score="additive")': lambda n: weighed(
        n, leaky(n.a[n.row, 0] + n.b[n.col, 0])
    ),
    'attention(A, a, b, b, score="gatv2", att=t)': lambda n: weighed(n, leaky(n.a[n.row] + n.b[n.col]) @ n.t),
    "A.gcn_norm()": lambda n: normalised(n.dense + torch.eye(NODES)),
    "A.gcn_norm(add_self_loops=False)": lambda n: normalised(n.dense),
    "A.add_self_loops(3.0)": lambda n: n.dense + 3 * torch.eye(NODES),
    "A.set_self_loops(2.0)": lambda n: n.dense + 2 * torch.eye(NODES),
    "A[[1, 0]]": lambda n: n.dense[[1, 0]],
    "A[:, [1, 0]]": lambda n: n.dense[:, [1, 0]],
    "A + A": lambda n: 2 * n.dense,
    "A - A / 2": lambda n: n.dense / 2,
    "-A": lambda n: -n.dense,
    "A + CSR.eye(6, device=A.device)": lambda n: n.dense + torch.eye(NODES),
    "A * A": lambda n: n.dense * n.dense,
    "A * 2.0": lambda n: n.dense * 2,
    "A / 2.0": lambda n: n.dense / 2,
    "A.scale(rows=w[:6], cols=w[:6])": lambda n: n.w[:6, None] * n.dense * n.w[:6],
    "x.T @ A": lambda n: n.x.T @ n.dense,
    "x[:, 0] @ A": lambda n: n.x[:, 0] @ n.dense,
    "A.sum(1)": lambda n: over_rows(n, n.val),
    "A.mean(1)": lambda n: over_rows(n, n.val, "mean"),
    "A.max(1)": lambda n: over_rows(n, n.val, "max"),
    "A.min(1)": lambda n: over_rows(n, n.val, "min"),
    "A.softmax()": lambda n: torch.zeros_like(n.dense).index_put(
        (n.row, n.col), n.val.exp() / over_rows(n, n.val.exp())[n.row]
    ),
    "A[:, [1, 0]].diag()": lambda n: n.dense[[0, 1], [1, 0]],
}  # fmt: skip


def exact(call, given, val):
    """The formula on the CPU."""
    row, col, _ = given["A"].cpu().coo()
    n = SimpleNamespace(row=row, col=col, val=val, **{k: given[k].cpu() for k in "abxtw"})
    n.dot = (n.a[row] * n.b[col]).sum(-1)
    n.dense = torch.zeros(NODES, NODES, dtype=torch.float64).index_put((row, col), val)
    return FORMULAS[call](n)


# ---- operators, and what a CSR can do ----


def number(found):
    """A result as something to compare."""
    return found.to_dense() if isinstance(found, (fusedmm.CSR, torch.Tensor)) else found


def test_the_table_knows_the_formula_of_every_call_that_uses_values():
    assert {call for call, what in CALLS if what == "used"} == set(FORMULAS)
    assert {what for _, what in CALLS} == {"used", "refused", "replaced", "kept", "structure"}
    assert {what for _, what in LAYERS} == {"PyG: used", "PyG: no part", "PyG: refused", "no part", "replaced"}
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("call", [call for call, what in CALLS if what == "used"])
def test_used_values_are_those_of_the_formula(call, device):
    """Two matrices of other values, and their gradients."""
    for seed in (0, 1):
        val = values(seed).to(device).requires_grad_()
        wide = val.detach().cpu().requires_grad_()
        given = names(device, val, MIXED)
        found, expected = number(eval(call, given)), exact(call, given, wide)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-12)
        up = torch.linspace(1, 2, found.numel(), dtype=torch.float64).view(found.shape)
        (g,), (right,) = (torch.autograd.grad(y, v, up.to(y.device)) for y, v in ((found, val), (expected, wide)))
        torch.testing.assert_close(g.cpu(), right, rtol=1e-9, atol=1e-11)
        assert right.abs().max() > 1e-3  # the formula does depend on them


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("call", [call for call, what in CALLS if what == "refused"])
def test_refused_values_name_the_mend(call, device):
    """For what was given: a CSR has a pattern, other holders' CSR has one. The mend works, and the next call too."""
    given = names(device, values(0).to(device), MIXED)
    op = call.partition("(")[0]
    mends = {
        "A": r"adj\.pattern\(\)$",
        "A.to_torch()": r"fusedmm\.as_csr\(adj\)\.pattern\(\), made once$",
        "R": r"fusedmm\.as_csr\(adj\)\.pattern\(\), made once$",
    }
    if device == "cpu":
        mends["S"] = mends["R"]
    for holder, mend in mends.items():
        adj = eval(holder, given)
        with pytest.raises(ValueError, match=rf"^{op}: .* but adj has values \[8\]; give {mend}"):
            eval(call, given | {"A": adj})
        assert eval(call, given | {"A": fusedmm.as_csr(adj).pattern()}).isfinite().all()
    first, second = (eval(call, given | {"A": names(device, values(k).to(device))["A"].pattern()}) for k in (0, 1))
    assert torch.equal(first, second)


@pytest.mark.parametrize("call", [call for call, what in CALLS if what == "replaced"])
def test_replaced_values_have_no_part(call, device):
    given = names(device, values(0).to(device), MIXED)
    other = names(device, values(1).to(device), MIXED)["A"]
    found = number(eval(call, given))
    for adj in (other, other.pattern()):
        assert torch.equal(number(eval(call, given | {"A": adj})), found)
    assert not torch.equal(number(eval(call, given | {"w": 2 * given["w"]})), found)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("call", [call for call, what in CALLS if what == "kept"])
def test_kept_values_are_in_the_result(call, device):
    for seed in (0, 1):
        given = names(device, values(seed).to(device), MIXED)
        expected = torch.zeros(NODES, NODES, dtype=torch.float64, device=device)
        expected[given["I"][1], given["I"][0]] = values(seed).to(device)
        assert torch.equal(number(eval(call, given)).to(device), expected)  # scipy's are on the CPU


@pytest.mark.parametrize("call", [call for call, what in CALLS if what == "structure"])
def test_questions_about_the_structure_have_one_answer(call, device):
    given = names(device, values(0).to(device), MIXED)
    first, second = (number(eval(call, given | {"A": adj})) for adj in (given["A"], given["A"].pattern()))
    assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


# ---- nothing is missing ----

NO_MATRIX = {"algorithms", "build_info", "convert", "load_algorithms"}
OF_THE_LIBRARY = {"make", "transpose_half", "constant_values"}  # without a formula: parts of what others do
ON_A_GPU = {"cuda", "pin_memory"}  # as ``to`` and ``cpu``
ROUNDED = {"half", "bfloat16", "float"}  # as ``double``
ABOUT_VALUES = {"dtype", "equal", "to_dgl"}  # what is asked of the values themselves, or by another package


def test_no_call_is_missing():
    calls = " ".join(call for call, _ in ROWS)
    for name in fusedmm.__all__:
        if inspect.isfunction(getattr(fusedmm, name)) and name not in NO_MATRIX:
            assert re.search(rf"\b{name}\(", calls), f"docs/values.md lacks fusedmm.{name}"
    for name in dir(fusedmm.CSR):
        found = inspect.getattr_static(fusedmm.CSR, name)
        public = callable(getattr(fusedmm.CSR, name)) or isinstance(found, property)
        if public and not name.startswith("_") and name not in OF_THE_LIBRARY | ON_A_GPU | ROUNDED | ABOUT_VALUES:
            assert re.search(rf"\.{name}\b", calls), f"docs/values.md lacks CSR.{name}"
    for name in nn.__all__:
        if issubclass(type(getattr(nn, name)), type) and issubclass(getattr(nn, name), torch.nn.Module):
            assert re.search(rf"\b{name}\(", calls), f"docs/values.md lacks fusedmm.nn.{name}"
    for option, known in (("reduce", REDUCTIONS), ("op", ELEMENTWISE), ("score", SCORES)):
        for value in set(known) - {"sum", "dot"}:  # the defaults
            assert f'{option}="{value}"' in calls, f"docs/values.md lacks {option}={value!r}"


# ---- conversion ----


HOLDERS = {
    "CSR": lambda row, ptr, col, val: fusedmm.CSR.from_csr(ptr, col, val, (NODES, NODES)),
    "torch COO": lambda row, ptr, col, val: torch.sparse_coo_tensor(
        torch.stack([row, col]), val, (NODES, NODES), is_coalesced=True
    ),
    "torch CSR": lambda row, ptr, col, val: torch.sparse_csr_tensor(ptr, col, val, (NODES, NODES)),
    "tuple": lambda row, ptr, col, val: (ptr, col, val, (NODES, NODES)),
    "SparseTensor": lambda row, ptr, col, val: SparseTensor(row, col, val),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", HOLDERS)
def test_values_are_read_anew_and_get_gradients_in_every_holder(kind, device):
    """A structure is remembered: what is written to the values counts from the next call on."""
    row, col, val = (t.to(device) for t in (ROW, COL, values(0)))
    ptr = torch.searchsorted(row, torch.arange(NODES + 1, device=device))
    x = random(NODES, 3, seed=0).to(device)
    val.requires_grad_()
    (g,) = torch.autograd.grad(fusedmm.spmm(HOLDERS[kind](row, ptr, col, val), x).sum(), val)
    torch.testing.assert_close(g, x[col].sum(1))
    holder = HOLDERS[kind](row, ptr, col, val.detach())
    first = fusedmm.spmm(holder, x)
    part = holder.val if kind == "CSR" else holder.values() if isinstance(holder, torch.Tensor) else val.detach()
    part.mul_(2)
    torch.testing.assert_close(fusedmm.spmm(holder, x), 2 * first)


def test_values_given_to_attention_that_do_not_fit_are_called_so(device):
    given = names(device, values(0).to(device))
    with pytest.raises(ValueError, match=r"attention: adj\.val has 2 heads, v 1"):
        fusedmm.attention(given["A"].with_values(values(0, 2).to(device)), given["a"], given["b"], given["b"])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_whole_numbers_are_given_as_floats(dtype):
    A = fusedmm.CSR.eye(3)
    with pytest.raises(
        TypeError, match=r"not torch\..*; give val.float\(\), which constructors do by themselves, once"
    ):
        A.with_values(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"not torch\.complex64: float32, float64, float16 or bfloat16$"):
        A.with_values(torch.ones(3, dtype=torch.complex64))
