"""A bad argument of an operator is refused by an error that names the operator, the argument and what was given."""

import re

import numpy
import pytest
import torch

import fusedmm
from fusedmm import distributed, formats
from fusedmm.matrix.normalize import gcn_norm

PATTERN = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 3]), shape=(3, 4))
A = PATTERN.with_values(torch.arange(4.0))
X3, X4, E = torch.ones(3, 2), torch.ones(4, 2), torch.ones(4)
EDGES = torch.tensor([[0, 1], [1, 0]])

# (operator, arguments by name, those that are fixed) of each public operator.
CALLS = [
    (fusedmm.spmm, {"adj": PATTERN, "x": X4}, {}),
    (fusedmm.spmm, {"out": X3}, {"adj": PATTERN, "x": X4}),
    (fusedmm.spmv, {"a": A, "x": E, "y": torch.ones(3)}, {"beta": 1.0}),
    (fusedmm.spmv, {"x": E, "y": torch.ones(3)}, {"a": formats.to_ell(A), "beta": 1.0}),
    (fusedmm.sddmm, {"adj": PATTERN, "a": X3, "b": X4}, {}),
    (fusedmm.sddmm, {"a": X3, "b": X4}, {"adj": PATTERN, "op": "add"}),
    (fusedmm.edge_softmax, {"adj": PATTERN, "logits": E}, {}),
    (fusedmm.fused, {"adj": PATTERN, "x": X3, "y": X4, "z": X4}, {}),
    (fusedmm.attention, {"adj": PATTERN, "q": X3, "k": X4, "v": X4, "bias": E, "edge_weight": E, "mask": E > 0}, {}),
    (fusedmm.attention, {"att": torch.ones(2)}, {"adj": PATTERN, "q": X3, "k": X4, "v": X4, "score": "gatv2"}),
    (fusedmm.gspmm, {"adj": PATTERN, "x": X4, "e": X4}, {"op": "mul", "reduce": "sum"}),
    (fusedmm.gsddmm, {"adj": PATTERN, "lhs": X4, "rhs": X3}, {"op": "add"}),
    (fusedmm.spgemm, {"a": A, "b": A.t(), "mask": fusedmm.CSR.eye(3)}, {}),
    (fusedmm.spgemm_plan, {"a": A, "b": A.t(), "mask": fusedmm.CSR.eye(3)}, {}),
    (fusedmm.triple_product, {"r": A, "a": A.t(), "p": A}, {}),
    (fusedmm.messages.scatter_softmax, {"adj": PATTERN}, {"e": E}),
    (formats.to_coo, {"a": A}, {}),
    (formats.to_ell, {"a": A}, {}),
    (formats.advise, {"a": A}, {}),
    (fusedmm.prepare, {"adj": PATTERN}, {}),
    (fusedmm.unbatch, {"matrix": A}, {"sizes": [(3, 4)]}),
]
# What is given in the place of a dense operand, or of a matrix, by what the text has of it.
DENSE = {
    "int": lambda t: 3,
    "str": lambda t: "no",
    "ndarray": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "CSR": lambda t: A,
    "torch.int64": lambda t: t.long(),
    "torch.complex64": lambda t: t.to(torch.complex64),
    "meta": lambda t: t.to("meta"),
    "torch.sparse_coo": lambda t: t.to_sparse(),
    r"\[\]|a single number": lambda t: t.sum() if t.is_floating_point() else t.any(),
    "17": lambda t: t[:1].expand(17, *t.shape[1:]),
}
MATRICES = {
    "int": 3,
    "str": "no",
    "NoneType": None,
    "ndarray": numpy.eye(3),
    "list": [[1.0]],
    r"\[4, 4\] of torch.float32": torch.ones(4, 4),
    r"\[5, 5\]": EDGES.new_zeros(5, 5),
    "on meta": EDGES.to("meta"),
    "sparse_bsr": torch.eye(4).to_sparse_bsr((2, 2)),
}
OPTIONAL = {"y", "z", "bias", "edge_weight", "mask", "out", "att"}  # where None is as if the argument was not there
CASES = [
    pytest.param(call, {**fixed, **good, name: bad}, name, text, id=f"{call.__name__}-{name}-{text}")
    for call, good, fixed in CALLS
    for name, value in good.items()
    for text, bad in (
        MATRICES.items() if isinstance(value, fusedmm.CSR) else ((text, make(value)) for text, make in DENSE.items())
    )
    if not (bad is None and name in OPTIONAL)
]


@pytest.mark.parametrize(("call", "arguments", "name", "text"), CASES)
def test_the_error_names_operator_argument_and_value(call, arguments, name, text):
    with pytest.raises((TypeError, ValueError), match=rf"^{call.__name__}: .*\b{name}\b.*({text})"):
        call(**arguments)


def test_the_place_in_a_list_is_named():
    with pytest.raises(TypeError, match=r"^hstack: matrices\[1\]: cannot make a CSR of str"):
        fusedmm.hstack([A, "no"])


def test_three_matrices_are_named_as_they_were_given():
    with pytest.raises(
        ValueError, match=r"^triple_product: r is \[3, 4\] and a \[3, 4\]; r's columns must be a's rows"
    ):
        fusedmm.triple_product(A, A, A)
    with pytest.raises(
        ValueError, match=r"^triple_product: a is \[4, 3\] and p \[4, 3\]; a's columns must be p's rows"
    ):
        fusedmm.triple_product(A, A.t(), A.t())


def test_heads_of_queries_alone():
    with pytest.raises(ValueError, match=r"^attention: q is \[3, 3, 2\] and k \[4, 2\]; k and v need heads too"):
        fusedmm.attention(PATTERN, X3[:, None].expand(3, 3, 2), X4, X4)


ROW = torch.tensor([0, 1])
PTR = torch.tensor([0, 1, 2])
STORED = {"ptr": PTR, "idx": ROW, "shape": torch.tensor([2, 2])}
FLAGS = [  # a function, its flag, and a call
    ("spgemm", "sorted", lambda flag: fusedmm.spgemm(A, A.t(), sorted=flag)),
    ("spgemm_plan", "sorted", lambda flag: fusedmm.spgemm_plan(A, A.t(), sorted=flag)),
    ("attention", "training", lambda flag: fusedmm.attention(PATTERN, X3, X4, X4, training=flag)),
    ("attention", "return_lse", lambda flag: fusedmm.attention(PATTERN, X3, X4, X4, return_lse=flag)),
    ("attention", "return_weights", lambda flag: fusedmm.attention(PATTERN, X3, X4, X4, return_weights=flag)),
    ("as_csr", "check", lambda flag: fusedmm.as_csr(EDGES, check=flag)),
    ("from_csr", "check", lambda flag: fusedmm.CSR.from_csr(PTR, ROW, check=flag)),
    ("from_coo", "check", lambda flag: fusedmm.CSR.from_coo(ROW, ROW, check=flag)),
    ("from_edge_index", "check", lambda flag: fusedmm.CSR.from_edge_index(EDGES, check=flag)),
    ("from_torch", "check", lambda flag: fusedmm.CSR.from_torch(torch.eye(2).to_sparse(), check=flag)),
    ("from_scipy", "check", lambda flag: fusedmm.CSR.from_scipy(A.to_scipy(), check=flag)),
    ("from_tensors", "check", lambda flag: fusedmm.CSR.from_tensors(STORED, check=flag)),
    ("to", "non_blocking", lambda flag: A.to("cpu", non_blocking=flag)),
    ("gcn_norm", "improved", lambda flag: gcn_norm(fusedmm.as_csr(EDGES), flag)),
    ("gcn_norm", "add_self_loops", lambda flag: fusedmm.as_csr(EDGES).gcn_norm(add_self_loops=flag)),
    ("convert", "report", lambda flag: fusedmm.convert(torch.nn.Identity(), report=flag)),
    ("dropout", "training", lambda flag: distributed.dropout(X3, 0.0, own_rows(), flag)),
    ("to", "non_blocking", lambda flag: own_rows().to(non_blocking=flag)),
]


def own_rows():
    """A matrix of one rank."""
    return distributed.DistCSR.from_edges(torch.arange(3), torch.arange(3), None, torch.tensor([0, 3]), None)


@pytest.mark.parametrize(("function", "name", "call"), FLAGS, ids=lambda of: of if isinstance(of, str) else "")
def test_what_is_neither_true_nor_false_is_refused(function, name, call):
    """As a condition the text "no" is true, and 0 and None are false, so that none of them would be noticed."""
    for flag in ("no", 1, 0, None, torch.tensor(True)):
        wanted = re.escape(f"{function}: {name} must be True or False, not {flag!r}")
        with pytest.raises(TypeError, match=f"^{wanted}$"):
            call(flag)
    for flag in (True, False):
        call(flag)


def test_shards_refuse_it_too(tmp_path):
    distributed.partition(fusedmm.data.banded(9, 1), 3).write(tmp_path)
    with pytest.raises(TypeError, match=r"^local: check must be True or False, not 'no'"):
        distributed.Shards(tmp_path).local(0, 1, check="no")
    with pytest.raises(TypeError, match=r"^load: check must be True or False, not 'no'"):
        distributed.load(tmp_path, None, check="no")
