"""Numbering the nodes anew so that each rank owns consecutive rows, and what the ranks would then send each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fusedmm.distributed.partitioners import METHODS
from fusedmm.distributed.writer import ShardWriter
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.arguments import require_range, require_tensor, require_vector
from fusedmm.matrix.csr import CSR

T = TypeVar("T", CSR, Tensor)


class Load(NamedTuple):
    """What one product ``A @ x`` with K float32 columns asks of a number of ranks.

    Attributes:
        ranks: how many there are, each with as many consecutive parts.
        rows, entries: the most that a rank owns.
        cut: entries, of all ranks, whose column another rank owns.
        halo: the most rows of x that a rank fetches: the unique columns of its entries that others own.
        sent: the most rows of x that a rank sends.
        wire_bytes: 4 K for each row that any rank fetches.
        memory_bytes: the most that a rank holds: its part of A with int64 pointers and int32 columns, its rows of x and
            y, and its halo.

    Example:
        >>> ring = fusedmm.as_csr(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> load = fusedmm.distributed.partition(ring, 2).loads(K=1)[1]
        >>> load.ranks, load.cut, load.halo, load.wire_bytes
        (2, 2, 1, 8)
    """

    ranks: int
    rows: int
    entries: int
    cut: int
    halo: int
    sent: int
    wire_bytes: int
    memory_bytes: int


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rows each part owns once the nodes are numbered anew; made by ``partition``.

    Attributes:
        adj: the matrix that was cut, on the CPU, its nodes as they were.
        new_of: int64 [nodes], the new number of each node.
        old_of: int64 [nodes], the old number of each new node. Within a part nodes keep their order.
        offsets: int64 [parts + 1]; part p owns the new nodes ``offsets[p] <= i < offsets[p + 1]``.

    Example:
        >>> ring = fusedmm.as_csr(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> part = fusedmm.distributed.partition(ring, 2, method=lambda adj, parts: torch.tensor([1, 0, 0, 1]))
        >>> part.new_of, part.offsets
        (tensor([2, 0, 1, 3]), tensor([0, 2, 4]))
        >>> part.undo(part.apply(torch.tensor([5., 6., 7., 8.])))
        tensor([5., 6., 7., 8.])
    """

    adj: CSR
    new_of: Tensor
    old_of: Tensor
    offsets: Tensor

    def __repr__(self) -> str:
        return f"Partition(nodes={self.new_of.numel()}, parts={self.offsets.numel() - 1})"

    def apply(self, what: T) -> T:
        """A matrix [nodes, nodes], or a tensor with a row for each node, in the new order.

        A matrix keeps the caller's order of edges, and with it values and edge features; its columns rise within rows.
        Of node ids, such as those of a split, ``new_of[ids]`` are the new ones.

        Raises:
            TypeError: neither a CSR nor a tensor.
            ValueError: another number of nodes.
        """
        return self._moved(what, self.new_of, self.old_of)

    def undo(self, what: T) -> T:
        """What ``apply`` was given, of its result: a matrix or a tensor in the old order; raises as ``apply`` does."""
        return self._moved(what, self.old_of, self.new_of)

    def _moved(self, what: T, to: Tensor, source: Tensor) -> T:
        nodes = to.numel()
        if isinstance(what, CSR):
            if what.shape != (nodes, nodes):
                raise ValueError(f"a matrix of shape {what.shape} for a partition of {nodes} nodes")
            row, col, val = what.coo()
            to = to.to(row.device)
            return CSR.from_coo(to[row], to[col], val, what.shape)
        require_tensor("what", what)
        if not what.dim() or what.shape[0] != nodes:
            raise ValueError(f"a tensor of shape {list(what.shape)} for a partition of {nodes} nodes")
        return what.index_select(0, source.to(what.device))

    def loads(self, K: int = 128) -> list[Load]:
        """A ``Load`` for each number of ranks that divides the parts; sorts what crosses parts.

        Raises:
            ValueError: a negative K.
        """
        if K < 0:
            raise ValueError(f"K must not be negative, is {K}")
        nodes, parts = max(self.new_of.numel(), 1), self.offsets.numel() - 1
        part = torch.repeat_interleave(torch.arange(parts), self.offsets.diff())[self.new_of]  # of each old node
        row, col, _ = self.adj.coo()
        far = part[row] != part[col]
        keys = torch.unique(part[row[far]] * nodes + col[far])  # each part with each column that it does not own
        to, column = keys // nodes, keys % nodes
        loads = []
        for ranks in (ranks for ranks in range(1, parts + 1) if parts % ranks == 0):
            share = parts // ranks
            rank, to_rank = part // share, to // share
            fetch = torch.unique((to_rank * nodes + column)[to_rank != rank[column]])  # by (rank, column)
            halo = torch.bincount(fetch // nodes, minlength=ranks)
            sent = torch.bincount(rank[fetch % nodes], minlength=ranks)
            rows, entries = self.offsets[::share].diff(), torch.bincount(rank[row], minlength=ranks)
            memory = 8 * (rows + 1) + 4 * entries + 4 * K * (2 * rows + halo)
            cut, wire = int((rank[row] != rank[col]).sum()), 4 * K * fetch.numel()
            most = [int(of_ranks.max()) for of_ranks in (rows, entries, halo, sent, memory)]
            loads.append(Load(ranks, most[0], most[1], cut, most[2], most[3], wire, most[4]))
        return loads

    def report(self, K: int = 128) -> list[Load]:
        """Prints ``loads(K)`` as a table, and returns them.

        ``x N/P`` is the halo in units of the rows that a rank would own if all owned equally many.
        """
        nodes, nnz, loads = self.new_of.numel(), self.adj.nnz, self.loads(K)
        print(f"{nodes} nodes, {nnz} entries; SpMM of {K} float32 columns; wire: all ranks; else the most of a rank")
        print(f"{'ranks':>6}{'rows':>11}{'entries':>12}{'cut':>7}{'halo':>11}{'x N/P':>7}{'sent':>11}", end="")
        print(f"{'wire MiB':>10}{'memory MiB':>12}")
        for ranks, rows, entries, cut, halo, sent, wire, memory in loads:
            print(f"{ranks:6}{rows:11}{entries:12}{cut / max(nnz, 1):7.1%}{halo:11}", end="")
            print(f"{halo * ranks / max(nodes, 1):7.2f}{sent:11}{wire / 2**20:10.2f}{memory / 2**20:12.2f}")
        return loads

    def write(self, folder: str | os.PathLike[str], **nodes: Tensor) -> None:
        """Writes the matrix in the new order to a folder, as ``ShardWriter`` does, with a row of each array per node.

        Args:
            folder: is made; nothing may be in it.
            nodes: tensors [nodes, ...] in the old order, such as x, y and train. The array ``old`` is ``old_of``.

        Raises:
            OSError, TypeError, ValueError: as ``ShardWriter``, or a tensor of another number of rows.
        """
        row, col, val = self.adj.coo()
        arrays = {"old": self.old_of} | {name: self.apply(array) for name, array in nodes.items()}
        with ShardWriter(folder, *self.adj.shape, self.offsets) as writer:
            writer.add_edges(self.new_of[row], self.new_of[col], val)
            writer.add_nodes(**arrays)


def partition(adj: Any, parts: int, method: str | Callable[[CSR, int], Any] = "nnz", *, seed: int = 0) -> Partition:
    """Cuts a graph into parts of about equal work.

    Ranks own whole consecutive parts, so that 256 parts serve 1, 2, 4, ... or 256 ranks. Parts of METIS and KaMinPar
    with close numbers lie close together: joined, they cut about as little as fewer parts made at once.

    Args:
        adj: a ``CSR`` [nodes, nodes], or what ``as_csr`` takes.
        parts: how many.
        method: "nnz" for consecutive nodes, "random", "metis" or "kaminpar" (``pip install fusedmm[partition]``),
            which all balance the entries of a row plus the mean of all rows; or a function of the CSR and the number of
            parts that returns the part of each node.
        seed: of "random", "metis" and "kaminpar". The same seed gives the same parts ("kaminpar": on one thread).

    Returns:
        A ``Partition``, on the CPU.

    Raises:
        TypeError: parts is no int; part ids that are no integers; as ``as_csr``.
        ValueError: fewer than one part, a matrix that is not square, an unknown method, or part ids of another number
            or outside [0, parts).
        ImportError: "metis" or "kaminpar" is not installed.

    Cost: "nnz" and "random" a pass over the nodes; the others a sort of the entries in both directions, and what the
    partitioner takes.

    Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998;
    Gottesbüren, Heuer, Sanders, Schulz and Seemaier, "Deep multilevel graph partitioning", 2021.

    Example:
        >>> part = fusedmm.distributed.partition(fusedmm.data.banded(1000, 2), 4)
        >>> part.offsets
        tensor([   0,  250,  500,  750, 1000])
        >>> _ = part.report(K=16)
        1000 nodes, 4994 entries; SpMM of 16 float32 columns; wire: all ranks; else the most of a rank
         ranks       rows     entries    cut       halo  x N/P       sent  wire MiB  memory MiB
             1       1000        4994   0.0%          0   0.00          0      0.00        0.15
             2        500        2497   0.1%          2   0.00          2      0.00        0.07
             4        250        1250   0.4%          4   0.02          4      0.00        0.04
    """
    csr = as_csr(adj).cpu()
    nodes, cols = csr.shape
    if nodes != cols:
        raise ValueError(f"partition: the matrix must be square, is {csr.shape}")
    if not isinstance(parts, int):
        raise TypeError(f"partition: parts must be an int, not {parts!r}")
    if parts < 1:
        raise ValueError(f"partition: parts must be at least 1, not {parts}")
    if not callable(method) and method not in METHODS:
        raise ValueError(f"partition: method must be a function or one of {', '.join(METHODS)}, not {method!r}")
    ids = torch.as_tensor(method(csr, parts) if callable(method) else METHODS[method](csr, parts, seed)).cpu()
    require_vector("part ids", ids)
    if ids.numel() != nodes:
        raise ValueError(f"partition: {ids.numel()} part ids for {nodes} nodes")
    require_range("part ids[{}]", ids, parts)
    old_of = torch.sort(ids.long(), stable=True).indices
    new_of = torch.empty_like(old_of).scatter_(0, old_of, torch.arange(nodes))
    offsets = torch.nn.functional.pad(torch.bincount(ids.long(), minlength=parts).cumsum(0), (1, 0))
    return Partition(csr, new_of, old_of, offsets)
