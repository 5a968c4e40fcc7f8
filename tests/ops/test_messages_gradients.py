"""Gradients of messages, to any order, under torch.func and torch.compile."""

import itertools

import pytest
import torch
from support.bounds import assert_within
from support.edge_messages import COLS, COMBINE, NNZ, ROWS, combined, graph, is_declined, names, operand, reduced
from torch.autograd import gradcheck, gradgradcheck

import fusedmm
from fusedmm import gsddmm, gspmm, messages
from fusedmm._lib import algorithm_number
from fusedmm.ops import messages as raw
from fusedmm.ops.messages import Call, message

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    "shapes", [((), ()), ((3,), (1,)), ((2, 1), (2, 3)), ((2, 1), (1, 3)), ((2, 3), (3,))], ids=str
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("op", [*COMBINE, "copy_rhs"])
def test_gradients_of_gspmm(op, reduce, shapes, device):
    _, _, adj = graph(2, 14, device)
    x, e = (operand(n, s, device=device).requires_grad_() for n, s in zip((COLS, 14), shapes, strict=True))

    def call(x, e):
        return gspmm(adj, op, reduce, x if op != "copy_rhs" else None, e)

    assert gradcheck(call, (x, e), fast_mode=True)
    assert gradgradcheck(call, (x, e), fast_mode=True)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 1), (2, 3)), ((3, 2, 1), (2, 3))], ids=str)
@pytest.mark.parametrize("targets", ["uv", "vu", "ue", "ev", "ee", "uu"])
@pytest.mark.parametrize("op", [*COMBINE, "dot", "copy_lhs"])
def test_gradients_of_gsddmm(op, targets, shapes, device):
    _, _, adj = graph(3, 14, device)
    sizes = {"u": COLS, "v": ROWS, "e": 14}
    lhs, rhs = (operand(sizes[t], s, device=device).requires_grad_() for t, s in zip(targets, shapes, strict=True))

    def call(lhs, rhs):
        return gsddmm(adj, op, lhs, rhs if op != "copy_lhs" else None, *targets)

    assert gradcheck(call, (lhs, rhs), fast_mode=True)
    assert gradgradcheck(call, (lhs, rhs), fast_mode=True)


@pytest.mark.parametrize("way", [True, False], ids=["spmm", "messages"])
@pytest.mark.parametrize("op", ["add", "sub", "copy_lhs"])
def test_sums_of_edges_are_the_same_by_spmm_and_by_messages(op, way, device, monkeypatch):
    """First gradients of what stays at the edges; a device takes one of the two by itself."""
    monkeypatch.setattr(raw, "adds_by_spmm", lambda e, width: way)
    row, col, adj = graph(3, 14, device)
    lhs, rhs = (operand(n, (3,), device=device).requires_grad_() for n in (COLS, ROWS))
    g = operand(14, (3,), device=device)
    gsddmm(adj, op, lhs, None if op == "copy_lhs" else rhs).backward(g)
    for t, at, sign in ((lhs, col, 1), (rhs, row, -1 if op == "sub" else 1)):
        if t is lhs or op != "copy_lhs":
            exact, most = (torch.zeros(t.shape).double().index_add(0, at, v.cpu()) for v in (sign * g, g.abs()))
            assert_within(t.grad.cpu(), exact, most, 14, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("op", [*COMBINE, "copy_rhs"])
def test_ties_share_gradients_evenly(op, reduce, dtype, device):
    row, col, adj = graph(4, device=device)
    g = torch.Generator().manual_seed(5)
    x, e = (2.0 ** torch.randint(0, 2, (n, 3), generator=g).double() for n in (COLS, NNZ))
    g = 2.0 ** torch.randint(0, 3, (ROWS, 3), generator=g).double()
    leaves = [t.to(device, dtype, copy=True).requires_grad_() for t in (x, e)]
    gspmm(adj, op, reduce, *leaves).backward(g.to(device, dtype))
    exact = [t.clone().requires_grad_() for t in (x, e)]
    reduced(row, combined(op, exact[0][col], exact[1]), reduce).backward(g)
    for t, want in zip(leaves, exact, strict=True):
        if want.grad is None:
            assert t.grad is None
        else:
            rounding = 0 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(t.grad.double().cpu(), want.grad, rtol=rounding, atol=rounding or 1e-14)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_sixteen_bits(reduce, device):
    row, col, adj = graph(6, device=device)
    x, e, g = operand(COLS, (4, 1)), operand(NNZ, (4, 5)), operand(ROWS, (4, 5))
    exact = [t.half().double().requires_grad_() for t in (x, e)]
    reduced(row, combined("div", exact[0][col], exact[1]), reduce).backward(g.half().double())
    leaves = [t.half().to(device).requires_grad_() for t in (x, e)]
    gspmm(adj, "div", reduce, *leaves).backward(g.half().to(device))
    for t, want in zip(leaves, exact, strict=True):
        assert t.grad.dtype == torch.float16
        torch.testing.assert_close(t.grad.double().cpu(), want.grad, rtol=2e-2, atol=2e-2)


def test_backward_needs_no_results_of_sums(device):
    """A result may be written to in place, and operands of sums too, since no gradient reads them."""
    _, _, adj = graph(12, device=device)
    leaf, e = (operand(n, (3,), device=device).requires_grad_() for n in (COLS, NNZ))
    x = leaf * 1
    y = gspmm(adj, "add", "sum", x, e)
    x.zero_()
    y.relu_()
    y.sum().backward()
    assert leaf.grad.shape == (COLS, 3)


def test_transforms_of_torch_func(device):
    row, col, adj = graph(13, 14, device)
    row, col = row.to(device), col.to(device)
    x, e = operand(COLS, (2, 3), device=device), operand(14, (2, 1), device=device)
    batch = torch.stack([x, 2 * x, -x])
    for op, reduce in itertools.product(("mul", "div", "sub"), ("sum", "mean", "max")):
        call = torch.func.vmap(lambda x, op=op, reduce=reduce: gspmm(adj, op, reduce, x, e.expand(14, 2, 3)))
        want = torch.stack([reduced(row, combined(op, b[col], e), reduce) for b in batch])
        torch.testing.assert_close(call(batch), want)
        tangents = operand(COLS, (2, 3), seed=1, device=device), operand(14, (2, 1), seed=1, device=device)
        ours = torch.func.jvp(lambda x, e, o=op, r=reduce: gspmm(adj, o, r, x, e), (x, e), tangents)
        theirs = torch.func.jvp(lambda x, e, o=op, r=reduce: reduced(row, combined(o, x[col], e), r), (x, e), tangents)
        torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("op, reduce", [("add", "sum"), ("mul", "mean"), ("div", "max"), ("copy_rhs", "min")])
def test_compiled_code_gives_the_same(op, reduce, device):
    _, _, adj = graph(14, device=device)
    adj.cache_transpose()

    def step(x, e):
        edges = gsddmm(adj, "mul", x, e, "u", "e").sum() + messages.scatter_add(adj, e[:, 0, 0]).square().sum()
        return gspmm(adj, op, reduce, x, e).square().sum() + edges

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    leaves = tuple(operand(n, s, device=device).requires_grad_() for n, s in ((COLS, (2, 1)), (NNZ, (2, 3))))
    plain, other = step(*leaves), compiled(*leaves)
    torch.testing.assert_close(other, plain)
    for a, b in zip(torch.autograd.grad(plain, leaves), torch.autograd.grad(other, leaves), strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("op", ["mul", "copy_rhs", "copy_lhs"])
def test_what_other_operators_compute_has_the_same_gradients(op, shape, device):
    """auto hands these to spmv and spmm; the algorithms of messages compute them as well."""
    _, _, adj = graph(17, device=device)
    features = (*shape[:-1], 1) if shape else ()
    given = operand(COLS, shape, device=device), operand(NNZ, features, device=device)
    for reduce in ("sum", "mean", "max"):
        found = []
        for algorithm in names(device):
            leaves = [t.clone().requires_grad_() for t in given]
            y = gspmm(adj, op, reduce, *leaves, algorithm=algorithm)
            grads = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)
            found.append((y, *(t for t in grads if t is not None)))
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                torch.testing.assert_close(one, two)


def numbered(device):
    """(name, number) of the algorithms that run here, the specification first."""
    found = [name for name in names(device) if name != "auto"]
    found.sort(key=lambda name: name != "reference")
    return [(name, algorithm_number("messages", device, name)) for name in found]


def powers(n, shape, dtype, device):
    """Few different numbers, whose products and quotients are exact, so that many messages are equal."""
    g = torch.Generator().manual_seed(n)
    return (2.0 ** torch.randint(0, 2, (n, *shape), generator=g)).to(device, dtype)


MASKED = [((1,), (1,)), ((3,), (3,)), ((16,), (1,)), ((70,), (70,)), ((2, 3, 1), (2, 1, 20)), ((150, 3), (1, 3))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "op, mask_op", itertools.product(["ONE", "COPY", "MUL", "DIV", "SUB"], ["COPY", "ADD", "SUB", "MUL", "DIV"])
)
def test_masked_sums_are_those_of_the_specification(op, mask_op, dtype, device):
    _, _, adj = graph(19, device=device)
    sizes = {"u": COLS, "v": ROWS, "e": NNZ}
    for shapes, to in itertools.product(MASKED, "vue"):
        whole = tuple(torch.broadcast_shapes(*shapes))
        x, e = powers(COLS, shapes[0], dtype, device), powers(NNZ, shapes[1], dtype, device)
        x, e = (t.reshape(t.shape[0], *[1] * (len(whole) - t.dim() + 1), *t.shape[1:]) for t in (x, e))
        call = Call(adj, getattr(raw, mask_op), "u", "e", "v", whole, raw.MAX)
        y = message(call, x, e if mask_op != "COPY" else None).clone(memory_format=torch.contiguous_format)
        y[0].view(-1)[0], y[1].view(-1)[0] = float("nan"), float("inf")
        x[2].view(-1)[0] = float("inf")
        y = y.reshape(ROWS, *whole)
        g, other = operand(ROWS, whole, dtype, device=device), operand(sizes[to], whole, dtype, 1, device=device)
        masked = call.masked().onto(
            getattr(raw, op), "v", to if to != "v" else "u", to, e.shape[1:] if to == "e" else whole
        )
        if to == "v":
            other = operand(COLS, whole, dtype, 1, device=device)
        lhs, rhs = None if op == "ONE" else g, None if op in ("ONE", "COPY") else other
        mask = (x, e if mask_op != "COPY" else None, y)
        want = None
        for name, number in numbered(device):
            if is_declined(name, getattr(raw, op), to == "e"):
                with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
                    message(masked._replace(algorithm=number), lhs, rhs, *mask)
                continue
            found = message(masked._replace(algorithm=number), lhs, rhs, *mask)
            want = found if want is None else want
            near = max(torch.finfo(found.dtype).eps * 2, 1e-13 if dtype == torch.float64 else 4e-6)
            scale = 1 if op == "ONE" else 1e3
            torch.testing.assert_close(
                found, want, rtol=near, atol=near * scale, equal_nan=True, msg=f"{name} {shapes} {to}"
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["COPY", "ADD", "SUB", "MUL", "DIV"])
def test_sums_to_edges_over_any_axes(op, dtype, device):
    row, col, adj = graph(20, device=device)
    for lhs, rhs, kept in (
        ((4, 8), (4, 8), (1, 8)),
        ((4, 1), (4, 20), (1, 20)),
        ((300, 2), (300, 2), (1, 2)),
        ((2, 140, 3), (2, 1, 3), (2, 1, 3)),
        ((2, 5, 33), (2, 5, 33), (2, 1, 1)),
        ((2, 3), (2, 3), (1, 1)),
    ):  # fmt: skip
        x, v = operand(COLS, lhs, dtype, device=device), operand(ROWS, rhs, dtype, device=device)
        a, b = x.double().cpu()[col], v.double().cpu()[row]
        lost = [d + 1 for d, size in enumerate(kept) if size == 1 and max(lhs[d], rhs[d]) > 1]
        terms = combined("copy_lhs" if op == "COPY" else op.lower(), a, b)
        exact, size = terms.sum(lost, keepdim=True), terms.abs().sum(lost, keepdim=True)
        if op in ("ADD", "SUB"):
            size = (a.abs() + b.abs()).sum(lost, keepdim=True)
        if op == "COPY" and lhs != torch.broadcast_shapes(lhs, rhs):
            continue
        for name, number in numbered(device):
            call = Call(adj, getattr(raw, op), "u", "v", "e", kept, algorithm=number)
            found = message(call, x, None if op == "COPY" else v).reshape(exact.shape)
            assert_within(found.cpu(), exact, size, 2 * terms[0].numel(), dtype, f"{name} {lhs} {rhs}")


def test_gradients_are_the_same_bits_for_any_number_of_threads(threads, device):
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(300, (2, 20_000), generator=g)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(300, 300))
    found = []
    for count in (1, 3):
        threads(count)
        grads = []
        for reduce, shapes in (("max", ((17,), (17,))), ("min", ((4, 8), (4, 1))), ("sum", ((4, 8), (1, 8)))):
            leaves = [
                operand(n, s, torch.float32, device=device).requires_grad_()
                for n, s in zip((300, 20_000), shapes, strict=True)
            ]
            grads += torch.autograd.grad(gspmm(adj, "mul", reduce, *leaves).square().sum(), leaves)
        found.append(grads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("width", [1, 3, 20, 70])
def test_long_rows_under_a_mask_stay_within_the_bound(width, device):
    """One sequential sum in float32 would be outside."""
    n = 100_000
    row, col = torch.zeros(n, dtype=torch.long, device=device), torch.arange(n, device=device) % 5
    adj = fusedmm.CSR.from_coo(row, col, shape=(2, 5))
    e = torch.full((n, width), 0.5, device=device)
    e[::3] = 0.25
    y, other = torch.full((2, width), 0.5, device=device), torch.full((n, width), 0.3, device=device)
    kept = (e[:, 0] == 0.5).sum().item()
    for name, number in numbered(device):
        call = Call(adj, raw.COPY, "e", "e", "v", (width,), algorithm=number, mask_op=raw.COPY, mask_lhs_at="e")
        count = message(call._replace(op=raw.ONE), None, None, e, None, y)
        assert torch.equal(count.cpu(), torch.tensor([[kept], [0.0]]).expand(2, width)), name
        exact = torch.tensor([[kept], [0]]) * other[:1].double().cpu()
        assert_within(message(call, other, None, e, None, y).cpu(), exact, exact, kept, torch.float32, name)
