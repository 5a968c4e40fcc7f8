"""Several matrices as one, and one as several: batches of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.adapters import operand
from fusedmm.matrix.algebra.entries import common, like, numbers_of, values_of
from fusedmm.matrix.arguments import require_shape
from fusedmm.matrix.compress import as_eid, eid_dtype, rows_of
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import lasting, numbers, was_measured


def block_diag(matrices: Iterable[Any]) -> CSR:
    """Puts matrices along a diagonal: a batch of graphs as one graph of several components.

    Args:
        matrices: at least one, each a ``CSR`` or what ``as_csr`` takes, on one device.

    Returns:
        CSR of all rows and all columns. Its edge order is that of the first matrix, then that of the second, and so on;
        so are its values, of the dtype that torch promotes theirs to. Where only some have values, patterns count as
        ones.

    Raises:
        TypeError: no matrix, or tensors on several devices.
        ValueError: none at all, heads that do not agree, more than 2^31 columns or rows.

    Gradient: reaches the values of each.

    Cost: O(nnz), without a sort.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2))
        >>> fusedmm.block_diag([A, A]).to_edge_index()[0]
        tensor([[1, 0, 3, 2],
                [0, 1, 2, 3]])
    """
    given = _given("block_diag", matrices)
    return _stacked(given, _values("block_diag", given), True)


def vstack(matrices: Iterable[Any]) -> CSR:
    """Puts matrices with as many columns below each other.

    Args:
        matrices: as in ``block_diag``.

    Returns:
        CSR of all rows; edge order, values and gradient as in ``block_diag``.

    Raises:
        TypeError, ValueError: as in ``block_diag``, or numbers of columns that differ.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.]), (1, 2))
        >>> fusedmm.vstack([A, 3 * A]).to_dense()
        tensor([[0., 2.],
                [0., 6.]])
    """
    given = _given("vstack", matrices)
    _require_one("vstack", "columns", [adj.shape[1] for adj in given])
    return _stacked(given, _values("vstack", given), False)


def hstack(matrices: Iterable[Any]) -> CSR:
    """Puts matrices with as many rows beside each other.

    Args:
        matrices: as in ``block_diag``.

    Returns:
        CSR of all columns; edge order, values and gradient as in ``block_diag``.

    Raises:
        TypeError, ValueError: as in ``block_diag``, or numbers of rows that differ.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.]), (1, 2))
        >>> fusedmm.hstack([A, 3 * A]).to_dense()
        tensor([[0., 2., 0., 6.]])
    """
    given = _given("hstack", matrices)
    _require_one("hstack", "rows", [adj.shape[0] for adj in given])
    val, row, col, width = _values("hstack", given), [], [], 0
    for adj in given:
        i, j, _ = adj.coo()
        row.append(i)
        col.append(j + width)
        width += adj.shape[1]
    shape = require_shape((given[0].shape[0], width))
    return CSR.from_coo(torch.cat(row), torch.cat(col), val, shape, check=False)


def unbatch(matrix: Any, sizes: Sequence[Any] | Tensor) -> list[CSR]:
    """Takes a block diagonal matrix apart: the way back of ``block_diag``.

    Args:
        matrix: a ``CSR``, or what ``as_csr`` takes.
        sizes: of each block its number of nodes, or (rows, cols); together they are the matrix's.

    Returns:
        A CSR for each block. Its values and edges are those of the matrix that lie in it, in the matrix's edge order.

    Raises:
        TypeError: no sizes.
        ValueError: sizes that are not the matrix's, or an entry outside of the blocks; the text has its place.

    Gradient: reaches the values.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1., 2.]))
        >>> [block.val for block in fusedmm.unbatch(fusedmm.block_diag([A, 3 * A]), [2, 2])]
        [tensor([1., 2.]), tensor([3., 6.])]
    """
    adj = operand("unbatch", "matrix", matrix)
    if not isinstance(sizes, Iterable):
        raise TypeError(f"unbatch: sizes must be a list of sizes, not {type(sizes).__name__}")
    shapes = [
        require_shape(size if isinstance(size, (tuple, list)) else (size, size), f"unbatch: sizes[{place}]")
        for place, size in enumerate(sizes.tolist() if isinstance(sizes, Tensor) else sizes)
    ]
    total = sum(s[0] for s in shapes), sum(s[1] for s in shapes)
    if total != adj.shape:
        raise ValueError(f"unbatch: sizes add up to {list(total)}, the matrix is {list(adj.shape)}")
    return [
        pattern if adj.val is None else pattern.with_values(adj.val.index_select(0, edges))
        for pattern, edges in _blocks(adj, shapes)
    ]


def _given(op: str, matrices: Iterable[Any]) -> list[CSR]:
    if isinstance(matrices, (CSR, Tensor)) or not isinstance(matrices, Iterable):
        raise TypeError(f"{op}: matrices must be a list of them, not {type(matrices).__name__}")
    given = [operand(op, f"matrices[{place}]", adj) for place, adj in enumerate(matrices)]
    if not given:
        raise ValueError(f"{op}: give at least one matrix")
    if len({adj.device for adj in given}) > 1:
        raise TypeError(f"{op}: matrices on several devices: {', '.join(str(adj.device) for adj in given)}")
    return given


def _require_one(op: str, axis: str, counts: list[int]) -> None:
    if len(set(counts)) > 1:
        raise ValueError(f"{op}: the matrices have {', '.join(map(str, counts))} {axis}; they must have as many")


def _values(op: str, given: list[CSR]) -> Tensor | None:
    """The values of all, one after the other."""
    known = [adj.val for adj in given if adj.val is not None]
    if not known:
        return None
    dtype, heads = common(op, *known)
    return torch.cat([like(values_of(adj), dtype, heads) for adj in given])


def _stacked(given: list[CSR], val: Tensor | None, diagonal: bool) -> CSR:
    pattern = _pattern(given, diagonal)
    return pattern if val is None else pattern.with_values(val)


@lasting
def _pattern(given: list[CSR], diagonal: bool) -> CSR:
    """The rows of one matrix after those of another, their columns beside each other too if diagonal."""
    total, cols = sum(adj.nnz for adj in given), given[0].shape[1]
    if diagonal:
        cols = sum(adj.shape[1] for adj in given)
    _, cols = require_shape((sum(adj.shape[0] for adj in given), cols))
    ptr, idx, eid, before, width = [given[0].ptr[:1]], [], [], 0, 0
    ordered = not any(adj.eid.numel() for adj in given)
    for adj in given:
        ptr.append(adj.ptr[1:] + before)
        idx.append(adj.idx + width if width else adj.idx)
        if not ordered:
            eid.append(numbers_of(adj).to(eid_dtype(total)) + before)
        before += adj.nnz
        width += adj.shape[1] if diagonal else 0
    order = given[0].none if ordered else torch.cat(eid)
    return CSR.make(torch.cat(ptr), torch.cat(idx), order, None, cols, False, all(map(was_measured, given)))


@lasting
def _blocks(adj: CSR, shapes: list[tuple[int, int]]) -> list[tuple[CSR, Tensor]]:
    """The structure of each block, and the matrix's numbers of its entries."""
    ends = torch.tensor(shapes, dtype=torch.int64, device=adj.device).reshape(-1, 2).cumsum(0)
    row = rows_of(adj.ptr, adj.nnz).long()
    of_row, of_col = (torch.searchsorted(ends[:, k].contiguous(), t, right=True) for k, t in enumerate((row, adj.idx)))
    if not torch.equal(of_row, of_col):
        p = int((of_row != of_col).nonzero()[0])
        raise ValueError(f"unbatch: the entry at ({int(row[p])}, {int(adj.idx[p])}) lies outside of the blocks")
    places = [0, *(numbers(*adj.ptr[ends[:, 0]].unbind()) if shapes else [])]
    found, top, left = [], 0, 0
    for (rows, cols), first, last in zip(shapes, places, places[1:], strict=False):
        edges = torch.arange(first, last, device=adj.device)
        eid = adj.none
        if adj.eid.numel():
            edges, order = torch.sort(adj.eid[first:last])
            eid = as_eid(torch.empty_like(order).scatter_(0, order, torch.arange(last - first, device=adj.device)))
        ptr = adj.ptr[top : top + rows + 1] - first
        made = CSR.make(ptr, adj.idx[first:last] - left, eid, None, cols, False, was_measured(adj))
        found.append((made, edges.long()))
        top, left = top + rows, left + cols
    return found
