"""Rows that travel in pieces, each under the kernel of the piece before: the bits are those of one call."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from support.ranks import Rounded, both, on_ranks, require_equal
from torch.utils._python_dispatch import TorchDispatchMode

import fusedmm
from fusedmm.distributed import exchange, halo, ops, run
from fusedmm.distributed.exchange import exchange_of

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


@pytest.mark.parametrize("concat", [True, False])
def test_operands_that_set_out_early(whole, concat, monkeypatch):
    """Of a GAT layer, before its scores are computed: the bits stay, and each rank begins as often as the others."""
    monkeypatch.setattr(exchange, "APART", 1)
    begun = []
    kept = exchange.Exchange.begin_early
    monkeypatch.setattr(exchange.Exchange, "begin_early", lambda *args: kept(*args) or begun.append(args[0].early))
    torch.manual_seed(0)
    layer = fusedmm.nn.GATConv(6, 4, heads=3, add_self_loops=False, concat=concat)
    if whole.shape[0] == whole.shape[1]:
        x = ("c", normal(whole.shape[1], 6))
        require_equal(both(whole, lambda adj, x: layer(x, adj), {"x": x}, mode=Rounded))
        assert sum(bool(operands) for operands, _ in begun) == (2 * whole.count if has_halo(whole) else 0)


def test_the_rule_leaves_small_messages_whole():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        few = [part.ptr, part.part.idx, part.eid, part.part.plan, part.none, torch.ones(30, 160), 0, 0, 2]
        many = [*few[:5], torch.empty(30, 2**20), *few[6:]]
        func = fusedmm._lib.ops._spmm.default
        return [run.pieces_of(part.part, func, given) for given in (few, many)]

    for few, many in on_ranks(2, work):
        assert few is None and many == [(0, 2**19), (2**19, 2**19)]


@pytest.mark.parametrize(
    "width, dtype, least, entries, expected",
    [
        (128, torch.float32, 1, 1, [32] * 4),
        (100, torch.float32, 1, 1, [32, 32, 36]),
        (200, torch.float32, 1, 1, [32] * 5 + [40]),
        (150, torch.float32, 1, 1, [32] * 3 + [54]),
        (172, torch.bfloat16, 1, 1, [64, 108]),
        (32, torch.float32, 1, 1, [16] * 2),
        (256, torch.bfloat16, 1, 1, [64] * 4),
        (256, torch.float32, 150, 1, [64] * 4),
        (128, torch.float32, 1, 2**30, [64] * 2),
    ],
)
def test_the_rule_takes_lines_of_a_gpu(width, dtype, least, entries, expected, monkeypatch, most=2**32):
    """Of 128 bytes, or of so many that enough travels, where messages are large and a rank has enough entries for each
    row that travels; else halves."""
    whole = CUTS["two even ranks"]()
    rows = on_ranks(2, lambda ranks: whole.part(ranks).part.cols.whole)[0]
    monkeypatch.setattr(run, "OVERLAPS", rows * least)
    monkeypatch.setattr(run, "LARGE", 1)
    monkeypatch.setattr(run, "ENTRIES", entries)
    monkeypatch.setattr(run, "PIECE", rows * most)
    x = SimpleNamespace(shape=(30, width), dim=lambda: 2, element_size=lambda: dtype.itemsize, is_cuda=True)

    def work(ranks):
        part = whole.part(ranks)
        return run.pieces_of(part.part, fusedmm._lib.ops._spmm.default, [None] * 4 + [part.none, x])

    for pieces in on_ranks(2, work):
        assert [n for _, n in pieces] == expected
        assert [begin for begin, _ in pieces] == [sum(expected[:k]) for k in range(len(expected))]


@pytest.mark.parametrize(
    "width, entries, expected", [(128, 1, [32] * 4), (128, 2**30, [32] * 4), (172, 1, [32] * 4 + [44])]
)
def test_the_rule_takes_no_wider_lines_than_fit(width, entries, expected, monkeypatch):
    test_the_rule_takes_lines_of_a_gpu(width, torch.bfloat16, 1, entries, expected, monkeypatch, most=75)


def test_the_rule_takes_no_narrower_lines_than_loads(monkeypatch):
    test_the_rule_takes_lines_of_a_gpu(32, torch.float32, 1, 1, [4] * 8, monkeypatch, most=3)


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


class Told(TorchDispatchMode):
    """What operators were told of the whole matrix, by their names."""

    def __init__(self):
        super().__init__()
        self.told, self.plans = {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        said = dict(zip([a.name for a in func._schema.arguments], args, strict=False))
        if func.namespace == "fusedmm" and "plan" in said:
            name = func.__name__.partition(".")[0]
            self.told[name], self.plans[name] = (said.get("whole_rows"), said.get("whole_nnz")), said["plan"].numel()
        return func(*args, **(kwargs or {}))


def test_operators_are_told_of_the_whole():
    """The length of the pieces of long rows follows from the whole matrix, not from the rows of a rank."""

    def told(adj):
        x, q = torch.ones(adj.shape[1], 8), torch.ones(adj.shape[0], 1, 8)
        with Told() as seen:
            fusedmm.spmm(adj, x)
            fusedmm.attention(adj, q, x[:, None], x[:, None])
        return seen.told

    def work(ranks):
        part = whole.part(ranks)
        halves = [told(part), told(part.t()), told(part.local())]
        if whole is not square:
            return halves
        looped = part.add_self_loops()
        return [*halves, told(looped), told(looped.t()), looped.home.total]

    def of(rows, nnz):
        return {"_spmm": (None, nnz), "_attention": (rows, nnz)}

    whole, square = CUTS["rectangular"](), CUTS["two even ranks"]()
    for here, there, local in on_ranks(3, work):
        assert here == local == of(40, whole.nnz) and there == of(90, whole.nnz)
    whole = square
    for here, there, local, looped, looped_t, total in on_ranks(2, work):
        assert here == there == local == of(N, whole.nnz)
        assert looped == looped_t == of(N, total)
    assert told(CUTS["one rank"]().csr) == {"_spmm": (None, None), "_attention": (None, None)}


def test_who_is_not_told_gets_no_plan():
    """That plan has other pieces than an operator counts on which takes the matrix for a whole."""
    plan, none = torch.zeros(64, dtype=torch.uint8).as_subclass(ops.PartPlan), torch.empty(0, dtype=torch.uint8)
    plan.whole = {"whole_rows": 9, "whole_nnz": 900}
    half = torch.arange(3), torch.tensor([1, 0], dtype=torch.int32), none, plan
    with Told() as seen:
        fusedmm._lib.ops._spmm.default(*half, none, torch.ones(2, 4), 0, 0)
        fusedmm._lib.ops._row_softmax.default(*half, torch.ones(2, 1))
    assert seen.told == {"_spmm": (None, 900), "_row_softmax": (None, None)}
    assert seen.plans == {"_spmm": 64, "_row_softmax": 0}


def test_ranks_know_where_their_rows_begin_among_what_others_send():
    offsets = torch.tensor([0, 4, 4, 9])

    def work(ranks):
        others = [n for n in range(9) if not offsets[ranks.rank] <= n < offsets[ranks.rank + 1]]
        return exchange_of(ranks, torch.tensor(others[ranks.rank :]), offsets)

    found = on_ranks(3, work)
    for rank, mine in enumerate(found):
        assert mine.into == [other.out[rank] for other in found]
        assert mine.theirs == [sum(other.out[:rank]) for other in found]
        assert (mine.most, mine.whole) == (5, 10)


def test_engines_keep_no_memory_for_entries(monkeypatch):
    """Rows of operands come again and again; edges come once, and most of them from the rank itself."""
    asked, room = [], halo.Ranks.room
    monkeypatch.setattr(halo.Ranks, "room", lambda *args: asked.append(args[3]) or room(*args))
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        part.route(torch.ones(part.home.route.out[0] + part.home.route.out[1]))
        part.cache_transpose()
        made = len(asked)
        fusedmm.spmm(part, torch.ones(30, 9))
        return made

    made = max(on_ranks(2, work))
    assert made and not any(asked[:made]) and all(asked[-2:])
