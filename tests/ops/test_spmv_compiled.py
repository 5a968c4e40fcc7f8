"""spmv in compiled and exported code, and in CUDA graphs."""

import pytest
import torch
import torch._dynamo
from support.generate import small
from support.machine import capture
from support.matvec import FORMATS, made, rows_of_lengths

import fusedmm


@pytest.fixture(autouse=True)
def fresh_compiler():
    """The cases of a test share their code, of which dynamo compiles eight forms at most."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FORMATS)
def test_compiles_in_one_graph(name, device):
    adj = made(small(device=device).cache_transpose(), name)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x, y):
        return fusedmm.spmv(adj, x * 2, alpha=0.5, beta=2, y=y).tanh()

    x, y = torch.randn(15, device=device), torch.randn(12, device=device)
    torch.testing.assert_close(step(x, y), fusedmm.spmv(adj, x, beta=2, y=y).tanh())
    torch.testing.assert_close(torch.compile(lambda v: adj @ v, fullgraph=True, backend="aot_eager")(x), adj @ x)


@pytest.mark.parametrize("name", ["csr", "coo"])
def test_compiled_gradients(name, device):
    adj = small(device=device).cache_transpose()

    def loss(val, x):
        matrix = adj.with_values(val)
        return fusedmm.spmv(matrix if name == "csr" else fusedmm.formats.COO(matrix, row), x, alpha=3).square().sum()

    row = fusedmm.formats.to_coo(adj).row
    given = [t.detach().clone().requires_grad_() for t in (adj.val, torch.randn(15, device=device))]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for mine, theirs in zip(
        torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(*given), given), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", FORMATS)
def test_exports(name, device):
    matrix = made(small(device=device).cache_transpose(), name)

    class Product(torch.nn.Module):
        def forward(self, x):
            return fusedmm.spmv(matrix, x)

    x = torch.randn(15, device=device)
    program = torch.export.export(Product(), (x,))
    assert torch.equal(program.module()(x), fusedmm.spmv(matrix, x))


def test_a_matrix_is_an_argument_of_an_exported_program(device):
    adj = small(device=device).cache_transpose()

    class Product(torch.nn.Module):
        def forward(self, adj, x):
            return fusedmm.spmv(adj, x)

    x = torch.randn(15, device=device)
    program = torch.export.export(Product(), (adj, x))
    assert torch.equal(program.module()(adj, x), fusedmm.spmv(adj, x))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_captured_product_replays_on_new_numbers(name, large, cuda):
    adj = small(device=cuda).cache_transpose()
    if large:  # over many blocks, with a row that several of them share
        adj = rows_of_lengths([5] * 9000 if name in ("dia", "ell") else [7000, *[5] * 9000, 3000], 64, cuda)
    adj = made(adj, name)
    x, y = (torch.randn(n, device=cuda) for n in reversed(adj.shape))

    def step():
        return fusedmm.spmv(adj, x, alpha=2, beta=3, y=y)

    captured, found = capture(step)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        captured.replay()
        assert torch.equal(found, step())
