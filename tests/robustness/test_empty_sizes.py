"""No rows, columns, entries, heads or channels: every public operator and algorithm gives empty results or zeros."""

import itertools

import pytest
import torch
from support.generate import own_algorithms, run_or_decline, works

import fusedmm

FLOATS = [torch.float32, torch.bfloat16]  # f64 has the code of the first, f16 of the second
SHAPES = {
    "entries": (3, 4, 3),
    "no entries": (3, 4, 0),
    "no rows": (0, 4, 0),
    "no columns": (3, 0, 0),
    "none": (0, 0, 0),
}
WIDTHS = [(0, 0), (0, 3), (8, 0)]  # channels of q and k, or x and y, and of v, or z
EXPANDED = ["no", "heads"]


def matrix(shape, device):
    rows, cols, nnz = SHAPES[shape]
    row = torch.tensor([0, 2, 2][:nnz], dtype=torch.int64, device=device)
    col = torch.tensor([1, 0, 3][:nnz], dtype=torch.int64, device=device)
    return fusedmm.CSR.from_coo(row, col, shape=(rows, cols))


def dense(rows, heads, feat, dtype, device, expanded):
    """[rows, heads, feat], [rows, feat] where heads is None; one head stands for all where expanded."""
    inner = () if heads is None else (heads,)
    size = (rows, 1, feat) if expanded == "heads" and heads else (rows, *inner, feat)
    return torch.ones(size, dtype=dtype, device=device).expand(rows, *inner, feat).requires_grad_()


def compare(op, operands, device, name, **options):
    """op by every algorithm, with the gradients of its operands, against the reference."""
    wanted = None
    for algorithm in ["reference", *own_algorithms(name, device)]:
        out = run_or_decline(op, *operands, algorithm=algorithm, **options)
        if out is None:
            continue
        leaves = [t for t in operands if isinstance(t, torch.Tensor)]
        found = [out, *torch.autograd.grad(out.sum(), leaves, allow_unused=True)]
        wanted = wanted or found
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape, dtype, device):
    adj = matrix(shape, device)
    rows, cols = adj.shape
    for heads, feat, expanded in itertools.product((None, 0, 3), (0, 3), EXPANDED):
        x = dense(cols, heads, feat, dtype, device, expanded)
        a = dense(rows, heads, feat, dtype, device, expanded)
        for reduce in ("sum", "max"):
            compare(fusedmm.spmm, (adj, x), device, "spmm", reduce=reduce)
        compare(fusedmm.sddmm, (adj, a, x), device, "sddmm")
    works(device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused(shape, dtype, device):
    adj = matrix(shape, device)
    rows, cols = adj.shape
    for heads, (feat, wide), expanded in itertools.product((0, 4), WIDTHS, EXPANDED):
        x = dense(rows, heads, feat, dtype, device, expanded)
        y = dense(cols, heads, feat, dtype, device, expanded)
        z = dense(cols, heads, wide, dtype, device, expanded)
        compare(fusedmm.fused, (adj, x, y, z), device, "fused", edge="sigmoid(s)")
        compare(fusedmm.fused, (adj, x, y), device, "fused", score="sqdist", message="sub", activation="relu")
    works(device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_attention(score, shape, dtype, device):
    adj = matrix(shape, device)
    rows, cols = adj.shape
    for heads, (feat, wide), expanded in itertools.product((0, 4), WIDTHS, EXPANDED):
        inner = (None, heads) if score == "additive" else (heads, feat)
        q, k = (dense(n, *inner, dtype, device, expanded) for n in (rows, cols))
        v = dense(cols, heads, wide, dtype, device, expanded)
        att = dense(heads, None, feat, dtype, device, expanded) if score == "gatv2" else None
        compare(fusedmm.attention, (adj, q, k, v), device, "attention", score=score, att=att)
    works(device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_of_one_projection_and_of_maps(dtype, device):
    """What a layer asks for in one call, of no channels, nodes or entries; both passes."""
    for n, heads, feat, learnt in itertools.product((0, 3), (1, 4), (0, 3, 16), (False, True)):
        edges = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)[:, :n]
        adj = fusedmm.CSR.from_edge_index(edges, size=n).cache_transpose()
        half, back = (adj.ptr, adj.idx, adj.eid, adj.plan), (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
        ops, none = torch.ops.fusedmm, torch.empty(0, dtype=dtype, device=device)
        seed = torch.empty(0, dtype=torch.int64, device=device)
        x = torch.ones(n, heads * feat, dtype=dtype, device=device)
        att = torch.ones(1, heads, feat, dtype=dtype, device=device)
        bias = torch.ones(heads * feat, dtype=dtype, device=device) if learnt else none
        out, kept = ops._attend_self(*half, x, att, att, seed, bias, 0.2, 0.0, 1)
        assert out.tolist() == [[1 + learnt] * (heads * feat)] * n
        given = none if learnt and out.numel() else out
        made = ops._attend_self_back(*back, x, att, att, seed, given, kept, x, 0.2, 0.0, int(learnt))
        assert [t.shape for t in made[:3]] == [x.shape, att.shape, att.shape]
        assert all(bool(t.isfinite().all()) for t in made)
        for maps in (2, 3, 4) if feat else ():
            p, first = x.repeat(1, maps), att if maps == 2 else none
            out, kept = ops._attend_maps(*half, p, first, seed, none, 1.0, 0.2, 0.0, heads, maps, 1)
            assert out.tolist() == [[1 + (maps == 4)] * (heads * feat)] * n
            given = none if maps == 4 and out.numel() else out
            gp, _ = ops._attend_maps_back(*half, *back, p, first, seed, given, kept, x, 1.0, 0.2, 0.0, heads, maps)
            assert gp.shape == p.shape and bool(gp.isfinite().all())
    works(device)
