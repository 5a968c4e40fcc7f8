"""edge_softmax against its definition in float64: rows of every length, many numbers an entry, both gradients."""

import pytest
import torch
from support.bounds import assert_within
from support.matvec import rows_of_lengths

import fusedmm

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# About every border of the CPU's loops: four sums side by side, blocks of 128 terms, a buffer of 1,024 numbers.
LENGTHS = [0, 1, 3, 4, 5, 0, 127, 128, 129, 1, 1023, 1024, 1025, 0, 2500, 2, 0]


def graph(device, shuffled):
    """Rows of these lengths, whose edge order is the caller's own or the matrix's."""
    adj = rows_of_lengths(LENGTHS, 50, device).pattern()
    if not shuffled:
        return adj
    row, col, _ = adj.coo()
    order = torch.randperm(adj.nnz, generator=torch.Generator().manual_seed(3)).to(device)
    return fusedmm.CSR.from_coo(row[order], col[order], shape=adj.shape)


def exact(adj, x):
    """(w, the sum of the terms' magnitudes, their number) of logits [nnz, heads], in float64."""
    row, x = adj.coo()[0].cpu(), x.double().cpu()
    at = row[:, None].expand_as(x)
    top = torch.full((adj.shape[0], x.shape[1]), -torch.inf, dtype=torch.float64).scatter_reduce(0, at, x, "amax")
    below = top[row] - x
    e = (-below).exp()
    w = e / torch.zeros_like(top).index_add(0, row, e)[row]
    return w, w * (2 + below), adj.degree().cpu()[row][:, None]


@pytest.mark.parametrize("heads", [1, 3, 8, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_length(shuffled, dtype, heads, device):
    adj = graph(device, shuffled)
    x = (4 * torch.randn(adj.nnz, heads, dtype=torch.float64)).to(device, dtype)
    assert_within(fusedmm.edge_softmax(adj, x), *exact(adj, x), dtype, operator="edge_softmax")
    strided = torch.stack([x, x], 2)[:, :, 0]
    assert torch.equal(fusedmm.edge_softmax(adj, strided), fusedmm.edge_softmax(adj, x))


def test_more_numbers_than_the_buffer_holds(device):
    adj = rows_of_lengths([3, 0, 1, 200], 50, device).pattern()
    x = torch.randn(adj.nnz, 1100, device=device)
    assert_within(fusedmm.edge_softmax(adj, x), *exact(adj, x), torch.float32)


@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shuffled", [False, True])
def test_gradient_of_every_length(shuffled, dtype, heads, device):
    adj = graph(device, shuffled)
    x = torch.randn(adj.nnz, heads, dtype=dtype, device=device, requires_grad=True)
    g = torch.randn(adj.nnz, heads, dtype=dtype, device=device)
    (found,) = torch.autograd.grad(fusedmm.edge_softmax(adj, x), x, g)
    row, (w, magnitude, n) = adj.coo()[0].cpu(), exact(adj, x.detach())
    g = g.double().cpu()

    def over(v):
        return torch.zeros(adj.shape[0], heads, dtype=torch.float64).index_add(0, row, v)[row]

    sizes = magnitude * (g.abs() + over(w * g).abs()) + w * over(magnitude * g.abs())
    assert_within(found, w * (g - over(w * g)), sizes, n, dtype, operator="edge_softmax")


def test_rows_of_special_numbers(device):
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, -inf], [0.0, -inf], [inf, 0.0], [nan, 1.0], [-inf, nan], [1e38, -1e38], [-3e38] * 2]
    wanted = [[0, 0], [1, 0], [nan, nan], [nan, nan], [nan, nan], [1, 0], [0.5, 0.5]]
    adj = rows_of_lengths([2] * len(rows), 4, device).pattern()
    found = fusedmm.edge_softmax(adj, torch.tensor(rows, device=device).flatten())
    assert torch.equal(found.view(-1, 2).cpu().nan_to_num(7), torch.tensor(wanted).nan_to_num(7))


def test_second_gradients_and_maps(device):
    adj = rows_of_lengths([3, 0, 2, 4], 5, device).pattern()
    x = torch.randn(9, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: fusedmm.edge_softmax(adj, x), (x,), check_fwd_over_rev=True)
    g = torch.randn(3, 9, 2, dtype=torch.float64, device=device)
    _, back = torch.func.vjp(lambda x: fusedmm.edge_softmax(adj, x), x.detach())
    many = torch.func.vmap(back)(g)[0]
    assert torch.equal(many, torch.stack([back(one)[0] for one in g]))


@pytest.mark.parametrize("operator", ["_row_softmax", "_row_softmax_back"])
@pytest.mark.parametrize("forged", ["ptr falls", "ptr beyond", "ptr from 3", "idx below", "eid beyond", "eid below"])
def test_structures_that_nobody_checked(operator, forged):
    """Every entry is written, rows that are whole are right, and nothing else is read or written."""
    adj = graph("cpu", shuffled=True)
    ptr, idx, eid = adj.ptr.clone(), adj.idx.clone(), adj.eid.clone()
    what, how = forged.split()[0], forged.split()[1]
    if what == "ptr":
        ptr[{"falls": 5, "beyond": 4, "from": 0}[how]] = {"falls": 0, "beyond": 10**12, "from": 3}[how]
    else:
        {"idx": idx, "eid": eid}[what][7] = -5 if how == "below" else 2**31 - 1
    x = torch.randn(adj.nnz, 2)
    w = fusedmm.edge_softmax(adj, x)
    call = getattr(torch.ops.fusedmm, operator).default
    more = (w,) if operator.endswith("back") else ()
    found = call(ptr, idx, eid, adj.plan, x, *more)
    right = call(adj.ptr, adj.idx, adj.eid, adj.plan, x, *more)
    last = adj.eid[int(adj.ptr[-4]) :].long()  # of the last rows, which the forgery does not touch
    assert found.isfinite().all()
    torch.testing.assert_close(found[last], right[last], rtol=1e-4, atol=1e-5)


def test_operands_that_do_not_fit():
    adj = graph("cpu", shuffled=False)
    half, x = (adj.ptr, adj.idx, adj.eid, adj.plan), torch.randn(adj.nnz, 2)
    back = torch.ops.fusedmm._row_softmax_back.default
    for g, w in ((x, x[:, :1]), (x[1:], x), (x, x.double()), (x, x[:0])):
        with pytest.raises(RuntimeError, match=r"row_softmax: |have"):
            back(*half, g, w)
