"""Rows that travel in pieces, each under the kernel of the piece before: the bits are those of one call."""

from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from support.ranks import Whole, both, on_ranks, require_equal

import fusedmm
from fusedmm.distributed import halo, ops, run, slices

NAMES = ["two even ranks", "a rank without rows", "four ranks, edges with one", "no halo", "no edges", "rectangular"]


@pytest.fixture(params=NAMES)
def whole(request):
    return CUTS[request.param]()


@pytest.fixture
def pieces(monkeypatch):
    """Has every operator take two pieces, and counts those that do."""
    monkeypatch.setenv(halo.PIECES, "2")
    with mock.patch.object(ops, "run_in_pieces", wraps=ops.run_in_pieces) as taken:
        yield taken


def has_halo(whole) -> bool:
    owner = [
        torch.searchsorted(offsets, t, right=True)
        for offsets, t in ((whole.offsets, whole.row), (whole.col_offsets, whole.col))
    ]
    return not torch.equal(*owner)


def funcs(taken) -> set:
    return {call.args[1] for call in taken.call_args_list}


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_of_a_product(whole, reduce, dtype, pieces):
    cols = whole.shape[1]
    given = {"v": ("e", normal(whole.nnz, dtype=dtype)), "x": ("c", normal(cols, 160, dtype=dtype))}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x, reduce=reduce), given))
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x.flip(1), reduce=reduce), {"x": given["x"]}))
    expected = {fusedmm._lib.ops._spmm.default} if has_halo(whole) else set()
    assert funcs(pieces) == expected


@pytest.fixture
def gpu_rule(monkeypatch):
    """Cuts attention as on a GPU. A CPU's bits are the same then where rows have few entries, as those here have."""
    monkeypatch.setattr(slices, "on_gpu", lambda args: True)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_heads_of_attention(whole, score, pieces, gpu_rule):
    rows, cols = whole.shape
    width = () if score == "additive" else (4,)
    given = {"q": ("r", normal(rows, 8, *width)), "k": ("c", normal(cols, 8, *width)), "v": ("c", normal(cols, 8, 8))}
    edges = {"b": ("e", normal(whole.nnz, 8))}

    def attend(adj, q, k, v, b=None):
        return fusedmm.attention(adj, q, k, v, score=score, bias=b, return_lse=True)

    require_equal(both(whole, attend, given, "rr"))
    require_equal(both(whole, attend, given | edges, "rr", second=True))
    assert bool(funcs(pieces)) == has_halo(whole)


def test_keys_that_are_values_travel_once(pieces, gpu_rule):
    whole = CUTS["two even ranks"]()
    q, k = normal(N, 8, 4), normal(N, 8, 4)

    def work(ranks):
        part, mine = whole.part(ranks), slice(30 * ranks.rank, 30 * ranks.rank + 30)
        before, own = ranks.bytes, k[mine]
        out = fusedmm.attention(part, q[mine], own, own)
        return out, ranks.bytes - before, part.part.cols.send.numel()

    found = on_ranks(2, work)
    assert torch.equal(torch.cat([out for out, _, _ in found]), fusedmm.attention(whole.csr, q, k, k))
    assert all(sent == rows * 8 * 4 * 4 for _, sent, rows in found) and funcs(pieces)


@pytest.mark.parametrize("features", [1, 2])
def test_attention_of_long_rows_is_not_cut_on_a_cpu(features, pieces):
    """Its pieces of a row follow from the number of heads: the same bits need all of them in one call."""
    nodes = 400
    row, col = torch.arange(3 * nodes) % nodes, torch.arange(3 * nodes) * 7 % nodes
    row[: 2 * nodes] = 5
    large = Whole(row, col, (nodes, nodes), [0, 5, nodes])
    q, k, v = (("r", normal(nodes, 8, 4)) for _ in range(3))
    given = {"q": q, "k": k, "v": v}
    require_equal(both(large, lambda adj, q, k, v: fusedmm.attention(adj, q, k, v), given, features=features))
    assert not funcs(pieces)


def test_what_has_no_pieces(pieces):
    """Dot products mix channels, and narrow products, dropout and other heads have loops of their own."""
    whole = CUTS["two even ranks"]()
    x, heads = ("r", normal(N, 160)), ("r", normal(N, 4, 4))
    require_equal(both(whole, lambda adj, x: fusedmm.fused(adj, x), {"x": x}))
    require_equal(both(whole, lambda adj, x: fusedmm.sddmm(adj, x, x), {"x": x}, "e"))
    require_equal(both(whole, lambda adj, x: fusedmm.attention(adj, x, x, x, dropout=0.3), {"x": heads}))
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x), {"x": ("r", normal(N, 100))}))
    assert fusedmm._lib.ops._attention.default not in funcs(pieces)
    assert all(call.args[2][5].shape[1] == 160 for call in pieces.call_args_list)  # products of dot's gradients


def test_the_rule_leaves_small_messages_whole():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        few = [part.ptr, part.part.idx, part.eid, part.part.plan, part.none, torch.ones(30, 160), 0, 0, 2]
        many = [*few[:5], torch.empty(30, 2**20), *few[6:]]
        func = fusedmm._lib.ops._spmm.default
        return [run.pieces_of(part.part, func, given, "ec") for given in (few, many)]

    for few, many in on_ranks(2, work):
        assert few is None and many.pieces == run.MOST_PIECES


def test_plans_of_parts_know_the_whole():
    """The length of the pieces of long rows follows from the whole matrix, whose rows and entries a plan carries."""

    def work(ranks):
        part = whole.part(ranks)
        looped = part.add_self_loops()
        kinds = [part.plan, part.t().plan, looped.plan, looped.t().plan, part.local().plan]
        return [plan.stride()[1:] for plan in kinds] + [looped.home.total]

    whole = CUTS["rectangular"]()
    for here, there, *_ in on_ranks(3, lambda ranks: [whole.part(ranks).plan, whole.part(ranks).t().plan]):
        assert here.stride()[1:] == (40, whole.nnz) and there.stride()[1:] == (90, whole.nnz)
    whole = CUTS["two even ranks"]()
    for here, there, looped, looped_t, local, total in on_ranks(2, work):
        assert here == there == local == (N, whole.nnz)
        assert looped == looped_t == (N, total)
    assert len(CUTS["one rank"]().csr.plan.shape) == 1
