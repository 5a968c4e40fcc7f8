"""Every form of tensor for every tensor argument of the public functions: right, or refused by the argument's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.generate import works
from support.layouts import FORMS, assert_right_or_named
from torch import Tensor

import fusedmm
from fusedmm import nn

NODES, NNZ, HEADS, FEAT = 6, 20, 2, 4
CSR = fusedmm.CSR
Calls = dict[str, tuple[Callable[..., Any], dict[str, Tensor]]]


def parts(adj: CSR) -> tuple[Any, ...]:
    return adj.ptr, adj.idx, adj.eid, adj.val


def layer(make: Any, device: str) -> Any:
    torch.manual_seed(0)
    return make().double().to(device)


def calls() -> Calls:
    """What is called with tensors by name; the first of a layer's output where there are several."""
    g = torch.Generator().manual_seed(0)

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, generator=g, dtype=torch.float64)

    edges = torch.randint(0, NODES - 1, (2, NNZ), generator=g)
    ptr, idx = torch.tensor([0, 4, 4, 9, 12, 15, NNZ]), torch.randint(0, NODES, (NNZ,), generator=g)
    val, wide, x, y = numbers(NNZ), numbers(NNZ, HEADS), numbers(NODES, FEAT), numbers(NODES, FEAT)
    q, k, v = (numbers(NODES, HEADS, FEAT) for _ in range(3))
    one, two = numbers(NODES, HEADS), numbers(NODES, HEADS)

    def on(t: Tensor) -> CSR:
        """The graph; t says only on which device the test runs."""
        return CSR.from_coo(edges[1].to(t.device), edges[0].to(t.device), shape=(NODES, NODES))

    def given(name: str, make: Any, **tensors: Tensor) -> None:
        found[name] = make, tensors

    found: Calls = {}
    for values, dense in ((val, x), (wide, q)):
        given(
            f"spmm {values.dim()}", lambda here, val, x: fusedmm.spmm(on(here).with_values(val), x), val=values, x=dense
        )
        given(
            f"spmm max {values.dim()}",
            lambda here, val, x: fusedmm.spmm(on(here).with_values(val), x, reduce="max"),
            val=values,
            x=dense,
        )
        for op in ("dot", "mul"):
            given(
                f"sddmm {op} {values.dim()}",
                lambda here, val, a, b, op=op: fusedmm.sddmm(on(here).with_values(val), a, b, op=op),
                val=values,
                a=dense,
                b=dense.flip(0),
            )
        for options in ({}, {"score": "none", "reduce": "max"}, {"score": "sqdist", "edge": "s+a"}):
            given(
                f"fused {options} {values.dim()}",
                lambda here, val, x, y, z, o=options: fusedmm.fused(on(here).with_values(val), x, y, z, **o),
                val=values,
                x=dense,
                y=dense.flip(0),
                z=dense + 1,
            )
    given("@", lambda here, x: densified(on(here) @ x), x=x)
    given("@ vector", lambda here, x: on(here) @ x, x=x[:, 0].clone())
    for score in ("dot", "cosine", "additive", "gatv2"):
        heads = {"q": one, "k": two} if score == "additive" else {"q": q, "k": k}
        more = {"att": numbers(HEADS, FEAT)} if score == "gatv2" else {}
        given(
            f"attention {score}",
            lambda here, s=score, **t: fusedmm.attention(on(here), **t, score=s, return_weights=True, return_lse=True),
            **heads, v=v, bias=wide, edge_weight=wide + 2, **more,
        )  # fmt: skip
    given("attention, one head", lambda here, **t: fusedmm.attention(on(here), **t), q=x, k=y, v=x + 1, bias=val)
    given("edge_softmax", lambda here, logits: fusedmm.edge_softmax(on(here), logits), logits=wide)
    given("edge_softmax, one head", lambda here, logits: fusedmm.edge_softmax(on(here), logits), logits=val)

    size = (NODES, NODES)
    given("from_csr", lambda here, **t: parts(CSR.from_csr(**t, shape=size)), ptr=ptr, idx=idx, val=val)
    given("from_csr, no shape", lambda here, **t: parts(CSR.from_csr(**t)), ptr=ptr, idx=idx, val=wide)
    given("from_csr, int32", lambda here, **t: parts(CSR.from_csr(**t, check=False)), ptr=ptr.int(), idx=idx.int())
    given("from_coo", lambda here, **t: parts(CSR.from_coo(**t, shape=size)), row=edges[1], col=edges[0], val=val)
    given("from_coo, no shape", lambda here, **t: parts(CSR.from_coo(**t)), row=edges[1], col=edges[0], val=wide)
    given(
        "from_coo unchecked",
        lambda here, **t: parts(CSR.from_coo(**t, shape=size, check=False)),
        row=edges[1],
        col=edges[0],
    )
    given("from_edge_index", lambda here, **t: parts(CSR.from_edge_index(**t)), edge_index=edges, edge_weight=val)
    given("from_dense", lambda here, dense: parts(CSR.from_dense(dense)), dense=x)
    given("as_csr", lambda here, edge_index: parts(fusedmm.as_csr(edge_index, size=NODES)), edge_index=edges)
    given("as_csr of parts", lambda here, **t: parts(fusedmm.as_csr(tuple(t.values()))), ptr=ptr, idx=idx, val=val)
    given("with_values", lambda here, val: parts(on(here).with_values(val)), val=wide)
    given("the transpose", lambda here, val: fusedmm.spmm(on(here).with_values(val).t(), x.to(here.device)), val=val)
    given("into other forms", lambda here, val: (on(here).with_values(val).to_dense(),), val=wide)
    given("into a sparse tensor", lambda here, val: on(here).with_values(val).to_torch().values(), val=val)
    given("add_self_loops", lambda here, val: parts(on(here).with_values(val).add_self_loops()), val=wide)
    given("gcn_norm", lambda here, val: parts(on(here).with_values(val).gcn_norm()), val=wide.square())
    given("to", lambda here, val: parts(on(here).with_values(val).to(dtype=torch.float64)), val=wide)

    layers = {
        "GCNConv": (lambda: nn.GCNConv(FEAT, 4), {"edge_weight": val.abs()}),
        "GCNConv, not normalised": (lambda: nn.GCNConv(FEAT, 4, normalize=False), {"edge_weight": val}),
        "SAGEConv": (lambda: nn.SAGEConv(FEAT, 4), {}),
        "SAGEConv of softmax": (lambda: nn.SAGEConv(FEAT, 4, aggr="softmax"), {}),
        "GINConv": (lambda: nn.GINConv(torch.nn.Identity()), {}),
        "GINEConv": (lambda: nn.GINEConv(torch.nn.Identity()), {"edge_attr": numbers(NNZ, FEAT)}),
        "GINEConv of edge_dim": (
            lambda: nn.GINEConv(torch.nn.Linear(FEAT, 4), edge_dim=3),
            {"edge_attr": numbers(NNZ, 3)},
        ),
        "GATConv": (lambda: nn.GATConv(FEAT, 4, heads=2), {}),
        "GATConv of edge_dim": (lambda: nn.GATConv(FEAT, 4, heads=2, edge_dim=3), {"edge_attr": numbers(NNZ, 3)}),
        "GATv2Conv": (lambda: nn.GATv2Conv(FEAT, 4, heads=2), {}),
        "GATv2Conv of edge_dim": (lambda: nn.GATv2Conv(FEAT, 4, heads=2, edge_dim=1), {"edge_attr": val}),
        "TransformerConv": (lambda: nn.TransformerConv(FEAT, 4, heads=2), {}),
        "TransformerConv of edge_dim": (
            lambda: nn.TransformerConv(FEAT, 4, edge_dim=3),
            {"edge_attr": numbers(NNZ, 3)},
        ),
        "AGNNConv": (lambda: nn.AGNNConv(), {}),
        "RGCNConv": (lambda: nn.RGCNConv(FEAT, 4, 3), {"edge_type": torch.arange(NNZ) % 3}),
        "SuperGATConv": (lambda: nn.SuperGATConv(FEAT, 4, heads=2), {}),
        "ResGatedGraphConv": (lambda: nn.ResGatedGraphConv(FEAT, 4), {}),
        "ResGatedGraphConv of edge_dim": (
            lambda: nn.ResGatedGraphConv(FEAT, 4, edge_dim=3),
            {"edge_attr": numbers(NNZ, 3)},
        ),
        "GENConv": (lambda: nn.GENConv(FEAT, 4, edge_dim=3, norm="layer"), {"edge_attr": numbers(NNZ, 3)}),
        "PNAConv": (lambda: nn.PNAConv(FEAT, 4, ["mean", "std"], ["linear"], torch.tensor([1, 2])), {}),
        "GraphConv": (lambda: nn.GraphConv(FEAT, 4), {"edge_weight": val}),
        "LGConv": (lambda: nn.LGConv(), {"edge_weight": val.abs()}),
        "SGConv": (lambda: nn.SGConv(FEAT, 4), {"edge_weight": val.abs()}),
        "APPNP": (lambda: nn.APPNP(2, 0.1), {"edge_weight": val.abs()}),
        "TAGConv": (lambda: nn.TAGConv(FEAT, 4, K=2), {"edge_weight": val.abs()}),
        "ChebConv": (lambda: nn.ChebConv(FEAT, 4, 3), {"edge_weight": val.abs()}),
    }
    for name, (make, carried) in layers.items():
        given(name, lambda here, m=make, **t: layer(m, here.device)(**t), x=x, edge_index=edges, **carried)
    carried = numbers(NNZ, 3)
    given(
        "fill_value",
        lambda here, fill_value: layer(lambda: nn.GATConv(FEAT, 4, edge_dim=3, fill_value=fill_value), here.device)(
            *(t.to(here.device) for t in (x, edges, carried))
        ),
        fill_value=numbers(3),
    )
    return found


def densified(product):
    """A product with a sparse tensor is a CSR."""
    return product.to_torch().to_dense() if isinstance(product, fusedmm.CSR) else product


CALLS = calls()


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_public_functions(name, device):
    call, tensors = CALLS[name]
    tensors = {argument: t.to(device) for argument, t in tensors.items()}
    here, tried, wrong = torch.zeros(0, device=device), 0, []
    for argument in tensors:
        for form in FORMS:
            try:
                tried += assert_right_or_named(partial(call, here), form, tensors, argument, (TypeError, ValueError))
            except AssertionError as e:
                wrong.append(str(e)[:230])
    assert not wrong, "\n" + "\n".join(wrong)
    assert tried > 10 * len(tensors)
    works(device)
