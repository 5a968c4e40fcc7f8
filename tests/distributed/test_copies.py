"""What a rank reads of which other one, with tensors in the place of other GPUs' memory."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fusedmm.distributed import copies

SENDS = torch.tensor([[0, 3, 1, 2], [2, 0, 0, 5], [4, 1, 0, 3], [1, 1, 1, 0]])  # rows from each rank to each


@pytest.fixture
def four(monkeypatch):
    """Makes the ``Copies`` of four ranks, whose slots have so many bytes."""
    stream = SimpleNamespace(wait_stream=lambda other: None, wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *args, **kwargs: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())

    def make(size):
        rooms = torch.zeros(4, copies.SLOTS * size, dtype=torch.uint8)

        def get_buffer(rank, shape, dtype, at):
            return rooms[rank, at : at + shape.numel()].view(shape)

        def handle(rank):
            return SimpleNamespace(rank=rank, get_buffer=get_buffer, barrier=lambda slot: None)

        made = []
        for rank in range(4):
            monkeypatch.setattr(copies, "shared_memory", lambda *_, rank=rank: (rooms[rank], handle(rank)))
            made.append(copies.Copies(None, size, torch.device("cpu")))
        return made

    return make


@pytest.mark.parametrize("width", [32, 12])
def test_each_rank_finds_its_rows(width, four):
    each = four(copies.ALIGNED)
    for message in range(3):
        rows = [torch.randint(256, (int(n), width), dtype=torch.uint8) for n in SENDS.sum(1)]
        for mine, sent in zip(each, rows, strict=True):
            mine.slot(*sent.shape).copy_(sent)
        for rank, mine in enumerate(each):
            into, theirs = SENDS[:, rank].tolist(), SENDS[:, :rank].sum(1).tolist()
            found = torch.full((sum(into), width), message, dtype=torch.uint8)
            mine.start(mine.slot(*rows[rank].shape), into, found, theirs)()
            parts = [sent[first : first + n] for sent, first, n in zip(rows, theirs, into, strict=True)]
            assert torch.equal(found, torch.cat(parts))


def test_no_two_ranks_copy_from_one_at_once(four, monkeypatch):
    each, width, order = four(2**10), 16, []
    kept, base = torch.Tensor.copy_, each[0].room.data_ptr()
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda to, t: order.append((t.data_ptr() - base) // (2 * 2**10)) or kept(to, t)
    )
    for rank, mine in enumerate(each):
        mine.start(mine.slot(3, width), [int(r != rank) for r in range(4)], torch.empty(3, width).byte(), [0] * 4)
    assert order == [1, 2, 3, 2, 3, 0, 3, 0, 1, 0, 1, 2]
