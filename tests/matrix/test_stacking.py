"""Several matrices as one, and taken apart again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matrices import dense, matrices

import fusedmm
from fusedmm import CSR

quick = settings(max_examples=50, deadline=None)


@st.composite
def several(draw, rows=None, cols=None):
    """One to four matrices with as many heads."""
    heads = draw(st.sampled_from([None, 2]))
    return [draw(matrices(rows, cols, heads=(heads,))) for _ in range(draw(st.integers(1, 4)))]


def whole(given_):
    """The matrices as dense ones of as many dimensions."""
    made = [dense(adj) for adj in given_]
    heads = max((t.shape[2] for t in made if t.dim() == 3), default=None)
    return [t if heads is None or t.dim() == 3 else t[..., None].expand(-1, -1, heads) for t in made]


def in_their_order(found, given_, offsets):
    """Edges stand in the order of the matrices, and within one in its own."""
    row, col, val = found.coo()
    starts = [0, *torch.tensor([adj.nnz for adj in given_]).cumsum(0).tolist()]
    for adj, (top, left), first, last in zip(given_, offsets, starts, starts[1:], strict=False):
        r, c, v = adj.coo()
        assert torch.equal(row[first:last], r + top) and torch.equal(col[first:last], c + left)
        if v is not None:
            assert torch.equal(val[first:last], v)


@quick
@given(several())
def test_block_diagonal(given_):
    found, blocks = fusedmm.block_diag(given_), whole(given_)
    shape = sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)
    expected, corners = torch.zeros(*shape, *blocks[0].shape[2:], dtype=torch.float64), []
    top = left = 0
    for b in blocks:
        corners.append((top, left))
        expected[top : top + b.shape[0], left : left + b.shape[1]] = b
        top, left = top + b.shape[0], left + b.shape[1]
    assert found.shape == shape and torch.equal(dense(found), expected)
    in_their_order(found, given_, corners)
    back = fusedmm.unbatch(found, [adj.shape for adj in given_])
    for adj, block, b in zip(given_, back, blocks, strict=True):
        assert block.shape == adj.shape and torch.equal(dense(block), b if block.val is not None else dense(adj))
        assert all(torch.equal(s, t) for s, t in zip(block.coo()[:2], adj.coo()[:2], strict=True))
        assert adj.val is None or torch.equal(block.val, adj.val)


@quick
@given(st.integers(0, 4).flatmap(lambda n: several(cols=n)))
def test_below_each_other(given_):
    found = fusedmm.vstack(given_)
    assert torch.equal(dense(found), torch.cat(whole(given_)))
    heights = [0, *torch.tensor([adj.shape[0] for adj in given_]).cumsum(0).tolist()]
    in_their_order(found, given_, [(top, 0) for top in heights[:-1]])


@quick
@given(st.integers(0, 4).flatmap(lambda n: several(rows=n)))
def test_beside_each_other(given_):
    found = fusedmm.hstack(given_)
    assert torch.equal(dense(found), torch.cat(whole(given_), 1))
    widths = [0, *torch.tensor([adj.shape[1] for adj in given_]).cumsum(0).tolist()]
    in_their_order(found, given_, [(0, left) for left in widths[:-1]])


def test_a_batch_of_graphs(device):
    """What is computed of the batch is what is computed of each graph."""
    g = torch.Generator().manual_seed(3)
    graphs, x = [], []
    for nodes in (5, 1, 8):
        edges = torch.randint(nodes, (2, 3 * nodes), generator=g).to(device)
        graphs.append(CSR.from_edge_index(edges, torch.rand(3 * nodes, generator=g).to(device), nodes))
        x.append(torch.rand(nodes, 4, generator=g).to(device))
    batch = fusedmm.block_diag(graphs)
    assert torch.equal(batch @ torch.cat(x), torch.cat([adj @ t for adj, t in zip(graphs, x, strict=True)]))
    sizes = torch.tensor([5, 1, 8])
    for block, adj in zip(fusedmm.unbatch(batch, sizes), graphs, strict=True):
        assert block.equal(adj) and torch.equal(block.val, adj.val)
    mixed = fusedmm.block_diag([graphs[0], graphs[1].pattern(), graphs[2].double()])
    assert mixed.dtype == torch.float64 and mixed.val[15:18].tolist() == [1, 1, 1]
    assert fusedmm.block_diag([graphs[0].to_torch(), graphs[1]]).shape == (6, 6)


def test_plans_and_transposes_of_a_batch(device):
    a = CSR.from_coo(torch.tensor([1, 0, 0]), torch.tensor([0, 1, 1]), shape=(2, 2)).to(device)
    batch = fusedmm.block_diag([a] * 40)
    assert torch.equal(batch.t().to_dense(), batch.to_dense().t())
    again = CSR.from_csr(batch.ptr, batch.idx, shape=batch.shape)
    assert batch.plan.shape == again.plan.shape


A = CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1.0, 2.0]), (2, 2))
MISTAKES = [
    (lambda: fusedmm.block_diag([]), ValueError, "block_diag: give at least one matrix"),
    (lambda: fusedmm.block_diag(A), TypeError, "block_diag: matrices must be a list of them, not CSR"),
    (lambda: fusedmm.vstack(3), TypeError, "vstack: matrices must be a list of them, not int"),
    (lambda: fusedmm.block_diag([A, "graph"]), TypeError, "cannot make a CSR of str"),
    (lambda: fusedmm.vstack([A, CSR.eye(3)]), ValueError, "vstack: the matrices have 2, 3 columns; they must have as"),
    (lambda: fusedmm.hstack([A, CSR.eye(3)]), ValueError, "hstack: the matrices have 2, 3 rows"),
    (
        lambda: fusedmm.block_diag([A.with_values(torch.ones(2, 2)), A.with_values(torch.ones(2, 3))]),
        ValueError,
        r"block_diag: heads do not agree: \[2, 2\], \[2, 3\]",
    ),
    (lambda: fusedmm.unbatch(A, [1]), ValueError, r"unbatch: sizes add up to \[1, 1\], the matrix is \[2, 2\]"),
    (lambda: fusedmm.unbatch(A, [1, 1]), ValueError, r"unbatch: the entry at \(0, 1\) lies outside of the blocks"),
    (lambda: fusedmm.unbatch(A, [1.5]), TypeError, r"unbatch: sizes\[0\] must be two integers, not \(1.5, 1.5\)"),
    (lambda: fusedmm.unbatch(A, [3, -1]), ValueError, r"unbatch: sizes\[1\] \(-1, -1\): both must be in"),
    (lambda: fusedmm.unbatch(A, 2), TypeError, "unbatch: sizes must be a list of sizes, not int"),
    (
        lambda: fusedmm.block_diag([CSR.from_coo(torch.tensor([0]), torch.tensor([0]), shape=(1, 2**31 - 1))] * 2),
        ValueError,
        r"both must be in \[0, 2\^31\)",
    ),
]


@pytest.mark.parametrize("call, kind, text", MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_mistakes_are_named(call, kind, text):
    """CPU only: nothing is computed."""
    with pytest.raises(kind, match=text):
        call()
    assert fusedmm.block_diag([A, A]).nnz == 4


def test_matrices_on_two_devices(cuda):
    with pytest.raises(TypeError, match="block_diag: matrices on several devices: cpu, cuda:0"):
        fusedmm.block_diag([A, A.to(cuda)])
