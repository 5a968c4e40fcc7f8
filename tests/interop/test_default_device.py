"""``torch.set_default_device``: what is made beside a caller's tensors is where they are, whatever the default is."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.every_layer import EDGES, LAYERS, NODES

import fusedmm
from fusedmm import data, presets


def calls(adj, val, x):
    heads = x.view(4, 2, 2)
    yield "spmm", lambda: fusedmm.spmm(adj.with_values(val), x)
    yield "max", lambda: fusedmm.spmm(adj.with_values(val), x, reduce="max")
    yield "mean", lambda: fusedmm.spmm(adj, heads, reduce="mean")
    yield "sddmm", lambda: fusedmm.sddmm(adj, x, x)
    yield "sddmm mul", lambda: fusedmm.sddmm(adj, x, x, op="mul")
    yield "fused", lambda: fusedmm.fused(adj.with_values(val), x, edge="a/(1+s)")
    yield "t-distribution", lambda: fusedmm.fused(adj, x, **presets.T_DISTRIBUTION)
    yield "edge_softmax", lambda: fusedmm.edge_softmax(adj, val)
    for score, more in (("dot", {}), ("cosine", {}), ("gatv2", {"att": heads[0]})):
        yield score, lambda s=score, m=more: fusedmm.attention(adj, heads, heads, heads, score=s, dropout=0.5, **m)
    yield "coo", lambda: adj.coo()[0].float() * x.sum()
    yield "transpose", lambda: fusedmm.spmm(adj.t(), x)
    yield "normalised", lambda: fusedmm.spmm(adj.gcn_norm(), x)
    yield "dense", lambda: adj.with_values(val).to_dense() @ x


def test_operators(device):
    given = EDGES.to(device)
    for name, _ in calls(*[None] * 2, torch.zeros(4, 4)):
        val = torch.randn(5, device=device, requires_grad=True)
        x = torch.randn(4, 4, device=device, requires_grad=True)
        torch.manual_seed(0)
        expected = dict(calls(fusedmm.as_csr(given), val, x))[name]()
        gradients = torch.autograd.grad(expected.sum(), (val, x), allow_unused=True)
        torch.manual_seed(0)
        with torch.device("meta"):
            adj = fusedmm.as_csr(given.clone())
            found = dict(calls(adj, val, x))[name]()
            again = torch.autograd.grad(found.sum(), (val, x), allow_unused=True)
        for a, b in zip((found, *again), (expected, *gradients), strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b), name


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, device):
    make, shape = LAYERS[name]
    layer = make().to(device)
    x, edges = torch.randn(NODES, 4, device=device), EDGES.to(device)
    more = () if shape is None else (torch.rand(shape, device=device),)
    expected = layer(x, edges, *more)
    with torch.device("meta"):
        found = layer(x, edges.clone(), *more)
        found.sum().backward()
    assert torch.equal(found, expected)


def test_constructors_and_files(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, indptr=[0, 1, 2], indices=[1, 0], shape=[2, 2], x=np.ones((2, 3), np.float32), y=[0, 1])
    with torch.device("meta"):
        made = [
            fusedmm.CSR.from_scipy(sp.eye(3, format="csr")),
            fusedmm.CSR.from_coo(EDGES[0], EDGES[1], shape=(4, 4)),
            fusedmm.CSR.from_csr(torch.tensor([0, 1], device="cpu"), torch.tensor([0], device="cpu"), None, (1, 1)),
            data.load_npz(path).adj,
            data.banded(5, 1),
            data.rmat(16, 40, seed=1),
        ]
        assert all(adj.device.type == "cpu" and adj.coo()[0].device.type == "cpu" for adj in made)


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_that_is_on_meta_itself_is_refused_by_name(name):
    make, shape = LAYERS[name]
    layer, x = make().to("meta"), torch.empty(NODES, 4, device="meta")
    more = () if shape is None else (torch.empty(shape, device="meta"),)
    with pytest.raises(TypeError, match="x must be on cpu or cuda, not on meta"):
        layer(x, EDGES.to("meta"), *more)
