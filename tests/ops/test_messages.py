"""gspmm, gsddmm and their shortcuts against their definition on dense tensors in float64."""

import itertools

import pytest
import torch
from support.bounds import assert_within
from torch.autograd import gradcheck, gradgradcheck

import fusedmm
from fusedmm import gsddmm, gspmm, messages

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMBINE = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
SHAPES = [
    ((), ()),
    ((1,), (1,)),
    ((5,), (5,)),
    ((33,), (33,)),
    ((128,), (1,)),
    ((1,), (40,)),
    ((3, 8), (3, 1)),
    ((3, 1), (3, 9)),
    ((3, 1), (1, 9)),
    ((2, 3, 17), (3, 1)),
    ((2, 1, 3, 1, 2), (1, 2, 1, 2, 1)),
]
ROWS, COLS, NNZ = 7, 9, 60


def graph(seed=0, nnz=NNZ, device="cpu"):
    """Repeated entries, empty rows and columns, an order of edges that is not that of rows."""
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(ROWS - 2, (nnz,), generator=g), torch.randint(COLS - 1, (nnz,), generator=g)
    row[row == 2] = 0
    return row, col, fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(ROWS, COLS))


def operand(n, shape, dtype=torch.float64, seed=0):
    t = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed + n), dtype=torch.float64)
    return torch.where(t.abs() < 0.3, 0.5 + t.abs(), t).to(dtype)


def aligned(a, b):
    rank = max(a.dim(), b.dim())
    return tuple(t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]) for t in (a, b))


def combined(op, a, b):
    if op in ("copy_lhs", "copy_rhs"):
        return a if op == "copy_lhs" else b
    a, b = aligned(a, b)
    return (a * b).sum(-1, keepdim=True) if op == "dot" else COMBINE[op](a, b)


def reduced(row, m, reduce, rows=ROWS):
    found = []
    for i in range(rows):
        mine = m[row == i]
        if not len(mine):
            found.append(torch.zeros_like(m[0]) if len(m) else m.new_zeros(m.shape[1:]))
        else:
            found.append({"sum": mine.sum, "mean": mine.mean, "max": mine.amax, "min": mine.amin}[reduce](0))
    return torch.stack(found)


def names(device):
    return ["auto", *(a.name for a in fusedmm.algorithms("messages", device) if is_runnable(a.name))]


def is_runnable(name):
    isa = name.partition(":")[2]
    return not isa or isa in fusedmm.build_info()["isa"]


@pytest.fixture(autouse=True)
def on_the_cpu(device):
    if device != "cpu":
        pytest.skip("messages have no kernel on CUDA")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*COMBINE, "copy_lhs", "copy_rhs"])
def test_gspmm_is_its_definition(op, shapes):
    row, col, adj = graph()
    for dtype, reduce in itertools.product(DTYPES, ("sum", "mean", "max", "min")):
        x, e = operand(COLS, shapes[0], dtype), operand(NNZ, shapes[1], dtype)
        m = combined(op, x.double()[col], e.double())
        exact = reduced(row, m, reduce)
        magnitude = reduced(row, m.abs(), "mean" if reduce == "mean" else "sum")
        for name in names("cpu"):
            y = gspmm(adj, op, reduce, x, e, algorithm=name)
            assert y.is_contiguous()
            assert_within(y, exact, magnitude, NNZ, dtype, f"{reduce} {name}")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*COMBINE, "dot", "copy_lhs", "copy_rhs"])
def test_gsddmm_is_its_definition(op, shapes):
    row, col, adj = graph(1)
    ends = {"u": (COLS, col), "v": (ROWS, row), "e": (NNZ, torch.arange(NNZ))}
    if op == "dot" and not shapes[0]:
        return
    for dtype, (lhs_at, rhs_at) in itertools.product(DTYPES, itertools.product("uve", repeat=2)):
        lhs, rhs = operand(ends[lhs_at][0], shapes[0], dtype), operand(ends[rhs_at][0], shapes[1], dtype, 1)
        a, b = lhs.double()[ends[lhs_at][1]], rhs.double()[ends[rhs_at][1]]
        exact = combined(op, a, b)
        magnitude = combined(op, a.abs(), b.abs() if op != "sub" else -b.abs())
        for name in names("cpu"):
            y = gsddmm(adj, op, lhs, rhs, lhs_at, rhs_at, algorithm=name)
            assert_within(y, exact, magnitude, 200, dtype, f"{lhs_at} {rhs_at} {name}")


@pytest.mark.parametrize(
    "shapes", [((), ()), ((3,), (1,)), ((2, 1), (2, 3)), ((2, 1), (1, 3)), ((2, 3), (3,))], ids=str
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("op", [*COMBINE, "copy_rhs"])
def test_gradients_of_gspmm(op, reduce, shapes):
    _, _, adj = graph(2, 14)
    x, e = operand(COLS, shapes[0]).requires_grad_(), operand(14, shapes[1]).requires_grad_()

    def call(x, e):
        return gspmm(adj, op, reduce, x if op != "copy_rhs" else None, e)

    assert gradcheck(call, (x, e), fast_mode=True)
    assert gradgradcheck(call, (x, e), fast_mode=True)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 1), (2, 3)), ((3, 2, 1), (2, 3))], ids=str)
@pytest.mark.parametrize("targets", ["uv", "vu", "ue", "ev", "ee", "uu"])
@pytest.mark.parametrize("op", [*COMBINE, "dot", "copy_lhs"])
def test_gradients_of_gsddmm(op, targets, shapes):
    _, _, adj = graph(3, 14)
    sizes = {"u": COLS, "v": ROWS, "e": 14}
    lhs, rhs = (operand(sizes[t], s).requires_grad_() for t, s in zip(targets, shapes, strict=True))

    def call(lhs, rhs):
        return gsddmm(adj, op, lhs, rhs if op != "copy_lhs" else None, *targets)

    assert gradcheck(call, (lhs, rhs), fast_mode=True)
    assert gradgradcheck(call, (lhs, rhs), fast_mode=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("op", [*COMBINE, "copy_rhs"])
def test_ties_share_gradients_evenly(op, reduce, dtype):
    row, col, adj = graph(4)
    g = torch.Generator().manual_seed(5)
    x, e = (2.0 ** torch.randint(0, 2, (n, 3), generator=g).double() for n in (COLS, NNZ))
    g = 2.0 ** torch.randint(0, 3, (ROWS, 3), generator=g).double()
    leaves = [t.to(dtype, copy=True).requires_grad_() for t in (x, e)]
    gspmm(adj, op, reduce, *leaves).backward(g.to(dtype))
    exact = [t.clone().requires_grad_() for t in (x, e)]
    reduced(row, combined(op, exact[0][col], exact[1]), reduce).backward(g)
    for t, want in zip(leaves, exact, strict=True):
        if want.grad is None:
            assert t.grad is None
        else:
            rounding = 0 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(t.grad.double(), want.grad, rtol=rounding, atol=rounding or 1e-14)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_sixteen_bits(reduce):
    row, col, adj = graph(6)
    x, e, g = operand(COLS, (4, 1)), operand(NNZ, (4, 5)), operand(ROWS, (4, 5))
    exact = [t.half().double().requires_grad_() for t in (x, e)]
    reduced(row, combined("div", exact[0][col], exact[1]), reduce).backward(g.half().double())
    leaves = [t.half().requires_grad_() for t in (x, e)]
    gspmm(adj, "div", reduce, *leaves).backward(g.half())
    for t, want in zip(leaves, exact, strict=True):
        assert t.grad.dtype == torch.float16
        torch.testing.assert_close(t.grad.double(), want.grad, rtol=2e-2, atol=2e-2)


def test_numbers_that_are_not_finite_stay_where_they_belong():
    row, col, adj = graph(7)
    for bad, op, reduce in itertools.product(
        (float("nan"), float("inf")), ("add", "mul", "copy_rhs"), ("sum", "mean", "max", "min")
    ):
        for width in (1, 3, 40):
            x, e = operand(COLS, (width,)).abs().float(), operand(NNZ, (width,)).abs().float()
            e[5, 0] = bad
            exact = reduced(row, combined(op, x[col], e), reduce)
            for name in names("cpu"):
                y = gspmm(adj, op, reduce, x, e, algorithm=name)
                assert torch.equal(y.isfinite(), exact.isfinite()), (bad, op, reduce, width, name)
                assert torch.equal(y.isnan(), exact.isnan()), (bad, op, reduce, width, name)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_long_rows_stay_within_the_bound(width):
    """One sequential sum in float32 would be outside."""
    n = 100_000
    adj = fusedmm.CSR.from_coo(torch.zeros(n, dtype=torch.long), torch.arange(n) % 5, shape=(2, 5))
    x, e = torch.full((5, width), 0.1), torch.full((n, width), 0.3)
    for op in ("copy_rhs", "mul"):
        term = combined(op, x.double()[:1], e.double()[:1])
        exact = torch.cat([term * n, torch.zeros_like(term)])
        for name in names("cpu"):
            y = gspmm(adj, op, "sum", x, e, algorithm=name)
            assert_within(y, exact, exact, n, torch.float32, name)


def test_long_dot_products_stay_within_the_bound():
    adj = fusedmm.CSR.from_coo(torch.tensor([0]), torch.tensor([0]), shape=(1, 1))
    n = 100_001
    x = torch.full((1, n), 0.1)
    exact = x.double().square().sum(1, keepdim=True)
    for name in names("cpu"):
        y = gsddmm(adj, "dot", x, x, "u", "e", algorithm=name)
        assert_within(y, exact, exact, n, torch.float32, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_every_time(dtype, threads):
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(300, (2, 20_000), generator=g)
    adj = fusedmm.CSR.from_coo(row, col, shape=(300, 300))
    x, e = operand(300, (17,), dtype), operand(20_000, (17,), dtype)
    found = []
    for count in (1, 3):
        threads(count)
        found.append([gspmm(adj, "add", r, x, e) for r in ("sum", "mean", "max")])
        found[-1].append(gsddmm(adj, "mul", x, x))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_strides_and_sizes_of_nothing():
    row, col, adj = graph(8)
    x, e = operand(5, (COLS, 4)).movedim(1, 0), operand(NNZ, (4, 5)).transpose(1, 2)
    e = torch.cat([e, e], 2)[..., ::2]
    torch.testing.assert_close(gspmm(adj, "mul", "sum", x, e), reduced(row, x[col] * e, "sum"))
    one = torch.ones(1, 1, dtype=torch.float64).expand(NNZ, 3)
    assert torch.equal(gspmm(adj, "copy_rhs", "sum", None, one), reduced(row, one, "sum"))
    assert gspmm(adj, "add", "max", torch.ones(COLS, 0), torch.ones(NNZ, 0)).shape == (ROWS, 0)
    empty = fusedmm.CSR.from_coo(*torch.zeros(2, 0, dtype=torch.long), shape=(3, 4))
    leaves = torch.ones(4, 2, requires_grad=True), torch.ones(0, 2, requires_grad=True)
    for reduce in ("sum", "mean", "max"):
        y = gspmm(empty, "mul", reduce, *leaves)
        assert torch.equal(y, torch.zeros(3, 2))
        gx, ge = torch.autograd.grad(y.sum(), leaves)
        assert torch.equal(gx, torch.zeros(4, 2)) and ge.shape == (0, 2)
    assert gsddmm(empty, "add", torch.ones(4, 2), torch.ones(3, 2)).shape == (0, 2)
    none = fusedmm.CSR.from_coo(*torch.zeros(2, 0, dtype=torch.long), shape=(0, 0))
    assert gspmm(none, "add", "sum", torch.ones(0, 2), torch.ones(0, 2)).shape == (0, 2)


def test_shortcuts_are_what_their_names_say():
    row, col, adj = graph(9)
    x, v, e = operand(COLS, (3,)), operand(ROWS, (3,)), operand(NNZ, (3,))
    ends = {"u": x[col], "v": v[row], "e": e}
    given = {"u": x, "v": v, "e": e}
    for name in messages.SHORTCUTS:
        call, parts = getattr(messages, name), name.split("_")
        if len(parts) == 2:
            assert torch.equal(call(adj, given[parts[1]]), ends[parts[1]]), name
        elif parts[0] == "copy":
            want = reduced(row, ends[parts[1]], parts[2])
            torch.testing.assert_close(call(adj, given[parts[1]]), want, msg=name)
        else:
            want = combined(parts[1], ends[parts[0]], ends[parts[2]])
            want = reduced(row, want, parts[3]) if len(parts) == 4 else want
            torch.testing.assert_close(call(adj, given[parts[0]], given[parts[2]]), want, msg=name)
    assert len(messages.SHORTCUTS) == 2 + 4 * 6 + 30
    assert {"u_mul_e_sum", "copy_e_mean", "e_div_v"} <= set(dir(messages))
    with pytest.raises(AttributeError, match="u_pow_e"):
        _ = messages.u_pow_e


def test_aliases_over_a_graph():
    row, _, adj = graph(10)
    e = operand(NNZ, (2, 3))
    assert torch.equal(messages.scatter_add(adj, e), messages.segment(adj, e))
    torch.testing.assert_close(messages.segment(adj, e, "max"), reduced(row, e, "max"))
    w = messages.scatter_softmax(adj, e)
    exact = e.exp() / reduced(row, e.exp(), "sum")[row]
    torch.testing.assert_close(w, exact)


def test_an_edge_index_is_a_graph():
    edges = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 3]])
    x, e = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([10.0, 20.0, 30.0, 40.0])
    assert torch.equal(gspmm(edges, "add", "sum", x, e), torch.tensor([55.0, 11.0, 0.0, 43.0]))
    assert torch.equal(gsddmm(edges, "sub", x, x), torch.tensor([-1.0, 1.0, 2.0, -1.0]))
    assert torch.equal(gsddmm(edges, "sub", x[:3], x, "u", "v"), torch.tensor([-1.0, 1.0, 2.0, -1.0]))


def test_shortest_paths_and_closeness():
    """The document's example: relaxations until nothing changes."""
    edges = torch.tensor([[0, 1, 2, 0, 3], [1, 2, 3, 3, 4]])
    both, length = torch.cat([edges, edges.flip(0)], 1), torch.tensor([1.0, 1.0, 1.0, 5.0, 2.0]).repeat(2)
    adj, far = fusedmm.CSR.from_edge_index(both, size=5), torch.full((5, 5), torch.inf)
    distance = far.fill_diagonal_(0)
    for _ in range(5):
        distance = torch.minimum(distance, gspmm(adj, "add", "min", distance, length))
    assert torch.equal(distance[0], torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0]))
    closeness = 4 / distance.sum(0)
    torch.testing.assert_close(closeness[0], torch.tensor(4 / 11))


def test_bad_input_is_refused_by_name():
    _, _, adj = graph(11)
    x, e = torch.ones(COLS, 3), torch.ones(NNZ, 3)
    wrong = [
        (ValueError, "op must be one of add, .*not 'dot'; gsddmm has dot", (adj, "dot", "sum", x, e)),
        (ValueError, "op must be one of add, .*not 3", (adj, 3, "sum", x, e)),
        (ValueError, "reduce must be one of sum, mean, max, min, not 'prod'", (adj, "add", "prod", x, e)),
        (TypeError, "x must be a tensor, not NoneType", (adj, "add", "sum", None, e)),
        (TypeError, "e must be a tensor, not list", (adj, "copy_rhs", "sum", None, [1])),
        (TypeError, "e must be float32.*not torch.int64", (adj, "add", "sum", x, e.long())),
        (TypeError, "x is torch.float32, e torch.float64", (adj, "add", "sum", x, e.double())),
        (TypeError, "x must be one dense tensor", (adj, "add", "sum", x.to_sparse(), e)),
        (ValueError, "x has 8 rows, the matrix 9 columns", (adj, "add", "sum", x[1:], e)),
        (ValueError, "e has 59 rows, the matrix 60 entries", (adj, "add", "sum", x, e[1:])),
        (ValueError, r"e must be \[entries, ...\], not a single number", (adj, "add", "sum", x, e[0, 0])),
        (ValueError, r"features do not broadcast: x \[3\], e \[2\]", (adj, "add", "sum", x, e[:, :2])),
        (ValueError, "has values.*pattern", (adj.with_values(e[:, 0]), "add", "sum", x, e)),
    ]
    for error, text, args in wrong:
        with pytest.raises(error, match=text):
            gspmm(*args)
    v = torch.ones(ROWS, 3)
    wrong = [
        (ValueError, "op must be one of add, sub, mul, div, dot, .*not 'max'", (adj, "max", x, v)),
        (ValueError, "lhs_target must be one of u, e, v, not 'w'", (adj, "add", x, v, "w")),
        (ValueError, "rhs_target must be one of u, e, v, not 0", (adj, "add", x, v, "u", 0)),
        (ValueError, "rhs has 9 rows, the matrix 7 rows", (adj, "add", x, x)),
        (TypeError, "rhs must be a tensor", (adj, "copy_rhs", x)),
        (ValueError, "dot needs features", (adj, "dot", x[:, 0], v[:, 0])),
    ]
    for error, text, args in wrong:
        with pytest.raises(error, match=text):
            gsddmm(*args)
    with pytest.raises(ValueError, match="messages has no algorithm 'fast'"):
        gspmm(adj, "add", "sum", x, e, algorithm="fast")
    assert gspmm(adj, "copy_lhs", "sum", x, "ignored").shape == (ROWS, 3)
    assert gsddmm(adj, "copy_rhs", "ignored", v).shape == (NNZ, 3)


def test_backward_needs_no_results_of_sums():
    """A result may be written to in place, and operands of sums too, since no gradient reads them."""
    _, _, adj = graph(12)
    leaf, e = operand(COLS, (3,)).requires_grad_(), operand(NNZ, (3,)).requires_grad_()
    x = leaf * 1
    y = gspmm(adj, "add", "sum", x, e)
    x.zero_()
    y.relu_()
    y.sum().backward()
    assert leaf.grad.shape == (COLS, 3)


def test_transforms_of_torch_func():
    row, col, adj = graph(13, 14)
    x, e = operand(COLS, (2, 3)), operand(14, (2, 1))
    batch = torch.stack([x, 2 * x, -x])
    for op, reduce in itertools.product(("mul", "div", "sub"), ("sum", "mean", "max")):
        call = torch.func.vmap(lambda x, op=op, reduce=reduce: gspmm(adj, op, reduce, x, e.expand(14, 2, 3)))
        want = torch.stack([reduced(row, combined(op, b[col], e), reduce) for b in batch])
        torch.testing.assert_close(call(batch), want)
        tangents = operand(COLS, (2, 3), seed=1), operand(14, (2, 1), seed=1)
        ours = torch.func.jvp(lambda x, e, o=op, r=reduce: gspmm(adj, o, r, x, e), (x, e), tangents)
        theirs = torch.func.jvp(lambda x, e, o=op, r=reduce: reduced(row, combined(o, x[col], e), r), (x, e), tangents)
        torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("op, reduce", [("add", "sum"), ("mul", "mean"), ("div", "max"), ("copy_rhs", "min")])
def test_compiled_code_gives_the_same(op, reduce):
    _, _, adj = graph(14)
    adj.cache_transpose()

    def step(x, e):
        edges = gsddmm(adj, "mul", x, e, "u", "e").sum() + messages.scatter_add(adj, e[:, 0, 0]).square().sum()
        return gspmm(adj, op, reduce, x, e).square().sum() + edges

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    leaves = operand(COLS, (2, 1)).requires_grad_(), operand(NNZ, (2, 3)).requires_grad_()
    plain, other = step(*leaves), compiled(*leaves)
    torch.testing.assert_close(other, plain)
    for a, b in zip(torch.autograd.grad(plain, leaves), torch.autograd.grad(other, leaves), strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("op", ["mul", "copy_rhs", "copy_lhs"])
def test_what_other_operators_compute_has_the_same_gradients(op, shape):
    """auto hands these to spmv and spmm; the algorithms of messages compute them as well."""
    _, _, adj = graph(17)
    features = (*shape[:-1], 1) if shape else ()
    given = operand(COLS, shape), operand(NNZ, features)
    for reduce in ("sum", "mean", "max"):
        found = []
        for algorithm in names("cpu"):
            leaves = [t.clone().requires_grad_() for t in given]
            y = gspmm(adj, op, reduce, *leaves, algorithm=algorithm)
            grads = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)
            found.append((y, *(t for t in grads if t is not None)))
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                torch.testing.assert_close(one, two)


def test_the_operator_as_torch_checks_it():
    _, _, adj = graph(15)
    x, e = operand(COLS, (3,), torch.float32), operand(NNZ, (3,), torch.float32)
    none, ends = adj.none, (adj.ptr, adj.idx, adj.eid, adj.plan)
    at, has = 1 | 2 << 2, sum(0b1000 << 4 * k for k in range(6))
    has |= sum(0b0111 << 4 * k for k in range(6))
    args = (*ends, x, e, none, none, none, 1, 0, 0, at, has, 1, 1, 1, 3, 0)
    torch.library.opcheck(torch.ops.fusedmm._messages, args)


def test_raw_calls_are_checked():
    _, _, adj = graph(16)
    x, none, ends = torch.ones(COLS, 3), adj.none, (adj.ptr, adj.idx, adj.eid, adj.plan)
    has = (1 << 24) - 1
    good = [*ends, x, none, none, none, none, 0, 0, 0, 1, has, 1, 1, 1, 3, 0]
    assert torch.ops.fusedmm._messages(*good).shape == (ROWS, 3)
    for k, bad, text in [
        (4, none, "lhs must be given"),
        (4, torch.ones(COLS, 4), "lhs is f32"),
        (9, 1, "rhs must be given"),
        (9, 9, "no op number 9"),
        (9, 5, "mask_y must be given"),
        (11, 7, "no reduction number 7"),
        (12, 3, "target number 3"),
        (12, 1 | 1 << 10, "out is of rows"),
        (17, 0, "axis 3 must have elements"),
        (17, -5, "axis 3 must have elements"),
        (18, 99, "no algorithm number 99"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            torch.ops.fusedmm._messages(*good[:k], bad, *good[k + 1 :])


@pytest.mark.parametrize("algorithm", ["auto", "reference"])
@pytest.mark.parametrize("part, where, value", [("idx", 3, 99), ("idx", 3, -1), ("eid", 5, 1000), ("ptr", 2, 10**9)])
def test_indices_changed_behind_the_check_reach_nothing(part, where, value, algorithm):
    """Rows without such an index are right; entries that none lists are zero."""
    row, col, good = graph(18)
    x, e = operand(COLS, (5,)), operand(NNZ, (5,))
    adj = graph(18)[2]
    getattr(adj, part)[where] = value
    bad_rows = torch.zeros(ROWS, dtype=torch.bool)
    for i in range(ROWS):
        begin, end = int(good.ptr[i]), int(good.ptr[i + 1])
        bad_rows[i] = i in (1, 2) if part == "ptr" else begin <= where < end
    for op, reduce in (("add", "sum"), ("copy_rhs", "mean"), ("mul", "max")):
        y = gspmm(adj, op, reduce, x, e, algorithm=algorithm)
        torch.testing.assert_close(y[~bad_rows], gspmm(good, op, reduce, x, e)[~bad_rows])
    y, want = gsddmm(adj, "mul", x, e, "u", "e", algorithm=algorithm), x[col] * e
    listed = ~bad_rows[row]
    torch.testing.assert_close(y[listed], want[listed])
    assert bool(((y == want) | (y == 0)).all(1)[~listed].all())
