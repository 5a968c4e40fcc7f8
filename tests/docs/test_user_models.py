"""What somebody tries on the first day with models, as recipes, against dense matrices in float64."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from test_user_tasks import CLOSE, EDGES, NODES, close, dense_of, weights
from torch.utils.checkpoint import checkpoint

import fusedmm
from fusedmm import CSR, nn


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def matrix(device="cpu", weight=None):
    return CSR.from_edge_index(EDGES, weight, NODES).to(device)


# ---- attention ----


def softmax_of(logits):
    """By rows of a dense matrix whose absent entries are -inf; rows of nothing else give 0."""
    return torch.softmax(logits, -1).nan_to_num(0)


def dense_attention(q, k, v, bias=None):
    """[heads, nodes, nodes] and the result, of q, k, v [nodes, heads, C] and bias [heads, nodes, nodes]."""
    logits = torch.einsum("ihc,jhc->hij", q, k) / q.shape[-1] ** 0.5
    logits = logits if bias is None else logits + bias
    alpha = softmax_of(logits.masked_fill(dense_of() == 0, -torch.inf))
    return alpha, torch.einsum("hij,jhc->ihc", alpha, v)


def test_several_heads_with_a_mask_and_a_bias(device):
    """A bias per edge and head; a boolean mask becomes one of 0 and -inf."""
    q, k, v, bias = double(NODES, 2, 4), double(NODES, 2, 4), double(NODES, 2, 3), double(EDGES.shape[1], 2)
    keep = torch.tensor([True] * 6 + [False] * 3)
    adj, (source, target) = matrix(device), EDGES
    dense = torch.zeros(2, NODES, NODES, dtype=torch.float64)
    masked = bias.masked_fill(~keep[:, None], -torch.inf)
    dense[:, target, source] = masked.T
    alpha, expected = dense_attention(q, k, v, dense)
    out, weight = fusedmm.attention(
        adj, *(t.to(device) for t in (q, k, v)), bias=masked.to(device), return_weights=True
    )
    close(out, expected)
    close(weight, alpha[:, target, source].T)


def test_attention_is_torchs_of_a_mask(device):
    q, k, v = (double(NODES, 2, 4) for _ in range(3))
    seen = dense_of().bool() | torch.eye(NODES, dtype=torch.bool)
    expected = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), attn_mask=seen).transpose(0, 1)
    close(
        fusedmm.attention(CSR.from_dense(seen.double()).pattern().to(device), *(t.to(device) for t in (q, k, v))),
        expected,
    )


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_weights_of_a_layer(name, device):
    """They add up to one over the edges into each node, and weigh the values."""
    conv = getattr(nn, name)(3, 2, heads=4).double().to(device)
    _, (edges, alpha) = conv(double(NODES, 3).to(device), EDGES.to(device), return_attention_weights=True)
    total = torch.zeros(NODES, 4, dtype=torch.float64).index_add(0, edges[1].cpu(), alpha.detach().cpu())
    reached = torch.zeros(NODES).index_fill(0, edges[1].cpu(), 1).double()
    close(total, reached[:, None].expand(-1, 4))


def test_edges_dropped_in_training(device):
    """A new subset of the edges per step, as values or as a mask, is a graph like any other."""
    weight, x = weights(), double(NODES, 3)
    adj = matrix(device, weight)
    kept = torch.rand(EDGES.shape[1]) > 0.4
    dropped = dense_of(EDGES[:, kept], weight[kept])
    close(adj.with_values(adj.val * kept.to(device)) @ x.to(device), dropped @ x)
    close(CSR.from_edge_index(EDGES[:, kept], weight[kept], NODES).to(device) @ x.to(device), dropped @ x)


# ---- training ----


class Net(torch.nn.Module):
    def __init__(self, conv=nn.GCNConv, width=8):
        super().__init__()
        self.first, self.second = conv(4, width), conv(width, 2)
        self.skip = torch.nn.Linear(4, width)

    def forward(self, x, adj):
        hidden = F.relu(self.first(x, adj)) + self.skip(x)  # a residual connection
        return self.second(F.dropout(hidden, 0.2, self.training), adj)


def task(device, seed=0):
    """Two groups that are linked within themselves; the label is the group, and shows in the features."""
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(40) % 2
    pairs = torch.randint(40, (2, 600), generator=g)
    edges = pairs[:, label[pairs[0]] == label[pairs[1]]]
    x = torch.randn(40, 4, generator=g) + label[:, None]
    return x.to(device), edges.to(device), label.to(device)


def fit(model, x, adj, label, steps=40, low=None):
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(x.device.type, enabled=low is not None)
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, low or torch.bfloat16, enabled=low is not None):
            loss = F.cross_entropy(model(x, adj).float(), label)
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
    return loss.item()


@pytest.mark.parametrize("conv", [nn.GCNConv, nn.SAGEConv, nn.GATConv, nn.TransformerConv], ids=lambda c: c.__name__)
@pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16], ids=str)
def test_training_with_autocast(conv, low, device):
    x, edges, label = task(device)
    model = Net(conv).to(device)
    assert fit(model, x, edges, label, low=low) < 0.3
    assert (model.eval()(x, edges).argmax(1) == label).float().mean() > 0.9


def test_seeds_give_the_same_bits(device):
    def trained():
        torch.manual_seed(5)
        x, edges, label = task(device)
        model = Net(functools.partial(nn.GATConv, dropout=0.3)).to(device)
        fit(model, x, edges, label, 10)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(), trained())


def test_early_stopping_restores_the_best(device):
    x, edges, label = task(device)
    model = Net(functools.partial(nn.GCNConv, cached=True)).to(device)
    fit(model, x, edges, label, 20)
    best, expected = copy.deepcopy(model.state_dict()), model.eval()(x, edges)
    fit(model.train(), x, edges, 1 - label, 5)
    assert not torch.allclose(model.eval()(x, edges), expected)
    model.load_state_dict(best)
    assert torch.equal(model(x, edges), expected)


def test_a_weighted_loss_over_some_nodes(device):
    """Gradients of a masked, weighted loss are those of the dense model."""
    x, edges, label = task(device)
    conv, mask = nn.GCNConv(4, 2).double().to(device), torch.arange(40, device=device) % 3 == 0
    cost = torch.tensor([1.0, 3.0], dtype=torch.float64, device=device)
    F.cross_entropy(conv(x.double(), edges)[mask], label[mask], cost).backward()
    looped = dense_of(edges.cpu(), nodes=40).fill_diagonal_(1)
    scale = looped.sum(1) ** -0.5
    weight = conv.lin.weight.detach().cpu().requires_grad_()
    dense = (scale[:, None] * looped * scale) @ x.double().cpu() @ weight.T
    F.cross_entropy(dense[mask.cpu()], label.cpu()[mask.cpu()], cost.cpu()).backward()
    close(conv.lin.weight.grad, weight.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_save_memory_and_nothing_else(reentrant, device):
    x, edges, label = task(device)
    model = Net().to(device).eval()
    gradients = []
    for call in (model, lambda *given: checkpoint(model, *given, use_reentrant=reentrant)):
        model.zero_grad()
        F.cross_entropy(call(x.clone().requires_grad_(), edges), label).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


# ---- compiled, exported, transformed ----


def test_a_compiled_model(device):
    torch._dynamo.reset()
    model, x, adj = Net().double().to(device).eval(), double(NODES, 4).to(device), matrix(device).cache_transpose()
    expected = model(x, adj)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x, adj), expected, **CLOSE)


def test_a_program_of_a_model(device, tmp_path):
    model, x, adj = (
        Net(nn.SAGEConv).double().to(device).eval(),
        double(NODES, 4).to(device),
        matrix(device).cache_transpose(),
    )
    torch.export.save(torch.export.export(model, (x, adj), strict=False), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(x, adj), model(x, adj), **CLOSE)


def test_gradients_per_sample(device):
    """torch.func over a batch of features on one graph, against a loop."""
    conv, adj, batch = (
        nn.SAGEConv(3, 2).double().to(device),
        matrix(device).cache_transpose(),
        double(4, NODES, 3).to(device),
    )
    parameters = {k: p.detach() for k, p in conv.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(conv, parameters, (x, adj)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, batch)
    for k, x in enumerate(batch):
        wanted = torch.autograd.grad(conv(x, adj).square().sum(), list(conv.parameters()))
        for name, g in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(found[name][k], g, **CLOSE)


@pytest.mark.parametrize("conv", [nn.GCNConv, nn.SAGEConv, nn.GATConv, nn.GATv2Conv, nn.TransformerConv])
def test_an_ensemble_at_once(conv, device):
    """Several models of one kind under vmap, against one after the other."""
    models, adj = [conv(3, 2).double().to(device) for _ in range(3)], matrix(device)
    x = double(NODES, 3).to(device)
    stacked = torch.func.stack_module_state(models)
    found = torch.func.vmap(lambda *state: torch.func.functional_call(models[0], state, (x, adj)))(*stacked)
    torch.testing.assert_close(found, torch.stack([model(x, adj) for model in models]), **CLOSE)


def test_a_hessian_times_a_vector(device):
    """Both ways that torch has, against the dense model's."""
    adj, dense, x, v = matrix(device, None), dense_of(), double(NODES, 3), double(NODES, 3)

    def energy(product, x):
        return torch.tanh(product(x)).square().sum()

    _, expected = torch.autograd.functional.hvp(lambda x: energy(lambda x: dense @ x, x), x, v)
    ours = functools.partial(energy, lambda x: adj @ x)
    close(torch.autograd.functional.hvp(ours, x.to(device), v.to(device))[1], expected)
    close(torch.func.jvp(torch.func.grad(ours), (x.to(device),), (v.to(device),))[1], expected)


# ---- what graphs are for ----


def test_links_are_scored(device):
    """A decoder <z_i, z_j> of given pairs, and its gradient, without a dense matrix of scores."""
    z, pairs = double(NODES, 4).requires_grad_(), torch.randint(NODES, (2, 20))
    here = z.detach().to(device).requires_grad_()
    adj = CSR.from_edge_index(pairs, size=NODES).to(device)
    label = (torch.arange(20) % 2).double()
    F.binary_cross_entropy_with_logits(fusedmm.sddmm(adj, here, here), label.to(device)).backward()
    F.binary_cross_entropy_with_logits((z @ z.T)[pairs[1], pairs[0]], label).backward()
    close(here.grad, z.grad)


def test_an_embedding_by_attraction(device):
    """The gradient of -sum log sigmoid(<z_i, z_j>) over the edges, in one fused pass per side."""
    z = double(NODES, 4).requires_grad_()
    (-F.logsigmoid(z @ z.T) * dense_of()).sum().backward()
    adj, here = matrix(device), z.detach().to(device)
    attraction = dict(fusedmm.presets.SIGMOID_ATTRACTION)
    close(-(fusedmm.fused(adj, here, **attraction) + fusedmm.fused(adj.T, here, **attraction)), z.grad)


def test_labels_spread(device):
    adj, seeds = (
        matrix(device).gcn_norm().to(dtype=torch.float64),
        F.one_hot(torch.tensor([0, 2, 1, 2, 2, 0]), 3).double(),
    )
    dense, out, expected = adj.to_dense().cpu(), seeds.to(device), seeds
    for _ in range(20):
        out, expected = 0.9 * (adj @ out) + 0.1 * seeds.to(device), 0.9 * (dense @ expected) + 0.1 * seeds
    close(out, expected)


def test_pagerank(device):
    """By power iteration, against a dense solve."""
    out_degree = dense_of().sum(0)
    adj = matrix(device)
    share = (1 / out_degree)[EDGES[0]].to(device)
    adj, rank = adj.with_values(share), torch.full((NODES,), 1 / NODES, dtype=torch.float64, device=device)
    for _ in range(300):
        rank = 0.15 / NODES + 0.85 * (adj @ rank)
    walk = dense_of() / out_degree
    start = torch.full((NODES,), 0.15 / NODES, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(NODES, dtype=torch.float64) - 0.85 * walk, start)
    close(rank, exact)


def test_spectral_clustering(device):
    """Two cliques with one link: the second eigenvector's signs, by power iteration, tell them apart."""
    clique = 1 - torch.eye(5, dtype=torch.float64)
    dense = torch.block_diag(clique, clique)
    dense[4, 5] = dense[5, 4] = 1
    adj = CSR.from_dense(dense).to(device).gcn_norm()
    first = (dense.sum(1) + 1).sqrt().to(device)
    first, vector = first / first.norm(), torch.randn(10, dtype=torch.float64, device=device)
    for _ in range(400):
        vector = adj @ (vector - first * (first @ vector))
        vector = vector / vector.norm()
    side = (vector > 0).cpu()
    assert side[:5].unique().numel() == side[5:].unique().numel() == 1 and side[0] != side[9]
    value = torch.linalg.eigvalsh(adj.to_dense().cpu())[-2]
    close(vector @ (adj @ vector), value)


class TransformerLayer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x, attend):
        q, k, v = self.qkv(self.norms[0](x)).view(len(x), 3, self.heads, -1).unbind(1)
        x = x + self.out(attend(q, k, v).flatten(1))
        return x + self.feed(self.norms[1](x))


def test_a_graph_transformer_layer(device):
    layer, adj, x = TransformerLayer(8, 2).double(), matrix(device), double(NODES, 8)
    gradients = []
    for model, attend, where in (
        (copy.deepcopy(layer).to(device), functools.partial(fusedmm.attention, adj), device),
        (layer, lambda q, k, v: dense_attention(q, k, v)[1], "cpu"),
    ):
        here = x.to(where).requires_grad_()
        model(here, attend).square().sum().backward()
        gradients.append([here.grad.cpu(), *(p.grad.cpu() for p in model.parameters())])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


def test_jumping_knowledge(device):
    """All layers' results side by side, whose gradients meet again."""
    layers = torch.nn.ModuleList(nn.SAGEConv(4, 4, aggr="sum", root_weight=False) for _ in range(3)).double().to(device)
    x, dense, adj = double(NODES, 4), dense_of(), matrix(device)
    found, expected = [x.to(device)], [x]
    for layer in layers:
        found.append(torch.tanh(layer(found[-1], adj)))
        weight, bias = layer.lin_l.weight.detach().cpu(), layer.lin_l.bias.detach().cpu()
        expected.append(torch.tanh(dense @ expected[-1] @ weight.T + bias))
    close(torch.cat(found, 1).detach(), torch.cat(expected, 1))
    close(torch.stack(found).amax(0).detach(), torch.stack(expected).amax(0))


def test_weights_of_edges_that_a_network_learns(device):
    """An MLP makes one weight per edge, in the order of the edge_index; its gradient is the dense model's."""
    attr, x = double(EDGES.shape[1], 2), double(NODES, 3)
    maps = [torch.nn.Linear(2, 1).double() for _ in range(2)]
    maps[1].load_state_dict(maps[0].state_dict())
    mine, dense = maps[0].to(device), maps[1]
    weight = mine(attr.to(device)).sigmoid()[:, 0]
    (CSR.from_edge_index(EDGES.to(device), weight, NODES) @ x.to(device)).square().sum().backward()
    (dense_of(weight=dense(attr).sigmoid()[:, 0]) @ x).square().sum().backward()
    for a, b in zip(mine.parameters(), dense.parameters(), strict=True):
        close(a.grad, b.grad)
