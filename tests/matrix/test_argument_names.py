"""Which names a matrix's constructors know, and what they say of those that others have."""

import pytest
import torch

import fusedmm


@pytest.mark.parametrize(
    "call, word",
    [
        (lambda i: fusedmm.CSR(row=i[0], col=i[1], value=None, sparse_sizes=(3, 3)), "'row'"),
        (lambda i: fusedmm.CSR(i), "from_edge_index"),
        (lambda i: fusedmm.CSR(torch.eye(3)), "from_dense"),
        (lambda i: fusedmm.CSR(), "as_csr"),
        (lambda i: fusedmm.CSR(i[0], i[1], None), "from_csr"),
    ],
)
def test_the_constructor_says_who_makes_a_matrix(call, word):
    with pytest.raises(TypeError, match=f"make one by CSR.from_csr.*{word}|make one by CSR.{word}"):
        call(torch.tensor([[0, 1], [1, 2]]))


def test_from_csr_knows_the_names_that_others_have():
    ptr, idx = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    with pytest.raises(TypeError, match="no argument 'rowptr'; give ptr="):
        fusedmm.CSR.from_csr(rowptr=ptr, col=idx)
    with pytest.raises(TypeError, match="no argument 'col'; give idx="):
        fusedmm.CSR.from_csr(ptr, col=idx)
    with pytest.raises(TypeError, match="idx must be a tensor, not NoneType"):
        fusedmm.CSR.from_csr(ptr)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: A.add_self_loops(2.0, fill=3.0),
        lambda A: A.add_self_loops(1.0, fill=3.0),
        lambda A: A.set_self_loops(fill_value=2.0, fill=3.0),
        lambda A: A.gcn_norm(fill_value=2.0, fill=2.0),
        lambda A: fusedmm.nn.GATConv(3, 2, fill_value="mean", fill=1.0),
        lambda A: fusedmm.nn.GATv2Conv(3, 2, fill_value=2.0, fill="add"),
    ],
)
def test_two_names_of_one_argument_are_not_both_given(call):
    with pytest.raises(TypeError, match="give fill_value or fill, which is another name of it, not both"):
        call(fusedmm.CSR.eye(3))
