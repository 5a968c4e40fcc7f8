"""Row sums against float64, and their gradient."""

import pytest
import torch

import fusedmm


class Numbered(torch.nn.Module):
    """Calls the operator with an algorithm's number, as exported programs hold it."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, ptr, idx, val):
        none = idx.new_empty(0, dtype=torch.uint8)
        return torch.ops.fusedmm._rowsum(ptr, idx, none, none, val, self.number)


def test_a_program_that_holds_a_removed_algorithm_runs_the_default(tmp_path):
    given = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32), torch.tensor([[1.0], [2.0], [4.0]])
    for number in (0, 2):
        torch.export.save(torch.export.export(Numbered(number), given), tmp_path / "program.pt2")
        assert torch.export.load(tmp_path / "program.pt2").module()(*given).tolist() == [[3.0], [4.0]]
    for number, more in ((3, "$"), (1000, ": numbers from 1000 on are those of plug-ins")):
        with pytest.raises(RuntimeError, match=f"rowsum has no algorithm number {number} on cpu{more}"):
            Numbered(number)(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_sums_and_gradient(dtype):
    row, col = torch.randint(50, (400,)), torch.randint(30, (400,))
    val = torch.randint(-8, 9, (400,)).to(dtype).requires_grad_()  # sums of these are exact in any order
    adj = fusedmm.CSR.from_coo(row, col, val, shape=(50, 30))
    y = fusedmm.rowsum(adj)
    exact = torch.zeros(50, dtype=torch.float64).index_add_(0, row, val.detach().double())
    assert y.dtype == dtype and torch.equal(y.detach(), exact.to(dtype))
    gy = torch.randn(50, dtype=dtype)
    y.backward(gy)
    assert torch.equal(val.grad, gy[row])
    assert [a.name for a in fusedmm.algorithms("rowsum")] == ["reference"]
    assert fusedmm.algorithms("rowsum", "cuda") == []
    with pytest.raises(ValueError, match="rowsum has no algorithm 'pairs' on cpu; there are auto, reference"):
        fusedmm.rowsum(adj, algorithm="pairs")
    with pytest.raises(ValueError, match="values"):
        fusedmm.rowsum(adj.pattern())
