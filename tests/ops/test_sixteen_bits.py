"""float16 and bfloat16 where a number on the way has none of its own: sums are kept wide and rounded once."""

import pytest
import torch
from support.bounds import UNIT, sddmm_oracle, spmm_oracle
from support.small_graph import NODES, features, graph

import fusedmm
from fusedmm.matrix.normalize import gcn_norm
from fusedmm.nn import AGNNConv, GATConv, SAGEConv
from fusedmm.ops.checks import normalize
from fusedmm.ops.row_softmax import log_sum_exp, softmax

HALVES = [torch.float16, torch.bfloat16]
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)


def assert_rounded(computed, exact, dtype, times=1.0, slack=0.0):
    """computed, of dtype, is exact but for some roundings to dtype and slack."""
    assert computed.dtype == dtype
    error = (computed.double().cpu() - exact).abs()
    bound = times * (UNIT[dtype] * 1.01 * exact.abs() + torch.finfo(dtype).smallest_normal * UNIT[dtype]) + slack
    assert bool((error <= bound).all()), f"{error.max():.3g}, over its bound by {(error - bound).max():.3g}"


def two_entries(device):
    row, col = torch.zeros(2, dtype=torch.int64, device=device), torch.arange(2, device=device)
    return fusedmm.CSR.from_coo(row, col, shape=(1, 2)).cache_transpose()


@halves
def test_a_bias_for_all_heads(dtype, device):
    """Weights of 1/2, and heads whose shares of the gradient, 132,096 and -128,000, leave float16."""
    adj, zero = two_entries(device), torch.zeros(2, 2, 1, dtype=dtype, device=device)
    v = torch.tensor([2048.0, -2048.0], dtype=dtype, device=device).view(2, 1, 1).expand(2, 2, 1)
    up = torch.tensor([[[129.0], [-125.0]]], dtype=dtype, device=device)
    bias = torch.zeros(2, dtype=dtype, device=device, requires_grad=True)
    fusedmm.attention(adj, zero[:1], zero, v, bias=bias).backward(up)
    assert bias.grad.tolist() == [4096.0, -4096.0]


@halves
@pytest.mark.parametrize("registered", [False, True])
def test_products_with_values_in_the_gradients_of_sddmm(registered, dtype, device):
    """ge * val = 132,096, which b brings back to 129."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(zero, zero, torch.full((1,), 1024.0, dtype=dtype, device=device), (1, 1))
    adj = adj.cache_transpose()
    a, b = (torch.full((1, 1), 2.0**-10, dtype=dtype, device=device, requires_grad=True) for _ in range(2))
    if registered:
        parts = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
        e = torch.ops.fusedmm.sddmm(*parts, adj.val, a, b, 0)
    else:
        e = fusedmm.sddmm(adj, a, b)
    e.backward(torch.full((1,), 129.0, dtype=dtype, device=device))
    assert a.grad.item() == b.grad.item() == 129.0


@halves
@pytest.mark.parametrize("with_values", [False, True])
def test_entries_of_elementwise_sddmm_that_cancel_out(with_values, dtype, device):
    adj = two_entries(device)
    if with_values:
        adj = adj.with_values(torch.ones(2, dtype=dtype, device=device))
    a = torch.ones(1, 1, dtype=dtype, device=device, requires_grad=True)
    e = fusedmm.sddmm(adj, a, torch.full((2, 1), 1024.0, dtype=dtype, device=device), op="mul")
    e.backward(torch.tensor([[129.0], [-125.0]], dtype=dtype, device=device))
    assert a.grad.item() == 4096.0


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("call", ["spmm", "registered", "fused"])
def test_shares_of_a_mean_that_float16_lacks(call, values, device):
    """2^-13 over 4,096 entries is half of float16's smallest number; 1,024 entries in one column add up to more."""
    n, columns = 4096, 4
    row, col = torch.zeros(n, dtype=torch.int64, device=device), torch.arange(n, device=device) % columns
    val = torch.full((n,), 2.0, dtype=torch.float16, device=device, requires_grad=True) if values else None
    adj = fusedmm.CSR.from_coo(row, col, val, (1, columns)).cache_transpose()
    x = torch.full((columns, 1), 2.0**9, dtype=torch.float16, device=device, requires_grad=True)
    if call == "spmm":
        y = fusedmm.spmm(adj, x, reduce="mean")
    elif call == "registered":
        parts = (adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half())
        y = torch.ops.fusedmm.spmm(*parts, val if values else adj.none, x, 1, 0)
    else:
        y = fusedmm.fused(adj, x.detach()[:1], x.detach(), x, score="none", edge="a", reduce="mean")
    y.backward(torch.full((1, 1), 2.0**-13, dtype=torch.float16, device=device))
    assert x.grad.unique().tolist() == [2.0**-14 if values else 2.0**-15]
    assert not values or val.grad.unique().tolist() == [2.0**-16]


def random_graph(device, rows=20, cols=20, nnz=300, seed=0):
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(0, rows, (nnz,), generator=g), torch.randint(0, cols, (nnz,), generator=g)
    return fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(rows, cols)).cache_transpose()


def random(*size, seed, dtype, device, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(size, generator=g)).to(dtype).to(device).requires_grad_()


def wide(*given):
    """The same numbers in float64 on the CPU, as leaves."""
    return [t.detach().double().cpu().requires_grad_() for t in given]


@halves
@pytest.mark.parametrize("score", ["dot", "sqdist"])
@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_scores_beyond_float16_in_the_formula_of_parts(reduce, score, dtype, device):
    """Gradients of extremes, and of gradients: scores of 100,000 and more, which the edge function makes small."""
    adj, edge = random_graph(device), "sigmoid(s / 65536)"
    x, y, z = (random(20, 16, seed=k, dtype=dtype, device=device, scale=s) for k, s in ((1, 90), (2, 90), (3, 1)))
    found = []
    for m, given in ((adj, [x, y, z]), (adj.to("cpu"), wide(x, y, z))):
        out = fusedmm.fused(m, *given, score=score, edge=edge, reduce=reduce)
        grads = torch.autograd.grad(out.square().sum() if reduce == "sum" else out.sum(), given, create_graph=True)
        if reduce == "sum":
            grads = torch.autograd.grad(sum(g.double().sum() for g in grads), given)
        found.append(grads)
    for got, exact in zip(*found, strict=True):
        assert_rounded(got, exact, dtype, 4, slack=8 * UNIT[dtype] * exact.abs().max())


@halves
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2", "cosine"])
def test_weights_are_the_same_with_a_gradient(score, dtype, device):
    """Logits of some hundred: rounded to 16 bits they would be other weights."""
    adj, width = random_graph(device), [] if score == "additive" else [8]
    q, k = (random(20, 2, *width, seed=s, dtype=dtype, device=device, scale=40) for s in (1, 2))
    v = random(20, 2, 3, seed=3, dtype=dtype, device=device)
    att = random(2, 8, seed=4, dtype=dtype, device=device) if score == "gatv2" else None
    options = {"score": score, "att": att, "return_weights": True}
    _, learned = fusedmm.attention(adj, q, k, v, **options)
    with torch.no_grad():
        out, constant = fusedmm.attention(adj, q, k, v, **options)
    assert_rounded(learned.detach(), constant.double().cpu(), dtype, 2, slack=1e-4)
    made, _ = torch.func.vjp(lambda q: fusedmm.attention(adj, q, k, v, **options)[0], q)
    assert_rounded(made.detach(), out.double().cpu(), dtype, 2, slack=1e-3)


@halves
def test_gradients_of_softmax(dtype, device):
    """Each row's sum of w * g is as large as g: its digits are those that the difference needs."""
    adj = random_graph(device)
    logits = random(300, 2, seed=1, dtype=dtype, device=device, scale=3)
    up = (1000 + 8 * random(300, 2, seed=2, dtype=dtype, device=device)).detach()
    (exact_logits,) = wide(logits)
    cpu = adj.to("cpu")
    g = torch.autograd.grad(fusedmm.edge_softmax(adj, logits), logits, up)[0]
    w = fusedmm.edge_softmax(cpu, exact_logits)
    exact = torch.autograd.grad(w, exact_logits, up.double().cpu())[0]
    assert_rounded(g, exact, dtype, slack=64 * 2.0**-24 * 1000 * w.detach())
    tangent = torch.func.jvp(lambda t: softmax(adj, t), (logits.detach(),), (up,))[1]
    assert_rounded(tangent, exact, dtype, slack=64 * 2.0**-24 * 1000 * w.detach())


@halves
def test_gradients_of_log_sum_exp(dtype, device):
    """That of lse is float32's, and leaves float16."""
    adj = two_entries(device)
    logits = torch.tensor([[0.0], [4.0]], dtype=dtype, device=device, requires_grad=True)
    (exact,) = wide(logits)
    up = torch.full((1, 1), 2.0**17, device=device)
    g = torch.autograd.grad(log_sum_exp(adj, logits).float(), logits, up)[0]
    w = torch.autograd.grad(log_sum_exp(adj.to("cpu"), exact), exact, up.double().cpu())[0]
    assert_rounded(g[:1], w[:1], dtype, slack=1e-5 * w[:1])


@halves
@pytest.mark.parametrize("call", ["spmm", "sddmm"])
def test_parts_of_a_tangent(call, dtype, device):
    """132,096 from one operand and -128,000 from the other."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(zero, zero, shape=(1, 1)).cache_transpose()
    one = torch.ones(1, 1, dtype=dtype, device=device)

    def f(val, x):
        with_val = adj.with_values(val)
        return fusedmm.spmm(with_val, x) if call == "spmm" else fusedmm.sddmm(with_val, x, one)

    given, tangents = (1024 * one[0], 1024 * one), (129 * one[0], -125 * one)
    assert torch.func.jvp(f, given, tangents)[1].item() == 4096.0


@halves
def test_lengths(dtype, device):
    """Rows of zeros, of tiny and of large numbers, whose squares or lengths float16 lacks."""
    x = torch.stack([torch.zeros(64), torch.full((64,), 1e-7), torch.full((64,), 1e4), torch.full((64,), 6e4)])
    x = x.to(dtype).to(device)
    assert normalize(x)[0].tolist() == [0.0] * 64
    assert_rounded(normalize(x)[1:], torch.nn.functional.normalize(x[1:].double().cpu(), dim=-1), dtype, 1.01)
    adj = fusedmm.as_csr(torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]], device=device), size=4)
    assert fusedmm.attention(adj, x, x, x, score="cosine").isfinite().all()
    layer = SAGEConv(64, 64, normalize=True, root_weight=False, bias=False).to(device, dtype)
    assert layer(x, adj.with_values(torch.zeros(4, dtype=dtype, device=device)))[0].tolist() == [0.0] * 64


@halves
@pytest.mark.parametrize("scale", [1.0, 2000.0])
def test_cosine_attention(scale, dtype, device):
    """AGNN: the gradient of unit vectors is as large as gout * x, that of x is not."""
    adj = fusedmm.as_csr(graph().to(device), size=NODES)
    x = (scale * features(NODES, 64)).to(dtype).to(device).requires_grad_()
    up = (100 * features(NODES, 64, seed=3)).to(dtype).to(device)
    layer = AGNNConv().to(device, dtype)
    got = torch.autograd.grad(layer(x, adj), x, up)[0]
    (exact_x,) = wide(x)
    exact = torch.autograd.grad(AGNNConv().double()(exact_x, adj.to("cpu")), exact_x, up.double().cpu())[0]
    assert_rounded(got, exact, dtype, slack=8 * UNIT[dtype] * exact.abs().max())


@halves
def test_degrees(dtype, device):
    """A star of 70,000 nodes, whose degree float16 does not have: each weight is rounded once."""
    n = 70_000
    index = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)]).to(device)
    ones = torch.ones(n, dtype=dtype, device=device)
    for val in (None, ones):
        adj = fusedmm.CSR.from_edge_index(index, val, n)
        made = gcn_norm(adj, dtype=dtype)
        exact = gcn_norm(fusedmm.CSR.from_edge_index(index.cpu(), None, n), dtype=torch.float64).val
        assert made.val.min() > 0
        assert_rounded(made.val, exact, dtype)


@halves
@pytest.mark.parametrize("aggr", ["var", "std", "powermean", "variancepreserving", ["sum", "mean"]], ids=str)
def test_aggregations(aggr, dtype, device):
    """Squares of 300, cubes of 50 and sums of 200 numbers of 1,000 leave float16; the results do not."""
    n = 200
    index = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)]).to(device)
    center = {"powermean": 50.0, "variancepreserving": 1000.0}.get(aggr if isinstance(aggr, str) else "", 300.0)
    center = 1000.0 if isinstance(aggr, list) else center
    x = (center + 40 * features(n, 4)).to(dtype).to(device).requires_grad_()
    (exact_x,) = wide(x)
    options = {"aggr_kwargs": {"p": 3.0}} if aggr == "powermean" else {}
    found = []
    for t, edges in ((x, index), (exact_x, index.cpu())):
        layer = SAGEConv(4, 4, aggr=aggr, root_weight=False, bias=False, **options).to(t.device, t.dtype)
        layer.lin_l = torch.nn.Identity()
        out = layer(t, edges)[:1, -4:]  # of the list: the mean
        found.append([out.detach(), torch.autograd.grad(out.sum(), t)[0]])
    slack = 2.0**-18 * (center**2 if aggr == "var" else center)
    assert_rounded(found[0][0], found[1][0], dtype, slack=slack)
    assert_rounded(found[0][1], found[1][1], dtype, 2, slack=2 * UNIT[dtype] * found[1][1].abs().max())


@halves
def test_parts_of_a_gradient_are_added_before_they_are_rounded(dtype, device):
    """Of GAT's vectors: the second half of a ring of nodes has the first one's features, and takes its share back."""
    n = 4000
    index = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]).to(device)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n // 2, 8, generator=g).repeat(2, 1).to(dtype).to(device)
    up = torch.cat([torch.full((n // 2, 8), 512.0), torch.full((n // 2, 8), -512.0)]).to(dtype).to(device)
    layer = GATConv(8, 8, bias=False).to(device, dtype)
    exact = GATConv(8, 8, bias=False).double()
    exact.load_state_dict(layer.state_dict())
    layer(x, index).backward(up)
    exact(x.double().cpu(), index.cpu()).backward(up.double().cpu())
    for name in ("att_src", "att_dst"):
        got, expected = getattr(layer, name).grad, getattr(exact, name).grad
        assert_rounded(got, expected, dtype, slack=512 * UNIT[dtype])


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_values_of_float32_with_operands_of_float16(reduce, device):
    """Values that float16 lacks, whose products it has; as autocast mixes them."""
    adj = random_graph(device)
    adj = adj.with_values(random(300, seed=5, dtype=torch.float32, device=device, scale=1e6).detach())
    a, b = (random(20, 8, seed=k, dtype=torch.float16, device=device, scale=1e-3).detach() for k in (1, 2))
    for y, oracle in (
        (fusedmm.spmm(adj, b, reduce=reduce), spmm_oracle(adj, b, reduce)),
        (fusedmm.sddmm(adj, a, b), sddmm_oracle(adj, a, b)),
    ):
        assert_rounded(y, oracle[0], torch.float16, slack=2.0**-20 * oracle[1])


@pytest.mark.parametrize("call", ["mean", "sddmm", "mul", "fused", "fused mean", "attention", "edge_softmax"])
def test_compiled(call, device):
    """The gradients that are kept wide are graphs, too."""
    torch._dynamo.reset()  # the calls share one function, whose graphs are counted
    adj, dtype = random_graph(device), torch.float16
    val = random(300, seed=1, dtype=dtype, device=device)
    x, *more = (random(20, 2, 4, seed=s, dtype=dtype, device=device) for s in (2, 3, 4))

    def f(val, x, k, v):
        with_val = adj.with_values(val)
        if call == "edge_softmax":
            return fusedmm.edge_softmax(adj, val)
        if call == "mean":
            return fusedmm.spmm(with_val, x, reduce="mean")
        if call in ("sddmm", "mul"):
            return fusedmm.sddmm(with_val, x, 2 * x, op="dot" if call == "sddmm" else call)
        if call == "attention":
            return fusedmm.attention(adj, x, k, v, edge_weight=val, bias=val)
        return fusedmm.fused(with_val, x, reduce=call[6:] or "sum")

    f(val, x, *more)  # makes what belongs to the structure
    wanted = {"edge_softmax": (val,), "attention": (val, x, *more)}.get(call, (val, x))
    found = []
    for compute in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        y = compute(val, x, *more)
        found.append([y, *torch.autograd.grad(y, wanted, torch.ones_like(y))])
    assert all(map(torch.equal, *found))
