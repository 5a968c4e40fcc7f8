"""``_pick_into``, which gathers the rows that travel: every bit of them, whatever they lie in."""

import pytest
import torch

from fusedmm._lib import ops


def picked(x, pick):
    y = x.new_full((pick.numel(), x.shape[1]), 99)
    ops._pick_into(x, pick, y)
    return y


@pytest.mark.parametrize("width", [1, 4, 6, 8, 12, 16, 32, 48, 64, 400, 1024])
@pytest.mark.parametrize("form", ["contiguous", "columns", "one row", "apart"])
def test_rows(width, form, device):
    generator = torch.Generator().manual_seed(width)
    rows = 1 if form == "one row" else 700
    whole = torch.randint(256, (rows, 3 * width + 16), dtype=torch.uint8, generator=generator).to(device)
    at = 16 if form == "columns" else 5 if form == "apart" else 0
    x = whole[:, at : at + width] if form != "contiguous" else whole[:, :width].contiguous()
    pick = torch.randint(rows, (1_000,), generator=generator).to(device)
    assert torch.equal(picked(x, pick), x[pick]) and torch.equal(picked(x, pick.int()), x[pick])
    assert picked(x, pick[:0]).shape == (0, width) and picked(x[:, :0], pick).shape == (1_000, 0)


@pytest.mark.parametrize("width, at", [(16, 32), (12, 4), (5, 3)])
def test_columns_of_a_wider_room(width, at, device):
    x = torch.arange(7 * width, dtype=torch.uint8, device=device).view(7, width)
    pick, room = torch.tensor([6, 0, 3, 3], device=device), torch.full((4, 64), 99, dtype=torch.uint8, device=device)
    expected = room.clone()
    expected[:, at : at + width] = x[pick]
    ops._pick_into(x, pick, room[:, at : at + width])
    assert torch.equal(room, expected)


def test_numbers_that_are_no_rows_bring_zeros(device):
    x = torch.full((3, 16), 7, dtype=torch.uint8, device=device)
    pick = torch.tensor([2, 3, -1, 2**40, -(2**63), 0], device=device)
    assert picked(x, pick)[:, 0].tolist() == [7, 0, 0, 0, 0, 7]
    assert not picked(x[:0], pick).any()


BYTES, PICK, ROOM = torch.ones(3, 4, dtype=torch.uint8), torch.tensor([0, 2]), torch.ones(2, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    "x, pick, y, message",
    [
        (torch.ones(3, 4), PICK, ROOM, r"x must be rows of bytes: uint8 \[rows, bytes\]"),
        (BYTES[:, 0], PICK, ROOM, "x must be rows of bytes"),
        (BYTES, torch.tensor([0.0, 1.0]), ROOM, "pick must be.*int64"),
        (BYTES, PICK[:, None], ROOM, "pick must be"),
        (BYTES, PICK, ROOM[:1], "y must be rows of as many bytes"),
        (BYTES, PICK, ROOM.expand(2, 2, 4), "y must be rows"),
        (BYTES, PICK, ROOM[:1].expand(2, 4), "y must be rows"),
        (BYTES, PICK, torch.ones(4, 2, dtype=torch.uint8).t(), "y must be rows"),
        (BYTES, PICK, torch.ones(2, 4), "y must be rows"),
        (BYTES, PICK, ROOM[:, :3], "y must be rows"),
    ],
)
def test_what_is_refused(x, pick, y, message):
    before = y.clone()
    with pytest.raises(RuntimeError, match=message):
        ops._pick_into(x, pick, y)
    assert torch.equal(y, before)


def test_signs_that_torch_has_yet_to_turn():
    x = torch.arange(12, dtype=torch.uint8).view(3, 4)
    y = torch.zeros(2, 4, dtype=torch.uint8)
    ops._pick_into(torch._neg_view(x), PICK, y)
    assert torch.equal(y, -x[PICK])
    with pytest.raises(TypeError, match="_pick_into: y must hold its own signs"):
        ops._pick_into(x, PICK, torch._neg_view(y))
