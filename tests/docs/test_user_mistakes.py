"""The commonest mistakes of the first day: the error says which argument is wrong, and the next call works."""

import networkx
import numpy as np
import pytest
import torch
from test_user_tasks import EDGES, NODES, close, dense_of
from torch_geometric.data import Data

import fusedmm
from fusedmm import CSR, nn


def matrix(device):
    return CSR.from_edge_index(EDGES, size=NODES).to(device)


def x(device, rows=NODES, dtype=torch.float32):
    return torch.ones(rows, 4, device=device, dtype=dtype)


def beyond():
    edges = EDGES.clone()
    edges[1, 3] = NODES
    return edges


ARRAY, COUNT = np.ones((NODES, 4), dtype=np.float32), EDGES.shape[1]
MISTAKES = {  # what is called, the error, and its text
    "features of other nodes": (lambda d: matrix(d) @ x(d, 5), ValueError, "spmm: x has 5 rows, the matrix 6 columns"),
    "a vector of other nodes": (lambda d: matrix(d) @ x(d, 5)[:, 0], ValueError, "x has 5 elements, the matrix 6"),
    "integer features": (lambda d: matrix(d) @ x(d).long(), TypeError, "x must be float32, float64, float16 or"),
    "a mask as features": (lambda d: matrix(d) @ (x(d) > 0), TypeError, "not torch.bool"),
    "arrays as features": (lambda d: matrix(d) @ ARRAY, TypeError, "spmm: x must be a tensor, not ndarray"),
    "an array times a matrix": (lambda d: np.eye(NODES) * matrix(d), TypeError, "a number or a CSR, not ndarray"),
    "an array multiplies a matrix": (lambda d: np.eye(NODES) @ matrix(d), TypeError, "'numpy.ndarray' and 'CSR'"),
    "edges in rows": (lambda d: CSR.from_edge_index(EDGES.T), ValueError, "[2, nnz], not [9, 2]; transpose it"),
    "edges in rows, converted": (lambda d: fusedmm.as_csr(EDGES.T), ValueError, "not [9, 2]; transpose it"),
    "edges in rows, of a layer": (lambda d: nn.GATConv(4, 2).to(d)(x(d), EDGES.T.to(d)), ValueError, "transpose it"),
    "edges of floats": (lambda d: CSR.from_edge_index(EDGES.float()), TypeError, "edge_index must hold integers"),
    "edges of lists": (
        lambda d: CSR.from_edge_index(EDGES.tolist()), TypeError,
        "edge_index must be a tensor, not list",
    ),
    "a node too many": (
        lambda d: CSR.from_edge_index(beyond(), size=NODES), ValueError,
        "[1, 3] = 6 is outside [0, 6)",
    ),
    "a node below zero": (lambda d: CSR.from_edge_index(EDGES - 1, size=NODES), ValueError, "= -1 is outside [0, 6)"),
    "a node too many for x": (
        lambda d: nn.GCNConv(4, 2).to(d)(x(d, 5), EDGES.to(d)), ValueError,
        "edge_index[0, 8] = 5 is",
    ),
    "too few weights": (lambda d: matrix(d).with_values(x(d)[:5, 0]), ValueError, "val has 5 values for 9 entries"),
    "too few edge weights": (
        lambda d: CSR.from_edge_index(EDGES, torch.ones(5), NODES), ValueError, "edge_weight has 5 values for 9 entries"
    ),
    "complex weights": (
        lambda d: CSR.from_edge_index(EDGES, EDGES[0].cfloat(), NODES), TypeError,
        "edge_weight must be a floating-point tensor",
    ),
    "edges and weights as a pair": (
        lambda d: fusedmm.spmm((EDGES.to(d), torch.ones(COUNT, device=d)), x(d)), ValueError,
        "of (edge_index, edge_weight) CSR.from_edge_index makes a matrix",
    ),
    "coordinates as a tuple": (
        lambda d: fusedmm.spmm((*EDGES.to(d), torch.ones(COUNT, device=d)), x(d)), ValueError,
        "of (row, col[, val]) CSR.from_coo makes a matrix",
    ),
    "nodes of an edge_index by PyG's name": (
        lambda d: CSR.from_edge_index(EDGES.to(d), num_nodes=NODES), TypeError,
        "from_edge_index() has no argument 'num_nodes'; give size=, the number of nodes or (sources, targets)",
    ),
    "a shape of an edge_index": (
        lambda d: CSR.from_edge_index(EDGES.to(d), shape=(NODES, NODES)), TypeError,
        "from_edge_index() has no argument 'shape'; give size=",
    ),
    "weights of an edge_index by another name": (
        lambda d: CSR.from_edge_index(EDGES.to(d), weight=torch.ones(COUNT, device=d)), TypeError,
        "from_edge_index() has no argument 'weight'; give edge_weight=",
    ),
    "a size of coordinates": (
        lambda d: CSR.from_coo(*EDGES.to(d), size=NODES), TypeError,
        "from_coo() has no argument 'size'; give shape=(rows, cols), which is (targets, sources)",
    ),
    "a dtype beside the values": (
        lambda d: CSR.from_coo(*EDGES.to(d), torch.ones(COUNT, device=d), dtype=torch.float64), TypeError,
        "from_coo() has no argument 'dtype'; give values of that dtype; integers and booleans become torch's default",
    ),
    "values of pointers by another name": (
        lambda d: CSR.from_csr(torch.tensor([0, 1]), torch.tensor([0]), value=torch.ones(1)), TypeError,
        "from_csr() has no argument 'value'; give val=",
    ),
    "a shape of what is converted": (
        lambda d: fusedmm.as_csr(EDGES.to(d), shape=(NODES, NODES)), TypeError,
        "as_csr() has no argument 'shape'; give size=",
    ),
    "an argument that nobody knows": (
        lambda d: CSR.from_coo(*EDGES.to(d), colour=1), TypeError, "from_coo() has no argument 'colour'"
    ),
    "the class as a constructor": (
        lambda d: CSR(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1)), TypeError,
        "make one by CSR.from_csr(ptr, idx, val, shape)",
    ),
    "sizes in the other order": (
        lambda d: CSR.from_edge_index(EDGES.to(d), size=(3, 6)), ValueError,
        "is outside [0, 3); size is (sources, targets) = (3, 6), shape is (rows, cols) = (6, 3)",
    ),
    "a shape in the other order": (
        lambda d: CSR.from_coo(*EDGES.to(d), shape=(3, 6)), ValueError,
        "is outside [0, 3); size is (sources, targets) = (6, 3), shape is (rows, cols) = (3, 6)",
    ),
    "a batch in front of the nodes, and edges": (
        lambda d: fusedmm.spmm(EDGES.to(d), torch.ones(2, NODES, 4, device=d)), ValueError,
        "x is [2, 6, 4], [nodes, heads, F]; of a batch [batch, nodes, F] give x.transpose(0, 1)",
    ),
    "a batch in front of the nodes": (
        lambda d: matrix(d) @ torch.ones(2, NODES, 4, device=d), ValueError,
        "of a batch [batch, columns, F] give x.transpose(0, 1)",
    ),
    "another dtype": (
        lambda d: fusedmm.sddmm(matrix(d), x(d), x(d).double()), TypeError,
        "a is torch.float32 and b torch",
    ),
    "another dtype of a layer": (
        lambda d: nn.GCNConv(4, 2).to(d)(x(d).double(), matrix(d)), TypeError,
        "x is torch.float64, the parameters torch.f",
    ),
    "another device": (lambda d: matrix(d) @ x("meta"), TypeError, "spmm: x is on meta, the matrix on "),
    "another number of features": (
        lambda d: nn.SAGEConv(5, 2).to(d)(x(d), matrix(d)), ValueError, "SAGEConv: x has 4 features, in_channels is 5"
    ),
    "a graph before its features": (
        lambda d: nn.GCNConv(4, 2).to(d)(EDGES.to(d), x(d)), TypeError,
        "GCNConv: x must be",
    ),
    "a matrix behind its operand": (lambda d: fusedmm.spmm(x(d), matrix(d)), TypeError, "torch.float32 is no graph"),
    "a dense adjacency": (lambda d: fusedmm.as_csr(dense_of()), TypeError, "CSR.from_dense takes the entries"),
    "an unknown reduction": (
        lambda d: fusedmm.spmm(matrix(d), x(d), reduce="avg"), ValueError, "reduce must be one of sum, mean, max, min"
    ),
    "a dtype in the place of a device": (lambda d: matrix(d).to(torch.float16), TypeError, "give a dtype as dtype="),
    "PyG's Data": (lambda d: fusedmm.as_csr(Data(edge_index=EDGES)), TypeError, "of Data; give a fusedmm.CSR, a"),
    "PyG's Data, a way out": (
        lambda d: fusedmm.as_csr(Data(edge_index=EDGES)), TypeError,
        "give its edge_index or adj_t",
    ),
    "a networkx graph": (lambda d: fusedmm.as_csr(networkx.path_graph(3)), TypeError, "networkx.to_scipy_sparse_array"),
    "an array of edges": (lambda d: fusedmm.as_csr(EDGES.numpy()), TypeError, "torch.from_numpy makes tensors"),
    "a boolean mask": (
        lambda d: fusedmm.attention(matrix(d), x(d), x(d), x(d), bias=torch.ones(COUNT, device=d) > 0),
        TypeError,
        "bias must be float32, float64, float16 or bfloat16, not torch.bool; attention takes masks as mask=",
    ),
    "a dense mask": (
        lambda d: fusedmm.attention(matrix(d), x(d), x(d), x(d), bias=torch.ones(NODES, NODES, device=d)),
        ValueError, "bias must be [9] or [9, heads], not [6, 6]",
    ),
    "loops of a bipartite graph": (
        lambda d: CSR.from_edge_index(EDGES, size=(6, 7)).gcn_norm(), ValueError,
        "need a square matrix, not one of shape (7, 6)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_the_next_call_works(mistake, device):
    call, kind, text = MISTAKES[mistake]
    with pytest.raises(kind) as error:
        call(device)
    assert text in str(error.value) and len(str(error.value)) < 300
    close(matrix(device) @ x(device), dense_of() @ torch.ones(NODES, 4, dtype=torch.float64))


def test_features_on_the_other_device(cuda):
    """The commonest of all where there is a GPU."""
    with pytest.raises(TypeError, match="spmm: x is on cpu, the matrix on cuda:0"):
        matrix(cuda) @ x("cpu")
    with pytest.raises(TypeError, match="x is on cpu, the parameters on cuda:0"):
        nn.GCNConv(4, 2).to(cuda)(x("cpu"), EDGES)
    with pytest.raises(TypeError, match="on cpu"):
        nn.GCNConv(4, 2).to(cuda)(x(cuda), EDGES)


def test_the_way_out_of_networkx():
    graph = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    adj = fusedmm.as_csr(networkx.to_scipy_sparse_array(graph).T)
    edges = torch.tensor(list(graph.edges)).T
    close(adj.to_dense(), dense_of(edges, nodes=3))


def test_the_way_out_of_a_mask():
    keep, adj = torch.arange(COUNT) % 2 == 0, matrix("cpu")
    q = torch.randn(NODES, 4, dtype=torch.float64)
    kept = CSR.from_edge_index(EDGES[:, keep], size=NODES)
    close(fusedmm.attention(adj, q, q, q, mask=keep), fusedmm.attention(kept, q, q, q))
