"""``_pick``, which gathers the rows that travel: every bit of them, whatever they lie in."""

import pytest
import torch

from fusedmm._lib import ops


@pytest.mark.parametrize("width", [1, 4, 6, 8, 12, 16, 32, 48, 64, 400, 1024])
@pytest.mark.parametrize("form", ["contiguous", "columns", "one row", "apart"])
def test_rows(width, form, device):
    generator = torch.Generator().manual_seed(width)
    rows = 1 if form == "one row" else 700
    whole = torch.randint(256, (rows, 3 * width + 16), dtype=torch.uint8, generator=generator).to(device)
    at = 16 if form == "columns" else 5 if form == "apart" else 0
    x = whole[:, at : at + width] if form != "contiguous" else whole[:, :width].contiguous()
    pick = torch.randint(rows, (1_000,), generator=generator).to(device)
    assert torch.equal(ops._pick(x, pick), x[pick]) and torch.equal(ops._pick(x, pick.int()), x[pick])
    assert ops._pick(x, pick[:0]).shape == (0, width) and ops._pick(x[:, :0], pick).shape == (1_000, 0)


def test_numbers_that_are_no_rows_bring_zeros(device):
    x = torch.full((3, 16), 7, dtype=torch.uint8, device=device)
    pick = torch.tensor([2, 3, -1, 2**40, -(2**63), 0], device=device)
    assert ops._pick(x, pick)[:, 0].tolist() == [7, 0, 0, 0, 0, 7]
    assert not ops._pick(x[:0], pick).any()


@pytest.mark.parametrize(
    "x, pick, message",
    [
        (torch.ones(3, 4), torch.tensor([0]), r"x must be rows of bytes: uint8 \[rows, bytes\]"),
        (torch.ones(3, dtype=torch.uint8), torch.tensor([0]), "x must be rows of bytes"),
        (torch.ones(3, 4, dtype=torch.uint8), torch.tensor([0.0]), "pick must be.*int64"),
        (torch.ones(3, 4, dtype=torch.uint8), torch.tensor([[0]]), "pick must be"),
    ],
)
def test_what_is_refused(x, pick, message):
    with pytest.raises(RuntimeError, match=message):
        ops._pick(x, pick)
