"""Layers of edges of several types: PyG's numbers with each option and kind of x, and what is remembered of types."""

import pytest
import torch
from support.parity import check, make, on, ours, results
from support.small_graph import NODES, features, graph

import fusedmm

F, C, TYPES = 6, 4, 4


def types(edges=40):
    """Of which one has no edge, in no order."""
    found = torch.randint(0, TYPES, (edges,), generator=torch.Generator().manual_seed(0))
    return torch.where(found == 2, 0, found)


def given(kind):
    x, edges = features(NODES, F), graph()
    if kind == "pair":
        return [(x, features(7, F, seed=5)), torch.stack([edges[0], edges[1] % 7]), types()]
    if kind == "no edges":
        return [x, edges[:, :0], types(0)]
    return [{"features": x, "nothing": None, "numbers": torch.arange(NODES) % F}[kind], edges, types()]


FORMS = [{}, {"num_bases": 3}, {"num_blocks": 2}, {"root_weight": False, "bias": False}]


@pytest.mark.parametrize("kind", ["features", "pair", "no edges", "nothing", "numbers"])
@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize(
    "name, aggr", [("RGCNConv", a) for a in ("mean", "add", "max", "min")] + [("FastRGCNConv", "mean")]
)
def test_every_form_gives_pygs_numbers(name, aggr, options, kind, device):
    """In float32 what it is in float64."""
    args = NODES if kind == "nothing" else F, C, TYPES
    if "num_blocks" in options and kind in ("nothing", "numbers"):
        with pytest.raises(ValueError, match=r"^RGCNConv: num_blocks needs floating-point x"):
            ours.RGCNConv(F, C, TYPES, **options).to(device)(*on(device, given("numbers")))
        return
    if (name, kind) == ("FastRGCNConv", "numbers"):  # docs/pyg.md says what PyG's does
        mine, peer = (make(ours, n, *args, **options).to(device) for n in (name, "RGCNConv"))
        assert torch.equal(mine(*on(device, given(kind))), peer(*on(device, given(kind))))
        return
    mine, _ = check(name, args, given(kind), device=device, aggr=aggr, **options)
    inputs = on(device, given(kind))
    found = mine(*inputs).float()
    x = inputs[0]
    narrow = tuple(t.float() for t in x) if kind == "pair" else x.float() if kind in ("features", "no edges") else x
    torch.testing.assert_close(mine.float()(narrow, *inputs[1:]), found, rtol=1e-4, atol=1e-5)


def test_types_are_read_again_when_they_were_written_to(device):
    """Or when others are given, with the same graph; what was made of the old ones goes away."""
    x, edges, kinds = on(device, given("features"))
    layer, adj = make(ours, "RGCNConv", F, C, TYPES).to(device), fusedmm.CSR.from_edge_index(edges, size=NODES)
    before = layer(x, adj, kinds)
    assert torch.equal(layer(x, adj, kinds), before)
    other = (kinds + 1) % TYPES
    expected = make(ours, "RGCNConv", F, C, TYPES).to(device)(x, edges, other)
    assert torch.equal(layer(x, adj, other), expected) and torch.equal(layer(x, adj, kinds), before)
    kinds.copy_(other)
    assert torch.equal(layer(x, adj, kinds), expected)
    with torch.inference_mode():
        unseen = other.clone()
        assert torch.equal(layer(x, adj, unseen), expected)
        unseen.zero_()  # which torch does not count
        assert not torch.equal(layer(x, adj, unseen), expected)
    assert torch.autograd.grad(layer(x, adj, kinds).sum(), layer.weight)[0].isfinite().all()


BAD = [
    (None, ValueError, r"edge_type must be given"),
    (types()[:7], ValueError, r"edge_type must be \[40\], not \[7\]"),
    (types()[None], ValueError, r"edge_type must have 1 dimension, not 2"),
    (types().double(), TypeError, r"edge_type must hold integers"),
    (types() + 1, ValueError, r"edge_type\[\d+\] = 4 is outside \[0, 4\)"),
    (types() - 1, ValueError, r"edge_type\[\d+\] = -1 is outside \[0, 4\)"),
]


@pytest.mark.parametrize("bad, kind, text", BAD, ids=[text for *_, text in BAD])
@pytest.mark.parametrize("name", ["RGCNConv", "FastRGCNConv"])
def test_bad_types_are_named(name, bad, kind, text, device):
    layer, (x, edges, good) = make(ours, name, F, C, TYPES).to(device), on(device, given("features"))
    with pytest.raises(kind, match=f"^{name}: {text}"):
        layer(x, edges, on(device, bad))
    assert layer(x, edges, good).isfinite().all()


def test_bad_forms_and_numbers_are_named(device):
    for options, text in (
        ({"num_bases": 2, "num_blocks": 2}, "num_bases and num_blocks cannot both be set"),
        ({"num_blocks": 5}, "num_blocks=5 must divide 6 and 4 channels"),
        ({"num_bases": 0}, "num_bases must be positive"),
    ):
        with pytest.raises(ValueError, match=f"^RGCNConv: {text}"):
            ours.RGCNConv(F, C, TYPES, **options)
    layer, (x, edges, kinds) = make(ours, "RGCNConv", F, C, TYPES).to(device), on(device, given("features"))
    with pytest.raises(ValueError, match=r"^RGCNConv: x\[3\] = 6 is outside \[0, 6\)"):
        layer(on(device, torch.arange(NODES) + 3).clamp(max=6), edges, kinds)
    with pytest.raises(ValueError, match=r"^RGCNConv: x\[1\] must be a tensor"):
        layer((x, None), edges, kinds)


def test_gradients_of_gradients(device):
    layer, (x, edges, kinds) = make(ours, "RGCNConv", F, 2, TYPES).to(device), on(device, given("features"))
    call = lambda x, w: torch.func.functional_call(layer, {"weight": w}, (x, edges[:, :12], kinds[:12]))  # noqa: E731
    inputs = x.requires_grad_(), layer.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(call, inputs) and torch.autograd.gradgradcheck(call, inputs)


def test_compiled_code_sorts_outside():
    """Of an edge_index and of a matrix; where there must be one graph an error says why. CPU only: every device
    compiles the same."""
    layer, (x, edges, kinds) = make(ours, "RGCNConv", F, C, TYPES), given("features")
    for graph_given in (edges, fusedmm.CSR.from_edge_index(edges, size=NODES)):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend="aot_eager")
        expected = results(layer, [x, edges, kinds])
        torch.testing.assert_close(results(compiled, [x, graph_given, kinds]), expected)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="edges are sorted by their types outside of compiled code"):
        torch.compile(layer, backend="aot_eager", fullgraph=True)(x, graph_given, kinds)
    torch._dynamo.reset()
