"""docs/matrix.md says what stands for a function of torch_scatter and of PyG's utils: here the numbers are compared.

PyG's functions are called as they are. torch_scatter is not among the tests' packages, so plain torch stands for it.
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
    return torch.zeros(shape).index_put((edges[1], edges[0]), weight, accumulate=True)


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
    "(S @ e.exp()).log()": "by_rows(e, row, lambda v: v.logsumexp(0))",
    "edge_softmax(P, e).log()": "softmax(e, row).log()",
    '(spmm(S, e * e, reduce="mean") - spmm(S, e, reduce="mean") ** 2).clamp(min=0).sqrt()': "by_rows(e, row, std)",
}
# In PyG's terms: edges, with sources in row 0. Where a row of the table names several of PyG's functions, all are here.
PYG = {
    "S @ e": 'U.scatter(e, row, 0, 6, "sum")',
    'spmm(S, e, reduce="mean")': 'U.segment(e, S.ptr, "mean")',
    'spmm(S, e, reduce="max")': 'U.scatter(e, row, 0, 6, "max")',
    "(S @ e.exp()).log().nan_to_num(neginf=0.0)": "U.segment_logsumexp(e, S.ptr, 0)",
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
TABLES = {"torch_scatter": SCATTER, "torch_geometric.utils": PYG}
NEEDS = {"to_dgl": "dgl", "from_dgl": "dgl", "get_ppr": "numba"}  # which the tests have not
ROWS = [(name, theirs, ours) for name in TABLES for theirs, ours, _ in rows(SECTIONS[name]) if calls(ours)]


def plain(value):
    """Matrices of any kind as dense tensors of float64, and what consists of such."""
    if isinstance(value, CSR) or (isinstance(value, torch.Tensor) and value.layout != torch.strided):
        value = value.to_dense()
    if isinstance(value, tuple) and len(value) == 2 and value[0].dtype == torch.int64:  # an edge_index and weights
        value = dense(*value)
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if hasattr(value, "toarray"):
        value = torch.from_numpy(value.toarray())
    return value if isinstance(value, bool) else value.double()


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request):
    """The page's names, with another graph, and what the right sides above are made of."""
    assert INDEX in TEXT
    names = page(TEXT.replace(INDEX, GRAPHS[request.param]))
    helpers = (scattered, softmax, by_rows, std, dense, walks, without_isolated, edges_of, among)
    more = {"edges": torch.stack([names["col"], names["row"]]), "batch": torch.arange(12) // 6}
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
            else:
                torch.testing.assert_close(plain(found), plain(exact), rtol=1e-5, atol=1e-6)
    if section == "torch_geometric.utils":
        missing = [name for name in calls(theirs) if f"U.{name}(" not in used and name not in NEEDS]
        assert missing == [], f"nothing was compared with {missing}"


def test_nothing_is_listed_here_that_the_page_has_not():
    for section, table in TABLES.items():
        listed = {call for name, _, ours in ROWS if name == section for call in calls(ours)}
        assert set(table) == listed
