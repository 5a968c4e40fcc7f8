"""Run by the Python of dgl's environment, which has no fusedmm: writes what dgl gives, and its gradients, to a file.

Each case is stored under ``name/out`` and ``name/grad<i>``; its operands stand under their own names.
"""

import itertools
import sys

import dgl
import dgl.sparse
import numpy as np
import torch

NODES, EDGES = 40, 160
generator = torch.Generator().manual_seed(0)
places = torch.randperm((NODES - 4) ** 2, generator=generator)[:EDGES]  # in no order; the last nodes have no edges
src, dst = places // (NODES - 4), places % (NODES - 4)
graph = dgl.graph((src, dst), num_nodes=NODES)


def drawn(*shape):
    """Numbers that may be divided by."""
    return torch.rand(*shape, generator=generator) + 0.5


OPERANDS = {
    "u": drawn(NODES, 3, 4), "v": drawn(NODES, 3, 4), "e": drawn(EDGES, 3, 4), "thin": drawn(EDGES, 3, 1),
    "w": drawn(EDGES), "x": drawn(NODES, 5),
}  # fmt: skip
stored = {name: t.numpy() for name, t in OPERANDS.items()} | {"src": src.numpy(), "dst": dst.numpy()}


def store(name, function, *operands):
    """Keeps the result, and the gradients of a weighted sum of it."""
    given = [OPERANDS[operand].clone().requires_grad_() for operand in operands]
    out = function(*given)
    # The gradient of a maximum over no edges would reach element 0.
    weights = torch.arange(out.numel(), dtype=out.dtype).cos().reshape(out.shape).masked_fill(out.isinf(), 0)
    grads = torch.autograd.grad((out * weights).sum(), given) if out.requires_grad else ()  # a sum of two has none
    stored[f"{name}/out"] = out.detach().numpy()
    for i, grad in enumerate(grads):
        stored[f"{name}/grad{i}"] = grad.numpy()


def of_graph(name):
    return lambda *given: getattr(dgl.ops, name)(graph, *given)


def of_matrix(function):
    """The first operand becomes the values of the matrix that gathers sources into targets."""
    return lambda w, *given: function(dgl.sparse.from_coo(dst, src, w, (NODES, NODES)), *given)


for reduce in ("sum", "mean", "max", "min"):
    for op in ("add", "sub", "mul", "div"):
        store(f"u_{op}_e_{reduce}", of_graph(f"u_{op}_e_{reduce}"), "u", "thin")
    store(f"copy_u_{reduce}", of_graph(f"copy_u_{reduce}"), "u")
    store(f"copy_e_{reduce}", of_graph(f"copy_e_{reduce}"), "e")
for (a, b), op in itertools.product(itertools.permutations("uve", 2), ("add", "sub", "mul", "div", "dot")):
    store(f"{a}_{op}_{b}", of_graph(f"{a}_{op}_{b}"), a, b)
for name in ("copy_u", "copy_v"):
    store(name, of_graph(name), name[-1])
store("edge_softmax", of_graph("edge_softmax"), "w")

store("sparse spmm", of_matrix(dgl.sparse.spmm), "w", "x")
store("sparse sddmm", of_matrix(lambda A, x: dgl.sparse.sddmm(A, x, x.t().contiguous()).val), "w", "x")
store("sparse softmax", of_matrix(lambda A: A.softmax().val), "w")
store("sparse spspmm", of_matrix(lambda A: (A @ A).to_dense()), "w")
store("sparse add", of_matrix(lambda A: (A + A.t()).to_dense()), "w")
for reduce, dim in itertools.product(("sum", "smean", "smax", "smin"), (0, 1)):
    store(f"sparse {reduce} {dim}", of_matrix(lambda A, r=reduce, d=dim: getattr(A, r)(dim=d)), "w")
stored["versions"] = np.array([dgl.__version__, torch.__version__])
np.savez(sys.argv[1], **stored)
