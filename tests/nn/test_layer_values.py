"""Which layers use a matrix's values: each as docs/values.md says, and as PyG's of the same parameters does."""

import copy
import re

import pytest
import torch
from support.value_calls import COL, LAYERS, NODES, ROW, SparseTensor, names, values

from fusedmm import nn

theirs = pytest.importorskip("torch_geometric.nn")


def graphs(device, val, features):
    """The graphs of a layer's line, for ours and as PyG has them."""
    adj = names(device, val)["A"]
    ours = {"A": adj, "E": adj.with_values(features), "T": SparseTensor(ROW, COL, val)}
    index = torch.stack([ROW, COL]).to(device)
    torch_adj = torch.sparse_coo_tensor(index, val, (NODES, NODES)).coalesce()
    torch_edges = torch.sparse_coo_tensor(index, features, (NODES, NODES, 3)).coalesce()
    return ours, {"A": torch_adj, "E": torch_edges, "T": ours["T"]}


def both(call, device):
    """How a layer runs on a line's operands; our layer, converted; PyG's, on the CPU; the operands on the device."""
    made, arguments = re.fullmatch(r"(\w+\(.*\))\(((?:x|\{).*)\)", call).groups()
    given = {place: names(place, values(0).to(place)) for place in {device, "cpu"}}
    torch.manual_seed(7)
    peer = eval(made, vars(theirs) | given["cpu"]).double().eval()  # on CUDA torch has no maximum of a sparse tensor
    mine = nn.convert(copy.deepcopy(peer)).to(device)
    assert type(mine) is getattr(nn, type(peer).__name__)

    def run(layer, operands, place=device):
        found = layer(*eval(f"({arguments},)", given[place] | operands))
        return found["n"] if isinstance(found, dict) else found

    return run, mine, peer, given[device]


@pytest.mark.filterwarnings("ignore")  # PyG's of layouts that it converts, torch's of sparse tensors
@pytest.mark.parametrize("call, what", LAYERS)
def test_layers_do_what_pygs_do(call, what, device):
    device = "cpu" if ", T" in call else device  # torch_sparse's own kernels would be asked for on a GPU
    run, mine, peer, given = both(call, device)
    found = []
    for seed in (0, 1):
        ours, _ = graphs(device, values(seed).to(device), values(seed, 3).to(device))
        _, pygs = graphs("cpu", values(seed), values(seed, 3))
        if what == "PyG: refused":
            with pytest.raises(ValueError, match=r"edge features need edge_dim, .* give .*edge_index\)?\.pattern\(\)"):
                run(mine, ours)
            with pytest.raises((AssertionError, RuntimeError)):
                run(peer, pygs, "cpu")
            pattern = dict.fromkeys("AET", ours["A"].pattern())
            assert run(mine, pattern).isfinite().all()
            continue
        found.append(run(mine, ours))
        if what.startswith("PyG"):
            torch.testing.assert_close(found[-1].cpu(), run(peer, pygs, "cpu"), rtol=1e-9, atol=1e-11)
        if what != "PyG: used":
            assert torch.equal(found[-1], run(mine, dict.fromkeys("AET", ours["A"].pattern())))
    if found:
        assert torch.equal(*found) == (what != "PyG: used")
    if what == "replaced":
        more = {name: 2 * given[name] for name in "we"}
        assert not torch.equal(run(mine, ours | more), found[-1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [call for call, what in LAYERS if what == "PyG: used" and ", T" not in call])
def test_gradients_reach_the_values_that_layers_use(call, device):
    """By differences in one direction."""
    run, mine, _, _ = both(call, device)
    val, features = values(0).to(device).requires_grad_(), values(0, 3).to(device).requires_grad_()

    used = features if ", E" in call else val

    def loss(t):
        given = (val, t) if used is features else (t, features)
        return run(mine, graphs(device, *given)[0]).sin().sum()

    (g,) = torch.autograd.grad(loss(used), used)
    step = 1e-6 * torch.linspace(-1, 1, used.numel(), dtype=torch.float64, device=device).view(used.shape)
    with torch.no_grad():
        there, back = (loss(used + s * step) for s in (1, -1))
    torch.testing.assert_close((g * step).sum(), (there - back) / 2, rtol=1e-5, atol=1e-12)
    assert g.abs().max() > 1e-4
