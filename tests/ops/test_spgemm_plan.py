"""Plans of sparse products: gradients of any order, other values, other structures, compiled code."""

import copy
import io
import pickle
from dataclasses import replace

import pytest
import torch
from support.machine import capture
from support.spgemm_oracle import assert_product, random_csr
from torch.autograd import gradcheck, gradgradcheck

import fusedmm
from fusedmm import CSR
from fusedmm.data import stencil
from fusedmm.ops.products import LAYOUT


def values(adj):
    return adj.val.clone().requires_grad_()


def operands(device="cpu"):
    return random_csr(9, 7, 25, torch.float64, device), random_csr(7, 8, 20, torch.float64, device)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("algorithm", ["auto", "kkmem"])
def test_gradients_of_any_order(masked, algorithm, device):
    a, b = operands(device)
    mask = random_csr(9, 8, 30, device=device) if masked else None
    plan = fusedmm.spgemm_plan(a, b, algorithm=algorithm, mask=mask)
    assert gradcheck(lambda u, v: plan(u, v).val, (values(a), values(b)))
    assert gradgradcheck(lambda u, v: plan(u, v).val, (values(a), values(b)))
    assert gradgradcheck(lambda u: plan(u, None).val, (values(a),))
    assert gradcheck(lambda u: plan(u, u[:20]).val, (values(a),))


def test_gradients_are_those_of_dense_products(device):
    a, b = operands(device)
    u, v = values(a), values(b)
    c = fusedmm.spgemm(a.with_values(u), b.with_values(v))
    c.to_dense().pow(2).sum().backward()
    x, y = values(a), values(b)
    (a.with_values(x).to_dense() @ b.with_values(y).to_dense()).pow(2).sum().backward()
    torch.testing.assert_close(u.grad, x.grad)
    torch.testing.assert_close(v.grad, y.grad)


def test_gradients_of_the_longest_rows(device):
    a, b = random_csr(2, 9500, 18000, device=device), random_csr(9500, 40, 20000, device=device)
    u = values(a)
    fusedmm.spgemm(a.with_values(u), b).val.sum().backward()
    _, col, _ = a.coo()
    from_row, _, val = b.coo()
    sums = torch.zeros(9500, dtype=torch.float64, device=device).index_add_(0, from_row, val.double())
    torch.testing.assert_close(u.grad.double(), sums[col], rtol=1e-5, atol=1e-4)


def test_gradients_of_long_rows_and_16_bits(device):
    count = 3000
    hub = torch.arange(count, device=device)
    zeros = torch.zeros_like(hub)
    a = CSR.from_coo(zeros[:1], zeros[:1], torch.ones(1, device=device), shape=(1, 1))
    b = CSR.from_coo(zeros, hub, torch.full((count,), 0.1, device=device), shape=(1, count))
    u = values(a)
    fusedmm.spgemm(a.with_values(u), b).val.sum().backward()
    assert abs(float(u.grad) - float(b.val.double().sum())) <= 4 * count**0.5 * 2**-24 * 0.1 * count
    for dtype in (torch.float16, torch.bfloat16):
        p, q = (m.to(dtype=dtype) for m in operands(device))
        u, v = values(p), values(q)
        fusedmm.spgemm(p.with_values(u), q.with_values(v)).val.sum().backward()
        assert u.grad.dtype == v.grad.dtype == dtype and bool(u.grad.isfinite().all())


def test_forward_mode_and_transforms():
    a, b = operands()
    plan = fusedmm.spgemm_plan(a, b)
    du, dv = torch.randn_like(a.val), torch.randn_like(b.val)
    _, tangent = torch.func.jvp(lambda u, v: plan(u, v).val, (a.val, b.val), (du, dv))
    torch.testing.assert_close(tangent, plan(du, b.val).val + plan(a.val, dv).val)
    batch = torch.randn(3, a.nnz, dtype=torch.float64)
    found = torch.func.vmap(lambda u: plan(u, b.val).val)(batch)
    torch.testing.assert_close(found, torch.stack([plan(u, b.val).val for u in batch]))
    per_sample = torch.func.vmap(torch.func.grad(lambda u: plan(u, b.val).val.sin().sum()))(batch)
    for u, g in zip(batch, per_sample, strict=True):
        u = u.clone().requires_grad_()
        plan(u, b.val).val.sin().sum().backward()
        torch.testing.assert_close(g, u.grad)


def test_other_values_of_the_same_structure(device):
    a, b = random_csr(60, 50, 300, device=device), random_csr(50, 80, 400, device=device)
    for name in ["auto", *(x.name for x in fusedmm.algorithms("spgemm", device))]:
        plan = fusedmm.spgemm_plan(a, b, algorithm=name)
        for _ in range(3):
            u, v = (m.with_values(torch.randn(m.nnz, device=device)) for m in (a, b))
            c = plan(u.val, v.val)
            assert_product(c, u, v, name)
            assert c.ptr is plan.c.ptr and c.idx is plan.c.idx


def test_other_structures_are_refused():
    a, b = random_csr(60, 50, 300), random_csr(50, 80, 400)
    plan = fusedmm.spgemm_plan(a, b)
    with pytest.raises(ValueError, match=r"a_val is \[299\], but the plan is for a matrix a of 300 entries"):
        plan(a.val[1:], b.val)
    with pytest.raises(ValueError, match=r"b_val is \[400, 2\], but the plan is for a matrix b of 400 entries"):
        plan(a.val, b.val[:, None].repeat(1, 2))
    with pytest.raises(TypeError, match="they must be of one dtype"):
        plan(a.val, b.val.double())
    with pytest.raises(TypeError, match=r"a_val must be a tensor of float32, float64, float16 or bfloat16, not CSR"):
        plan(a, b.val)
    with pytest.raises(TypeError, match=r"a_val must be a tensor of .*, not ndarray"):
        plan(a.val.numpy(), b.val)
    with pytest.raises(TypeError, match=r"not torch\.int64"):
        plan(a.val.long(), b.val)
    with pytest.raises(TypeError, match="b_val must be a dense tensor"):
        plan(a.val, b.val.to_sparse())
    assert_product(plan(a.val, b.val), a, b)
    a.idx[0] = (a.idx[0] + 1) % 50
    for use in (lambda: plan(a.val, b.val), lambda: copy.deepcopy(plan), lambda: pickle.dumps(plan)):
        with pytest.raises(ValueError, match="was written to since its plan or product was made"):
            use()


@pytest.mark.parametrize("made", ["a plan", "a product", "a product whose gradient was taken"])
@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_gradients_of_other_structures_are_refused(made, which):
    a, b = operands()
    u, v = values(a), values(b)
    a, b = a.with_values(u), b.with_values(v)
    c = fusedmm.spgemm_plan(a, b)(u, v) if made == "a plan" else fusedmm.spgemm(a, b)
    loss = c.val.sin().sum()
    if made.endswith("taken"):
        torch.autograd.grad(loss, (u, v), retain_graph=True)
    {"a": a, "b": b, "c": c}[which].idx.add_(0)
    with pytest.raises(ValueError, match="was written to since its plan or product was made"):
        torch.autograd.grad(loss, (u, v))


def test_plans_are_frozen_copied_and_pickled():
    a, b = random_csr(60, 50, 300), random_csr(50, 80, 400)
    plan = fusedmm.spgemm_plan(a, b, algorithm="kkmcr")
    assert repr(plan) == f"SpGEMMPlan([60, 50] @ [50, 80], nnz={plan.c.nnz}, kkmcr)"
    with pytest.raises(AttributeError):
        plan.c = a
    exact = plan(a.val, b.val).val
    for other in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert torch.equal(other(a.val, b.val).val, exact)
    torch.save(plan, file := io.BytesIO())
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)(a.val, b.val).val, exact)


@pytest.mark.parametrize("layout", [1, (LAYOUT - 1, "cpu"), (LAYOUT, "meta")])
def test_a_plan_of_another_layout_or_device_goes_without_its_products(device, layout):
    a, b = random_csr(60, 50, 300, device=device), random_csr(50, 80, 400, device=device)
    plan = fusedmm.spgemm_plan(a, b)
    kept = torch.full((1000,), 7, dtype=torch.int32, device=device)
    assert plan.__getstate__()["layout"] == (LAYOUT, torch.device(device).type)
    state = plan.__getstate__() | {"products": kept, "layout": layout}
    older = object.__new__(type(plan))
    older.__setstate__(state)
    assert older.products.numel() == 0
    assert torch.equal(older(a.val, b.val).val, plan(a.val, b.val).val)


@pytest.mark.parametrize("masked", [False, True])
def test_exported_with_a_plan_as_argument(masked):
    class Twice(torch.nn.Module):
        def forward(self, plan, u, v):
            return plan(u, v).val * 2

    a, b = random_csr(20, 30, 60), random_csr(30, 25, 120)
    plan = fusedmm.spgemm_plan(a, b, mask=random_csr(20, 25, 100) if masked else None).cache_transpose()
    program = torch.export.export(Twice(), (plan, a.val, b.val)).module()
    torch.testing.assert_close(program(plan, a.val, b.val), plan(a.val, b.val).val * 2)


@pytest.mark.parametrize("masked", [False, True])
def test_a_captured_plan_replays_on_new_values(masked, cuda):
    a, b = random_csr(60, 50, 300, device=cuda), random_csr(50, 80, 400, device=cuda)
    mask = random_csr(60, 80, 200, device=cuda) if masked else None
    plan = fusedmm.spgemm_plan(a, b, mask=mask).cache_transpose()
    u, v, g = values(a), values(b), torch.randn(plan.c.nnz, device=cuda)

    def step():
        val = plan(u, v).val
        return val.detach(), *torch.autograd.grad(val, (u, v), g)

    captured, found = capture(step)
    for _ in range(3):
        with torch.no_grad():
            u.normal_()
            v.normal_()
        captured.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, step(), strict=True))


@pytest.mark.parametrize("masked", [False, True])
def test_compiled_with_a_plan(masked):
    a, b = random_csr(20, 30, 90), random_csr(30, 25, 110)
    plan = fusedmm.spgemm_plan(a, b, mask=random_csr(20, 25, 60) if masked else None).cache_transpose()

    def step(u, v):
        c = plan(u * 2, v)
        return c.val.sin().sum(), c @ torch.ones(25, 3)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    u, v, x, y = values(a), values(b), values(a), values(b)
    found, exact = compiled(u, v), step(x, y)
    torch.testing.assert_close(found, exact)
    (found[0] + found[1].sum()).backward()
    (exact[0] + exact[1].sum()).backward()
    torch.testing.assert_close(u.grad, x.grad)
    torch.testing.assert_close(v.grad, y.grad)


def test_compiled_with_the_same_values_twice():
    a = random_csr(20, 20, 90)
    plan, u, x = fusedmm.spgemm_plan(a, a).cache_transpose(), values(a), values(a)

    def step(v):
        return plan(v, v).val.sin().sum()

    found, exact = torch.compile(step, fullgraph=True, backend="aot_eager")(u), step(x)
    torch.testing.assert_close(found, exact)
    found.backward()
    exact.backward()
    torch.testing.assert_close(u.grad, x.grad)


def test_compiled_without_a_plan():
    a = random_csr(20, 20, 90)

    def square(val):
        return (a.with_values(val) @ a).val.sum() + 1

    with pytest.raises(Exception, match="spgemm_plan"):
        torch.compile(square, fullgraph=True, backend="eager")(a.val)
    torch.testing.assert_close(torch.compile(square, backend="eager")(a.val), square(a.val))


def test_in_inference_mode():
    with torch.inference_mode():
        a, b = random_csr(20, 30, 90), random_csr(30, 25, 110)
        plan = fusedmm.spgemm_plan(a, b)
        assert_product(plan(a.val, b.val), a, b)


def test_colours_of_a_forged_plan_stay_inside():
    a = random_csr(50, 50, 400)
    plan = fusedmm.spgemm_plan(a, a, algorithm="kkmcw")
    exact, none = plan(a.val, a.val).val, plan.products
    for wrong in (-5, 10**9):
        colours = plan.colours.clone()
        colours[::3] = wrong
        schedule = plan.schedule.clone()
        schedule[5:] = -wrong
        forged = fusedmm.SpGEMMPlan(plan.a, plan.b, plan.c, schedule, colours, none, False, "kkmcw")
        forged(a.val, a.val)
        fusedmm.SpGEMMPlan(plan.a, plan.b, plan.c, schedule, colours, none, False, "auto")(a.val, a.val)
    assert torch.equal(plan(a.val, a.val).val, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("side", [20, 400])
def test_what_a_plan_keeps_of_products(side, dtype, cuda):
    """Where each of them goes, two bytes and more; and nothing beside a mask or for a named algorithm."""
    a = stencil(side, side, points=5).to(cuda)
    val = torch.randn(a.nnz, device=cuda, dtype=dtype)
    plan, other = fusedmm.spgemm_plan(a, a), fusedmm.spgemm_plan(a, a, algorithm="kkmem")
    count = int(a.degree()[a.idx.long()].sum())
    assert plan.products.nbytes > 2 * count
    assert not other.products.numel() and not fusedmm.spgemm_plan(a, a, mask=a).products.numel()
    assert torch.equal(plan.c.idx, other.c.idx) and torch.equal(plan(val, val).val, other(val, val).val)
    assert torch.equal(plan(None, val).val, other(None, val).val)
    assert torch.equal(fusedmm.spgemm(a.with_values(val), a.with_values(val)).val, plan(val, val).val)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3, 40, 500])
@pytest.mark.parametrize("terms", [31, 32, 33, 129, 300])
def test_long_sums_of_a_plan_have_their_terms_in_order(terms, columns, dtype, cuda):
    """A batch of 32 products has one sum, or several terms of each of some, or begins another part of 128 entries."""
    x, y = torch.randn(4, terms, dtype=dtype), torch.randn(terms, columns, dtype=dtype)
    x[2:][torch.rand(2, terms) < 0.5] = 0  # rows 0 and 1 are full
    y[:, 1:][torch.rand(terms, columns - 1) < 0.3] = 0
    for a, b in ((m.to(cuda), n.to(cuda)) for m in in_both_orders(x) for n in in_both_orders(y)):
        plan, other = fusedmm.spgemm_plan(a, b), fusedmm.spgemm_plan(a, b, algorithm="kkspeed")
        assert plan.products.nbytes > 2 * int(b.degree()[a.idx.long()].sum())
        exact = other(a.val, b.val)
        assert torch.equal(plan(a.val, b.val).val, exact.val)
        assert torch.equal(fusedmm.spgemm(a, b).val, exact.val)
    assert_product(exact, a, b)


def in_both_orders(dense):
    """The matrix with its values in the order of entries, and in another."""
    row, col, val = (entries := CSR.from_dense(dense)).coo()
    other = torch.randperm(len(val))
    return entries, CSR.from_coo(row[other], col[other], val[other], shape=dense.shape)


@pytest.mark.parametrize("long_rows", [False, True])
def test_forged_lists_of_products_stay_inside(long_rows, cuda):
    a = (CSR.from_dense(torch.randn(200, 200)) if long_rows else stencil(20, 20, points=9)).to(cuda)
    val = torch.randn(a.nnz, device=cuda)
    plan = fusedmm.spgemm_plan(a, a)
    exact = plan(val, val).val
    assert plan.products.nbytes > 2 * int(a.degree()[a.idx.long()].sum())
    for wrong in (-1, -(2**31), 2**31 - 1, a.nnz, 10**6):
        for products in (torch.full_like(plan.products, wrong), plan.products.clone(), plan.products[1:]):
            products[::3] = wrong
            replace(plan, products=products)(val, val)
    torch.cuda.synchronize()
    assert torch.equal(fusedmm.spgemm_plan(a, a)(val, val).val, exact)


def test_a_product_makes_its_own_plan_when_it_is_used(device):
    a = random_csr(40, 40, 200, device=device)
    c, x = fusedmm.spgemm(a, a), torch.randn(40, 3, device=device)
    other = c.with_values(2 * c.val)
    assert "plan" not in vars(c) and "plan" not in vars(other)
    in_one_graph = torch.compile(lambda c, x: c @ x, fullgraph=True, backend="eager")(c, x)
    # Compiled code makes none that would stay. A compiler that looks at the attribute itself, as torch 2.11's does,
    # gets one of real numbers.
    assert type(vars(c).get("plan", x)) is torch.Tensor
    y = c @ x
    torch.testing.assert_close(y.double(), c.to_dense().double() @ x.double(), rtol=1e-5, atol=1e-5)
    assert vars(c)["plan"] is other.plan and torch.equal(other @ x, 2 * y) and torch.equal(in_one_graph, y)
    assert torch.equal(pickle.loads(pickle.dumps(fusedmm.spgemm(a, a))) @ x, y)


def test_a_captured_graph_makes_no_plan_that_stays(cuda):
    a = random_csr(40, 40, 200, device=cuda)
    x, fresh = torch.randn(40, 3, device=cuda), [fusedmm.spgemm(a, a) for _ in range(4)]
    last = fresh[0]  # three runs come before the capture
    captured, found = capture(lambda: fresh.pop() @ x)
    assert "plan" not in vars(last)
    found.zero_()
    captured.replay()
    assert torch.equal(found, last @ x)


def test_a_plan_is_not_moved():
    a = random_csr(9, 9, 20)
    with pytest.raises(TypeError, match="move the matrices and make a"):
        fusedmm.spgemm_plan(a, a).to("cpu")
