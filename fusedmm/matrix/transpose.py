"""The transpose of a matrix: counted in one call of the library where that is quickest, elsewhere sorted by torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops, raise_translated
from fusedmm.matrix.compress import as_eid, in_one_call, is_refused, pointers, rows_of
from fusedmm.matrix.structure import Half, is_captured, lasting, plan_of

_transpose: Any = ops._transpose.default


@lasting
def transpose(ptr: Tensor, idx: Tensor, eid: Tensor, plan: Tensor, cols: int, measure: bool) -> tuple[Half, int]:
    """Returns the transpose, whose entries are sorted by column, each column's rows in order, and what its rows are
    like."""
    rows, nnz = ptr.shape[0] - 1, idx.shape[0]
    if in_one_call(idx, nnz, rows, cols):
        try:
            ptr_t, idx_t, eid_t, plan_t = _transpose(ptr, idx, eid, plan, cols)
            # The plan of a square matrix is as long as this one, unless who made it waited and cut it.
            cut = rows == cols and 0 < plan.numel() < plan_t.numel() and not is_captured(plan)
            plan_t, rows_are = plan_of(ptr_t, idx_t, rows, measure or cut, plan_t, cut)
            return (ptr_t, idx_t, eid_t, plan_t), rows_are
        except RuntimeError as error:  # an unchecked matrix may hold anything; it is sorted below
            if not is_refused(error):
                raise_translated(error, idx.device)
    col, order = torch.sort(idx, stable=True)
    ptr_t = pointers(col, cols)
    idx_t = rows_of(ptr, nnz).index_select(0, order)
    other = eid.index_select(0, order) if eid.numel() else as_eid(order)
    plan_t, rows_are = plan_of(ptr_t, idx_t, rows, measure)
    return (ptr_t, idx_t, other, plan_t), rows_are
