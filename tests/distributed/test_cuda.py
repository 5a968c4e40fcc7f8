"""On a GPU, ranks that are threads find the bits of one device: rows are cut in the pieces of the whole matrix."""

import pytest
import torch
from distributed.every_call import NODES, calls, graph, normal
from support.ranks import Rounded, Whole, both, on_ranks, require_equal

import fusedmm
from fusedmm.distributed import halo, ops, run

CUTS = {"two ranks": [0, 1300, NODES], "three ranks, one without rows": [0, 78, 78, NODES]}


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("cut", CUTS)
def test_bits_of_one_device(cut, pieces, cuda, monkeypatch):
    monkeypatch.setattr(halo.Ranks, "pieces", (1,) * pieces)
    whole, wrong = graph(cuda, CUTS[cut]), []
    for name, compute, given, role in calls(cuda, whole.nnz):
        try:
            require_equal(both(whole, compute, given, role, mode=Rounded))
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def band(device, offsets):
    """Nodes that see their neighbours in number, and two long rows, of which one has remote columns."""
    generator = torch.Generator().manual_seed(6)
    row = torch.arange(NODES).repeat_interleave(101)
    col = (row + torch.arange(-50, 51).repeat(NODES)).clamp(0, NODES - 1)
    long = torch.tensor([77, 1299]).repeat_interleave(torch.tensor([20_000, 6_000]))
    row, col = torch.cat([row, long]), torch.cat([col, torch.randint(1300, long.shape, generator=generator)])
    order = torch.randperm(row.numel(), generator=generator)
    return Whole(row[order].to(device), col[order].to(device), (NODES, NODES), offsets)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("cut", CUTS)
def test_rows_of_own_columns_are_computed_first(cut, pieces, cuda, monkeypatch):
    monkeypatch.setattr(halo.Ranks, "pieces", (1,) * pieces)
    whole, taken, kept = band(cuda, CUTS[cut]), [], ops.run_inner
    monkeypatch.setattr(ops, "run_inner", lambda *args: taken.append(args[2].rows.numel()) or kept(*args))
    for name, compute, given, role in calls(cuda, whole.nnz):
        if name.startswith(("spmm", "GCN")):
            require_equal(both(whole, compute, given, role, mode=Rounded))
    assert any(taken) and max(taken) < NODES // 8


@pytest.mark.parametrize("feat", [64, 128])
def test_sddmm_chooses_lanes_by_the_whole_matrix(feat, cuda):
    """Its rows are short in the mean, which asks for fewer lanes of more columns: another order of sums."""
    nodes, edges = 20_000, 200_000
    row, col = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(7)).to(cuda)
    whole = Whole(row, col, (nodes, nodes), [0, 9_000, nodes])
    given = {k: (role, normal(nodes, feat, device=cuda, seed=seed)) for k, role, seed in (("a", "r", 1), ("b", "c", 2))}
    require_equal(both(whole, lambda adj, a, b: fusedmm.sddmm(adj, a, b), given, "e", mode=Rounded))


def test_one_rank_is_a_csr(cuda):
    whole = graph(cuda, [0, NODES])
    for name, compute, given, role in calls(cuda, whole.nnz):
        for what, _, one, many in both(whole, compute, given, role):
            assert torch.equal(one, many), f"{name}: {what}"


def test_a_part_keeps_no_more_than_its_numbers(cuda):
    """Of remote columns, and of rows that have some, without room for the entries among which they were found."""
    whole = band(cuda, CUTS["two ranks"])

    def work(ranks):
        part = whole.part(ranks)
        fusedmm.spmm(part, torch.ones(part.n_cols, 128, device=cuda))
        outer = part.part.outer
        return [part.part.remote, part.t().part.remote, outer.rows, outer.need]

    for kept in on_ranks(2, work):
        assert all(t.numel() and t.untyped_storage().nbytes() == t.nbytes for t in kept)


@pytest.mark.parametrize("entries, pieces", [(1, 4), (2**20, 2)])
def test_the_rule_takes_pieces_where_messages_are_large(entries, pieces, cuda, monkeypatch):
    """Lines of 128 bytes where a rank has many entries for each row that travels, and else halves."""
    monkeypatch.setattr(run, "OVERLAPS", 2**10)
    monkeypatch.setattr(run, "LARGE", 2**10)
    monkeypatch.setattr(run, "ENTRIES", entries)
    whole = graph(cuda, CUTS["two ranks"])
    taken = []
    kept = ops.run_in_pieces
    monkeypatch.setattr(ops, "run_in_pieces", lambda *args: taken.append(args[2]) or kept(*args))
    for name, compute, given, role in calls(cuda, whole.nnz):
        if name == "spmm sum 128":
            require_equal(both(whole, compute, given, role))
    assert taken and all({n for _, n in found} == {128 // pieces} for found in taken)
