"""Every operator on shared rows has the bits of one device: results, the gradients of all operands, and second ones."""

import weakref

import pytest
import torch
from distributed.every_call import EDGES, NODES, calls, graph
from distributed.graphs import CUTS, FEW, SQUARE, draw, normal
from support.ranks import Whole, both, on_ranks, require_equal, require_near

import fusedmm
from fusedmm.distributed import exchange

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=CUTS)
def whole(request):
    return CUTS[request.param]()


@pytest.fixture(params=SQUARE)
def square(request):
    return CUTS[request.param]()


@pytest.fixture(params=FEW)
def few(request):
    return CUTS[request.param]()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_spmm(whole, reduce):
    given = {"v": ("e", normal(whole.nnz)), "x": ("c", normal(whole.shape[1], 7))}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x, reduce=reduce), given, second=True))
    require_equal(both(whole, lambda adj, x: fusedmm.spmm(adj, x, reduce=reduce), {"x": given["x"]}, second=True))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_spmm_of_heads_and_dtypes(few, heads, dtype):
    given = {"v": ("e", normal(few.nnz, heads, dtype=dtype)), "x": ("c", normal(few.shape[1], 3, 5, dtype=dtype))}
    require_equal(both(few, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), given, second=dtype.itemsize > 2))


def test_spmm_of_the_transpose(whole):
    given = {"v": ("e", normal(whole.nnz)), "x": ("r", normal(whole.shape[0], 7))}
    require_equal(both(whole, lambda adj, v, x: fusedmm.spmm(adj.with_values(v).t(), x), given, "c", second=True))


def test_spmv(whole):
    rows, cols = whole.shape
    given = {"v": ("e", normal(whole.nnz)), "x": ("c", normal(cols)), "y": ("r", normal(rows))}
    turned = {"v": given["v"], "x": ("r", normal(rows))}

    def compute(adj, v, x, y):
        return fusedmm.spmv(adj.with_values(v), x, alpha=2, beta=0.5, y=y)

    require_near(both(whole, compute, given, second=True))
    require_near(both(whole, lambda adj, v, x: adj.with_values(v).t() @ x, turned, "c", second=True))
    require_near(both(whole, lambda adj, x: adj @ x, {"x": given["x"]}))
    require_near(both(whole, fusedmm.messages.copy_e_sum, {"e": given["v"]}))


def test_sddmm(whole):
    rows, cols = whole.shape
    given = {"v": ("e", normal(whole.nnz)), "a": ("r", normal(rows, 7)), "b": ("c", normal(cols, 7))}
    require_equal(both(whole, lambda adj, v, a, b: fusedmm.sddmm(adj.with_values(v), a, b), given, "e", second=True))


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_sddmm_elementwise(whole, op):
    rows, cols = whole.shape
    given = {"a": ("r", normal(rows, 3)), "b": ("c", normal(cols, 3))}
    require_equal(both(whole, lambda adj, a, b: fusedmm.sddmm(adj, a, b, op=op), given, "e", second=op == "mul"))
    turned = {"a": ("c", given["b"][1]), "b": ("r", given["a"][1])}
    require_equal(both(whole, lambda adj, a, b: fusedmm.sddmm(adj.t(), a, b, op=op), turned, "e"))


def test_edge_softmax(whole):
    given = {"logits": ("e", normal(whole.nnz, 3))}
    require_equal(both(whole, lambda adj, logits: fusedmm.edge_softmax(adj, logits), given, "e", second=True))


@pytest.mark.parametrize("edge", ["s*a", "sigmoid(s)*a"])
def test_fused_of_one_operand(square, edge):
    given = {"x": ("r", normal(square.shape[0], 7)), "v": ("e", normal(square.nnz))}
    require_equal(both(square, lambda adj, x, v: fusedmm.fused(adj.with_values(v), x, edge=edge), given))
    require_equal(both(square, lambda adj, x: fusedmm.fused(adj, x, edge=edge), {"x": given["x"]}))


def test_fused_of_constant_values(square):
    """A symmetric pattern with one operand takes one pass on the CPU, in which values of both directions meet."""
    val = normal(square.nnz)

    def compute(adj, x):
        mine = val if len(val) == adj.nnz else val[adj.edge_ids]
        return fusedmm.fused(adj.with_values(mine), x)

    require_equal(both(square, compute, {"x": ("r", normal(square.shape[0], 7))}))


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({"score": "sqdist", "edge": "exp(0-s)", "reduce": "mean"}, 4),
        ({"score": "l1", "edge": "s", "message": "add", "activation": "relu"}, None),
        ({"score": "none", "edge": "s", "message": "max"}, None),
        ({"score": "dot", "reduce": "max"}, 4),
    ],
)
def test_fused(whole, options, width):
    rows, cols = whole.shape
    given = {"x": ("r", normal(rows, 7)), "y": ("c", normal(cols, 7))}
    if width is not None:
        given["z"] = ("c", normal(cols, width))
    require_equal(both(whole, lambda adj, x, y, z=None: fusedmm.fused(adj, x, y, z, **options), given))


def test_fused_through_its_composite(few):
    """Maxima of other messages and second derivatives gather in another order than one device: within the bound."""
    given = {"x": ("r", normal(few.shape[0], 5)), "y": ("c", normal(few.shape[1], 5))}
    for options in ({"message": "add", "edge": "s", "reduce": "max"}, {"score": "sqdist", "edge": "sigmoid(s)"}):
        pairs = both(
            few, lambda adj, x, y, o=options: fusedmm.fused(adj, x, y, **o), given, second="reduce" not in options
        )
        assert torch.equal(pairs[0][2], pairs[0][3])
        for name, _, one, many in pairs:
            assert torch.allclose(one, many, rtol=1e-4, atol=1e-5 * float(one.abs().max() + 1)), name


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "gatv2"])
def test_attention(whole, score, dropout):
    rows, cols = whole.shape
    width = () if score == "additive" else (4,)
    given = {"q": ("r", normal(rows, 3, *width)), "k": ("c", normal(cols, 3, *width)), "v": ("c", normal(cols, 3, 5))}
    if score == "gatv2":
        given["att"] = ("p", normal(3, 4))

    def plain(adj, q, k, v, att=None):
        return fusedmm.attention(adj, q, k, v, score=score, att=att, dropout=dropout, return_weights=True)

    def rich(adj, q, k, v, b, w, att=None):
        options = {"bias": b, "edge_weight": w, "dropout": dropout, "return_lse": True}
        return fusedmm.attention(adj, q, k, v, score=score, att=att, **options)

    require_equal(both(whole, plain, given, "re"))
    edges = {"b": ("e", normal(whole.nnz, 3)), "w": ("e", normal(whole.nnz))}
    require_equal(both(whole, rich, given | edges, "rr", second=True))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_attention_of_other_dtypes(few, dtype):
    rows, cols = few.shape
    shapes = {"q": ("r", rows), "k": ("c", cols), "v": ("c", cols)}
    given = {name: (role, normal(n, 2, 4, dtype=dtype)) for name, (role, n) in shapes.items()}
    require_equal(both(few, lambda adj, q, k, v: fusedmm.attention(adj, q, k, v, dropout=0.3), given))


def test_transposes_are_matrices(whole):
    """The transpose of a part is one that users may give: edges then lie with the owners of its columns."""
    rows, cols = whole.shape
    q, k, v = ("c", normal(cols, 2, 4)), ("r", normal(rows, 2, 4)), ("r", normal(rows, 2, 3))
    edges = {"b": ("e", normal(whole.nnz, 2)), "w": ("e", normal(whole.nnz))}

    def attend(adj, q, k, v, b, w):
        return fusedmm.attention(adj.t(), q, k, v, bias=b, edge_weight=w, dropout=0.3, return_weights=True)[0]

    require_equal(both(whole, attend, {"q": q, "k": k, "v": v} | edges, "c"))
    given = {"x": ("c", normal(cols, 5)), "y": ("r", normal(rows, 5)), "v": ("e", normal(whole.nnz))}
    for reduce in ("sum", "max"):
        require_equal(
            both(whole, lambda adj, x, y, v: fusedmm.fused(adj.with_values(v).t(), x, y, reduce=reduce), given, "c")  # noqa: B023
        )
    require_equal(both(whole, lambda adj, b: fusedmm.edge_softmax(adj.t(), b), {"b": edges["b"]}, "e", second=True))


def test_rows_of_many_chunks():
    """Kernels walk large matrices in chunks, which begin at other rows on a rank than on one device."""
    nodes, edges = 3000, 40_000
    row, col = torch.randint(nodes, (edges,), generator=draw), torch.randint(nodes, (edges,), generator=draw)
    row[:9000], col[9000:16_000] = 1234, 77  # hubs on either side
    large = Whole(row, col, (nodes, nodes), [0, 700, 1234, 1235, 3000])
    x, v = ("r", normal(nodes, 8)), ("e", normal(edges))
    given = {"v": v, "x": ("r", normal(nodes))}
    require_near(both(large, lambda adj, v, x: adj.with_values(v) @ x, given))
    require_equal(both(large, lambda adj, v, x: fusedmm.spmm(adj.with_values(v), x), {"v": v, "x": x}))
    require_equal(both(large, lambda adj, x: fusedmm.fused(adj, x, edge="sigmoid(s)"), {"x": x}))
    q, k, z = (("r", normal(nodes, 2, 4)) for _ in range(3))
    require_equal(both(large, lambda adj, q, k, z: fusedmm.attention(adj, q, k, z), {"q": q, "k": k, "z": z}))
    q, k = (("r", normal(nodes, 2)) for _ in range(2))
    given = {"q": q, "k": k, "z": z, "b": ("e", normal(edges, 2))}
    require_equal(both(large, lambda adj, q, k, z, b: fusedmm.attention(adj, q, k, z, score="additive", bias=b), given))


@pytest.mark.parametrize("name", ["spmm sum 128", "sddmm", "attention dot, dropout 0.0", "GATConv"])
def test_a_call_leaves_no_operand_behind(name, monkeypatch):
    """What ranks remember of a call, to tell of it where another fails, has no tensor that was given or fetched."""
    compute, given, _ = next(rest for found, *rest in calls("cpu", EDGES) if found == name)
    whole, seen = graph("cpu", [0, 1300, NODES]), []
    begin = exchange.Exchange.begin

    def noted(*args, **options):
        end = begin(*args, **options)

        def ended():
            found = end()
            seen.extend(map(weakref.ref, found))
            return found

        return ended

    monkeypatch.setattr(exchange.Exchange, "begin", noted)

    def work(ranks):
        part = whole.part(ranks)
        leaves = {key: whole.cut(t, role, part).clone().requires_grad_() for key, (role, t) in given.items()}
        compute(part, **leaves).sum().backward()
        seen.extend(map(weakref.ref, leaves.values()))
        return part

    parts = on_ranks(2, work)
    assert len(parts) == 2 and len(seen) > 2 and not any(ref() is not None for ref in seen)
