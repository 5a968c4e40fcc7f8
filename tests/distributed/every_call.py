"""A graph with rows that are cut in pieces, and calls of every operator and layer that communicates, on any device."""

import torch
from support.ranks import Whole

import fusedmm
from fusedmm import nn

NODES, EDGES, HEADS = 3000, 300_000, 8


def graph(device: str, offsets: list[int]) -> Whole:
    """Of more than 200,000 entries, where one device and each of its ranks would cut rows in other pieces."""
    generator = torch.Generator().manual_seed(5)
    row, col = torch.randint(NODES, (2, EDGES), generator=generator)
    row[:20_000], col[20_000:60_000], row[60_000:62_000] = 77, 1234, 2500
    order = torch.randperm(EDGES, generator=generator)
    return Whole(row[order].to(device), col[order].to(device), (NODES, NODES), offsets)


def normal(*shape: int, dtype=torch.float32, device="cpu", seed=1):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)


def calls(device: str, nnz: int):
    """(name, what is computed of the matrix and of operands, the operands and whose rows they have, whose the result
    is), for ``support.ranks.both`` and for processes."""

    def dense(*shape, dtype=torch.float32, seed=1):
        return normal(NODES, *shape, dtype=dtype, device=device, seed=seed)

    val = ("e", normal(nnz, device=device))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for width in (128, 172):
            given = {"v": ("e", val[1].to(dtype)), "x": ("c", dense(width, dtype=dtype))}
            yield f"spmm {dtype} {width}", lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given, "r"
    for reduce in ("sum", "mean", "max", "min"):
        for width in (64, 128, 256):
            given = {"v": val, "x": ("c", dense(width))}
            yield (
                f"spmm {reduce} {width}",
                lambda adj, v, x, reduce=reduce: fusedmm.spmm(adj.with_values(v), x, reduce=reduce),
                given,
                "r",
            )
    given = {"x": ("c", dense(HEADS, 16))}
    yield "spmm of heads", lambda adj, x: fusedmm.spmm(adj, x), given, "r"
    a, b = ("r", dense(128)), ("c", dense(128, seed=2))
    yield "sddmm", lambda adj, v, a, b: fusedmm.sddmm(adj.with_values(v), a, b), {"v": val, "a": a, "b": b}, "e"
    logits = ("e", normal(nnz, HEADS, device=device))
    yield "edge_softmax", lambda adj, e: fusedmm.edge_softmax(adj, e), {"e": logits}, "e"
    yield "fused", lambda adj, x: fusedmm.fused(adj, x, edge="sigmoid(s)*a"), {"x": a}, "r"
    for score in ("dot", "additive", "gatv2"):
        width = () if score == "additive" else (8,)
        given = {"q": ("r", dense(HEADS, *width)), "k": ("c", dense(HEADS, *width, seed=3))}
        given["v"] = ("c", dense(HEADS, 8, seed=4))
        if score == "gatv2":
            given["att"] = ("p", normal(HEADS, 8, device=device))
        for dropout in (0.0, 0.3):
            yield (
                f"attention {score}, dropout {dropout}",
                lambda adj, q, k, v, att=None, score=score, dropout=dropout: fusedmm.attention(
                    adj, q, k, v, att=att, score=score, dropout=dropout
                ),
                given,
                "r",
            )
    makers = {
        "GCNConv": lambda: nn.GCNConv(64, 64),
        "GATConv": lambda: nn.GATConv(64, 8, heads=HEADS),
        "GATv2Conv": lambda: nn.GATv2Conv(64, 8, heads=HEADS),
        "SAGEConv": lambda: nn.SAGEConv(64, 64),
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        layer = make().to(device)
        yield name, lambda adj, x, layer=layer: layer(x, adj), {"x": ("r", dense(64))}, "r"
