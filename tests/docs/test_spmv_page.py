"""The Python of docs/spmv.md, one block after the other, and its results beside other libraries'.

Once it runs as it stands, and once with a citation graph from a file in place of the graph of digits.
"""

import re

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.csgraph
import scipy.sparse.linalg
import torch
from support.machine import ROOT, real_graph

DIGITS = "fusedmm.data.digits()"


@pytest.fixture(scope="module", params=["digits", "cora"])
def names(request):
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "spmv.md").read_text(), re.M | re.S):
        if request.param != "digits":
            block = block.replace(f"{DIGITS}.adj", f'fusedmm.data.load_npz("{real_graph(request.param)}").adj')
            if DIGITS in block:  # whose labels it needs
                continue
        exec(compile(block, "docs/spmv.md", "exec"), found)
    return found


@pytest.fixture(scope="module")
def graph(names):
    row, col, _ = names["graph"].coo()
    n = names["n"]
    return sp.csr_array((np.ones(row.numel()), (row.numpy(), col.numpy())), shape=(n, n))


def test_pagerank(names, graph):
    """The solution of its equation, in float64."""
    n = names["n"]
    spread = sp.csr_array(graph / graph.sum(0))
    exact = sp.linalg.spsolve((sp.eye_array(n) - 0.85 * spread).tocsc(), np.full(n, 0.15 / n))
    np.testing.assert_allclose(names["rank"].numpy(), exact, rtol=1e-2, atol=1e-7)


def test_power_iteration(names, graph):
    largest = scipy.sparse.linalg.eigsh(graph, 1, return_eigenvectors=False)[0]
    assert abs(names["largest"] - largest) < 1e-3 * largest


def test_conjugate_gradients(names):
    row, col, val = names["laplacian"].coo()
    matrix = sp.csr_array((val.numpy(), (row.numpy(), col.numpy())))
    np.testing.assert_allclose(names["u"].numpy(), sp.linalg.spsolve(matrix.tocsc(), names["b"].numpy()), rtol=1e-6)


def test_scipys_solver_takes_our_product(names, graph):
    laplacian = sp.diags_array(graph.sum(1) + 0.01) - graph
    exact = sp.linalg.spsolve(laplacian.tocsc(), names["right"].numpy())
    np.testing.assert_allclose(names["potential"], exact, rtol=1e-4)


def test_closeness(names, graph):
    distance = scipy.sparse.csgraph.shortest_path(graph, unweighted=True, indices=names["sources"].numpy())
    reached = np.isfinite(distance)
    exact = (reached.sum(1) - 1) / np.maximum(np.where(reached, distance, 0).sum(1), 1)
    np.testing.assert_allclose(names["closeness"].numpy(), exact, rtol=1e-6)
