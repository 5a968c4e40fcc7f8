"""What a DistCSR is, what it refuses, and that its ranks never wait for one that raised."""

import copy
import pickle

import pytest
import torch
from distributed.graphs import COL, CUTS, NNZ, ROW, N, normal
from support.ranks import Whole, on_ranks

import fusedmm
from fusedmm import nn
from fusedmm.distributed import DistCSR, partition


@pytest.mark.parametrize("cut", CUTS)
def test_edges_are_numbered_as_they_were_listed(cut):
    whole = CUTS[cut]()

    def work(ranks):
        part = whole.part(ranks)
        row, col = part.edges()
        assert part.nnz == row.numel() == part.edge_ids.numel()
        assert torch.equal(row, whole.row[part.edge_ids]) and torch.equal(col, whole.col[part.edge_ids])
        assert torch.equal(part.offsets, whole.offsets) and torch.equal(part.col_offsets, whole.col_offsets)
        assert torch.equal(part.t().offsets, whole.col_offsets) and part.t().shape == part.shape[::-1]
        assert part.t().nnz == part.nnz
        mine = slice(whole.lists[ranks.rank], whole.lists[ranks.rank + 1])
        attr = normal(whole.nnz, 3)[mine].requires_grad_()
        routed = part.route(attr)
        (routed * routed).sum().backward()
        assert torch.equal(attr.grad, 2 * attr)
        return part.edge_ids, routed.detach(), attr.detach()

    found = on_ranks(whole.count, work)
    ids, routed, attr = (torch.cat(t) for t in zip(*found, strict=True))
    assert torch.equal(ids.sort().values, torch.arange(whole.nnz))
    assert torch.equal(routed, attr[ids])


def test_rows_give_the_matrix_of_edges():
    whole = CUTS["eight ranks"]()
    csr = whole.csr
    order = csr.eid.long()
    x = normal(N, 5)

    def work(ranks):
        first, last = whole.offsets[ranks.rank : ranks.rank + 2].tolist()
        ptr = csr.ptr[first : last + 1]
        mine = slice(int(ptr[0]), int(ptr[-1]))
        part = DistCSR.from_rows(ptr - ptr[0], csr.idx[mine], None, whole.offsets, ranks, edge_ids=order[mine])
        counted = DistCSR.from_rows(ptr - ptr[0], csr.idx[mine], None, whole.offsets, ranks)
        assert torch.equal(counted.edge_ids, torch.arange(mine.start, mine.stop))
        with pytest.raises(ValueError, match="was not made of listed edges"):
            part.route(x)
        torch.manual_seed(0)
        own = x[first:last].clone().requires_grad_()
        y = fusedmm.spmm(part, own)
        (y * y).sum().backward()
        loops = part.add_self_loops()
        return y.detach(), own.grad, loops.edge_ids

    y, grad, ids = (torch.cat(t) for t in zip(*on_ranks(8, work), strict=True))
    own = x.clone().requires_grad_()
    expected = fusedmm.spmm(csr, own)
    (expected * expected).sum().backward()
    assert torch.equal(y, expected) and torch.equal(grad, own.grad)
    looped = csr.add_self_loops()
    assert torch.equal(ids.sort().values, torch.arange(looped.nnz))


def test_only_what_is_missing_travels():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        before = ranks.bytes
        fusedmm.spmm(part, torch.ones(30, 6))
        return ranks.bytes - before, part.part.cols.send.numel(), part.part.remote

    found = on_ranks(2, work)
    for rank, (sent, rows, _) in enumerate(found):
        remote = whole.col[(whole.row // 30 != rank) & (whole.col // 30 == rank)].unique()
        assert torch.equal(found[1 - rank][2], remote)
        assert sent == rows * 6 * 4 and rows == remote.numel()


def test_a_fixed_graph_sends_its_values_once():
    """A layer that keeps the normalised graph sends rows alone from the second step on."""
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part, sent = whole.part(ranks), []
        conv = nn.GCNConv(8, 4, cached=True)
        for _ in range(3):
            before = ranks.bytes
            conv(torch.ones(30, 8, requires_grad=True), part).sum().backward()
            sent.append(ranks.bytes - before)
        rows = part.part.cols.send.numel() + part.transpose_half()[3].part.cols.send.numel()
        return sent, rows * 4 * 4

    for sent, expected in on_ranks(2, work):
        assert sent[1] == sent[2] == expected


def test_one_rank_is_a_csr():
    whole = CUTS["one rank"]()
    part = whole.part(None or on_ranks(1, lambda ranks: ranks)[0])
    x = normal(N)
    assert torch.equal(part @ x, whole.csr @ x)
    assert torch.equal(part.t() @ x, whole.csr.t() @ x)
    assert (
        repr(part)
        == f"DistCSR(rank 0 of 1: shape=(60, 60) of (60, 60), nnz={part.nnz} of {part.nnz}, val=none, device=cpu)"
    )
    again = DistCSR.from_edges(whole.row, whole.col, None, whole.offsets, None)
    assert torch.equal(again @ x, whole.csr @ x)


READS = "^a DistCSR of several ranks does not support what reads its columns, such as to_dense, coo"
REFUSALS = {  # what a part is asked for, and what it says
    "dense": (lambda part: part.to_dense(), TypeError, READS),
    "torch": (lambda part: part.to_torch(), TypeError, "'Tensor' and 'Columns'"),
    "coordinates": (lambda part: part.coo(), TypeError, READS),
    "format": (lambda part: fusedmm.formats.to_ell(part), TypeError, READS),
    "parts": (lambda part: partition(part, 2).loads(), TypeError, READS),
    "made": (lambda part: DistCSR.make(part.ptr, part.ptr, part.none, None, 3, False), TypeError, "from_edges or"),
    "device": (lambda part: part.to("meta"), ValueError, "stays on its device"),
    "pickle": (lambda part: pickle.dumps(part), TypeError, "cannot be pickled"),
    "copy": (lambda part: copy.deepcopy(part), TypeError, "cannot be pickled or copied"),
    "messages": (
        lambda part: fusedmm.messages.u_mul_v(part, *[torch.ones(30, 4)] * 2),
        TypeError,
        "does not take a Dist",
    ),
    "product": (lambda part: part @ part, TypeError, "^spgemm does not take a DistCSR"),
    "loops": (lambda part: part.t().add_self_loops(), ValueError, "add them before t"),
    "edges": (lambda part: part.cache_transpose().t().edges(), ValueError, "ask before t"),
    "rows": (lambda part: fusedmm.spmm(part, torch.ones(99, 2)), ValueError, "x has 99 rows, the matrix"),
    "attr": (lambda part: part.route(torch.ones(1, 2)), ValueError, "rank 0: route: attr must have a row for each"),
    "attr type": (lambda part: part.route([1]), TypeError, "rank 0: route: attr must be a tensor, not list"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused(name):
    ask, kind, message = REFUSALS[name]
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part = whole.part(ranks)
        with pytest.raises(kind, match=message):
            ask(part)
        return fusedmm.spmm(part, torch.ones(30, 2))  # the next call works

    assert torch.equal(torch.cat(on_ranks(2, work)), fusedmm.spmm(whole.csr, torch.ones(60, 2)))


def test_lists_in_the_order_of_rows_need_no_numbers(monkeypatch):
    monkeypatch.setattr("fusedmm.distributed.part.PIECE", 50)
    order = torch.argsort(ROW * N + COL, stable=True)
    whole, val = Whole(ROW[order], COL[order], (N, N), [0, 13, 13, 60]), normal(NNZ)

    def work(ranks):
        part = whole.part(ranks)
        listed = val[whole.lists[ranks.rank] : whole.lists[ranks.rank + 1]].clone().requires_grad_()
        routed, loops = part.route(listed), part.add_self_loops()
        assert torch.equal(routed, val[part.edge_ids]) and part.home.route.send is None
        assert part.home.kept.numel() <= 1 and loops.home.kept.numel() <= 2
        (routed * part.edge_ids).sum().backward()
        edges = part.transpose_half()[3].part.edges
        assert edges.kept is None  # until values travel
        y = fusedmm.spmm(part.with_values(routed.detach()).t(), torch.ones(part.shape[0], 3))
        assert edges.kept.numel() == part.nnz
        return part.edge_ids, loops.edge_ids, listed.grad, y

    ids, of_loops, grads, y = (torch.cat(t) for t in zip(*on_ranks(3, work), strict=True))
    assert torch.equal(ids, torch.arange(NNZ)) and torch.equal(grads, torch.arange(NNZ).float())
    assert torch.equal(of_loops.sort().values, torch.arange(int(of_loops.max()) + 1))
    assert torch.equal(y, fusedmm.spmm(whole.csr.with_values(val).t(), torch.ones(N, 3)))


@pytest.mark.filterwarnings("ignore")
def test_transforms_and_compiled_code():
    whole, x = CUTS["two even ranks"](), normal(N, 4)
    ways = {
        "vmap": lambda adj, x: torch.vmap(lambda t: fusedmm.spmm(adj, t))(torch.stack([x, 2 * x])),
        "grad": lambda adj, x: torch.func.grad(lambda t: fusedmm.attention(adj, t, t, t).square().sum())(x),
        "compiled": lambda adj, x: torch.compile(lambda t: fusedmm.spmm(adj, t), backend="eager")(x),
    }
    for name, way in ways.items():
        if name == "compiled":  # dynamo is one for all threads
            found = [on_ranks(1, lambda ranks: way(CUTS["one rank"]().part(ranks), x))[0]]  # noqa: B023
        else:
            found = on_ranks(2, lambda ranks: way(whole.part(ranks), x[30 * ranks.rank : 30 * ranks.rank + 30]))  # noqa: B023
        assert torch.allclose(torch.cat(found, -2), way(whole.csr, x), rtol=1e-4, atol=1e-5), name


def test_loops_need_nodes_of_one_rank():
    whole = CUTS["rectangular"]()

    def work(ranks):
        part = DistCSR.from_edges(
            ROW[:5], ROW[:5], None, torch.tensor([0, 30, 60]), ranks, col_offsets=torch.tensor([0, 30, 61])
        )
        with pytest.raises(ValueError, match="equal offsets"):
            nn.GATConv(3, 2)((torch.ones(part.shape[1], 3), torch.ones(30, 3)), part)

    assert whole.count == 3
    on_ranks(2, work)


OFFSETS = torch.tensor([0, 2, 3])
EDGES = {"row": torch.tensor([0, 2]), "col": torch.tensor([1, 1]), "val": None, "offsets": OFFSETS}
BAD = {  # what rank 1 gives, and what all ranks say
    "row": ({"row": torch.tensor([0, 3])}, r"rank 1: row\[1\] = 3 is outside \[0, 3\)"),
    "column": ({"col": torch.tensor([-1, 0])}, r"rank 1: col\[0\] = -1 is outside \[0, 3\)"),
    "length": ({"col": torch.tensor([1])}, "rank 1: row has 2 elements and col 1"),
    "values": ({"val": torch.ones(3)}, "rank 1: .*3"),
    "some values": ({"val": torch.ones(2)}, r"values none; rank 1 has .* values torch\.float32"),
    "offsets": ({"offsets": torch.tensor([0, 1, 3])}, "rank 1 has a matrix of 3 rows"),
    "few offsets": ({"offsets": OFFSETS[:2]}, "rank 1: offsets must have 3 elements for 2 ranks, not 2"),
    "falling offsets": ({"offsets": torch.tensor([0, 4, 3])}, r"rank 1: offsets must rise from 0: offsets\[2\] = 3"),
    "first offset": ({"offsets": torch.tensor([1, 2, 3])}, r"rank 1: offsets must rise from 0: offsets\[0\] = 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_edges_of_one_rank_are_refused_by_all(name):
    changed, message = BAD[name]

    def work(ranks):
        with pytest.raises(ValueError, match=message):
            DistCSR.from_edges(**EDGES | (changed if ranks.rank == 1 else {}), mesh=ranks)
        return DistCSR.from_edges(**EDGES, mesh=ranks).nnz

    assert sum(on_ranks(2, work)) == 4


ROWS = {"ptr": torch.tensor([0, 1, 2]), "idx": torch.tensor([1, 2]), "val": None, "offsets": torch.tensor([0, 2, 4])}
BAD_ROWS = {
    "pointers": ({"ptr": torch.tensor([0, 2])}, "rank 1: ptr has 2 elements for 2 rows; 3 are needed"),
    "falling pointers": ({"ptr": torch.tensor([0, 3, 2])}, r"rank 1: ptr\[2\] = 2 is less than ptr\[1\] = 3"),
    "column": ({"idx": torch.tensor([1, 4])}, r"rank 1: idx\[1\] = 4 is outside \[0, 4\)"),
    "edge ids": ({"edge_ids": torch.tensor([1])}, r"rank 1: edge_ids must be \[2\], not \[1\]"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_of_one_rank_are_refused_by_all(name):
    changed, message = BAD_ROWS[name]

    def work(ranks):
        with pytest.raises(ValueError, match=message):
            DistCSR.from_rows(**ROWS | (changed if ranks.rank == 1 else {}), mesh=ranks)

    on_ranks(2, work)


def test_types_are_refused():
    with pytest.raises(TypeError, match=r"mesh must be a torch.distributed DeviceMesh or None, not str"):
        DistCSR.from_edges(**EDGES, mesh="cpu")
    with pytest.raises(TypeError, match="row"):
        DistCSR.from_edges(**EDGES | {"row": torch.ones(2)}, mesh=None)


@pytest.mark.parametrize("always", [False, True])
def test_a_later_disagreement_is_found_where_every_call_is_agreed(always, monkeypatch):
    monkeypatch.setenv("FUSEDMM_DISTRIBUTED_CHECK", str(int(always)))
    whole = CUTS["two even ranks"]()

    def work(ranks):
        part, asked = whole.part(ranks), []
        words = ranks.words
        ranks.words = lambda text: asked.append(text) or words(text)
        for _ in range(3):
            fusedmm.spmm(part, torch.ones(30, 2))
        if always:
            with pytest.raises(ValueError, match=r"options \[1, 0, 2\].*options \[0, 0, 2\]"):
                fusedmm.spmm(part, torch.ones(30, 2), reduce="sum" if ranks.rank else "mean")
        return len(asked)

    assert on_ranks(2, work) == [4, 4] if always else [1, 1]


def test_lasting_results_outlive_inference_mode():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        with torch.inference_mode():
            part = whole.part(ranks)
            fusedmm.spmm(part, torch.ones(30, 2))
        x = torch.ones(30, 2, requires_grad=True)
        fusedmm.spmm(part, x).sum().backward()
        return x.grad

    x = torch.ones(60, 2, requires_grad=True)
    fusedmm.spmm(whole.csr, x).sum().backward()
    assert torch.equal(torch.cat(on_ranks(2, work)), x.grad)
