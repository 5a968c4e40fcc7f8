"""Rows that travel in pieces, each under the kernel of the piece before: the bits are those of one call."""

from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from support.ranks import both, on_ranks, require_equal

import fusedmm
from fusedmm.distributed import halo, ops

NAMES = ["two even ranks", "a rank without rows", "four ranks, edges with one", "no halo", "no edges", "rectangular"]


@pytest.fixture(params=NAMES)
def whole(request):
    return CUTS[request.param]()


@pytest.fixture
def pieces(monkeypatch):
    """Has every operator take two pieces, and counts those that do."""
    monkeypatch.setenv(halo.PIECES, "2")
    with mock.patch.object(ops, "_run_in_pieces", wraps=ops._run_in_pieces) as taken:
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


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_heads_of_attention(whole, score, pieces):
    rows, cols = whole.shape
    width = () if score == "additive" else (4,)
    given = {"q": ("r", normal(rows, 4, *width)), "k": ("c", normal(cols, 4, *width)), "v": ("c", normal(cols, 4, 8))}
    edges = {"b": ("e", normal(whole.nnz, 4))}

    def attend(adj, q, k, v, b=None):
        return fusedmm.attention(adj, q, k, v, score=score, bias=b, return_lse=True)

    require_equal(both(whole, attend, given, "rr"))
    require_equal(both(whole, attend, given | edges, "rr", second=True))
    assert bool(funcs(pieces)) == has_halo(whole)


def test_keys_that_are_values_travel_once(pieces):
    whole = CUTS["two even ranks"]()
    q, k = normal(N, 4, 4), normal(N, 4, 4)

    def work(ranks):
        part, mine = whole.part(ranks), slice(30 * ranks.rank, 30 * ranks.rank + 30)
        before, own = ranks.bytes, k[mine]
        out = fusedmm.attention(part, q[mine], own, own)
        return out, ranks.bytes - before, part.part.cols.send.numel()

    found = on_ranks(2, work)
    assert torch.equal(torch.cat([out for out, _, _ in found]), fusedmm.attention(whole.csr, q, k, k))
    assert all(sent == rows * 4 * 4 * 4 for _, sent, rows in found)


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
        return [ops.pieces_of(part.part, func, given, "ec") for given in (few, many)]

    for few, many in on_ranks(2, work):
        assert few is None and many.pieces == ops.MOST_PIECES


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
