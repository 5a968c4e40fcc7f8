"""Gradients that are differentiated themselves, whichever of the operands want one; and steps under checkpoints."""

import itertools

import pytest
import torch
from support import every_layer
from support.small_graph import NODES, features, graph, weights
from torch.utils.checkpoint import checkpoint

import fusedmm
from fusedmm.ops.cosine import attend_cosine
from fusedmm.ops.edge_attention import attend_edges
from fusedmm.ops.node_sums import attend_self

HEADS, FEAT = 2, 3


def attend(score):
    """attention with a bias and weights, and its operands."""
    sizes = [(NODES, HEADS)] * 2 if score == "additive" else [(NODES, HEADS, FEAT)] * 2
    operands = [features(*size, seed=k) for k, size in enumerate(sizes)]
    operands += [features(NODES, HEADS, FEAT, seed=7), features(40, HEADS, seed=8), weights(graph())]
    if score == "gatv2":
        operands.append(features(HEADS, FEAT, seed=9))

    def call(adj, q, k, v, bias, weight, att=None):
        out, lse = fusedmm.attention(adj, q, k, v, score=score, bias=bias, edge_weight=weight, att=att, return_lse=True)
        return torch.cat([out.flatten(1), lse.nan_to_num(neginf=0.0)], 1)

    return call, operands


CASES = {score: attend(score) for score in ("dot", "cosine", "additive", "gatv2")}
CASES |= {
    "cosine in one step": (attend_cosine, [features(NODES, FEAT), features(1, seed=5)]),
    "additive in one step": (
        lambda adj, x, att_k, att_q: attend_self(adj, x, None, att_k, att_q, None, 0.2, 0.0),
        [features(NODES, HEADS * FEAT), features(1, HEADS, FEAT, seed=5), features(1, HEADS, FEAT, seed=6)],
    ),
    "edge features": (
        lambda adj, *x: torch.cat([t.flatten(1) for t in attend_edges(adj, *x, 0.5, 0.0)], 1),
        [*(features(NODES, HEADS, FEAT, seed=k) for k in range(3)), features(NODES, HEADS, 2), features(40, 2)],
    ),
    "edge_softmax": (fusedmm.edge_softmax, [features(40, HEADS)]),
    "spmm": (lambda adj, val, x: fusedmm.spmm(adj.with_values(val), x), [weights(graph()), features(NODES, FEAT)]),
    "sddmm": (
        lambda adj, val, a, b: fusedmm.sddmm(adj.with_values(val), a, b),
        [weights(graph()), features(NODES, FEAT), features(NODES, FEAT, seed=5)],
    ),
    "fused": (
        lambda adj, val, *x: fusedmm.fused(adj.with_values(val), *x, edge="sigmoid(s)*a"),
        [weights(graph()), *(features(NODES, FEAT, seed=k) for k in range(3))],
    ),
    "fused max": (
        lambda adj, val, *x: fusedmm.fused(adj.with_values(val), *x, edge="sigmoid(s)*a", reduce="max"),
        [weights(graph()), *(features(NODES, FEAT, seed=k) for k in range(3))],
    ),
}


def second(call, adj, operands, wanted):
    """Of those wanted: gradients, and the gradients of what is made of these."""
    given = [t.detach().to(adj.device).requires_grad_(k in wanted) for k, t in enumerate(operands)]
    chosen = [given[k] for k in wanted]
    out = call(adj, *given)
    first = torch.autograd.grad(out.square().sum(), chosen, create_graph=True)
    joined = sum(g.square().sum() for g in first)
    return first, torch.autograd.grad(joined, chosen, allow_unused=True)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients_of_some_operands(name, device):
    """What is wanted besides changes no first gradient; of a single operand the second is that of all with one left."""
    call, operands = CASES[name]
    adj = fusedmm.as_csr(graph().to(device), size=NODES)
    everyone = range(len(operands))
    all_first, _ = second(call, adj, operands, everyone)
    for count in range(1, min(3, len(operands))):
        for wanted in itertools.combinations(everyone, count):
            first, _ = second(call, adj, operands, wanted)
            torch.testing.assert_close(first, tuple(all_first[k] for k in wanted))
    for k in everyone:
        (_,), (found,) = second(call, adj, operands, [k])
        given = [t.detach().to(adj.device).requires_grad_() for t in operands]
        (own,) = torch.autograd.grad(call(adj, *given).square().sum(), given[k], create_graph=True)
        (exact,) = torch.autograd.grad(own.square().sum(), given[k], allow_unused=True)
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_operators_under_checkpoints(name, reentrant, device):
    call, operands = CASES[name]
    adj = fusedmm.as_csr(graph().to(device), size=NODES)
    found = []
    for step in (call, lambda *given: checkpoint(call, *given, use_reentrant=reentrant)):
        given = [t.to(device).requires_grad_() for t in map(torch.clone, operands)]
        step(adj, *given).square().sum().backward()
        found.append([t.grad for t in given])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", every_layer.LAYERS)
def test_layers_under_checkpoints(name, reentrant, device):
    make, carried = every_layer.LAYERS[name]
    torch.manual_seed(0)
    layer, found = make().to(device), []
    given = [every_layer.EDGES.to(device), *([torch.rand(carried, device=device)] if carried else [])]
    for step in (layer, lambda *inputs: checkpoint(layer, *inputs, use_reentrant=reentrant)):
        x = features(every_layer.NODES, 4).float().to(device).requires_grad_()
        layer.zero_grad()
        step(x, *given).square().sum().backward()
        found.append([x.grad, *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*found, rtol=0, atol=0)
