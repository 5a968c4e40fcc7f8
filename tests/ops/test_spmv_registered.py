"""torch.ops.fusedmm.spmv, which C++ and exported programs call: what torch checks, its gradients, and an export."""

import pytest
import torch
from support.generate import small, tiny
from support.matvec import rows_of_lengths
from torch.export import Dim, export, load, save
from torch.library import opcheck

import fusedmm

spmv = torch.ops.fusedmm.spmv


def whole(adj):
    return adj.ptr, adj.idx, adj.eid, adj.plan, *adj.cache_transpose().transpose_half()


def vectors(adj, dtype=torch.float64):
    """(val, x, y) that learn."""
    sizes = adj.nnz, adj.shape[1], adj.shape[0]
    return [torch.randn(n, dtype=dtype, device=adj.device, requires_grad=True) for n in sizes]


def test_opcheck(device):
    """torch's own checks of schema, fake kernel, autograd registration and AOT dispatch."""
    adj = small(device=device)
    val, x, y = vectors(adj)
    opcheck(spmv.default, (*whole(adj), val, x, y, 2.0, -0.5, 0))
    opcheck(spmv.default, (*whole(adj), adj.none, x, adj.none, 1.0, 0.0, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("learns", ["val", "x", "y", "all"])
def test_it_is_the_function(learns, dtype, device):
    """The same numbers and the same gradients, whichever operand alone wants one."""
    adj = small(device=device)
    given = dict(zip(("val", "x", "y"), (t.detach() for t in vectors(adj, dtype)), strict=True))
    wanted = [t.requires_grad_() for name, t in given.items() if learns in (name, "all")]
    ours = fusedmm.spmv(adj.with_values(given["val"]), given["x"], alpha=2, beta=3, y=given["y"])
    theirs = spmv(*whole(adj), *given.values(), 2.0, 3.0, 0)
    assert torch.equal(ours, theirs)
    up = torch.randn_like(ours)
    for one, other in zip(torch.autograd.grad(ours, wanted, up), torch.autograd.grad(theirs, wanted, up), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_derivatives_by_differences(beta, device):
    adj = tiny(device)
    halves = whole(adj)

    def product(val, x, y):
        return spmv(*halves, val, x, y, 2.5, beta, 0)

    assert torch.autograd.gradcheck(product, vectors(adj))
    assert torch.autograd.gradgradcheck(product, vectors(adj))


def test_y_that_is_not_read_gets_zeros(device):
    """Not beta times the gradient above, which may be infinite."""
    adj = tiny(device)
    val, x, y = vectors(adj)
    up = torch.full_like(y, float("inf"))
    for result in (
        spmv(*whole(adj), val, x, y, 1.0, 0.0, 0),
        fusedmm.spmv(adj.with_values(val), x, y=y),
    ):
        assert torch.equal(torch.autograd.grad(result, y, up)[0], torch.zeros_like(y))


def test_a_gradient_without_the_transpose_is_refused(device):
    adj = small(device=device)
    val, x, y = vectors(adj)
    halves = (adj.ptr, adj.idx, adj.eid, adj.plan, *[adj.none] * 4)
    result = spmv(*halves, val, x, y, 1.0, 1.0, 0)
    with pytest.raises(RuntimeError, match="a gradient needs the transpose: give ptr_t"):
        result.sum().backward()
    ones = torch.ones_like(y)
    result = spmv(*halves, val, x.detach(), y, 1.0, 1.0, 0)  # its gradients need none
    gval, gy = torch.autograd.grad(result.sum(), (val, y))
    assert torch.equal(gy, ones) and torch.equal(gval, x.detach()[adj.coo()[1]])


WRONG = {
    "too few values": ({"val": torch.ones(3)}, "val has 3 values"),
    "x of two dimensions": ({"x": torch.ones(15, 1)}, "x must have 1 dimension"),
    "y too short": ({"y": torch.ones(11)}, r"y_in is f32 \[11, 1, 1\], should be f32 \[12, 1, 1\]"),
    "beta without y": ({"y": torch.ones(0)}, r"y_in is f32 \[0, 1, 1\], should be f32 \[12, 1, 1\]"),
    "no such algorithm": ({"algorithm": 99}, "no algorithm number 99"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, device):
    adj, (changed, text) = small(device=device), WRONG[case]
    given = {"val": adj.val, "x": torch.ones(15), "y": torch.ones(12), "alpha": 1.0, "beta": 1.0, "algorithm": 0}
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in (given | changed).items()}
    with pytest.raises(RuntimeError, match=text):
        spmv(*whole(adj), *given.values())


def test_an_algorithm_of_another_format_is_refused(device):
    adj = small(device=device)
    (coo,) = (a.number for a in fusedmm.algorithms("spmv", device) if a.name == "coo")
    with pytest.raises(RuntimeError, match="algorithm coo does not support this call"):
        spmv(*whole(adj), adj.val, torch.ones(15, device=device), adj.none, 1.0, 0.0, coo)


class Product(torch.nn.Module):
    def forward(self, ptr, idx, ptr_t, idx_t, eid_t, val, x, y):
        none = val.new_empty(0)
        eid, plan = idx.new_empty(0), none.to(torch.uint8)
        return spmv(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan, val, x, y, 2.0, 3.0, 0)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_is_stored_and_runs_on_another_graph(strict, device, tmp_path):
    """From CSRs in order and without a plan, as C++ would make them."""

    def inputs(rows, cols):
        adj = rows_of_lengths([k % 5 for k in range(rows)], cols, device)
        ptr_t, idx_t, eid_t, _ = adj.cache_transpose().transpose_half()
        x, y = torch.randn(cols, device=device), torch.randn(rows, device=device)
        return adj, (adj.ptr, adj.idx, ptr_t, idx_t, eid_t, adj.val, x, y)

    _, example = inputs(12, 15)
    program = export(Product(), example, dynamic_shapes=[{0: Dim.DYNAMIC}] * len(example), strict=strict)
    save(program, tmp_path / "product.pt2")
    adj, other = inputs(40, 31)
    *_, val, x, y = other
    for exported in (program, load(tmp_path / "product.pt2")):
        torch.testing.assert_close(exported.module()(*other), fusedmm.spmv(adj, x, alpha=2, beta=3, y=y))
    learns = val.clone().requires_grad_()
    (g,) = torch.autograd.grad(program.module()(*other[:5], learns, x, y).sum(), learns)
    torch.testing.assert_close(g, 2 * x[adj.coo()[1]])
