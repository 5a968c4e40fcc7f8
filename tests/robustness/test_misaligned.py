"""Tensors that begin at no multiple of their elements' size: the right result on the CPU, an error by name on CUDA."""

import pytest
import torch
from support.generate import own_algorithms, run_or_decline, small, works

import fusedmm
from fusedmm import nn

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ops = torch.ops.fusedmm


def displaced(t, by=1):
    """The same numbers, `by` bytes behind where an allocation begins."""
    size = t.numel() * t.element_size()
    held = torch.empty(size + by, dtype=torch.uint8, device=t.device)
    held[by:].copy_(t.detach().contiguous().view(-1).view(torch.uint8))
    out = torch.empty(0, dtype=t.dtype, device=t.device).set_(held.untyped_storage()[by:], 0, t.shape)
    assert not size or out.data_ptr() % t.element_size()
    return out


def both(op, operands, device):
    """What op gives of its operands, displaced one after the other and all together."""
    wanted = op(*operands)
    for where in (*range(len(operands)), None):
        given = [displaced(t) if where in (k, None) else t for k, t in enumerate(operands)]
        if device == "cuda":
            with pytest.raises(ValueError, match="begins at an address that is no multiple of its elements'"):
                op(*given)
        else:
            torch.testing.assert_close(op(*given), wanted, rtol=0, atol=0)
    works(device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operands(dtype, device):
    adj, g = small(device=device, dtype=dtype), torch.Generator().manual_seed(1)
    x, y = (torch.randn(n, 2, 9, generator=g).to(dtype).to(device) for n in (15, 12))
    both(lambda x: fusedmm.spmm(adj, x), [x], device)
    both(lambda val, x: fusedmm.spmm(adj.with_values(val.requires_grad_()), x).detach(), [adj.val.detach(), x], device)
    both(lambda a, b: fusedmm.sddmm(adj, a, b), [y, x], device)
    both(lambda x, y, z: fusedmm.fused(adj, x, y, z, edge="sigmoid(s)*a"), [y, x, x], device)
    both(lambda q, k, v: fusedmm.attention(adj, q, k, v), [y, x, x], device)
    bias, att = torch.randn(60, 2, generator=g).to(dtype).to(device), y[0].clone()
    both(lambda q, b: fusedmm.attention(adj, q, x, x, score="gatv2", att=att, bias=b), [y, bias], device)
    both(lambda q, k: fusedmm.attention(adj, q, k, x, score="additive"), [y[..., 0].clone(), x[..., 0].clone()], device)


def test_gradients(device):
    """What autograd hands on may lie anywhere."""
    adj = small(device=device)
    x, gy = torch.randn(15, 9, device=device, requires_grad=True), torch.randn(12, 9, device=device)
    y = fusedmm.spmm(adj, x)
    both(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0], [gy], device)


def test_structures():
    """CPU only: torch's own sorts and searches make those of CUDA."""
    edges = torch.tensor([[0, 1, 2, 2, 1], [1, 2, 0, 2, 1]])
    x = torch.eye(3)
    for loops in (False, True):
        made = [fusedmm.CSR.from_edge_index(e, size=3) for e in (edges, displaced(edges), displaced(edges, 4))]
        made = [adj.add_self_loops() if loops else adj for adj in made]
        for adj in made[1:]:
            assert torch.equal(fusedmm.spmm(adj, x), fusedmm.spmm(made[0], x))
    whole = small()
    ptr, idx = displaced(whole.ptr), displaced(whole.idx.long())
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(12, 15))
    pattern = fusedmm.CSR.from_csr(whole.ptr, whole.idx.long(), shape=(12, 15))
    assert torch.equal(fusedmm.spmm(adj, torch.eye(15)), fusedmm.spmm(pattern, torch.eye(15)))
    assert torch.equal(adj.t().to_dense(), pattern.t().to_dense())


@pytest.mark.parametrize("algorithm", own_algorithms("spmm", "cpu"))
def test_private_operators_take_displaced_structures(algorithm):
    """CPU only: on CUDA these are refused as the operands are."""
    adj, x = small(), torch.randn(15, 9)
    number = {a.name: a.number for a in fusedmm.algorithms("spmm", "cpu")}.get(algorithm, 0)
    if run_or_decline(fusedmm.spmm, adj, x, algorithm=algorithm) is None:
        return
    given = [adj.ptr, adj.idx, adj.eid]
    wanted = ops._spmm(*given, adj.plan, adj.val, x, 0, number)
    moved = [displaced(t) for t in given]
    assert torch.equal(ops._spmm(*moved, adj.plan, displaced(adj.val), x, 0, number), wanted)
    for one, other in zip(ops._transpose(*moved, adj.plan, 15), ops._transpose(*given, adj.plan, 15), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("layer", [nn.GATConv, nn.GATv2Conv, nn.TransformerConv, nn.GCNConv, nn.SAGEConv])
def test_layers(layer, device):
    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]], device=device)
    conv, x = layer(5, 3).to(device), torch.randn(3, 5, device=device)
    with torch.no_grad():
        wanted = conv(x, edges)
        if device == "cpu":
            torch.testing.assert_close(conv(displaced(x), displaced(edges)), wanted)
    works(device)


def test_a_plan_that_lies_askew(cuda):
    """It is made anew for the call, which reads it by vectors of 16 bytes."""
    adj, x = small(device=cuda), torch.randn(15, 64, device=cuda)
    given = adj.ptr, adj.idx, adj.eid
    moved = torch.empty(adj.plan.numel() + 1, dtype=torch.uint8, device=cuda)[1:].copy_(adj.plan)
    assert torch.equal(ops._spmm(*given, moved, adj.val, x, 0, 0), ops._spmm(*given, adj.plan, adj.val, x, 0, 0))


def test_what_was_kept_lies_askew(device):
    """Of the one-call operators, whose backward reads views of it."""
    adj = fusedmm.CSR.from_edge_index(torch.tensor([[0, 1], [1, 0]], device=device), size=2).cache_transpose()
    half, back = (adj.ptr, adj.idx, adj.eid, adj.plan), (adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    x, att = torch.ones(2, 4, device=device), torch.ones(1, 1, 4, device=device)
    seed, none = torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device)
    out, kept = ops._attend_self(*half, x, att, att, seed, none, 0.2, 0.0, 1)
    askew = torch.empty(kept.numel() + 1, dtype=torch.uint8, device=device)[1:].copy_(kept)
    with pytest.raises(RuntimeError, match=r"kept must be \d+ contiguous bytes, aligned to 16"):
        ops._attend_self_back(*back, x, att, att, seed, out, askew, x, 0.2, 0.0, 0)
    assert ops._attend_self_back(*back, x, att, att, seed, out, kept, x, 0.2, 0.0, 0)[0].isfinite().all()
