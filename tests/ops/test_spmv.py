"""spmv against its definition in float64, within the stated bound: every format and every algorithm of it."""

import itertools

import pytest
import torch
from support.bounds import assert_values_gradient, assert_within, sddmm_oracle
from support.generate import STRUCTURES, lay, small, tiny
from support.matvec import FORMATS, algorithms_of, made, oracle, products, rows_of_lengths

import fusedmm
from fusedmm.matrix.structure import EVEN, NEITHER, UNEVEN, UNKNOWN

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUMBERS = [(1, 0), (2.5, 0), (-0.5, 1), (0, 0.5)]
LAYOUTS = ["contiguous", "strided", "expanded -1"]
VALUES = ["none", "same", *DTYPES]
DATA = ["random", "constant", "powers"]


def vector(size, dtype, device, data="random", seed=0):
    g = torch.Generator().manual_seed(seed)
    if data == "constant":
        x = torch.full((size,), 0.1, dtype=torch.float64)
    elif data == "powers":
        x = 2.0 ** torch.randint(-1, 3, (size,), generator=g).double()
    else:
        x = torch.randn(size, generator=g, dtype=torch.float64)
    return x.to(device, dtype)


def matrix(structure, values, permuted, data, dtype, device):
    """One of the shared structures, sorted or in a shuffled order."""
    rows, cols, row, col = STRUCTURES[structure]()
    val = None if values == "none" else vector(row.numel(), dtype if values == "same" else values, "cpu", data, 1)
    order = torch.randperm(row.numel(), generator=torch.Generator().manual_seed(2)) if permuted else slice(None)
    parts = (t if t is None else t[order].to(device) for t in (row, col, val))
    return fusedmm.CSR.from_coo(*parts, shape=(rows, cols))


def covering():
    """Every structure with every dtype and format, while the other levels take turns."""
    levels = LAYOUTS, VALUES, [False, True, True], DATA, NUMBERS, ["contiguous", "strided"]
    turns = [itertools.cycle(some) for some in levels]
    for structure, dtype, name in itertools.product(STRUCTURES, DTYPES, FORMATS):
        if structure in ("hub_column", "many_rows") and name == "dia":  # thousands of diagonals
            continue
        level = [next(t) for t in turns]
        yield pytest.param(structure, dtype, name, *level, id=f"{structure}-{str(dtype)[6:]}-{name}")


@pytest.mark.parametrize("structure, dtype, name, layout, values, permuted, data, numbers, out", list(covering()))
def test_covering_array(structure, dtype, name, layout, values, permuted, data, numbers, out, device):
    adj = matrix(structure, values, permuted, data, dtype, device)
    x = lay(vector(adj.shape[1], dtype, device, data, 3), layout)
    y_in = lay(vector(adj.shape[0], dtype, device, data, 4), out)
    (alpha, beta), count = numbers, 0
    exact, magnitude, n = oracle(adj, x, alpha, beta, y_in)
    if name == "dia" and adj.val is not None and adj.val.dtype in (torch.float16, torch.bfloat16):
        adj = made(adj, name).to_csr()  # repeated entries were added up, and rounded
        exact, magnitude, n = oracle(adj, x, alpha, beta, y_in)
    for note, y in products(adj, name, x, alpha=alpha, beta=beta, y=y_in):
        count += 1
        assert y.is_contiguous() and y.device == adj.device
        assert_within(y, exact, magnitude, n, dtype, note, "spmv")
        if data == "powers" and beta == 0:
            assert torch.equal(y.cpu(), exact.to(dtype)), note
    assert count >= 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_length_and_borders(name, dtype, device):
    """Rows that end about every border that a kernel has, and empty ones there too."""
    lengths = [0, 1, 15, 16, 17, 31, 32, 33, 0, 0, 63, 64, 65]
    lengths += [127, 128, 129, 511, 512, 513, 2047, 2048, 2049, 1, 0, 16383, 2, 16384, 0, 9, 0]
    if name in ("dia", "ell"):
        lengths = [n for n in lengths if n < 3000]
    adj = rows_of_lengths(lengths, 700, device, dtype)
    x = vector(700, dtype, device)
    if name == "dia":
        adj = made(adj, name).to_csr()
    exact, magnitude, n = oracle(adj, x)
    for note, y in products(adj, name, x):
        assert_within(y, exact, magnitude, n, dtype, note, "spmv")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_diagonals_of_many_blocks(dtype, device):
    """13 of them, more than a CPU kernel reads at once; inside of the matrix and across its corners. An infinite x at
    which every value is 0 is nowhere."""
    n, bad = 6500, 5000
    pattern = fusedmm.data.banded(n, 6).to(device)
    row, col, _ = pattern.coo()
    val = (
        torch.rand(row.numel(), generator=torch.Generator().manual_seed(1)).to(device, dtype).masked_fill(col == bad, 0)
    )
    adj = pattern.with_values(val)
    x = torch.rand(n, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    exact = oracle(adj, x)
    x[bad] = torch.inf
    for algorithm, y in products(adj, "dia", x):
        assert_within(y, *exact, dtype, algorithm)


@pytest.mark.parametrize("data", ["constant", "cancelling"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_a_million_terms(name, data, device):
    """One sequential sum in float32 would be far outside: no accumulator adds more than 512 in a row."""
    n, short = 1_000_000, 0 if name in ("dia", "ell") else 5
    ptr = torch.tensor([0, *range(short), short + n, *range(short + n, 2 * short + n)])
    if not short:
        ptr = torch.tensor([0, n])
    idx = torch.cat([torch.zeros(short), torch.arange(n), torch.zeros(len(ptr) - 2 - short)])[: int(ptr[-1])]
    adj = fusedmm.CSR.from_csr(
        ptr.to(device), idx.long().to(device), torch.full((int(ptr[-1]),), 0.1, device=device), (len(ptr) - 1, n)
    )
    x = torch.full((n,), 0.3, device=device)
    if data == "cancelling":
        x[1::2] = -0.3
    exact, magnitude, terms = oracle(adj, x)
    for note, y in products(adj, name, x):
        assert_within(y, exact, magnitude, terms, torch.float32, note, "spmv")


@pytest.mark.parametrize("seed", range(4))
def test_pieces_that_cut_rows_anywhere(seed, device):
    """Carries over every border: one row over many pieces, runs of empty rows, rows that end just at a border."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 40, (3000,), generator=g)
    lengths[700:1800] = 6  # even rows are summed in another way
    lengths[torch.randint(0, 3000, (1500,), generator=g)] = 0
    lengths[1000 + seed] = 16384 * 3 + seed - 2
    lengths[1001 + seed : 1100] = 0
    adj = rows_of_lengths(lengths.tolist(), 5000, device)
    x, y_in = vector(5000, torch.float32, device), vector(3000, torch.float32, device, seed=9)
    exact, magnitude, n = oracle(adj, x, 2, 3, y_in)
    for name in ("csr", "coo", "hyb"):
        for note, y in products(adj, name, x, alpha=2, beta=3, y=y_in):
            assert_within(y, exact, magnitude, n, torch.float32, note, "spmv")


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_there_is_not_read(name, device):
    """beta = 0 does not read y, whose NaN KokkosKernels kept; an infinite x where no entry stands goes nowhere."""
    adj = rows_of_lengths([2, 0, 1, 3, 1], 9, device)
    touched = torch.zeros(9, dtype=torch.bool, device=device).index_fill_(0, adj.idx.long(), True)
    x = torch.where(touched, torch.ones(9, device=device), torch.full((9,), float("inf"), device=device))
    nan = torch.full((5,), float("nan"), device=device)
    exact, magnitude, n = oracle(adj, torch.where(touched, x, 0))
    for note, y in products(adj, name, x, beta=0, y=nan):
        assert_within(y, exact, magnitude, n, torch.float32, note, "spmv")
    for note, y in products(adj, name, x, beta=1, y=nan):
        assert y.isnan().all(), note


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_that_are_not_finite(name, device):
    adj, x = rows_of_lengths([2, 0, 1], 4, device), torch.ones(4, device=device)
    for number in (float("nan"), float("inf")):
        for note, y in products(adj, name, x, alpha=number):
            assert torch.equal(y.isnan().cpu(), torch.tensor([number != number, True, number != number])), note
        for note, y in products(adj, name, x, beta=number, y=torch.ones(3, device=device)):
            assert not y.isfinite().any(), note


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_every_time(name, dtype, device, threads):
    adj = rows_of_lengths([70_000, *[3] * 20_000], 3000, device, dtype)
    if name in ("dia", "ell"):
        adj = rows_of_lengths([5, 3, 0, 9] * 300, 40, device, dtype)
    x, matrix_ = vector(adj.shape[1], dtype, device), made(adj, name)
    for algorithm in algorithms_of(name, device):
        try:
            first = fusedmm.spmv(matrix_, x, algorithm=algorithm)
        except ValueError:
            continue
        for count in (1, 2, 3, 2):
            threads(count)
            assert torch.equal(fusedmm.spmv(matrix_, x, algorithm=algorithm), first), algorithm


@pytest.mark.parametrize("algorithm", ["csr_segmented", "merge"])
def test_a_plan_changes_no_bits(algorithm, device):
    """Without one, kernels search for what it lists; matrices of few items, and with a row that many pieces share."""
    for lengths in ([3, 0, 900, 5] * 200, [7, 0, 300_000, *[2] * 900]):
        adj = rows_of_lengths(lengths, 1000, device)
        x, none = vector(1000, torch.float32, device), adj.none
        number = next(a.number for a in fusedmm.algorithms("spmv", device) if a.name == algorithm)
        rest = adj.val, none, x, none, 0, 1.0, 0.0, number
        found = [torch.ops.fusedmm._spmv(adj.ptr, adj.idx, adj.eid, plan, *rest) for plan in (adj.plan, none)]
        assert torch.equal(*found)


# Rows, entries of each, columns, what is known of the rows, and what auto is then on CUDA.
CHOICES = [
    (1 << 17, 3, 700, UNKNOWN, "csr_scalar"),
    (1 << 17, 3, 700, NEITHER, "csr_scalar"),
    (1 << 17, 3, 700, UNEVEN, "csr_segmented"),
    (1 << 17, 20, 700, EVEN, "csr_scalar"),
    (1 << 17, 20, 700, NEITHER, "csr_vector"),
    (1 << 17, 20, 700, UNKNOWN, "csr_segmented"),
    (2000, 3, 700, UNKNOWN, "csr_vector"),
    (2000, 3, 700, UNEVEN, "csr_segmented"),
    (3000, 600, 8192, UNEVEN, "csr_vector"),
    (3000, 600, 8193, UNEVEN, "csr_segmented"),
    (20, 3000, 700, EVEN, "csr_segmented"),
]


@pytest.mark.parametrize("rows, each, cols, known, expected", CHOICES)
def test_auto_is_what_the_page_says(rows, each, cols, known, expected, cuda):
    """Its bits tell: every algorithm adds in an order of its own."""
    adj = rows_of_lengths([each] * rows, cols, cuda)
    adj._set(rows_are=known)
    x = vector(cols, torch.float32, cuda)
    found = {name: fusedmm.spmv(adj, x, algorithm=name) for name in ("csr_scalar", "csr_vector", "csr_segmented")}
    chosen = fusedmm.spmv(adj, x)
    assert [name for name, y in found.items() if torch.equal(y, chosen)] == [expected]


# ---- gradients ----


@pytest.mark.parametrize("name", ["csr", "coo"])
@pytest.mark.parametrize("numbers", NUMBERS[1:])
def test_derivatives_by_differences(name, numbers, device):
    adj, (alpha, beta) = tiny(device).cache_transpose(), numbers
    x = torch.randn(5, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    val = adj.val.clone().requires_grad_()

    def product(val, x, y):
        return fusedmm.spmv(made(adj.with_values(val), name), x, alpha=alpha, beta=beta, y=y)

    assert torch.autograd.gradcheck(product, (val, x, y))
    assert torch.autograd.gradgradcheck(product, (val, x, y))


@pytest.mark.parametrize("name", ["csr", "coo"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_keep_their_bounds(name, dtype, device):
    adj = matrix("hub", "same", True, "random", dtype, device)
    x, gy = (vector(n, dtype, device, seed=n).requires_grad_() for n in reversed(adj.shape))
    val = adj.val.requires_grad_()
    y = fusedmm.spmv(made(adj.with_values(val), name), x, alpha=2)
    gx, gval = torch.autograd.grad(y, [x, val], gy.detach())
    assert_within(gx, *oracle(adj.t(), gy, 2), dtype, "gx")
    exact, magnitude, n = sddmm_oracle(adj.pattern(), gy[:, None], x[:, None])
    assert_values_gradient(gval, val, 2 * exact, 2 * magnitude, n, dtype)


@pytest.mark.parametrize("name", ["csr", "coo"])
def test_gradients_have_the_same_bits_every_time(name, device):
    """Products with a transpose, whose results cuSPARSE lets differ from run to run."""
    adj = rows_of_lengths([6000, *[k % 9 for k in range(2000)]], 300, device).cache_transpose()
    x, gy = torch.randn(300, device=device, requires_grad=True), torch.randn(2001, device=device)
    val = adj.val.clone().requires_grad_()

    def gradients():
        return torch.autograd.grad(fusedmm.spmv(made(adj.with_values(val), name), x), [x, val], gy)

    first = gradients()
    assert all(torch.equal(a, b) for _ in range(50) for a, b in zip(gradients(), first, strict=True))


def test_gradients_reach_only_what_wants_them(device):
    adj = small(device=device)
    x = torch.randn(15, device=device)
    y = torch.randn(12, device=device, requires_grad=True)
    (g,) = torch.autograd.grad(fusedmm.spmv(adj, x, beta=2, y=y).sum(), y)
    assert torch.equal(g, torch.full_like(g, 2))
    assert not fusedmm.spmv(adj, x).requires_grad


@pytest.mark.parametrize("name", ["csr", "coo"])
def test_transforms(name, device):
    """torch.func: vmap over any operand, forward mode, and a Jacobian."""
    adj = tiny(device).cache_transpose()
    val, x, y = (torch.randn(n, dtype=torch.float64, device=device) for n in (9, 5, 4))

    def product(val, x, y):
        return fusedmm.spmv(made(adj.with_values(val), name), x, alpha=2, beta=3, y=y)

    dense = torch.func.jacrev(product, argnums=(0, 1, 2))(val, x, y)
    forward = torch.func.jacfwd(product, argnums=(0, 1, 2))(val, x, y)
    for one, other in zip(dense, forward, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(dense[1], 2 * adj.with_values(val).to_dense())
    vals, xs, ys = (torch.randn(3, n, dtype=torch.float64, device=device) for n in (9, 5, 4))
    for dims in ((0, 0, 0), (None, 0, None), (0, None, None), (None, None, 0)):
        args = [many if d == 0 else one for d, many, one in zip(dims, (vals, xs, ys), (val, x, y), strict=True)]
        batch = torch.func.vmap(product, in_dims=dims)(*args)
        loop = [product(*(a[k] if d == 0 else a for d, a in zip(dims, args, strict=True))) for k in range(3)]
        torch.testing.assert_close(batch, torch.stack(loop))


# ---- beside the other operators ----


def test_products_with_a_vector(device):
    """``A @ v`` and ``spmm(A, v)`` are spmv."""
    adj = small(device=device)
    x = torch.randn(15, device=device)
    wanted = fusedmm.spmv(adj, x)
    assert torch.equal(adj @ x, wanted) and torch.equal(fusedmm.spmm(adj, x), wanted)
    assert torch.equal(fusedmm.spmm(adj, x, algorithm="csr_scalar"), fusedmm.spmv(adj, x, algorithm="csr_scalar"))
    for name in FORMATS[1:]:
        assert torch.equal(made(adj, name) @ x, fusedmm.spmv(made(adj, name), x))
    torch.testing.assert_close(wanted, fusedmm.spmm(adj, x[:, None])[:, 0])
    ends = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)
    assert torch.equal(
        fusedmm.spmv(ends, torch.tensor([1.0, 2.0, 3.0], device=device)).cpu(), torch.tensor([3.0, 1, 2])
    )


def test_autocast(device):
    adj, x, y = small(device=device), torch.randn(15, device=device), torch.randn(12, device=device)
    with torch.autocast(device, torch.bfloat16):
        for name in ("csr", "coo", "ell"):
            found = fusedmm.spmv(made(adj, name), x, beta=1, y=y)
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), fusedmm.spmv(adj, x, beta=1, y=y).float(), atol=0.1, rtol=0.1)
