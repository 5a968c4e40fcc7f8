"""Messages make nothing of edges times features, forward or backward, beyond operands of edges, results and gradients.

Every tensor that torch is asked for during a call is seen by its dispatcher, those of the operators too. On CUDA so are
workspaces, by the most memory that is held at a time.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fusedmm
from benchmarks.trial import peak_bytes

NODES, ENTRIES, HEADS, FEAT = 100, 20_000, 2, 16
FULL = ENTRIES * HEADS * FEAT
OPS = ["add", "sub", "mul", "div", "copy_lhs", "copy_rhs"]
SHAPES = {"heads": (HEADS, 1), "edges": (1, 1), "all": (HEADS, FEAT)}


class Seen(TorchDispatchMode):
    """Counts the storages of at least half of edges times features that a call makes."""

    def __init__(self, given):
        super().__init__()
        self.known, self.kept, self.large = {t.untyped_storage().data_ptr() for t in given}, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            at = t.untyped_storage().data_ptr() if isinstance(t, torch.Tensor) else None
            if at is not None and at not in self.known and t.untyped_storage().nbytes() >= 2 * FULL:
                self.known.add(at)
                self.kept.append(t)  # so that no other tensor gets its place
                self.large += 1
        return out


def graph(device):
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES, (2, ENTRIES), generator=g)
    return fusedmm.CSR.from_coo(*ends.to(device), shape=(NODES, NODES)).cache_transpose()


def operands(op, shape, device):
    x = torch.rand(NODES, HEADS, FEAT, device=device).add(0.5).requires_grad_()
    e = torch.rand(ENTRIES, *SHAPES[shape], device=device).add(0.5).requires_grad_()
    return [t for t, unused in ((x, "copy_rhs"), (e, "copy_lhs")) if op != unused]


def large(adj, call, wanted):
    """How many tensors of edges times features the call and its gradients make."""
    torch.autograd.grad(call().sin().sum(), wanted)  # what a structure keeps is made once
    with Seen([*wanted, adj.ptr, adj.idx]) as seen:
        torch.autograd.grad(call().sin().sum(), wanted)
    return seen.large


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("op", OPS)
def test_gspmm_makes_nothing_of_edges_and_features(op, reduce, shape, device):
    adj, given = graph(device), operands(op, shape, device)
    x, e = (None, *given) if op == "copy_rhs" else (*given, None)[:2]
    of_gradient = {"sub": 2, "div": 4, "copy_lhs": 0}.get(op, 1)  # e's, and what -g and -g x / e^2 are made of
    allowed = of_gradient if shape == "all" else 0
    assert large(adj, lambda: fusedmm.gspmm(adj, op, reduce, x, e), given) == allowed


@pytest.mark.parametrize("op", ["add", "mul", "div", "dot"])
def test_gsddmm_makes_its_result_alone(op, device):
    adj = graph(device)
    u, v = (torch.rand(NODES, HEADS, FEAT, device=device).add(0.5).requires_grad_() for _ in range(2))
    of_loss = 4  # the result, its sine and cosine, and the gradient that arrives
    assert large(adj, lambda: fusedmm.gsddmm(adj, op, u, v), [u, v]) == (0 if op == "dot" else of_loss)


def test_messages_by_torch_are_seen(device):
    adj = graph(device)
    x, e = operands("mul", "heads", device)
    row, col, _ = adj.coo()
    assert large(adj, lambda: x.new_zeros(x.shape).index_add(0, row, x[col] * e), [x, e]) >= 3


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("op", ["add", "mul"])
def test_the_peak_of_a_call_is_below_edges_times_features(op, reduce, device):
    adj = graph(device)
    x, e = operands(op, "heads", device)

    def step():
        out = fusedmm.gspmm(adj, op, reduce, x, e)
        return (out, *torch.autograd.grad(out.sum(), [x, e]))

    step()
    assert peak_bytes(step, 1, x.is_cuda)[0] < 2 * FULL
