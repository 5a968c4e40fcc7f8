"""What convert says: of parts that do not fit by their kind, and of what is lost."""

import pytest
import torch

from fusedmm import nn as ours
from fusedmm.nn.convert import LOST

pyg = pytest.importorskip("torch_geometric.nn")


def with_buffer():
    layer = pyg.GATConv(6, 4)
    layer.register_buffer("q", torch.ones(1))
    return layer


def with_two_buffers():
    layer = pyg.AGNNConv(requires_grad=False)
    layer.register_buffer("q", torch.ones(1))
    return layer


def without_buffer():
    layer = pyg.AGNNConv(requires_grad=False)
    del layer.beta
    return layer


def with_parameter():
    layer = pyg.AGNNConv(requires_grad=False)
    layer.scale = torch.nn.Parameter(torch.ones(1))
    return layer


@pytest.mark.parametrize(
    "make, text",
    [
        (with_buffer, "its buffers are q, and ours has none"),
        (with_two_buffers, "its buffers are beta, q, not beta"),
        (without_buffer, "its buffers are none, not beta"),
        (with_parameter, "its parameters are scale, and ours has none"),
    ],
)
def test_parts_are_called_what_they_are(make, text):
    model = torch.nn.Sequential(make())
    assert str(ours.convert(model, report=True)) == f"0: left, {text}"


def test_what_is_lost_is_said_once_where_something_was_swapped():
    model = torch.nn.Sequential(pyg.GATConv(6, 4), pyg.GCNConv(4, 4), pyg.ARMAConv(4, 4))
    lines = str(ours.convert(model, report=True)).splitlines()
    assert lines[:3] == ["0: now fusedmm.nn.GATConv", "1: now fusedmm.nn.GCNConv", LOST]
    assert len(lines) == 4 and lines[3].startswith("2: left, ")
    assert LOST not in str(ours.convert(model, report=True))


def test_options_come_along_and_other_attributes_do_not():
    peer = pyg.GATConv(6, 4)
    peer.dropout, peer.tag = 0.3, "mine"
    kept, model = [peer], torch.nn.Sequential(peer)
    ours.convert(model)
    assert model[0].dropout == 0.3 and not hasattr(model[0], "tag")
    assert kept[0] is peer and kept[0].lin.weight is model[0].lin.weight
