"""Writes to a matrix's values, the one thing of a CSR that may be written to, are seen by whoever comes next."""

import copy
import dataclasses
import pickle
import threading

import pytest
import torch
from torch.export import export
from torch.utils import _pytree as pytree

import fusedmm
from fusedmm import CSR
from fusedmm.matrix import structure
from fusedmm.ops.spmm_sddmm import spmm_half


def matrix(device: str) -> CSR:
    """Entries in no order, so that both halves keep the values in their own."""
    row, col = torch.tensor([[1, 0, 2, 2], [0, 1, 2, 0]], device=device)
    adj = CSR.from_coo(row, col, torch.tensor([1.0, 2.0, 3.0, 4.0], device=device), (3, 3)).cache_transpose()
    assert adj.val_here is not None and adj.val_there is not None
    return adj


def product(adj: CSR) -> torch.Tensor:
    return fusedmm.spmm(adj, torch.eye(3, device=adj.device))


class Product(torch.nn.Module):
    def forward(self, adj: CSR, x: torch.Tensor) -> torch.Tensor:
        return fusedmm.spmm(adj, x)


def compiled(adj: CSR) -> torch.Tensor:
    x = torch.eye(3, device=adj.device, requires_grad=True)
    y = torch.compile(fusedmm.spmm, backend="aot_eager", fullgraph=True)(adj, x)
    (gx,) = torch.autograd.grad(y, x, torch.eye(3, device=adj.device))
    torch.testing.assert_close(gx, adj.to_dense().T)
    return y


def mapped(adj: CSR) -> torch.Tensor:
    x = torch.eye(3, device=adj.device).expand(2, 3, 3)
    return torch.func.vmap(fusedmm.spmm, (None, 0))(adj, x)[1]


def exported(strict: bool):
    def run(adj: CSR) -> torch.Tensor:
        x = torch.eye(3, device=adj.device)
        return export(Product(), (matrix(adj.device.type), x), strict=strict).module()(adj, x)

    return run


WAYS = {
    "as it is": product,
    "t": lambda adj: product(adj.t()).T,
    "t t": lambda adj: product(adj.t().t()),
    "deepcopy": lambda adj: product(copy.deepcopy(adj)),
    "copy": lambda adj: product(copy.copy(adj)),
    "pickle": lambda adj: product(pickle.loads(pickle.dumps(adj))),
    "tree_map": lambda adj: product(pytree.tree_map(lambda t: t, adj)),
    "vmap": mapped,
    "compile": compiled,
    "export": exported(False),
    "strict export": exported(True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_write_is_seen(way, device):
    adj = matrix(device)
    adj.val.mul_(10)
    torch.testing.assert_close(WAYS[way](adj), adj.to_dense())


def test_every_write_between_compiled_calls_is_seen(device):
    adj, x = matrix(device), torch.eye(3, device=device)
    run = torch.compile(fusedmm.spmm, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(run(adj, x), adj.to_dense())
        adj.val.mul_(10)


def test_values_are_kept_at_one_place(device):
    """A captured CUDA graph reads there, whatever is written later."""
    adj = matrix(device)
    places = adj.val_here.data_ptr(), adj.val_there.data_ptr()
    adj.val.mul_(10)
    torch.testing.assert_close(product(adj), adj.to_dense())
    assert (adj.val_here.data_ptr(), adj.val_there.data_ptr()) == places


def test_a_write_that_a_graph_captures_is_in_every_replay(cuda):
    adj, x = matrix(cuda), torch.eye(3, device=cuda)
    adj.val.mul_(10)  # not seen yet when the capture begins
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fusedmm.spmm(adj, x)
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close(y, adj.to_dense())
        torch.testing.assert_close(product(adj), adj.to_dense())
        adj.val.mul_(10)


def test_replaced_values_are_the_ones_multiplied_by(device):
    adj, val = matrix(device), torch.tensor([5.0, 6.0, 7.0, 8.0], device=device)
    other = dataclasses.replace(adj, val=val)
    assert other.val is val and torch.equal(product(other), adj.with_values(val).to_dense())
    assert torch.equal(product(other.t()), adj.with_values(val).to_dense().T)


def test_another_thread_waits_for_both_halves(monkeypatch):
    """CPU only: one thread is stopped between the halves, the other multiplies by the transpose meanwhile."""
    adj, stopped, go = matrix("cpu"), threading.Event(), threading.Event()
    adj.val.mul_(10)
    real, main = structure.constant, threading.current_thread()

    def slow(val, eid, old=None):
        if threading.current_thread() is not main and eid is adj.eid_t:
            stopped.set()
            assert go.wait(60)
        return real(val, eid, old)

    monkeypatch.setattr("fusedmm.matrix.base.constant", slow)
    thread = threading.Thread(target=product, args=(adj,))
    thread.start()
    assert stopped.wait(60)
    try:
        there = spmm_half(adj, True, adj.val, torch.eye(3))
    finally:
        go.set()
        thread.join()
    assert torch.equal(there, adj.to_dense().T)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_products_see_what_is_written_to_a_sparse_tensor(layout, device):
    """One product with a sparse tensor copies none of its values, and none are remembered."""
    dense = torch.tensor([[1.0, 0, 2], [0, 3, 0]], device=device)
    held = dense.to_sparse(layout=layout)
    x = torch.randn(3, 2, device=device)
    for factor in (1, 2, 4):
        torch.testing.assert_close(fusedmm.spmm(held, x), factor * dense @ x)
        with torch.no_grad():
            torch.testing.assert_close(fusedmm.spmm(held, x.requires_grad_()), factor * dense @ x)
        y = fusedmm.spmm(held, x)
        held.values().mul_(2)
        (gx,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gx, factor * dense.sum(0)[:, None].expand(3, 2))
        x = x.detach()
    held = held.requires_grad_()
    (gradient,) = torch.autograd.grad(fusedmm.spmm(held, x).sum(), held)
    torch.testing.assert_close(gradient.to_dense(), x.sum(1) * (dense != 0))
