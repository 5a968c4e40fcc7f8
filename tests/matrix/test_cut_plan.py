"""The plan of a matrix is cut behind its last segment, where who made it waited for the GPU: calls take room for the
partial sums that there are."""

import copy
import functools
import inspect
import pickle

import pytest
import torch

import fusedmm
from benchmarks.trial import peak_bytes
from fusedmm.matrix.structure import EVEN, LARGE, UNEVEN, UNKNOWN

ROWS, HEADS, FEAT = 40_000, 2, 8
# Of the matrices of edges(), and of their transposes. Only large ones are measured; the plans of all are cut.
MEASURED = {"long": UNEVEN, "short": EVEN, "small": UNKNOWN, "few": UNKNOWN}


def edges(kind):
    """LARGE entries and some, of rows of all lengths up to some hundred thousand, or all of rows of 105 at most; or
    fewer entries, with long rows or without."""
    generator = torch.Generator("cuda").manual_seed(0)
    if kind == "small":
        return (torch.rand(2, 300_000, generator=generator, device="cuda") ** 4 * ROWS).long()
    if kind == "few":
        row = torch.arange(3 * ROWS, device="cuda") // 3
        return row, (row * 7 + torch.arange(3 * ROWS, device="cuda") % 3) % ROWS
    if kind == "short":
        row = torch.arange(LARGE + 1000, device="cuda") // 105
        return row, torch.randint(ROWS, row.shape, generator=generator, device="cuda")
    return (torch.rand(2, LARGE + 1000, generator=generator, device="cuda") ** 4 * ROWS).long()


@functools.cache
def made(kind, check):
    adj = fusedmm.CSR.from_coo(*edges(kind), shape=(ROWS, ROWS), check=check)
    if adj.nnz < LARGE:  # which only those constructors cut that have waited
        adj = fusedmm.CSR.from_csr(adj.ptr, adj.idx, shape=adj.shape, check=check)
    return adj.cache_transpose()


@pytest.fixture(params=MEASURED)
def pair(request, cuda):
    """The matrix with a plan cut to size, and with one of the size that every matrix of that shape may need."""
    return [made(request.param, check) for check in (True, False)]


CALLS = {
    "spmm": lambda adj, x: fusedmm.spmm(adj, x),
    "max": lambda adj, x: fusedmm.spmm(adj, x, reduce="max"),
    "sddmm": lambda adj, x, y: fusedmm.sddmm(adj, x, y),
    "fused": lambda adj, x, y, z: fusedmm.fused(adj, x, y, z, edge="sigmoid(s)"),
    "dot": lambda adj, x, y, z: fusedmm.attention(adj, x, y, z),
    "additive": lambda adj, x, y, z: fusedmm.attention(adj, x[..., 0], y[..., 0], z, score="additive"),
}


def step(adj, call):
    """What a call gives, forward and backward."""
    torch.manual_seed(0)
    operands = len(inspect.signature(call).parameters) - 1
    x = [torch.randn(ROWS, HEADS, FEAT, device="cuda", requires_grad=True) for _ in range(operands)]
    out = call(adj, *x)
    return out, *torch.autograd.grad(out, x, torch.ones_like(out))


@pytest.mark.parametrize("pair, rows_are", MEASURED.items(), indirect=["pair"])
def test_it_is_cut_where_the_caller_lets_the_matrix_be_looked_at(pair, rows_are):
    cut, whole = pair
    assert cut.plan.numel() < whole.plan.numel() and cut.plan_t.numel() < whole.plan_t.numel()
    assert cut.rows_are == cut.rows_are_t == rows_are and whole.rows_are == whole.rows_are_t == UNKNOWN
    for known in (copy.deepcopy(cut), pickle.loads(pickle.dumps(cut)), cut.t().t(), cut.cpu().to(cut.device)):
        assert known.plan.numel() == cut.plan.numel()
    assert (cut.add_self_loops().rows_are == UNKNOWN) == (rows_are == UNKNOWN)
    assert whole.add_self_loops().rows_are == UNKNOWN


@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_same_bits(name, pair):
    assert all(map(torch.equal, *(step(adj, CALLS[name]) for adj in pair)))


@pytest.mark.parametrize("pair", ["long", "short"], indirect=True)
@pytest.mark.parametrize("name", ["spmm", "fused", "dot", "additive"])
def test_calls_take_less_memory(name, pair):
    """SpMM has no room for rows of one piece, so that a cut saves nothing where there are no others."""
    adj, whole = pair
    results = len(step(adj, CALLS[name]))
    mine, other = (peak_bytes(lambda a=a: step(a, CALLS[name]), results, True)[0] for a in pair)
    segments = [(w.numel() - m.numel()) // 16 for w, m in ((whole.plan, adj.plan), (whole.plan_t, adj.plan_t))]
    saved = 0 if name == "spmm" and adj.rows_are == EVEN else min(segments) * HEADS * FEAT * 4
    assert mine + saved <= other + 4096  # torch's allocator rounds


@pytest.mark.parametrize("how", ["no check", "no wait"])
def test_nobody_waits_who_was_not_asked(how, cuda):
    row, col = edges("long")
    pinned = None if how == "no check" else fusedmm.CSR.from_coo(row.cpu(), col.cpu(), shape=(ROWS, ROWS)).pin_memory()
    torch.cuda.set_sync_debug_mode("error")
    try:
        if pinned is None:
            adj = fusedmm.CSR.from_coo(row, col, shape=(ROWS, ROWS), check=False).cache_transpose()
        else:
            adj = pinned.cuda(non_blocking=True).cache_transpose()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adj.rows_are == adj.rows_are_t == UNKNOWN
