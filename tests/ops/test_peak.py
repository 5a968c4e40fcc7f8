"""Attention and fused neither keep nor make anything of the size edges x heads, forward or backward.

The graph has 3,333 entries to a row, so that next to a byte for each edge and head (LIMIT) what belongs to nodes is
small, and so are the partial sums of long rows on CUDA, of which there is one for about 128 entries.
"""

import functools
import gc

import pytest
import torch

import fusedmm
from benchmarks.trial import peak_bytes
from fusedmm import presets

NODES, ENTRIES, HEADS, FEAT = 300, 1_000_000, 4, 4
LIMIT = ENTRIES * HEADS  # bytes: a float32 per edge alone would reach it, one per edge and head is four times as much
NUMBERS = NODES * HEADS * 4  # bytes of one float32 per node and head

FUSED = {
    f"{reduce} {score}": {"score": score, "reduce": reduce}
    for reduce in ("sum", "mean")
    for score in ("dot", "sqdist", "l1")
} | {"sigmoid": presets.SIGMOID_EMBEDDING, "t": presets.T_DISTRIBUTION}


@functools.cache
def graph(device, symmetric=False):
    """Random entries, many of them twice; with its transpose, which is made once per structure."""
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES, (2, ENTRIES), generator=g)
    if symmetric:
        ends[:, ENTRIES // 2 :] = ends[:, : ENTRIES // 2].flip(0)
    return fusedmm.CSR.from_coo(*ends.to(device), shape=(NODES, NODES)).cache_transpose()


def attention(score, device, **options):
    """Forward, and the operands."""
    width = [] if score == "additive" else [FEAT]
    sizes = [(NODES, HEADS, *width), (NODES, HEADS, *width), (NODES, HEADS, FEAT)]
    operands = [torch.randn(*size, device=device, requires_grad=True) for size in sizes]
    if score == "gatv2":
        operands.append(torch.randn(HEADS, FEAT, device=device, requires_grad=True))
        options["att"] = operands[3]
    return lambda: fusedmm.attention(graph(device), *operands[:3], score=score, **options), operands


def fused(device, symmetric=False, **options):
    x = torch.randn(NODES, HEADS, FEAT, device=device, requires_grad=True)
    return lambda: fusedmm.fused(graph(device, symmetric), x, **options), [x]


def saved_bytes(forward, operands, adj):
    """Memory that autograd keeps for the backward, beyond the operands' and the matrix's."""
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        found = forward()
    given = [*operands, adj.ptr, adj.idx, adj.eid, adj.plan, *adj.transpose_half()]
    for t in given:
        kept.pop(t.untyped_storage().data_ptr(), None)
    del found
    return sum(kept.values())


def peak(forward, operands):
    """The most memory that forward and backward hold at a time, beyond what was there and the gradients."""

    def step():
        found = forward()
        out = found[0] if isinstance(found, tuple) else found
        return (*([found] if out is found else found), *torch.autograd.grad(out.sum(), operands))

    results = len(step()) - len(operands)  # the first use makes what is kept
    gc.collect()
    return peak_bytes(step, results, operands[0].is_cuda)[0]


def documented(score):
    """Numbers per node and head: out and lse, which are two; of additive scores, whose q learns, those of positive
    arguments too; of cosine scores also the units of q and k, and what torch's normalize keeps to make them."""
    return {"additive": 2 * FEAT + 3, "cosine": 3 * FEAT + 9}.get(score, FEAT + 2)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2", "cosine"])
def test_attention_keeps_numbers_of_nodes_only(score, dropout, device):
    forward, operands = attention(score, device, dropout=dropout)
    seed = 8 if dropout else 0
    assert saved_bytes(forward, operands, graph(device)) <= documented(score) * NUMBERS + seed


@pytest.mark.parametrize("name", FUSED)
def test_fused_keeps_its_operands_only(name, device):
    assert saved_bytes(*fused(device, **FUSED[name]), graph(device)) == 0


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2", "cosine"])
def test_attention_makes_nothing_of_edges_and_heads(score, dropout, device):
    found = peak(*attention(score, device, dropout=dropout))
    assert 0 < found < LIMIT, f"{found / LIMIT} bytes per edge and head"


@pytest.mark.parametrize("name", FUSED)
def test_fused_makes_nothing_of_edges_and_heads(name, device):
    """But on a CPU, of dot products with a plain scale, two float32 per edge and head in backward (docs/fused.md)."""
    score, message = (FUSED[name].get(*pair) for pair in (("score", "dot"), ("message", "scale")))
    keeps = 8 if device == "cpu" and score == "dot" and message == "scale" else 0
    found = peak(*fused(device, **FUSED[name]))
    assert keeps * LIMIT < found < (keeps + 1) * LIMIT, f"{found / LIMIT} bytes per edge and head"


@pytest.mark.parametrize("name", ["sum dot", "sigmoid"])
def test_fused_over_symmetric_patterns_makes_nothing_of_edges_on_either_device(name, device):
    assert 0 < peak(*fused(device, symmetric=True, **FUSED[name])) < LIMIT


@pytest.mark.parametrize("what", ["weights", "two calls"])
def test_what_has_numbers_of_edges_is_seen(what, device):
    """The measures above find the weights that a caller asks for, and the scores between SDDMM and SpMM."""
    if what == "weights":
        forward, operands = attention("dot", device, return_weights=True)
    else:
        adj, (_, operands) = graph(device), fused(device)
        (x,) = operands

        def forward():
            return fusedmm.spmm(adj.with_values(fusedmm.sddmm(adj, x, x)), x)

    assert saved_bytes(forward, operands, graph(device)) > 3 * LIMIT
    assert peak(forward, operands) > 4 * LIMIT
