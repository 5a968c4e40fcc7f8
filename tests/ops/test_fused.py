"""fused against its definition in float64, within the stated bound: every algorithm, every form, every gradient."""

import itertools
import random
from zlib import crc32

import pytest
import torch
from support.bounds import UNIT, accumulator
from support.fused_oracle import Stages, assert_near, for_edge, forward, gradients
from support.generate import Case, cases, own_algorithms, run_or_decline, small

import fusedmm
from fusedmm import presets, reference
from fusedmm._lib import ACTIVATIONS, MESSAGES, REDUCTIONS, SCORES, ops
from fusedmm.edge.parse import parse

EDGES = [
    "s*a", "a", "1", "s", "sigmoid(s)", "sigmoid(-s)", "a/(1+s)", "leaky_relu(s, 0.2)*a", "exp(-s/2)", "tanh(s)*a - s",
    "softplus(s + a)", "sqrt(1 + s**2)", "log(2 + s**2)*a", "relu(s - a)", "minimum(s, a)", "maximum(s*a, a)",
    "abs(s) + a**2", "(s**2 + 1)**-0.5", "s**3 / (2 + a**2)",
]  # fmt: skip
PRESETS = {name: value for name, value in vars(presets).items() if name.isupper()}
POSITIVE = {"a/(1+s)"}  # a pole at s = -1: only for scores that are none or distances


def stages(seed: int) -> Stages:
    """Five choices at random; an edge function with a pole only where the score stays away from it."""
    rng = random.Random(seed)
    score = rng.choice([s for s in SCORES if s != "additive"])
    edges = EDGES if score in ("none", "sqdist", "l1") else [e for e in EDGES if e not in POSITIVE]
    if score == "none":  # s is 1 there: an edge function of s alone would be a constant
        edges = [e for e in edges if "a" in e.replace("tanh", "")]
    picked = (rng.choice(list(MESSAGES)), rng.choice(list(ACTIVATIONS)), rng.choice(list(REDUCTIONS)))
    return Stages(score, rng.choice(edges), *picked)


def algorithms(device):
    return own_algorithms("fused", device)


def check(adj, x, y, z, st: Stages, names=("auto",)):
    """Every named algorithm's result; what is exact is computed once for all of them."""
    adj = for_edge(adj, st.edge)
    exact = forward(adj, x, y, z, st)
    given = (x, y, z if st.message == "scale" else None)
    for algorithm in names:
        out = run_or_decline(fusedmm.fused, adj, *given, **st._asdict(), algorithm=algorithm)
        if out is not None:
            assert out.is_contiguous() and out.device == adj.device
            assert_near(out, *exact, x.dtype, f"{algorithm} {st}", "fused")


def operands(rows, cols, feat, heads=None, dtype=torch.float32, device="cpu", wide=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    inner = [] if heads is None else [heads]
    return [
        (torch.randn(n, *inner, f, generator=g, dtype=torch.float64) / 2).to(dtype).to(device)
        for n, f in ((rows, feat), (cols, feat), (cols, wide or feat))
    ]


@pytest.mark.parametrize("case", [c for c in cases() if c.data in ("random", "constant")], ids=str)
def test_covering_array(case: Case, device):
    adj = case.matrix(device)
    x, y, z = (
        case.dense(n, device, seed) / max(case.feat, 1) ** 0.5 for seed, n in enumerate(adj.shape + adj.shape[1:])
    )
    for st in (Stages(), stages(crc32(str(case).encode())), stages(case.feat + 7)):
        check(adj, x, y, z, st, algorithms(device))


@pytest.mark.parametrize("score", [s for s in SCORES if s != "additive"])
@pytest.mark.parametrize("message", list(MESSAGES))
def test_every_form(score, message, device):
    """All scores, messages, activations and reductions together, with the edge functions in turn."""
    adj = small(device=device)
    x, y, z = operands(12, 15, 19, device=device)
    edges = itertools.cycle(e for e in EDGES if e not in POSITIVE or score in ("sqdist", "l1"))
    for activation, reduce in itertools.product(ACTIVATIONS, REDUCTIONS):
        st = Stages(score, next(edges), message, activation, reduce)
        check(adj, x, y, z, st, algorithms(device))


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_every_edge_function(edge, dtype, device):
    score = "sqdist" if edge in POSITIVE else "dot"
    for heads in (None, 3):
        adj = small(device=device, dtype=dtype, heads=heads)
        x, y, z = operands(12, 15, 33, heads, dtype, device, wide=5)
        check(adj, x, y, z, Stages(score, edge), algorithms(device))


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_presets(name, dtype, device):
    """Widths from one channel to more than a tile; a graph with a hub, and one of short rows."""
    st = Stages(**PRESETS[name])
    hub = fusedmm.CSR.from_coo(
        torch.cat([torch.full((2100,), 3), torch.arange(60) % 7 * 3]).to(device),
        (torch.arange(2160) * 37 % 70).to(device),
        shape=(30, 70),
    )
    for adj, feat in itertools.product((hub, small(device=device, dtype=dtype)), (1, 8, 40, 44, 52, 128, 300)):
        x, y, z = operands(*adj.shape, feat, dtype=dtype, device=device)
        check(adj, x / feat**0.25, y / feat**0.25, z, st, algorithms(device))


def test_the_default_is_spmm_of_sddmm(device):
    adj = small(device=device, dtype=torch.float64).pattern()
    square = fusedmm.CSR.from_coo(adj.coo()[0], adj.coo()[1], shape=(15, 15))
    x = torch.randn(15, 6, dtype=torch.float64, device=device)
    scores = fusedmm.sddmm(square, x, x)
    torch.testing.assert_close(fusedmm.fused(square, x), fusedmm.spmm(square.with_values(scores), x))


def test_additive_scores(device):
    for heads in (None, 2):
        adj = small(device=device, heads=heads)
        x, y, z = operands(12, 15, 1, heads, device=device, wide=9)
        for edge, reduce in (("leaky_relu(s, 0.2)*a", "sum"), ("exp(s)", "mean"), ("tanh(s)", "max")):
            check(adj, x, y, z, Stages("additive", edge, "scale", None, reduce), algorithms(device))


def test_a_row_of_many_equal_terms(device):
    """One sequential sum in float32 would be far outside: no accumulator adds more than 512 in a row."""
    n = 50_000
    adj = fusedmm.CSR.from_csr(
        torch.tensor([0, n], device=device), torch.arange(n, device=device), torch.full((n,), 0.1, device=device)
    )
    x, y, z = (torch.full((k, 16), 0.3, device=device) for k in (1, n, n))
    for st in (Stages(), Stages("none", "a", "add"), Stages("sqdist", "1/(1+s)", "sub")):
        check(adj, x, y, z + 0.5, st, algorithms(device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("feat", [16, 32, 64, 128, 256])
def test_whole_vectors_and_rows_of_every_length(feat, dtype, device):
    """Groups of entries, what is left of them, and blocks; functions with code of their own, and ones like them."""
    lengths = torch.tensor([*range(10), 127, 128, 129, 700, 0])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    g = torch.Generator().manual_seed(feat)
    idx = torch.randint(0, 40, (int(ptr[-1]),), generator=g)
    val = torch.rand(len(idx), generator=g).to(dtype)
    adj = fusedmm.CSR.from_csr(ptr.to(device), idx.to(device), val.to(device), shape=(len(lengths), 40))
    x, y, z = (t / feat**0.25 for t in operands(len(lengths), 40, feat, dtype=dtype, device=device, seed=feat))
    for edge in ("s*a", "s", "a*sigmoid(s)", "sigmoid(s)", "s*s", "sigmoid(s)*s", "sigmoid(a)"):
        for st in (Stages(edge=edge), Stages(edge=edge, reduce="mean")):
            check(adj, x, y, z, st, algorithms(device))
    check(adj.pattern(), x, y, y, Stages(), algorithms(device))


TWO_CALLS = ("back_to_back", "cusparse", "cublas")
NOT_THEIRS = [
    {"score": "sqdist"}, {"score": "none", "edge": "a"}, {"message": "add"}, {"activation": "relu"},
    {"message": "mul", "reduce": "max"},
]  # fmt: skip


@pytest.mark.parametrize("options", NOT_THEIRS, ids=str)
def test_two_calls_decline_what_they_cannot(options, cuda):
    """By name: there is no SDDMM of a distance and no SpMM of another message. What they do take works after."""
    adj = small(device=cuda)
    x, y, z = operands(12, 15, 8, device=cuda)
    listed = [a.name for a in fusedmm.algorithms("fused", cuda) if a.name in TWO_CALLS]
    assert listed == list(TWO_CALLS)
    given = (x, y) if "message" in options else (x, y, z)
    for name in listed:
        with pytest.raises(ValueError, match=f"algorithm {name} does not support this call"):
            fusedmm.fused(adj, *given, **options, algorithm=name)
    check(adj, x, y, z, Stages(), ["back_to_back"])


@pytest.mark.parametrize("edge", ["s*a", "sigmoid(s)"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_of_a_graph_without_edges(count, edge, device):
    """A batch may have none; where y serves as z too its two gradients are one sum."""
    adj = fusedmm.CSR.from_edge_index(torch.zeros(2, 0, dtype=torch.int64, device=device), size=4)
    given = [torch.randn(4, 8, device=device, requires_grad=True) for _ in range(count)]
    for g in torch.autograd.grad(fusedmm.fused(adj, *given, edge=edge).sum(), given):
        assert g.shape == (4, 8) and not bool(g.any())


def test_infinity_stays_infinity(device):
    """Rows of a length that fills no batch of entries: what stands for the missing ones must add nothing."""
    row = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2], device=device)
    adj = fusedmm.CSR.from_coo(row, torch.arange(9, device=device) % 5, shape=(3, 5))
    x, y = torch.randn(3, 32, device=device), torch.randn(5, 32, device=device)
    x[:, 7] = float("inf")
    for message in ("sub", "add", "max"):
        out = fusedmm.fused(adj, x, y, score="sqdist", edge="sigmoid(s)", message=message)
        assert bool((out[:, 7] == float("inf")).all()), message
        assert bool(torch.isfinite(out[:, :7]).all()), message


def test_two_calls_in_any_order_of_edges(cuda):
    """Values through the edge order, as they want a gradient: where SDDMM multiplies by them, and where it does not."""
    g = torch.Generator().manual_seed(3)
    row, col = torch.randint(0, 40, (500,), generator=g), torch.randint(0, 30, (500,), generator=g)
    for inner in ((), (3,)):
        val = torch.randn(500, *inner, generator=g).to(cuda).requires_grad_()
        adj = fusedmm.CSR.from_coo(row.to(cuda), col.to(cuda), val, shape=(40, 30))
        x, y, z = operands(40, 30, 16, *inner, device=cuda, wide=9)
        for edge in ("s*a", "s", "sigmoid(s)*a", "softplus(s + a)"):
            check(adj, x, y, z, Stages("dot", edge), ["back_to_back"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_wider_than_any_group(dtype, device):
    """Forward and backward, beyond what one pass holds in registers."""
    adj = small(device=device, dtype=dtype)
    x, y, z = operands(12, 15, 1100, dtype=dtype, device=device, wide=1030)
    for st in (Stages(), Stages("dot", "sigmoid(s/30)*a", "scale", None, "mean"), Stages("sqdist", "a/(1+s)", "sub")):
        check(adj, x, y, z, st)
        a, b, c = (t.clone().requires_grad_() for t in (x, y, z))
        named = {"x": a, "y": b, "z": c} if st.message == "scale" else {"x": a, "y": b}
        out = fusedmm.fused(adj, *named.values(), **st._asdict())
        g = torch.ones_like(out)
        wanted = gradients(adj, x, y, z, g, st)
        for name, found in zip(named, torch.autograd.grad(out, list(named.values()), g), strict=True):
            assert_near(found, *wanted[name], dtype, f"{name} {st}")


# ---- gradients ----


@pytest.mark.parametrize("case", [c for c in cases() if c.data == "random" and c.feat], ids=str)
def test_gradients_over_the_covering_array(case: Case, device):
    adj, free = case.matrix(device), case.values == "none"
    for st in (Stages(), stages(crc32(str(case).encode()))):
        st = st._replace(reduce="mean" if st.reduce in ("mean", "max") else "sum")
        x, y, z = (
            (case.dense(n, device, seed) / case.feat**0.5).requires_grad_()
            for seed, n in enumerate(adj.shape + adj.shape[1:])
        )
        val = None if free else adj.val.detach().requires_grad_()
        out = fusedmm.fused(
            for_edge(adj.with_values(val), st.edge), x, y, z if st.message == "scale" else None, **st._asdict()
        )
        g = case.dense(adj.shape[0], device, seed=5)
        wanted = {"x": x, "y": y, "z": z, "val": val}
        wanted = {k: t for k, t in wanted.items() if t is not None and (k != "z" or st.message == "scale")}
        found = torch.autograd.grad(out, list(wanted.values()), g, allow_unused=True)
        for (name, (exact, error)), got in zip(
            ((k, gradients(adj, x, y, z, g, st)[k]) for k in wanted), found, strict=True
        ):
            if got is None:
                assert not exact.any(), (name, st)
                continue
            dtype = case.dtype
            if name == "val":
                if val.dim() < exact.dim():  # one sum over the heads, rounded once
                    error = (error + 4 * UNIT[accumulator(dtype)] * exact.abs()).sum(1)
                    exact = exact.sum(1)
                error = error + UNIT[dtype] * exact.abs()
                error, dtype = error + 16 * torch.finfo(dtype).smallest_normal * UNIT[dtype], val.dtype
            assert_near(got, exact, error, dtype, f"{name} {st}")


def passes(adj, x, y, z, g, st: Stages, number: int, device: str):
    """Both gradient passes by an algorithm: of x and val, of y and, if it has a part, z. None: declined."""
    adj, x, y, z, g = adj.to(device), *(t.to(device) for t in (x, y, z, g))
    adj = adj.cache_transpose()
    scale = st.message == "scale"
    kinds = (SCORES[st.score], MESSAGES[st.message], ACTIVATIONS[st.activation])
    given = (x, y, z if scale else adj.none, g, parse(st.edge).program(gradients=True), *kinds)
    rows, cols = (adj.ptr, adj.idx, adj.eid, adj.plan), (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    val = adj.val.clone()
    try:
        gx, gval, _ = ops._fused_rows.default(*rows, val, *given, 3, number)
        given = (*given[:4], adj.none, *given[4:])
        gy, gz = ops._fused_cols.default(*cols, val, *given, 3 if scale else 1, number)
    except RuntimeError as error:
        assert "does not support this call" in str(error)
        return None
    return [t.cpu() for t in ((gx, gval, gy, gz) if scale else (gx, gval, gy))]


@pytest.mark.parametrize("score", list(SCORES))
@pytest.mark.parametrize("message", list(MESSAGES))
def test_every_gradient_pass(score, message, device):
    """By every algorithm that has them, as by the reference on the CPU: one channel to packs, one head and two."""
    edges = itertools.cycle(["s*a", "tanh(s)*a - s", "exp(-s/2)", "softplus(s + a)"])
    for activation, heads, feat in itertools.product(ACTIVATIONS, (None, 2), (1, 19, 40)):
        adj = small(dtype=torch.float64, heads=heads)
        x, y, z = operands(12, 15, 1 if score == "additive" else feat, heads, torch.float64, wide=feat + 4)
        wide = z.shape[-1] if message == "scale" else x.shape[-1]
        g = torch.randn(12, *([] if heads is None else [heads]), wide, dtype=torch.float64)
        st = Stages(score, next(edges), message, activation)
        wanted = passes(adj, x, y, z, g, st, 1, "cpu")
        for algorithm in fusedmm.algorithms("fused", device):
            found = passes(adj, x, y, z, g, st, algorithm.number, device)
            assert found is not None or algorithm.name not in ("reference", "segments")
            if found is not None:
                torch.testing.assert_close(found, wanted, msg=f"{algorithm.name} heads {heads} F {feat} {st}")


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("feat", [1, 3, 16, 40, 130, 520, 1024])
def test_kept_numbers_give_the_same_gradients(feat, heads):
    """Passes that hand w and dL/ds on, by every algorithm of the CPU, also where y's and z's are one sum."""
    row = torch.cat([torch.zeros(300), torch.randint(2, 12, (60,))]).long()  # one row in many pieces, one empty
    adj = fusedmm.CSR.from_coo(row, torch.randint(0, 15, (360,)), torch.randn(360).double(), shape=(12, 15))
    adj = adj.cache_transpose()
    inner = [] if heads is None else [heads]
    x, y, z, g = (torch.randn(n, *inner, feat, dtype=torch.float64) for n in (12, 15, 15, 12))
    x, y = x / feat**0.5, y / feat**0.5
    st = Stages("dot", "tanh(s)*a - s", "scale", None)
    wanted = passes(adj, x, y, z, g, st, 1, "cpu")
    kinds = (SCORES["dot"], MESSAGES["scale"], ACTIVATIONS[None])
    program = parse(st.edge).program(gradients=True)
    rows, cols = (adj.ptr, adj.idx, adj.eid, adj.plan), (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    for algorithm in fusedmm.algorithms("fused", "cpu"):
        try:
            gx, gval, kept = ops._fused_rows.default(*rows, adj.val, x, y, z, g, program, *kinds, 7, algorithm.number)
            both, joined = (
                ops._fused_cols.default(*cols, adj.val, x, y, z, g, kept, program, *kinds, part, algorithm.number)
                for part in (3, 5)
            )
        except RuntimeError as error:
            assert "does not support this call" in str(error) and algorithm.name != "reference"
            continue
        assert kept.shape == (360, *inner, 2)
        torch.testing.assert_close([gx, gval, *both], wanted, msg=algorithm.name)
        torch.testing.assert_close(joined[0], wanted[2] + wanted[3], msg=algorithm.name)


def test_kept_numbers_are_refused_where_they_mean_nothing():
    adj = small(dtype=torch.float64).cache_transpose()
    x, y, z = operands(12, 15, 5, None, torch.float64, wide=5)
    g = torch.randn(12, 5, dtype=torch.float64)
    program, plain = parse("s").program(gradients=True), (SCORES["dot"], MESSAGES["scale"], ACTIVATIONS[None])
    cols = (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    kept = torch.zeros(adj.nnz, 2, dtype=torch.float64)
    for numbers, kinds, wanted, said in (
        (kept[1:], plain, 3, "kept should be"),
        (kept.float(), plain, 3, "kept should be"),
        (kept, (SCORES["l1"], *plain[1:]), 3, "kept is for"),
        (kept, (*plain[:2], ACTIVATIONS["relu"]), 3, "kept is for"),
        (adj.none, plain, 5, "out2 is out"),
    ):
        with pytest.raises(RuntimeError, match=said):
            ops._fused_cols.default(*cols, adj.val, x, y, z, g, numbers, program, *kinds, wanted, 0)


@pytest.mark.parametrize("name", list(PRESETS))
def test_gradients_of_presets_with_one_operand(name, device):
    """x serves as all three operands: its gradient is the sum of their shares, as torch's own."""
    adj = fusedmm.CSR.from_coo(*(torch.randint(0, 9, (40,), device=device) for _ in range(2)), shape=(9, 9))
    x = torch.randn(9, 5, dtype=torch.float64, device=device, requires_grad=True)
    kinds = PRESETS[name]
    g = torch.randn(9, 5, dtype=torch.float64, device=device)
    kept = {k: v for k, v in kinds.items() if k != "edge"}
    wanted = reference.fused(adj, x, x, x, parse(kinds["edge"]).torch, **kept)
    out = fusedmm.fused(adj, x, **kinds)
    torch.testing.assert_close(out, wanted)
    if "reduce" not in kinds:
        torch.testing.assert_close(*(torch.autograd.grad(o, x, g)[0] for o in (out, wanted)))


def test_no_nan_where_the_edge_function_has_none(device):
    """Scores of 1000 and more: sigmoids are 0 and 1, and so are their gradients finite."""
    adj = small(device=device).pattern()
    x, y, z = (1000 * t for t in operands(12, 15, 8, device=device))
    for edge in ("sigmoid(s)", "tanh(s)", "softplus(-s)", "leaky_relu(s, 0.2)", "relu(s)"):
        for algorithm in algorithms(device):
            a, b, c = (t.detach().requires_grad_() for t in (x, y, z))
            out = run_or_decline(fusedmm.fused, adj, a, b, c, edge=edge, algorithm=algorithm)
            if out is not None:
                assert out.isfinite().all(), (edge, algorithm)
                for grad in torch.autograd.grad(out.sum(), (a, b, c)):
                    assert grad.isfinite().all(), (edge, algorithm)


def test_nan_stays_in_the_rows_that_touch_it(device):
    adj = fusedmm.CSR.from_coo(*torch.tensor([[0, 0, 1, 3], [0, 1, 1, 2]], device=device).unbind(), shape=(4, 4))
    x, y, z = (torch.ones(4, 3, device=device) for _ in range(3))
    z[1, 0], z[3] = float("nan"), float("nan")  # nobody reads row 3
    for reduce, algorithm in itertools.product(REDUCTIONS, algorithms(device)):
        out = run_or_decline(fusedmm.fused, adj, x, y, z, edge="s/3", reduce=reduce, algorithm=algorithm)
        if out is None:
            continue
        out = out.cpu()
        assert out[:2, 0].isnan().all() and out[:, 1:].isfinite().all() and out[2:].isfinite().all(), (
            reduce,
            algorithm,
        )
        assert not out[2].any()
