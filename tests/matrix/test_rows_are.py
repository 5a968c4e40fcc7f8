"""What is known of a matrix's rows is a field of it and a number among the operators' arguments; so is the size of the
whole, where a matrix is a part."""

import pickle

import pytest
import torch
import torch._dynamo.testing
from support.bounds import assert_within, spmm_oracle
from support.generate import small
from torch.export import Dim, export, load, save
from torch.utils import _pytree as pytree

import fusedmm
from fusedmm.edge.parse import parse
from fusedmm.matrix.structure import EVEN, NEITHER, UNEVEN, UNKNOWN

ops = torch.ops.fusedmm
SAID = {"rows_are": EVEN, "rows_are_t": UNEVEN}
FUSED = ["_fused", "_fused_cols", "_fused_mirrored", "_fused_rows"]
BEHIND = ["sddmm", "spmm", "spmv"]  # whose gradients need the transpose, and what is known of it
ATTENTION = ["_attention", "_attention_cols", "_attention_rows", "_attention_weights"]
OF_PARTS = [*ATTENTION, *FUSED, "_plan", "_sddmm", "_spmm", "_spmm_into", "_spmv"]  # of a matrix that ranks share
TAKE_IT = [*FUSED, "_sddmm", "_spmm", "_spmm_into", "_spmv", *BEHIND]


def square(device, **said):
    """60 random entries of 15 x 15, of which the fields say what is asked for."""
    row, col = torch.randint(0, 15, (2, 60), generator=torch.Generator().manual_seed(0))
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), torch.rand(60, device=device), (15, 15))
    adj = adj.cache_transpose()
    adj._set(**said)
    return adj


def test_the_schemas_name_it():
    names = {name.removeprefix("fusedmm::") for name in torch._C._dispatch_get_all_op_names() if "fusedmm::" in name}
    arguments = {name: [a.name for a in getattr(ops, name).default._schema.arguments] for name in sorted(names)}
    assert [name for name, found in arguments.items() if "rows_are" in found] == TAKE_IT
    assert [name for name, found in arguments.items() if "rows_are_t" in found] == BEHIND
    assert [name for name, found in arguments.items() if "whole_nnz" in found] == OF_PARTS
    assert all(("whole_rows" in found) == (name in (*ATTENTION, "_sddmm")) for name, found in arguments.items())


def calls(adj, x, *rows_are):
    """Each operator that takes it, with as many of the last arguments as are given."""
    half, none, program = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.none, parse("s").program(True)
    whole = (*half, *adj.transpose_half())
    kinds = (program, 1, 0, 0)
    yield lambda: ops._spmm(*half, adj.val, x, 0, 0, *rows_are)
    yield lambda: ops.spmm(*whole, adj.val, x, 0, 0, *rows_are)
    yield lambda: ops._spmv(*half, adj.val, none, x[:, 0], none, 0, 1.0, 0.0, 0, *rows_are)
    yield lambda: ops.spmv(*whole, adj.val, x[:, 0], none, 1.0, 0.0, 0, *rows_are)
    yield lambda: ops._sddmm(*half, adj.val, x, x, 0, *rows_are)
    yield lambda: ops.sddmm(*whole, adj.val, x, x, 0, *rows_are)
    yield lambda: ops._fused(*half, none, x, x, x, parse("s").program(), 1, 0, 0, 0, 0, *rows_are)
    yield lambda: ops._fused_rows(*half, none, x, x, x, x, *kinds, 3, 0, *rows_are)
    yield lambda: ops._fused_cols(*half, none, x, x, x, x, none, *kinds, 3, 0, *rows_are)
    yield lambda: ops._fused_mirrored(*half, none, x, none, none, x, none, *kinds, 0, *rows_are)


@pytest.mark.parametrize("said", [NEITHER + 1, -1, 2**32 + 1, -(2**40)])
def test_a_number_that_says_nothing_is_refused(said, device):
    adj, x = square(device), torch.rand(15, 4, device=device)
    for call in calls(adj, x, said):
        with pytest.raises(RuntimeError, match=r"invalid: \w+: rows_are is -?\d+, which says nothing of rows"):
            call()
    assert fusedmm.spmm(adj, x).isfinite().all()


@pytest.mark.parametrize("said", [UNKNOWN, EVEN, UNEVEN, NEITHER])
def test_results_do_not_depend_on_it(said, device):
    adj, x = square(device), torch.rand(15, 4, device=device)
    *pairs, mirrored = zip(calls(adj, x), calls(adj, x, said), strict=True)
    for plain, call in pairs if device == "cuda" else (*pairs, mirrored):  # the mirrored pass is the CPU's
        torch.testing.assert_close(call(), plain(), rtol=1e-5, atol=1e-5)
    adj._set(rows_are=said)
    assert_within(fusedmm.spmm(adj, x), *spmm_oracle(adj, x, "sum"), torch.float32)


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """What the operators were told of rows; torch leaves out what a default says too."""

    def __init__(self):
        super().__init__()
        self.told = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = [a.name for a in func._schema.arguments] if func.namespace == "fusedmm" else []
        if "rows_are" in names:
            self.told.append(dict(zip(names, args, strict=False)).get("rows_are", UNKNOWN))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "call",
    [
        fusedmm.spmm,
        lambda adj, x: fusedmm.sddmm(adj, x, x),
        lambda adj, x: fusedmm.fused(adj, x, 2 * x, 3 * x, edge="a*s"),
    ],
    ids=["spmm", "sddmm", "fused"],
)
def test_each_half_is_told_its_own(call, device):
    """Forward reads the matrix, the gradient of what is gathered its transpose."""
    adj, x = square(device, **SAID), torch.rand(15, 4, device=device, requires_grad=True)
    for matrix, forward, back in (
        (adj, EVEN, UNEVEN),
        (adj.t(), UNEVEN, EVEN),
        (adj.with_values(adj.val), EVEN, UNEVEN),
    ):
        with Calls() as seen:
            call(matrix, x).sum().backward()
        assert seen.told[0] == forward and back in seen.told[1:]


def test_gradients_of_the_public_operators_are_told_too(device):
    adj, x = square(device), torch.rand(15, 4, device=device, requires_grad=True)
    whole = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
    for behind in ((), (EVEN,), (EVEN, UNEVEN)):
        with Calls() as seen:
            ops.spmm(*whole, adj.val, x, 0, 0, *behind).sum().backward()
        assert seen.told[-1] == (behind[1] if len(behind) > 1 else UNKNOWN)
    expected = torch.autograd.grad(fusedmm.spmm(adj, x).sum(), x)[0]
    assert torch.equal(x.grad, 3 * expected)


def test_compiled_code_is_told_and_compiles_once_per_answer(device):
    torch._dynamo.reset()
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda adj, x: fusedmm.spmm(adj, x), backend=count, fullgraph=True)
    x = torch.rand(15, 4, device=device)
    for said in (UNKNOWN, EVEN, UNEVEN, NEITHER, EVEN, UNKNOWN):
        adj = square(device, rows_are=said)
        assert torch.equal(compiled(adj, x), fusedmm.spmm(adj, x))
    assert count.frame_count <= 4
    torch._dynamo.reset()


class Product(torch.nn.Module):
    def forward(self, adj, x):
        return fusedmm.spmm(adj, x)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_keep_their_example_s_and_take_others(strict, device, tmp_path):
    adj, x = square(device, **SAID), torch.rand(15, 4, device=device)
    leaves = [{0: Dim.DYNAMIC} if t is not None and t.numel() else None for t in pytree.tree_leaves(adj)]
    program = export(Product(), (adj, x), dynamic_shapes=(leaves, {0: Dim.DYNAMIC}), strict=strict)
    (node,) = (n for n in program.graph.nodes if "spmm" in str(n.target))
    assert dict(zip([a.name for a in node.target._schema.arguments], node.args, strict=False))["rows_are"] == EVEN
    save(program, tmp_path / "product.pt2")
    for exported in (program, load(tmp_path / "product.pt2")):
        for said in ({}, SAID, {"rows_are": NEITHER}):
            other = square(device, **said)
            assert torch.equal(exported.module()(other, x), fusedmm.spmm(other, x))


def test_transforms_keep_it():
    """torch.func flattens its arguments."""
    x = torch.rand(15, 4)
    with Calls() as seen:
        torch.func.grad(lambda adj, x: fusedmm.spmm(adj, x).sum(), 1)(square("cpu", **SAID), x)
    assert seen.told == [EVEN, UNEVEN]


def test_pickles_of_older_matrices_lack_it():
    adj = small()
    state = {name: value for name, value in adj.__getstate__().items() if not name.startswith("rows_are")}
    old = object.__new__(fusedmm.CSR)
    old.__setstate__(state)
    assert (old.rows_are, old.rows_are_t) == (UNKNOWN, UNKNOWN)
    x = torch.rand(15, 4)
    assert torch.equal(fusedmm.spmm(pickle.loads(pickle.dumps(old)), x), fusedmm.spmm(adj, x))
