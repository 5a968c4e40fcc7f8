"""Layers that multiply by one matrix, once or several times: PyG's numbers with each option, and what is their own."""

import pytest
import torch
from support.parity import check, make, on, ours, results, theirs
from support.small_graph import NODES, features, graph, weights

import fusedmm

F, C = 5, 4
OPTIONS = [
    *(("GraphConv", (F, C), {"aggr": aggr, "bias": aggr == "add"}) for aggr in ("add", "mean", "max", "min")),
    ("LGConv", (), {"normalize": True}),
    ("LGConv", (), {"normalize": False, "aggr": "mean"}),
    *(("SGConv", (F, c), {"K": k}) for c in (C, F + 1) for k in (0, 1, 3)),
    ("SGConv", (F, C), {"add_self_loops": False, "bias": False, "aggr": "max"}),
    ("APPNP", (3, 0.1), {}),
    ("APPNP", (0, 0.1), {}),
    ("APPNP", (2, 0.5), {"add_self_loops": False, "aggr": "min"}),
    ("APPNP", (2, 1.5), {"normalize": False, "add_self_loops": False}),
    ("TAGConv", (F, C), {}),
    ("TAGConv", (F, C), {"K": 0, "bias": False}),
    ("TAGConv", (F, C), {"K": 2, "normalize": False, "aggr": "mean"}),
    ("TAGConv", (F, C), {"aggr": "max"}),
    *(("ChebConv", (F, C, k), {"normalization": n}) for k in (1, 2, 4) for n in (None, "sym", "rw")),
    *(("ChebConv", (F, C, 4), {"normalization": "sym", "aggr": aggr}) for aggr in ("mean", "min")),
]


@pytest.mark.parametrize("name, args, options", OPTIONS, ids=str)
def test_every_option_gives_pygs_numbers(name, args, options, device):
    """Without and with edge weights, whose gradients are PyG's too; and in float32 what it is in float64."""
    for given in ([features(NODES, F), graph()], [features(NODES, F), graph(), weights(graph())]):
        mine, _ = check(name, args, given, device=device, **options)
        found = mine(*on(device, given))
        narrow = [t.float() if t.is_floating_point() else t for t in on(device, given)]
        torch.testing.assert_close(mine.float()(*narrow), found.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalization", [None, "sym", "rw"])
def test_lambda_of_a_graph_and_of_graphs(normalization, device):
    x, edges, weight = features(NODES, F), graph(), weights(graph())
    batch, each = torch.arange(NODES) // 6, torch.tensor([1.5, 1.8], dtype=torch.float64)
    for given in (
        [x, edges, weight, batch, each],
        [x, edges, weight, None, each[:1]],
        [x, edges, None, batch, each[0]],
        [x, edges, None, None, 1.7],
    ):
        check("ChebConv", (F, C, 3), given, device=device, normalization=normalization)
    layer = make(ours, "ChebConv", F, C, 3).to(device)
    x, edges, batch, each = on(device, (x, edges, batch, each))
    for bad, text in ((None, "must be one number, or with batch"), (batch[:3], r"batch must be \[11\], not \[3\]")):
        with pytest.raises(ValueError, match=f"^ChebConv: .*{text}"):
            layer(x, edges, None, bad, each)
    with pytest.raises(TypeError, match=r"^ChebConv: batch must hold integers"):
        layer(x, edges, None, batch.double(), each)


def test_no_eigenvalue_is_no_number(device):
    """Of a graph without edges D - A is 0, and so is lambda: what is left is -I, where PyG divides 0 by 0."""
    layer, x = make(ours, "ChebConv", F, C, 2, normalization=None).to(device), features(NODES, F).to(device)
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    expected = layer.lins[0](x) - layer.lins[1](x)
    torch.testing.assert_close(layer(x, none), expected)


@pytest.mark.parametrize("name, args", [("GCNConv", (F, C)), ("APPNP", (2, 0.1)), ("SGConv", (F, C, 2))])
@pytest.mark.parametrize("weighed", [False, True])
def test_what_is_cached_serves_the_next_call(name, args, weighed, device):
    """Of other features the same graph; SGConv keeps the features. In inference mode too, and it is forgotten."""
    x, edges, weight = on(device, (features(NODES, F), graph(), weights(graph())))
    given = [x, edges, weight] if weighed else [x, edges]
    mine, peer = (make(module, name, *args, cached=True).to(device) for module in (ours, theirs))
    with torch.inference_mode():
        torch.testing.assert_close(mine(*given), peer(*given), rtol=1e-10, atol=1e-12)
    for one in (mine, peer):
        one.reset_parameters()
    peer.load_state_dict(mine.state_dict())
    with torch.inference_mode():
        mine(*given)
    peer(*given)
    other = [2 * x, edges.flip(0)]
    torch.testing.assert_close(results(mine, other)[0], results(peer, other)[0], rtol=1e-10, atol=1e-12)
    mine.reset_parameters()
    assert mine._cached_x is None if name == "SGConv" else mine._cached_edge_index is None


def test_dropout_of_coefficients_is_pygs(device):
    """From the same seed the very same coefficients are dropped, step by step."""
    x, edges, weight = on(device, (features(NODES, F), graph(), weights(graph())))
    for options in ({}, {"normalize": False}):
        mine, peer = (make(module, "APPNP", 3, 0.1, 0.5, **options).to(device) for module in (ours, theirs))
        found = []
        for layer in (mine, peer):
            torch.manual_seed(3)
            found.append(layer(x, edges, weight))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
        assert not torch.equal(found[0], mine.eval()(x, edges, weight))
    with pytest.raises(ValueError, match=r"^APPNP: dropout without normalize needs edge weights"):
        mine.train()(x, edges)
    assert mine.eval()(x, edges).isfinite().all()


@pytest.mark.parametrize(
    "name, args",
    [("LGConv", ()), ("SGConv", (F, 2)), ("APPNP", (2, 0.1)), ("TAGConv", (F, 2)), ("ChebConv", (F, 2, 3))],
)
def test_gradients_of_gradients(name, args, device):
    """By features and weights of a graph with a loop, a duplicate and an isolated node."""
    edges = torch.tensor([[0, 1, 2, 2, 2, 1], [1, 2, 0, 0, 2, 0]], device=device)
    layer = make(ours, name, *args).to(device)
    given = on(device, (features(4, F), weights(edges.cpu())))

    def call(x, weight):
        return layer(x, edges, weight)

    assert torch.autograd.gradcheck(call, [t.requires_grad_() for t in given])
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("name", ["GraphConv", "LGConv", "SGConv", "APPNP", "TAGConv", "ChebConv"])
def test_a_matrix_is_its_edge_index(name, device):
    """As a CSR whose values are the weights, and with weights in their place."""
    args = {"LGConv": (), "APPNP": (2, 0.1), "ChebConv": (F, C, 3)}.get(name, (F, C))
    x, edges, weight = on(device, (features(NODES, F), graph(), weights(graph())))
    layer = make(ours, name, *args).to(device)
    expected = layer(x, edges, weight)
    adj = fusedmm.CSR.from_edge_index(edges, weight, NODES)
    assert torch.equal(layer(x, adj), expected)
    assert torch.equal(layer(x, adj.with_values(2 * weight + 1), weight), expected)
    assert torch.equal(layer(x, adj.pattern()), layer(x, edges))
    if name != "GraphConv":
        with pytest.raises(ValueError, match=f"^{name}: x must be one tensor"):
            layer((x, x), edges)


@pytest.mark.parametrize("aggr", ["add", "mean"])
def test_one_step_of_gcn_has_the_bits_of_its_parts(aggr, device):
    """A hook that sees the map keeps it a step of its own; second gradients pass through both."""
    x, edge_index = on(device, [features(NODES, F), graph()])
    conv = fusedmm.nn.GCNConv(F, C, aggr=aggr).to(x)
    torch.nn.init.normal_(conv.bias)

    def step():
        leaf = x.clone().requires_grad_()
        out = conv(leaf, edge_index)
        first = torch.autograd.grad(out.square().sum(), [leaf, *conv.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [leaf, *conv.parameters()])
        return type(out.grad_fn).__name__, [out, *first, *second]

    name, found = step()
    conv.lin.register_forward_hook(lambda *_: None)
    other, expected = step()
    assert name == "PropagationBackward" and other == "AddBackward0"
    assert torch.equal(found[0], expected[0])
    if device == "cpu":  # cuBLAS need not add up a product and the transposed one in the same order
        assert all(map(torch.equal, found[:4], expected[:4]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name, args", [("SGConv", (F, C)), ("TAGConv", (F, C)), ("APPNP", ())])
def test_steps_may_be_none_and_not_fewer(name, args):
    more = {"alpha": 0.1} if name == "APPNP" else {}
    getattr(ours, name)(*args, K=0, **more)
    with pytest.raises(ValueError, match=rf"^{name}: K must be 0 or more and below 2\^31, not -1"):
        getattr(ours, name)(*args, K=-1, **more)
