"""torch.jit: trace is refused by name where it would fail or keep one graph for all, and leaves nothing behind."""

import pytest
import torch
from support.every_layer import EDGES, LAYERS, NODES

import fusedmm

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def features():
    return torch.randn(NODES, 4)


@pytest.mark.parametrize("form", ["edge_index", "CSR"])
@pytest.mark.parametrize("learnt", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_a_trace(name, learnt, form):
    """Without gradients it would give wrong numbers for other edges, with them torch fails without a reason."""
    make, shape = LAYERS[name]
    layer, x = make().requires_grad_(learnt), features()
    given = () if shape is None else (torch.rand(shape),)
    adj = EDGES if form == "edge_index" else fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    with pytest.raises(RuntimeError, match=f"^{type(layer).__name__}: torch.jit.trace does not take this layer: use"):
        torch.jit.trace(lambda x: layer(x, adj, *given), (x,), check_trace=False)
    assert layer(x, adj, *given).shape == (NODES, 4)


PTR, IDX = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 0, 3, 2])
CONVERSIONS = {
    "edge_index": (lambda edges, x: fusedmm.spmm(edges, x), EDGES),
    "from_edge_index": (lambda edges, x: fusedmm.CSR.from_edge_index(edges, size=NODES) @ x, EDGES),
    "sparse": (lambda adj, x: fusedmm.spmm(adj, x), torch.eye(NODES).to_sparse_csr()),
    "pointers": (lambda ptr, x: fusedmm.spmm((ptr, IDX), x), PTR),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_trace_converts_no_graph(name):
    call, graph = CONVERSIONS[name]
    x = features()
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace does not take the conversion of a graph: make"):
        torch.jit.trace(call, (graph, x), check_trace=False)
    call(graph, x)
    with pytest.raises(RuntimeError, match="the conversion of a graph"):  # which is remembered by now
        torch.jit.trace(call, (graph, x), check_trace=False)


@pytest.mark.parametrize("op", [fusedmm.spmm, lambda adj, x: fusedmm.sddmm(adj, x, x), fusedmm.fused])
def test_operators_are_traced_without_gradients(op):
    adj = fusedmm.CSR.from_edge_index(EDGES, size=NODES)
    traced = torch.jit.trace(lambda x: op(adj, x), (features(),), check_trace=False)
    x = features()
    assert torch.equal(traced(x), op(adj, x))
