"""Gradients of the algebra in the values, first and second, by differences; and what compiled code makes of it."""

import pytest
import torch
from support.generate import tiny
from torch.autograd import gradcheck, gradgradcheck

import fusedmm
from fusedmm import CSR

OTHER = CSR.from_coo(
    torch.tensor([0, 0, 2, 3, 1]),
    torch.tensor([1, 0, 4, 3, 2]),
    torch.tensor([0.5, -1.0, 2.0, 1.5, -0.5]).double(),
    (4, 5),
)
MASK = torch.tensor([True, False, True, True])
# What is computed of a matrix A [4, 5], and of a square part S [4, 4] of it. Each gives a tensor.
CALLS = {
    "A[rows]": lambda a: a[[2, 0, 2]].val,
    "A[mask]": lambda a: a[MASK.to(a.device)].val,
    "A[:, cols]": lambda a: a[:, [1, 4, 1]].val,
    "A[slices]": lambda a: a[1:, ::2].val,
    "subgraph": lambda a: a[:, :4].subgraph([3, 0, 2]).val,
    "A + B": lambda a: (a + OTHER.to(a.device)).val,
    "A + A": lambda a: (a + a).val,
    "A - B": lambda a: (OTHER.to(a.device) - a).val,
    "A * B": lambda a: (a * OTHER.to(a.device)).val,
    "A * A": lambda a: (a * a).val,
    "A * s": lambda a: (2 * a / 3).val,
    "A * tensor": lambda a: (a * a.val.sum()).val,
    "A / tensor": lambda a: (a / (3 + a.val.sum() ** 2)).val,
    "-A": lambda a: (-a).val,
    "sum": lambda a: torch.cat([a.sum(0), a.sum(1), a.sum()[None]]),
    "mean": lambda a: torch.cat([a.mean(0), a.mean(1), a.mean()[None]]),
    "max": lambda a: torch.cat([a.max(0), a.max(1), a.max()[None]]),
    "min": lambda a: torch.cat([a.min(0), a.min(1), a.min()[None]]),
    "softmax": lambda a: a.softmax().val * a.softmax(0).val,
    "diag": lambda a: a.diag(),
    "coalesce": lambda a: a.coalesce().val * a.coalesce("mean").val * a.coalesce("max").val,
    "add_self_loops": lambda a: a[:, :4].add_self_loops(2.0).val,
    "remove_self_loops": lambda a: a[:, :4].remove_self_loops().val,
    "set_self_loops": lambda a: a[:, :4].set_self_loops(a[:, :4].diag() + 1).val,
    "block_diag": lambda a: fusedmm.block_diag([a, OTHER.to(a.device), a]).val,
    "vstack": lambda a: fusedmm.vstack([a, 2 * a]).val,
    "hstack": lambda a: fusedmm.hstack([a, 2 * a]).t().softmax().val,
    "unbatch": lambda a: fusedmm.unbatch(fusedmm.block_diag([a, a * 3]), [(4, 5)[::1], (4, 5)])[1].val,
    "double": lambda a: a.double().val,
}
FLAT = {
    "x @ A": lambda a: torch.linspace(-1, 1, 8, dtype=torch.float64, device=a.device).view(2, 4) @ a,
    "v @ A": lambda a: torch.linspace(-1, 1, 4, dtype=torch.float64, device=a.device) @ a,
    "to_torch": lambda a: torch.cat([a.to_torch(layout).to_dense() for layout in (torch.sparse_csr, torch.sparse_csc)]),
    "to_edge_index": lambda a: a.to_edge_index()[1],
}


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_the_values(name, heads, device):
    adj = tiny(device, heads=heads)

    def f(val):
        return CALLS[name](adj.with_values(val))

    val = adj.val.detach().clone().requires_grad_()
    assert gradcheck(f, val) and gradgradcheck(f, val)


@pytest.mark.parametrize("name", [*CALLS, *(name for name in FLAT if name != "to_torch")])
def test_transforms_of_the_values(name, device):
    """vmap and forward mode; torch has none of sparse tensors."""
    adj, call = tiny(device), (CALLS | FLAT)[name]

    def f(val):
        return call(adj.with_values(val))

    val = adj.val.detach()
    batch = torch.stack([val, 2 * val, val - 1])
    torch.testing.assert_close(torch.func.vmap(f)(batch), torch.stack([f(v) for v in batch]))
    found = torch.func.jvp(f, (val,), (torch.ones_like(val),))[1]
    near = (f(val + 1e-6) - f(val - 1e-6)) / 2e-6
    torch.testing.assert_close(found, near, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FLAT)
def test_gradients_of_flat_values(name, device):
    adj = tiny(device)

    def f(val):
        return FLAT[name](adj.with_values(val))

    val = adj.val.detach().clone().requires_grad_()
    assert gradcheck(f, val) and (name == "to_torch" or gradgradcheck(f, val))  # torch's, of sparse tensors


@pytest.mark.parametrize("heads", [None, 2])
def test_gradients_of_factors_and_of_loops(heads, device):
    adj = tiny(device, heads=heads)
    size = () if heads is None else (heads,)
    rows, cols = (torch.randn(n, *size, dtype=torch.float64, device=device, requires_grad=True) for n in adj.shape)
    val = adj.val.detach().clone().requires_grad_()

    def f(val, rows, cols):
        return adj.with_values(val).scale(rows=rows, cols=cols).val

    assert gradcheck(f, (val, rows, cols)) and gradgradcheck(f, (val, rows, cols))
    square = adj[:, :4]
    assert gradcheck(lambda loops: square.set_self_loops(loops).val, rows)
    x = torch.randn(2, 4, dtype=torch.float64, device=device, requires_grad=True)
    if heads is None:
        assert gradcheck(lambda x, val: x @ adj.with_values(val), (x, val))
        assert gradcheck(lambda x, val: x[0] @ adj.with_values(val), (x, val))


@pytest.mark.parametrize("call", [lambda a: a.max(1), lambda a: a.max(), lambda a: a.coalesce("max").val])
def test_entries_that_share_a_maximum_share_its_gradient(call, device):
    adj = CSR.from_coo(torch.tensor([0, 0, 0], device=device), torch.tensor([1, 1, 1], device=device), shape=(1, 2))
    val = torch.tensor([4.0, 2.0, 4.0], device=device, requires_grad=True)
    call(adj.with_values(val)).sum().backward()
    assert val.grad.tolist() == [0.5, 0, 0.5]


SEEN = {
    "sums": lambda a: a.sum(1) + a.mean(1) + a.max(1),
    "same structure": lambda a: (2 * a + a.with_values(a.val + 1) - a / 2).val,
    "scale": lambda a: a.scale(rows=a.sum(1), cols=a.sum(0)).val,
    "softmax": lambda a: a.softmax().val,
    "coalesce": lambda a: a.coalesce().val,
    "diag": lambda a: a.diag(),
    "loops": lambda a: a.remove_self_loops().set_self_loops(2.0).val,
    "left": lambda a: torch.ones(4, device=a.device) @ a,
}


@pytest.mark.parametrize("name", SEEN)
def test_compiled_code_of_a_structure_that_was_seen(name, device):
    adj = tiny(device, torch.float32)[:, :4].cache_transpose()
    call = SEEN[name]
    expected = call(adj)
    found = torch.compile(call, fullgraph=True, backend="eager")(adj)
    torch.testing.assert_close(found, expected)
