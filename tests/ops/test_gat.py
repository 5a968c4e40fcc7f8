"""What additive attention asks of single nodes: three passes against float64, and the step of autograd on them."""

import pytest
import torch
from support.opchecks import check_operator
from torch.autograd import gradcheck, gradgradcheck

import fusedmm
from fusedmm.ops import attention
from fusedmm.ops.attention import ADDITIVE, Operands, Options
from fusedmm.ops.node_sums import attend_self

ops = torch.ops.fusedmm
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 1), (64, 1, 7), (65, 8, 8), (130, 3, 33), (200, 2, 64), (7, 5, 300), (3, 1, 20_000)]
NO_CHANNELS = (3, 2, 0)
MANY_PARTS = (140_000, 1, 3)  # of nodes, whose sums meet in blocks again
MANY_SUMS = (3, 4, 17_000)  # which CPU threads add up together
SLOPE = 0.2


def sums(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def close(found, exact, scale, terms, dtype):
    """Within the promised bound: scale is the sum of the terms' absolute values."""
    u = torch.finfo(sums(dtype)).eps / 2
    bound = 4 * terms**0.5 * u * scale + torch.finfo(found.dtype).eps * exact.abs() + torch.finfo(found.dtype).tiny
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= bound).all()), ((found.double() - exact).abs() / bound).max()


def draw(size, dtype, device):
    n, heads, feat = size
    x, other = (torch.randn(n, heads, feat).to(dtype).to(device) for _ in range(2))
    att_k, att_q = (torch.randn(1, heads, feat).to(dtype).to(device) for _ in range(2))
    return x, other, att_k, att_q


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, NO_CHANNELS], ids=str)
def test_scores(size, dtype, device):
    x, _, *att = draw(size, dtype, device)
    for found, a in zip(ops._node_scores(x, *att), att, strict=True):
        terms = x.double() * a.double()
        close(found, terms.sum(-1, keepdim=True), terms.abs().sum(-1, keepdim=True), size[2], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, NO_CHANNELS], ids=str)
def test_delta(size, dtype, device):
    gout, out, _, _ = draw(size, dtype, device)
    pos = torch.randn(size, device=device, dtype=sums(dtype))
    lse, glse, pos_w = (torch.randn(size[:2], device=device, dtype=sums(dtype)) for _ in range(3))
    lse[0, 0] = -torch.inf
    none = out.new_empty(0)
    delta, gq, _ = ops._node_delta(gout, out, lse, none, glse, pos, pos_w, none, SLOPE)
    g, terms, above = gout.double(), gout.double() * out.double(), gout.double() * pos.double()
    exact = terms.sum(-1) - glse.double()
    size_of = terms.abs().sum(-1) + glse.double().abs()
    close(delta, exact, size_of, size[2] + 1, dtype)
    exact_gq = (1 - SLOPE) * (above.sum(-1) - exact * pos_w.double()) + SLOPE * glse.double()
    size_of = above.abs().sum(-1) + size_of * pos_w.double().abs() + glse.double().abs()
    assert gq.flatten()[0] == 0
    close(gq.flatten()[1:], exact_gq.flatten()[1:], size_of.flatten()[1:], size[2] + 3, dtype)
    delta, gq, _ = ops._node_delta(gout, out, none, none, none, none, none, none, SLOPE)
    close(delta, terms.sum(-1), terms.abs().sum(-1), size[2], dtype)
    assert gq.numel() == 0 and g.shape == size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, MANY_PARTS, MANY_SUMS], ids=str)
def test_gradients_spread_over_nodes(size, dtype, device):
    """The last pass of the backward, given what attention's own passes hand it: those are other operators too."""
    n, heads, feat = size
    x, gout, *att = draw(size, dtype, device)
    row, col = torch.randint(n, (2, 4 * n), generator=torch.Generator().manual_seed(0)).to(device)
    adj = fusedmm.CSR.from_coo(row, col, None, (n, n))
    half, back, none = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.transpose_half(), adj.none
    out, kept = ops._attend_self(*half, x.flatten(1), *att, none, none, SLOPE, 0.0, True)
    call = x.flatten(1), *att, none, out, kept, gout.flatten(1), SLOPE, 0.0
    gx, *totals = ops._attend_self_back(*back, *call, True)
    other, *without = ops._attend_self_back(*back, *call, False)
    assert torch.equal(other, gx) and all(map(torch.equal, without[:2], totals[:2])) and not without[2].numel()
    assert [t.shape for t in totals] == [(1, heads, feat), (1, heads, feat), (heads * feat,)]

    k, q = ops._node_scores(x, *att)
    o = Options(adj, ADDITIVE, 1.0, SLOPE, 0.0, 0, True)
    operands = Operands(q[..., 0], k[..., 0], x, None, None, None, None)
    same, *lses, pos, pos_w = attention.forward(o, operands)
    assert torch.equal(same.flatten(1), out)
    delta, gq, packed = ops._node_delta(gout, same, *lses, none, pos, pos_w, q, SLOPE)
    gk, gv = attention.backward_cols(o, operands, lses, delta, gout, 3)
    assert gk.shape == operands.k.shape
    assert (packed.numel() > 0) == (device == "cuda")
    assert all(map(torch.equal, attention.backward_cols(o, operands, lses, delta, gout, 3, packed), (gk, gv)))
    g = [gk[..., None].double(), gq.double()]
    terms = [gv.double(), *(s * a.double() for s, a in zip(g, att, strict=True))]
    close(gx.view(size), sum(terms), sum(t.abs() for t in terms), 3, dtype)
    for total, terms in zip(totals, [*(s * x.double() for s in g), gout.double()], strict=True):
        close(total.view(heads, feat), terms.sum(0), terms.abs().sum(0), n, dtype)


@pytest.mark.parametrize("size", [(0, 3, 4), (5, 0, 4), (5, 3, 0)], ids=str)
def test_nothing(size, device):
    x, gv, *att = draw(size, torch.float32, device)
    k, q = ops._node_scores(x, *att)
    assert k.shape == q.shape == (*size[:2], 1) and not k.any() and not q.any()
    if size[1]:
        half = (x.new_zeros(size[0] + 1, dtype=torch.int64), x.new_empty(0, dtype=torch.int32))
        adj, flat = fusedmm.CSR.from_csr(*half, None, (size[0], size[0])), x.flatten(1)
        out, kept = ops._attend_self(
            adj.ptr, adj.idx, adj.eid, adj.plan, flat, *att, adj.none, adj.none, SLOPE, 0.0, True
        )
        gx, *totals = ops._attend_self_back(
            *adj.transpose_half(), flat, *att, adj.none, out, kept, gv.flatten(1), SLOPE, 0.0, True
        )
        assert gx.shape == out.shape == flat.shape and not any(map(torch.any, totals))
        assert [t.shape for t in totals] == [(1, *size[1:])] * 2 + [(size[1] * size[2],)]


def test_strides(device):
    """Views of larger tensors, and gradients that are one number everywhere."""
    x, other, *att = draw((70, 3, 9), torch.float32, device)
    wide = torch.cat([x, other], -1)
    for found, expected in zip(ops._node_scores(wide[..., :9], *att), ops._node_scores(x, *att), strict=True):
        assert torch.equal(found, expected)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    one, none = torch.ones((), device=device).expand(70, 3, 9), x.new_empty(0)
    found = ops._node_delta(one, turned, none, none, none, none, none, none, SLOPE)[0]
    assert torch.equal(found, ops._node_delta(one.contiguous(), x, none, none, none, none, none, none, SLOPE)[0])


def test_wrong_shapes_are_refused(device):
    x, gv, *att = draw((10, 3, 4), torch.float32, device)
    wrong = [
        lambda: ops._node_scores(x, att[0], att[1][:, :2]),
        lambda: ops._node_scores(x, att[0][0], att[1]),
        lambda: ops._node_scores(x, att[0].double(), att[1]),
        lambda: ops._node_delta(x, gv[:5], x.new_empty(0), *[x.new_empty(0)] * 5, SLOPE),
    ]
    for call in wrong:
        with pytest.raises(RuntimeError, match="invalid"):
            call()
        assert ops._node_scores(x, *att)[0].shape == (10, 3, 1)


def graph(device, n=40):
    g = torch.Generator().manual_seed(1)
    row, col = torch.randint(n - 1, (2, 300), generator=g)  # the last node has no entry
    return fusedmm.CSR.from_coo(row.to(device), col.to(device), None, (n, n))


def by_attention(adj, x, weight, att_k, att_q, bias, slope, dropout):
    x = x if weight is None else x @ weight.t()
    heads = x.view(x.shape[0], *att_k.shape[1:])
    scores = ((heads * att).sum(-1) for att in (att_q, att_k))
    return fusedmm.attention(adj, *scores, heads, score="additive", slope=slope, dropout=dropout).flatten(1) + bias


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("learnt", [(0, 1, 2, 3, 4), (0,), (1,), (2, 4), (3,), (4,), ()], ids=str)
@pytest.mark.parametrize("projects", [True, False])
def test_step_is_attention_with_projected_scores(learnt, projects, dropout, device):
    adj, found = graph(device), []
    given = [torch.randn(size) for size in ((40, 7 if projects else 15), (15, 7), (1, 3, 5), (1, 3, 5), (15,))]
    given[1] /= 4
    learnt = [k for k in learnt if projects or k != 1]
    for way in (attend_self, by_attention):
        leaves = [t.to(device).requires_grad_(k in learnt) for k, t in enumerate(given)]
        leaves[1] = leaves[1] if projects else None
        torch.manual_seed(3)
        out = way(adj, *leaves, SLOPE, dropout)
        assert out.requires_grad == bool(learnt)
        gradients = torch.autograd.grad(out.square().sum(), [leaves[k] for k in learnt]) if learnt else ()
        found.append([out.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_any_order(device):
    adj = graph(device, 9)
    sizes = (9, 6), (6, 6), (1, 2, 3), (1, 2, 3), (6,)
    given = [torch.randn(*size, dtype=torch.float64).to(device).requires_grad_() for size in sizes]

    def call(*operands):
        return attend_self(adj, *operands, SLOPE, 0.0)

    def projected(x, *others):
        return attend_self(adj, x, None, *others, SLOPE, 0.0)

    assert gradcheck(call, given) and gradgradcheck(call, given, fast_mode=True)
    assert gradcheck(projected, given[:1] + given[2:]) and gradgradcheck(
        projected, given[:1] + given[2:], fast_mode=True
    )


def test_a_hook_of_the_projection_is_called(device):
    adj, layer, seen = graph(device), fusedmm.nn.GATConv(15, 5, heads=3).to(device), []
    x = torch.randn(40, 15, device=device)
    expected = layer(x, adj)
    layer.lin.register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    torch.testing.assert_close(layer(x, adj), expected)
    assert seen == [(40, 15)]


def test_autocast_gives_half_precision(device):
    adj, layer = graph(device), fusedmm.nn.GATConv(15, 5, heads=3).to(device)
    x = torch.randn(40, 15).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = layer(x, adj)
    torch.testing.assert_close(out.float(), layer(x, adj), rtol=0.1, atol=0.1)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


def test_wrong_operands_are_named(device):
    adj = graph(device)
    att = torch.randn(1, 3, 5, device=device)
    with pytest.raises(ValueError, match="40 columns"):
        attend_self(adj, torch.randn(39, 15, device=device), None, att, att, None, SLOPE, 0.0)
    assert attend_self(adj, torch.randn(40, 15, device=device), None, att, att, None, SLOPE, 0.0).isfinite().all()


SINGLE = pytest.param(torch.float32, marks=pytest.mark.slow)  # whose kept numbers are of its own dtype, as float64's


@pytest.mark.parametrize("dtype", [SINGLE, torch.bfloat16], ids=str)
def test_operators_pass_opcheck(dtype, device):
    x, other, *att = draw((70, 2, 5), dtype, device)
    none = x.new_empty(0)
    numbers = [torch.randn(70, 2, device=device) for _ in range(4)]
    pos = torch.randn(70, 2, 5, device=device)
    check_operator(ops._node_scores.default, (x, *att))
    call = (x, other, *numbers[:3], pos, numbers[3], x[..., :1], SLOPE)
    check_operator(ops._node_delta.default, call)
    check_operator(ops._node_delta.default, (*call[:7], none, SLOPE))
    check_operator(ops._node_delta.default, (x, other, none, none, none, none, none, none, SLOPE))


@pytest.mark.parametrize("dtype", [SINGLE, torch.float64, torch.bfloat16], ids=str)
def test_step_operators_pass_opcheck_and_refuse_by_name(dtype, device):
    adj = graph(device, 64)  # of sizes that leave no unwritten bytes between what is kept
    half, none = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.none
    x, gout, *att = (torch.randn(size).to(device, dtype) for size in ((64, 10), (64, 10), (1, 2, 5), (1, 2, 5)))
    seed = torch.tensor([5], device=device)
    added = torch.randn(20).to(device, dtype)[::2]
    for whole, dropout, bias in ((True, 0.0, none), (False, 0.5, added), (True, 0.5, added)):
        check_operator(ops._attend_self.default, (*half, x, *att, seed, bias, SLOPE, dropout, whole))
    out, kept = ops._attend_self(*half, x, *att, none, none, SLOPE, 0.0, True)
    small = ops._attend_self(*half, x, *att, none, none, SLOPE, 0.0, False)[1]
    more, with_out = ops._attend_self(*half, x, *att, none, added, SLOPE, 0.0, True)
    assert torch.equal(more, out + added)
    assert torch.equal(more, ops._attend_self(*half, x, *att, none, added, SLOPE, 0.0, False)[0])

    def back(x=x, att=att, out=out, kept=kept, gout=gout, bias=True):
        return (*adj.transpose_half(), x, *att, none, out, kept, gout, SLOPE, 0.0, bias)

    for bias in (True, False):
        check_operator(ops._attend_self_back.default, back(bias=bias))
    expected = ops._attend_self_back(*back())
    again = ops._attend_self_back(*back(x=x.t().contiguous().t(), gout=gout.t().contiguous().t()))
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    again = ops._attend_self_back(*back(out=none, kept=with_out))
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    wrong = {
        "kept must be [0-9]+ contiguous bytes": [
            back(kept=small), back(kept=kept.view(torch.int8)), back(kept=kept[None]), back(kept=kept.repeat(2)[::2])
        ],
        "x must be \\[n, 10\\], heads side by side": [back(x=x[:, :9]), back(x=x[..., None])],
        "gout must be \\[n, 10\\]": [back(gout=gout[:, 1:])],
        "out is": [back(out=out[1:])],
        "att_k must be \\[1, heads, C\\]": [back(att=(att[0][0], att[1]))],
    }  # fmt: skip
    for text, calls in wrong.items():
        for call in calls:
            with pytest.raises(RuntimeError, match="^invalid: .*" + text):
                ops._attend_self_back(*call)
    with pytest.raises(RuntimeError, match="seed must be int64"):
        ops._attend_self(*half, x, *att, seed.int(), none, SLOPE, 0.5, True)
    for wrong_bias in (added[1:], added[None], added.double() if dtype != torch.float64 else added.float()):
        with pytest.raises(RuntimeError, match="bias must be \\[10\\], of x's dtype"):
            ops._attend_self(*half, x, *att, none, wrong_bias, SLOPE, 0.0, True)


def test_layer_compiles_and_gives_the_same_gradients(device):
    adj = graph(device).cache_transpose()
    layer, x = fusedmm.nn.GATConv(15, 5, heads=3).to(device), torch.randn(40, 15).to(device).requires_grad_()
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x, adj).square().sum(), inputs)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for one, other in zip(torch.autograd.grad(compiled(x, adj).square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(one, other)
