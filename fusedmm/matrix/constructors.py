"""How a CSR is made of coordinates, of torch's own tensors and of scipy's matrices, and turned into such again.

``kind`` is the class to make, CSR: this file stands below it, since its methods call what is here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedmm._torch_compat import are_transforms_active, raw_indices, raw_values
from fusedmm.matrix.arguments import (
    FLOATS,
    require_data,
    require_device,
    require_flags,
    require_integers,
    require_permutation,
    require_range,
    require_same_device,
    require_shape,
    require_size,
    require_tensor,
    require_values,
    require_vector,
)
from fusedmm.matrix.base import M
from fusedmm.matrix.compress import EDGE_PLACES, Places, as_eid, compress
from fusedmm.matrix.structure import (
    INTEGERS,
    as_values,
    is_captured,
    lasting,
    own,
    own_values,
    require_untraced,
    shared_by,
)


@lasting
def from_csr(kind: type[M], ptr: Tensor, idx: Tensor, val: Tensor | None, shape: Any, check: bool) -> M:
    """Does what ``CSR.from_csr`` documents."""
    require_flags("from_csr", check=check)
    require_untraced()
    val = as_values(val)
    require_vector("ptr", ptr)
    require_vector("idx", idx)
    require_same_device(ptr=ptr, idx=idx, val=val)
    if ptr.numel() == 0:
        raise ValueError("ptr must have rows + 1 elements, not 0")
    if shape is None:
        largest = int(idx.max()) if idx.numel() else -1  # what no shape can hold is refused below, by name
        shape = (ptr.numel() - 1, min(max(largest + 1, 0), 2**31 - 1))
    rows, cols = require_shape(shape)
    if rows != ptr.numel() - 1:
        raise ValueError(f"ptr has {ptr.numel()} elements for {rows} rows; {rows + 1} are needed")
    if check and idx.dtype == torch.int64 and idx.numel():
        require_range("idx[{}]", idx, cols)  # before the cast to int32 could hide it
    none = torch.empty(0, dtype=torch.uint8, device=ptr.device)
    return kind.make(own(ptr, torch.int64), own(idx, torch.int32), none, val, cols, check, check)


def from_coo(kind: type[M], row: Tensor, col: Tensor, val: Tensor | None, shape: Any, check: bool) -> M:
    """Does what ``CSR.from_coo`` documents."""
    require_flags("from_coo", check=check)
    require_vector("row", row)
    require_vector("col", col)
    require_same_device(row=row, col=col, val=val)
    if row.numel() != col.numel():
        raise ValueError(f"row has {row.numel()} elements and col {col.numel()}")
    shape = None if shape is None else require_shape(shape)
    return _from_pairs(kind, row, col, val, shape, check, ("row[{}]", "col[{}]"))


@lasting
def _from_pairs(
    kind: type[M],
    row: Tensor,
    col: Tensor,
    val: Tensor | None,
    shape: tuple[int, int] | None,
    check: int,
    places: Places,
) -> M:
    """Returns a CSR of coordinates of checked shapes and dtypes; places are what errors call an element of row and of
    col."""
    require_untraced()
    val = as_values(val)
    row, col = row.long(), col.long()  # narrower ones would wrap where the size is beyond them
    if shape is None:
        shape = require_shape((int(row.max()) + 1, int(col.max()) + 1) if row.numel() else (0, 0))
    rows, cols = shape
    ptr, idx, eid, plan, ticket = compress(row, col, rows, cols, check, places)
    made = kind.make(ptr, idx, eid, val, cols, False, plan)
    if ticket is not None:
        shared_by(made).ticket = ticket
    return made


def from_edge_index(kind: type[M], edge_index: Tensor, edge_weight: Tensor | None, size: Any, check: bool) -> M:
    """Does what ``CSR.from_edge_index`` documents."""
    require_flags("from_edge_index", check=check)
    require_integers("edge_index", edge_index)
    require_data("edge_index", edge_index)
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        hint = "; transpose it" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"an edge_index must be [2, nnz], not {list(edge_index.shape)}{hint}")
    edge_weight = as_values(edge_weight)
    require_values(edge_weight, edge_index.shape[1], edge_index.device, "edge_weight")
    if size is None:
        size = int(edge_index.max()) + 1 if edge_index.numel() else 0
    return from_edges(kind, edge_index, edge_weight, *require_size(size), check)


def from_edges(
    kind: type[M], edge_index: Tensor, edge_weight: Tensor | None, sources: int, targets: int, check: int
) -> M:
    """Does what ``from_edge_index`` does for callers who have checked edge_index and sizes."""
    col, row = edge_index.unbind()
    return _from_pairs(kind, row, col, edge_weight, (targets, sources), check, EDGE_PLACES)


def from_dense(kind: type[M], dense: Tensor) -> M:
    """Does what ``CSR.from_dense`` documents."""
    require_tensor("dense", dense)
    require_data("dense", dense)
    if dense.dtype not in (*FLOATS, *INTEGERS, torch.bool):
        kinds = "float32, float64, float16, bfloat16, integers or booleans"
        raise TypeError(f"dense must be of {kinds}, not {dense.dtype}")
    if dense.dim() != 2:
        raise ValueError(f"dense must have 2 dimensions, not {dense.dim()}")
    row, col = torch.nonzero(dense.detach(), as_tuple=True)
    return from_coo(kind, row, col, dense[row, col], (dense.size(0), dense.size(1)), True)


def from_torch(kind: type[M], adj: Tensor, check: bool) -> M:
    """Does what ``CSR.from_torch`` documents."""
    require_flags("from_torch", check=check)
    require_tensor("adj", adj)
    if adj.layout in (torch.sparse_csr, torch.sparse_csc):
        if adj.values().dim() < 1 or adj.dim() - adj.dense_dim() != 2:
            raise ValueError(f"adj must be one matrix, not a batch of shape {list(adj.shape)}")
        val, shape = own_values(adj.values()), (adj.size(0), adj.size(1))
        if adj.layout == torch.sparse_csr:
            return from_csr(kind, adj.crow_indices(), adj.col_indices(), val, shape, check)
        return from_csr(kind, adj.ccol_indices(), adj.row_indices(), val, shape[::-1], check).t()
    if adj.layout != torch.sparse_coo:
        raise TypeError(f"adj must be a torch sparse CSR, CSC or COO tensor, not {adj.layout}")
    if adj.sparse_dim() != 2:
        raise ValueError(f"adj must have 2 sparse dimensions, not {adj.sparse_dim()}")
    if adj.requires_grad and not adj.is_coalesced():
        adj = adj.coalesce()  # only a coalesced tensor's values() carry a gradient
    indices = adj.indices() if adj.is_coalesced() else raw_indices(adj)
    values = adj.values() if adj.is_coalesced() else raw_values(adj)
    return from_coo(kind, indices[0], indices[1], own_values(values), (adj.size(0), adj.size(1)), check)


def from_scipy(kind: type[M], matrix: Any, check: bool) -> M:
    """Does what ``CSR.from_scipy`` documents."""
    require_flags("from_scipy", check=check)
    if not hasattr(matrix, "tocsr"):
        raise TypeError(f"matrix must be a scipy sparse matrix or array, not {type(matrix).__name__}")
    if matrix.ndim != 2:
        raise ValueError(f"matrix must have 2 dimensions, not {matrix.ndim}")
    if matrix.dtype.kind not in "fiub" or matrix.dtype.itemsize > 8:  # no complex numbers, no long doubles
        raise TypeError(f"matrix must hold real numbers of at most 64 bits, not {matrix.dtype}")
    csr = matrix.tocsr()
    val = torch.from_numpy(csr.data)
    val = val.clone() if val.dtype.is_floating_point else val.to(torch.get_default_dtype())
    return from_csr(kind, torch.from_numpy(csr.indptr), torch.from_numpy(csr.indices), val, csr.shape, check)


def from_parts(
    kind: type[M], ptr: Tensor, idx: Tensor, order: Tensor | None, val: Tensor | None, shape: Any, check: bool
) -> M:
    """A matrix whose entry p is the caller's edge order[p]; no order, or an empty one, is the identity."""
    made = from_csr(kind, ptr, idx, val if order is None or not order.numel() else None, shape, check)
    if order is None or not order.numel():
        return made
    if check:
        require_permutation("the order of the edges", order, made.nnz)
    return kind.make(made.ptr, made.idx, as_eid(own(order, torch.int64)), val, made.n_cols, False, check)


def from_tensors(kind: type[M], tensors: Any, check: bool) -> M:
    """Does what ``CSR.from_tensors`` documents."""
    require_flags("from_tensors", check=check)
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of names to tensors, not {type(tensors).__name__}")
    needed, known = ("ptr", "idx", "shape"), ("ptr", "idx", "shape", "eid", "val")
    if wrong := [name for name in needed if name not in tensors] or [name for name in tensors if name not in known]:
        raise ValueError(f"tensors must have {', '.join(needed)} and may have eid and val; {wrong[0]!r} is amiss")
    require_vector("shape", tensors["shape"])
    shape = tuple(tensors["shape"].tolist())
    return from_parts(kind, tensors["ptr"], tensors["idx"], tensors.get("eid"), tensors.get("val"), shape, check)


@lasting
def eye(kind: type[M], n: Any, dtype: torch.dtype | None, device: Any) -> M:
    """Does what ``CSR.eye`` documents."""
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"eye: dtype must be float32, float64, float16 or bfloat16, not {dtype!r}")
    try:
        rows = operator.index(n)
    except TypeError:
        raise TypeError(f"eye: n must be an integer, not {n!r}") from None
    require_shape((rows, rows), "eye: n")
    place = torch.get_default_device() if device is None else require_device("eye: device", device)
    ptr = torch.arange(rows + 1, device=place)
    val = None if dtype is None else torch.ones(rows, dtype=dtype, device=place)
    none = torch.empty(0, dtype=torch.uint8, device=place)
    return kind.make(ptr, ptr[:-1].int(), none, val, rows, False)


def require_target(here: torch.device, device: Any, dtype: torch.dtype | None) -> torch.device:
    """Where a matrix goes by ``to(device, dtype)``.

    Raises:
        TypeError: no device (a dtype is ``dtype=``), or a dtype without a kernel.
        ValueError: as ``require_device``.
    """
    if isinstance(device, torch.dtype):
        raise TypeError(f"device must be a device or its name, not {device!r}; give a dtype as dtype=")
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"dtype must be float32, float64, float16 or bfloat16, not {dtype!r}")
    return here if device is None else require_device("device", device)


def to(adj: M, device: Any, dtype: torch.dtype | None, non_blocking: bool) -> M:
    """Does what ``CSR.to`` documents."""
    require_flags("to", non_blocking=non_blocking)
    if adj.val is None or not are_transforms_active():
        return _to(adj, device, dtype, non_blocking)
    there = _to(adj.pattern(), device, dtype, non_blocking)  # a transform follows the values, which it may not leave
    return there.with_values(adj.val.to(there.device, dtype))


@lasting
def _to(adj: M, device: Any, dtype: torch.dtype | None, non_blocking: bool) -> M:
    target = require_target(adj.device, device, dtype)
    non_blocking = non_blocking and target.type == "cuda"  # else the CPU would permute values that are not there yet
    val = None if adj.val is None else adj.val.to(target, dtype, non_blocking)
    if target == adj.device or (target.index is None and target.type == adj.device.type):
        return adj if val is adj.val else adj.with_values(val)
    ptr, idx, eid = (t.to(target, non_blocking=non_blocking) for t in (adj.ptr, adj.idx, adj.eid))
    return type(adj).make(ptr, idx, eid, val, adj.n_cols, False, not (non_blocking or is_captured(ptr)))


@lasting
def pin_memory(adj: M) -> M:
    """Does what ``CSR.pin_memory`` documents."""
    val = None if adj.val is None else adj.val.pin_memory()
    return type(adj).make(
        adj.ptr.pin_memory(), adj.idx.pin_memory(), adj.eid.pin_memory(), val, adj.n_cols, False, True
    )
