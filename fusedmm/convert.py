"""Whatever people hold their graph in, as a CSR: by duck type, without importing the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.csr import CSR


def as_csr(adj: Any, *, size: int | tuple[int, int] | None = None, check: bool = True) -> CSR:
    """Converts a graph or sparse matrix to a ``CSR``.

    Args:
        adj: one of

            - ``CSR``: returned as it is;
            - torch sparse CSR or COO tensor [rows, cols] (COO may be uncoalesced; gradients reach
              its values);
            - ``(ptr, idx)``, ``(ptr, idx, val)`` or ``(ptr, idx, val, shape)``;
            - ``edge_index`` [2, nnz] of integers, row 0 sources and row 1 targets: the matrix that
              gathers sources into targets;
            - a scipy sparse matrix or array (values keep their dtype; integers become float32).
        size: for an edge_index: the number of nodes, or (sources, targets).
        check: False skips validation.

    Returns:
        CSR whose values and edge gradients are in adj's own order.

    Raises:
        TypeError: something else.
        ValueError: malformed content; the text has the index and the value.

    Example:
        >>> fusedmm.as_csr(torch.tensor([[0, 1, 2], [1, 2, 0]]))
        CSR(shape=(3, 3), nnz=3, val=none, device=cpu)
    """
    if isinstance(adj, CSR):
        return adj
    if isinstance(adj, Tensor):
        return _from_tensor(adj, size, check)
    if isinstance(adj, (tuple, list)) and 2 <= len(adj) <= 4:
        return CSR.from_csr(*adj, check=check)
    if type(adj).__module__.startswith("scipy.sparse"):
        return CSR.from_scipy(adj, check=check)
    raise TypeError(
        f"cannot make a CSR of {type(adj).__name__}; give a fusedmm.CSR, a torch sparse tensor, "
        "(ptr, idx[, val[, shape]]), an edge_index [2, nnz] or a scipy sparse matrix"
    )


def _from_tensor(adj: Tensor, size: int | tuple[int, int] | None, check: bool) -> CSR:
    if adj.layout in (torch.sparse_csr, torch.sparse_coo):
        return CSR.from_torch(adj, check=check)
    if adj.layout == torch.strided and not adj.dtype.is_floating_point and adj.dim() == 2 and adj.size(0) == 2:
        return CSR.from_edge_index(adj, size=size, check=check)
    if adj.layout == torch.strided:
        raise TypeError(
            f"a dense tensor {list(adj.shape)} of {adj.dtype} is no graph; an edge_index is [2, nnz] of "
            "integers, and CSR.from_dense takes the entries of a dense matrix that are not zero"
        )
    raise TypeError(f"cannot make a CSR of a tensor of layout {adj.layout}")
