"""A rank's rows of a folder of shards, as a matrix and what is known of its nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedmm.distributed.halo import ranks_of
from fusedmm.distributed.matrix import DistCSR
from fusedmm.distributed.shards import Shards
from fusedmm.matrix.arguments import require_flags


@dataclass(frozen=True, eq=False)
class Data:
    """What a rank has of a graph.

    Attributes:
        adj: its rows of the matrix.
        nodes: [own rows, ...] for each name that the shards have; ``x``, ``y``, ``train``, ``val`` and ``test`` are
            attributes too, None where the shards do not have them.

    Example:
        >>> from fusedmm.distributed import Data, DistCSR
        >>> edges, offsets = torch.tensor([0, 1]), torch.tensor([0, 2])
        >>> data = Data(DistCSR.from_edges(edges, edges, None, offsets, None), {"y": torch.tensor([1, 0])})
        >>> data.y, data.x
        (tensor([1, 0]), None)
    """

    adj: DistCSR
    nodes: dict[str, Tensor]

    @property
    def x(self) -> Tensor | None:
        """Features."""
        return self.nodes.get("x")

    @property
    def y(self) -> Tensor | None:
        """Labels."""
        return self.nodes.get("y")

    @property
    def train(self) -> Tensor | None:
        """Whether a node is one to learn from."""
        return self.nodes.get("train")

    @property
    def val(self) -> Tensor | None:
        """Whether a node is one to choose the epoch by."""
        return self.nodes.get("val")

    @property
    def test(self) -> Tensor | None:
        """Whether a node is one to measure the accuracy on."""
        return self.nodes.get("test")


def load(folder: str | os.PathLike[str], mesh: Any, *, check: bool = True) -> Data:
    """Reads a rank's rows of a square matrix from shards; all ranks call it together.

    Args:
        folder: what ``ShardWriter`` or ``Partition.write`` wrote.
        mesh: a ``DeviceMesh``, or None for one rank. On a mesh of CUDA devices tensors go to torch's current one.
        check: whether to compare what is read with its SHA-256.

    Raises:
        TypeError: check is neither True nor False.
        FileNotFoundError, ValueError: as ``Shards``, on all ranks; a matrix that is not square.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fusedmm.distributed.partition(fusedmm.data.banded(9, 1), 3).write(folder, x=torch.rand(9, 2))
        ...     data = fusedmm.distributed.load(folder, None)
        >>> fusedmm.spmm(data.adj, data.x).shape
        torch.Size([9, 2])
    """
    require_flags("load", check=check)
    ranks = ranks_of(mesh)
    device = torch.device("cpu")
    if getattr(mesh, "device_type", "cpu") == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())

    def read() -> Any:
        shards = Shards(folder)
        if shards.shape[0] != shards.shape[1]:
            raise ValueError(
                f"{folder}: the matrix has shape {shards.shape}; load takes nodes that are rows and columns"
            )
        return shards.local(ranks.rank, ranks.count, check=check)

    local = ranks.together(read)
    ptr, idx, ids = (t.to(device, copy=True) for t in (local.ptr, local.idx, local.edge_ids))
    val = None if local.val is None else local.val.to(device, copy=True)
    adj = DistCSR.from_rows(ptr, idx, val, local.offsets, mesh, edge_ids=ids)
    return Data(adj, {name: t.to(device, copy=True) for name, t in local.nodes.items()})


Data.__module__ = "fusedmm.distributed"
