"""A mesh with an axis "features": its ranks take slices of channels and heads, and find the bits of one device."""

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from distributed.test_shared_layers import LAYERS, OTHER_ORDER, run
from support.ranks import both, on_ranks, require_equal, require_near

import fusedmm
from fusedmm.distributed import cross_entropy, dropout, replicate

MESHES = [("one rank", 3), ("a rank without rows", 2)]


@pytest.fixture(params=MESHES, ids=lambda mesh: f"{mesh[0]} x {mesh[1]}")
def mesh(request):
    cut, features = request.param
    return CUTS[cut](), features


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [7, 96, 240])
def test_spmm(mesh, reduce, width):
    whole, features = mesh
    given = {"v": ("e", normal(whole.nnz)), "x": ("c", normal(N, width))}
    options = {"second": reduce != "max", "features": features}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x, reduce=reduce), given, **options))


def test_heads(mesh):
    whole, features = mesh
    x, y, v = ("c", normal(N, 6, 48)), ("r", normal(N, 6, 5)), ("e", normal(whole.nnz, 6))
    given = {"v": v, "x": x}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given, features=features))
    for val in (v, ("e", normal(whole.nnz))):
        given = {"v": val, "a": y, "b": ("c", normal(N, 6, 5))}
        compute = lambda adj, v, a, b: fusedmm.sddmm(adj.with_values(v), a, b)  # noqa: E731
        require_equal(both(whole, compute, given, "e", second=True, features=features))


@pytest.mark.parametrize("score", ["dot", "additive", "cosine", "gatv2"])
@pytest.mark.parametrize("rest", [{}, {"dropout": 0.4}])
def test_attention(mesh, score, rest):
    whole, features = mesh
    shape = () if score == "additive" else (4,)
    given = {"q": ("r", normal(N, 6, *shape)), "k": ("c", normal(N, 6, *shape)), "v": ("c", normal(N, 6, 5))}
    given |= {"b": ("e", normal(whole.nnz, 6)), "w": ("e", normal(whole.nnz))}
    att = {"att": normal(6, 4)} if score == "gatv2" else {}

    def plain(adj, q, k, v, b, w):
        return fusedmm.attention(adj, q, k, v, score=score, bias=b, **att, **rest)

    def weighted(adj, q, k, v, b, w):
        return fusedmm.attention(adj, q, k, v, score=score, edge_weight=w, return_lse=True, **att, **rest)

    require_equal(both(whole, plain, given, features=features))
    require_equal(both(whole, weighted, given, "rr", features=features))


def test_others(mesh):
    whole, features = mesh
    given = {"v": ("e", normal(whole.nnz, 6)), "x": ("r", normal(N, 32))}

    def compute(adj, v, x):
        return fusedmm.edge_softmax(adj, v), fusedmm.fused(adj, x), fusedmm.spmm(adj.t(), x)

    require_equal(both(whole, compute, given, "err", features=features))


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    pairs = run(CUTS["two even ranks"](), *LAYERS[name], features=2)
    (require_near if name in OTHER_ORDER else require_equal)(pairs)


def test_each_rank_takes_its_share_of_the_halo():
    """A rank of F receives as much of x as one of a mesh of rows alone, divided by F."""
    whole, x = CUTS["two even ranks"](), normal(N, 320)

    def work(ranks):
        adj = whole.part(ranks)
        own, rows = whole.cut(x, "c", adj), getattr(ranks, "rows", ranks)
        before = rows.bytes
        fusedmm.spmm(adj, own)
        return rows.bytes - before

    alone, shared = on_ranks(2, work), on_ranks(2, work, 4)
    assert [4 * sent for sent in shared] == [sent for sent in alone for _ in range(4)] and min(alone) > 0


def test_training_takes_chance_from_the_first_rank():
    whole, x, y = CUTS["two even ranks"](), normal(N, 6), torch.arange(N) % 3
    models = [fusedmm.nn.GATConv(6, 3, heads=2, concat=False, dropout=0.4) for _ in range(4)]
    expected = [p.detach().clone() for p in models[0].parameters()]

    def work(ranks):
        adj = whole.part(ranks)
        model = replicate(models[2 * ranks.rank + ranks.columns.rank], ranks)
        same = all(map(torch.equal, model.parameters(), expected))
        given = [whole.cut(t, "r", adj) for t in (x, y, torch.arange(N) < 9)]
        loss = cross_entropy(model(dropout(given[0], 0.3, adj), adj), *given[1:], ranks)
        loss.backward()
        return same, loss, [p.grad for p in model.parameters()]

    found = on_ranks(2, work, 2)
    for same, loss, grads in found:
        assert same and torch.equal(loss, found[0][1]) and all(map(torch.equal, grads, found[0][2]))
