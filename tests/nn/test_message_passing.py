"""Users' own layers: ``fusedmm.nn.MessagePassing`` gives what PyG's class gives, and says what it does not fuse."""

import inspect
import warnings

import pytest
import torch
from support.small_graph import NODES, features, graph
from torch.nn.functional import leaky_relu, linear, relu
from torch_geometric.nn import MessagePassing as Theirs
from torch_geometric.utils import to_torch_csr_tensor

import fusedmm

Ours = fusedmm.nn.MessagePassing
F = 3
WEIGHT = features(4, F, seed=9)


class Messages:
    """Messages that run fused, by name."""

    def weighted(self, x_j, w):
        return w.view(-1, 1) * x_j

    def weighted_or_not(self, x_j, missing):
        return x_j if missing is None else x_j * missing

    def source(self, x_j):
        return x_j

    def target(self, x_i):
        return 2 * x_i

    def edge(self, x_j, e):
        return e.exp()

    def difference(self, x_i, x_j):
        return x_j - x_i

    def difference_turned(self, x_i, x_j):
        return x_i - x_j

    def sum_with_edge(self, x_j, e):
        return torch.add(x_j, e)

    def less_edge(self, x_j, e):
        return e - x_j

    def quotient_with_edge(self, x_j, e):
        return e / (x_j.exp() + 1)

    def target_with_edge(self, x_i, e):
        return torch.sub(x_i, e)

    def of_functions(self, x_j, w):
        return relu(linear(x_j, WEIGHT.to(x_j.device, x_j.dtype))) * (1 - w[:, None].sigmoid() ** 2)

    def of_constants(self, x_j, e):
        return (
            leaky_relu((3 / (x_j.abs() + 1)).reshape(x_j.size(0), -1) @ WEIGHT.to(x_j.device, x_j.dtype).t(), 0.1) / 2
        )

    def of_two_names(self, x_j, h_i):
        return x_j.square() + h_i.view(-1, 1)

    def times_a_constant(self, x_j, w):
        return 2 * (w.view(-1, 1) * x_j * -2) / 3

    def less_a_constant(self, x_i, x_j):
        return 1.5 - (-(x_j - x_i) / 2 + 1) - 2

    def sum_from_a_constant(self, x_j, e):
        return 3 - (x_j + e) * 0.5

    def constant_over_a_quotient(self, x_j, e):
        return 2 / ((x_j.exp() + 1) / (e.exp() + 1))

    def constant_over_a_product(self, x_j, e):
        return 2 / ((x_j.exp() + 1) * (e.exp() + 1))


class Products:
    """Messages that run fused for sums and means alone."""

    def product(self, x_i, x_j):
        return x_i * x_j

    def quotient(self, x_i, x_j):
        return x_j.exp() / (x_i.exp() + 1)

    def target_times_edge(self, x_i, e):
        return x_i.mul(e)


class Others:
    """Messages that PyG's class computes, and a word of the reason."""

    def of_both(self, x_j, e):
        """Of two targets combined: relu."""
        return (x_j + e).relu()

    def joined(self, x_i, x_j):
        """Of several: cat."""
        return torch.cat([x_i, x_j], dim=-1)

    def three(self, x_i, x_j, w):
        """More than two targets."""
        return w[:, None] * (x_i - x_j)

    def a_power(self, x_i, x_j):
        """It takes a power of the difference of targets and sources."""
        return (x_i - x_j) ** 2

    def a_product_and_a_constant(self, x_j, e):
        """It combines the product of sources and edges with a number by add."""
        return x_j * e + 1

    def of_all_rows(self, x_j):
        """Reads max."""
        return x_j / x_j.max()

    def of_index(self, x_j, index):
        """Asks for index."""
        return x_j * (index > 2)[:, None]

    def of_a_row(self, x_j):
        """Picks rows."""
        return x_j - x_j[:1]

    def in_place(self, x_j):
        """Reads relu_."""
        return x_j.relu_()


def named(of):
    return [f for f in vars(of).values() if inspect.isfunction(f)]


def layer(base, message, aggr="add", **members):
    """A layer of a base with a message, as a user would write it."""

    def forward(self, graph, size=None, **kwargs):
        return self.propagate(graph, size=size, **kwargs)

    message.__name__ = "message"
    members = {"message": message, "forward": forward, "__module__": __name__} | members
    return type(f"Own_{message.__qualname__}".replace(".", "_"), (base,), members)(aggr=aggr)


def inputs(device):
    edges = graph()
    given = {"x": features(NODES, F), "e": features(40, F, seed=2), "w": features(40, 1, seed=3)[:, 0]}
    given["h"] = features(NODES, 1, seed=4)
    return edges.to(device), {name: t.to(device).requires_grad_() for name, t in given.items()}


def agree(mine, peer, args, given, options=None):
    found, expected = (m(*args, **given, **(options or {})) for m in (mine, peer))
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(y.sin().sum(), given.values(), allow_unused=True) for y in (found, expected)]
    torch.testing.assert_close(*[[torch.zeros(1) if g is None else g for g in gs] for gs in grads], check_device=False)


@pytest.fixture
def fused_alone(monkeypatch):
    """PyG's class computes nothing that a layer of ours is asked for."""
    monkeypatch.setattr(Ours, "_tell", lambda self, why: pytest.fail(f"PyG computed the messages: {why}"))


@pytest.mark.parametrize("aggr", ["add", "sum", "mean", "max", "min"])
@pytest.mark.parametrize("message", named(Messages), ids=lambda f: f.__qualname__.partition(".")[2])
def test_known_messages_run_fused(message, aggr, fused_alone, device):
    edges, given = inputs(device)
    missing = {"missing": None} if message is Messages.weighted_or_not else {}
    agree(layer(Ours, message, aggr), layer(Theirs, message, aggr), [edges], given, missing)


@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("message", named(Products), ids=lambda f: f.__qualname__.partition(".")[2])
def test_products_with_targets_run_fused(message, aggr, fused_alone, device):
    edges, given = inputs(device)
    agree(layer(Ours, message, aggr), layer(Theirs, message, aggr), [edges], given)


REFUSED = [
    (
        m,
        "add",
        m.__doc__.strip(".").removeprefix("It ") if m.__doc__.startswith("It ") else m.__doc__.split()[-1].strip("."),
    )
    for m in named(Others)
]
REFUSED += [(m, "max", "products with targets") for m in named(Products)]
REFUSED += [(Messages.weighted, "std", "aggr='std'")]


@pytest.mark.parametrize("message, aggr, why", REFUSED)
def test_other_messages_are_those_of_pyg_and_it_says_so_once(message, aggr, why, device):
    edges, given = inputs(device)
    given["x"] = given["x"] * 1.0 if message is Others.in_place else given["x"]
    mine, peer = layer(Ours, message, aggr), layer(Theirs, message, aggr)
    with pytest.warns(UserWarning, match=f"{type(mine).__name__}: PyG computes .* {why}") as told:
        mine(edges, **given)
    said = [w for w in told if "PyG computes" in str(w.message)]  # PyG has warnings of its own on CUDA
    assert len(said) == 1 and said[0].filename == __file__  # where the layer calls propagate
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyG computes")
        agree(mine, peer, [edges], given)


def test_methods_of_its_own_are_called(device):
    """``update`` with and without what it asks for; ``aggregate`` by PyG's class."""
    edges, given = inputs(device)

    def update(self, inputs, x, w=None):
        return inputs + x + w.sum()

    def update_of_edges(self, inputs, x_j):
        return inputs + x_j.sum()

    def aggregate(self, inputs, index, dim_size):
        return inputs.new_zeros(dim_size, F).index_add(0, index, inputs).relu()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyG computes")
        agree(*(layer(of, Messages.weighted, update=update) for of in (Ours, Theirs)), [edges], given)
    for name, method in (("update", update_of_edges), ("aggregate", aggregate)):
        method.__name__ = name
        mine, peer = (layer(of, Messages.weighted, **{name: method}) for of in (Ours, Theirs))
        with pytest.warns(UserWarning, match="asks for x_j" if name == "update" else "a method aggregate"):
            mine(edges, **given)
        agree(mine, peer, [edges], given)


def test_a_layer_keeps_tensors(device):
    """No stand-in stays at a layer whose message keeps what it has."""
    edges, given = inputs(device)

    def keeping(self, x_j, w):
        self.kept = w[:, None]
        return self.kept * x_j

    def keeping_both(self, x_j, w):
        self.kept = w[:, None] * x_j
        return self.kept

    for message in (keeping, keeping_both):
        mine, peer = layer(Ours, message), layer(Theirs, message)
        with pytest.warns(UserWarning, match="PyG computes .* keeps what its message"):
            mine(edges, **given)
        agree(mine, peer, [edges], given)
        torch.testing.assert_close(mine.kept, peer.kept)


def test_message_and_aggregate_takes_sparse_matrices(device):
    """Such a layer may have no message that knows the values."""
    edges, x = graph().unique(dim=1).to(device), features(NODES, F).to(device)
    adj_t = to_torch_csr_tensor(edges, torch.rand(edges.shape[1]).to(x), size=(NODES, NODES))

    def message_and_aggregate(self, edge_index, x):
        return edge_index @ x

    mine, peer = (layer(of, Messages.source, message_and_aggregate=message_and_aggregate) for of in (Ours, Theirs))
    with pytest.warns(UserWarning, match="has a message_and_aggregate of its own"):
        torch.testing.assert_close(mine(adj_t, x=x), peer(adj_t, x=x))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyG computes")
        torch.testing.assert_close(mine(edges, x=x), peer(edges, x=x))


def test_two_kinds_of_nodes(fused_alone, device):
    edges, given = inputs(device)
    edges = torch.stack([edges[0], edges[1] % 5])
    pair = given["x"], features(7, F, seed=8).to(device)
    for message in (Messages.source, Messages.difference, Messages.weighted):
        mine, peer = (layer(of, message, "mean") for of in (Ours, Theirs))
        torch.testing.assert_close(*(m(edges, x=pair, w=given["w"]) for m in (mine, peer)))
        if message is not Messages.difference:
            torch.testing.assert_close(*(m(edges, (NODES, 9), x=(pair[0], None), w=given["w"]) for m in (mine, peer)))


@pytest.mark.parametrize("fused", [True, False])
def test_graphs_in_other_forms(fused, device):
    """A CSR and torch's sparse tensors, whose values are the weights where none are given."""
    edges = graph().unique(dim=1).to(device)
    x, w = features(NODES, F).to(device), features(edges.shape[1], 1, seed=3)[:, 0].to(device)

    def message(self, x_j, edge_weight):
        return edge_weight.view(-1, 1) * x_j if fused else (edge_weight.view(-1, 1) * x_j).relu()

    mine, peer = layer(Ours, message), layer(Theirs, message)
    expected = peer(edges, x=x, edge_weight=w)
    adj = fusedmm.CSR.from_edge_index(edges, w, size=NODES)
    adj_t = to_torch_csr_tensor(edges, w, size=(NODES, NODES)).t().to_sparse_csr()
    with warnings.catch_warnings():
        warnings.filterwarnings("error" if fused else "ignore", ".*PyG computes")
        for given in (adj, adj_t):
            torch.testing.assert_close(mine(given, x=x, edge_weight=None), expected)
        torch.testing.assert_close(mine(adj.pattern(), x=x, edge_weight=2 * w), 2 * expected)


def test_what_watches_sees_each_message(device):
    edges, given = inputs(device)
    mine, seen = layer(Ours, Messages.weighted), []
    expected = mine(edges, **given)
    hook = mine.register_message_forward_hook(lambda m, args, out: seen.append(out.shape))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyG computes")
        torch.testing.assert_close(mine(edges, **given), expected)
        assert seen == [(40, F)]
        hook.remove()
        mine.explain, mine._edge_mask, mine._apply_sigmoid = True, torch.zeros(40, device=device), False
        mine._loop_mask = torch.ones(40, dtype=torch.bool, device=device)
        assert mine(edges, **given).abs().max() == 0
        mine.explain = False
        torch.testing.assert_close(mine(edges, **given), expected)


def test_looking_at_a_message_changes_nothing(device):
    """A norm within a message updates its statistics once, and dropout draws once."""
    edges, given = inputs(device)
    norms = [torch.nn.BatchNorm1d(F, momentum=None).double().to(device) for _ in range(2)]

    def message(self, x_j):
        return torch.nn.functional.dropout(self.norm(x_j))

    outs = []
    for of, norm in zip((Ours, Theirs), norms, strict=True):
        own = layer(of, message)
        own.norm = norm
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outs.append(own(edges, x=given["x"]))
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*(norm.state_dict() for norm in norms))


def test_bad_input_is_told_as_pyg_does(device):
    edges, given = inputs(device)
    mine = layer(Ours, Messages.weighted)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyG computes")
        if device == "cpu":
            with pytest.raises(IndexError, match="larger"):
                mine(edges + 20, **given)
        with pytest.raises(ValueError, match="size"):
            mine(edges, (3, 3), **given)


def test_it_compiles_and_is_one_of_pygs(device):
    edges, given = inputs(device)
    mine = layer(Ours, Messages.weighted)
    assert isinstance(mine, Theirs) and Ours is fusedmm.nn.MessagePassing
    torch.testing.assert_close(torch.compile(mine, backend="eager")(edges, **given), mine(edges, **given))
    with torch.autocast(device, dtype=torch.bfloat16):
        halves = [
            layer(of, Messages.of_functions)(edges, x=given["x"].float(), w=given["w"].float()) for of in (Ours, Theirs)
        ]
    torch.testing.assert_close(halves[0].float(), halves[1].float(), rtol=0.05, atol=0.05)
