"""Shapes that users of DGL, PyG and torch bring along: a last axis of one, masks, grouped heads, batches."""

import pytest
import torch
from support.generate import tiny
from torch.autograd import gradcheck, gradgradcheck

import fusedmm

REDUCE = ["sum", "mean", "max", "min"]
OPERATORS = {
    **{f"spmm {r}": lambda a, x, r=r: fusedmm.spmm(a, x, reduce=r) for r in REDUCE},
    "A @ x": lambda a, x: a @ x,
    "sddmm": lambda a, x: fusedmm.sddmm(a, x[:4], x),
    "sddmm add": lambda a, x: fusedmm.sddmm(a, x[:4], x, op="add"),
    "fused": lambda a, x: fusedmm.fused(a, x[:4], x),
    "fused tanh": lambda a, x: fusedmm.fused(a, x[:4], x, edge="tanh(s)*a", score="sqdist"),
    "fused max": lambda a, x: fusedmm.fused(a, x[:4], x, reduce="max"),
    "attention": lambda a, x: fusedmm.attention(a, x[:4], x, x),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_values_of_one_head_are_values(name, device):
    """[nnz, 1] with operands without heads: results, first and second derivatives."""
    adj = tiny(device)
    val = adj.val.detach()
    x = torch.randn(5, 3, dtype=torch.float64, device=device)
    op = OPERATORS[name]
    assert torch.equal(op(adj.with_values(val[:, None].clone()), x), op(adj.with_values(val), x))

    def f(val, x):
        return op(adj.with_values(val), x)

    given = val[:, None].clone().requires_grad_(), x.requires_grad_()
    assert gradcheck(f, given)
    assert name in ("fused", "fused tanh", "fused max") or gradgradcheck(f, given)
    torch.testing.assert_close(
        torch.func.vmap(f, (None, 0))(given[0].detach(), x.detach()[None])[0], f(*given).detach()
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode_and_constant_values_of_one_head(name, device):
    adj, x = tiny(device, torch.float32), torch.randn(5, 3, device=device)
    op = OPERATORS[name]
    one = adj.with_values(adj.val[:, None].clone())
    torch.testing.assert_close(op(one, x), op(adj, x))
    there = torch.func.jvp(lambda v: op(adj.with_values(v), x), (one.val,), (torch.ones_like(one.val),))[1]
    here = torch.func.jvp(lambda v: op(adj.with_values(v), x), (adj.val,), (torch.ones_like(adj.val),))[1]
    torch.testing.assert_close(there, here)


def test_logits_with_a_last_axis_of_one(device):
    """DGL's shape: what comes out has it too."""
    adj = tiny(device).pattern()
    logits = torch.randn(9, 2, 1, dtype=torch.float64, device=device, requires_grad=True)
    found = fusedmm.edge_softmax(adj, logits)
    assert found.shape == (9, 2, 1) and torch.equal(found[..., 0], fusedmm.edge_softmax(adj, logits[..., 0]))
    assert gradcheck(lambda t: fusedmm.edge_softmax(adj, t), logits)
    q, k, v = (torch.randn(n, 2, 3, dtype=torch.float64, device=device) for n in (4, 5, 5))
    for name in ("bias", "edge_weight"):
        one, two = (fusedmm.attention(adj, q, k, v, **{name: t}) for t in (logits, logits[..., 0]))
        assert torch.equal(one, two)
    q, k = (torch.randn(n, 2, dtype=torch.float64, device=device) for n in (4, 5))
    one, two = (fusedmm.attention(adj, a, b, v, score="additive") for a, b in ((q, k), (q[..., None], k[..., None])))
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match=r"q must be \[rows, heads\] for additive scores, not \[4, 2, 2\]"):
        fusedmm.attention(adj, q[..., None].expand(-1, -1, 2), k, v, score="additive")
    with pytest.raises(ValueError, match=r"logits must be \[9\] or \[9, heads\], not \[9, 2, 2\]"):
        fusedmm.edge_softmax(adj, logits.expand(-1, -1, 2))


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "gatv2"])
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 2), (9, 2, 1)])
def test_masked_entries_take_no_part(score, shape, device):
    adj = tiny(device).pattern()
    mask = torch.rand(shape, device=device) > 0.4
    bias = torch.randn(9, 2, dtype=torch.float64, device=device)
    q, k, v = (torch.randn(n, 2, 3, dtype=torch.float64, device=device, requires_grad=True) for n in (4, 5, 5))
    options = {"att": torch.randn(2, 3, dtype=torch.float64, device=device)} if score == "gatv2" else {}
    if score == "additive":
        q, k = q[..., 0], k[..., 0]
    each = (mask.reshape(9, -1)).expand(9, 2)
    for given in (None, bias):
        added = torch.zeros_like(bias) if given is None else given
        found = fusedmm.attention(adj, q, k, v, score=score, bias=given, mask=mask, **options)
        masked = fusedmm.attention(adj, q, k, v, score=score, bias=added.masked_fill(~each, -torch.inf), **options)
        assert torch.equal(found, masked)
        for h in range(2):  # as if the other entries were not there
            row, col, _ = adj.coo()
            keep = each[:, h]
            kept = fusedmm.CSR.from_coo(row[keep], col[keep], shape=(4, 5))
            one = {name: t[h : h + 1] for name, t in options.items()}
            b = None if given is None else given[keep, h : h + 1]
            alone = fusedmm.attention(
                kept, q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], score=score, bias=b, **one
            )
            torch.testing.assert_close(found[:, h], alone[:, 0])
    (g,) = torch.autograd.grad(found.sum(), v)
    assert g.isfinite().all()


def test_compiled_masks_and_groups(device):
    adj = tiny(device, torch.float32).pattern().cache_transpose()
    q, k = torch.randn(4, 4, 3, device=device), torch.randn(5, 2, 3, device=device)
    mask = torch.rand(9, 4, device=device) > 0.4

    def f(q, k, mask):
        return fusedmm.attention(adj, q, k, k, mask=mask)

    found = torch.compile(f, fullgraph=True, backend="eager")(q.requires_grad_(), k.requires_grad_(), mask)
    torch.testing.assert_close(found, f(q, k, mask))
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), (q, k)), torch.autograd.grad(f(q, k, mask).sum(), (q, k))
    )


def test_what_is_no_mask(device):
    adj = tiny(device).pattern()
    q, k, v = (torch.randn(n, 2, 3, dtype=torch.float64, device=device) for n in (4, 5, 5))
    mask = torch.ones(9, dtype=torch.bool, device=device)
    for call, kind, text in (
        (lambda: fusedmm.attention(adj, q, k, v, mask=mask.double()), TypeError, "mask must be booleans, not torch.fl"),
        (lambda: fusedmm.attention(adj, q, k, v, mask=[True]), TypeError, "mask must be booleans, not list"),
        (lambda: fusedmm.attention(adj, q, k, v, bias=mask), TypeError, "bias must be .* takes masks as mask="),
        (
            lambda: fusedmm.attention(adj, q, k, v, mask=mask[:5]),
            ValueError,
            r"mask must be \[9\] or \[9, heads\], not",
        ),
        (lambda: fusedmm.attention(adj, q, k, v, mask=mask.expand(3, 9).T), ValueError, "mask has 3 heads, v 2"),
        (
            lambda: fusedmm.attention(adj, q[..., 0], k[..., 0], v, score="additive", slope=0.0, mask=mask),
            ValueError,
            "a mask of additive scores needs slope above 0",
        ),
        (lambda: fusedmm.attention(adj, q, k, v, mask=mask.to("meta")), TypeError, "mask is on meta, the matrix on"),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert torch.equal(fusedmm.attention(adj, q, k, v, mask=mask), fusedmm.attention(adj, q, k, v))


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "gatv2"])
def test_grouped_queries_share_keys_and_values(score, device):
    adj = tiny(device).pattern()
    q = torch.randn(4, 6, 3, dtype=torch.float64, device=device, requires_grad=True)
    k, v = (torch.randn(5, 2, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    options = {"att": torch.randn(6, 3, dtype=torch.float64, device=device)} if score == "gatv2" else {}

    def f(q, k, v):
        if score == "additive":
            q, k = q[..., 0], k[..., 0]
        return fusedmm.attention(adj, q, k, v, score=score, **options)

    found = f(q, k, v)
    assert found.shape == (4, 6, 3)
    assert torch.equal(found, f(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)))
    assert gradcheck(f, (q, k, v))
    with pytest.raises(ValueError, match=r"q is \[4, 5, .*and v \[5, 2, 3\]; heads must agree, or q's be"):
        fusedmm.attention(adj, q[:, :5], k, v)
    if score != "additive":
        with pytest.raises(ValueError, match=r"k is \[5, 1, 3\] and v \[5, 2, 3\]; heads must agree$"):
            fusedmm.attention(adj, q, k[:, :1], v, score=score, **options)
    with pytest.raises(ValueError, match="heads must agree"):
        fusedmm.attention(adj, q[:, :1], k, v)


def test_add_is_sum(device):
    adj, x = tiny(device), torch.randn(5, 3, dtype=torch.float64, device=device)
    assert torch.equal(fusedmm.spmm(adj, x, reduce="add"), fusedmm.spmm(adj, x))
    assert torch.equal(fusedmm.spmm(adj, x[:, 0], reduce="add"), fusedmm.spmv(adj, x[:, 0]))
    assert torch.equal(fusedmm.fused(adj, x[:4], x, reduce="add"), fusedmm.fused(adj, x[:4], x))
    for reduce in ("mean", "max", "min"):
        assert torch.equal(fusedmm.spmm(adj, x[:, 0], reduce=reduce), fusedmm.spmm(adj, x[:, :1], reduce=reduce)[:, 0])


def test_a_batch_that_is_not_transposed_is_told_so(device):
    adj, x = tiny(device), torch.randn(3, 5, 2, dtype=torch.float64, device=device)
    text = r"has 3 rows, the matrix 5 columns; of a batch \[batch, columns, F\] give x.transpose\(0, 1\), whose result"
    for call in (lambda: fusedmm.spmm(adj, x), lambda: adj @ x, lambda: fusedmm.fused(adj, x.transpose(0, 1)[:4], x)):
        with pytest.raises(ValueError, match=text.replace("x.tr", "[xy].tr")):
            call()
    found = fusedmm.spmm(adj, x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(found, torch.stack([adj @ t for t in x]))
