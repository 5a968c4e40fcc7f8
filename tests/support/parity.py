"""Our layers beside PyG's."""

import pytest
import torch

from fusedmm import nn as ours
from support.small_graph import features

theirs = pytest.importorskip("torch_geometric.nn")


def make(module, name, *args, **kwargs):
    torch.manual_seed(7)
    args = [a() if callable(a) else a for a in args]
    return getattr(module, name)(*args, **kwargs).double()


def on(device, a):
    """a on the device, where it can be moved; of a tuple, list or dict what it holds."""
    if isinstance(a, dict):
        return {k: on(device, b) for k, b in a.items()}
    if isinstance(a, (tuple, list)):
        return type(a)(on(device, b) for b in a)
    return a.to(device) if hasattr(a, "to") else a


def leaves(inputs):
    """Copies of the floating tensors in inputs (tensors, tuples, others) that want gradients, and those."""
    found = []

    def copy(a):
        if isinstance(a, tuple):
            return tuple(copy(b) for b in a)
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            found.append(a.clone().requires_grad_())
            return found[-1]
        return a

    return [copy(a) for a in inputs], found


def results(layer, inputs, calls=1):
    """The layer's output, and the gradients of its inputs and parameters."""
    inputs, wanted = leaves(inputs)
    for _ in range(calls):
        out = layer(*inputs)
    cotangent = features(*out.shape, seed=3).to(out.device)
    grads = torch.autograd.grad(out, wanted + list(layer.parameters()), cotangent, allow_unused=True)
    return [out, *grads]


def check(name, args, inputs, calls=1, device="cpu", **kwargs):
    """Our layer is PyG's on the device: parameters, names, text, outputs and gradients. Returns both."""
    mine, peer = (make(module, name, *args, **kwargs).to(device) for module in (ours, theirs))
    inputs = on(device, inputs)
    assert repr(mine) == repr(peer)
    assert list(mine.state_dict()) == list(peer.state_dict())
    for a, b in zip(mine.parameters(), peer.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        for p in peer.parameters():
            p.add_(features(*p.shape, seed=4).to(device))  # biases and eps start at zero, which would hide them
    mine.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(results(mine, inputs, calls), results(peer, inputs, calls), rtol=1e-10, atol=1e-12)
    return mine, peer
