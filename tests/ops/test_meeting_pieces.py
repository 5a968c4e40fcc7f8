"""Pieces of long rows meet within SpMM's and fused's kernels on CUDA: whoever comes last adds, and what it adds never
changes."""

import pytest
import torch
from support.machine import capture

import fusedmm

pytestmark = pytest.mark.usefixtures("cuda")
PIECE = 32  # entries, of a matrix of so few
PIECES = (2, 31, 32, 33, 64, 65, 1024, 1057)  # of the long rows: bunches of up to 32, one, two and three levels of them


@pytest.fixture(scope="module", params=[7, 64, 512], ids="{} columns".format)
def case(request):
    """A matrix, an operand, and the rows' sums in double. Products are exact in float32, sums are not."""
    g = torch.Generator("cuda").manual_seed(0)
    lengths = torch.randint(0, 40, (900,), generator=g, device="cuda")
    for k, pieces in enumerate(PIECES):
        lengths[100 * k + 50] = PIECE * pieces - k
    ptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    entries = int(ptr[-1])
    idx = torch.randint(0, 500, (entries,), generator=g, device="cuda")
    adj = fusedmm.CSR.from_csr(ptr, idx, torch.randn(entries, generator=g, device="cuda"), (900, 500))
    assert adj.plan[20:24].view(torch.int32).item() == PIECE, "the plan's header"
    return adj, torch.randn(500, request.param, generator=g, device="cuda")


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_all_levels_are_added(reduce, dtype, case):
    adj, x = case
    adj, x = adj.with_values(adj.val.to(dtype)), x.to(dtype)
    y = fusedmm.spmm(adj, x, reduce=reduce, algorithm="segments")
    exact = fusedmm.spmm(adj.with_values(adj.val.double()), x.double(), reduce=reduce, algorithm="reference")
    off = (y.double() - exact).norm() / exact.norm()
    assert off <= {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 5e-3}[dtype]


def scored(adj, own, y, reduce="sum", algorithm="segments"):
    return fusedmm.fused(adj, own, y, edge="sigmoid(s) * a", reduce=reduce, algorithm=algorithm)


def beside(y):
    """The rows' own operand, whose scores with y's rows are about one."""
    g = torch.Generator("cuda").manual_seed(1)
    return torch.randn(900, y.shape[1], generator=g, device="cuda") / y.shape[1] ** 0.5


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_fused_adds_all_levels(reduce, dtype, case):
    adj, y = case
    y = y[:, :256].to(dtype)  # what a group spans in float64
    own = beside(y).to(dtype)
    found = scored(adj.with_values(adj.val.to(dtype)), own, y, reduce)
    exact = scored(adj.with_values(adj.val.to(dtype).double()), own.double(), y.double(), reduce, algorithm="reference")
    off = (found.double() - exact).norm() / exact.norm()
    assert off <= {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 5e-3}[dtype]


@pytest.mark.parametrize("form", ["same", "other", "any"])
def test_gradients_of_fused_add_all_levels(form, case):
    """Of both sides: columns of the matrix are long as well."""
    adj, y = case
    y = y[:, :256]
    distance = {"score": "sqdist", "message": "sub", "edge": "a / (1 + s)"}
    call = distance if form == "any" else {"edge": "sigmoid(s) * a"}
    up = torch.randn(900, y.shape[1], generator=torch.Generator("cuda").manual_seed(2), device="cuda")

    def gradients(kind, algorithm):
        inputs = [t.detach().to(kind).requires_grad_() for t in (beside(y), y, 1 - y)[: 3 if form == "other" else 2]]
        result = fusedmm.fused(adj.with_values(adj.val.to(kind)), *inputs, **call, algorithm=algorithm)
        return torch.autograd.grad(result, inputs, up.to(kind))

    first = gradients(torch.float32, "segments")
    for found, exact in zip(first, gradients(torch.float64, "reference"), strict=True):
        assert (found.double() - exact).norm() <= 2e-6 * exact.norm()
    for k in range(50):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(torch.float32, "segments"), strict=True)), k


def test_a_thousand_repeats(case):
    adj, x = case
    first = fusedmm.spmm(adj, x, algorithm="segments")
    for k in range(1000):
        trash = torch.full((1 << 10 + k % 12,), [torch.nan, 1e-40, -1.0][k % 3], device="cuda")  # in the next workspace
        del trash
        assert torch.equal(fusedmm.spmm(adj, x, algorithm="segments"), first), k


def test_two_streams_at_once(case):
    """Both use one matrix and one plan, and have tickets of their own."""
    adj, x = case
    operands = [x, 1 - x]
    alone = [fusedmm.spmm(adj, x, algorithm="segments") for x in operands]
    streams = [torch.cuda.Stream() for _ in operands]
    torch.cuda.synchronize()
    found = [[], []]
    for _ in range(100):
        for stream, x, to in zip(streams, operands, found, strict=True):
            with torch.cuda.stream(stream):
                to.append(fusedmm.spmm(adj, x, algorithm="segments"))
    torch.cuda.synchronize()
    for y, many in zip(alone, found, strict=True):
        assert all(torch.equal(y, other) for other in many)


def test_replays_at_once(case):
    adj, x = case
    operands = [x, 1 - x]
    alone = [fusedmm.spmm(adj, x, algorithm="segments") for x in operands]
    graphs, results = zip(
        *(capture(lambda x=x: fusedmm.spmm(adj, x, algorithm="segments")) for x in operands), strict=True
    )
    streams = [torch.cuda.Stream() for _ in operands]
    for _ in range(20):
        for y in results:
            y.fill_(torch.nan)
        torch.cuda.synchronize()
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for y, found in zip(alone, results, strict=True):
            assert torch.equal(y, found)


def test_a_call_after_failed_ones(case):
    adj, x = case
    first = fusedmm.spmm(adj, x, algorithm="segments")
    with pytest.raises(ValueError, match="rows"):
        fusedmm.spmm(adj, x[1:], algorithm="segments")
    with pytest.raises(torch.OutOfMemoryError):
        fusedmm.spmm(adj, x[:, :1].expand(-1, 1 << 32), algorithm="segments")
    assert torch.equal(fusedmm.spmm(adj, x, algorithm="segments"), first)
