"""The Python of docs/spgemm.md, one block after the other, and its results beside dense products and PyG's layers."""

import re

import pytest
import torch
from support.machine import ROOT

import fusedmm


@pytest.fixture(scope="module")
def names():
    torch.manual_seed(0)
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "spgemm.md").read_text(), re.M | re.S):
        exec(compile(block, "docs/spgemm.md", "exec"), found)
    return found


@pytest.fixture
def dense(names):
    return names["A"].to_dense()


def edges_of(adj):
    row, col, val = adj.coo()
    return torch.stack([row, col]), val


def test_hops(names, dense):
    torch.testing.assert_close(names["two"].to_dense(), dense @ dense)
    torch.testing.assert_close(names["three"].to_dense(), dense @ dense @ dense)
    assert names["two"].nnz > names["A"].nnz


def test_graph_u_net(names):
    models = pytest.importorskip("torch_geometric.nn").models
    index, weight = models.GraphUNet(4, 4, 4, 1).augment_adj(*edges_of(names["A"]), 60)
    theirs = torch.zeros(60, 60).index_put(tuple(index), weight)
    torch.testing.assert_close(names["augmented"].to_dense(), theirs)


def test_top_k_pooling(names, dense):
    nn = pytest.importorskip("torch_geometric.nn")
    layer = nn.TopKPooling(1, ratio=20)
    torch.nn.init.ones_(layer.select.weight)
    index, weight = edges_of(names["A"])
    _, index, weight, _, perm, _ = layer(names["score"][:, None], index, weight)
    theirs = torch.zeros(60, 60).index_put((perm[index[0]], perm[index[1]]), weight)
    kept = names["kept"]
    assert torch.equal(perm.sort().values, kept)
    torch.testing.assert_close(names["of_kept"].to_dense(), theirs[kept][:, kept])
    torch.testing.assert_close(names["of_kept"].to_dense(), names["A"].subgraph(kept).to_dense())
    torch.testing.assert_close(names["weighed"].to_dense(), (names["score"][:, None] * dense)[kept][:, kept])


def test_edge_pooling(names):
    """The edges between PyG's clusters, which lie once in its result whatever their weights, are those of ours."""
    nn = pytest.importorskip("torch_geometric.nn")
    A, x = names["A"], torch.randn(60, 4)
    index, _ = edges_of(A)
    _, theirs, _, unpool = nn.EdgePooling(4)(x, index, torch.zeros(60, dtype=torch.int64))
    cluster = unpool.cluster
    P = fusedmm.CSR.from_coo(torch.arange(60), cluster, shape=(60, int(cluster.max()) + 1))
    ours = fusedmm.triple_product(P.t(), A, P)
    assert torch.equal(torch.stack(ours.coo()[:2]), theirs[:, (theirs[0] * ours.shape[1] + theirs[1]).argsort()])
    assert float(ours.sum()) == A.nnz


def test_joined_clusters(names, dense):
    P = torch.zeros(60, 30).index_put((torch.arange(60), torch.arange(60) // 2), names["score"])
    torch.testing.assert_close(names["joined"].to_dense(), P.T @ dense @ P)


def test_diff_pool(names, dense):
    """PyG's takes the logarithm of shares, since it forms the softmax itself."""
    nn = pytest.importorskip("torch_geometric.nn")
    P = names["P"].to_dense()
    assert P.shape == (60, 10) and int((P > 0).sum()) == 180
    shares = (P / P.sum(1, keepdim=True)).clamp(min=1e-30)
    _, theirs, _, _ = nn.dense_diff_pool(torch.zeros(1, 60, 1), dense[None], shares.log()[None])
    even = names["P"].scale(rows=1 / P.sum(1))
    torch.testing.assert_close(fusedmm.triple_product(even.t(), names["A"], even).to_dense(), theirs[0])
    torch.testing.assert_close(names["soft"].to_dense(), P.T @ dense @ P)


def test_features_of_candidates(names, dense):
    degree = dense.sum(1).clamp(min=2)
    row, col, _ = names["candidates"].coo()
    for k, weight in enumerate((torch.ones(60), 1 / degree.log(), 1 / degree)):
        exact = (dense * weight) @ dense.T
        torch.testing.assert_close(names["features"][:, k], exact[row, col])
    assert bool((names["common"] == ((dense[row] > 0) & (dense[col] > 0)).sum(1)).all())
