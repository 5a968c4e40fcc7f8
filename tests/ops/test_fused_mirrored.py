"""The gradient of one x that serves as all operands, over a symmetric pattern: one pass, as the two others give it."""

import pytest
import torch
from support.fused_oracle import Stages, for_edge
from test_fused import passes

import fusedmm
from fusedmm._lib import ACTIVATIONS, MESSAGES, SCORES, ops
from fusedmm.edge.parse import parse
from fusedmm.ops import fused as fused_module


def mirrored_pattern(dtype: torch.dtype, heads: int | None, valued: bool) -> fusedmm.CSR:
    """[40, 40]: every (i, j) has its (j, i), with another value; one row in many pieces, some empty, repeats."""
    row = torch.cat([torch.full((150,), 3), torch.randint(5, 40, (90,))])
    col = torch.cat([torch.randint(5, 40, (150,)), torch.randint(5, 40, (90,))])
    row, col = torch.cat([row, col]), torch.cat([col, row])
    val = torch.randn(480, *([] if heads is None else [heads]), dtype=dtype) if valued else None
    return fusedmm.CSR.from_coo(row, col, val, shape=(40, 40)).cache_transpose()


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("feat", [1, 3, 16, 32, 40, 130, 520, 1024])
def test_one_pass_over_a_symmetric_pattern(feat, heads, valued):
    """The sum of all three gradients of one x, by every algorithm of the CPU, as the reference's passes give them."""
    adj = mirrored_pattern(torch.float64, heads, valued)
    assert torch.equal(adj.ptr, adj.ptr_t) and torch.equal(adj.idx, adj.idx_t)
    inner = [] if heads is None else [heads]
    x, g = (torch.randn(40, *inner, feat, dtype=torch.float64) for _ in range(2))
    x /= feat**0.5
    st = Stages("dot", "tanh(s)*a - s", "scale", None)
    val = adj.val if valued else torch.ones(adj.nnz, dtype=torch.float64)
    gx, _, gy, gz = passes(adj.with_values(val), x, x, x, g, st, 1, "cpu")
    kinds = (parse(st.edge).program(gradients=True), SCORES["dot"], MESSAGES["scale"], ACTIVATIONS[None])
    val, val_t = (adj.val, adj.val[adj.eid_t.long()]) if valued else (adj.none, adj.none)
    for algorithm in fusedmm.algorithms("fused", "cpu"):
        try:
            found = ops._fused_mirrored.default(
                adj.ptr, adj.idx, adj.eid, adj.plan, val, x, adj.none, adj.none, g, val_t, *kinds, algorithm.number
            )
        except RuntimeError as error:
            assert "does not support this call" in str(error) and algorithm.name != "reference"
            continue
        torch.testing.assert_close(found, gx + gy + gz, msg=algorithm.name)


@pytest.mark.parametrize("edge", ["s", "sigmoid(s)", "s*a", "tanh(s)*a"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_pass_is_taken_and_gives_the_gradient(edge, dtype, monkeypatch):
    """By fused itself, whatever order and whether of constant values; not over a pattern that is not symmetric."""
    adj = mirrored_pattern(torch.float32, None, True)
    x, g = torch.randn(40, 8).to(dtype).requires_grad_(), torch.randn(40, 8).to(dtype)
    one_sided = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.ones(2), shape=(40, 40))
    calls = []
    one_pass = fused_module._by_one_pass
    monkeypatch.setattr(fused_module, "_by_one_pass", lambda *given: calls.append(one_pass(*given)) or calls[-1])
    fresh = fusedmm.CSR.from_csr(adj.ptr, adj.idx, adj.val[adj.eid.long()], shape=(40, 40))
    for a, taken in ((adj, True), (adj.with_values(adj.val), True), (fresh, True), (one_sided, False)):
        exact, a = x.detach().double().requires_grad_(), for_edge(a, edge)
        wide = a.to(dtype=torch.float64)
        (wanted,) = torch.autograd.grad(fusedmm.fused(wide, exact, exact.clone(), edge=edge), exact, g.double())
        calls.clear()
        (found,) = torch.autograd.grad(fusedmm.fused(a, x, edge=edge, reduce="sum"), x, g)
        assert [c is not None for c in calls] == [taken]
        near = {torch.float32: 1e-4, torch.float16: 2e-2}[dtype]
        assert (found.double() - wanted).abs().max() <= near * wanted.abs().max()


def test_one_pass_is_refused_where_it_is_none():
    adj = mirrored_pattern(torch.float64, None, True)
    x, g = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 5, dtype=torch.float64)
    program, plain = parse("s").program(gradients=True), (SCORES["dot"], MESSAGES["scale"], ACTIVATIONS[None])
    structure = (adj.ptr, adj.idx, adj.eid, adj.plan)
    for val_t, kinds, said in (
        (adj.val, (SCORES["l1"], *plain[1:]), "one x"),
        (adj.val, (*plain[:2], ACTIVATIONS["relu"]), "one x"),
        (adj.none, plain, "val without val_t"),
        (adj.val[1:], plain, "values for"),
    ):
        with pytest.raises(RuntimeError, match=said):
            ops._fused_mirrored.default(*structure, adj.val, x, adj.none, adj.none, g, val_t, program, *kinds, 0)


@pytest.mark.parametrize("layout", ["transposed", "stepped", "expanded"])
def test_one_x_of_any_strides(layout):
    adj = fusedmm.CSR.from_edge_index(torch.tensor([[0, 1, 2, 1, 3, 2], [1, 0, 1, 2, 2, 3]]), size=4)
    x = {
        "transposed": lambda: torch.randn(3, 4).t(),
        "stepped": lambda: torch.randn(4, 9)[:, 1:7:2],
        "expanded": lambda: torch.randn(4, 1).expand(4, 3),
    }[layout]()
    strided, plain = x.detach().requires_grad_(), x.clone(memory_format=torch.contiguous_format).requires_grad_()
    assert strided.stride() != plain.stride()
    found, expected = (torch.autograd.grad(fusedmm.fused(adj, t).square().sum(), t)[0] for t in (strided, plain))
    assert torch.equal(found, expected)
