"""What a matrix knows of its rows when it is made, and the choice of a kernel that follows from it."""

import copy
import pickle

import pytest
import torch
from support.bounds import assert_within, sddmm_oracle, spmm_oracle

import fusedmm
from fusedmm.matrix.structure import EVEN, NEITHER, TILED, UNEVEN, UNKNOWN, evenness

N = TILED[1]


def pattern(share: float = 0.08, hub: int = 0, shuffled: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(ptr, idx) of N rows and columns, all equally long but for a hub of so many times the mean."""
    each = int(share * N)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.full((N,), each)
    if hub:
        lengths[N // 2] = hub * each
    parts = [torch.randperm(N, generator=generator)[: int(n)] for n in lengths]
    idx = torch.cat(parts if shuffled else [part.sort().values for part in parts])
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), idx


@pytest.mark.parametrize(
    ("kind", "expected"),
    [({}, EVEN), ({"hub": 3}, NEITHER), ({"hub": 6}, UNEVEN), ({"shuffled": True}, UNEVEN)],
    ids=["even", "between", "hub", "columns in no order"],
)
def test_evenness(kind, expected, device):
    ptr, idx = (t.to(device) for t in pattern(**kind))
    assert evenness(ptr, idx) == expected
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(N, N))
    assert adj.rows_are == (known := expected if device == "cuda" else UNKNOWN)
    # The way of making it does not matter; from coordinates columns rise in any case.
    if not kind.get("shuffled"):
        row, col, _ = adj.coo()
        assert fusedmm.CSR.from_coo(row.flip(0), col.flip(0), shape=(N, N)).rows_are == known
        assert fusedmm.CSR.from_csr(ptr.cpu(), idx.cpu(), shape=(N, N)).to(device).rows_are == known


def test_nobody_looks_where_it_would_not_count_or_was_not_wanted(cuda):
    """Nothing is known of sparse matrices; unchecked ones are made without a synchronisation, transposes too."""
    ptr, idx = (t.to(cuda) for t in pattern(0.02))
    assert fusedmm.CSR.from_csr(ptr, idx, shape=(N, N)).rows_are == UNKNOWN
    ptr, idx = (t.to(cuda) for t in pattern())
    torch.cuda.set_sync_debug_mode("error")
    try:
        adj = fusedmm.CSR.from_csr(ptr, idx, shape=(N, N), check=False).cache_transpose()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adj.rows_are == adj.rows_are_t == UNKNOWN
    assert torch.equal(fusedmm.spmm(adj, torch.ones(N, 4, device=cuda)).sum(), torch.tensor(4.0 * idx.numel()).to(cuda))


def test_what_is_known_stays(cuda):
    """Of copies and transposes; columns are looked at where rows were."""
    ptr, idx = (t.to(cuda) for t in pattern())
    adj = fusedmm.CSR.from_csr(ptr, idx, torch.randn(idx.numel(), device=cuda), shape=(N, N)).cache_transpose()
    for known in (adj, adj.t().t(), adj.pattern(), copy.deepcopy(adj), pickle.loads(pickle.dumps(adj))):
        assert known.rows_are == EVEN and known.rows_are_t == EVEN
    hub, idx = (t.to(cuda) for t in pattern(hub=6))
    adj = fusedmm.CSR.from_csr(hub, idx, shape=(N, N)).cache_transpose()
    assert adj.rows_are == UNEVEN and adj.rows_are_t == EVEN and adj.t().rows_are_t == UNEVEN


def wide(share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """N rows and 2 N columns: neither small nor square."""
    ptr, idx = pattern(share)
    return 2 * ptr, torch.stack([2 * idx, 2 * idx + 1], 1).view(-1)


@pytest.mark.parametrize(
    ("share", "said", "chosen"),
    [
        (0.10, UNKNOWN, "tiles"), (0.10, EVEN, "tiles"), (0.10, UNEVEN, "segments"), (0.10, NEITHER, "tiles"),
        (0.06, UNKNOWN, "segments"), (0.06, EVEN, "tiles"), (0.06, UNEVEN, "segments"), (0.06, NEITHER, "segments"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_choice_follows_and_results_do_not_depend_on_it(share, said, chosen, reduce, cuda):
    """Whatever is said of the rows, and it may be wrong: a result within the bound."""
    ptr, idx = (t.to(cuda) for t in wide(share))
    val, x = torch.randn(idx.numel(), device=cuda), torch.randn(2 * N, 20, device=cuda)
    adj = fusedmm.CSR.from_csr(ptr, idx, val, shape=(N, 2 * N))
    assert adj.rows_are == EVEN

    def run(name: str) -> torch.Tensor:
        number = next((a.number for a in fusedmm.algorithms("spmm", cuda) if a.name == name), 0)
        kind = ["sum", "mean"].index(reduce)
        return torch.ops.fusedmm._spmm(ptr, adj.idx, adj.eid, adj.plan, val, x, kind, number, said)

    found, tiles, segments = run("auto"), run("tiles"), run("segments")
    assert torch.equal(found, {"tiles": tiles, "segments": segments}[chosen])
    exact = spmm_oracle(adj, x, reduce)
    for y in (tiles, segments):
        assert_within(y, *exact, torch.float32)


@pytest.mark.parametrize(
    ("said", "feat", "chosen"),
    [(EVEN, 32, "tiles"), (EVEN, 128, "tiles"), (EVEN, 8, "segments"), (UNEVEN, 32, "segments")],
)
def test_sddmm_follows_too(said, feat, chosen, cuda):
    ptr, idx = (t.to(cuda) for t in wide(0.06))
    a, b = torch.randn(N, feat, device=cuda), torch.randn(2 * N, feat, device=cuda)
    adj = fusedmm.CSR.from_csr(ptr, idx, shape=(N, 2 * N))

    def run(name: str) -> torch.Tensor:
        number = next((a.number for a in fusedmm.algorithms("sddmm", cuda) if a.name == name), 0)
        return torch.ops.fusedmm._sddmm(ptr, adj.idx, adj.eid, adj.plan, adj.none, a, b, number, said)

    assert torch.equal(run("auto"), run(chosen))
    exact = sddmm_oracle(adj, a, b)
    for name in ("tiles", "segments"):
        assert_within(run(name), *exact, torch.float32, name)


@pytest.mark.parametrize("how", [{}, {"hub": 6}], ids=["even", "hub"])
def test_captured_and_compiled_code_choose_alike(how, cuda):
    ptr, idx = (t.to(cuda) for t in pattern(**how))
    adj = fusedmm.CSR.from_csr(ptr, idx, torch.randn(idx.numel(), device=cuda), shape=(N, N)).cache_transpose()
    x = torch.randn(N, 32, device=cuda, requires_grad=True)

    def step():
        y = fusedmm.spmm(adj, x)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    expected = step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(map(torch.equal, found, expected))
    compiled = torch.compile(lambda x: fusedmm.spmm(adj, x), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x.detach()), expected[0])
