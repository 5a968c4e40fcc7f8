"""Bad input: a named exception with the index and the value, and the operator works right after.

One table; every line is tried on every operator and device that it concerns.
"""

import pytest
import torch
from support.generate import small, works

import fusedmm
from fusedmm.matrix.normalize import add_self_loops, gcn_norm

I64 = 2**63 - 1


# ---- structures ----

# name, ptr, idx, shape, exception, text
MALFORMED = [
    ("first is not 0", [1, 2, 3], [0, 1, 0], (2, 2), ValueError, r"ptr\[0\] = 1 must be 0"),
    ("first is negative", [-1, 2, 3], [0, 1, 0], (2, 2), ValueError, r"ptr\[0\] = -1 must be 0"),
    ("falls", [0, 2, 1, 3], [0, 1, 0], (3, 2), ValueError, r"ptr\[2\] = 1 is less than ptr\[1\] = 2"),
    ("leaps", [0, I64, 3], [0, 1, 0], (2, 2), ValueError, rf"ptr\[2\] = 3 is less than ptr\[1\] = {I64}"),
    ("dives", [0, -I64 - 1, 3], [0, 1, 0], (2, 2), ValueError, rf"ptr\[1\] = -{I64 + 1} is less than ptr\[0\] = 0"),
    ("last too small", [0, 1, 2], [0, 1, 0], (2, 2), ValueError, r"ptr\[2\] = 2 must be nnz = 3"),
    ("last too large", [0, 1, 4], [0, 1, 0], (2, 2), ValueError, r"ptr\[2\] = 4 must be nnz = 3"),
    ("last is huge", [0, 1, I64], [0, 1, 0], (2, 2), ValueError, rf"ptr\[2\] = {I64} must be nnz = 3"),
    ("entries without rows", [0], [0, 1, 0], (0, 2), ValueError, r"ptr\[0\] = 0 must be nnz = 3"),
    ("entries without columns", [0, 1], [0], (1, 0), ValueError, r"idx\[0\] = 0 is outside \[0, 0\)"),
    ("no pointers", [], [], (0, 2), ValueError, r"ptr must have rows \+ 1 elements, not 0"),
    ("pointers of other rows", [0, 1, 2], [0, 1], (3, 2), ValueError, r"ptr has 3 elements for 3 rows; 4 are needed"),
    ("column negative", [0, 2, 3], [0, 1, -1], (2, 2), ValueError, r"idx\[2\] = -1 is outside \[0, 2\)"),
    ("column is cols", [0, 2, 3], [0, 2, 1], (2, 2), ValueError, r"idx\[1\] = 2 is outside \[0, 2\)"),
    ("column wraps to 0", [0, 2, 3], [0, 2**32, 1], (2, 2), ValueError, r"idx\[1\] = 4294967296 is outside \[0, 2\)"),
    ("column is huge", [0, 2, 3], [0, 1, I64], (2, 2), ValueError, rf"idx\[2\] = {I64} is outside \[0, 2\)"),
    ("too many columns", [0, 1], [0], (1, 2**31), ValueError, r"both must be in \[0, 2\^31\)"),
    ("negative shape", [0, 1], [0], (1, -2), ValueError, r"both must be in \[0, 2\^31\)"),
    ("negative rows", [0], [], (-1, 2), ValueError, r"shape \(-1, 2\): both must be in"),
]


@pytest.mark.parametrize("ptr, idx, shape, kind, text", [pytest.param(*m[1:], id=m[0]) for m in MALFORMED])
def test_malformed_structures(ptr, idx, shape, kind, text, device):
    ptr, idx = (torch.tensor(t, dtype=torch.int64, device=device) for t in (ptr, idx))
    narrow = [idx.int()] if torch.equal(idx.int().long(), idx) else []  # which C checks, and nobody before
    for columns in (idx, *narrow):
        with pytest.raises(kind, match=text):
            fusedmm.CSR.from_csr(ptr, columns, shape=shape)
    for op in (fusedmm.spmm, fusedmm.sddmm):  # and through the operators, which convert what they are given
        x = torch.ones(max(0, min(shape[1], 9)), 2, device=device)
        operands = (x,) if op is fusedmm.spmm else (torch.ones(max(shape[0], 0), 2, device=device), x)
        with pytest.raises(kind, match=text):
            op((ptr, idx, None, shape), *operands)
    works(device)


@pytest.mark.parametrize("check", [True, False])
def test_int32_indices_and_narrower_ones_are_taken(check, device):
    for dtype in (torch.int32, torch.int16, torch.uint8, torch.int64):
        ptr, idx = torch.tensor([0, 1, 3], device=device), torch.tensor([1, 0, 1], device=device)
        adj = fusedmm.CSR.from_csr(ptr.to(dtype), idx.to(dtype), shape=(2, 2), check=check)
        assert fusedmm.spmm(adj, torch.eye(2, device=device)).tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
def test_narrow_indices_of_a_matrix_beyond_their_range(dtype, device):
    """Sizes and keys are compared in int64, not in what the indices happen to be."""
    row, col = (torch.tensor(t, dtype=dtype, device=device) for t in ([100, 2, 100], [99, 100, 1]))
    for check in (True, False):
        adj = fusedmm.CSR.from_coo(row, col, shape=(40000, 70000), check=check)
        assert adj.degree().nonzero()[:, 0].tolist() == [2, 100] and adj.ptr[-1] == 3
        assert adj.coo()[0].tolist() == [100, 2, 100] and adj.coo()[1].tolist() == [99, 100, 1]
        assert fusedmm.CSR.from_coo(col, row, shape=(40000, 1000), check=check).t().ptr[-1] == 3


@pytest.mark.parametrize("end, at", [("row", 1), ("col", 2)])
@pytest.mark.parametrize("value", [-1, 3, 2**32, I64])
def test_coordinates_outside(end, at, value, device):
    row, col = torch.tensor([0, 1, 2], device=device), torch.tensor([2, 1, 0], device=device)
    {"row": row, "col": col}[end][at] = value
    with pytest.raises(ValueError, match=rf"{end}\[{at}\] = {value} is outside \[0, 3\)"):
        fusedmm.CSR.from_coo(row, col, shape=(3, 3))
    edge_index, place = torch.stack([col, row]), rf"edge_index\[{int(end == 'row')}, {at}\]"
    with pytest.raises(ValueError, match=rf"{place} = {value} is outside \[0, 3\)"):
        fusedmm.spmm(edge_index, torch.ones(3, 2, device=device))
    works(device)


def vector(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])

# what to call, exception, text
CONSTRUCTORS = [
    (lambda: fusedmm.CSR.from_csr([0, 1], vector(0)), TypeError, "ptr must be a tensor, not list"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0, dtype=torch.float32)), TypeError, "idx must hold integers"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0, dtype=torch.bool)), TypeError, "idx must hold integers"),
    (
        lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(2**63, dtype=torch.uint64), shape=(1, 9)),
        TypeError,
        r"idx must hold integers \(int64, int32, int16, int8 or uint8\), not torch.uint64",
    ),
    (lambda: fusedmm.CSR.from_coo(vector(0), vector(0, dtype=torch.uint32)), TypeError, "col must hold integers"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0)[None]), ValueError, "idx must have 1 dimension, not 2"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0), vector(1).cfloat()), TypeError, "val must be a floating"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0), [1.0]), TypeError, "val must be a floating-point"),
    (
        lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0), torch.ones(2)),
        ValueError,
        "val has 2 values for 1 entries",
    ),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0), torch.ones(1, 1, 1)), ValueError, r"\[nnz, heads\]"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(0), torch.tensor(1.0)), ValueError, r"\[nnz, heads\]"),
    (lambda: fusedmm.CSR.from_coo(vector(0, 1), vector(0)), ValueError, "row has 2 elements and col 1"),
    (lambda: fusedmm.CSR.from_coo(vector(0), vector(0, dtype=torch.float64)), TypeError, "col must hold integers"),
    (lambda: fusedmm.CSR.from_edge_index(torch.zeros(3, 4, dtype=torch.int64)), ValueError, r"must be \[2, nnz\]"),
    (lambda: fusedmm.CSR.from_edge_index(vector(0, 1)), ValueError, r"edge_index must be \[2, nnz\], not \[2\]"),
    (lambda: fusedmm.CSR.from_dense(torch.ones(3)), ValueError, "dense must have 2 dimensions, not 1"),
    (lambda: fusedmm.CSR.from_torch(torch.ones(3, 3)), TypeError, "torch sparse CSR, CSC or COO tensor, not torch.st"),
    (lambda: fusedmm.CSR.from_dense([[1.0]]), TypeError, "dense must be a tensor, not list"),
    (
        lambda: fusedmm.CSR.from_dense(torch.eye(3).to_sparse()),
        TypeError,
        "dense must be one dense tensor, not torch.sp",
    ),
    (lambda: fusedmm.CSR.from_torch([[1.0]]), TypeError, "adj must be a tensor, not list"),
    (lambda: fusedmm.CSR.from_edge_index([[0], [1]]), TypeError, "edge_index must be a tensor, not list"),
    (lambda: fusedmm.CSR.from_edge_index(torch.ones(2, 3)), TypeError, "edge_index must hold integers"),
    (lambda: fusedmm.CSR.from_edge_index(EDGES, size=3.7), TypeError, r"size must be an integer or \(sources, t.*3.7"),
    (lambda: fusedmm.CSR.from_edge_index(EDGES, size="33"), TypeError, "size must be an integer or .*, not '33'"),
    (
        lambda: fusedmm.CSR.from_edge_index(EDGES, size=(3, 3, 3)),
        TypeError,
        r"size must be two integers, not \(3, 3, 3\); size is",
    ),
    (lambda: fusedmm.CSR.from_edge_index(EDGES, size=-1), ValueError, r"size \(-1, -1\): both must be in \[0, 2\^31"),
    (lambda: fusedmm.as_csr(EDGES, size=(3.0, 3)), TypeError, r"size must be two integers, not \(3.0, 3\)"),
    (lambda: fusedmm.CSR.from_coo(*EDGES, shape=3), TypeError, "shape must be two integers, not 3; shape is"),
    (lambda: fusedmm.CSR.from_coo(*EDGES, shape=(3.7, 3)), TypeError, r"shape must be two integers, not \(3.7, 3\)"),
    (lambda: fusedmm.CSR.from_coo(*EDGES, shape=(3, 3, 3)), TypeError, r"shape must be two integers, not \(3, 3, 3\)"),
    (lambda: fusedmm.CSR.from_coo(*EDGES, shape="33"), TypeError, "shape must be two integers, not '33'"),
    (lambda: fusedmm.CSR.from_coo(*EDGES, shape=(2**62, 3)), ValueError, r"both must be in \[0, 2\^31\)"),
    (lambda: fusedmm.CSR.from_scipy([[1.0]]), TypeError, "matrix must be a scipy sparse matrix or array, not list"),
    (lambda: small() @ 3, TypeError, "spmm: x must be a tensor, not int"),
    (lambda: small().to(torch.float16), TypeError, "not torch.float16; give a dtype as dtype="),
    (lambda: small().to(dtype=torch.int64), TypeError, "dtype must be float32, .* not torch.int64"),
    (lambda: small().pattern().to(dtype=torch.int64), TypeError, "dtype must be float32, .* not torch.int64"),
    (lambda: small().to(dtype="float16"), TypeError, "dtype must be float32, .* not 'float16'"),
    (lambda: small().to(dtype=[]), TypeError, r"dtype must be float32, .* not \[\]"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1).to_sparse(), vector(0)), TypeError, "ptr must be one dense tensor, not"),
    (lambda: fusedmm.CSR.from_coo(vector(0), vector(0).to_sparse()), TypeError, "col must be one dense tensor, not"),
    (lambda: gcn_norm("graph"), TypeError, "self loops and normalisation need a CSR, not str"),
    (
        lambda: gcn_norm(fusedmm.as_csr(EDGES), dtype=torch.int32),
        TypeError,
        "dtype must be float32, .* not torch.int32",
    ),
    (lambda: add_self_loops(EDGES), TypeError, "self loops and normalisation need a CSR, not Tensor; as_csr makes one"),
    (
        lambda: fusedmm.as_csr(EDGES).add_self_loops("1"),
        TypeError,
        "add_self_loops: fill_value must be a number, not '1'",
    ),
    (lambda: small().to("meta"), ValueError, "device must be cpu or cuda, not 'meta'"),
    (lambda: small().to("foo"), ValueError, "device: there is no 'foo'"),
    (lambda: small().to("cuda:"), ValueError, "device: there is no 'cuda:'"),
    (lambda: small().to("cuda:99"), ValueError, r"device: 'cuda:99' is not there; torch sees \d+ CUDA devices"),
    (lambda: small().to(torch.device("cuda", 99)), ValueError, "device: 'cuda:99' is not there"),
    (lambda: small().to(-1), ValueError, "device: there is no -1"),
    (lambda: small().to(1.5), TypeError, "device must be a device or its name, not 1.5"),
    (lambda: fusedmm.as_csr([[0, 1], [1, 0]]), TypeError, "cannot make a CSR of list; give a fusedmm.CSR"),
    (lambda: fusedmm.as_csr(torch.ones(2, 3).cfloat()), TypeError, "a dense tensor .* of torch.complex64 is no graph"),
    (lambda: fusedmm.as_csr(torch.ones(2, 3).bool()), TypeError, "a dense tensor .* of torch.bool is no graph"),
    (lambda: small().with_values(torch.ones(59)), ValueError, "val has 59 values for 60 entries"),
    (lambda: small().with_values(torch.ones(60, dtype=torch.int64)), TypeError, "val must be a floating-point tensor"),
    (lambda: small(heads=2).to_torch(), ValueError, "one value per entry, not one per head"),
    (lambda: small().to_torch(torch.sparse_bsr), ValueError, "layout must be csr, csc, coo or torch's layout"),
    (lambda: fusedmm.as_csr("graph"), TypeError, "cannot make a CSR of str"),
    (lambda: fusedmm.as_csr(None), TypeError, "cannot make a CSR of NoneType"),
    (lambda: fusedmm.as_csr(torch.ones(3, 3)), TypeError, r"a dense tensor \[3, 3\] of torch.float32 is no graph"),
    (lambda: fusedmm.as_csr(vector(0, 1)), ValueError, r"an edge_index must be \[2, nnz\], not \[2\]"),
    (lambda: fusedmm.as_csr(torch.ones(5, 2, dtype=torch.long)), ValueError, r"not \[5, 2\]; transpose it"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(-7)), ValueError, r"idx\[0\] = -7"),
    (lambda: fusedmm.CSR.from_csr(vector(0, 1), vector(2**40)), ValueError, r"idx\[0\] = 1099511627776"),
    (
        lambda: fusedmm.as_csr(torch.eye(2).long()).with_values(torch.ones(2).to(torch.float8_e4m3fn)),
        TypeError,
        "float8_e4m3fn",
    ),
    (lambda: fusedmm.as_csr(torch.eye(4).to_sparse_bsr((2, 2))), TypeError, "layout torch.sparse_bsr"),
    (lambda: fusedmm.as_csr(torch.eye(3).cfloat().to_sparse_csr()), TypeError, "values must be floating-point, int"),
    (
        lambda: fusedmm.CSR.from_dense(torch.eye(3).cfloat()),
        TypeError,
        "dense must be of float32, .* not torch.complex",
    ),
    (lambda: fusedmm.algorithms("spgemv"), ValueError, "op must be one of spmm, sddmm"),
    (lambda: fusedmm.algorithms("spmm", "tpu"), ValueError, "device must be one of cpu, cuda, not 'tpu'"),
]


@pytest.mark.parametrize("call, kind, text", CONSTRUCTORS, ids=[c[2][:40] for c in CONSTRUCTORS])
def test_constructors_refuse(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


# ---- operands ----

GOOD = {"x": (15, 5), "a": (12, 5), "b": (15, 5)}

# what replaces a good operand, exception, text
OPERANDS = [
    (lambda t: t.tolist(), TypeError, "{name} must be a tensor, not list"),
    (lambda t: None, TypeError, "{name} must be a tensor, not NoneType"),
    (lambda t: t.long(), TypeError, "{name} must be float32, float64, float16 or bfloat16, not torch.int64"),
    (lambda t: t > 0, TypeError, "{name} must be float32, float64, float16 or bfloat16, not torch.bool"),
    (lambda t: t.cfloat(), TypeError, "{name} must be float32, float64, float16 or bfloat16, not torch.complex64"),
    (lambda t: t.to(torch.float8_e4m3fn), TypeError, "{name} must be float32, .* not torch.float8_e4m3fn"),
    (lambda t: t.to_sparse(), TypeError, "{name} must be one dense tensor, not torch.sparse_coo"),
    (lambda t: t.to_sparse_csr(), TypeError, "{name} must be one dense tensor, not torch.sparse_csr"),
    (lambda t: t[0, 0], ValueError, r"{name} must be \[\w+, F\] or \[\w+, heads, F\], not \[\]"),
    (lambda t: t[None, None], ValueError, r"{name} must be .*, not \[1, 1, {rows}, 5\]"),
    (lambda t: t[:-1], ValueError, "{name} has {fewer} rows, the matrix {rows} "),
    (lambda t: t[:0], ValueError, "{name} has 0 rows, the matrix {rows} "),
    (lambda t: torch.cat([t, t]), ValueError, "{name} has {twice} rows, the matrix {rows} "),
    (lambda t: t.to("meta"), TypeError, "{name} is on meta, the matrix on"),
]


def call(op, adj, device, replaced=None, by=None, **options):
    """op on good operands, of which one is replaced."""
    names = ["x"] if op == "spmm" else ["a", "b"]
    operands = {name: torch.randn(GOOD[name], device=device) for name in names}
    if replaced is not None:
        operands[replaced] = by(operands[replaced])
    return getattr(fusedmm, op)(adj, *operands.values(), **options)


@pytest.mark.parametrize("name", ["a", "b"])
def test_vectors(name, device):
    """Several of them make a dense operand; one alone has a product, but no entries."""
    with pytest.raises(ValueError, match=rf"{name} must be \[\w+, F\] or \[\w+, heads, F\], not \[1\d\]"):
        call("sddmm", small(device=device), device, name, lambda t: t[:, 0])
    works(device)


@pytest.mark.parametrize("op, name", [("spmm", "x"), ("sddmm", "a"), ("sddmm", "b")])
@pytest.mark.parametrize("by, kind, text", OPERANDS, ids=[f"{k}-{o[2][:45]}" for k, o in enumerate(OPERANDS)])
def test_operands(op, name, by, kind, text, device):
    rows = GOOD[name][0]
    expected = text.format(name=name, rows=rows, fewer=rows - 1, twice=2 * rows)
    with pytest.raises(kind, match=f"^{op}: {expected}"):
        call(op, small(device=device), device, name, by)
    works(device)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_options_and_matrices(op, device):
    adj = small(device=device)
    with pytest.raises(ValueError, match=rf"{op} has no algorithm 'magic' on {device}; there are auto, reference, "):
        call(op, adj, device, algorithm="magic")
    with pytest.raises(TypeError, match=rf"{op}: algorithm must be a name, not \['reference'\]"):
        call(op, adj, device, algorithm=["reference"])
    with pytest.raises(TypeError, match="cannot make a CSR of dict"):
        call(op, {}, device)
    with pytest.raises(TypeError, match="cannot make a CSR of NoneType"):
        call(op, None, device)
    with pytest.raises(ValueError, match=rf"{op}: values \[60, 2\] have heads, so operands must be"):
        call(op, small(device=device, heads=2), device)
    works(device)


def test_reductions_by_name(device):
    adj = small(device=device)
    for wrong in ("prod", "SUM", None, 0):
        with pytest.raises(ValueError, match="spmm: reduce must be one of sum, mean, max, min, not"):
            call("spmm", adj, device, reduce=wrong)
    with pytest.raises(ValueError, match=r"sddmm: op must be one of dot, add, sub, mul, not \['add'\]"):
        fusedmm.sddmm(adj, torch.ones(12, 5, device=device), torch.ones(15, 5, device=device), op=["add"])
    with pytest.raises(ValueError, match=r"op must be one of spmm, .*, not \['spmm'\]"):
        fusedmm.algorithms(["spmm"])
    works(device)


def test_heads_that_do_not_fit(device):
    adj = small(device=device, heads=2)
    with pytest.raises(ValueError, match="spmm: values have 2 heads, the operands 3"):
        fusedmm.spmm(adj, torch.ones(15, 3, 4, device=device))
    with pytest.raises(ValueError, match="sddmm: values have 2 heads, the operands 3"):
        fusedmm.sddmm(adj, torch.ones(12, 3, 4, device=device), torch.ones(15, 3, 4, device=device))
    plain = adj.pattern()
    with pytest.raises(ValueError, match=r"sddmm: a is \[12, 2, 4\] and b \[15, 3, 4\]; heads and features must"):
        fusedmm.sddmm(plain, torch.ones(12, 2, 4, device=device), torch.ones(15, 3, 4, device=device))
    with pytest.raises(ValueError, match=r"sddmm: a is \[12, 4\] and b \[15, 5\]"):
        fusedmm.sddmm(plain, torch.ones(12, 4, device=device), torch.ones(15, 5, device=device))
    with pytest.raises(TypeError, match=r"sddmm: a is torch.float32 and b torch.float64; they must be of one dtype"):
        fusedmm.sddmm(plain, torch.ones(12, 4, device=device), torch.ones(15, 4, device=device).double())
    works(device)


def test_tensors_on_two_devices(cuda):
    host, there = small(), small(device=cuda)
    with pytest.raises(TypeError, match="x is on cpu, the matrix on cuda"):
        call("spmm", there, "cpu")
    with pytest.raises(TypeError, match="x is on cuda:0, the matrix on cpu"):
        call("spmm", host, cuda)
    with pytest.raises(TypeError, match="val is on cpu, the matrix on cuda"):
        there.with_values(torch.ones(60))
    with pytest.raises(TypeError, match="ptr on cpu, idx on cuda"):
        fusedmm.CSR.from_csr(vector(0, 1), vector(0).to(cuda))
    works(cuda)


def test_results_beyond_any_memory_are_refused_as_such(device):
    """Their sizes would wrap; and what merely does not fit is out of memory."""
    one = fusedmm.CSR.from_coo(torch.arange(2, device=device), torch.zeros(2, dtype=torch.int64, device=device))
    x = torch.ones(1, 1, 1, device=device)
    for heads in (2**61, 2**62):
        with pytest.raises(ValueError, match="more bytes than int64 counts"):
            fusedmm.spmm(one, x.expand(1, heads, 1))
        with pytest.raises(ValueError, match="more bytes than int64 counts"):
            fusedmm.spmm(one, x.expand(1, 2, heads // 2))  # copied first
    with pytest.raises(torch.OutOfMemoryError if device == "cuda" else MemoryError, match="2251799813685248 elements"):
        fusedmm.spmm(one, x.expand(1, 2**50, 1))
    works(device)


@pytest.mark.parametrize("graph", ["CSR", "edge_index"])
@pytest.mark.parametrize("call", ["spmm", "sddmm", "fused", "attention", "additive", "edge_softmax"])
def test_nested_tensors_are_refused_by_name(call, graph):
    """CPU only: what torch itself says of them is to file an issue."""
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    adj = fusedmm.CSR.from_edge_index(edges, size=3) if graph == "CSR" else edges
    x = torch.nested.nested_tensor([torch.ones(1, 4), torch.ones(2, 4)])
    f = {
        "spmm": lambda: fusedmm.spmm(adj, x),
        "sddmm": lambda: fusedmm.sddmm(adj, x, x),
        "fused": lambda: fusedmm.fused(adj, x),
        "attention": lambda: fusedmm.attention(adj, x, x, x),
        "additive": lambda: fusedmm.attention(adj, x, x, torch.ones(3, 1, 4), score="additive"),
        "edge_softmax": lambda: fusedmm.edge_softmax(adj, x),
    }[call]
    with pytest.raises(TypeError, match="must be one dense tensor, not a nested one"):
        f()
