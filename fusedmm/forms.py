"""Torch's own sparse and dense tensors and scipy's matrices, to and from a CSR."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.csr import CSR
from fusedmm.structure import own_values


def from_torch(adj: Tensor, check: bool) -> CSR:
    """``CSR.from_torch``."""
    if adj.layout in (torch.sparse_csr, torch.sparse_csc):
        if adj.values().dim() < 1 or adj.dim() - adj.dense_dim() != 2:
            raise ValueError(f"adj must be one matrix, not a batch of shape {list(adj.shape)}")
        val, shape = own_values(adj.values()), (adj.size(0), adj.size(1))
        if adj.layout == torch.sparse_csr:
            return CSR.from_csr(adj.crow_indices(), adj.col_indices(), val, shape, check=check)
        return CSR.from_csr(adj.ccol_indices(), adj.row_indices(), val, shape[::-1], check=check).t()
    if adj.layout != torch.sparse_coo:
        raise TypeError(f"adj must be a torch sparse CSR, CSC or COO tensor, not {adj.layout}")
    if adj.sparse_dim() != 2:
        raise ValueError(f"adj must have 2 sparse dimensions, not {adj.sparse_dim()}")
    if adj.requires_grad and not adj.is_coalesced():
        adj = adj.coalesce()  # only a coalesced tensor's values() carry a gradient
    indices = adj.indices() if adj.is_coalesced() else adj._indices()
    values = adj.values() if adj.is_coalesced() else adj._values()
    return CSR.from_coo(indices[0], indices[1], own_values(values), (adj.size(0), adj.size(1)), check=check)


def from_scipy(matrix: Any, check: bool) -> CSR:
    """``CSR.from_scipy``."""
    csr = matrix.tocsr()
    val = torch.from_numpy(csr.data)
    val = val.clone() if val.dtype.is_floating_point else val.to(torch.float32)
    return CSR.from_csr(torch.from_numpy(csr.indptr), torch.from_numpy(csr.indices), val, csr.shape, check=check)


def to_dense(adj: CSR) -> Tensor:
    """``CSR.to_dense``."""
    row, col, val = adj.coo()
    if val is None:
        val = torch.ones(adj.nnz, device=adj.device)
    return val.new_zeros(*adj.shape, *val.shape[1:]).index_put((row, col), val, accumulate=True)


def to_torch(adj: CSR, layout: torch.layout) -> Tensor:
    """``CSR.to_torch``."""
    if adj.val is not None and adj.val.dim() != 1:
        raise ValueError("torch sparse tensors hold one value per entry, not one per head")
    val = torch.ones(adj.nnz, device=adj.device) if adj.val is None else adj.val
    if layout == torch.sparse_csr:
        order = val[adj.eid.long()] if adj.eid.numel() else val
        return torch.sparse_csr_tensor(adj.ptr, adj.idx.long(), order, adj.shape)
    if layout == torch.sparse_coo:
        row, col, _ = adj.coo()
        return torch.sparse_coo_tensor(torch.stack([row, col]), val, adj.shape)
    raise ValueError(f"layout must be torch.sparse_csr or torch.sparse_coo, not {layout}")
