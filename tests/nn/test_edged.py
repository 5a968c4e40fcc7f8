"""Attention with edge features as one step of autograd gives what its parts give, in every gradient."""

import pytest
import torch
from support.generate import tiny
from support.small_graph import NODES, features, graph

import fusedmm
from fusedmm.matrix.incidence import into_rows
from fusedmm.ops.edge_attention import attend_edges, expanded

HEADS, FEAT, D = 3, 4, 2
NAMES = ("q", "k", "v", "projected", "attr")


def given(device="cpu", dtype=torch.float64, wanted=NAMES):
    adj = fusedmm.as_csr(graph().to(device), size=NODES)
    shapes = ((NODES, HEADS, FEAT),) * 2 + ((NODES, HEADS, FEAT + 1), (NODES, HEADS, D), (40, D))
    operands = [features(*shape, seed=k).to(device, dtype) for k, shape in enumerate(shapes)]
    return adj, [t.requires_grad_(name in wanted) for name, t in zip(NAMES, operands, strict=True)]


def parts(adj, q, k, v, projected, attr, scale, dropout):
    each, edge = into_rows(adj), expanded(attr, q)
    bias = fusedmm.sddmm(each, projected, edge)
    out, u = fusedmm.attention(adj, q, k, v, scale=scale, bias=bias, dropout=dropout, return_weights=True)
    return out, fusedmm.spmm(each.with_values(u), edge)


def both(adj, operands, dropout, used=(0, 1)):
    found = []
    for compute in (attend_edges, parts):
        torch.manual_seed(5)  # the mask depends on one draw per call
        outs = compute(adj, *operands, 0.7, dropout)
        total = sum((outs[k] * features(*outs[k].shape, seed=k + 8).to(outs[k])).sum() for k in used)
        wanted = [t for t in operands if t.requires_grad]
        found.append([*outs, *torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)])
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("wanted", [NAMES, NAMES[:4], ("q",), ("attr",), ("v", "projected")])
def test_results_and_gradients(device, dtype, dropout, wanted):
    adj, operands = given(device, dtype, wanted)
    torch.testing.assert_close(*both(adj, operands, dropout))
    with torch.no_grad():
        torch.manual_seed(5)
        without = attend_edges(adj, *operands, 0.7, dropout)
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(without, attend_edges(adj, *operands, 0.7, dropout), strict=True))


@pytest.mark.parametrize("used", [(0,), (1,)])
def test_one_of_the_results_alone(device, used):
    torch.testing.assert_close(*both(*given(device), 0.3, used))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_of_gradients(dropout):
    """CPU only: the formula that is differentiated is the same on every device."""
    adj = tiny().pattern()
    shapes = (4, 2, 2), (5, 2, 2), (5, 2, 3), (4, 2, D), (9, D)
    operands = [features(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]

    def compute(*operands):
        torch.manual_seed(5)
        return attend_edges(adj, *operands, 0.7, dropout)

    assert torch.autograd.gradcheck(compute, operands)
    assert torch.autograd.gradgradcheck(compute, operands, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(device, dtype):
    adj, operands = given(device, dtype)
    found, expected = both(adj, operands, 0.0)
    assert all(t.dtype == dtype for t in found)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.2)


def test_bipartite_and_without_edges(device):
    for places in ([[0, 0, 2], [1, 4, 4]], [[], []]):
        adj = fusedmm.CSR.from_coo(*torch.tensor(places, dtype=torch.int64, device=device), shape=(3, 5))
        shapes = (3, HEADS, FEAT), (5, HEADS, FEAT), (5, HEADS, FEAT), (3, HEADS, D), (adj.nnz, D)
        operands = [features(*s, seed=k).to(device).requires_grad_() for k, s in enumerate(shapes)]
        torch.testing.assert_close(*both(adj, operands, 0.0))


def test_mixed_dtypes_and_autocast():
    """CPU only: which dtypes meet is the same on every device."""
    adj, operands = given(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = attend_edges(adj, *operands, 0.7, 0.0), parts(adj, *operands, 0.7, 0.0)
    assert all(torch.equal(a, b) and a.dtype == torch.bfloat16 for a, b in zip(found, expected, strict=True))
    with pytest.raises(TypeError, match=r"sddmm: a is .* and b .*; they must be of one dtype"):
        attend_edges(adj, *operands[:4], operands[4].double(), 0.7, 0.0)


def test_rows_of_one_weight_in_sixteen_bits(device):
    """The parts of their logits' gradients cancel, each of which is far from 0."""
    gradients, edges = [], torch.arange(40, device=device)
    for dtype in (torch.bfloat16, torch.float64):
        _, (q, *others) = given(device, torch.bfloat16)
        row, col = edges // 4, (edges // 4 + edges % 4) % NODES
        adj = fusedmm.CSR.from_coo(row, col, shape=(NODES, NODES))
        q, *others = leaves = [t.detach().to(dtype).requires_grad_() for t in (q * 2.0**14, *others)]
        out, summed = attend_edges(adj, q, *others, 0.7, 0.0)
        gradients.append(torch.autograd.grad(out.sum() + summed.sum(), leaves))
    for name, found, exact in zip(NAMES, *gradients, strict=True):
        size = 1 + exact.abs().max().item()
        assert (found.double() - exact).abs().max().item() <= 0.02 * size, name
