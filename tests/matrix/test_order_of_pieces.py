"""The plan on CUDA lists the pieces of long rows by their place within the rows, whoever made it."""

import itertools

import pytest
import torch

import fusedmm
from fusedmm._lib import ops

SHARES = 64  # csrc/matrix/cuda_plan_steps.cuh
HEADER = 64
LENGTHS = {
    "few": [300, 0, 33, 1, 32, 1057, 65, 12, 1024, 0, 40],  # one launch makes the plan
    "hubs": [70_000, 33, 0, 1025, 5, 40_000, 97] + [31, 64, 200] * 20,
    "dense": [400 + k % 300 for k in range(1500)],
    "many": [(7 * k) % 150 for k in range(20_000)],
    "none": [3] * 500,
}


def padded(size: int) -> int:
    return -(-size // 16) * 16


def expected(ptr: list[int], piece: int) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """(row, slot, first entry, entries) of each piece in the order of the list, and the first slots of long rows."""
    listed, firsts, slot = [], {}, 0
    for row, (begin, end) in enumerate(itertools.pairwise(ptr)):
        length, pieces = end - begin, -(-(end - begin) // piece)
        if pieces < 2:
            continue
        firsts[row] = slot
        each = -(-length // (8 * pieces)) * 8
        for k in range(pieces):
            at = begin + k * each
            share = (2 * k + 1) * SHARES // (2 * pieces)  # the middle of the piece, in steps of the row
            listed.append((share, row, slot + k, at, min(each, end - at)))
        slot += pieces
    return [rest for _, *rest in sorted(listed)], firsts


def decoded(plan: torch.Tensor, rows: int, nnz: int) -> tuple[list[list[int]], dict[int, int], int]:
    """What a plan says of pieces: their list, the first slots of long rows, and the longest piece there may be."""
    header = plan[:HEADER].view(torch.int32).tolist()
    piece, long_rows, segments = header[5], header[7], header[8]
    order_at = HEADER + padded((-(-nnz // 128) + 1) * 4)
    first_at = order_at + padded(rows * 4)
    list_at = first_at + padded(min(rows, nnz // (piece + 1)) * 4)
    order = plan[order_at:][: rows * 4].view(torch.int32).tolist()
    first = plan[first_at:][: long_rows * 4].view(torch.int32).tolist()
    words = plan[list_at:][: segments * 16].view(torch.int32).view(-1, 4).long() & 0xFFFFFFFF
    row, slot, low, high = words.unbind(1)
    pieces = torch.stack([row, slot, high << 16 | low >> 16, low & 0xFFFF], 1).tolist()
    return pieces, dict(zip(order[:long_rows], first, strict=True)), piece


@pytest.fixture(params=LENGTHS)
def matrix(request, cuda):
    lengths = torch.tensor(LENGTHS[request.param])
    rows, cols = len(lengths), 5000
    generator = torch.Generator().manual_seed(0)
    row = torch.arange(rows).repeat_interleave(lengths)
    col = torch.randint(cols, row.shape, generator=generator)
    return fusedmm.CSR.from_coo(row.to(cuda), col.to(cuda), shape=(rows, cols))


@pytest.mark.parametrize("maker", ["construction", "transpose", "call"])
def test_pieces_are_listed_by_their_place_in_the_row(maker, matrix):
    half = matrix.cache_transpose().t() if maker == "transpose" else matrix
    plan = ops._plan(half.ptr, half.idx) if maker == "call" else half.plan
    found, firsts, piece = decoded(plan.cpu(), half.shape[0], half.nnz)
    listed, slots = expected(half.ptr.tolist(), piece)
    assert found == listed
    assert firsts == slots
    assert bool(found) == (int(half.ptr.diff().max()) > piece)
