"""Gradients of fused maxima and minima in parts of rows: those of the whole matrix, in the memory of a part."""

import pytest
import torch
from support.bounds import assert_within
from support.fused_oracle import for_edge
from support.turns import in_turn

import fusedmm
from benchmarks.trial import peak_bytes
from fusedmm import presets
from fusedmm.ops import fused, fused_extreme

SPECS = {
    "mlp": presets.MLP_MAX,
    "distance": {"score": "sqdist", "edge": "exp(-s)*a", "message": "mul", "activation": "tanh", "reduce": "min"},
    "dot": {"score": "dot", "edge": "s*a", "message": "scale", "activation": "relu", "reduce": "max"},
    "l1": {"score": "l1", "edge": "a/(1+s)", "message": "sub", "activation": "leaky_relu", "reduce": "max"},
    "maximum": {"score": "dot", "edge": "sigmoid(s)", "message": "max", "activation": None, "reduce": "min"},
    "weighted": {"score": "none", "edge": "a", "message": "scale", "activation": "sigmoid", "reduce": "max"},
}
WHOLE, ROWS, COLS, FEAT, HUB = 2**62, 40, 30, 6, 300
NAMES = ("x", "y", "z", "val")


@pytest.fixture
def part(monkeypatch):
    """Sets how many numbers a part may have."""

    def set_to(numbers: int) -> None:
        monkeypatch.setattr(fused_extreme, "PART", dict.fromkeys(fused_extreme.PART, numbers))

    return set_to


def matrix(device, ordered=False):
    """Entries in any order, some of them repeated; a hub, empty rows at both ends and between."""
    row = torch.cat([torch.full((HUB,), 12), torch.randint(14, ROWS - 3, (400,)), torch.randint(2, 8, (50,))])
    row = row.sort().values if ordered else row[torch.randperm(row.numel())]
    adj = fusedmm.CSR.from_coo(
        row.to(device), torch.randint(0, COLS, row.shape).sort().values.to(device), shape=(ROWS, COLS)
    )
    assert adj.nnz == 750
    return adj


def operands(adj, device, dtype, heads=None, val_heads=None, whole_numbers=False):
    """x, y, z and val, which want gradients; whole numbers have many ties."""
    inner = [] if heads is None else [heads]
    shapes = [(ROWS, *inner, FEAT), (COLS, *inner, FEAT), (COLS, *inner, FEAT + 3)]
    shapes.append((adj.nnz,) if val_heads is None else (adj.nnz, val_heads))
    made = (
        torch.randint(-2, 3, s).double() if whole_numbers else torch.randn(s, dtype=torch.float64) / 2 for s in shapes
    )
    return [t.to(device, dtype).requires_grad_() for t in made]


def gradients(adj, given, spec, g=None, **options):
    x, y, z, val = given
    adj = for_edge(adj.with_values(val), spec["edge"])
    out = fusedmm.fused(adj, x, y, z if spec["message"] == "scale" else None, **spec)
    g = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype) if g is None else g
    return torch.autograd.grad(out, given, g, allow_unused=True, **options)


def assert_close(found, whole, dtype):
    """The order of additions is another: float64 to 1e-12, others to some roundings of sums of many terms."""
    for name, a, b in zip(NAMES, found, whole, strict=True):
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            assert a.dtype == b.dtype == dtype and a.shape == b.shape, name
            off = 1e-12 if dtype == torch.float64 else 16 * torch.finfo(dtype).eps
            torch.testing.assert_close(a, b, rtol=off, atol=off * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("name, dtype", in_turn(SPECS, [torch.float32, torch.float64, torch.bfloat16]), ids=str)
def test_parts_give_the_gradients_of_the_whole(name, dtype, device, part):
    """Parts of many rows and of one; with heads, and values for each or for all of them; twice the same bits."""
    for ordered, heads, val_heads in (
        (False, None, None), (True, None, None), (False, 2, None), (True, 2, 1), (False, 2, 2),
    ):  # fmt: skip
        adj = matrix(device, ordered)
        given = operands(adj, device, dtype, heads, val_heads)
        part(WHOLE)
        whole = gradients(adj, given, SPECS[name])
        for numbers in (1, 1000):
            part(numbers)
            found = gradients(adj, given, SPECS[name])
            assert_close(found, whole, dtype)
            again = gradients(adj, given, SPECS[name])
            assert all(a is b or torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("message", ["add", "mul", "scale"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_are_shared_as_in_the_whole(reduce, message, dtype, device, part):
    """Scores and messages of whole numbers are exact, and so the winners and how many share an extreme."""
    spec = {"score": "dot", "edge": "s*a", "message": message, "activation": "relu", "reduce": reduce}
    adj = matrix(device)
    given = operands(adj, device, dtype, whole_numbers=True)
    found = []
    for numbers in (WHOLE, 500):
        part(numbers)
        found.append(gradients(adj, given, spec))
    assert_close(found[1], found[0], dtype)


def test_one_tensor_as_all_operands(device, part):
    """x, y and z are one: its gradient is the sum of the shares."""
    edges = torch.randint(0, 25, (2, 400), device=device)
    adj = fusedmm.CSR.from_coo(*edges, shape=(25, 25))
    spec = {"score": "dot", "edge": "s", "message": "scale", "activation": "tanh", "reduce": "max"}
    x = torch.randn(25, 5, dtype=torch.float64, device=device, requires_grad=True)
    found = []
    for numbers in (WHOLE, 100):
        part(numbers)
        found += torch.autograd.grad(fusedmm.fused(adj, x, **spec).sin().sum(), x)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_only_what_is_asked_for(device, part):
    """Operands that want no gradient get none, whichever they are; without values too."""
    adj = matrix(device)
    made = operands(adj, device, torch.float64)
    spec = SPECS["dot"]
    part(WHOLE)
    whole = gradients(adj, made, spec)
    part(700)
    for k, wanted in enumerate(made):
        given = [t if t is wanted else t.detach() for t in made]
        out = fusedmm.fused(adj.with_values(given[3]), *given[:3], **spec)
        g = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(out.dtype)
        torch.testing.assert_close(*torch.autograd.grad(out, wanted, g), whole[k], rtol=1e-12, atol=1e-12)
    ones = [*made[:3], torch.ones(adj.nnz, dtype=torch.float64, device=device, requires_grad=True)]
    out = fusedmm.fused(adj, *made[:3], **spec)
    g = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(out.dtype)
    expected = gradients(adj, ones, spec)[:3]
    for a, b in zip(torch.autograd.grad(out, made[:3], g), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (5, 7)])
def test_without_entries(shape, device, part):
    part(0)
    adj = fusedmm.CSR.from_coo(*torch.zeros(2, 0, dtype=torch.int64, device=device), shape=shape)
    x, y = (torch.randn(n, 3, device=device, requires_grad=True) for n in shape)
    for t in torch.autograd.grad(fusedmm.fused(adj, x, y, **presets.MLP_MAX).sum(), (x, y)):
        assert not t.any()


def test_what_is_differentiated_or_mapped_is_whole(device, part, monkeypatch):
    """Second derivatives and batches of gradients, beyond what a part may have: as before."""
    adj = matrix(device)
    given = operands(adj, device, torch.float64)
    spec = SPECS["distance"]
    upstream = torch.randn(2, ROWS, FEAT, dtype=torch.float64, device=device)

    def everything():
        first = gradients(adj, given, spec, upstream[0].clone().requires_grad_(), create_graph=True)
        mapped = gradients(adj, given, spec, upstream, is_grads_batched=True)
        second = torch.autograd.grad(sum((t**2).sum() for t in first if t is not None), given, allow_unused=True)
        return *second, *mapped

    part(WHOLE)
    whole = everything()
    part(500)
    monkeypatch.setattr(fused, "in_parts", None)
    for a, b in zip(everything(), whole, strict=True):
        assert a is b or torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_peak_memory_is_that_of_a_part(device, part):
    """2,000 rows of 200 entries and 64 channels, in 25 parts: the whole holds seven tensors of 100 MB at a time."""
    rows, degree, feat, numbers = 2000, 200, 64, 2**20
    ptr = torch.arange(rows + 1, device=device) * degree
    adj = fusedmm.CSR.from_csr(ptr, torch.randint(0, rows, (rows * degree,), device=device), shape=(rows, rows))
    x, y = (torch.randn(rows, feat, device=device, requires_grad=True) for _ in range(2))
    out = fusedmm.fused(adj, x, y, **presets.MLP_MAX)
    g = torch.ones_like(out)
    peaks, found = [], []
    for most in (WHOLE, numbers):
        part(most)
        found.append(torch.autograd.grad(out, (x, y), g, retain_graph=True))  # what is made once is there afterwards
        peaks.append(peak_bytes(lambda: torch.autograd.grad(out, (x, y), g, retain_graph=True), 0, device == "cuda")[0])
    bound = 16 * 4 * numbers
    assert peaks[1] < bound < peaks[0] / 5, peaks
    # As many threads as there are, and the same bits.
    again = torch.autograd.grad(out, (x, y), g, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(found[1], again, strict=True))
    # The winners of each row, which share its gradient of 1, are those of messages rounded to float32.
    messages = (x.detach()[:, None] + y.detach()[adj.idx.long()].view(rows, degree, feat)).relu()
    top = messages.amax(1, keepdim=True)
    shares = ((messages == top) & (top > 0)).cpu().double()
    shares /= shares.sum(1, keepdim=True).clamp(min=1)
    col = adj.idx.cpu().long()
    exact = shares.sum(1), torch.zeros(rows, feat, dtype=torch.float64).index_add(0, col, shares.flatten(0, 1))
    counts = torch.tensor(degree), torch.bincount(col, minlength=rows)[:, None]
    for pair in found:
        for got, right, count in zip(pair, exact, counts, strict=True):
            assert_within(got, right, right, count, torch.float32)
