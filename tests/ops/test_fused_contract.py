"""fused: named errors and a working call after each, opcheck, torch.compile, torch.func, the same bits each time."""

import pytest
import torch
from support.fused_oracle import Stages, assert_near, for_edge, forward
from support.generate import own_algorithms, run_or_decline, small
from support.opchecks import check_operator

import fusedmm
from fusedmm import presets
from fusedmm._lib import REDUCTIONS
from fusedmm.edge.parse import parse
from fusedmm.ops.fused_composite import Spec

WEIGHTED_T = {**presets.T_DISTRIBUTION, "edge": "a/(1+s)"}


def works(device):
    adj = small(device=device)
    x, y = torch.randn(12, 5, device=device), torch.randn(15, 5, device=device)
    assert_near(fusedmm.fused(adj, x, y), *forward(adj, x, y, y, Stages()), torch.float32)


X, Y, Z = (12, 5), (15, 5), (15, 4)
WRONG = [
    ({"score": "cosine"}, ValueError, "fused: score must be one of none, dot, sqdist, l1, additive, not 'cosine'"),
    ({"message": "copy"}, ValueError, "fused: message must be one of .*, not 'copy'"),
    ({"activation": "gelu"}, ValueError, "fused: activation must be one of .*, not 'gelu'"),
    ({"reduce": "prod"}, ValueError, "fused: reduce must be one of sum, mean, max, min, not 'prod'"),
    ({"edge": "s.a"}, ValueError, "edge: 's.a' is not allowed"),
    ({"edge": 3}, TypeError, "edge must be an expression in s and a, not int"),
    ({"edge": ["s"]}, TypeError, "edge must be an expression in s and a, not list"),
    ({"algorithm": "magic"}, ValueError, "fused has no algorithm 'magic' on .*; there are auto, reference, "),
    ({"message": "add"}, ValueError, "fused: z is what the message \"scale\" sends; 'add' combines x and y"),
    ({"score": "additive"}, ValueError, "fused: additive scores need x and y of 1 feature, not 5"),
    ({"x": lambda t: t[:-1]}, ValueError, "fused: x has 11 rows, the matrix 12 rows"),
    ({"y": lambda t: t[:-1]}, ValueError, "fused: y has 14 rows, the matrix 15 columns"),
    ({"z": lambda t: t[:0]}, ValueError, "fused: z has 0 rows, the matrix 15 columns"),
    ({"y": lambda t: t[:, :4]}, ValueError, r"fused: x is \[12, 5\] and y \[15, 4\]; heads and features must agree"),
    ({"z": lambda t: t[:, None]}, ValueError, r"fused: x is \[12, 5\] and z \[15, 1, 4\]; heads must agree"),
    ({"y": lambda t: t.double()}, TypeError, "fused: x is torch.float32, y torch.float64 and z torch.float32"),
    ({"z": lambda t: t.half()}, TypeError, "fused: x is torch.float32, y torch.float32 and z torch.float16"),
    ({"x": lambda t: t.long()}, TypeError, "fused: x must be float"),
    ({"y": lambda t: None if t is None else t.tolist()}, TypeError, "fused: y must be a tensor"),
    ({"z": lambda t: t.to("meta")}, TypeError, "fused: z is on meta, the matrix on"),
    ({"x": lambda t: t[0]}, ValueError, "fused: x must be"),
]


@pytest.mark.parametrize("changed, kind, text", WRONG, ids=[w[2][:50] for w in WRONG])
def test_bad_input_by_name(changed, kind, text, device):
    adj = small(device=device)
    given = {name: torch.randn(size, device=device) for name, size in (("x", X), ("y", Y), ("z", Z))}
    options = {}
    for name, by in changed.items():
        if name in given:
            given[name] = by(given[name])
        else:
            options[name] = by
    with pytest.raises(kind, match=text):
        fusedmm.fused(adj, given["x"], given["y"], given["z"], **options)
    works(device)


def test_values_with_heads_need_operands_with_heads(device):
    x, y = torch.randn(X, device=device), torch.randn(Y, device=device)
    with pytest.raises(ValueError, match=r"fused: values \[60, 2\] have heads"):
        fusedmm.fused(small(device=device, heads=2), x, y)
    with pytest.raises(ValueError, match="fused: values have 2 heads, the operands 3"):
        fusedmm.fused(small(device=device, heads=2), x[:, None].expand(12, 3, 5), y[:, None].expand(15, 3, 5))
    works(device)


PROGRAMS = [
    (torch.zeros(1, 4, dtype=torch.float64), "an edge program is a CPU tensor"),
    (torch.zeros(1, 5), "an edge program is a CPU tensor"),
    (torch.zeros(97, 5, dtype=torch.float64), "an edge program is a CPU tensor"),
    (torch.tensor([[99.0, 0, 0, 0, 0]], dtype=torch.float64), r"step 0 of the edge program is \(99, 0, 0, 0\)"),
    (torch.tensor([[2.0, 16, 0, 0, 0]], dtype=torch.float64), r"step 0 of the edge program is \(2, 16, 0, 0\)"),
    (torch.tensor([[2.0, 0, -1, 0, 0]], dtype=torch.float64), r"step 0 of the edge program is \(2, 0, -1, 0\)"),
    (torch.tensor([[float("nan"), 0, 0, 0, 0]], dtype=torch.float64), r"step 0 of the edge program is \(-1, 0, 0, 0\)"),
]


def private(adj, x, y, z, program, *kinds):
    return torch.ops.fusedmm._fused(adj.ptr, adj.idx, adj.eid, adj.plan, adj.none, x, y, z, program, *kinds)


@pytest.mark.parametrize("program, text", PROGRAMS, ids=[f"{k}" for k in range(len(PROGRAMS))])
def test_private_operators_trust_no_program(program, text, device):
    adj = small(device=device)
    x, y = torch.randn(X, device=device), torch.randn(Y, device=device)
    with pytest.raises(RuntimeError, match=text):
        private(adj, x, y, y, program, 1, 0, 0, 0, 0)
    works(device)


@pytest.mark.parametrize("kinds", [(9, 0, 0, 0), (1, 9, 0, 0), (1, 0, 9, 0), (1, 0, 0, 9), (-1, 0, 0, 0)])
def test_private_operators_trust_no_number(kinds, device):
    adj = small(device=device)
    x, y = torch.randn(X, device=device), torch.randn(Y, device=device)
    with pytest.raises(RuntimeError, match="fused: "):
        private(adj, x, y, y, parse("s").program(), *kinds, 0)
    with pytest.raises(RuntimeError, match="fused has no algorithm number 99"):
        private(adj, x, y, y, parse("s").program(), 1, 0, 0, 0, 99)
    works(device)


@pytest.mark.parametrize("name", ["column", "pointer", "edge"])
def test_forged_structures_read_nothing_outside(name, device):
    """Written through .data behind the check: rows that are whole are right."""
    good = small(device=device)
    x, y = torch.randn(12, 33, device=device), torch.randn(15, 33, device=device)
    expected = fusedmm.fused(good, x, y).cpu()
    for algorithm in own_algorithms("fused", device):
        if algorithm == "back_to_back":
            continue  # rows that overlap give one entry two scores
        adj, whole = small(device=device), torch.ones(12, dtype=torch.bool)
        if name == "column":
            adj.idx.data[int(adj.ptr[3])] = -(2**31)
            whole[3] = False
        elif name == "pointer":
            adj.ptr.data[4] = 2**62
            whole[3:5] = False
        else:
            adj.eid.data[int(adj.ptr[6])] = 60
            whole[6] = False
        val = adj.val.clone().requires_grad_()  # not constant: read through eid
        out = run_or_decline(fusedmm.fused, adj.with_values(val), x, y, algorithm=algorithm)
        if out is not None:
            torch.testing.assert_close(out.detach().cpu()[whole], expected[whole])
    works(device)


# ---- torch ----


@pytest.mark.parametrize(
    "heads, name",
    [
        (None, "SIGMOID_EMBEDDING"),
        (2, "T_DISTRIBUTION"),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((2, "SIGMOID_EMBEDDING"), (None, "T_DISTRIBUTION"))),
        *(pytest.param(heads, "SPMM", marks=pytest.mark.slow) for heads in (None, 2)),
    ],
)
def test_opcheck(heads, name, device):
    """torch's own checks, of the operator and of its gradient passes."""
    kinds = {"message": "scale", **getattr(presets, name)}
    spec = Spec(kinds["score"], kinds["edge"], kinds["message"], None, "sum", 0)
    adj = small(device=device, dtype=torch.float64, heads=heads).cache_transpose()
    inner = [] if heads is None else [heads]
    x, y, z = (torch.randn(n, *inner, f, device=device, dtype=torch.float64) for n, f in (X, Y, Z))
    z = z if spec.message == "scale" else adj.none
    g = torch.randn(12, *inner, 4 if spec.message == "scale" else 5, device=device, dtype=torch.float64)
    rows, cols = (adj.ptr, adj.idx, adj.eid, adj.plan), (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    ops = torch.ops.fusedmm
    given = (*rows, adj.val, x, y, z, parse(spec.edge).program(), *spec.kinds(), 0, 0)
    check_operator(ops._fused.default, given)
    program = parse(spec.edge).program(gradients=True)
    check_operator(ops._edge_program.default, (x, spec.edge, True))
    for wanted in (1, 2, 3):
        given = (*spec.kinds(), wanted, 0)
        check_operator(ops._fused_rows.default, (*rows, adj.val, x, y, z, g, program, *given))
        given = (*spec.kinds(), wanted if spec.message == "scale" else 1, 0)
        check_operator(ops._fused_cols.default, (*cols, adj.val, x, y, z, g, adj.none, program, *given))
    if device == "cpu" and name == "SIGMOID_EMBEDDING":
        given = (*rows, adj.val, x, y, z, g, program, *spec.kinds(), 7, 0)
        check_operator(ops._fused_rows.default, given)
        kept = ops._fused_rows.default(*given)[2]
        given = (*cols, adj.val, x, y, z, g, kept, program, *spec.kinds(), 3, 0)
        check_operator(ops._fused_cols.default, given)
        loops = fusedmm.CSR.from_coo(torch.arange(12), torch.arange(12), adj.val[:12], shape=(12, 12))
        structure = (loops.ptr, loops.idx, loops.eid, loops.plan)
        given = (*structure, loops.val, x, adj.none, adj.none, torch.ones_like(x), loops.val, program, *spec.kinds(), 0)
        check_operator(ops._fused_mirrored.default, given)


@pytest.mark.parametrize(
    "backend, options",
    [
        ("aot_eager", {}),
        ("aot_eager", WEIGHTED_T),
        ("inductor", {"edge": "sigmoid(s)*a", "reduce": "mean"}),
    ],
    ids=str,
)
def test_compiled_is_eager(backend, options, device):
    adj = small(device=device, dtype=torch.float64).cache_transpose()
    torch._dynamo.reset()

    def f(val, x, y):
        return fusedmm.fused(adj.with_values(val), x, y, **options)

    def gradients(call):
        given = [t.detach().requires_grad_() for t in operands]
        out = call(*given)
        return [out.detach(), *torch.autograd.grad((out**2).sum(), given, allow_unused=True, materialize_grads=True)]

    operands = [adj.val, torch.randn(12, 7, device=device).double(), torch.randn(15, 7, device=device).double()]
    torch.testing.assert_close(gradients(torch.compile(f, fullgraph=True, backend=backend)), gradients(f))


def test_a_maximum_that_is_trained_runs_between_compiled_graphs(device):
    adj = small(device=device).cache_transpose()
    x, found = torch.randn(2, 15, 4, device=device), []
    torch._dynamo.reset()

    def f(x, y):
        return fusedmm.fused(adj, x[:12].sin(), y, reduce="max").cos()

    for call in (f, torch.compile(f, backend="aot_eager")):
        given = [t.clone().requires_grad_() for t in x]
        found.append(torch.autograd.grad(call(*given).sum(), given))
    torch.testing.assert_close(*found)
    torch._dynamo.reset()  # what was compiled in parts would serve
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(*x), f(*x))
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="fusedmm: gradients of fused maxima and minima run as they"
    ):
        torch.compile(f, fullgraph=True, backend="aot_eager")(*given)


def test_gradients_of_maxima_for_a_batch_of_upstreams(device):
    adj, x = small(device=device), torch.randn(15, 4, device=device, requires_grad=True)
    out = fusedmm.fused(adj, x[:12], x, reduce="max", message="add")
    up = torch.randn(3, 12, 4, device=device)
    batch = torch.vmap(lambda g: torch.autograd.grad(out, x, g, retain_graph=True)[0])(up)
    torch.testing.assert_close(batch, torch.stack([torch.autograd.grad(out, x, g, retain_graph=True)[0] for g in up]))


def test_func_transforms(device):
    adj = small(device=device, dtype=torch.float64)
    x, y = torch.randn(12, 4, device=device).double(), torch.randn(15, 4, device=device).double()

    def f(x):
        return fusedmm.fused(adj, x, y, edge="tanh(s)*a")

    up = torch.randn(12, 4, device=device).double()
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(f(leaf), leaf, up)
    torch.testing.assert_close(torch.func.vjp(f, x)[1](up)[0], wanted)
    step = 1e-6
    torch.testing.assert_close(
        torch.func.jvp(f, (x,), (up,))[1], (f(x + step * up) - f(x - step * up)) / (2 * step), rtol=1e-6, atol=1e-7
    )
    many = torch.stack([x, 2 * x, x - 1])
    torch.testing.assert_close(torch.func.vmap(f)(many), torch.stack([f(t) for t in many]))


def test_autocast_and_inference_mode(device):
    adj = small(device=device)
    x, y = torch.randn(12, 8, device=device), torch.randn(15, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert fusedmm.fused(adj, x, y).dtype == torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(fusedmm.fused(adj, x, y), fusedmm.fused(adj, x, y))


# ---- the same bits ----


def hub(device, heads=2, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    row, col = ((n * torch.rand(20_000, generator=g) ** 3).long() for n in (2000, 1500))
    row[:4000] = 11
    adj = fusedmm.CSR.from_coo(
        row.to(device), col.to(device), torch.randn(20_000, heads, generator=g).to(dtype).to(device), shape=(2000, 1500)
    )
    x, y, z = (torch.randn(n, heads, 33, generator=g).to(dtype).to(device) / 6 for n in (2000, 1500, 1500))
    return adj, x, y, z


def everything(adj, x, y, z, **options):
    """The result and all gradients."""
    val, x, y, z = (t.detach().requires_grad_() for t in (adj.val, x, y, z))
    scale = options.get("message", "scale") == "scale"
    adj = for_edge(adj.with_values(val), options.get("edge", "s*a"))
    out = fusedmm.fused(adj, x, y, z if scale else None, **options)
    wanted = (val, x, y, z) if scale else (val, x, y)
    return [out.detach(), *torch.autograd.grad(out, wanted, torch.ones_like(out) / 3, allow_unused=True)]


def assert_equal(first, second, note=""):
    for one, other in zip(first, second, strict=True):
        assert (one is None and other is None) or torch.equal(one, other), note


FORMS = [{}, {"edge": "sigmoid(s)", "reduce": "mean"}, {"score": "sqdist", "edge": "a/(1+s)", "message": "sub"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats(options, dtype, device):
    given = hub(device, dtype=dtype)
    first = everything(*given, **options)
    for _ in range(10):
        keep = torch.full((int(torch.randint(1, 10_000, ())),), float("nan"), device=device)  # other memory each time
        assert_equal(first, everything(*given, **options))
        del keep
    assert_equal(first, everything(*hub(device, dtype=dtype), **options), "a fresh matrix")


@pytest.mark.parametrize("options", [*FORMS, {"reduce": "max"}], ids=str)
def test_threads_do_not_matter(options, threads):
    given = hub("cpu")
    threads(1)
    first = everything(*given, **options)
    for count in (2, 5):
        threads(count)
        assert_equal(first, everything(*given, **options), count)


@pytest.mark.parametrize("reduce", list(REDUCTIONS))
def test_every_algorithm_keeps_its_word(reduce, device):
    given = hub(device)
    for algorithm in fusedmm.algorithms("fused", device):
        results = [run_or_decline(fusedmm.fused, *given, reduce=reduce, algorithm=algorithm.name) for _ in range(3)]
        if results[0] is not None and algorithm.deterministic:
            assert_equal(results[:1] * 2, results[1:], algorithm.name)
