"""Bad input to the algebra: a named exception with the index and the value, and the next call works."""

import pytest
import torch

import fusedmm
from fusedmm import CSR

A = CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 3))
HEADS = A.with_values(torch.ones(3, 2))
SQUARE = CSR.eye(3, dtype=torch.float32)
I64 = 2**63 - 1

MISTAKES = [
    (lambda: A[3], TypeError, "rows must be ids, a slice or a mask, not 3; a list of one id"),
    (lambda: A[:, 1], TypeError, "cols must be ids, a slice or a mask, not 1"),
    (lambda: A[torch.tensor(1)], TypeError, "rows must be ids, a slice or a mask, not 1|rows must have 1 dimension"),
    (lambda: A[[0, 2]], ValueError, r"rows\[1\] = 2 is outside \[0, 2\)"),
    (lambda: A[[-1]], ValueError, r"rows\[0\] = -1 is outside \[0, 2\)"),
    (lambda: A[:, [0, 1, I64]], ValueError, rf"cols\[2\] = {I64} is outside \[0, 3\)"),
    (lambda: A[torch.tensor([0.5])], TypeError, "rows must hold integers .* not torch.float32"),
    (lambda: A["a"], TypeError, "rows must be ids, a slice or a mask, not str"),
    (lambda: A[None], TypeError, "rows must be ids, a slice or a mask, not NoneType"),
    (lambda: A[...], TypeError, "rows must be ids, a slice or a mask, not ellipsis"),
    (lambda: A[0:1, 0:1, 0:1], TypeError, "a matrix has rows and columns, not 3 indices"),
    (lambda: A[torch.tensor([[0]])], ValueError, "rows must have 1 dimension, not 2"),
    (lambda: A[torch.ones(3, dtype=torch.bool)], ValueError, "rows: the mask has 3 elements for 2 rows"),
    (lambda: A[:, torch.ones(2, dtype=torch.bool)], ValueError, "cols: the mask has 2 elements for 3 cols"),
    (lambda: A[torch.tensor([0], device="meta")], TypeError, "rows must be on cpu or cuda, not on meta"),
    (lambda: list(A), TypeError, "not iterable"),
    (lambda: A.subgraph([0]), ValueError, r"subgraph: A must be square, not \[2, 3\]"),
    (lambda: SQUARE.subgraph([3]), ValueError, r"nodes\[0\] = 3 is outside \[0, 3\)"),
    (lambda: A + SQUARE, ValueError, r"A \+ B: A is \[2, 3\] and B \[3, 3\]"),
    (lambda: A - SQUARE, ValueError, r"A - B: A is \[2, 3\] and B \[3, 3\]"),
    (lambda: A * SQUARE, ValueError, r"A \* B: A is \[2, 3\] and B \[3, 3\]"),
    (lambda: A + 1, TypeError, "unsupported operand"),
    (lambda: A + torch.ones(2, 3), TypeError, "unsupported operand"),
    (lambda: torch.ones(2, 3) + A, TypeError, "unsupported operand"),
    (lambda: HEADS + A.with_values(torch.ones(3, 4)), ValueError, r"A \+ B: heads do not agree: \[3, 2\], \[3, 4\]"),
    (lambda: A * torch.ones(3), TypeError, r"s must be one floating-point number, not \[3\] of torch.float32; A.scale"),
    (lambda: A * torch.tensor(2), TypeError, "s must be one floating-point number, not .* of torch.int64"),
    (lambda: A * "2", TypeError, r"A \* s: s must be a number or a CSR, not str"),
    (lambda: A * 1j, TypeError, r"A \* s: s must be a number or a CSR, not complex"),
    (lambda: A * 10**400, ValueError, r"A \* s: s must be within 3.40282e\+38"),
    (lambda: A / A, TypeError, r"A / B: matrices of one structure divide by A.with_values\(A.val / B.val\)"),
    (lambda: 1 / A, TypeError, "unsupported operand"),
    (lambda: A.scale(), ValueError, "scale: give rows, cols or both"),
    (lambda: A.scale(rows=torch.ones(3)), ValueError, r"scale: rows must be \[2\] or \[2, heads\], not \[3\]"),
    (
        lambda: A.scale(cols=torch.ones(3, 1, 1)),
        ValueError,
        r"scale: cols must be \[3\] or \[3, heads\], not \[3, 1, 1",
    ),
    (lambda: A.scale(rows=[1, 2]), TypeError, "scale: rows must be a tensor, not list"),
    (lambda: A.scale(rows=torch.ones(2).long()), TypeError, "scale: rows must be float32, .* not torch.int64"),
    (lambda: A.scale(rows=torch.ones(2).to_sparse()), TypeError, "scale: rows must be one dense tensor, not torch.spa"),
    (lambda: A.scale(rows=torch.ones(2, device="meta")), TypeError, "scale: rows is on meta, the matrix on cpu"),
    (lambda: HEADS.scale(rows=torch.ones(2, 3)), ValueError, r"scale: heads do not agree: \[3, 2\], \[2, 3\]"),
    (lambda: torch.ones(3) @ A, ValueError, "x @ A: x has 3 elements, the matrix 2 rows"),
    (lambda: torch.ones(2, 3) @ A, ValueError, "x @ A: x transposed has 3 rows, the matrix 2 rows"),
    (lambda: torch.ones(2).long() @ A, TypeError, "x @ A: x must be float32, .* not torch.int64"),
    (lambda: torch.ones(1, 1, 2) @ A, ValueError, r"x must be \[rows\] or \[n, rows\], not \[1, 1, 2\]"),
    (lambda: torch.ones(2) @ HEADS, ValueError, r"x @ A: values \[3, 2\] have heads"),
    (lambda: [1.0, 2.0] @ A, TypeError, "unsupported operand"),
    (lambda: A.sum(2), ValueError, r"dim must be 0 \(over columns\), 1 \(over rows\) or None, not 2"),
    (lambda: A.max("rows"), ValueError, "dim must be 0 .* not 'rows'"),
    (lambda: A.softmax(None), ValueError, "dim must be 0 .* not None"),
    (lambda: A.coalesce("prod"), ValueError, "coalesce: reduce must be one of sum, mean, max, min, not 'prod'"),
    (lambda: A.coalesce([]), ValueError, r"coalesce: reduce must be one of sum, mean, max, min, not \[\]"),
    (lambda: A.remove_self_loops(), ValueError, r"need a square matrix, not one of shape \(2, 3\)"),
    (lambda: A.set_self_loops(), ValueError, "need a square matrix"),
    (lambda: SQUARE.set_self_loops("1"), TypeError, "set_self_loops: fill_value must be a number, not '1'"),
    (lambda: SQUARE.set_self_loops(1e60), ValueError, r"fill_value must be within 3.40282e\+38"),
    (lambda: SQUARE.set_self_loops(torch.ones(2)), ValueError, r"fill_value must be \[3\], not \[2\]"),
    (
        lambda: SQUARE.with_values(torch.ones(3, 2)).set_self_loops(torch.ones(3, 4)),
        ValueError,
        r"set_self_loops: fill_value must be \[3\] or \[3, 2\], not \[3, 4\]",
    ),
    (lambda: SQUARE.set_self_loops(torch.ones(3).long()), TypeError, "must be floating-point on cpu, not torch.int64"),
    (lambda: SQUARE.add_self_loops(fill="1"), TypeError, "add_self_loops: fill_value must be a number, not '1'"),
    (lambda: CSR.eye(-1), ValueError, r"eye: n \(-1, -1\): both must be in \[0, 2\^31\)"),
    (lambda: CSR.eye(2.5), TypeError, "eye: n must be an integer, not 2.5"),
    (lambda: CSR.eye(2, dtype=torch.int64), TypeError, "eye: dtype must be float32, .* not torch.int64"),
    (lambda: CSR.eye(2, device="tpu"), ValueError, "eye: device"),
    (lambda: A.size(2), IndexError, "range"),
    (lambda: A.equal(1), TypeError, "equal: B must be a CSR, not int"),
    (lambda: A.to_scipy("dia"), ValueError, "layout must be csr, csc or coo, not 'dia'"),
    (lambda: A.to_torch("bsr"), ValueError, "layout must be csr, csc, coo or torch's layout of that name, not 'bsr'"),
    (lambda: A.to_torch(None), ValueError, "layout must be csr, csc, coo or .*, not None"),
    (lambda: HEADS.to_scipy(), ValueError, "scipy's matrices hold one value per entry, not one per head"),
    (lambda: A.to_pyg(), ValueError, r"to_pyg: Data is of square matrices, not \[2, 3\]; take to_edge_index"),
    (lambda: CSR.from_tensors([1]), TypeError, "tensors must be a mapping of names to tensors, not list"),
    (lambda: CSR.from_tensors({"ptr": A.ptr}), ValueError, "tensors must have ptr, idx, shape and .*; 'idx' is amiss"),
    (lambda: CSR.from_tensors(A.tensors() | {"w": A.val}), ValueError, "'w' is amiss"),
    (lambda: CSR.from_tensors(A.tensors() | {"shape": A.val}), TypeError, "shape must hold integers"),
    (lambda: CSR.from_tensors(A.tensors() | {"idx": A.idx + 1}), ValueError, r"idx\[1\] = 3 is outside \[0, 3\)"),
    (lambda: CSR.from_tensors(A.tensors() | {"eid": A.idx * 0}), ValueError, "it must be a permutation"),
]


@pytest.mark.parametrize("call, kind, text", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistakes_are_named(call, kind, text):
    """CPU only: the checks are the same code."""
    with pytest.raises(kind, match=text):
        call()
    assert (A + A).to_dense().tolist() == [[2, 0, 4], [0, 6, 0]]


def test_operands_on_two_devices(cuda):
    there = A.to(cuda)
    for call, text in (
        (lambda: there + A, r"A \+ B: A is on cuda:0, B on cpu"),
        (lambda: there.equal(A), "equal: A is on cuda:0, B on cpu"),
        (lambda: there.scale(rows=torch.ones(2)), "scale: rows is on cpu, the matrix on cuda:0"),
        (lambda: A[torch.tensor([0], device=cuda)], "rows are on cuda:0, the matrix on cpu"),
        (lambda: torch.ones(2) @ there, "x @ A: x is on cpu, the matrix on cuda:0"),
        (lambda: A * torch.tensor(1.0, device=cuda), r"A \* s: s is on cuda:0, the matrix on cpu"),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    assert (there * torch.tensor(2.0)).val.tolist() == [2, 4, 6]


def test_ids_on_the_cpu_choose_of_a_matrix_on_a_gpu(cuda):
    """As in torch, whose loaders hand such ids over."""
    there = A.to(cuda)
    for rows, cols in (([1, 0], [2, 0]), ([False, True], [True, False, True])):
        rows, cols = torch.tensor(rows), torch.tensor(cols)
        assert there[rows].equal(there[rows.to(cuda)]) and there[:, cols].equal(there[:, cols.to(cuda)])
    assert there[:, :2].subgraph(torch.tensor([1])).to_dense().tolist() == [[3]]
    with pytest.raises(ValueError, match=r"rows\[0\] = 2 is outside \[0, 2\)"):
        there[torch.tensor([2])]


PARTS = {
    "rows": lambda a: a[[3, 0, 1]],
    "columns": lambda a: a[:, [3, 0, 0]],
    "subgraph": lambda a: a.subgraph([0, 2]),
    "sums": lambda a: a.scale(rows=a.sum(1)),
    "loops": lambda a: a.remove_self_loops(),
    "coalesce": lambda a: a.coalesce(),
    "blocks": lambda a: fusedmm.block_diag([a, a]),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("ptr", [[0, 5, 2, 3, 3], [-9, 2**40, 1, 2, 3], [0, 1, 2, 3, 3]])
def test_an_unchecked_matrix_stays_within_memory(name, ptr, device):
    """Pointers and columns that were not checked give some matrix, and the device works on."""
    ptr, idx = torch.tensor(ptr, device=device), torch.tensor([0, 99, -7], device=device)
    forged = CSR.from_csr(ptr, idx, torch.ones(3, device=device), shape=(4, 4), check=False)
    found = PARTS[name](forged)
    assert isinstance(found, CSR) and found.val.isfinite().all()
    there = A.to(device)
    assert (there + there).to_dense().tolist() == [[2, 0, 4], [0, 6, 0]]


def test_errors_name_what_was_called():
    A, v = fusedmm.CSR.eye(3), torch.ones(3)
    with pytest.raises(TypeError, match=r"^A / s: s must be one floating-point number, not \[3\] of torch.float32"):
        A / v
    with pytest.raises(TypeError, match=r"^A / s: s must be a number, not str"):
        A / "2"
    with pytest.raises(TypeError, match=r"^A \* s: s must be a number or a CSR, not str"):
        A * "2"
    for dim in (2, -3, "rows"):
        with pytest.raises(IndexError, match=r"^size: dim .* is out of range: a CSR has the dim"):
            A.size(dim)
