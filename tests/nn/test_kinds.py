"""Layers of graphs with several kinds of nodes and edges: PyG's numbers, whichever kinds a call has."""

import copy
import inspect

import pytest
import torch
from support.parity import make, on, ours, theirs
from support.small_graph import NODES, features, graph

import fusedmm

SIZES = {"a": 6, "b": 4, "c": 5}
KINDS = [("a", "x", "a"), ("a", "y", "b"), ("b", "z", "a")]
METADATA = list(SIZES), KINDS
C = 4
LAYERS = ["HGTConv", "HANConv"]


def given(kinds=tuple(KINDS), edges=40, device="cpu"):
    x = {"a": features(NODES, 6), "b": features(NODES, 4, seed=9), "c": features(3, 5, seed=8)}
    return on(device, [x, {kind: graph(seed=KINDS.index(kind))[:, :edges] for kind in kinds}])


def both(name, device="cpu", heads=2, **options):
    mine, peer = (make(module, name, SIZES, C, METADATA, heads, **options).to(device) for module in (ours, theirs))
    assert repr(mine) == repr(peer) and list(mine.state_dict()) == list(peer.state_dict())
    for a, b in zip(mine.parameters(), peer.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        for p in peer.parameters():
            p.add_(features(*p.shape, seed=4).to(device))
    mine.load_state_dict(peer.state_dict())
    peer.load_state_dict(mine.state_dict())
    return mine, peer


def results(layer, x, edges):
    """The results by kind of nodes, and the gradients of features and parameters, zeros where there is none."""
    x = {kind: t.clone().requires_grad_() for kind, t in x.items()}
    outs = layer(x, edges)
    total = sum(out.cos().sum() for out in outs.values() if out is not None)
    wanted = [*x.values(), *layer.parameters()]
    grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return outs, [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True)]


def agree(found, expected, **close):
    (outs, grads), (right, right_grads) = found, expected
    assert list(outs) == list(right)
    assert [out is None for out in outs.values()] == [out is None for out in right.values()]
    some = [kind for kind in outs if outs[kind] is not None]
    torch.testing.assert_close([outs[k] for k in some], [right[k] for k in some], **close)
    torch.testing.assert_close(grads, right_grads, **close)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("method", ["__init__", "forward", "reset_parameters"])
def test_parameters_and_defaults_are_pygs(name, method):
    mine, peer = (
        [(p.name, p.kind, p.default) for p in inspect.signature(getattr(getattr(m, name), method)).parameters.values()]
        for m in (ours, theirs)
    )
    assert mine == peer


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kinds, edges", [(KINDS, 40), (KINDS[:1], 40), (KINDS[1:], 3), (KINDS[::2], 0)], ids=str)
def test_any_kinds_give_pygs_numbers(name, kinds, edges, device):
    """And in float32 what it is in float64."""
    mine, peer = both(name, device)
    x, graphs = given(kinds, edges, device)
    expected = results(peer, x, graphs)
    agree(results(mine, x, graphs), expected, rtol=1e-9, atol=1e-11)
    if name == "HGTConv":  # the order of metadata is PyG's alone
        agree(results(mine, x, dict(reversed(graphs.items()))), expected, rtol=1e-9, atol=1e-11)
    narrow = {kind: t.float() for kind, t in x.items()}
    for kind, out in mine.float()(narrow, graphs).items():
        if out is not None:
            torch.testing.assert_close(out, expected[0][kind].float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_a_matrix_is_its_edge_index(name, device):
    mine, _ = both(name, device)
    x, graphs = given(device=device)
    expected = mine(x, graphs)
    nodes = {kind: t.shape[0] for kind, t in x.items()}
    adjs = {k: fusedmm.CSR.from_edge_index(e, size=(nodes[k[0]], nodes[k[2]])) for k, e in graphs.items()}
    valued = {k: adj.with_values(torch.rand(adj.nnz, device=device)) for k, adj in adjs.items()}
    for form in (adjs, valued):
        found = mine(x, form)
        assert all(torch.equal(found[kind], out) for kind, out in expected.items() if out is not None)


def test_weights_of_kinds(device):
    mine, peer = both("HANConv", device)
    found, expected = (layer(*given(device=device), return_semantic_attention_weights=True) for layer in (mine, peer))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-12)
    assert found[1]["c"] is None and found[1]["a"].shape == (2,)
    mine.dropout = 1.0
    assert not mine(*given(device=device))["a"].any()
    assert not torch.equal(mine.eval()(*given(device=device))["a"], torch.zeros_like(found[0]["a"]))


@pytest.mark.parametrize("name", LAYERS)
def test_sizes_from_the_first_call_and_conversion(name, device):
    torch.manual_seed(1)
    peer = getattr(theirs, name)(-1, C, METADATA, heads=2).double().to(device)
    mine = ours.convert(copy.deepcopy(peer), report=True)
    assert mine.swapped == {"": name} and not mine.left
    x, graphs = given(device=device)
    opened = copy.deepcopy(peer)
    expected = results(opened, x, graphs)
    done = ours.convert(opened)
    assert type(done) is getattr(ours, name) and repr(done) == repr(peer)
    agree(results(done, x, graphs), expected, rtol=1e-9, atol=1e-11)
    out = mine.model(x, graphs)
    assert [p.shape for p in mine.model.parameters()] == [p.shape for p in opened.parameters()] and out["a"].shape[
        1
    ] == C


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_bad_is_named_and_the_next_call_works(name, device):
    (mine, _), (x, graphs) = both(name, device), given(device=device)
    kind = KINDS[1]
    for bad, kind_of, text in (
        ((x["a"], graphs), TypeError, "x_dict must be a dictionary by kinds of nodes, not Tensor"),
        ((x, graphs[kind]), TypeError, "edge_index_dict must be a dictionary by kinds of edges, not Tensor"),
        (({**x, "d": x["a"]}, graphs), ValueError, "x_dict has nodes 'd', which metadata lacks"),
        ((x, {("a", "q", "b"): graphs[kind]}), ValueError, r"edge_index_dict has edges \('a', 'q', 'b'\), which metad"),
        (({"a": x["a"]}, graphs), ValueError, r"x_dict lacks nodes 'b', which edges \('a', 'y', 'b'\) have"),
        (({**x, "b": x["b"][:, :3]}, graphs), ValueError, "x has 3 features, in_channels is 4, of nodes 'b'"),
        (({**x, "b": x["b"].long()}, graphs), TypeError, "x must be float32, .*, of nodes 'b'"),
    ):
        with pytest.raises(kind_of, match=f"^{name}: {text}"):
            mine(*bad)
    with pytest.raises(ValueError, match=r"edge_index\[1, 0\] = \d+ is outside \[0, 11\)"):
        mine(x, {kind: graphs[kind] + torch.tensor([[0], [11]], device=device)})
    for options, text in (
        ({"heads": 3}, "out_channels=4 must be a multiple of heads=3"),
        ({"heads": 0}, "heads must be"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {text}"):
            getattr(ours, name)(SIZES, C, METADATA, **options)
    for metadata in (None, METADATA[:1]):
        with pytest.raises(TypeError, match=rf"^{name}: metadata must be \(kinds of nodes, kinds of edges\), not "):
            getattr(ours, name)(SIZES, C, metadata)
    assert mine(x, graphs)["a"].isfinite().all()
    for watch in (lambda: setattr(mine, "explain", True), lambda: mine.register_message_forward_hook(print)):
        with pytest.raises(ValueError, match=f"^{name}: .* is not supported where there are several kinds of nodes"):
            watch()
    assert mine(x, graphs)["a"].isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_in_one_graph(name):
    """Of matrices that have their transposes. CPU only: every device compiles the same."""
    (mine, _), (x, graphs) = both(name), given()
    adjs = {k: fusedmm.CSR.from_edge_index(e, size=(NODES, NODES)).cache_transpose() for k, e in graphs.items()}
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: mine(*args), backend="aot_eager", fullgraph=True)
    expected, found = mine(x, adjs), compiled(x, adjs)
    for kind, out in expected.items():
        assert out is None or torch.allclose(found[kind], out)
    total = sum(out.cos().sum() for out in compiled(x, adjs).values() if out is not None)
    grads = torch.autograd.grad(total, list(mine.parameters()), allow_unused=True)
    assert any(g is not None and g.any() for g in grads)
    torch._dynamo.reset()
