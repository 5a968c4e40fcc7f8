"""gspmm, gsddmm and their shortcuts against their definition on dense tensors in float64."""

import itertools

import pytest
import torch
from support.bounds import assert_within
from support.edge_messages import COLS, COMBINE, NNZ, ROWS, combined, graph, names, operand, reduced

import fusedmm
from fusedmm import gsddmm, gspmm, messages
from fusedmm.ops.messages import COPY, MAX, MEAN, SUM, Call, message

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [
    ((), ()),
    ((1,), (1,)),
    ((5,), (5,)),
    ((8,), (8,)),
    ((33,), (33,)),
    ((64,), (64,)),
    ((128,), (1,)),
    ((1,), (40,)),
    ((3, 8), (3, 1)),
    ((3, 1), (3, 9)),
    ((3, 1), (1, 9)),
    ((2, 3, 17), (3, 1)),
    ((2, 1, 3, 1, 2), (1, 2, 1, 2, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*COMBINE, "copy_lhs", "copy_rhs"])
def test_gspmm_is_its_definition(op, shapes, device):
    row, col, adj = graph(device=device)
    for dtype, reduce in itertools.product(DTYPES, ("sum", "mean", "max", "min")):
        x, e = operand(COLS, shapes[0], dtype), operand(NNZ, shapes[1], dtype)
        m = combined(op, x.double()[col], e.double())
        exact = reduced(row, m, reduce)
        magnitude = reduced(row, m.abs(), "mean" if reduce == "mean" else "sum")
        for name in names(device):
            y = gspmm(adj, op, reduce, x.to(device), e.to(device), algorithm=name)
            assert y.is_contiguous()
            assert_within(y.cpu(), exact, magnitude, NNZ, dtype, f"{reduce} {name}")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*COMBINE, "dot", "copy_lhs", "copy_rhs"])
def test_gsddmm_is_its_definition(op, shapes, device):
    row, col, adj = graph(1, device=device)
    ends = {"u": (COLS, col), "v": (ROWS, row), "e": (NNZ, torch.arange(NNZ))}
    if op == "dot" and not shapes[0]:
        return
    for dtype, (lhs_at, rhs_at) in itertools.product(DTYPES, itertools.product("uve", repeat=2)):
        lhs, rhs = operand(ends[lhs_at][0], shapes[0], dtype), operand(ends[rhs_at][0], shapes[1], dtype, 1)
        a, b = lhs.double()[ends[lhs_at][1]], rhs.double()[ends[rhs_at][1]]
        exact = combined(op, a, b)
        magnitude = combined(op, a.abs(), b.abs() if op != "sub" else -b.abs())
        for name in names(device):
            y = gsddmm(adj, op, lhs.to(device), rhs.to(device), lhs_at, rhs_at, algorithm=name)
            assert_within(y.cpu(), exact, magnitude, 200, dtype, f"{lhs_at} {rhs_at} {name}")


def test_numbers_that_are_not_finite_stay_where_they_belong(device):
    row, col, adj = graph(7, device=device)
    for bad, op, reduce in itertools.product(
        (float("nan"), float("inf")), ("add", "mul", "copy_rhs"), ("sum", "mean", "max", "min")
    ):
        for width in (1, 3, 40):
            x, e = operand(COLS, (width,)).abs().float(), operand(NNZ, (width,)).abs().float()
            e[5, 0] = bad
            exact = reduced(row, combined(op, x[col], e), reduce)
            for name in names(device):
                y = gspmm(adj, op, reduce, x.to(device), e.to(device), algorithm=name).cpu()
                assert torch.equal(y.isfinite(), exact.isfinite()), (bad, op, reduce, width, name)
                assert torch.equal(y.isnan(), exact.isnan()), (bad, op, reduce, width, name)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_long_rows_stay_within_the_bound(width, device):
    """One sequential sum in float32 would be outside."""
    n = 100_000
    row, col = torch.zeros(n, dtype=torch.long, device=device), torch.arange(n, device=device) % 5
    adj = fusedmm.CSR.from_coo(row, col, shape=(2, 5))
    x, e = torch.full((5, width), 0.1), torch.full((n, width), 0.3)
    for op in ("copy_rhs", "mul"):
        term = combined(op, x.double()[:1], e.double()[:1])
        exact = torch.cat([term * n, torch.zeros_like(term)])
        for name in names(device):
            y = gspmm(adj, op, "sum", x.to(device), e.to(device), algorithm=name)
            assert_within(y.cpu(), exact, exact, n, torch.float32, name)


@pytest.mark.parametrize("ordered", [True, False], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("width", [2, 5, 8, 36])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_edges_into_rows_of_any_length(dtype, width, ordered, device):
    """On CUDA a warp takes up to 64 entries, and rows of more belong to all warps of their block."""
    lengths = torch.tensor([0, 1, 4, 31, 32, 33, 0, 63, 64, 65, 255, 256, 257, 3, 1000, 0, 2, 20_000, 1])
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    if not ordered:
        row = row[torch.randperm(len(row), generator=torch.Generator().manual_seed(1))]
    adj = fusedmm.CSR.from_coo(row.to(device), torch.zeros_like(row).to(device), shape=(len(lengths), 1))
    e = operand(len(row), (width,), dtype, device=device)
    exact, most = (torch.zeros(len(lengths), width).double().index_add(0, row, t.cpu().double()) for t in (e, e.abs()))
    for reduce, n in (("sum", 1), ("mean", lengths.clamp(min=1)[:, None])):
        y = gspmm(adj, "copy_rhs", reduce, None, e)
        assert_within(y.cpu(), exact / n, most / n, 20_000, dtype)
        assert torch.equal(y, gspmm(adj, "copy_rhs", reduce, None, e))


@pytest.mark.parametrize("width", [1, 4, 7])
def test_copies_of_targets_are_as_many_as_entries(width, device):
    row, _, adj = graph(device=device)
    v, degree = operand(ROWS, (width,)), torch.bincount(row, minlength=ROWS)[:, None]
    for reduce, exact in ((SUM, degree * v), (MEAN, (degree > 0) * v), (MAX, (degree > 0) * v)):
        y = message(Call(adj, COPY, "v", "e", "v", (width,), reduce), v.to(device))
        torch.testing.assert_close(y.cpu(), exact)


def test_long_dot_products_stay_within_the_bound(device):
    one = torch.zeros(1, dtype=torch.long, device=device)
    adj = fusedmm.CSR.from_coo(one, one, shape=(1, 1))
    n = 100_001
    x = torch.full((1, n), 0.1, device=device)
    exact = x.cpu().double().square().sum(1, keepdim=True)
    for name in names(device):
        y = gsddmm(adj, "dot", x, x, "u", "e", algorithm=name)
        assert_within(y.cpu(), exact, exact, n, torch.float32, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_every_time(dtype, threads, device):
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(300, (2, 20_000), generator=g)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(300, 300))
    x, e = operand(300, (17,), dtype, device=device), operand(20_000, (17,), dtype, device=device)
    found = []
    for count in (1, 3):
        threads(count)
        found.append([gspmm(adj, "add", r, x, e) for r in ("sum", "mean", "max")])
        found[-1].append(gsddmm(adj, "mul", x, x))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_strides_and_sizes_of_nothing(device):
    row, col, adj = graph(8, device=device)
    row, col, on = row.to(device), col.to(device), {"device": device}
    x, e = operand(5, (COLS, 4), **on).movedim(1, 0), operand(NNZ, (4, 5), **on).transpose(1, 2)
    e = torch.cat([e, e], 2)[..., ::2]
    torch.testing.assert_close(gspmm(adj, "mul", "sum", x, e), reduced(row, x[col] * e, "sum"))
    one = torch.ones(1, 1, dtype=torch.float64, **on).expand(NNZ, 3)
    assert torch.equal(gspmm(adj, "copy_rhs", "sum", None, one), reduced(row, one, "sum"))
    assert gspmm(adj, "add", "max", torch.ones(COLS, 0, **on), torch.ones(NNZ, 0, **on)).shape == (ROWS, 0)
    empty = fusedmm.CSR.from_coo(*torch.zeros(2, 0, dtype=torch.long, **on), shape=(3, 4))
    leaves = torch.ones(4, 2, requires_grad=True, **on), torch.ones(0, 2, requires_grad=True, **on)
    for reduce in ("sum", "mean", "max"):
        y = gspmm(empty, "mul", reduce, *leaves)
        assert torch.equal(y, torch.zeros(3, 2, **on))
        gx, ge = torch.autograd.grad(y.sum(), leaves)
        assert torch.equal(gx, torch.zeros(4, 2, **on)) and ge.shape == (0, 2)
    assert gsddmm(empty, "add", torch.ones(4, 2, **on), torch.ones(3, 2, **on)).shape == (0, 2)
    none = fusedmm.CSR.from_coo(*torch.zeros(2, 0, dtype=torch.long, **on), shape=(0, 0))
    assert gspmm(none, "add", "sum", torch.ones(0, 2, **on), torch.ones(0, 2, **on)).shape == (0, 2)


def test_shortcuts_are_what_their_names_say(device):
    row, col, adj = graph(9, device=device)
    x, v, e = (operand(n, (3,), device=device) for n in (COLS, ROWS, NNZ))
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


def test_aliases_over_a_graph(device):
    row, _, adj = graph(10, device=device)
    e = operand(NNZ, (2, 3), device=device)
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


def test_add_is_another_name_of_the_sum(device):
    """As in spmm and in PyG."""
    _, _, adj = graph(11, device=device)
    x, e = torch.rand(COLS, 3, device=device), torch.rand(NNZ, 3, device=device)
    assert torch.equal(gspmm(adj, "mul", "add", x, e), gspmm(adj, "mul", "sum", x, e))
    assert torch.equal(messages.segment(adj, e, "add"), messages.scatter_add(adj, e))


def test_bad_input_is_refused_by_name(device):
    _, _, adj = graph(11, device=device)
    x, e = torch.ones(COLS, 3, device=device), torch.ones(NNZ, 3, device=device)
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
    v = torch.ones(ROWS, 3, device=device)
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


def test_the_operator_as_torch_checks_it(device):
    _, _, adj = graph(15, device=device)
    x, e = (operand(n, (3,), torch.float32, device=device) for n in (COLS, NNZ))
    none, ends = adj.none, (adj.ptr, adj.idx, adj.eid, adj.plan)
    at, has = 1 | 2 << 2, sum(0b1000 << 4 * k for k in range(6))
    has |= sum(0b0111 << 4 * k for k in range(6))
    args = (*ends, x, e, none, none, none, 1, at, has, 3)
    torch.library.opcheck(torch.ops.fusedmm._messages, args)
    torch.library.opcheck(torch.ops.fusedmm._messages, (*args, 1, 1, 1, 2, 0, 0))


def test_raw_calls_are_checked(device):
    _, _, adj = graph(16, device=device)
    x, none, ends = torch.ones(COLS, 3, device=device), adj.none, (adj.ptr, adj.idx, adj.eid, adj.plan)
    has = (1 << 24) - 1
    good = [*ends, x, none, none, none, none, 0, 1, has, 3, 1, 1, 1, 0, 0, 0]
    assert torch.ops.fusedmm._messages(*good).shape == (ROWS, 3)
    for k, bad, text in [
        (4, none, "lhs must be given"),
        (4, torch.ones(COLS, 4, device=device), "lhs is f32"),
        (9, 1, "rhs must be given"),
        (9, 9, "no op number 9"),
        (9, 5, "mask_y must be given"),
        (16, 7, "no reduction number 7"),
        (10, 3, "target number 3"),
        (10, 1 | 1 << 10, "out is of rows"),
        (12, 0, "axis 3 must have elements"),
        (12, -5, "axis 3 must have elements"),
        (18, 99, "no algorithm number 99"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            torch.ops.fusedmm._messages(*good[:k], bad, *good[k + 1 :])


@pytest.mark.parametrize("part, where, value", [("idx", 3, 99), ("idx", 3, -1), ("eid", 5, 1000), ("ptr", 2, 10**9)])
def test_indices_changed_behind_the_check_reach_nothing(part, where, value, device):
    """Rows without such an index are right; on the CPU entries that none lists are zero."""
    row, col, good = graph(18, device=device)
    row, col = row.to(device), col.to(device)
    x, e = operand(COLS, (5,), device=device), operand(NNZ, (5,), device=device)
    adj = graph(18, device=device)[2]
    getattr(adj, part)[where] = value
    bad_rows = torch.zeros(ROWS, dtype=torch.bool, device=device)
    for i in range(ROWS):
        begin, end = int(good.ptr[i]), int(good.ptr[i + 1])
        bad_rows[i] = i in (1, 2) if part == "ptr" else begin <= where < end
    listed, want = ~bad_rows[row], x[col] * e
    for algorithm in names(device):
        for op, reduce in (("add", "sum"), ("copy_rhs", "mean"), ("mul", "max")):
            y = gspmm(adj, op, reduce, x, e, algorithm=algorithm)
            torch.testing.assert_close(y[~bad_rows], gspmm(good, op, reduce, x, e)[~bad_rows])
        y = gsddmm(adj, "mul", x, e, "u", "e", algorithm=algorithm)
        torch.testing.assert_close(y[listed], want[listed])
        if device == "cpu":
            assert bool(((y == want) | (y == 0)).all(1)[~listed].all())


def test_names_of_dgl_are_told_apart():
    A, e = fusedmm.CSR.eye(3), torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"^segment: reduce must be one of add, sum, mean, max, min, not 'mul'"):
        fusedmm.messages.segment(A, e, reduce="mul")
    with pytest.raises(TypeError, match=r"^gspmm\(\) has no argument 'reduce_op'; give reduce="):
        fusedmm.gspmm(A, "mul", reduce_op="sum", lhs_data=e, rhs_data=e)
    with pytest.raises(TypeError, match=r"^gspmm\(\) has no argument 'g'; give adj=, what as_csr takes"):
        fusedmm.gspmm(g=A, op="mul", reduce_op="sum", lhs_data=e, rhs_data=e)
    with pytest.raises(TypeError, match=r"^gspmm\(\) has no argument 'lhs_data'; give x="):
        fusedmm.gspmm(A, "mul", "sum", lhs_data=e)
    with pytest.raises(ValueError, match=r"^gspmm: reduce must be one of"):
        fusedmm.gspmm(A, "copy_lhs")
