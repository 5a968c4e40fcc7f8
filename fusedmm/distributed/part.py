"""What a rank has of a matrix beside its tensors: who owns what, and what travels when an operator runs."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fusedmm.distributed.exchange import Exchange
from fusedmm.distributed.halo import Ranks
from fusedmm.matrix.compress import eid_dtype

PIECE = 2**26  # entries that are looked at at a time, so that what is found of them takes little memory
FEW = 8  # numbers of edges are kept as runs where these have as many edges as that on average


@dataclass(eq=False)
class Home:
    """Who owns which nodes and edges of a matrix; the same for it, its transpose and all of its structure.

    Attributes:
        ranks: who shares the matrix.
        rows, cols: int64 [ranks + 1] on the host, the first row and the first column of each rank.
        numbers: int64 [nnz], the global numbers of this rank's edges, of which ``edge_ids`` makes them again.
        total: how many edges all ranks have.
        route: how edges came from where they were listed; None where they did not.
        nnz: how many edges this rank has.
    """

    ranks: Ranks
    rows: Tensor
    cols: Tensor
    numbers: InitVar[Tensor]
    total: int
    route: Exchange | None

    def __post_init__(self, numbers: Tensor) -> None:
        self.nnz, device = numbers.numel(), numbers.device
        breaks = numbers[1:] != numbers[:-1] + 1
        runs = int(breaks.sum()) + min(self.nnz, 1)
        # Lists that were sorted by row are one run of numbers, and self loops at their end another.
        self.lengths: Tensor | None = None
        if runs * FEW > self.nnz:
            self.kept = numbers.to(eid_dtype(self.total))
        else:
            begin = torch.nn.functional.pad(breaks.nonzero()[:, 0] + 1, (min(self.nnz, 1), 0))
            self.lengths = torch.diff(begin, append=torch.full((1,), self.nnz, device=device))
            self.kept = numbers.index_select(0, begin) - begin
        # On one rank all is as in a CSR, unless dropout knows edges by other numbers than their places.
        alone = self.ranks.count == 1 and self.ranks.columns.count == 1
        self.is_plain = alone and torch.equal(numbers, torch.arange(self.nnz, device=device))

    @property
    def edge_ids(self) -> Tensor:
        """The global numbers of this rank's edges, int64 [nnz]."""
        if self.lengths is None:
            return self.kept.long()
        first = self.kept.repeat_interleave(self.lengths, output_size=self.nnz)
        return first + torch.arange(self.nnz, device=first.device)


@dataclass(eq=False)
class Part:
    """What travels when an operator runs on one half of this rank's part.

    Attributes:
        home: who owns what.
        cols: how rows of remote columns come.
        edges: how edge data come to this half's entries; None where they are here, as those of rows are.
        eid: the half's own eid: a call with another one has edge data in the order of the half already.
        idx: int32, the columns of the half's entries in this rank's numbers.
        plan: a plan of the half's rows.
        remote: int64, the global numbers of remote columns, rising.
        transposed: whether this is the half of the transpose.
    """

    home: Home
    cols: Exchange
    edges: Exchange | None
    eid: Tensor
    idx: Tensor
    plan: Tensor
    remote: Tensor
    transposed: bool
    split: bool = False  # whether own columns are added first, and remote ones once they came (split.py)
    keys: Tensor | None = None  # the global numbers of the half's edges, once dropout has asked for them
    halves: Any = None  # own columns and remote ones apart, once a product has asked for them
    outer: Any = None  # the rows that have remote columns, once a product has asked for them; False where they are many

    def by_owner(self) -> tuple[Tensor, Tensor]:
        """(places, counts) of the half's entries by who owns their columns, in the order of the ranks; each one's in
        their own order."""
        home, rank = self.home, self.home.ranks.rank
        own = int(home.cols[rank + 1] - home.cols[rank])
        bounds = (torch.searchsorted(self.remote, home.cols.to(self.remote.device)) + own).tolist()
        spans = list(pairwise(bounds))
        spans[rank] = 0, own
        places = torch.empty(self.idx.numel(), dtype=eid_dtype(self.idx.numel()), device=self.idx.device)
        ends = [0]
        for first, last in spans:
            end = ends[-1]
            for k, some in enumerate(self.idx.split(PIECE)):
                found = ((some >= first) & (some < last)).nonzero()[:, 0]
                places[end : end + found.numel()] = found.add_(k * PIECE)
                end += found.numel()
            ends.append(end)
        return places, torch.tensor(ends, device=places.device).diff()

    def edges_by_owner(self) -> Tensor:
        """The same entries by the number that their rank has of each edge."""
        places, _ = self.by_owner()
        return self.eid.index_select(0, places) if self.eid.numel() else places

    def edge_keys(self) -> Tensor:
        """The global number of each edge in the order in which edge data come to this half."""
        if self.keys is None:
            ids = self.home.edge_ids
            self.keys = ids if self.edges is None else self.edges.fetch([ids])[0]
        return self.keys
