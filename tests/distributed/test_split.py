"""``overlap(adj, "split")``: own columns first, remote ones once they came. Other bits, and never by itself."""

from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from support.ranks import both, on_ranks

import fusedmm
from fusedmm import nn
from fusedmm.distributed import DistCSR, ops, overlap

NAMES = ["two even ranks", "a rank without rows", "four ranks, edges with one", "no halo", "no edges", "rectangular"]


@pytest.fixture
def taken():
    """The products that were computed so."""
    with mock.patch.object(ops, "run_split", wraps=ops.run_split) as calls:
        yield calls


def split(adj):
    return overlap(adj, "split") if isinstance(adj, DistCSR) else adj


def near(compared):
    for what, _, one, many in compared:
        assert one.dtype == many.dtype and torch.allclose(one, many, rtol=1e-5, atol=1e-5), what


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products(name, dtype, taken):
    whole = CUTS[name]()
    given = {"v": ("e", normal(whole.nnz, dtype=dtype)), "x": ("c", normal(whole.shape[1], 33, dtype=dtype))}
    near(both(whole, lambda adj, v, x: fusedmm.spmm(split(adj).with_values(v), x), given))
    near(both(whole, lambda adj, v, x: fusedmm.spmm(split(adj.with_values(v)), x), given))
    near(both(whole, lambda adj, x: fusedmm.spmm(split(adj), x), {"x": given["x"]}, second=True))
    assert bool(taken.call_count) == (name not in ("no halo", "no edges"))


@pytest.mark.parametrize("make", [lambda: nn.GCNConv(6, 5), lambda: nn.GINConv(torch.nn.Linear(6, 5))])
def test_layers(make, taken):
    whole = CUTS["two even ranks"]()
    torch.manual_seed(0)
    layer = make()
    near(both(whole, lambda adj, x: layer(x, split(adj)), {"x": ("r", normal(N, 6))}))
    assert taken.call_count >= 4  # of two ranks, forward and backward


def test_the_same_bits_at_every_run_and_with_values_written_anew():
    whole, x = CUTS["two even ranks"](), normal(N, 16)
    val = normal(whole.nnz)

    def work(ranks):
        part = whole.part(ranks)
        mine = whole.cut(val, "e", part).clone()
        adj, own = split(part.with_values(mine)), whole.cut(x, "c", part)
        first = fusedmm.spmm(adj, own)
        assert all(torch.equal(fusedmm.spmm(adj, own), first) for _ in range(3))
        mine.mul_(2)
        return first, fusedmm.spmm(adj, own)

    for first, twice in on_ranks(2, work):
        assert torch.equal(twice, 2 * first)


def test_what_is_not_split(taken):
    """Maxima, 16 bits and what is no product; and whatever is called with a matrix that nobody asked to split."""
    whole, x = CUTS["two even ranks"](), ("r", normal(N, 8))
    for reduce in ("mean", "max"):
        near(both(whole, lambda adj, x, reduce=reduce: fusedmm.spmm(split(adj), x, reduce=reduce), {"x": x}))
    half = {"x": ("r", normal(N, 8, dtype=torch.bfloat16))}
    for _, _, one, many in both(whole, lambda adj, x: fusedmm.spmm(split(adj), x), half):
        assert torch.equal(one, many)
    near(both(whole, lambda adj, x: fusedmm.spmm(adj, x), {"x": x}))
    calls = [call.args[1] for call in taken.call_args_list]
    assert all(given[6] == fusedmm._lib.NUMBERS["FMM_SUM"] and given[5].dtype == torch.float32 for given in calls)


def test_refusals():
    whole = CUTS["two even ranks"]()
    with pytest.raises(TypeError, match="adj must be a DistCSR, not CSR"):
        overlap(whole.csr, "split")
    with pytest.raises(ValueError, match="how must be 'split', not 'pieces'"):
        on_ranks(2, lambda ranks: overlap(whole.part(ranks), "pieces"))

    def differs(ranks):
        part = whole.part(ranks)
        return fusedmm.spmm(split(part) if ranks.rank else part, torch.ones(part.shape[1], 8))

    with pytest.raises(ValueError, match=r"rank 0 has spmm on a matrix .*; rank 1 has spmm on the split of a matrix"):
        on_ranks(2, differs)
