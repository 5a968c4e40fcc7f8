"""Our functions against what dgl's own gave in its environment (``dgl_values.py``). ``make interop`` runs this file."""

import os

import numpy as np
import pytest
import torch

import fusedmm
from fusedmm import CSR, messages

STORED = dict(np.load(os.environ["FUSEDMM_DGL_VALUES"]))
SRC, DST = torch.from_numpy(STORED["src"]), torch.from_numpy(STORED["dst"])
NODES = len(STORED["u"])
P = CSR.from_coo(DST, SRC, shape=(NODES, NODES))
CASES = sorted({name.partition("/")[0] for name in STORED if "/" in name})
REDUCTIONS = {"sum": CSR.sum, "smean": CSR.mean, "smax": CSR.max, "smin": CSR.min}
OF_MATRIX = {
    "spmm": lambda A, x: A @ x,
    "sddmm": lambda A, x: A.val * fusedmm.sddmm(A.pattern(), x, x),
    "softmax": lambda A: A.softmax().val,
    "spspmm": lambda A: (A @ A).to_dense(),
    "add": lambda A: (A + A.t()).to_dense(),
}


def ours(name):
    """The function of a case, and the names of its operands."""
    kind, _, rest = name.partition(" ")
    if kind == "sparse":
        if rest in OF_MATRIX:
            function = OF_MATRIX[rest]
        else:
            reduce, dim = rest.split()
            function = lambda A: REDUCTIONS[reduce](A, int(dim))  # noqa: E731
        operands = ["w", "x"] if rest in ("spmm", "sddmm") else ["w"]
        return lambda w, *given: function(P.with_values(w), *given), operands
    if name == "edge_softmax":
        return lambda w: fusedmm.edge_softmax(P, w), ["w"]
    function = getattr(messages, name)
    parts = name.split("_")
    if parts[0] == "copy":
        operands = [parts[1]]
    elif len(parts) == 4:
        operands = ["u", "thin"]
    else:
        operands = [parts[0], parts[2]]
    return lambda *given: function(P, *given), operands


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_dgl(name):
    function, operands = ours(name)
    given = [torch.from_numpy(STORED[operand]).requires_grad_() for operand in operands]
    out, expected = function(*given), torch.from_numpy(STORED[f"{name}/out"])
    nothing = expected.isinf()  # a maximum or minimum over no edges, which is 0 here
    if name.endswith(("_max", "_min")):
        assert torch.equal(nothing, (P.degree() == 0)[:, None, None].expand_as(nothing))
    torch.testing.assert_close(out, expected.masked_fill(nothing, 0), rtol=1e-5, atol=1e-6)
    weights = torch.arange(out.numel(), dtype=out.dtype).cos().reshape(out.shape).masked_fill(nothing, 0)
    for i, grad in enumerate(torch.autograd.grad((out * weights).sum(), given)):
        if name == "sparse add":  # dgl has no gradient of it
            continue
        torch.testing.assert_close(grad, torch.from_numpy(STORED[f"{name}/grad{i}"]), rtol=1e-4, atol=1e-5)


def test_every_shortcut_was_compared():
    assert set(messages.SHORTCUTS) <= set(CASES)
