"""Rows that GPUs of one host copy out of each other's memory, by engines that take no multiprocessor from kernels.

NCCL moves rows by a kernel of its own, which waits for room among the blocks of another one and then takes some of it.
A copy engine does neither, so that a piece that travels under a kernel takes as long as without one:

    this stream      | pick into a slot |                       ...  | waits | kernel that reads the rows
    another one                         | barrier | copies from each rank's slot |

The slots are memory that all ranks of a group reach, and messages lie in two of them in turn. A rank that writes into
one has passed the barrier of the message after the one that lay there, at which a rank arrives once its copies of that
one have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusedmm._torch_compat import shared_memory

SLOTS = 2
ALIGNED = 256  # bytes at a multiple of which slots begin
LEAST, MOST = 2**20, 2**29  # bytes of a slot; larger messages go by NCCL, and smaller ones are not worth the room


class Copies:
    """The slots of a group's ranks, and the stream on which this one copies.

    Args:
        group: the process group; all of its ranks make this together.
        size: bytes of a slot.
        device: this rank's GPU.

    Raises:
        RuntimeError: the GPUs do not reach each other's memory.
    """

    def __init__(self, group: Any, size: int, device: torch.device) -> None:
        self.size, self.count = -(-size // ALIGNED) * ALIGNED, 0
        self.room, self.handle = shared_memory(SLOTS * self.size, device, group)
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.passed: Any = None  # the barrier of the message before the next one

    def slot(self, rows: int, width: int) -> Tensor:
        """The next message's slot for so many rows of bytes, once nobody copies from it any more."""
        if self.passed is not None:
            torch.cuda.current_stream().wait_event(self.passed)
        return self.room[self.count % SLOTS * self.size :][: rows * width].view(rows, width)

    def start(self, rows: Tensor, into: list[int], found: Tensor, theirs: Sequence[int]) -> Callable[[], None]:
        """Starts to copy into ``found`` the rows of bytes that ranks have for this one.

        Args:
            rows: what this rank has for all, in the next ``slot`` or elsewhere.
            into: how many rows come from each rank.
            theirs: where they begin among those that the rank has for all.
        """
        width, mine = rows.shape[1], self.slot(*rows.shape)
        if mine.data_ptr() != rows.data_ptr():
            mine.copy_(rows)
        slot, self.count = self.count % SLOTS, self.count + 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.handle.barrier(slot)
            self.passed = torch.cuda.Event()
            self.passed.record()
            own, parts = self.handle.rank, found.split(into)
            for rank in (*range(own + 1, len(into)), *range(own + 1)):  # else all would read rank 0's at once
                if parts[rank].numel():
                    at = slot * self.size + theirs[rank] * width
                    parts[rank].copy_(self.handle.get_buffer(rank, parts[rank].shape, torch.uint8, at))
            end = torch.cuda.Event()
            end.record()
        return Arrival(end)


class Arrival:
    """Copies on another stream, which the current one waits for when this is called. Where nobody calls it, as after an
    error, it waits once this is dropped, since the memory that they write to may then be given to others."""

    def __init__(self, end: Any) -> None:
        self.end = end

    def __call__(self) -> None:
        if self.end is not None:
            torch.cuda.current_stream().wait_event(self.end)
            self.end = None

    __del__ = __call__


def host_number() -> str:
    """What two processes have in common if they run on one host, and else not; empty where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
