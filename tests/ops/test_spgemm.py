"""Sparse times sparse: every algorithm against long double sums, the structure against scipy's, and what is refused."""

import numpy as np
import pytest
import scipy.sparse
import torch
from support.machine import capture
from support.spgemm_oracle import PLANNED, assert_product, products, random_csr

import fusedmm
from fusedmm import CSR
from fusedmm.data import banded, stencil

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}
DEVICES = ["cpu", "cuda"]
SHAPES = {  # rows, inner, columns, entries of a, entries of b
    "one": (1, 1, 1, 1, 1),
    "square": (40, 40, 40, 160, 160),
    "wide": (7, 30, 500, 60, 700),
    "tall": (300, 20, 6, 700, 40),
    "repeated": (12, 6, 9, 150, 120),
    "dense": (20, 20, 70, 380, 1300),
    "words": (3, 12, 64 * 64 * 2 + 1, 20, 300),  # columns of three groups of words
    "no rows": (0, 5, 6, 0, 10),
    "no columns": (5, 6, 0, 12, 0),
    "no inner": (4, 0, 3, 0, 0),
    "empty a": (5, 6, 7, 0, 20),
    "empty b": (5, 6, 7, 20, 0),
}


def pair(name, dtype=torch.float32, device="cpu"):
    rows, inner, cols, nnz_a, nnz_b = SHAPES[name]
    return random_csr(rows, inner, nnz_a, dtype, device), random_csr(inner, cols, nnz_b, dtype, device)


def to_scipy(adj):
    idx, ptr = adj.idx.cpu().numpy(), adj.ptr.cpu().numpy()
    return scipy.sparse.csr_matrix((np.ones(adj.nnz), idx, ptr), shape=adj.shape)


def in_order(adj):
    """(columns, values) by row and column."""
    row, col, val = adj.coo()
    order = (row * adj.shape[1] + col).argsort()
    return col[order], val[order]


@pytest.mark.parametrize("sorted", [True, False])
@pytest.mark.parametrize("name", [*SHAPES, "long rows", "even rows", "even rows, repeated", "sorted by bits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_pass_has_the_bits_of_two_phases(name, dtype, sorted, device):
    other = {"long rows": long_rows, "sorted by bits": rows_sorted_by_bits}
    if name.startswith("even"):
        a, b = even_rows("repeated" in name, dtype, device)
    else:
        a, b = other[name](dtype, device) if name in other else pair(name, dtype, device)
    whole, phases = fusedmm.spgemm(a, b, sorted=sorted), fusedmm.spgemm_plan(a, b)(a.val, b.val)
    assert torch.equal(whole.ptr, phases.ptr)
    assert not sorted or torch.equal(whole.idx, phases.idx)
    assert torch.equal(in_order(whole)[0], in_order(phases)[0])
    found, exact = (in_order(c)[1].view(BITS[dtype]) for c in (whole, phases))
    assert torch.equal(found, exact), "-0 counts as another number than 0"


def even_rows(repeated, dtype, device):
    """Rows of as many products each, whose sums stand where they are wanted; some products are -0."""
    n, of_row = 500, torch.tensor([3, -2, 0, 0, 5] if repeated else [-3, -1, 0, 1, 4])
    row = torch.arange(n).repeat_interleave(5)
    val = torch.randn(5 * n, dtype=torch.float64)
    val[::7] = -0.0
    a = CSR.from_coo(row, (row + of_row.repeat(n)) % n, val.to(dtype), shape=(n, n)).to(device)
    return a, a


def rows_sorted_by_bits(dtype, device):
    """Rows of c too long to count places in vectors: of few words, and of many words that lie far apart."""
    near, far = random_csr(20, 30, 200, dtype, device), random_csr(30, 300_000, 2000, dtype, device)
    (row, col, val), (row_of_near, col_of_near, *more) = far.coo(), random_csr(30, 900, 3000, dtype, device).coo()
    parts = (row, row_of_near + 30), (col, col_of_near), (val, *more)
    b = CSR.from_coo(*(torch.cat(two) for two in parts), shape=(60, 300_000))
    row, col, val = near.coo()
    return CSR.from_coo(torch.cat([row, row + 20]), torch.cat([col, col + 30]), val.repeat(2), shape=(40, 60)), b


def long_rows(dtype, device):
    """Rows of a with more entries than one accumulator adds, beside short ones."""
    few, many = random_csr(40, 300, 60, dtype, device), random_csr(3, 300, 600, dtype, device)
    (row, col, val), (row_of_many, *more) = few.coo(), many.coo()
    parts = [torch.cat(pair) for pair in zip((row, col, val), (row_of_many + 40, *more), strict=True)]
    return CSR.from_coo(*parts, shape=(43, 300)), random_csr(300, 500, 900, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_within_the_bound(name, dtype, device):
    a, b = pair(name, dtype, device)
    for sorted in (True, False):
        bits = []
        for algorithm, c in products(a, b, device, sorted):
            assert_product(c, a, b, f"{algorithm} sorted={sorted}")
            bits += [] if algorithm == "reference" else [c.val]
        assert all(torch.equal(bits[0], other) for other in bits), "algorithms differ in their bits"


@pytest.mark.parametrize("name", SHAPES)
def test_structure_is_scipys(name, device):
    a, b = pair(name, device=device)
    c = fusedmm.spgemm(a, b)
    exact = to_scipy(a) @ to_scipy(b)
    exact.sort_indices()
    assert torch.equal(c.ptr.cpu(), torch.from_numpy(exact.indptr).long())
    assert torch.equal(c.idx.cpu(), torch.from_numpy(exact.indices))
    loose = fusedmm.spgemm(a, b, sorted=False)
    assert torch.equal(loose.ptr, c.ptr)
    for i in range(c.shape[0]):
        assert torch.equal(loose.idx[c.ptr[i] : c.ptr[i + 1]].sort().values, c.idx[c.ptr[i] : c.ptr[i + 1]])


def test_rows_of_few_columns_far_apart_are_sorted():
    """Up to 40 columns lie in 64 groups of 64 words of 64 columns, whose order bits of bits have."""
    cols = 64**3
    rows = torch.arange(41)
    a = CSR.from_coo(rows.repeat(2), torch.cat([rows, rows * 0 + 1]), shape=(41, 41))
    far = torch.cat([torch.randperm(cols)[:n] for n in range(41)])
    b = CSR.from_coo(rows.repeat_interleave(rows), far, shape=(41, cols))
    c, exact = fusedmm.spgemm(a, b), to_scipy(a) @ to_scipy(b)
    exact.sort_indices()
    assert torch.equal(c.ptr, torch.from_numpy(exact.indptr).long())
    assert torch.equal(c.idx, torch.from_numpy(exact.indices))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_products(dtype, device):
    a, b = pair("square", dtype, device)
    for nnz in (0, 30, 600):  # fewer entries than the product has, and more, some repeated
        mask = random_csr(40, 40, nnz, device=device)
        found = products(a, b, device, mask=mask)
        for algorithm, c in found:
            assert_product(c, a, b, f"{algorithm} masked", mask)
    full = fusedmm.spgemm(a, b)
    assert torch.equal(fusedmm.spgemm(a, b, mask=full).val, full.val)


@pytest.mark.parametrize("which", ["none", "a", "b", "both"])
def test_patterns_count_as_ones(which, device):
    a, b = pair("square", torch.float64, device)
    a = a.pattern() if which in ("none", "b") else a
    b = b.pattern() if which in ("none", "a") else b
    for algorithm, c in products(a, b, device):
        assert c.val.dtype == (torch.float32 if which == "none" else torch.float64)
        assert_product(c, a, b, algorithm)


def test_two_patterns_give_float32_whatever_torchs_default_is():
    a, b = (m.pattern() for m in pair("square"))
    torch.set_default_dtype(torch.float64)
    try:
        assert fusedmm.spgemm(a, b).val.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("count", [511, 512, 513, 1024, 1025, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_sums_of_constants(count, dtype, device):
    """n equal terms are off by about n u / 4 where one accumulator adds them all."""
    edge = torch.full((count,), 0.1, dtype=dtype, device=device)
    hub = torch.arange(count, device=device)
    row = CSR.from_coo(torch.zeros_like(hub), hub, edge, shape=(2, count))
    col = CSR.from_coo(hub, torch.zeros_like(hub), edge, shape=(count, 3))
    for algorithm, c in products(row, col, device):
        assert_product(c, row, col, algorithm)
    at = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 2]], device=device)
    mask = CSR.from_coo(*at, shape=(2, 3))
    for algorithm, c in products(row, col, device, mask=mask):
        assert_product(c, row, col, algorithm, mask)


@pytest.mark.parametrize("count", [3, 300, 600, 5000])
def test_long_sums_of_repeated_entries(count, device):
    """An entry that repeats adds a term each time, also where one entry of a meets all of them."""
    zeros = torch.zeros(count, dtype=torch.int64, device=device)
    b = CSR.from_coo(zeros, zeros, torch.full((count,), 0.1, device=device), shape=(1, 2))
    a = CSR.from_coo(zeros[:3], zeros[:3], torch.full((3,), 0.3, device=device), shape=(1, 1))
    for algorithm, c in products(a, b, device):
        assert_product(c, a, b, algorithm)
    for algorithm, c in products(b.t(), a, device):
        assert_product(c, b.t(), a, algorithm)


def test_hub_row_times_hub_column(device):
    hub = torch.arange(3000, device=device)
    a = CSR.from_coo(
        torch.cat([hub * 0 + 7, hub % 20]), torch.cat([hub, hub]), torch.rand(6000, device=device), shape=(20, 3000)
    )
    b = CSR.from_coo(
        torch.cat([hub, hub]), torch.cat([hub * 0 + 3, hub % 25]), torch.rand(6000, device=device), shape=(3000, 25)
    )
    for algorithm, c in products(a, b, device):
        assert_product(c, a, b, algorithm)


@pytest.mark.parametrize("entries", [1, 2, 31, 32, 33, 511, 512, 513, 1023, 1024, 1025, 2000])
def test_rows_at_the_edges_of_classes(entries, device):
    """Rows of c of so many entries: what is sorted, what one table of kkmem holds, what goes to the pool."""
    zeros, cols = torch.zeros(entries, dtype=torch.int64, device=device), torch.randperm(5000, device=device)[:entries]
    b = CSR.from_coo(zeros, cols, torch.rand(entries, device=device), shape=(2, 5000))
    at = torch.tensor([[0, 1, 1], [0, 0, 1]], device=device)
    a = CSR.from_coo(*at, torch.rand(3, device=device), shape=(3, 2))
    for sorted in (True, False):
        for algorithm, c in products(a, b, device, sorted):
            assert c.nnz == 2 * entries
            assert_product(c, a, b, f"{algorithm} {entries}")


@pytest.mark.parametrize("cols", [1, 63, 64, 65, 4095, 4096, 4097, 250_000, 250_001])
def test_columns_at_the_edges_of_words(cols, device):
    """Words of 64 columns, groups of 64 words; and where KokkosKernels turns from dense rows to hashing."""
    last = torch.tensor([0, cols - 1, cols // 2, max(0, cols - 64), max(0, cols - 65)], device=device)
    row = torch.arange(5, device=device)
    b = CSR.from_coo(row.repeat(2), torch.cat([last, last.flip(0)]), torch.rand(10, device=device), shape=(5, cols))
    a = random_csr(6, 5, 20, device=device)
    exact = to_scipy(a) @ to_scipy(b)
    exact.sort_indices()
    found = products(a, b, device)
    for name, c in [*found, ("one pass", a @ b)]:
        assert torch.equal(c.idx.cpu(), torch.from_numpy(exact.indices)), name
        assert torch.equal(c.val, found[0][1].val) or name == "reference"


def distinct(rows, cols, nnz):
    """Entries in order, none of them repeated."""
    key = torch.randperm(rows * cols)[:nnz].sort().values
    return CSR.from_coo(key // cols, key % cols, torch.randn(nnz), shape=(rows, cols))


def of_lengths(lengths, cols):
    """A row of each length, its columns apart from each other and in order."""
    idx = torch.cat([torch.randperm(cols)[:n].sort().values for n in lengths])
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    return CSR.from_csr(ptr, idx, torch.randn(len(idx)), shape=(len(lengths), cols))


def close_together(rows, each, low, cols):
    """Rows of so many neighbouring columns, row k from low + k on."""
    idx = low + torch.arange(rows)[:, None] + torch.arange(each)
    return CSR.from_csr(torch.arange(rows + 1) * each, idx.view(-1), torch.randn(rows * each), shape=(rows, cols))


WALKS = {  # how rows of b are walked along on CUDA
    "small rows, merged": lambda: (stencil(8, 8, points=9),) * 2,
    "as many heads as a merge has": lambda: (of_lengths([n % 14 for n in range(300)], 40), distinct(40, 90, 90)),
    "longer merges": lambda: (distinct(900, 50, 3_000), of_lengths([3, 24, 1, 0, 25] * 10, 200)),
    "longer merges, of more rows": lambda: (distinct(9000, 50, 30_000), of_lengths([3, 24, 1, 0, 25] * 10, 200)),
    "copied rows among small ones": lambda: (of_lengths([1, 0, 2, 1, 1] * 20, 30), of_lengths([40, 3, 90] * 10, 99)),
    "a warp, several short rows at once": lambda: (distinct(9, 40, 250), distinct(40, 3000, 300)),
    "a warp, row by row, of few columns": lambda: (banded(90, 20),) * 2,
    "a warp, too many products to hash": lambda: (of_lengths([33] * 6, 40), close_together(40, 33, 60_000, 75_000)),
    "a block, entry by entry": lambda: (distinct(3, 300, 600), distinct(300, 600, 30_000)),
    "a block, ranked": lambda: (distinct(3, 300, 600), distinct(300, 600, 900)),
    # Of a row of more entries than LONG_WALK windows of C take no part; in few rows nobody looks for one.
    "long rows of a": lambda: (of_lengths([1024, 1025, 3, 0, 1200], 1_200), of_lengths([1] * 1_200, 17_000)),
    "long rows of a, few": lambda: (of_lengths([1024, 1025, 3, 0, 1200], 1_200), of_lengths([1] * 1_200, 900)),
    "a block, long rows shared": lambda: (distinct(3, 6, 12), distinct(6, 9000, 20_000)),
}


# Many rows are told from few on CUDA alone.
MANY_ROWS = set() if torch.cuda.is_available() else {"longer merges, of more rows"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in MANY_ROWS)) for name in WALKS])
def test_every_walk_along_rows(name, device):
    a, b = (m.to(device) for m in WALKS[name]())
    found = [("whole", fusedmm.spgemm(a, b)), *products(a, b, device)]
    for algorithm, c in found:
        assert_product(c, a, b, algorithm)
        assert algorithm == "reference" or torch.equal(c.val, found[0][1].val), f"{algorithm} has other bits"


def test_cancelled_entries_stay():
    a = CSR.from_coo(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([1.0, -1.0]), shape=(1, 2))
    b = CSR.from_coo(torch.tensor([0, 1]), torch.tensor([2, 2]), torch.tensor([5.0, 5.0]), shape=(2, 4))
    for algorithm, c in products(a, b, "cpu"):
        assert c.idx.tolist() == [2] and c.val.tolist() == [0.0], algorithm


def test_infinity_reaches_only_what_it_is_stored_for():
    a = CSR.from_coo(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([0.0, 1.0]), shape=(2, 2))
    b = CSR.from_coo(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([float("inf"), 2.0]), shape=(2, 2))
    for algorithm, c in products(a, b, "cpu"):
        assert c.val[0].isnan() and c.val[1] == 2, algorithm
    g = CSR.from_coo(torch.tensor([0]), torch.tensor([1]), torch.tensor([1.0]), shape=(2, 2))
    val = torch.tensor([3.0, 4.0], requires_grad=True)
    masked = fusedmm.spgemm(a.with_values(val), b, mask=g)
    masked.val.sum().backward()
    assert val.grad.tolist() == [0.0, 0.0]  # no triple is stored, whatever infinity is beside it


def test_matmul_and_transpose(device):
    a = random_csr(30, 50, 200, device=device)
    c = a @ a.t()
    assert isinstance(c, CSR)
    assert_product(c, a, a.t())
    torch.testing.assert_close(c.to_dense(), c.to_dense().T)


@pytest.mark.parametrize("name", ["auto", "kkspeed", "kkmem", "kkmcr", "kkmcw"])
def test_same_bits_at_every_run_and_number_of_threads(name, threads):
    a = random_csr(400, 400, 9000)
    plan = fusedmm.spgemm_plan(a, a, algorithm=name)
    threads(1)
    first = plan(a.val, a.val).val
    for count in (1, 2, 3):
        threads(count)
        for _ in range(100):
            assert torch.equal(plan(a.val, a.val).val, first)
    again = fusedmm.spgemm_plan(a, a, algorithm=name)
    assert torch.equal(again.c.idx, plan.c.idx) and torch.equal(again.schedule, plan.schedule)


def test_same_bits_at_every_run_on_cuda(cuda):
    a = random_csr(400, 400, 9000, device=cuda)
    for found in fusedmm.algorithms("spgemm", cuda):
        plan = fusedmm.spgemm_plan(a, a, algorithm=found.name)
        first = plan(a.val, a.val).val
        for _ in range(100):
            assert torch.equal(plan(a.val, a.val).val, first)
        assert torch.equal(fusedmm.spgemm_plan(a, a).c.idx, plan.c.idx)


@pytest.mark.parametrize("threaded", [1, 2])
def test_large_products_in_parallel(threaded, threads):
    threads(threaded)
    a, b = random_csr(3000, 200, 40_000), random_csr(200, 900, 9000)
    c = fusedmm.spgemm(a, b)
    exact = a.to_dense().double() @ b.to_dense().double()
    torch.testing.assert_close(c.to_dense().double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", PLANNED)
def test_colours_are_valid(name):
    for a in (random_csr(200, 200, 600), random_csr(100, 30, 2000), random_csr(5, 5, 0)):
        plan = fusedmm.spgemm_plan(a, a.t(), algorithm=name)
        row, col, _ = plan.c.coo()
        pairs = torch.stack([plan.colours[row].long(), col])
        assert torch.unique(pairs, dim=1).shape[1] == plan.c.nnz  # no colour stands twice in a column


def test_colours_of_many_empty_columns_take_no_memory_for_them():
    """A mask for each of 2^31 columns would be 16 GB to clear."""
    cols = 2**31 - 2
    row, col = torch.tensor([0, 0, 1, 2, 2, 3, 4]), torch.tensor([5, cols - 1, 7, 5, 9, cols - 1, 40])
    c = CSR.from_coo(row, col, shape=(5, cols))
    colours = torch.ops.fusedmm._spgemm_colours(c.ptr, c.idx, c.eid, c.none, cols).tolist()
    assert len({colours[i] for i in (0, 2)}) == len({colours[i] for i in (0, 3)}) == 2 and max(colours) < 5


REFUSED = {
    "shapes": (lambda a, b: fusedmm.spgemm(a, a), ValueError, "a's columns must be b's rows"),
    "mask's shape": (lambda a, b: fusedmm.spgemm(a, b, mask=a), ValueError, r"mask is \[7, 30\], the product"),
    "algorithm": (lambda a, b: fusedmm.spgemm(a, b, algorithm="best"), ValueError, "spgemm has no algorithm 'best'"),
    "kkmcr": (lambda a, b: fusedmm.spgemm(a, b, algorithm="kkmcr"), ValueError, "spgemm_plan"),
    "kkmcw": (lambda a, b: fusedmm.spgemm(a, b, algorithm="kkmcw"), ValueError, "spgemm_plan"),
    "colours of a mask": (
        lambda a, b: fusedmm.spgemm_plan(a, b, algorithm="kkmcr", mask=random_csr(7, 500, 9)),
        ValueError,
        "kkmcr .* takes no mask",
    ),
    "dtypes": (lambda a, b: fusedmm.spgemm(a, b.to(dtype=torch.float64)), TypeError, "a are .*32, those of b .*64"),
    "heads": (
        lambda a, b: fusedmm.spgemm(a.with_values(torch.ones(a.nnz, 2)), b),
        ValueError,
        r"the values of a are \[60, 2\]; a sparse product takes one number an entry",
    ),
    "no matrix": (lambda a, b: fusedmm.spgemm(a, "b"), TypeError, "cannot make a CSR of str"),
    "order": (lambda a, b: fusedmm.triple_product(a, b, b, order="up"), ValueError, "order must be auto"),
    "triple's shapes": (lambda a, b: fusedmm.triple_product(a, b, b), ValueError, "a's columns must be p's rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    call, kind, text = REFUSED[name]
    a, b = pair("wide")
    with pytest.raises(kind, match=text):
        call(a, b)
    assert_product(fusedmm.spgemm(a, b), a, b)


def test_a_structure_cannot_be_found_while_a_graph_records(cuda):
    a = random_csr(20, 20, 90, device=cuda)
    with pytest.raises(RuntimeError, match=r"make a fusedmm\.spgemm_plan before the capture"):
        capture(lambda: fusedmm.spgemm(a, a))
    assert_product(a @ a, a, a)
