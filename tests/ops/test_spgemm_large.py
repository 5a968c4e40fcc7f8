"""Sparse times sparse where numbers are large: products, entries, columns, or the memory that a result would take."""

import pytest
import torch
from support.spgemm_oracle import products, random_csr

import fusedmm
from benchmarks.trial import peak_bytes
from fusedmm import CSR
from fusedmm.data import stencil


def column_and_row(n, device):
    """All entries of [n, 1] and of [1, n], whose product is full."""
    ptr = torch.arange(n + 1, device=device)
    column = CSR.from_csr(ptr, torch.zeros_like(ptr[1:]), shape=(n, 1))
    return column, CSR.from_csr(ptr[[0, n]], ptr[:-1], shape=(1, n))


def test_more_products_than_32_bits_count(device):
    n = 2**16 + 1
    column, row = column_and_row(n, device)
    half = [column.ptr, column.idx, column.eid, column.plan, row.ptr, row.idx, row.eid, row.plan]
    from fusedmm.ops.products import WANT

    ptr, *_ = torch.ops.fusedmm._spgemm_symbolic(*half, column.none, column.none, n, WANT["counts"])
    assert int(ptr[-1]) == n * n > 2**32 and bool(((ptr[1:] - ptr[:-1]) == n).all())


def test_all_products_together_are_more_than_32_bits_count():
    """Rows of 2^26 products that fall on 4,096 columns: in 32 bits few of all would be left."""
    rows, each, cols = 64, 1024, 4096
    col = torch.arange(cols).repeat_interleave(16)
    b = CSR.from_coo(torch.zeros_like(col), col, shape=(1, cols))
    row = torch.cat([torch.arange(rows).repeat_interleave(each), torch.tensor([rows - 1])])
    a = CSR.from_coo(row, torch.zeros_like(row), shape=(rows, 1))
    assert 2**32 < a.nnz * b.nnz < 2**32 + 2**20
    c = fusedmm.spgemm_plan(a, b).c
    assert torch.equal(c.ptr, cols * torch.arange(rows + 1)) and torch.equal(
        c.idx, torch.arange(cols).repeat(rows).int()
    )


def test_column_numbers_of_more_than_27_bits(device):
    """With columns in the first and the last word of a row of 2^28 bits."""
    cols = 2**28
    far = torch.tensor([0, 63, 64, cols - 65, cols - 64, cols - 1], device=device)
    b = CSR.from_coo(
        torch.tensor([0, 1, 1, 0, 2, 2], device=device), far, torch.rand(6, device=device), shape=(3, cols)
    )
    a = CSR.from_coo(*torch.tensor([[0, 0, 1], [2, 0, 1]], device=device), torch.rand(3, device=device), shape=(2, 3))
    c = fusedmm.spgemm(a, b)
    assert c.idx.tolist() == [0, cols - 65, cols - 64, cols - 1, 63, 64] and c.ptr.tolist() == [0, 4, 6]
    exact = torch.cat([a.val[1] * b.val[[0, 3]], a.val[0] * b.val[[4, 5]], a.val[2] * b.val[[1, 2]]])
    assert torch.equal(c.val, exact)


def test_dense_rows_are_hashed_where_memory_is_scarce(threads):
    """A row of sums for each of 2^31 - 1 columns would take 8 GiB."""
    threads(1)
    cols = 2**31 - 1
    a = CSR.from_coo(torch.arange(3), torch.arange(3), torch.rand(3), shape=(3, 3))
    far = torch.tensor([0, 5, cols - 1, 7, cols - 2])
    b = CSR.from_coo(torch.tensor([0, 0, 0, 1, 2]), far, torch.rand(5), shape=(3, cols))
    mask = CSR.from_csr(torch.tensor([0, 2, 3, 3]), torch.tensor([cols - 1, 1, 7]), shape=(3, cols))
    c = fusedmm.spgemm(a, b, mask=mask)
    torch.testing.assert_close(c.val, torch.stack([a.val[0] * b.val[2], torch.tensor(0.0), a.val[1] * b.val[3]]))


def test_long_rows_come_in_windows_on_cuda(cuda):
    """More columns than the shared memory of a block has bits, and rows of more entries than it has sums for."""
    cols, entries = 3_000_000, 4000
    b = random_csr(50, cols, 50 * 2000, device=cuda)
    hub = torch.stack([torch.zeros(entries, dtype=torch.int64), torch.arange(entries) % 50]).to(cuda)
    a = CSR.from_coo(*hub, torch.randn(entries, device=cuda), shape=(2, 50))
    exact = fusedmm.spgemm(a.to("cpu", torch.float64), b.to("cpu", torch.float64))
    found = [fusedmm.spgemm(a, b, algorithm=name) for name in ("auto", "kkspeed", "kkmem", "sort")]
    for c in found:
        assert torch.equal(c.idx.cpu(), exact.idx) and torch.equal(c.val, found[0].val)
        torch.testing.assert_close(c.val.double().cpu(), exact.val, atol=1e-3, rtol=1e-3)


def test_every_table_and_window_gives_the_same_bits(device):
    """Rows of one window and of several, of long and short rows of b, of more terms than one sum takes."""
    cols, long, short = 150_000, 300, 3000
    row = torch.cat([torch.arange(long).repeat_interleave(400), long + torch.arange(short).repeat_interleave(10)])
    key = (row * cols + torch.randint(cols, row.shape)).unique()
    b = CSR.from_coo(key // cols, key % cols, torch.randn(key.numel()), shape=(long + short, cols))
    parts = [torch.arange(long), torch.arange(60), torch.arange(long, long + short), torch.arange(long + short)]
    parts += [torch.arange(long, long + 40), torch.arange(5), torch.arange(long - 40, long + 200)]
    rows = torch.cat([torch.full_like(part, i) for i, part in enumerate(parts)])
    a = CSR.from_coo(rows, torch.cat(parts), torch.randn(rows.numel()), shape=(len(parts), long + short))
    exact = fusedmm.spgemm(a.to(dtype=torch.float64), b.to(dtype=torch.float64))
    a, b = a.to(device), b.to(device)
    # the CPU's reference adds in double
    found = [c for name, c in products(a, b, device) if (device, name) != ("cpu", "reference")]
    for c in found:
        assert torch.equal(c.val, found[0].val)
        assert torch.equal(c.idx.cpu(), exact.idx)
        torch.testing.assert_close(c.val.double().cpu(), exact.val, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rises", [True, False])
@pytest.mark.parametrize("cols", [90, 60_000])
def test_rows_of_as_many_entries_as_a_sum_has_terms(cols, rises, device):
    """One less and one more, too, and more than a block has warps for; beside rows that are merged or copied."""
    lengths, inner = [1, 12, 13, 0, 127, 128, 129, 256, 257, 1023, 1024, 1025, 2100], 2200
    row = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    col = torch.cat([torch.randperm(inner)[:n].sort().values for n in lengths])
    a = CSR.from_coo(row, col, torch.randn(row.numel()), shape=(len(lengths), inner)).to(device)
    b = random_csr(inner, cols, 20_000, device=device)
    if rises:
        i, j, _ = b.coo()
        key = (i * cols + j).unique()
        b = CSR.from_coo(key // cols, key % cols, torch.randn(key.numel(), device=device), shape=b.shape)
    mask = random_csr(len(lengths), cols, 3000, device=device)
    exact = fusedmm.spgemm(a.to("cpu", torch.float64), b.to("cpu", torch.float64))
    for where in (None, mask):
        # the CPU's reference adds in double
        found = [c for name, c in products(a, b, device, mask=where) if (device, name) != ("cpu", "reference")]
        assert all(torch.equal(c.val, found[0].val) and torch.equal(c.idx, found[0].idx) for c in found)
        if where is None:
            assert torch.equal(fusedmm.spgemm(a, b).val, found[0].val) and torch.equal(found[0].idx.cpu(), exact.idx)
            torch.testing.assert_close(found[0].val.double().cpu(), exact.val, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_more_entries_than_32_bits_count_on_cuda(cuda):
    n = 46_342
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of device memory")
    c = fusedmm.spgemm(*column_and_row(n, cuda))
    assert c.nnz == n * n > 2**31 and int(c.ptr[-1]) == n * n
    assert bool((c.val == 1).all()) and c.idx[-n:].tolist() == list(range(n))


def test_too_large_a_product_says_how_large(device):
    n = 2**23  # whose columns take 2^48 bytes: more than there are addresses, where a system grants more than it has
    column, row = column_and_row(n, device)
    with pytest.raises((MemoryError, torch.OutOfMemoryError), match=str(n * n)):
        fusedmm.spgemm(column, row)
    assert fusedmm.spgemm(row, column).val.tolist() == [n]


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("kind", ["grid", "even", "random"])
def test_memory_beside_c_has_a_bound(kind, number, threads):
    """A quarter of the largest matrix and 32 MiB. Not all rows of C fit into that, so that some are found twice: with
    the same bits as in two phases."""
    threads(number)
    a = stencil(600, 600, points=9) if kind == "grid" else random_csr(2**15, 2**15, 2**19)
    if kind == "even":  # as many products in each row, but not in the same places
        a = CSR.from_csr(7 * torch.arange(2**17 + 1), torch.randint(2**17, (7 * 2**17,)), shape=(2**17, 2**17))
    a = a.with_values(torch.randn(a.nnz))
    plan = fusedmm.spgemm_plan(a, a)
    c = plan(a.val, a.val)
    largest = sum(t.nbytes for t in (c.ptr, c.idx, c.val))
    assert 8 * c.nnz > 2**25 + 8 * a.nnz / 4
    for sorted in (True, False):
        made = []

        def whole(sorted=sorted, made=made):
            made[:] = [fusedmm.spgemm(a, a, sorted=sorted)]
            return made[0].ptr, made[0].idx, made[0].val

        peak, results = peak_bytes(whole, 3, False)
        assert results == largest and peak <= results + largest / 4 + 2**25
        (found,) = made
        row = torch.arange(a.shape[0]).repeat_interleave(found.degree())
        order = torch.arange(c.nnz) if sorted else (row * a.shape[1] + found.idx).argsort()
        assert torch.equal(found.ptr, c.ptr)
        assert torch.equal(found.idx[order], c.idx) and torch.equal(found.val[order], c.val)
    peak, results = peak_bytes(lambda: (fusedmm.spgemm_plan(a, a).c.ptr,), 1, False)
    assert peak <= largest / 2 + results + largest / 4 + 2**25
