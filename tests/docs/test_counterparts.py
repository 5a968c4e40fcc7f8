"""docs/matrix.md says what stands for the functions of other libraries: here the numbers are compared.

PyG's functions are called as they are. The other libraries are not among the tests' packages, so plain torch stands for
them: D and F are A and B as dense matrices, made without a CSR.
"""

import pytest
import torch
from test_matrix_page import SECTIONS, TEXT, calls, page, rows

from fusedmm import CSR

INDEX = "row, col = torch.tensor([[0, 1, 2, 2, 3, 4, 5, 5], [1, 0, 2, 3, 2, 4, 0, 5]])"
GRAPHS = {  # the page's own, and one whose edges repeat, with nodes that have none
    "of the page": INDEX,
    "repeated edges": "row, col = torch.tensor([[0, 0, 1, 1, 3, 3, 3, 5], [1, 1, 0, 2, 3, 0, 5, 5]])",
}


def scattered(values, index, reduce):
    """torch's own reduction by index to six places."""
    out = values.new_zeros(6, *values.shape[1:])
    index = index.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return out.scatter_reduce(0, index, values, reduce, include_self=False)


def softmax(values, index):
    out = torch.zeros_like(values)
    for i in index.unique():
        out[index == i] = values[index == i].softmax(0)
    return out


def by_rows(values, index, call):
    """``call`` of the values of each of six places."""
    return torch.stack([call(values[index == i]) for i in range(6)])


def std(values):
    return values.std(0, unbiased=False) if len(values) else values.sum(0)


def dense(edges, weight=None, shape=(6, 6)):
    """The matrix of an edge_index with weights: row 1 of it are the rows."""
    weight = torch.ones(edges.shape[1]) if weight is None else weight
    return weight.new_zeros(shape).index_put((edges[1], edges[0]), weight, accumulate=True)


def walks(edges, alpha):
    """For each source, where a walk along its edges is when it ends, which it does with probability alpha a step."""
    step = dense(edges).double()
    step /= step.sum(0).clamp(min=1)
    here, ended = torch.eye(6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
    for _ in range(200):
        ended += alpha * here
        here = (1 - alpha) * step @ here
    return ended


def without_isolated(edges, weight, mask):
    return dense(edges, weight, (int(mask.sum()), int(mask.sum())))


def edges_of(sparse):
    edges, weight = sparse
    return dense(edges, weight)


def among(w, *others):
    """What the random choices of both have in common: each number is one of w, or 0."""
    allowed = torch.cat([w, w.new_zeros(1)])
    assert all(bool(torch.isin(other, allowed).all()) for other in others)
    return lambda found: bool(torch.isin(found.val, allowed).all())


def begins(index):
    """Where each of six groups begins, and where the last ends."""
    return torch.tensor([int((index < i).sum()) for i in range(7)])


def order(row, col):
    return torch.tensor(sorted(range(len(row)), key=lambda p: (int(row[p]), int(col[p]))))


SUMS = {
    "S @ e": 'scattered(e, row, "sum")',
    'spmm(S, e, reduce="mean")': 'scattered(e, row, "mean")',
    'spmm(S, e, reduce="min")': 'scattered(e, row, "amin")',
    'spmm(S, e, reduce="max")': 'scattered(e, row, "amax")',
}
# For each call of ours in these sections, what gives the same numbers.
SCATTER = SUMS | {
    "spmm(S, e)": 'scattered(e, row, "sum")',
    "CSR.from_csr(S.ptr, torch.arange(8), shape=(6, 8)) @ e": 'scattered(e, row, "sum")',
    "S.t() @ x": "x[row]",
    "messages.copy_v(P, x)": "x[row]",
    "edge_softmax(P, w)": "softmax(w, row)",
    "edge_softmax(P, e)": "softmax(e, row)",
    "((S @ low.exp()).log() + top).nan_to_num(neginf=0.0)": (
        "by_rows(e, row, lambda v: v.logsumexp(0).nan_to_num(neginf=0.0))"
    ),
    "low - (S @ low.exp()).log()[row]": "softmax(e, row).log()",
    '(spmm(S, e * e, reduce="mean") - spmm(S, e, reduce="mean") ** 2).clamp(min=0).sqrt()': "by_rows(e, row, std)",
}
# In PyG's terms: edges, with sources in row 0. Where a row of the table names several of PyG's functions, all are here.
PYG = {
    "S @ e": 'U.scatter(e, row, 0, 6, "sum")',
    'spmm(S, e, reduce="mean")': 'U.segment(e, S.ptr, "mean")',
    'spmm(S, e, reduce="max")': 'U.scatter(e, row, 0, 6, "max")',
    "((S @ low.exp()).log() + top).nan_to_num(neginf=0.0)": "U.segment_logsumexp(e, S.ptr, 0)",
    'spmm(A, x, reduce="max")': "U.spmm(torch.sparse_csr_tensor(S.ptr, col, w, (6, 6)), x, 'max')",
    "edge_softmax(P, w)": "U.softmax(w, row, num_nodes=6)",
    "A.softmax()": "dense(edges, U.softmax(w, row, num_nodes=6))",
    "A.degree()": "U.degree(row, 6, torch.int64)",
    "A.sum(1)": 'U.scatter(w, row, 0, 6, "sum")',
    "A.t().degree()": "U.degree(col, 6, torch.int64)",
    "A.coalesce()": ("dense(*U.coalesce(edges, w, 6))", "dense(*U.sort_edge_index(edges, w, 6))"),
    'A.coalesce("max")': 'dense(*U.coalesce(edges, w, 6, "max"))',
    "A.coalesce().equal(A.t().coalesce())": "U.is_undirected(edges, w, 6)",
    "A + A.t()": "dense(*U.to_undirected(edges, w, 6))",
    'CSR.from_coo(torch.cat([row, col]), torch.cat([col, row]), torch.cat([w, w]), (6, 6)).coalesce("mean")': (
        'dense(*U.to_undirected(edges, w, 6, "mean"))'
    ),
    "A.remove_self_loops().nnz < A.nnz": "U.contains_self_loops(edges)",
    "A.remove_self_loops()": ("dense(*U.segregate_self_loops(edges, w)[:2])", "dense(*U.remove_self_loops(edges, w))"),
    "A.diag()": "U.get_self_loop_attr(edges, w, 6)",
    "A + CSR.eye(6)": "dense(*U.add_self_loops(edges, w, num_nodes=6))",
    "A.add_self_loops()": "dense(*U.add_remaining_self_loops(edges, w, num_nodes=6))",
    "not bool((N.degree() + N.t().degree()).all())": "U.contains_isolated_nodes(edges, 6)",
    "A.subgraph(N.degree() + N.t().degree() > 0)": "without_isolated(*U.remove_isolated_nodes(edges, w, 6))",
    "A.subgraph(mask)": "dense(*U.subgraph(mask, edges, w, relabel_nodes=True, num_nodes=6), (3, 3))",
    "A[mask, ~mask]": "dense(*U.bipartite_subgraph((~mask, mask), edges, w, relabel_nodes=True), (3, 3))",
    "A[mask]": "U.mask_select(A.to_dense(), 0, mask)",
    "A[ids]": "U.select(A.to_dense(), ids, 0)",
    "A[1:4]": "U.narrow(A.to_dense(), 0, 1, 3)",
    "(P + CSR.eye(6)).scale(rows=d, cols=d)": "dense(*U.normalize_edge_index(edges, 6))",
    "CSR.eye(6).set_self_loops(A.sum(0)) - A": "dense(*U.get_laplacian(edges, w, num_nodes=6))",
    "A.to_dense()": "U.to_dense_adj(edges, edge_attr=w, max_num_nodes=6)[0].t()",
    "CSR.from_dense(A.to_dense())": "dense(*U.dense_to_sparse(A.to_dense().t()))",
    'A.to_torch("coo")': (
        "U.to_torch_coo_tensor(edges.flip(0), w, 6)",
        "U.to_torch_sparse_tensor(edges.flip(0), w, 6, layout=torch.sparse_coo)",
    ),
    "A.to_torch()": "U.to_torch_csr_tensor(edges.flip(0), w, 6)",
    'A.to_torch("csc")': "U.to_torch_csc_tensor(edges.flip(0), w, 6)",
    "A.to_edge_index()": "edges_of(U.to_edge_index(torch.sparse_coo_tensor(edges, w, (6, 6)).coalesce()))",
    "isinstance(A, CSR)": ("U.is_torch_sparse_tensor(A.to_torch())", "U.is_sparse(A.to_torch())"),
    "unbatch(C, [6, 6])": (
        "[dense(part, v) for part, v in zip(U.unbatch_edge_index(C.to_edge_index()[0], batch), C.val.split(8))]",
        "[U.unbatch(C.to_dense(), batch)[0][:, :6], U.unbatch(C.to_dense(), batch)[1][:, 6:]]",
    ),
    "A.to_scipy()": "U.to_scipy_sparse_matrix(edges.flip(0), w, 6)",
    "CSR.from_scipy(A.to_scipy())": "dense(*U.from_scipy_sparse_matrix(A.to_scipy().T.tocoo()))",
    "CSR.from_coo(row, col, w, (6, 6))": "dense(edges, w)",
    "A.with_values(w * (torch.rand(8) < 0.5))": (
        "among(w, U.dropout_adj(edges, w)[1])",
        "among(w, w * U.dropout_edge(edges)[1])",
    ),
    "0.2 * torch.linalg.inv(torch.eye(6) - 0.8 * P.scale(cols=1 / P.t().degree()).to_dense())": "walks(edges, 0.2)",
    "A.scale(rows=1 / A.degree()) + A.scale(cols=1 / A.degree())": "dense(edges, U.normalized_cut(edges, w, 6))",
}
# Of torch_sparse, dgl.ops and dgl.sparse.
MATRIX = {
    "CSR.from_coo(row, col, w, (6, 6))": "D",
    "CSR.from_edge_index(torch.stack([col, row]), w, 6)": "D",
    "CSR.from_dense(A.to_dense())": "D",
    "CSR.from_torch(A.to_torch())": "D",
    'CSR.from_torch(A.to_torch("coo"))': "D",
    "CSR.from_scipy(A.to_scipy())": "D",
    "CSR.from_csr(A.ptr, A.idx, shape=(6, 6))": "dense(edges)",
    "CSR.from_csr(A.t().ptr, A.t().idx, shape=(6, 6)).t()": "dense(edges)",
    "CSR.from_coo(row[keep], col[keep], w[keep], (6, 6))": "dense(edges[:, keep], w[keep])",
    "CSR.from_coo(row, col, w, (9, 9))": "dense(edges, w, (9, 9))",
    "A.to_dense()": "D",
    "A.to_torch()": "D",
    'A.to_torch("coo")': "D",
    'A.to_torch("csc")': "D",
    "A.to_scipy()": "D",
    "A.t()": "D.t()",
    "A.T": "D.t()",
    "A[1:4]": "D[1:4]",
    "A[[2]]": "D[[2]]",
    "A[:, 1:4]": "D[:, 1:4]",
    "A[ids]": "D[ids]",
    "A[:, ids]": "D[:, ids]",
    "A[mask]": "D[mask]",
    "A[A.degree() > 0]": "D[D.sum(1) > 0]",
    "A[:, A.t().degree() > 0]": "D[:, D.sum(0) > 0]",
    "unbatch(C, [6, 6])": "[D, F]",
    "A.subgraph(torch.arange(5, -1, -1))": "D.flip(0).flip(1)",
    "A.remove_self_loops()": "D - D.diag().diag()",
    "A.set_self_loops(v)": "D - D.diag().diag() + v.diag()",
    "A.set_self_loops(2.0)": "D - D.diag().diag() + 2 * torch.eye(6)",
    "A.diag()": "D.diag()",
    "A + B": "D + F",
    "A - B": "D - F",
    "A * B": "D * F",
    "A + A.t()": "D + D.t()",
    "A * 2.0": "D * 2",
    "A / 2.0": "D / 2",
    "-A": "-D",
    "A.scale(rows=v)": "v[:, None] * D",
    "A.scale(cols=v)": "D * v",
    "A.scale(cols=1 / v)": "D / v",
    "A.with_values(w)": "D",
    "A.with_values(A.val.detach())": "D",
    "A.with_values(torch.full((8,), 2.0))": "2 * dense(edges)",
    "A.with_values(A.val + v[row])": "dense(edges, w + v[row])",
    "A.with_values(A.val + w)": "2 * D",
    "A.with_values(A.val * w)": "dense(edges, w * w)",
    "A.with_values(A.val / w)": "dense(edges)",
    "A.with_values(A.val**2)": "dense(edges, w * w)",
    "A.with_values(sddmm(A, x, x))": "dense(edges, w * (x[row] * x[col]).sum(1))",
    "A.sum(1)": "D.sum(1)",
    "A.mean(1)": 'scattered(w, row, "mean")',
    "A.max(0)": 'scattered(w, col, "amax")',
    "A.min(0)": 'scattered(w, col, "amin")',
    "A.max()": "w.max()",
    "A.min()": "w.min()",
    "A.softmax()": "dense(edges, softmax(w, row))",
    "A.softmax(0)": "dense(edges, softmax(w, col))",
    "A @ x": "D @ x",
    "x.T @ A": "x.T @ D",
    'spmm(A, x, reduce="mean")': 'scattered(w[:, None] * x[col], row, "mean")',
    "E @ torch.stack([x, x], 1)": "torch.stack([dense(edges, E.val[:, h]) @ x for h in (0, 1)], 1)",
    "A @ B": "D @ F",
    "vstack([A, B])": "torch.cat([D, F])",
    "hstack([A, B])": "torch.cat([D, F], 1)",
    "block_diag([A, B])": "torch.block_diag(D, F)",
    "A.coalesce()": "D",
    'A.coalesce("mean")': "D / dense(edges).clamp(min=1)",
    "A.coalesce().nnz < A.nnz": "bool((dense(edges) > 1).any())",
    "A.remove_self_loops().nnz == 0": "bool((row == col).all())",
    "CSR.eye(6)": "torch.eye(6)",
    "CSR.eye(6).with_values(v)": "v.diag()",
    "copy.copy(A)": "D",
    "copy.deepcopy(A)": "D",
    "A.cache_transpose()": "D",
    'A.to("cpu")': "D",
    "A.cpu()": "D",
    "A.float()": "D",
    "A.double()": "D",
    "A.to(dtype=torch.float64)": "D",
    "A.half()": "dense(edges, w.half())",
    "A.bfloat16()": "dense(edges, w.bfloat16())",
    "A.coo()": "[row, col, w]",
    "A.val": "w",
    "A.ptr": "begins(row)",
    "A.t().ptr": "begins(col)",
    "A.idx": "col[order(row, col)]",
    "A.eid": "order(row, col) if bool((order(row, col) != torch.arange(8)).any()) else torch.arange(0)",
    "A.val is not None": "True",
    "A.val.requires_grad": "False",
    "A.shape": "[6, 6]",
    "A.size(0)": "6",
    "A.size(0) == A.size(1)": "True",
    "A.nnz": "8",
    "A.numel()": "8",
    "A.nnz / 36": "8 / 36",
    "A.nnz / A.size(0)": "8 / 6",
    "A.equal(A.coalesce())": "not bool((dense(edges) > 1).any())",
    "A.coalesce().equal(A.t().coalesce())": "torch.equal(D, D.t())",
    "A.equal(B)": "torch.equal(D, F)",
    "(row - col).abs().max()": "torch.tensor(max(abs(i - j) for i, j in zip(row.tolist(), col.tolist())))",
    "A.device": "w.device",
    "A.dtype": "w.dtype",
    'A.device.type == "cuda"': "w.is_cuda",
    'fusedmm.gspmm(P, "add", "max", x, w)': 'scattered(x[col] + w[:, None], row, "amax")',
    "messages.u_add_e_max(P, x, w)": 'scattered(x[col] + w[:, None], row, "amax")',
    "messages.u_mul_e_sum(P, x, w)": "D @ x",
    "messages.copy_u_mean(P, x)": 'scattered(x[col], row, "mean")',
    "messages.copy_e_max(P, e)": 'scattered(e, row, "amax")',
    'messages.segment(P, e, "max")': 'scattered(e, row, "amax")',
    'fusedmm.gsddmm(P, "dot", x, x, "u", "v")': "(x[col] * x[row]).sum(1, keepdim=True)",
    "messages.u_dot_v(P, x, x)": "(x[col] * x[row]).sum(1, keepdim=True)",
    "messages.e_div_v(P, w, v)": "w / v[row]",
    "messages.copy_u(P, x)": "x[col]",
    "messages.copy_v(P, x)": "x[row]",
    "edge_softmax(P, w)": "softmax(w, row)",
    "messages.scatter_softmax(P, e)": "softmax(e, row)",
}
OF_MATRICES = ("torch_sparse", "SparseTensor", "dgl.ops", "dgl.sparse")
TABLES = {**dict.fromkeys(OF_MATRICES, MATRIX), "torch_scatter": SCATTER, "torch_geometric.utils": PYG}
NEEDS = {"to_dgl": "dgl", "from_dgl": "dgl", "get_ppr": "numba"}  # which the tests have not
ROWS = [(name, theirs, ours) for name in TABLES for theirs, ours, _ in rows(SECTIONS[name]) if calls(ours)]


def plain(value):
    """Matrices of any kind as dense tensors of float64, and what consists of such."""
    if isinstance(value, CSR) or (isinstance(value, torch.Tensor) and value.layout != torch.strided):
        value = value.to_dense()
    if isinstance(value, tuple) and isinstance(value[0], torch.Tensor) and value[0].dim() == 2:
        value = dense(*value)  # an edge_index and weights
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if hasattr(value, "toarray"):
        value = torch.from_numpy(value.toarray())
    return value.double() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request):
    """The page's names, with another graph, and what the right sides above are made of."""
    assert INDEX in TEXT
    names = page(TEXT.replace(INDEX, GRAPHS[request.param]))
    helpers = (scattered, softmax, by_rows, std, dense, walks, without_isolated, edges_of, among, begins, order)
    edges, w = torch.stack([names["col"], names["row"]]), names["w"]
    more = {"edges": edges, "batch": torch.arange(12) // 6, "D": dense(edges, w), "F": dense(edges.flip(0), w)}
    return names | more | {function.__name__: function for function in helpers}


@pytest.mark.filterwarnings("ignore")  # PyG's, of what is deprecated there, and torch's, of its sparse layouts
@pytest.mark.parametrize("section, theirs, ours", ROWS, ids=[f"{name} {theirs[:30]}" for name, theirs, _ in ROWS])
def test_a_counterpart_gives_their_numbers(section, theirs, ours, graph):
    if section == "torch_geometric.utils":
        graph = graph | {"U": pytest.importorskip("torch_geometric.utils")}
    used = ""
    for call in calls(ours):
        expected = TABLES[section][call]
        for right in (expected,) if isinstance(expected, str) else expected:
            used += right
            found, exact = eval(call, dict(graph)), eval(right, dict(graph))
            if callable(exact):
                assert exact(found)
            elif isinstance(exact, (torch.device, torch.dtype)):
                assert found == exact
            else:
                torch.testing.assert_close(plain(found), plain(exact), rtol=1e-5, atol=1e-6)
    if section == "torch_geometric.utils":
        missing = [name for name in calls(theirs) if f"U.{name}(" not in used and name not in NEEDS]
        assert missing == [], f"nothing was compared with {missing}"


def test_nothing_is_listed_here_that_the_page_has_not():
    for table in (MATRIX, SCATTER, PYG):
        sections = [name for name in TABLES if TABLES[name] is table]
        assert set(table) == {call for name, _, ours in ROWS if name in sections for call in calls(ours)}
