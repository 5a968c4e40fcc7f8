"""Parts of a matrix: some of its rows and columns, in any order and any number of times."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusedmm.matrix.algebra.entries import numbers_of
from fusedmm.matrix.arguments import require_data, require_integers, require_range
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.compress import pointers, rows_of
from fusedmm.matrix.structure import lasting, was_measured


class Select(Matrix):
    """``A[rows, cols]`` and ``subgraph``."""

    __iter__ = None  # else Python would try A[0], A[1], ...

    def __getitem__(self: M, which: Any) -> M:
        """The matrix of some rows and columns: ``A[rows]``, ``A[:, cols]``, ``A[rows, cols]``.

        Row k of the result is row ``rows[k]`` of A, and so with columns: ``A[rows, cols]`` is ``A[rows][:, cols]``, as
        in torch_sparse, and not the entries at pairs of numbers, as in numpy.

        Args:
            which: of rows, or of both: a slice with any step, integer ids [n] in [0, size) in any order, which may
                repeat, as a tensor, a list or an array, or a boolean mask [size]. They may be on the CPU, whatever
                device A is on, as torch has it.

        Returns:
            CSR, A itself where slices choose all. Else its values are in the order of its own rows; ids that repeat
            repeat the entries too. Edge features [nnz, D] follow as values: ``A.with_values(features)[rows].val``.

        Raises:
            TypeError: a single number (``A[[3]]`` or ``A[3:4]`` is a row, as a matrix), no integers, or a device that
                is neither A's nor the CPU.
            ValueError: an id outside, or a mask of another length; the text has the index and the value.

        Gradient: reaches A's values. Where ids repeat, their sums are torch's ``index_add``, on CUDA in no fixed order.

        Cost: A[rows] reads the rows chosen alone; a choice of columns then reads all entries of those rows. One
        synchronisation with a GPU for each of the two, and one to check ids or to bring them from the CPU.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
            >>> A[[1, 0]].to_dense()
            tensor([[0., 3.],
                    [1., 2.]])
            >>> A[:, 1:].to_dense()
            tensor([[2.],
                    [3.]])
        """
        parts = which if isinstance(which, tuple) else (which,)
        if len(parts) > 2:
            raise TypeError(f"a matrix has rows and columns, not {len(parts)} indices")
        rows = ids_of("rows", parts[0], self.shape[0], self.device)
        cols = ids_of("cols", parts[1], self.shape[1], self.device) if len(parts) == 2 else None
        if rows is None and cols is None:
            return self
        return _with_values(self, *_selected(self, rows, cols))

    def subgraph(self: M, nodes: Any) -> M:
        """The edges between some nodes of a square matrix, ``A[nodes, nodes]``: node k of the result is ``nodes[k]``.

        Args:
            nodes: ids, a slice or a mask, as in ``A[nodes]``.

        Returns:
            CSR [n, n]; values, errors, gradient and cost as in ``A[rows, cols]``.

        Raises:
            ValueError: a matrix that is not square.

        Example:
            >>> A = fusedmm.as_csr(torch.tensor([[0, 1, 2], [1, 2, 0]]))
            >>> A.subgraph(torch.tensor([True, True, False])).to_edge_index()[0]
            tensor([[0],
                    [1]])
        """
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"subgraph: A must be square, not {list(self.shape)}; A[rows, cols] takes any matrix")
        ids = ids_of("nodes", nodes, self.shape[0], self.device)
        return self if ids is None else _with_values(self, *_selected(self, ids, ids))


def ids_of(name: str, which: Any, size: int, device: torch.device) -> Tensor | None:
    """Integer ids in [0, size) of a slice, a mask or ids; None stands for all, in their order."""
    if isinstance(which, slice):
        chosen = range(*which.indices(size))
        if chosen == range(size):
            return None
        return torch.arange(len(chosen), device=device) * chosen.step + chosen.start
    if not isinstance(which, Tensor):
        which = _as_tensor(name, which, device)
    if which.dtype != torch.bool:
        require_integers(name, which)
    require_data(name, which)
    if not which.is_cpu and which.device != device:
        raise TypeError(f"{name} are on {which.device}, the matrix on {device}")
    if which.dim() != 1:
        raise (ValueError if which.dim() else TypeError)(f"{name} must have 1 dimension, not {which.dim()}")
    if which.dtype == torch.bool:
        if which.shape[0] != size:
            raise ValueError(f"{name}: the mask has {which.shape[0]} elements for {size} {name}")
        return which.nonzero()[:, 0].to(device)
    require_range(name + "[{}]", which, size)
    return which.to(device, torch.int64)


def _as_tensor(name: str, which: Any, device: torch.device) -> Tensor:
    try:
        number = operator.index(which)
    except TypeError:
        number = None
    if number is not None:
        raise TypeError(f"{name} must be ids, a slice or a mask, not {number}; a list of one id gives a matrix of one")
    try:
        ids = torch.as_tensor(which, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be ids, a slice or a mask, not {type(which).__name__}") from None
    return ids if ids.numel() else ids.long()


def runs(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers starts[k], starts[k] + 1, ..., lengths[k] of them for each k in turn, and the k of each."""
    total = int(lengths.sum())
    owner = torch.repeat_interleave(lengths, output_size=total)
    return owner, torch.arange(total, device=starts.device) + (starts - lengths.cumsum(0) + lengths)[owner]


def _with_values(adj: M, pattern: M, number: Tensor) -> M:
    return pattern if adj.val is None else pattern.with_values(adj.val.index_select(0, number))


@lasting
def _selected(adj: M, rows: Tensor | None, cols: Tensor | None) -> tuple[M, Tensor]:
    """The structure of some rows and columns, and the caller's number of each of its entries.

    An unchecked matrix may hold any pointers and columns: nothing outside of the tensors is read, and entries of
    columns that the matrix does not have are left out where columns are chosen.
    """
    (n_rows, n_cols), ptr = adj.shape, adj.ptr.clamp(0, adj.nnz)
    if rows is None:
        row, place = rows_of(ptr, adj.nnz).long(), torch.arange(adj.nnz, device=adj.device)
    else:
        n_rows, lengths = rows.numel(), (ptr[1:] - ptr[:-1]).clamp(min=0)[rows]
        row, place = runs(ptr[rows], lengths)
        ptr = pad(lengths.cumsum(0), (1, 0))
    idx = adj.idx[place]
    if cols is not None:
        times = cols.new_zeros(n_cols + 1).index_add_(0, cols, torch.ones_like(cols))
        order = torch.sort(cols, stable=True).indices  # the new columns that an old one becomes are neighbours here
        old = torch.where((idx >= 0) & (idx < n_cols), idx.long(), n_cols)
        entry, new = runs((times.cumsum(0) - times)[old], times[old])
        row, place, idx, n_cols = row[entry], place[entry], order[new].int(), cols.numel()
        ptr = pointers(row, n_rows)
    number = numbers_of(adj)[place].long()
    return type(adj).make(ptr, idx, adj.none, None, n_cols, False, was_measured(adj)), number
