"""Several linear maps of one input: as one product where nobody sees it, by themselves where somebody looks."""

import pytest
import torch

import fusedmm
from fusedmm.nn import linear
from fusedmm.nn.linear import Linear, maps_of


def both(monkeypatch, x, *maps):
    """Results and gradients of the maps as one product, and of each by itself."""
    found = []
    for joined in (linear.JOINED, -1):
        monkeypatch.setattr(linear, "JOINED", joined)
        outs = maps_of(x, *maps)
        inputs = [x, *(p for lin in maps for p in lin.parameters())]
        found.append([*outs, *torch.autograd.grad(sum((k + 1) * o.square().sum() for k, o in enumerate(outs)), inputs)])
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("in_channels", [6, -1])
def test_one_product_gives_what_each_map_gives(monkeypatch, in_channels, bias, device):
    maps = [Linear(in_channels, width, bias).to(device) for width in (3, 8, 1)]
    x = torch.randn(20, 6).to(device).requires_grad_()
    for one, other in zip(*both(monkeypatch, x, *maps), strict=True):
        torch.testing.assert_close(one, other)
    assert [lin.weight.shape for lin in maps] == [(3, 6), (8, 6), (1, 6)]


def test_hooks_and_other_modules_are_called():
    """CPU only: nothing of it is a device's."""
    x, seen = torch.randn(5, 4), []
    plain, hooked = Linear(4, 2), Linear(4, 2)
    hooked.register_forward_hook(lambda *_: seen.append("hook"))
    maps_of(x, plain, hooked)

    class Adapted(Linear):
        def forward(self, x):
            seen.append("adapted")
            return super().forward(x) + 1

    adapted = Adapted(4, 2)
    out = maps_of(x, plain, adapted)[1]
    assert seen == ["hook", "adapted"]
    torch.testing.assert_close(out, torch.nn.functional.linear(x, adapted.weight, adapted.bias) + 1)


def test_maps_with_and_without_bias_stay_apart():
    """CPU only: nothing of it is a device's."""
    x, one, other = torch.randn(5, 4), Linear(4, 2), Linear(4, 3, bias=False)
    for out, lin in zip(maps_of(x, one, other), (one, other), strict=True):
        torch.testing.assert_close(out, torch.nn.functional.linear(x, lin.weight, lin.bias))


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "GCNConv", "SAGEConv"])
def test_what_inference_mode_opened_can_be_trained(name):
    layer = getattr(fusedmm.nn, name)(-1, 4)
    graph, x = fusedmm.CSR.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), size=3), torch.randn(3, 5)
    with torch.inference_mode():
        expected = layer(x, graph)
    out = layer(x, graph)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
