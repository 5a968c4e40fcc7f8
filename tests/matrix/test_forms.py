"""A matrix in the forms of torch, scipy, PyG, DGL, of named tensors and of files, and back."""

import io
import sys
import types
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matrices import dense, matrices

import fusedmm
from fusedmm import CSR

quick = settings(max_examples=40, deadline=None)
LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]


@quick
@given(matrices(heads=(None,)), st.sampled_from(LAYOUTS))
def test_torch(adj, layout):
    sparse = adj.to_torch(layout)
    assert sparse.layout == layout and torch.equal(sparse.to_dense().double(), dense(adj))
    named = adj.to_torch(str(layout).removeprefix("torch.sparse_"))
    assert named.layout == layout and torch.equal(named.to_dense(), sparse.to_dense())
    assert torch.equal(CSR.from_torch(sparse).to_dense(), sparse.to_dense())
    if layout == torch.sparse_coo and adj.val is not None:
        assert sparse.is_coalesced() or torch.equal(sparse._values(), adj.val)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_warns_of_nothing(layout):
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            CSR.eye(3, dtype=torch.float32).to_torch(layout)
    finally:
        torch.set_warn_always(False)


@quick
@given(matrices(heads=(None,)), st.sampled_from(["csr", "csc", "coo"]))
def test_scipy(adj, layout):
    sparse = pytest.importorskip("scipy.sparse")
    found = adj.to_scipy(layout)
    assert sparse.issparse(found) and found.format == layout and found.nnz == adj.nnz
    assert adj.to_scipy(getattr(torch, f"sparse_{layout}")).format == layout
    assert torch.equal(torch.from_numpy(found.toarray()).double(), dense(adj))
    assert torch.equal(CSR.from_scipy(found).to_dense().double(), dense(adj))
    if layout == "csr":
        assert CSR.from_scipy(found).equal(adj if adj.val is not None else adj.with_values(torch.ones(adj.nnz)))


@quick
@given(st.data(), st.sampled_from(["add", "sub", "mul", "matmul", "getitem"]))
def test_the_algebra_is_scipys(data, op):
    pytest.importorskip("scipy.sparse")
    a = data.draw(matrices(heads=(None,)))
    b = data.draw(
        matrices(*(a.shape if op != "matmul" else (a.shape[1], 4)), heads=(None,), values=(a.val is not None,))
    )
    left, right = (m.to_scipy().astype("float64") for m in (a, b))
    if op == "getitem":
        rows = data.draw(st.lists(st.integers(0, a.shape[0] - 1), max_size=5)) if a.shape[0] else []
        found, expected = a[rows], left[rows]
    else:
        found = {"add": a.__add__, "sub": a.__sub__, "mul": a.__mul__, "matmul": a.__matmul__}[op](b)
        expected = {
            "add": lambda: left + right,
            "sub": lambda: left - right,
            "mul": lambda: left.multiply(right),
            "matmul": lambda: left @ right,
        }[op]()
    assert torch.equal(found.to_dense().double(), torch.from_numpy(expected.toarray()).reshape(found.shape))


def test_scipy_has_no_sixteen_bits_and_no_gradients(device):
    pytest.importorskip("scipy.sparse")
    val = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    adj = CSR.from_coo(torch.tensor([1, 0], device=device), torch.tensor([0, 1], device=device), val, (2, 2))
    for matrix in (adj, adj.half(), adj.bfloat16()):
        assert matrix.to_scipy().dtype == "float32" and matrix.to_scipy().toarray().tolist() == [[0, 2], [1, 0]]
    adj.to_scipy("coo").data[:] = 9  # its own
    assert adj.val.tolist() == [1, 2]


@quick
@given(matrices())
def test_edge_index(adj):
    edge_index, val = adj.to_edge_index()
    back = CSR.from_edge_index(edge_index, val, adj.shape[::-1])
    assert val is adj.val and torch.equal(dense(back), dense(adj))
    assert all(torch.equal(s, t) for s, t in zip(back.coo()[:2], adj.coo()[:2], strict=True))


@quick
@given(matrices(square=True))
def test_pyg(adj):
    pytest.importorskip("torch_geometric")
    data = adj.to_pyg()
    assert data.num_nodes == adj.shape[0] and torch.equal(data.edge_index, adj.to_edge_index()[0])
    kind = None if adj.val is None else "edge_weight" if adj.val.dim() == 1 else "edge_attr"
    assert {name for name in ("edge_weight", "edge_attr") if name in data} == ({kind} if kind else set())
    assert kind is None or data[kind] is adj.val


def test_a_stand_in_for_dgl_gets_what_dgl_takes(monkeypatch):
    """CPU only. DGL itself is not at hand: the stand-in has the function that ``to_dgl`` calls."""
    seen = types.ModuleType("dgl.sparse")
    seen.from_coo = lambda *args: args
    monkeypatch.setitem(sys.modules, "dgl", types.ModuleType("dgl"))
    monkeypatch.setitem(sys.modules, "dgl.sparse", seen)
    adj = CSR.from_coo(torch.tensor([2, 0]), torch.tensor([1, 0]), torch.tensor([3.0, 4.0]), (3, 2))
    row, col, val, shape = adj.to_dgl()
    assert (row.tolist(), col.tolist(), val, shape) == ([2, 0], [1, 0], adj.val, (3, 2))
    assert adj.pattern().to_dgl()[2].tolist() == [1, 1]


@pytest.mark.parametrize("call, package", [("to_dgl", "dgl"), ("to_scipy", "scipy"), ("to_pyg", "torch_geometric")])
def test_a_package_that_is_absent_is_named(call, package, monkeypatch):
    """CPU only: nothing is computed."""
    for name in ("dgl", "dgl.sparse", "scipy.sparse", "torch_geometric.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"this needs {package}: pip install"):
        getattr(CSR.eye(2), call)()


def saved(adj, device):
    file = io.BytesIO()
    torch.save(adj, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def named(adj, device):
    file = io.BytesIO()
    torch.save(adj.tensors(), file)
    file.seek(0)
    return CSR.from_tensors(torch.load(file, weights_only=True))


def safetensors(adj, device):
    torch_part = pytest.importorskip("safetensors.torch")
    return CSR.from_tensors(torch_part.load(torch_part.save(adj.tensors()))).to(device)


@pytest.mark.parametrize("how", [saved, named, safetensors])
def test_files(how, device):
    val = torch.rand(3, 2, device=device)
    row, col = torch.tensor([2, 0, 0], device=device), torch.tensor([1, 1, 0], device=device)
    adj = CSR.from_coo(row, col, val, (3, 4))
    for matrix in (adj, adj.pattern(), adj[[0]], CSR.eye(0, device=device)):
        back = how(matrix, device)
        assert back.equal(matrix) and back.device == matrix.device
        assert all(s is t is None or torch.equal(s, t) for s, t in zip(back.coo(), matrix.coo(), strict=True))
    x = torch.rand(4, 3, device=device)
    flat = adj.with_values(val[:, 0])
    assert torch.equal(fusedmm.spmm(how(flat, device), x), fusedmm.spmm(flat, x))
