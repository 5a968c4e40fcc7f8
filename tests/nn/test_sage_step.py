"""SAGEConv's sum or mean and its maps as one step of autograd, against its parts."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import linear

import fusedmm
from fusedmm.nn import SAGEConv
from fusedmm.ops import sage
from fusedmm.ops.sage import ONE_STEP, convolve

ROWS, COLS = 30, 40
CASES = {  # whether t is x, another, or has no part
    "one": (True, True),
    "pair": (False, True),
    "no root": (True, False),
}


def graph(device, rows=ROWS, cols=COLS):
    g = torch.Generator().manual_seed(1)
    row, col = torch.randint(rows - 1, (7 * rows,), generator=g), torch.randint(cols, (7 * rows,), generator=g)
    return fusedmm.CSR.from_coo(row.to(device), col.to(device), None, (rows, cols))  # the last row has no entry


def operands(case, dtype=torch.float64, device="cpu", rows=ROWS, cols=COLS):
    """The matrix, and x, target, weight, bias and own; x has more features than the result, or fewer."""
    same, root = CASES[case]
    rows = cols if same else rows
    g = torch.Generator().manual_seed(2)
    features = 5 if same else 3
    sizes = (cols, features), (rows, 3), (4, features), (4,), (4, features)
    given = [torch.randn(size, generator=g, dtype=torch.float64).to(device, dtype) for size in sizes]
    given[1] = None if same else given[1]
    given[4] = given[4] if root else None
    return graph(device, rows, cols), given


def in_parts(adj, reduce, x, target, weight, bias, own):
    out = linear(fusedmm.spmm(adj, x, reduce=reduce), weight, bias)
    return out if own is None else out + linear(x if target is None else target, own)


@pytest.mark.parametrize("reduce", ONE_STEP)
@pytest.mark.parametrize("learnt", [(0, 1, 2, 3, 4), (0,), (1,), (2,), (3,), (4,), (0, 4), ()], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_step_is_its_parts(case, learnt, reduce, device):
    """In float64, where rounding is far below what any mistake would give."""
    found = []
    for way in (convolve, in_parts):
        adj, given = operands(case, device=device)
        wanted = [given[k].requires_grad_() for k in learnt if given[k] is not None]
        out = way(adj, reduce, *given)
        assert out.requires_grad == bool(wanted)
        found.append([out.detach(), *(torch.autograd.grad(out.square().sum(), wanted) if wanted else ())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", ONE_STEP)
@pytest.mark.parametrize("case", CASES)
def test_narrow_dtypes(case, reduce, dtype, device):
    """Against float64 of the same numbers; what lies between is rounded once more, as in the parts."""
    found = []
    for to in (dtype, torch.float64):
        adj, given = operands(case, dtype, device)
        given = [None if t is None else t.to(to).requires_grad_() for t in given]
        wanted = [t for t in given if t is not None]
        found.append(torch.autograd.grad(convolve(adj, reduce, *given).sum(), wanted))
    unit = torch.finfo(dtype).eps
    for one, exact in zip(*found, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), exact, rtol=8 * unit, atol=8 * unit * float(exact.abs().max()))


@pytest.mark.parametrize("reduce", ONE_STEP)
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_any_order(case, reduce, device):
    adj, given = operands(case, device=device, rows=5, cols=6)
    places = [k for k, t in enumerate(given) if t is not None]

    def compute(*leaves):
        whole = dict(zip(places, leaves, strict=True))
        return convolve(adj, reduce, *(whole.get(k) for k in range(5)))

    leaves = [given[k].requires_grad_() for k in places]
    assert gradcheck(compute, leaves, check_batched_grad=True) and gradgradcheck(compute, leaves)
    for k, leaf in enumerate(leaves):  # where no other gradient is wanted, none is made
        others = [t.detach() for t in leaves]
        assert gradgradcheck(lambda t, k=k, others=others: compute(*others[:k], t, *others[k + 1 :]).square(), [leaf])


@pytest.mark.parametrize("case", CASES)
def test_transforms_and_tangents_take_the_parts(case, device):
    adj, (x, *others) = operands(case, device=device)
    tangent = torch.randn_like(x)
    found = torch.func.jvp(lambda x: convolve(adj, "mean", x, *others), (x,), (tangent,))
    expected = torch.func.jvp(lambda x: in_parts(adj, "mean", x, *others), (x,), (tangent,))
    many = torch.func.vmap(lambda x: convolve(adj, "mean", x, *others))(torch.stack([x, 2 * x]))
    for one, other in zip((*found, many[0]), (*expected, expected[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_backward_within_autocast(device):
    """Its products are of another dtype there, torch's own too."""
    adj, given = operands("one", torch.float32, device)
    leaves = [t.requires_grad_() for t in given if t is not None]
    out = convolve(adj, "mean", *given)
    expected = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = torch.autograd.grad(out.sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1)


def test_what_is_not_read_again_may_be_written_to(device):
    for case in ("no root", "pair"):
        adj, (x, *others) = operands(case, device=device)
        x = x.requires_grad_().clone()
        others = [None if t is None else t.requires_grad_() for t in others]
        out = convolve(adj, "mean", x, *others)
        x.zero_()
        out.sum().backward()
    adj, (x, *others) = operands("pair", device=device)  # where x alone learns, no other map's weight is read
    out = convolve(adj, "mean", x.requires_grad_(), *others)
    others[-1].zero_()
    out.sum().backward()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [0, 5])
def test_no_edges_and_no_nodes(n, case, device):
    empty = torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    adj = fusedmm.CSR.from_csr(*empty, None, (n, n)).to(device)
    _, given = operands(case, device=device, rows=n, cols=n) if n else operands(case, device=device)
    given = [t if t is None or k > 1 else t[:n] for k, t in enumerate(given)]
    leaves = [t.requires_grad_() for t in given if t is not None]
    out = convolve(adj, "mean", *given)
    torch.testing.assert_close(out, in_parts(adj, "mean", *given))
    for g, leaf in zip(torch.autograd.grad(out.sum(), leaves), leaves, strict=True):
        assert g.shape == leaf.shape and g.isfinite().all()


@pytest.fixture
def steps(monkeypatch):
    """How often the step was taken."""
    taken, apply = [], sage.Convolution.apply
    monkeypatch.setattr(sage.Convolution, "apply", lambda *args: taken.append(1) or apply(*args))
    return taken


def test_the_layer_takes_the_step_where_nothing_is_to_see_the_parts(steps, device):
    adj, x = graph(device, COLS), torch.randn(COLS, 5, device=device)
    conv = SAGEConv(5, 4).to(device)
    expected, seen = conv(x, adj), []
    conv((x, x[:COLS]), adj)
    SAGEConv(5, 4, "sum", root_weight=False, bias=False).to(device)(x, adj)
    assert len(steps) == 3
    others = SAGEConv(5, 4, "max"), SAGEConv(5, 4, ["mean", "sum"])
    for other in others:
        other.to(device)(x, adj)
    batch = conv(torch.stack([x, x]), adj)
    valued = conv(x, adj.with_values(torch.ones(adj.nnz, device=device).requires_grad_()))
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = conv(x, adj)
    cast.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in conv.parameters())
    torch.testing.assert_close(cast.float(), expected, rtol=0.1, atol=0.1)
    for lin in (conv.lin_l, conv.lin_r):
        handle = lin.register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
        torch.testing.assert_close(conv(x, adj), expected)
        handle.remove()
    assert seen == [(COLS, 4)] * 2
    conv.lin_l.forward = lambda x, old=conv.lin_l.forward: old(x) + 1
    torch.testing.assert_close(conv(x, adj), expected + 1)
    del conv.lin_l.forward
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: seen.append(type(module)))
    torch.testing.assert_close(conv(x, adj), expected)
    handle.remove()
    assert [kind.__name__ for kind in seen[2:]] == ["Linear", "Linear", "SAGEConv"]
    conv.lin_l = torch.nn.Linear(5, 4, device=device)
    conv(x, adj)
    assert len(steps) == 3
    torch.testing.assert_close(batch[1], expected)
    torch.testing.assert_close(valued, expected)


def test_bad_edges_are_named_by_the_same_call(steps, device):
    conv, x = SAGEConv(5, 4).to(device), torch.randn(6, 5, device=device)
    for edge_index, place in (
        (torch.tensor([[0, 6], [1, 2]]), r"edge_index\[0, 1\] = 6"),
        (torch.tensor([[0, 1], [-1, 2]]), r"edge_index\[1, 0\] = -1"),
    ):
        with pytest.raises(ValueError, match=place):
            conv(x, edge_index.to(device))
    assert conv(x, torch.tensor([[0, 1], [1, 2]], device=device)).isfinite().all()
