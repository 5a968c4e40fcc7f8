"""A CSR with plain features is not checked piece by piece: it computes what an edge_index does, and bad x is named."""

import pytest
import torch
from support.parity import make, on, ours
from support.small_graph import NODES, features, graph

import fusedmm

F_IN, F_OUT = 5, 4
LAYERS = {"GATConv": {}, "GCNConv": {}, "SAGEConv": {}, "SAGEConv, project": {"project": True}}
LAYERS |= {"SAGEConv, mean alone": {"root_weight": False}, "GATConv, no loops": {"add_self_loops": False}}
BAD = {
    "fewer nodes": lambda x: x[:-1],
    "more nodes": lambda x: torch.cat([x, x[:1]]),
    "fewer features": lambda x: x[:, :3],
    "more features": lambda x: x.repeat(1, 2),
    "another dtype": lambda x: x.float(),
    "integers": lambda x: x.long(),
    "a vector": lambda x: x[:, 0],
    "on no device": lambda x: x.to("meta"),
    "nested": lambda x: torch.nested.nested_tensor([x]),
    "a list": lambda x: x.tolist(),
    "nothing": lambda x: None,
}


def layer(label, device):
    return make(ours, label.split(",")[0], F_IN, F_OUT, **LAYERS[label]).to(device)


def square(device):
    return fusedmm.CSR.from_edge_index(graph(), size=NODES).to(device)


@pytest.mark.parametrize("label", LAYERS)
def test_a_csr_has_the_bits_of_its_edge_index(label, device):
    mine, x = layer(label, device), on(device, features(NODES, F_IN))
    for form in (x, x.to_sparse(), x[:, :1].expand(-1, F_IN)):
        assert torch.equal(mine(form, square(device)), mine(form, graph().to(device)))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("label", LAYERS)
def test_bad_features_are_named_as_with_an_edge_index(label, bad, device):
    mine, x = layer(label, device), on(device, features(NODES, F_IN))
    with pytest.raises((TypeError, ValueError)) as found:
        mine(BAD[bad](x), square(device))
    if "nodes" in bad:  # an edge_index does not say how many there are
        assert str(NODES) in str(found.value)
    else:
        with pytest.raises(found.type) as named:
            mine(BAD[bad](x), graph().to(device))
        assert str(named.value) == str(found.value)


def test_features_as_wide_as_several_aggregations_are_named(device):
    mine = make(ours, "SAGEConv", F_IN, F_OUT, aggr=["mean", "max"], root_weight=False).to(device)
    for graph_of in (square(device), graph().to(device)):
        with pytest.raises(ValueError, match=f"x has {2 * F_IN} features, in_channels is {F_IN}"):
            mine(on(device, features(NODES, 2 * F_IN)), graph_of)


@pytest.mark.parametrize("label", LAYERS)
def test_a_csr_that_is_not_square_is_no_graph_of_one_x(label, device):
    wide = fusedmm.CSR.from_edge_index(graph(), size=(NODES + 1, NODES)).to(device)
    with pytest.raises(ValueError, match=str(NODES + 1)):
        layer(label, device)(on(device, features(NODES, F_IN)), wide)


@pytest.mark.parametrize("label", LAYERS)
def test_maps_that_were_replaced_are_called(label, device):
    mine, x = layer(label, device), on(device, features(NODES, F_IN))
    name = "lin" if hasattr(mine, "lin") else "lin_l"
    size = getattr(mine, name).weight.shape
    setattr(mine, name, torch.nn.Linear(size[1], size[0], bias=False).double().to(device))
    torch.testing.assert_close(mine(x, square(device)), mine(x, graph().to(device)))
