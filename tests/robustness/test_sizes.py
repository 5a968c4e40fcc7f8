"""Numbers beyond what a dtype or int64 holds, and operands of no heads or channels: taken, or refused by name."""

import itertools
import re
from fractions import Fraction

import pytest
import torch
from support.fused_oracle import for_edge
from support.generate import own_algorithms, small, works

import fusedmm
from fusedmm import data, nn
from fusedmm.edge.parse import parse

EDGES = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 1, 3]])
ATTR = torch.ones(5, 3)
X = torch.arange(16.0).view(4, 4) / 7


def pattern():
    return fusedmm.CSR.from_edge_index(EDGES, size=4)


def attend(**options):
    q = X[:, 0].contiguous() if "slope" in options else X
    return fusedmm.attention(pattern(), q, q, X, score="additive" if "slope" in options else "dot", **options)


def softmax(**options):
    return nn.SAGEConv(4, 4, aggr="softmax", aggr_kwargs=options)(X, EDGES)


def powermean(**options):
    return nn.SAGEConv(4, 4, aggr="powermean", aggr_kwargs=options)(X, EDGES)


ATTENTION = {"GATConv": nn.GATConv, "GATv2Conv": nn.GATv2Conv, "TransformerConv": nn.TransformerConv}
LAYERS = {"GCNConv": nn.GCNConv, "SAGEConv": nn.SAGEConv, **ATTENTION}
# name of the argument, what is called with it
NUMBERS = {
    "add_self_loops: fill": lambda n: pattern().with_values(ATTR[:, 0]).add_self_loops(n),
    "add_self_loops: fill of 16 bits": lambda n: pattern().with_values(ATTR[:, 0].half()).add_self_loops(n),
    "add_self_loops: fill of a pattern": lambda n: pattern().add_self_loops(n),
    "shape of from_csr": lambda n: fusedmm.CSR.from_csr(pattern().ptr, pattern().idx, shape=(4, n)),
    "shape of rows": lambda n: fusedmm.CSR.from_csr(pattern().ptr, pattern().idx, shape=(n, 4)),
    "shape of from_coo": lambda n: fusedmm.CSR.from_coo(*EDGES, shape=(n, n)),
    "size of from_edge_index": lambda n: fusedmm.CSR.from_edge_index(EDGES, size=n),
    "size of as_csr": lambda n: fusedmm.as_csr(EDGES, size=(n, 4)),
    "size of a layer": lambda n: nn.SAGEConv(4, 4)((X, None), EDGES, size=(4, n)),
    "size[0] of a layer": lambda n: nn.SAGEConv(4, 4)((X, None), EDGES, size=(n, 4)),
    "device of to": lambda n: pattern().to(n),
    **{f"{name} of attention": lambda n, name=name: attend(**{name: n}) for name in ("scale", "slope", "dropout")},
    **{f"in_channels: {k}": lambda n, layer=layer: layer(n, 4) for k, layer in LAYERS.items()},
    **{f"out_channels: {k}": lambda n, layer=layer: layer(4, n) for k, layer in LAYERS.items()},
    **{f"heads: {k}": lambda n, layer=layer: layer(4, 4, heads=n) for k, layer in ATTENTION.items()},
    **{f"edge_dim: {k}": lambda n, layer=layer: layer(4, 4, edge_dim=n) for k, layer in ATTENTION.items()},
    **{f"dropout: {k}": lambda n, layer=layer: layer(4, 4, dropout=n) for k, layer in ATTENTION.items()},
    "negative_slope: GATConv": lambda n: nn.GATConv(4, 4, negative_slope=n)(X, EDGES),
    "negative_slope: GATv2Conv": lambda n: nn.GATv2Conv(4, 4, negative_slope=n, edge_dim=3)(X, EDGES, ATTR),
    "fill_value: GATConv": lambda n: nn.GATConv(4, 4, edge_dim=3, fill_value=n)(X, EDGES, ATTR),
    "fill_value: of 16 bits": lambda n: nn.GATConv(4, 4, edge_dim=3, fill_value=n).half()(X.half(), EDGES, ATTR.half()),
    "edge_dim: GINEConv": lambda n: nn.GINEConv(torch.nn.Linear(4, 4), edge_dim=n),
    "eps: GINConv": lambda n: nn.GINConv(torch.nn.Identity(), eps=n)(X, EDGES),
    "t: softmax": lambda n: softmax(t=n),
    "p: powermean": lambda n: powermean(p=n),
    "clamp_max: powermean": lambda n: powermean(p=2, clamp_max=n),
    "channels: powermean": lambda n: powermean(learn=True, channels=n),
    "shape of banded": lambda n: data.banded(n, 1),
    "shape of uniform": lambda n: data.uniform(n, 4, 5),
    "entries of uniform": lambda n: data.uniform(4, 4, n),
    "scale of rmat": lambda n: data.rmat(n, 2),
    "edge factor of rmat": lambda n: data.rmat(4, n),
    "quarters of rmat": lambda n: data.rmat(4, 2, a=n),
    "grid of stencil": lambda n: data.stencil(n, n),
}
HUGE = [2**31, 2**40, 2**62, 2**63, 2**64, 2**70, 10**400, -(2**63) - 1, -(10**400)]
SCALARS = ("fill", "scale", "slope", "dropout", "eps", "t", "p", "clamp_max", "quarters")


@pytest.mark.parametrize("what", NUMBERS)
def test_huge_numbers(what):
    name = re.escape(re.match(r"(?:add_self_loops: )?[\w\[\]]+(?: factor)?", what)[0].replace("add_self_loops: ", ""))
    of_floats = [1e5, 1e39, 1e308, -1e308, Fraction(10**400)] if re.search(rf"\b({'|'.join(SCALARS)})", what) else []
    for number in [*HUGE, *of_floats]:
        try:
            NUMBERS[what](number)
        except (TypeError, ValueError) as error:
            assert re.search(f"{name}|shape" if "of stencil" in what else name, str(error)), f"{error} of {what}"


def test_a_scale_is_a_number_of_the_sums():
    q = X.new_tensor([[1e-20], [1e-20]])
    adj = fusedmm.CSR.from_edge_index(torch.tensor([[0, 1], [0, 0]]), size=2)
    with pytest.raises(ValueError, match=r"^attention: scale must be within 3\.40282e\+38, .* not 1e\+40"):
        fusedmm.attention(adj, q, q, q, scale=1e40)
    assert fusedmm.attention(adj, q.double(), q.double(), q.double(), scale=1e40).isfinite().all()


@pytest.mark.parametrize("name", ["scale", "slope", "dropout"])
def test_a_number_may_be_a_plain_tensor_of_one(name):
    half = torch.tensor(0.5)
    assert attend(**{name: half}).shape == X.shape
    for odd in (half.to_sparse(), half.to(torch.complex64), half.to(torch.float8_e4m3fn), half.to(torch.uint16)):
        with pytest.raises(TypeError, match=f"^attention: {name} must be a number, not a tensor of {odd.dtype}, "):
            attend(**{name: odd})


def test_numbers_that_a_dtype_has_are_taken():
    adj = pattern().with_values(ATTR[:, 0])
    for fill in (3.0, float("inf"), 3, True, Fraction(1, 4), 2**64):
        assert adj.add_self_loops(fill).val[-4:].tolist() == [float(fill)] * 3 + [1.0]  # node 3 has a loop already
    assert nn.GINConv(torch.nn.Identity(), eps=2**64)(X, EDGES).isfinite().all()


def test_channels_of_what_an_aggregation_learns():
    with pytest.raises(ValueError, match="x has 4 features, the p of aggr 'powermean' 3"):
        powermean(learn=True, channels=3)
    with pytest.raises(ValueError, match="p must not be 0"):
        powermean(p=0)
    assert powermean(learn=True, channels=4).isfinite().all()


# ---- edge expressions ----

PIECES = [
    "s**{}", "s*{}", "s+{}", "s/{}", "leaky_relu(s,{})", "maximum(s,{})", "exp(s*{})", "log({}*a)", "sqrt(s*{})",
    "(s+{})**2", "tanh(s)**{}", "sigmoid({}*s)", "softplus({}*s)", "{}", "abs(s)**{}*{}", "1/{}", "minimum(a,{})**3",
]  # fmt: skip
CONSTANTS = ["1e308", "-1e308", "5e-324", "1e400", "1e39", "-1e39", str(2**70), "9" * 400, "0", "-0.0", "1e-45"]


@pytest.mark.parametrize("piece", PIECES)
def test_constants_of_any_size(piece, device):
    """Beyond a dtype's largest they are infinite in every path; what is no number in float64 is refused."""
    s, a = torch.tensor([[-2.0], [-0.5], [0.0], [1.0], [3.0]]), torch.tensor([0.5, -1.0, 2.0, 1.0, 0.0])
    eye = fusedmm.CSR.from_coo(torch.arange(5), torch.arange(5), a).to(device)
    ones = torch.ones(5, 1, device=device)
    for constant in CONSTANTS:
        edge = piece.replace("{}", constant)
        try:
            expression = parse(edge)
        except ValueError as error:
            assert "edge: " in str(error) and "is no finite number" in str(error)
            continue
        x = s.to(device).requires_grad_()
        out = fusedmm.fused(for_edge(eye, edge), x, ones, edge=edge)
        out.nan_to_num().sum().backward()
        most = fusedmm.fused(for_edge(eye, edge), x, ones, edge=edge, reduce="max")
        most.nan_to_num().sum().backward()
        if constant != "5e-324":  # as a power, for which the kernels keep it and torch has 0
            rounded = expression.torch(s[:, 0], a)
            torch.testing.assert_close(out[:, 0].cpu().detach(), rounded, equal_nan=True, msg=edge)
            torch.testing.assert_close(most, out, equal_nan=True, msg=edge)
    works(device)


# ---- no heads, no channels ----

SHAPES = [(0,), (0, 4), (2, 0), (0, 0), (2, 4)]
OPERATORS = ["spmm sum", "spmm mean", "spmm max", "sddmm dot", "sddmm add", "fused sum", "fused mean", "fused max"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_without_heads_or_channels(operator, device):
    """Of values [nnz], [nnz, 1] and one per head, none of which may be none."""
    adj, (op, option) = small(device=device), operator.split()
    for shape, heads in itertools.product(SHAPES, (None, 0, 1, 2)):
        val = torch.ones((60,) if heads is None else (60, heads), device=device, requires_grad=True)
        a, b = (torch.ones(n, *shape, device=device, requires_grad=True) for n in (12, 15))
        given = adj.with_values(val)
        try:
            if op == "spmm":
                out = fusedmm.spmm(given, b, reduce=option)
            elif op == "sddmm":
                out = fusedmm.sddmm(given, a, b, op=option)
            else:
                out = fusedmm.fused(given, a, b, edge="sigmoid(s)*a", reduce=option)
        except ValueError as error:
            assert "values" in str(error) and (len(shape) == 1 or heads not in (1, shape[0])), (
                f"{error}: {shape}, {heads}"
            )
            continue
        assert out.shape[0] == (60 if op == "sddmm" else 12)
        out.sum().backward()
        assert val.grad.shape == val.shape and (bool(val.grad.any()) == (shape == (2, 4)) or "sddmm add" == operator)
    works(device)


@pytest.mark.parametrize("score", ["dot", "cosine", "additive", "gatv2"])
@pytest.mark.parametrize("heads, feat, channels", [(2, 0, 4), (2, 4, 0), (2, 0, 0), (1, 0, 3), (0, 4, 4), (0, 0, 0)])
def test_attention_without_heads_or_channels(score, heads, feat, channels, device):
    """Products of no channels are 0: every entry of a row weighs the same."""
    adj = small(device=device).pattern()
    given = {
        "q": torch.ones(12, heads, feat, device=device), "k": torch.ones(15, heads, feat, device=device),
        "v": torch.randn(15, heads, channels, device=device),
    }  # fmt: skip
    if score == "additive":
        given |= {name: torch.ones(n, heads, device=device) for name, n in (("q", 12), ("k", 15))}
    if score == "gatv2":
        given["att"] = torch.ones(heads, feat, device=device)
        with pytest.raises(ValueError, match=r"att must be \[\d, \d\], not \[\d, \d\]"):
            fusedmm.attention(adj, **{**given, "att": torch.ones(heads, 3 - min(feat, 3), device=device)}, score=score)
    given = {name: t.requires_grad_() for name, t in given.items()}
    for algorithm in own_algorithms("attention", device):
        try:
            out = fusedmm.attention(adj, **given, score=score, algorithm=algorithm)
        except ValueError as error:
            assert algorithm != "auto" and algorithm in str(error)
            continue
        assert out.shape == (12, heads, channels)
        expected = fusedmm.spmm(adj, given["v"], reduce="mean")
        torch.testing.assert_close(out, expected)
    grads = torch.autograd.grad(fusedmm.attention(adj, **given, score=score).sum(), list(given.values()))
    assert [g.shape for g in grads] == [t.shape for t in given.values()]
    works(device)


@pytest.mark.parametrize("aggr", ["softmax", "powermean", "var", "std", "variancepreserving", "mean", "max"])
def test_aggregations_of_no_channels_or_no_batch(aggr, device):
    edges = EDGES.to(device)
    wide, none = nn.SAGEConv(-1, 4, aggr=aggr).to(device), nn.SAGEConv(4, 4, aggr=aggr).to(device)
    assert wide(torch.ones(4, 0, device=device), edges).shape == (4, 4)
    assert none(torch.ones(0, 4, 4, device=device), edges).shape == (0, 4, 4)
