"""Rows that travel in pieces, each under the kernel of the piece before: the bits are those of one call."""

from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from support.ranks import both, on_ranks, require_equal

import fusedmm
from fusedmm.distributed import halo, ops, run

NAMES = ["two even ranks", "a rank without rows", "four ranks, edges with one", "no halo", "no edges", "rectangular"]


@pytest.fixture(params=NAMES)
def whole(request):
    return CUTS[request.param]()


@pytest.fixture
def pieces(monkeypatch):
    """Has every operator take two pieces, and counts those that do."""
    monkeypatch.setattr(halo.Ranks, "pieces", (1, 1))
    with mock.patch.object(ops, "run_in_pieces", wraps=ops.run_in_pieces) as taken:
        yield taken


def has_halo(whole) -> bool:
    owner = [
        torch.searchsorted(offsets, t, right=True)
        for offsets, t in ((whole.offsets, whole.row), (whole.col_offsets, whole.col))
    ]
    return not torch.equal(*owner)


def widths(taken) -> set:
    """The numbers of columns of the pieces that were taken."""
    return {tuple(n for _, n in call.args[2]) for call in taken.call_args_list}


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_of_a_product(whole, reduce, dtype, pieces):
    cols = whole.shape[1]
    given = {"v": ("e", normal(whole.nnz, dtype=dtype)), "x": ("c", normal(cols, 160, dtype=dtype))}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x, reduce=reduce), given))
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x.flip(1), reduce=reduce), {"x": given["x"]}))
    assert widths(pieces) == ({(80, 80)} if has_halo(whole) else set())


@pytest.mark.parametrize(
    "shares, expected", [((1, 2), (80, 160)), ((1,) * 4, (80,) * 4), ((3, 2, 2), (102, 69, 69)), ((1, 3), (90, 270))]
)
def test_other_pieces(shares, expected, pieces, monkeypatch):
    """Those of a CPU have 80 columns at least, and a product is whole where one would have less."""
    monkeypatch.setattr(halo.Ranks, "pieces", shares)
    whole, width = CUTS["two even ranks"](), sum(expected)
    given = {"v": ("e", normal(whole.nnz)), "x": ("c", normal(whole.shape[1], width))}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given))
    assert widths(pieces) == ({expected} if min(expected) >= 80 else set())


def test_what_has_no_pieces(pieces):
    """Dot products mix channels, attention walks over all entries for each piece, and narrow products have loops of
    their own."""
    whole = CUTS["two even ranks"]()
    x, heads = ("r", normal(N, 160)), ("r", normal(N, 4, 4))
    require_equal(both(whole, lambda adj, x: fusedmm.fused(adj, x), {"x": x}))
    require_equal(both(whole, lambda adj, x: fusedmm.sddmm(adj, x, x), {"x": x}, "e"))
    require_equal(both(whole, lambda adj, x: fusedmm.attention(adj, x, x, x), {"x": heads}))
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x), {"x": ("r", normal(N, 100))}))
    assert widths(pieces) <= {(80, 80)}  # products of dot's gradients


def test_the_rule_leaves_small_messages_whole():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        few = [part.ptr, part.part.idx, part.eid, part.part.plan, part.none, torch.ones(30, 160), 0, 0, 2]
        many = [*few[:5], torch.empty(30, 2**20), *few[6:]]
        func = fusedmm._lib.ops._spmm.default
        return [run.pieces_of(part.part, func, given) for given in (few, many)]

    for few, many in on_ranks(2, work):
        assert few is None and sum(n for _, n in many) == 2**20 and len(many) == len(run.SHARES)


def test_the_rule_keeps_pieces_small(monkeypatch):
    """What a rank has of one is bounded, by as many pieces as that takes."""
    monkeypatch.setattr(run, "OVERLAPS", 1)
    monkeypatch.setattr(run, "PIECE", 30 * 100 * 4)  # rows of a hundred columns
    whole, x = CUTS["two even ranks"](), ("c", normal(N, 340))

    def work(ranks):
        part = whole.part(ranks)
        given = [part.ptr, part.part.idx, part.eid, part.part.plan, part.none, torch.ones(30, 340), 0, 0, 2]
        return part.part.cols.whole, run.pieces_of(part.part, fusedmm._lib.ops._spmm.default, given)

    for rows, pieces in on_ranks(2, work):
        assert rows <= 30 and pieces == [(0, 85), (85, 85), (170, 85), (255, 85)]
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x), {"x": x}))


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
