"""Training is bitwise reproducible, captures in a CUDA graph, and launches few kernels."""

import re

import pytest
import torch
from support.machine import ROOT, capture
from torch.nn.functional import cross_entropy

import fusedmm
from fusedmm import presets
from fusedmm.networks import MODELS

NODES, FEATURES, CLASSES, STEPS = 300, 24, 5, 50
LAUNCHES = 12  # of ours, per layer and step
LAYERS = {
    "GATConv": {"heads": 8},
    "GATv2Conv": {"heads": 8},
    "TransformerConv": {"heads": 8},
    "AGNNConv": None,
    "GCNConv": {},
    "SAGEConv": {},
}


def problem(device):
    """A hub of 600 edges among 3,000 random ones."""
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 3000), generator=g)
    edges[1, :600] = 7
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(CLASSES, (NODES,), generator=g)
    return edges.to(device), x.to(device), y.to(device)


def trained(model, device, steps=STEPS):
    """The weights after training with dropout, from the same seed each time."""
    edges, x, y = problem(device)
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES)
    torch.manual_seed(5)
    network = MODELS[model].ours(FEATURES, CLASSES).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(network(x, adj), y).backward()
        optimiser.step()
    return [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gatv2", "transformer", "agnn"])
def test_two_runs_give_identical_weights(model, device):
    first, start = trained(model, device), trained(model, device, 0)
    keep = torch.full((12_345,), torch.nan, device=device)  # the second run finds other memory
    second = trained(model, device)
    del keep
    for one, other, before in zip(first, second, start, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all() and not torch.equal(one, before)


def layer_of(name, device, **options):
    sizes = () if LAYERS[name] is None else (FEATURES, 8)
    layer = getattr(fusedmm.nn, name)(*sizes, **(LAYERS[name] or {}), **options)
    return layer.to(device)


def descend(layer, x, graph):
    """One step of gradient descent."""
    parameters = list(layer.parameters())
    gradients = torch.autograd.grad(layer(x, graph).square().mean(), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p.sub_(g, alpha=0.1)


def captured(layer, x, adj):
    """A step of gradient descent as a CUDA graph; the weights are as they were."""
    before = [p.detach().clone() for p in layer.parameters()]
    step, _ = capture(lambda: descend(layer, x, adj))
    with torch.no_grad():
        for p, b in zip(layer.parameters(), before, strict=True):
            p.copy_(b)
    return step


@pytest.mark.parametrize("name", LAYERS)
def test_a_captured_step_trains_as_the_eager_one(name, cuda):
    edges, x, _ = problem(cuda)
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES).cache_transpose()
    eager, replayed = layer_of(name, cuda), layer_of(name, cuda)
    replayed.load_state_dict(eager.state_dict())
    descend(layer_of(name, cuda), x, adj)  # what is made once per structure
    step = captured(replayed, x, adj)
    for _ in range(5):
        descend(eager, x, adj)
        step.replay()
    for one, other in zip(eager.parameters(), replayed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_replays_drop_other_weights(cuda):
    edges, x, _ = problem(cuda)
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES).cache_transpose()
    layer = layer_of("GATConv", cuda, dropout=0.5)
    descend(layer, x, adj)
    results = []
    step = captured(layer, x, adj)
    before = [p.detach().clone() for p in layer.parameters()]
    for _ in range(2):
        with torch.no_grad():
            for p, b in zip(layer.parameters(), before, strict=True):
                p.copy_(b)
        step.replay()
        results.append(layer.lin.weight.detach().clone())
    assert results[0].isfinite().all() and not torch.equal(*results)


FUSED = {
    "dot": {},
    "mean of l1": {"score": "l1", "edge": "exp(-s)*a", "reduce": "mean"},
    "sigmoid": {"edge": "sigmoid(s)*a"},
    "t": presets.T_DISTRIBUTION | {"edge": "a/(1+s)"},
}


@pytest.mark.parametrize("name", FUSED)
def test_a_captured_fused_step_is_the_eager_one(name, cuda):
    """Forward and backward, replayed on numbers that were not there when it was captured."""
    edges, x, _ = problem(cuda)
    val = torch.randn(edges.shape[1], device=cuda, requires_grad=True)
    adj = fusedmm.CSR.from_edge_index(edges, val, size=NODES).cache_transpose()
    x.requires_grad_()
    gout = torch.randn_like(x)

    def step():
        out = fusedmm.fused(adj, x, **FUSED[name])
        return out, *torch.autograd.grad(out, (x, val), gout)

    graph, found = capture(step)
    before = None
    for _ in range(3):
        with torch.no_grad():
            for t in (x, val, gout):
                t.copy_(torch.randn_like(t))
        graph.replay()
        for one, other in zip(found, step(), strict=True):
            assert torch.equal(one, other)
        assert found[0].isfinite().all() and (before is None or not torch.equal(found[0], before))
        before = found[0].detach().clone()


KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(")


def own_kernels():
    """The names of all kernels of the library, from its sources."""
    found = set()
    for path in (p for p in (ROOT / "csrc").rglob("*.cu*") if p.parent.name != "lessons"):
        text = path.read_text()
        names = KERNEL.findall(text)
        assert len(names) == text.count("__global__"), path
        found.update(names)
    return found


def test_kernels_are_known_by_name():
    wanted = {"spmm_segments", "attend_join", "mean_back", "gather_values", "weigh", "arrange", "normalize"}
    assert wanted | {"take_columns", "fused_back", "sums_reference", "stats_of"} <= own_kernels()
    assert name_of("void spmm_segments<float, (int)4, (bool)0>(spmm_args<T1>)") == "spmm_segments"
    assert name_of("normalize(csr_view, const int *, float *, float *)") == "normalize"
    assert name_of("void at::native::sample<int>(weigh<float>)") == "at::native::sample"
    assert name_of("_ZL13spmm_segmentsIfLi4EEv9spmm_argsIT_E") == "spmm_segments"


def name_of(kernel):
    """Of a kernel, without its type and its arguments; a profiler may leave long ones mangled."""
    mangled = re.match(r"_ZL?(\d+)(\w+)", kernel)
    if mangled:
        return mangled[2][: int(mangled[1])]
    return re.sub(r"[<(].*", "", kernel, flags=re.DOTALL).removeprefix("void ").strip()


def own_launches(call):
    """The kernels of this library."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    own = own_kernels()
    return [k for k in kernels if name_of(k) in own]


@pytest.mark.parametrize("name", LAYERS)
def test_few_launches_per_layer_and_step(name, cuda):
    edges, x, _ = problem(cuda)
    adj = fusedmm.CSR.from_edge_index(edges, size=NODES).cache_transpose()
    layer = layer_of(name, cuda)
    x.requires_grad_()

    def step():
        torch.autograd.grad(layer(x, adj).square().sum(), [x, *layer.parameters()])

    step()
    launches = own_launches(step)
    assert 1 <= len(launches) <= LAUNCHES, launches
