"""R A P: its values and gradients, the order that "auto" takes against counted products, and what that choice costs."""

import pytest
import torch
from support.machine import capture
from support.spgemm_oracle import random_csr

import fusedmm
from fusedmm import CSR
from fusedmm.ops import spgemm as spgemm_module


@pytest.mark.parametrize("order", ["auto", "left", "right"])
def test_triple_product(order, device):
    sizes = (5, 40, 60), (40, 30, 300), (30, 4, 40)
    r, a, p = (random_csr(*size, torch.float64, device) for size in sizes)
    c = fusedmm.triple_product(r, a, p, order=order)
    torch.testing.assert_close(c.to_dense(), r.to_dense() @ a.to_dense() @ p.to_dense())
    assert all(bool((row.diff() > 0).all()) for row in c.idx.split(c.degree().tolist()))


@pytest.mark.parametrize("order", ["auto", "left", "right"])
def test_gradients_reach_all_three(order):
    sizes = (3, 6, 9), (6, 5, 14), (5, 4, 9)
    r, a, p = (random_csr(*size, torch.float64) for size in sizes)

    def product(*val):
        return fusedmm.triple_product(*(m.with_values(v) for m, v in zip((r, a, p), val, strict=True)), order=order).val

    leaves = [m.val.clone().requires_grad_() for m in (r, a, p)]
    assert torch.autograd.gradcheck(product, leaves)


def products_of(*pairs):
    return sum(int(b.degree()[a.idx.long()].sum()) for a, b in pairs)


def counted(r, a, p):
    """Products of (R A) P and of R (A P)."""
    ra, ap = fusedmm.spgemm_plan(r, a).c, fusedmm.spgemm_plan(a, p).c
    return products_of((r, a), (ra, p)), products_of((a, p), (r, ap))


def joining(rows, groups, device="cpu"):
    node = torch.arange(rows, device=device)
    return CSR.from_coo(node, node * groups // rows, shape=(rows, groups))


def hubs(n, entries):
    """Twenty rows of many entries, all others of one."""
    row = torch.cat([torch.arange(20).repeat_interleave(entries), torch.arange(20, n)])
    return CSR.from_coo(row, torch.randint(n, row.shape), shape=(n, n))


def shaped(n, groups):
    """A few rows of R, a square A, and P."""
    r, a, p = random_csr(groups, n, n), random_csr(n, n, 20 * n), random_csr(n, n, 4 * n)
    return {
        "few rows of R": (r, a, p),
        "few columns of P": (p, a, r.t()),
        "A P is dense": (p, a, random_csr(n, 5, 4 * n)),
        "R A is dense": (random_csr(5, n, 4 * n), a, p),
        "R takes hubs": (CSR.eye(n)[:20], hubs(n, n), joining(n, 9)),
        "P takes hubs": (joining(n, 9).t(), hubs(n, n).t(), CSR.eye(n)[:20].t()),
    }


# By sizes alone, which tell nothing of hubs, and by counts.
@pytest.mark.parametrize(
    "name, n", [(name, n) for name in shaped(40, 2) for n in (60, 9000) if n > 60 or "hubs" not in name]
)
def test_auto_takes_the_order_of_fewer_products(name, n, monkeypatch):
    """Both first products and both second ones tell the orders apart, in one case or the other."""
    r, a, p = shaped(n, max(2, n // 500))[name]
    left, right = counted(r, a, p)
    assert max(left, right) > 1.3 * min(left, right)
    seen = []
    real = spgemm_module.spgemm
    monkeypatch.setattr(spgemm_module, "spgemm", lambda x, y, **how: seen.append((x, y)) or real(x, y, **how))
    fusedmm.triple_product(r, a, p)
    assert (seen[0][0] is r) == (left < right) and len(seen) == 2


@pytest.mark.parametrize("counted_from", [0, 2**40], ids=["counted", "from sizes"])
@pytest.mark.parametrize("n, mean, on_gpu", [(40_000, 5, "right"), (40_000, 20, "left"), (4000, 20, "right")])
def test_of_equal_orders_the_one_whose_rows_are_fast(n, mean, on_gpu, counted_from, monkeypatch, device):
    """R A P that joins nodes has as many products in both orders, also where the last cluster is smaller."""
    monkeypatch.setattr(spgemm_module, "COUNTED", dict.fromkeys(("cpu", "cuda"), counted_from))
    a, p = random_csr(n, n, mean * n, device=device), joining(n, n // 4, device)
    left = spgemm_module.left_has_fewer(p.t(), a, p)
    assert left == (device == "cpu" or on_gpu == "left")


def test_a_choice_reads_a_at_most_once(monkeypatch):
    """Of few products nothing is read; where P joins nodes in groups, A's entries are not."""
    seen = []
    real = spgemm_module.spmv
    monkeypatch.setattr(spgemm_module, "spmv", lambda m, x: seen.append(m.nnz) or real(m, x))
    n = 2000
    a, p = random_csr(n, n, 200_000), joining(n, 100)
    fusedmm.triple_product(random_csr(9, 9, 20), random_csr(9, 9, 20), random_csr(9, 9, 20))
    assert seen == []
    fusedmm.triple_product(p.t(), a, p)  # with rows of R A that would have more products than P has entries
    assert seen == [n, n, n]
    seen.clear()
    few = joining(n, 1000)
    fusedmm.triple_product(few.t(), a, few)  # whose second products are as many in both orders
    assert seen == []
    soft = random_csr(n, 100, 3 * n)
    fusedmm.triple_product(soft.t(), a, soft)
    assert sorted(seen) == [3 * n, 3 * n, 3 * n, a.nnz]


def test_refused_while_a_graph_records(cuda):
    """Before anything is counted, which would wait for the device."""
    a, p = random_csr(2000, 2000, 200_000, device=cuda), joining(2000, 100, cuda)
    r = p.t()
    with pytest.raises(RuntimeError, match=r"make a fusedmm\.spgemm_plan before the capture"):
        capture(lambda: fusedmm.triple_product(r, a, p))
    assert fusedmm.triple_product(r, a, p).shape == (100, 100)


def test_empty_matrices(device):
    for rows, inner, ends, cols in ((0, 4, 3, 2), (3, 0, 2, 2), (3, 4, 0, 2), (3, 4, 2, 0), (3, 4, 2, 5)):
        r, a, p = (random_csr(*size, 0, device=device) for size in ((rows, inner), (inner, ends), (ends, cols)))
        c = fusedmm.triple_product(r, a, p)
        assert c.shape == (rows, cols) and c.nnz == 0


def test_same_bits_for_any_number_of_threads(threads):
    """Also of a matrix so wide that the sums of few workers have room; its first product is in any order."""
    a, wide = random_csr(3000, 3000, 40_000), random_csr(3000, 3_000_000, 40_000)
    p, q = random_csr(3000, 50, 9000), random_csr(3_000_000, 50, 3_000_000)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append([fusedmm.triple_product(p.t(), a, m, order=order).val for m, order in ((p, "left"), (p, "right"))])
        loose = fusedmm.spgemm(a, wide, sorted=False)
        found[-1] += [loose.idx, loose.val, fusedmm.triple_product(p.t(), wide, q, order="left").val]
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))
