"""Cosine attention as one step of autograd gives what its parts written with torch give, in every gradient."""

import pytest
import torch
from support.small_graph import NODES, features, graph
from torch.nn.functional import normalize

import fusedmm
from fusedmm.ops.cosine import attend_cosine


def given(device="cpu", dtype=torch.float64, feat=5):
    adj = fusedmm.as_csr(graph().to(device), size=NODES)
    x = features(NODES, feat)
    x[4] = 0  # has no direction
    x[5] *= 1e-13 if dtype == torch.float64 else 1  # is divided by more than its length
    return (
        adj,
        x.to(device, dtype).requires_grad_(),
        torch.tensor([0.7], device=device, dtype=dtype, requires_grad=True),
    )


def parts(adj, x, beta):
    unit = normalize(x, dim=-1)
    return fusedmm.attention(adj, beta * unit, unit, x, scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("wanted", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("feat", [1, 5, 33])
def test_results_and_gradients(device, dtype, wanted, feat):
    adj, *operands = given(device, dtype, feat)
    operands = [t.detach().requires_grad_(k in wanted) for k, t in enumerate(operands)]
    found = []
    for compute in (attend_cosine, parts):
        out = compute(adj, *operands)
        cotangent = features(NODES, feat, seed=3).to(out)
        found.append([out, *torch.autograd.grad(out, [operands[k] for k in wanted], cotangent)])
    torch.testing.assert_close(*found)
    with torch.no_grad():
        assert torch.equal(attend_cosine(adj, *operands), found[0][0])


def test_gradients_of_gradients():
    """CPU only: the formula that is differentiated is the same on every device."""
    adj, x, beta = given(feat=2)
    x = features(NODES, 2).requires_grad_()  # finite differences want lengths well above zero
    assert torch.autograd.gradcheck(lambda x, b: attend_cosine(adj, x, b), (x, beta))
    assert torch.autograd.gradgradcheck(lambda x, b: attend_cosine(adj, x, b), (x, beta))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(device, dtype):
    adj, x, beta = given(device, dtype)
    x = features(NODES, 5).to(x).requires_grad_()  # float16 rounds the least length to 0, here as in torch
    found = []
    for compute in (attend_cosine, parts):
        out = compute(adj, x, beta)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), (x, beta))])
        assert all(t.dtype == dtype for t in found[-1])
    torch.testing.assert_close(*found, rtol=0.05, atol=0.1)


def test_mixed_dtypes():
    """CPU only: which dtypes meet is the same on every device."""
    adj, x, beta = given(dtype=torch.float32)
    assert torch.equal(attend_cosine(adj, x, beta.bfloat16()), parts(adj, x, beta.bfloat16()))
    with pytest.raises(TypeError, match="attention: q is"):
        attend_cosine(adj, x, beta.double())


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("learned", [True, False])
def test_the_layer_takes_a_lower_dtype_than_betas_as_pygs(device, low, learned):
    theirs = pytest.importorskip("torch_geometric.nn")
    x = features(NODES, 5).to(device, low)
    results = []
    for module in (fusedmm.nn, theirs):
        layer = module.AGNNConv(requires_grad=learned).to(device)
        layer = layer.double() if low == torch.float32 else layer
        results.append(layer(x, graph().to(device)))
    assert results[0].dtype == results[1].dtype != low
    torch.testing.assert_close(*results, rtol=0, atol=8 * float(torch.finfo(low).eps))
