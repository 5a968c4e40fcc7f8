"""Every way torch runs an operator: compiled, checkpointed, under autocast, captured, on streams."""

import copy
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
import torch.utils.checkpoint
from support.generate import small
from support.machine import ROOT, capture
from support.turns import in_turn
from torch.library import opcheck

import fusedmm


def graph(n, heads=None, device="cpu", dtype=torch.float64, transpose=True):
    """n nodes, 5 n entries in no order, values."""
    g = torch.Generator().manual_seed(n)
    row, col = torch.randint(0, n, (2, 5 * n), generator=g)
    val = torch.randn((5 * n,) if heads is None else (5 * n, heads), generator=g).to(dtype)
    adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), val.to(device), shape=(n, n))
    return adj.cache_transpose() if transpose else adj


def layer(adj, x, reduce="sum"):
    """Both operators, so that both gradients are compiled."""
    y = torch.relu(fusedmm.spmm(adj, x, reduce=reduce))
    e = fusedmm.sddmm(adj.pattern(), y, x)
    return fusedmm.spmm(adj.with_values(torch.tanh(e)), x)


def gradients(f, adj, x):
    x = x.detach().requires_grad_()
    y = f(adj, x)
    y.square().sum().backward()
    return y.detach(), x.grad


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("heads, backend", [(None, "aot_eager"), (2, "inductor")])
def test_compiled_is_eager(heads, backend, device):
    adj = graph(50, heads, device)
    x = torch.randn(50, *([] if heads is None else [heads]), 7, device=device, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    torch.testing.assert_close(gradients(compiled, adj, x), gradients(layer, adj, x))


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_reductions_compile(reduce, device):
    adj, x = graph(50, device=device), torch.randn(50, 7, device=device, dtype=torch.float64)

    def f(adj, x):
        return fusedmm.spmm(adj, x, reduce=reduce)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, adj, x), gradients(f, adj, x))


def matmul(adj, x):
    return adj @ x


def transposed_matmul(adj, x):
    return adj.t() @ x


@pytest.mark.parametrize("layer, dynamic", in_turn([layer, matmul, transposed_matmul], [None, True]))
def test_no_recompilation_after_the_second_size(layer, dynamic, device):
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=count)
    for k, n in enumerate((40, 64, 90, 33, 200)):
        adj, x = graph(n, device=device), torch.randn(n, 7, device=device, dtype=torch.float64)
        torch.testing.assert_close(gradients(compiled, adj, x), gradients(layer, adj, x))
        if k == 1:
            after_two = count.frame_count
    assert count.frame_count == after_two, f"{count.frame_count - after_two} recompilations"


NAMED = """
import torch, fusedmm
adj = fusedmm.CSR.from_coo(*torch.randint(0, 9, (2, 40)), shape=(9, 9)).cache_transpose()
def call(adj, x):
    y = fusedmm.attention(adj, x, x, fusedmm.spmm(adj, x, algorithm="reference"), algorithm="reference")
    e = fusedmm.sddmm(adj, x, y, algorithm="reference")
    return fusedmm.fused(adj.with_values(e), x, y, algorithm="reference")
x = torch.randn(9, 3)
found = torch.compile(call, fullgraph=True, backend="aot_eager")(adj, x)
assert torch.equal(found, call(adj, x))
print("one graph")
"""


def test_named_algorithms_that_no_eager_call_has_named_before():
    ran = subprocess.run([sys.executable, "-c", NAMED], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "one graph\n", ran.stderr


def test_a_missing_transpose_is_refused_by_name(device):
    """A sort traced into the graph would run at every step."""
    adj = graph(40, device=device, transpose=False)
    x = torch.randn(40, 3, device=device, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"call adj.cache_transpose\(\) before the compiled code"):
        torch.compile(fusedmm.spmm, fullgraph=True, backend="aot_eager")(adj, x).sum().backward()
    torch._dynamo.reset()
    y = torch.compile(fusedmm.spmm, fullgraph=True, backend="aot_eager")(adj, x.detach())  # forward needs none
    torch.testing.assert_close(y, fusedmm.spmm(adj, x.detach()))


def registered_operands(heads, device):
    adj = graph(12, heads, device)
    halves = (adj.ptr, adj.idx, adj.eid, adj.plan, adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t)
    size = (12, 4) if heads is None else (12, heads, 4)
    x, a = (torch.randn(size, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return adj, halves, adj.val.clone().requires_grad_(), x, a


@pytest.mark.parametrize("heads", [None, 2])
def test_opcheck(heads, device):
    """torch's own checks of schema, fake kernel, autograd registration and AOT dispatch."""
    adj, halves, val, x, a = registered_operands(heads, device)
    for reduce, values in ((0, val), (1, adj.none)):
        opcheck(torch.ops.fusedmm.spmm.default, (*halves, values, x, reduce, 0))
    opcheck(torch.ops.fusedmm.sddmm.default, (*halves, val, a, x, 0))
    opcheck(torch.ops.fusedmm.sddmm.default, (*halves, adj.none, a, x, 0))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_registered_operators_are_the_functions(reduce, device):
    """What exported and C++ programs call gives the same numbers and gradients."""
    adj, halves, val, x, a = registered_operands(2, device)
    ours = fusedmm.spmm(adj.with_values(val), x, reduce=reduce)
    theirs = torch.ops.fusedmm.spmm(*halves, val, x, ["sum", "mean"].index(reduce), 0)
    for one, other in ((ours, theirs), (fusedmm.sddmm(adj.with_values(val), a, x), None)):
        other = torch.ops.fusedmm.sddmm(*halves, val, a, x, 0) if other is None else other
        assert torch.equal(one, other)
        operands = (val, x) if one is ours else (val, x, a)
        up = torch.randn_like(one)
        for g, h in zip(torch.autograd.grad(one, operands, up), torch.autograd.grad(other, operands, up), strict=True):
            torch.testing.assert_close(g, h)


def test_registered_operators_say_what_gradients_need(device):
    adj, halves, _, x, _ = registered_operands(None, device)
    none = adj.none
    y = torch.ops.fusedmm.spmm(*halves[:4], none, none, none, none, none, x, 0, 0)
    with pytest.raises(RuntimeError, match="a gradient needs the transpose: give ptr_t"):
        y.sum().backward()
    z = torch.ops.fusedmm.spmm(*halves, none, x, 2, 0)
    with pytest.raises(RuntimeError, match="max"):
        z.sum().backward()


# ---- the other ways ----


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant, device):
    adj, x = small(device=device), torch.randn(15, 4, device=device)

    def f(adj, x):
        return torch.relu(fusedmm.spmm(adj, x))

    def g(adj, x):
        return torch.utils.checkpoint.checkpoint(f, adj, x, use_reentrant=reentrant)

    torch.testing.assert_close(gradients(g, adj, x), gradients(f, adj, x), rtol=0, atol=0)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(low, device):
    """The operators compute in the low type; gradients come back in each operand's own."""
    adj = small(device=device)
    val = adj.val.clone().requires_grad_()
    x, a = (torch.randn(n, 4, device=device, requires_grad=True) for n in (15, 12))
    with torch.autocast(device, dtype=low):
        y, e = fusedmm.spmm(adj.with_values(val), x), fusedmm.sddmm(adj, a, x)
    assert y.dtype == low and e.dtype == low
    assert torch.equal(y, fusedmm.spmm(adj, x.detach().to(low)))
    (y.float().sum() + e.float().sum()).backward()
    assert x.grad.dtype == a.grad.dtype == val.grad.dtype == torch.float32
    with torch.autocast(device, dtype=low):  # double stays
        assert fusedmm.spmm(adj, x.detach().double()).dtype == torch.float64


def test_inference_mode(device):
    outside = small(device=device)
    x = torch.randn(15, 4, device=device)
    expected = fusedmm.spmm(outside, x)
    with torch.inference_mode():
        inside = small(device=device)
        assert torch.equal(fusedmm.spmm(inside, x), expected)
        assert torch.equal(fusedmm.spmm(inside.t().t(), x.clone()), expected)
        assert torch.equal(fusedmm.spmm(outside, x), expected)
        edges = torch.tensor([[0, 1], [1, 0]], device=device)
        assert fusedmm.spmm(edges, torch.eye(2, device=device)).tolist() == [[0, 1], [1, 0]]
    with torch.no_grad():
        assert torch.equal(fusedmm.spmm(outside, x.requires_grad_()), expected)


def test_a_model_with_a_matrix_is_copied(device):
    """Deep copies, as for an exponential moving average."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.adj, self.linear = small(device=device), torch.nn.Linear(4, 4, device=device)

        def forward(self, x):
            return fusedmm.spmm(self.adj, self.linear(x))

    model, x = Model(), torch.randn(15, 4, device=device)
    model(x).sum().backward()
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_a_sparse_tensor_becomes_a_csr_beforehand():
    """torch.compile takes no sparse tensor; the CSR made of one serves, and its values get their gradient."""
    sparse, x = graph(50).to_torch().requires_grad_(), torch.randn(50, 7, dtype=torch.float64)
    compiled = torch.compile(lambda adj, x: fusedmm.spmm(adj, x), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="sparse Tensor"):
        compiled(sparse, x)
    found = []
    for f in (fusedmm.spmm, compiled):
        y = f(fusedmm.as_csr(sparse).cache_transpose(), x)
        found.append(torch.autograd.grad(y.square().sum(), sparse)[0].to_dense())
    torch.testing.assert_close(*found)


# ---- CUDA ----


def test_cuda_graph_capture(cuda):
    """Captured forward and backward replay on new numbers."""
    adj = graph(500, device=cuda, dtype=torch.float32)
    x = torch.randn(500, 33, device=cuda, requires_grad=True)

    def step():
        y = layer(adj, x)
        return y, torch.autograd.grad(y.sum(), x)[0]

    captured, (y, gx) = capture(step)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        captured.replay()
        expected = step()
        assert torch.equal(y, expected[0]) and torch.equal(gx, expected[1])


def test_side_stream_while_the_default_one_is_blocked(cuda):
    """The kernels run on the current stream: they end while the default stream still sleeps."""
    adj, x = graph(500, device=cuda, dtype=torch.float32), torch.randn(500, 33, device=cuda)
    expected = layer(adj, x)
    torch.cuda.synchronize()
    side, done, blocked = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(side):
        layer(adj, x)  # its memory comes from this stream's pool from here on
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    blocked.record()
    with torch.cuda.stream(side):
        y = layer(adj, x)
        done.record()
    done.synchronize()
    assert not blocked.query(), "the kernels waited for the default stream"
    assert torch.equal(y, expected)


def test_another_current_device(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    x = torch.ones(50, 3, dtype=torch.float64)
    expected = layer(graph(50), x)
    with torch.cuda.device(0):
        y = layer(graph(50, device="cuda:1"), x.to("cuda:1"))
    assert y.device.index == 1
    torch.testing.assert_close(y.cpu(), expected)
