"""What follows a layer may write to its result in place, as models on PyG's layers do."""

import pytest
import torch
from support.parity import make, ours
from support.small_graph import NODES, features, graph
from torch.nn.functional import leaky_relu

import fusedmm
from fusedmm.nn.heads import writable

F_IN, D = 6, 3
IDENTITY = torch.nn.Identity
CASES = {
    "GCN": ("GCNConv", [F_IN, 4], {"bias": False}),
    "GCN mean": ("GCNConv", [F_IN, 4], {"bias": False, "aggr": "mean"}),
    "SAGE": ("SAGEConv", [F_IN, 4], {"bias": False, "root_weight": False}),
    "SAGE of several": ("SAGEConv", [F_IN, 4, ["max", "std"]], {"bias": False, "root_weight": False}),
    "SAGE normalised": ("SAGEConv", [F_IN, 4], {"normalize": True, "project": True}),
    "GIN": ("GINConv", [IDENTITY], {}),
    "GIN max": ("GINConv", [IDENTITY], {"aggr": "max"}),
    "GINE": ("GINEConv", [lambda: torch.nn.Linear(F_IN, 4)], {"edge_dim": D}),
}
for name in ("GATConv", "GATv2Conv"):
    for label, options in {
        "": {},
        " without bias": {"bias": False},
        " mean": {"bias": False, "concat": False},
        " of one head": {"bias": False, "concat": False, "heads": 1},
        " residual": {"bias": False, "residual": True},
        " dropout": {"bias": False, "dropout": 0.5},
        " features": {"bias": False, "edge_dim": D},
    }.items():
        CASES[name[:-4] + label] = (name, [F_IN, 2], {"heads": 3, **options})
for label, options in {
    "": {},
    " without root": {"root_weight": False},
    " mean": {"root_weight": False, "concat": False},
    " beta": {"beta": True},
    " features": {"root_weight": False, "edge_dim": D},
}.items():
    CASES["Transformer" + label] = ("TransformerConv", [F_IN, 2], {"heads": 3, **options})
CASES["AGNN"] = ("AGNNConv", [], {})
CASES["AGNN without loops"] = ("AGNNConv", [], {"add_self_loops": False})
for name, args, options in (
    ("GraphConv", [F_IN, 2], {"bias": False}),
    ("LGConv", [], {}),
    ("SGConv", [F_IN, 2], {"bias": False}),
    ("APPNP", [2, 0.1], {}),
    ("TAGConv", [F_IN, 2, 0], {"bias": False}),
    ("TAGConv", [F_IN, 2, 1], {"bias": False}),
    ("ChebConv", [F_IN, 2, 1], {"bias": False}),
    ("ChebConv", [F_IN, 2, 3], {"bias": False}),
    ("ResGatedGraphConv", [F_IN, 2], {"bias": False, "root_weight": False}),
    ("SuperGATConv", [F_IN, 2], {"bias": False, "heads": 2}),
    ("SuperGATConv", [F_IN, 2], {"bias": False, "heads": 2, "concat": False}),
):
    CASES[f"{name} of {args}, {options}"] = (name, args, options)


@pytest.mark.parametrize("name", CASES)
def test_result_may_be_written_to(name, device):
    layer, args, options = CASES[name]
    conv = make(ours, layer, *args, **options).to(device)
    edge_index, x = graph().to(device), features(NODES, F_IN).to(device).requires_grad_()
    edged = (features(edge_index.shape[1], D, seed=6).to(device),) if "edge_dim" in options else ()
    found = []
    for activate in (
        lambda out: leaky_relu(out, 0.1),
        lambda out: leaky_relu(out, 0.1, inplace=True),
        lambda out: leaky_relu(out.view(-1), 0.1, inplace=True).view(out.shape),
    ):
        torch.manual_seed(2)
        out = activate(conv(x, edge_index, *edged))
        found.append((out, *torch.autograd.grad(out.square().sum(), [x, *conv.parameters()], allow_unused=True)))
    assert found[0][0].requires_grad
    assert found[0][1] is not None
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            assert one is expected is None or torch.equal(one, expected)


def test_result_may_be_written_to_under_autocast(device):
    conv, x = ours.AGNNConv().to(device), torch.randn(NODES, F_IN, device=device).requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        out = conv(x, graph().to(device)).relu_()
    out.float().sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_what_attention_gives_is_copied_first():
    adj, x = fusedmm.as_csr(graph(), size=NODES), features(NODES, F_IN).requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fusedmm.attention(adj, x, x, x).relu_().sum().backward()
    found = [
        torch.autograd.grad(relu(fusedmm.attention(adj, x, x, x)).sum(), x)[0]
        for relu in (torch.relu, lambda out: out.clone().relu_())
    ]
    assert torch.equal(*found)


def test_nothing_is_copied_where_no_gradient_is_wanted():
    out = torch.zeros(3)
    assert writable(out, False) is out and writable(out.requires_grad_(), True) is out
    assert writable(out, False) is not out
