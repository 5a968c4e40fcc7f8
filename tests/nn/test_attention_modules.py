"""The attention layers as modules: copies, sizes from the first input, second derivatives, compilation, bad options."""

import copy
import pickle

import pytest
import torch
from support.attention_inputs import F_IN, F_OUT, LOOPED, NAMES, TARGETS, D, inputs, pair
from support.parity import make, on, ours, results, theirs
from support.small_graph import NODES, features, graph

import fusedmm


def layers():
    """Each layer with options that show in its text."""
    return {
        "GATConv": make(ours, "GATConv", F_IN, F_OUT, heads=2, edge_dim=D, residual=True, dropout=0.5),
        "GATv2Conv": make(ours, "GATv2Conv", F_IN, F_OUT, heads=2, edge_dim=D, share_weights=True),
        "TransformerConv": make(ours, "TransformerConv", F_IN, F_OUT, heads=2, edge_dim=D, beta=True),
        "AGNNConv": make(ours, "AGNNConv"),
    }


@pytest.mark.parametrize("name", layers())
def test_copies_and_pickles(name, device):
    layer = layers()[name].to(device).eval()
    given = on(device, inputs(D))[: 2 if name == "AGNNConv" else 3]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(*given), layer(*given)) and repr(other) == repr(layer)
        other.reset_parameters()
    assert name == "AGNNConv" or not torch.equal(other(*given), layer(*given))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [-1, (-1, -1)])
def test_sizes_from_the_first_input(name, size, device):
    options = {"heads": 2, "edge_dim": -1}
    mine, peer = (make(module, name, size, F_OUT, **options).float().to(device) for module in (ours, theirs))
    assert list(mine.state_dict()) == list(peer.state_dict())
    given = [a.float() if a.is_floating_point() else a for a in on(device, inputs(D))]
    if name == "GATConv" and size != -1:
        given[0] = given[0], given[0][:TARGETS]
        given[1] = pair()[1].to(device)
    expected = peer(*given)
    mine(*given)
    assert [p.shape for p in mine.parameters()] == [p.shape for p in peer.parameters()]
    full = make(ours, name, size, F_OUT, **options).float().to(device)
    full.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(full(*given), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_second_derivatives(name, edge_dim):
    """CPU only: the formulas that are differentiated are the same on every device."""
    layer = make(ours, name, 2, 2, heads=2, edge_dim=edge_dim)
    edge_index = graph()[:, :12]
    x = [features(NODES, 2).requires_grad_()] + ([] if edge_dim is None else [features(12, 2).requires_grad_()])
    assert torch.autograd.gradgradcheck(lambda x, *e: layer(x, edge_index, *e), x)


@pytest.mark.parametrize(
    "edge_dim, name",
    [
        *((None, "GATConv"), (D, "GATv2Conv"), (D, "TransformerConv"), (None, "AGNNConv")),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((D, "GATConv"), (None, "GATv2Conv"))),
        pytest.param(None, "TransformerConv", marks=pytest.mark.slow),
    ],
)
def test_compiles(edge_dim, name):
    torch._dynamo.reset()
    layer = make(ours, name) if name == "AGNNConv" else make(ours, name, F_IN, F_OUT, heads=2, edge_dim=edge_dim)
    given = [features(NODES, F_IN), fusedmm.as_csr(graph(), size=NODES).cache_transpose()]
    given += [] if edge_dim is None else [features(40, D)]
    expected = results(layer, given)  # also makes what compiled code cannot
    torch.testing.assert_close(results(torch.compile(layer, fullgraph=True, backend="aot_eager"), given), expected)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_dropout_draws_anew(name):
    torch._dynamo.reset()
    layer, x = make(ours, name, F_IN, F_OUT, heads=2, dropout=0.5), features(NODES, F_IN)
    adj = fusedmm.as_csr(graph(), size=NODES).cache_transpose()
    layer(x, adj)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert not torch.equal(compiled(x, adj), compiled(x, adj))
        mean, expected = sum(compiled(x, adj) for _ in range(2000)) / 2000, layer.eval()(x, adj)
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.2)


@pytest.mark.parametrize("name", layers())
def test_training_twice_gives_the_same_bits(name, device):
    def trained():
        torch.manual_seed(3)
        layer = layers()[name].float().to(device)
        layer.reset_parameters()
        layer.dropout = 0.5
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
        given = [a.float() if a.is_floating_point() else a for a in on(device, inputs(D))]
        given = given[: 2 if name == "AGNNConv" else 3]
        for _ in range(50):
            optimiser.zero_grad()
            layer(*given).square().mean().backward()
            optimiser.step()
        return torch.cat([p.detach().flatten() for p in layer.parameters()])

    assert torch.equal(trained(), trained())


# ---- bad options and inputs ----


@pytest.mark.parametrize("name", [*NAMES, "AGNNConv"])
@pytest.mark.parametrize(
    "options, text",
    [
        ({"aggr": "max"}, "aggr must be 'add' or 'sum', not 'max'"),
        ({"aggr": "lstm"}, "aggr must be one of add"),
        ({"flow": "target_to_source"}, "flow must be 'source_to_target'.*flip"),
        ({"explain": True}, "the option explain is not supported"),
    ],
)
def test_bad_options(name, options, text):
    args = [] if name == "AGNNConv" else [F_IN, F_OUT]
    with pytest.raises(ValueError, match=f"{name}: {text}"):
        getattr(ours, name)(*args, **options)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("fill, text", [("median", "one of add"), ([1], "a number, a tensor or a reduction")])
def test_bad_fill_value(name, fill, text):
    with pytest.raises(ValueError, match=f"{name}: fill_value.*{text}"):
        getattr(ours, name)(F_IN, F_OUT, edge_dim=D, fill_value=fill)


@pytest.mark.parametrize("name", NAMES)
def test_bad_inputs(name, device):
    x, edge_index, edge_attr = on(device, inputs(D))
    plain, edged = on(device, (make(ours, name, F_IN, F_OUT), make(ours, name, F_IN, F_OUT, edge_dim=D)))
    with pytest.raises(ValueError, match=rf"{name}: x must be \[nodes, F\], not \[2, 11, 5\]"):
        plain(torch.stack([x, x]), edge_index)
    with pytest.raises(ValueError, match=rf"{name}: edge_attr must be \[40, D\].*not \[7, 3\]"):
        edged(x, edge_index, edge_attr[:7])
    with pytest.raises(ValueError, match=r"is outside \[0, 5\)"):
        plain(x[:5], edge_index)
    if name != "GATConv":
        with pytest.raises(ValueError, match=f"{name}: edge_attr needs edge_dim"):
            plain(x, edge_index, edge_attr)
        with pytest.raises(ValueError, match=f"{name}: the targets need features"):
            plain((x, None), edge_index)
    if name == "TransformerConv":
        with pytest.raises(ValueError, match="edge_dim=3 needs edge_attr"):
            edged(x, edge_index)


def test_agnn_compares_nodes_with_themselves_alone():
    x = features(NODES, F_IN)
    with pytest.raises(ValueError, match="AGNNConv: x must be one tensor"):
        make(ours, "AGNNConv")((x, x), graph())
