"""Matrices made from a seed or a rule; the same arguments give the same matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fusedmm.matrix.arguments import require_shape
from fusedmm.matrix.csr import CSR

Array = np.ndarray[Any, Any]


def _from_keys(keys: Array, rows: int, cols: int) -> CSR:
    """Returns the pattern of sorted, distinct positions row * cols + col."""
    row, col = np.divmod(keys, max(cols, 1))
    ptr = np.searchsorted(row, np.arange(rows + 1))
    return CSR.from_csr(torch.from_numpy(ptr), torch.from_numpy(col), None, (rows, cols))


def rmat(scale: int, edge_factor: int = 16, a: float = 0.57, b: float = 0.19, c: float = 0.19, *, seed: int = 0) -> CSR:
    """A recursive random matrix (Chakrabarti et al. 2004) of 2^scale nodes: few rows hold most entries.

    Args:
        scale: log2 of the number of nodes.
        edge_factor: entries drawn per node; those drawn twice are merged, so there are somewhat fewer.
        a, b, c: probability of the upper left, upper right and lower left quarter at every level.
        seed: of the random generator.

    Example:
        >>> from fusedmm import data
        >>> data.rmat(4, 2)
        CSR(shape=(16, 16), nnz=27, val=none, device=cpu)
    """
    quarters = max(a, b, c) <= 1 and min(a, b, c) >= 0 and 0 < a + b + c <= 1
    if not 0 <= scale <= 30 or not 0 <= edge_factor < 2**31 or not quarters:
        raise ValueError(f"no R-MAT of scale {scale}, edge factor {edge_factor} and quarters {(a, b, c)}")
    rng = np.random.default_rng(seed)
    keys = np.zeros(edge_factor << scale, dtype=np.int64)
    for level in range(scale):
        u = rng.random(keys.size)
        lower, right = u >= a + b, ((u >= a) & (u < a + b)) | (u >= a + b + c)
        keys |= (lower.astype(np.int64) << (scale + level)) | (right.astype(np.int64) << level)
    return _from_keys(np.unique(keys), 1 << scale, 1 << scale)


def uniform(rows: int, cols: int, nnz: int, seed: int = 0) -> CSR:
    """A matrix of nnz distinct entries, every choice of them equally likely.

    Example:
        >>> from fusedmm import data
        >>> data.uniform(3, 4, 5)
        CSR(shape=(3, 4), nnz=5, val=none, device=cpu)
    """
    rows, cols = require_shape((rows, cols))
    places = rows * cols
    if not 0 <= nnz <= places:
        raise ValueError(f"{nnz} distinct entries do not fit into {rows} x {cols}")
    rng = np.random.default_rng(seed)
    if 2 * nnz > places:  # drawing until enough are distinct would take long
        return _from_keys(np.sort(rng.choice(places, nnz, replace=False, shuffle=False)), rows, cols)
    keys = np.empty(0, dtype=np.int64)
    while keys.size < nnz:
        keys = np.unique(np.concatenate([keys, rng.integers(0, places, nnz - keys.size + nnz // 8)]))
    surplus = rng.choice(keys.size, keys.size - nnz, replace=False)
    return _from_keys(np.delete(keys, surplus), rows, cols)


def _from_offsets(extent: tuple[int, ...], offsets: Array) -> CSR:
    """Returns the pattern that joins every point of a grid to those at the offsets, sorted, that lie inside."""
    n = int(np.prod(extent))
    points = np.stack(np.unravel_index(np.arange(n), extent), axis=1)
    reached = points[:, None, :] + offsets[None, :, :]
    inside = ((reached >= 0) & (reached < np.array(extent))).all(axis=2)
    idx = (reached @ np.array([int(np.prod(extent[axis + 1 :])) for axis in range(len(extent))]))[inside]
    ptr = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    return CSR.from_csr(torch.from_numpy(ptr), torch.from_numpy(idx), None, (n, n))


def banded(n: int, bandwidth: int) -> CSR:
    """The n x n matrix with an entry wherever row and column differ by at most bandwidth.

    Example:
        >>> from fusedmm import data
        >>> data.banded(4, 1)
        CSR(shape=(4, 4), nnz=10, val=none, device=cpu)
    """
    require_shape((n, n))
    if n < 1 or bandwidth < 0:
        raise ValueError(f"no banded matrix of {n} rows and bandwidth {bandwidth}")
    return _from_offsets((n,), np.arange(-min(bandwidth, n), min(bandwidth, n) + 1)[:, None])


def stencil(n_x: int, n_y: int, n_z: int | None = None, *, points: int = 5) -> CSR:
    """The matrix of a stencil on a grid without wrap-around: 5 or 9 points in the plane, 7 or 27 in space.

    Point (x, y, z) is row (x * n_y + y) * n_z + z; an entry joins it to itself and to its neighbours.

    Example:
        >>> from fusedmm import data
        >>> data.stencil(2, 2)
        CSR(shape=(4, 4), nnz=12, val=none, device=cpu)
    """
    extent = (n_x, n_y) if n_z is None else (n_x, n_y, n_z)
    known: dict[tuple[int, int], Callable[[Array], Array]] = {
        (2, 5): lambda o: np.abs(o).sum(axis=1) <= 1,
        (3, 7): lambda o: np.abs(o).sum(axis=1) <= 1,
        (2, 9): lambda o: np.ones(len(o), dtype=bool),
        (3, 27): lambda o: np.ones(len(o), dtype=bool),
    }
    if (len(extent), points) not in known or min(extent) < 1:
        raise ValueError(f"no stencil of {points} points on a grid of {extent}: 5 or 9 in the plane, 7 or 27 in space")
    require_shape((math.prod(extent),) * 2)
    offsets = np.stack(np.meshgrid(*[np.arange(-1, 2)] * len(extent), indexing="ij"), axis=-1).reshape(-1, len(extent))
    return _from_offsets(extent, offsets[known[len(extent), points](offsets)])
