"""Bad input of spmv and of the formats: a named exception, and the next call works."""

import dataclasses
import itertools
import re

import pytest
import torch
from support.generate import run_or_decline, small
from support.matvec import FORMATS, algorithms_of, made, rows_of_lengths

import fusedmm
from fusedmm import formats

X, Y = torch.ones(15), torch.ones(12)
WRONG = {
    "x as a list": (TypeError, "x must be a tensor", {"x": [1.0] * 15}),
    "x of integers": (TypeError, "x must be float32", {"x": torch.ones(15, dtype=torch.int64)}),
    "x of complex numbers": (TypeError, "x must be float32", {"x": torch.ones(15, dtype=torch.complex64)}),
    "x sparse": (TypeError, "x must be", {"x": torch.ones(15).to_sparse()}),
    "x of two dimensions": (ValueError, "several vectors go to fusedmm.spmm", {"x": torch.ones(15, 1)}),
    "x without dimensions": (ValueError, r"x must be \[columns\]", {"x": torch.tensor(1.0)}),
    "x too short": (ValueError, "x has 14 elements, the matrix 15 columns", {"x": torch.ones(14)}),
    "y too long": (ValueError, "y has 13 elements, the matrix 12 rows", {"y": torch.ones(13)}),
    "y of another dtype": (TypeError, "y is torch.float64 and x torch.float32", {"y": Y.double()}),
    "y as a number": (TypeError, "y must be a tensor", {"y": 1.0}),
    "beta without y": (ValueError, "beta is 2, so y must be given", {"beta": 2}),
    "alpha as a text": (TypeError, "alpha must be a number", {"alpha": "2"}),
    "alpha complex": (TypeError, "alpha must be a number", {"alpha": 1j}),
    "alpha beyond float32": (ValueError, "alpha must be within", {"alpha": 1e300}),
    "alpha wants a gradient": (TypeError, "alpha gets no gradient", {"alpha": torch.ones((), requires_grad=True)}),
    "no such algorithm": (ValueError, "spmv has no algorithm 'rows'", {"algorithm": "rows"}),
    "algorithm as a number": (TypeError, "algorithm must be a name", {"algorithm": 3}),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, name, device):
    kind, text, given = WRONG[case]
    adj = made(small(device=device), name)
    here = {k: v.to(device) if isinstance(v, torch.Tensor) and not v.requires_grad else v for k, v in given.items()}
    with pytest.raises(kind, match=text):
        fusedmm.spmv(adj, **{"x": X.to(device)} | here)
    assert fusedmm.spmv(adj, X.to(device)).isfinite().all()


@pytest.mark.parametrize("given", FORMATS)
@pytest.mark.parametrize("wanted", FORMATS)
def test_algorithms_of_another_format(given, wanted, device):
    if given == wanted:
        return
    adj = made(small(device=device), given)
    for algorithm in algorithms_of(wanted, device):
        if algorithm in ("auto", "reference"):
            continue
        made_by = r"its to_csr\(\)" if wanted == "csr" else f"fusedmm.formats.to_{wanted}, of a CSR,"
        with pytest.raises(ValueError, match=f"{algorithm} takes {wanted.upper()}, not {given.upper()}: {made_by}"):
            fusedmm.spmv(adj, X.to(device), algorithm=algorithm)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_values_with_heads(name, device):
    adj = small(device=device, heads=2)
    with pytest.raises(ValueError, match="have heads"):
        fusedmm.spmv(adj, X.to(device))
    with pytest.raises(ValueError, match="have heads"):
        made(adj, name) @ X.to(device)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_products_with_matrices_say_what_has_them(name, device):
    adj = small(device=device)
    matrix, several = made(adj, name), torch.ones(15, 2, device=device)
    for call in (lambda x: matrix @ x, lambda x: fusedmm.spmv(matrix, x)):
        with pytest.raises(ValueError, match=r"several vectors go to fusedmm.spmm of its to_csr\(\)"):
            call(several)
        with pytest.raises(TypeError, match=r"not CSR; products with matrices are those of its to_csr\(\)"):
            call(adj)
    assert fusedmm.spmm(matrix.to_csr(), several).shape == (12, 2)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_no_matrix(name):
    for wrong in (None, 3, "csr", torch.ones(3, 3)):
        with pytest.raises(TypeError):
            made(wrong, name)


def replaced(matrix, **changed):
    return dataclasses.replace(matrix, **changed)


def forged(adj):
    """Matrices whose numbers were changed behind the constructors: what they say is not believed."""
    huge = 2**31 - 1
    coo, dia, ell, hyb, sell = (made(adj, name) for name in FORMATS[1:])
    for wrong in (-5, huge, adj.shape[0]):
        yield replaced(coo, row=torch.full_like(coo.row, wrong))
        yield replaced(hyb, tail_row=torch.full_like(hyb.tail_row, wrong))
        yield replaced(sell, order=torch.full_like(sell.order, wrong))
    yield replaced(coo, row=coo.row.flip(0).contiguous())
    for wrong in (-5, huge, adj.shape[1]):
        yield replaced(ell, idx=torch.full_like(ell.idx, wrong))
        yield replaced(hyb, tail_idx=torch.full_like(hyb.tail_idx, wrong))
        yield replaced(sell, idx=torch.full_like(sell.idx, wrong))
    for wrong in (2**63 - 1, -(2**63), 2**40, -1):
        yield replaced(dia, offsets=torch.full_like(dia.offsets, wrong))
        yield replaced(sell, offsets=torch.full_like(sell.offsets, wrong))
    for wrong in (-(2**62), 2**62, -1):
        csr = adj.with_values(adj.val)
        object.__setattr__(csr, "ptr", torch.full_like(adj.ptr, wrong))
        yield csr
    for name, wrong in (("idx", huge), ("idx", -1), ("eid", huge), ("eid", -7)):
        csr = fusedmm.CSR.from_coo(*adj.coo()[:2], adj.val.clone().requires_grad_(), adj.shape)
        object.__setattr__(csr, name, torch.full_like(getattr(csr, name), wrong))
        yield csr
        yield formats.COO(csr, coo.row)


def falling(device):
    """Rows that fall and leap, in matrices of many pieces, whose ends are then further apart than a piece is long."""
    g, rows, nnz = torch.Generator().manual_seed(1), 20_000, 60_000
    adj = rows_of_lengths([3] * rows, 15, device)
    at = torch.arange(rows + 1)
    for ptr in (torch.randint(-9, 2 * nnz, (rows + 1,), generator=g), at // 3000 % 2 * nnz, at % 2 * (2**63 - 1) - at):
        csr = adj.with_values(adj.val)
        object.__setattr__(csr, "ptr", ptr.to(device))
        yield csr
    for row in (torch.randint(-9, 2 * rows, (nnz,), generator=g), torch.arange(nnz) // 7000 % 2 * (rows - 1)):
        yield formats.COO(adj, row.to(device, torch.int32))


def test_forged_numbers_lead_nowhere(device):
    adj = small(device=device)
    x = torch.ones(15, device=device)
    good = fusedmm.spmv(adj, x)
    for matrix in (*forged(adj), *falling(device)):
        name = type(matrix).__name__.lower()
        for algorithm in algorithms_of(name, device):
            try:
                with torch.no_grad():
                    y = fusedmm.spmv(matrix, x, algorithm=algorithm)
            except ValueError as error:
                assert re.search("does not support|cannot run here", str(error))
                continue
            assert y.shape == matrix.shape[:1]
    assert torch.equal(fusedmm.spmv(adj, x), good)


@pytest.mark.parametrize("name", FORMATS)
def test_entries_of_a_matrix_without_columns(name, device):
    """Columns that a forged shape takes away are outside like all others, though x then has no memory at all."""
    matrix = made(rows_of_lengths([k % 9 for k in range(900)], 15, device), name)
    if name in ("csr", "coo"):
        object.__setattr__(matrix if name == "csr" else matrix.csr, "n_cols", 0)
    else:
        matrix = replaced(matrix, shape=(900, 0))
    y = torch.arange(900.0, device=device)
    for algorithm in algorithms_of(name, device):
        found = run_or_decline(fusedmm.spmv, matrix, torch.ones(0, device=device), beta=2, y=y, algorithm=algorithm)
        assert found is None or torch.equal(found, 2 * y), algorithm


def test_no_row_keeps_what_memory_held(threads):
    """Rows that a forged order or ptr leaves out are written, and not the NaN of a tensor just freed. CPU only."""
    sell, rows = made(small(), "sell"), 40_000
    matrices = [replaced(sell, order=sell.order[:1].expand(12).contiguous()), replaced(sell, order=sell.order * 0 - 1)]
    adj, ptr = rows_of_lengths([3] * rows, 15, "cpu"), 3 * torch.arange(rows + 1)
    for falls in (ptr.flip(0), (ptr + 3 * rows // 2) % (3 * rows)):  # everywhere, and once
        matrices.append(adj.with_values(adj.val))
        object.__setattr__(matrices[-1], "ptr", falls)
    for matrix, count in itertools.product(matrices, (2, 3)):
        threads(count)
        for algorithm in algorithms_of(type(matrix).__name__.lower(), "cpu"):
            poison = torch.full(matrix.shape[:1], torch.nan)
            del poison
            y = run_or_decline(fusedmm.spmv, matrix, X, algorithm=algorithm)
            assert y is None or y.isfinite().all(), algorithm


def test_a_forged_order_spares_the_rows_that_it_names_once(device):
    """Of SELL: two places may name one row, and rows may be left out or be none; the others are right. On CUDA a row
    that no place names keeps what its memory held, which docs/spmv.md says."""
    adj = rows_of_lengths([k % 7 for k in range(300)], 15, device)
    sell, x = made(adj, "sell"), torch.ones(15, device=device)
    for wrong in (int(sell.order[5]), 17, -1, 300, 2**31 - 1):
        order = sell.order.clone()
        order[40:60] = wrong
        once = torch.bincount(order[(order >= 0) & (order < 300)].long(), minlength=300) == 1
        for algorithm in algorithms_of("sell", device):
            y = run_or_decline(fusedmm.spmv, replaced(sell, order=order), x, algorithm=algorithm)
            if y is not None:
                assert torch.equal(y[once], fusedmm.spmv(sell, x, algorithm=algorithm)[once]), algorithm


def test_a_value_whose_position_is_outside_counts_as_zero():
    """In every algorithm of the CPU."""
    adj = fusedmm.CSR.from_coo(torch.tensor([1, 0, 0]), torch.tensor([0, 2, 1]), torch.tensor([4.0, 2.0, 1.0]), (2, 3))
    adj = adj.with_values(adj.val.clone().requires_grad_())
    for wrong in (-1, 3, 2**31 - 1):
        forged = adj.with_values(adj.val)
        object.__setattr__(forged, "eid", torch.where(adj.eid == 1, wrong, adj.eid.long()).to(adj.eid.dtype))
        for matrix in (forged, formats.to_coo(forged)):
            for algorithm in algorithms_of(type(matrix).__name__.lower(), "cpu"):
                y = run_or_decline(fusedmm.spmv, matrix, torch.ones(3), algorithm=algorithm)
                assert y is None or y.tolist() == [1, 4], algorithm


@pytest.mark.parametrize("name", FORMATS[2:])
def test_values_of_another_shape(name, device):
    """Of matrices that a user puts together."""
    matrix = made(small(device=device), name)
    wide = matrix.val.dim() == 2
    for val, kind, text in (
        (matrix.val.tolist(), TypeError, "val must be a tensor, not list"),
        (matrix.val[None], ValueError, rf"val is \[1, .*\] and must be \[\w+{', rows' * wide}\]; the matrix"),
        (matrix.val[..., :-1], ValueError, r"and must be .* 12 rows" if wide else None),
        (matrix.val.t().contiguous().t(), ValueError, r"val \[\d+, 12\] must be contiguous" if wide else None),
    ):
        if text:
            with pytest.raises(kind, match=f"{name.upper()}: {text}" if "val" in text else text):
                replaced(matrix, val=val)
    assert (matrix @ X.to(device)).isfinite().all()


def test_parts_of_a_coo_of_other_types(device):
    coo = formats.to_coo(small(device=device))
    for parts, text in (((coo.csr.ptr, coo.row), "csr must be a CSR, not Tensor"), ((coo.csr, None), "not NoneType")):
        with pytest.raises(TypeError, match=f"COO: .*{text}"):
            formats.COO(*parts)
    assert (formats.COO(coo.csr, coo.row) @ X.to(device)).isfinite().all()


@pytest.mark.parametrize("name", FORMATS[1:])
def test_as_csr_says_how_a_format_becomes_one(name):
    matrix = made(small(), name)
    for call in (fusedmm.as_csr, lambda a: fusedmm.spmm(a, torch.ones(15, 2))):
        with pytest.raises(TypeError, match=rf"cannot make a CSR of {name.upper()}; .*; its to_csr\(\) is one$"):
            call(matrix)
    assert fusedmm.as_csr(matrix.to_csr()).shape == matrix.shape


def test_tensors_of_other_lengths(device):
    """Fields of a padded matrix that do not belong together are refused by name."""
    adj = small(device=device)
    x = torch.ones(15, device=device)
    ell, sell, dia, hyb = (made(adj, name) for name in ("ell", "sell", "dia", "hyb"))
    for matrix, text in (
        (replaced(ell, idx=ell.idx[:-1]), "padded_idx has"),
        (replaced(sell, order=sell.order[:-1]), "order has 11 elements, 12 are needed"),
        (replaced(sell, offsets=sell.offsets[:-1]), "offsets has"),
        (replaced(dia, offsets=dia.offsets[:-1]), "offsets has"),
        (replaced(hyb, tail_row=torch.zeros(99, dtype=torch.int32, device=device)), "row has 99 elements"),
        (replaced(ell, idx=ell.idx.long()), "padded_idx must be a vector of int32"),
    ):
        with pytest.raises(ValueError, match=text):
            fusedmm.spmv(matrix, x)
    assert (ell @ x).isfinite().all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_y_that_is_not_read_may_want_a_gradient(name, device):
    adj = made(small(device=device), name)
    x, y = torch.randn(15, device=device), torch.randn(12, device=device, requires_grad=True)
    assert torch.equal(fusedmm.spmv(adj, x, beta=0, y=y), fusedmm.spmv(adj, x))
