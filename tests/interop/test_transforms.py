"""torch.func and forward mode: every operator and layer, and that a matrix comes out of them as it went in."""

import copy
import pickle

import pytest
import torch
from support.every_layer import EDGES, LAYERS, NODES
from support.generate import small
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian

import fusedmm
from fusedmm import nn


def test_func_grad_and_vjp(device):
    adj, x = small(device=device, dtype=torch.float64), torch.randn(15, 4, dtype=torch.float64, device=device)

    def f(val, x):
        return fusedmm.spmm(adj.with_values(val), x).square().sum()

    leaf_val, leaf_x = adj.val.clone().requires_grad_(), x.clone().requires_grad_()
    expected = torch.autograd.grad(f(leaf_val, leaf_x), (leaf_val, leaf_x))
    torch.testing.assert_close(torch.func.grad(f, (0, 1))(adj.val, x), expected)
    y, pull = torch.func.vjp(lambda x: fusedmm.spmm(adj, x), x)
    torch.testing.assert_close(pull(2 * y)[0], expected[1])


def test_vmap_is_a_loop(device):
    adj = small(device=device, dtype=torch.float64)
    x, a = (torch.randn(3, n, 4, dtype=torch.float64, device=device) for n in (15, 12))
    vals = torch.randn(3, 60, dtype=torch.float64, device=device)
    y = torch.func.vmap(lambda x: fusedmm.spmm(adj, x))(x)
    torch.testing.assert_close(y, torch.stack([fusedmm.spmm(adj, one) for one in x]))
    y = torch.func.vmap(lambda v, x: fusedmm.spmm(adj.with_values(v), x), in_dims=(0, None))(vals, x[0])
    torch.testing.assert_close(y, torch.stack([fusedmm.spmm(adj.with_values(v), x[0]) for v in vals]))
    e = torch.func.vmap(lambda a, x: fusedmm.sddmm(adj, a, x), in_dims=(0, 0))(a, x)
    torch.testing.assert_close(e, torch.stack([fusedmm.sddmm(adj, *both) for both in zip(a, x, strict=True)]))
    per_sample = torch.func.vmap(torch.func.grad(lambda x: fusedmm.spmm(adj, x).square().sum()))(x)
    single = torch.func.grad(lambda x: fusedmm.spmm(adj, x).square().sum())
    torch.testing.assert_close(per_sample, torch.stack([single(one) for one in x]))


def test_forward_mode(device):
    adj = small(device=device, dtype=torch.float64)
    x, dx, a, da = (torch.randn(n, 4, dtype=torch.float64, device=device) for n in (15, 15, 12, 12))
    val, dval = adj.val, torch.randn_like(adj.val)

    def spmm(val, x):
        return fusedmm.spmm(adj.with_values(val), x)

    def sddmm(val, a, x):
        return fusedmm.sddmm(adj.with_values(val), a, x)

    _, tangent = torch.func.jvp(spmm, (val, x), (dval, dx))
    torch.testing.assert_close(tangent, spmm(dval, x) + spmm(val, dx))
    _, tangent = torch.func.jvp(sddmm, (val, a, x), (dval, da, dx))
    torch.testing.assert_close(tangent, sddmm(dval, a, x) + sddmm(val, da, x) + sddmm(val, a, dx))


@pytest.mark.parametrize("learns", [False, True])
def test_tangents_of_dual_numbers(learns, device):
    """torch.autograd.forward_ad, which no transform announces; backward mode works beside it."""
    adj = small(device=device, dtype=torch.float64)
    x, dx, a, da = (torch.randn(n, 4, dtype=torch.float64, device=device) for n in (15, 15, 12, 12))
    val, dval = adj.val.clone(), torch.randn_like(adj.val)
    calls = {
        "sum": (lambda v, a, x: fusedmm.spmm(adj.with_values(v), x)),
        "mean": (lambda v, a, x: fusedmm.spmm(adj.with_values(v), x, reduce="mean")),
        "sddmm": (lambda v, a, x: fusedmm.sddmm(adj.with_values(v), a, x)),
        "mul": (lambda v, a, x: fusedmm.sddmm(adj.with_values(v), a, x, op="mul")),
        "max": (lambda v, a, x: fusedmm.spmm(adj.with_values(v), x, reduce="max")),
        "attention": (lambda v, a, x: fusedmm.attention(adj, a, x, x, edge_weight=v)),
        "edge_softmax": (lambda v, a, x: fusedmm.spmm(adj.with_values(fusedmm.edge_softmax(adj.pattern(), v)), x)),
        "fused": (lambda v, a, x: fusedmm.fused(adj.with_values(v), a, x, edge="sigmoid(s)*a")),
        "fused add": (lambda v, a, x: fusedmm.fused(adj.with_values(v), a, x, score="none", message="add", edge="a")),
    }
    for name, f in calls.items():
        leaves = [t.clone().requires_grad_(learns) for t in (val, a, x)]
        _, expected = torch.func.jvp(f, (val, a, x), (dval, da, dx))
        with forward_ad.dual_level():
            out = f(*(forward_ad.make_dual(t, d) for t, d in zip(leaves, (dval, da, dx), strict=True)))
            y, tangent = forward_ad.unpack_dual(out)
            assert tangent is not None, name
            torch.testing.assert_close(tangent, expected, msg=name)
            assert forward_ad.unpack_dual(f(val, a, x)).tangent is None, name  # nobody has a tangent here
        assert y.requires_grad == learns
        if learns:
            found = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
            plain = torch.autograd.grad(f(*leaves).sum(), leaves, allow_unused=True)
            torch.testing.assert_close(found[2], plain[2], msg=name)


def attends(score, **options):
    """Attention as a function of two numbers per entry, of queries and of keys."""

    def f(adj, e, a, x):
        if score == "additive":
            return fusedmm.attention(adj, a[..., 0], x[..., 0], x, score=score, **options)
        att = torch.linspace(-1, 1, 6, dtype=x.dtype, device=x.device).view(2, 3) if score == "gatv2" else None
        return fusedmm.attention(adj, a, x, x, score=score, att=att, bias=e, edge_weight=e.sin(), **options)

    return f


def lse_and_weights(adj, e, a, x):
    _, lse, w = fusedmm.attention(adj, a, x, x, bias=e, return_lse=True, return_weights=True)
    return torch.cat([lse.flatten(), w.flatten()])


# f(adj without values, e [nnz, 2] or [nnz], a [rows, 2, 3], x [cols, 2, 3])
CALLS = {
    "sum": lambda adj, e, a, x: fusedmm.spmm(adj.with_values(e), x),
    "mean": lambda adj, e, a, x: fusedmm.spmm(adj.with_values(e), x, reduce="mean"),
    "max": lambda adj, e, a, x: fusedmm.spmm(adj.with_values(e), x, reduce="max"),
    "min": lambda adj, e, a, x: fusedmm.spmm(adj.with_values(e), x, reduce="min"),
    "max of x": lambda adj, e, a, x: fusedmm.spmm(adj, x, reduce="max"),
    "dot": lambda adj, e, a, x: fusedmm.sddmm(adj.with_values(e), a, x),
    "mul": lambda adj, e, a, x: fusedmm.sddmm(adj.with_values(e), a, x, op="mul"),
    "fused": lambda adj, e, a, x: fusedmm.fused(adj.with_values(e), a, x, edge="sigmoid(s)*a"),
    "fused max": lambda adj, e, a, x: fusedmm.fused(adj.with_values(e), a, x, score="none", edge="a", reduce="max"),
    "softmax": lambda adj, e, a, x: fusedmm.edge_softmax(adj, e),
    "attention": attends("dot"),
    "cosine": attends("cosine"),
    "additive": attends("additive"),
    "gatv2": attends("gatv2"),
    "lse and weights": lse_and_weights,
}


def call_operands(heads, device):
    g = torch.Generator().manual_seed(3)
    adj = fusedmm.CSR.from_edge_index(EDGES.to(device), size=NODES)
    sizes = ((5, heads), (NODES, 2, 3), (NODES, 2, 3))
    return adj, *(torch.randn(size if size[1:] != (0,) else 5, generator=g).double().to(device) for size in sizes)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("heads", [0, 2])
def test_every_rule_of_every_operator(name, heads, device):
    """grad, vjp, jvp and vmap over each operand give what torch.autograd and a loop give."""
    adj, *operands = call_operands(heads, device)
    f = CALLS[name]
    leaves = [t.clone().requires_grad_() for t in operands]
    y = f(adj, *leaves)
    up = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=device).view(y.shape)
    expected = torch.autograd.grad(y, leaves, up, allow_unused=True)
    expected = [torch.zeros_like(t) if g is None else g for g, t in zip(expected, operands, strict=True)]
    found = torch.func.grad(lambda *given: (f(adj, *given) * up).sum(), (0, 1, 2))(*operands)
    torch.testing.assert_close(list(found), expected)
    torch.testing.assert_close(list(torch.func.vjp(lambda *given: f(adj, *given), *operands)[1](up)), expected)
    tangents = [t.cos() for t in operands]
    _, tangent = torch.func.jvp(lambda *given: f(adj, *given), tuple(operands), tuple(tangents))
    along = sum((g * t).sum() for g, t in zip(expected, tangents, strict=True))
    torch.testing.assert_close((tangent * up).sum(), along)
    for k in range(3):
        batch = torch.stack([operands[k], tangents[k]], dim=1)
        dims = tuple(1 if j == k else None for j in range(3))
        given = [batch if j == k else t for j, t in enumerate(operands)]
        gradients = torch.func.grad(lambda *given: (f(adj, *given) * up).sum(), (0, 1, 2))
        loop = [[*operands[:k], t, *operands[k + 1 :]] for t in (operands[k], tangents[k])]
        y = torch.func.vmap(lambda *given: f(adj, *given), in_dims=dims)(*given)
        torch.testing.assert_close(y, torch.stack([f(adj, *one) for one in loop]))
        many = torch.func.vmap(gradients, in_dims=dims)(*given)
        for one, ones in zip(many, zip(*(gradients(*one) for one in loop), strict=True), strict=True):
            torch.testing.assert_close(one, torch.stack(ones))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_batched_gradients_of_values_that_serve_all_heads(reduce, device):
    """autograd's own vmap, which knows fewer operators than torch.func's."""
    adj = fusedmm.CSR.from_coo(torch.tensor([0, 1, 2, 2], device=device), torch.tensor([1, 0, 1, 2], device=device))
    x, val = torch.randn(3, 2, 4, device=device), torch.randn(4, device=device, requires_grad=True)
    y = fusedmm.spmm(adj.with_values(val), x, reduce=reduce)
    up = torch.randn(5, *y.shape, device=device)
    (many,) = torch.autograd.grad(y, val, up, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, val, g, retain_graph=True)[0] for g in up]
    torch.testing.assert_close(many, torch.stack(one_by_one))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("heads", [0, 2])
def test_vectorized_forward_mode(name, heads, device):
    """torch.autograd.functional's batches of tangents, which are another vmap than torch.func's."""
    adj, e, a, x = call_operands(heads, device)
    for f, t in ((lambda e: CALLS[name](adj, e, a, x), e), (lambda x: CALLS[name](adj, e, a, x), x)):
        found = jacobian(f, t, vectorize=True, strategy="forward-mode")
        torch.testing.assert_close(found, jacobian(f, t))

    def square(x):
        return CALLS[name](adj, e, a, x).square().sum()

    found = hessian(square, x, vectorize=True, outer_jacobian_strategy="forward-mode")
    torch.testing.assert_close(found, hessian(square, x))


@pytest.mark.parametrize("name", ["spmm", "sddmm", "fused", "attention", "from_edge_index", "SAGEConv", "GATConv"])
def test_vmap_over_indices_is_refused_by_name(name, device):
    x, many = torch.ones(NODES, 4, device=device), torch.stack([EDGES, EDGES.flip(0)]).to(device)
    sage, gat = nn.SAGEConv(4, 2).to(device), nn.GATConv(4, 2).to(device)
    f = {
        "spmm": lambda e: fusedmm.spmm(e, x),
        "sddmm": lambda e: fusedmm.sddmm(e, x, x),
        "fused": lambda e: fusedmm.fused(e, x),
        "attention": lambda e: fusedmm.attention(e, x, x, x),
        "from_edge_index": lambda e: fusedmm.CSR.from_edge_index(e, size=NODES) @ x,
        "SAGEConv": lambda e: sage(x, e),
        "GATConv": lambda e: gat(x, e),
    }[name]
    with pytest.raises(TypeError, match="vmap goes over values and features, not over indices"):
        torch.func.vmap(f)(many)
    assert f(many[0]).isfinite().all()


def test_dropout_under_torch_func(device):
    adj, _, a, x = call_operands(0, device)
    leaf = x.clone().requires_grad_()
    torch.manual_seed(7)
    (expected,) = torch.autograd.grad(fusedmm.attention(adj, a, leaf, leaf, dropout=0.5).sum(), leaf)
    torch.manual_seed(7)
    found = torch.func.grad(lambda x: fusedmm.attention(adj, a, x, x, dropout=0.5).sum())(x)
    torch.testing.assert_close(found, expected)


ALIKE = ["max", "dot", "softmax", "fused"]  # refused where the others are


@pytest.mark.parametrize("name", ["sum", "attention", *(pytest.param(n, marks=pytest.mark.slow) for n in ALIKE)])
def test_a_transform_within_compiled_code(name):
    """It is not compiled, and right; where there may be but one graph it is refused by name."""
    torch._dynamo.reset()
    adj, *operands = call_operands(0, "cpu")
    adj.cache_transpose()

    def f(*operands):
        return torch.func.grad(lambda x: CALLS[name](adj, *operands[:2], x).square().sum())(operands[2]) * 2

    torch.testing.assert_close(torch.compile(f, backend="aot_eager")(*operands), f(*operands))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"transforms of torch\.func are not compiled"):
        torch.compile(f, backend="aot_eager", fullgraph=True)(*operands)
    torch._dynamo.reset()


# ---- what is kept beside a matrix ----


def hessians(f, x, keepers):
    """The same twice, torch.autograd's, and nothing of torch.func's stays in what is pickled."""
    first = torch.func.hessian(f)(x)
    for keeper in keepers:
        pickle.dumps(keeper)
        copy.deepcopy(keeper)
    assert torch.equal(torch.func.hessian(f)(x), first)
    torch.testing.assert_close(first, hessian(f, x))


@pytest.mark.parametrize("name", CALLS)
def test_a_matrix_first_seen_by_torch_func(name, device):
    adj, e, a, x = call_operands(2, device)
    hessians(lambda x: CALLS[name](adj, e, a, x).square().sum(), x, [adj])


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("form", ["CSR", "edge_index"])
def test_a_graph_first_seen_by_torch_func(name, form):
    """CPU only: the operators' rules are tested on every device above."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double()
    x, others = torch.randn(NODES, 4).double(), [] if shape is None else [torch.rand(shape).double()]
    graph = EDGES.clone() if form == "edge_index" else fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    hessians(lambda x: layer(x, graph, *others).square().sum(), x, [layer, graph])
    expected = torch.func.grad(lambda x: layer(x, graph, *others).square().sum())(x)
    # torch.func wraps the tensors of all arguments, those of a CSR too.
    found = torch.func.grad(lambda x, *given: layer(x, *given).square().sum())(x, graph, *others)
    torch.testing.assert_close(found, expected)
    layer(x, graph, *others).sum().backward()
    pickle.dumps((layer, graph))


def test_gcn_norm_first_asked_for_by_torch_func():
    x = torch.randn(NODES, 4)
    for transform in (torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
        adj = fusedmm.CSR.from_edge_index(EDGES, size=NODES)
        transform(lambda x, adj=adj: (adj.gcn_norm() @ x).sum())(x)
        adj = pickle.loads(pickle.dumps(adj))
        torch.testing.assert_close(adj.gcn_norm() @ x, fusedmm.as_csr(EDGES).gcn_norm() @ x)


@pytest.mark.parametrize("cached", [False, True])
def test_gradients_per_sample_of_edge_weights(cached):
    layer, x, weights = nn.GCNConv(4, 2, cached=cached), torch.randn(NODES, 4), torch.rand(2, 5)
    found = torch.func.vmap(torch.func.grad(lambda w: layer(x, EDGES, w).sum()))(weights)
    expected = [torch.autograd.functional.jacobian(lambda w: nn_sum(layer, x, w), w) for w in weights]
    torch.testing.assert_close(found, torch.stack(expected))


def nn_sum(layer, x, w):
    layer._kept = None
    return layer(x, EDGES, w).sum()


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_forward_over_reverse(reduce, dtype, device):
    adj = small(device=device)
    adj = adj.with_values(adj.val.to(dtype))
    x, v = (torch.randn(15, 3, dtype=dtype, device=device) for _ in range(2))
    dense = adj.to_dense() / (adj.degree().clamp(min=1)[:, None] if reduce == "mean" else 1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.requires_grad_(), v)
        (found,) = torch.autograd.grad(fusedmm.spmm(adj, dual, reduce=reduce).square().sum(), dual)
        tangent = forward_ad.unpack_dual(found).tangent
    torch.testing.assert_close(tangent, 2 * dense.t() @ (dense @ v))


def test_a_wrapper_whose_transform_has_ended(device):
    """It is the tensor inside of it, as to torch's own operators: ours do not search their arguments for such."""
    adj, x = small(device=device, dtype=torch.float64), torch.randn(15, 4, dtype=torch.float64, device=device)
    left = []

    def f(x):
        left.append(x)
        return fusedmm.spmm(adj, x).sum()

    torch.func.grad(f)(x)
    val = adj.val.clone().requires_grad_()
    y = fusedmm.spmm(adj.with_values(val), left[0])
    expected = fusedmm.spmm(adj.with_values(val), x)
    assert torch.equal(y, expected)
    assert torch.equal(*(torch.autograd.grad(out.sum(), val)[0] for out in (y, expected)))
