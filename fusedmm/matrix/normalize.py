"""Self loops and the symmetric normalisation of graph convolutions.

The structure with self loops is made once per structure and cached with it (``structure.derived``). That needs no sort,
since each row merely gains one entry at its end. What remains for each step is arithmetic on values: row sums are an
SpMM with ones, and the scaling by ``D^-1/2`` on both sides is an SDDMM with that vector. Gradients of any order are
therefore those of SpMM and SDDMM, which are deterministic and use no atomics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from fusedmm._lib import ops, sums_dtype
from fusedmm.matrix.arguments import FLOATS, require_flags, require_number, require_values
from fusedmm.matrix.base import M, Matrix
from fusedmm.matrix.compress import EDGE_PLACES, compress_with_loops, eid_dtype, in_one_call, is_few, rows_of
from fusedmm.matrix.incidence import into_rows
from fusedmm.matrix.structure import derived, lasting, own, plan_of, was_measured
from fusedmm.ops.spmm_sddmm import run, sddmm_half, spmm_half

_normalize: Any = ops._normalize.default

_NOT_SEEN = (
    "{0} the structure: call the layer or {1} once before the compiled code, with the CSR that it will be given; "
    "an exported program, which gets another CSR at every call, is given {1}.cache_transpose(), made beforehand with "
    "the same options ({2}), and {3}"
)
NO_LOOPS = _NOT_SEEN.format(
    "self loops change", "adj.add_self_loops()", "and edge_attr with rows for the loops", "a layer add_self_loops=False"
)
NO_NORM = _NOT_SEEN.format(
    "normalisation changes", "adj.gcn_norm()", "of a pattern without improved", "GCNConv normalize=False"
)


@dataclass(frozen=True, eq=False)
class Looped(Generic[M]):
    """Holds a structure with one self loop per node: the other entries in the caller's order, then the loops.

    Of a matrix that is not square the first min(rows, cols) nodes count as the same on both sides.
    """

    pattern: M
    others: Tensor | None  # int64, which of the old entries are no self loops; None: all of them


def add_self_loops(adj: M, fill_value: float = 1.0) -> M:
    """Gives every node of a square matrix one self loop.

    Args:
        adj: [nodes, nodes], values [nnz], [nnz, heads] or none.
        fill_value: weight of the loops of nodes that had none. An existing loop keeps its weight; of several
            at one node the last stays.

    Returns:
        CSR whose entries are those of adj that are no loops, in the caller's order, and then the loops
        of nodes 0, 1, ... A pattern stays a pattern where ``fill_value`` is 1, else it gets float32 values.

    Raises:
        TypeError: no CSR, or a ``fill_value`` that is no number.
        ValueError: a matrix that is not square, or a ``fill_value`` that the values' dtype does not have.
        RuntimeError: in compiled code of one graph, for a structure not yet seen outside of it.

    Gradient: reaches adj's values.

    Cost: O(nnz) once per structure, with one synchronisation with a GPU; later calls copy the values.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([5., 7.]), (2, 2))
        >>> A.add_self_loops().to_dense()
        tensor([[1., 5.],
                [0., 7.]])
    """
    require_square(adj)
    fill = require_number("add_self_loops: fill_value", fill_value, torch.float32 if adj.val is None else adj.val.dtype)
    looped = with_loops(adj)
    if adj.val is None and fill == 1:
        return looped.pattern
    return looped.pattern.with_values(_looped_values(adj, looped, _ones(adj, None), fill))


def gcn_norm(
    adj: M,
    improved: bool = False,
    add_self_loops: bool = True,
    *,
    dtype: torch.dtype | None = None,
    fill_value: float | None = None,
) -> M:
    """Normalises an adjacency symmetrically: ``D^-1/2 (A + I) D^-1/2`` with D the row sums of ``A + I``.

    Args:
        adj: [nodes, nodes], values [nnz], [nnz, heads] or none (ones).
        improved: weight of added self loops 2 instead of 1 (Gao and Ji, "Graph U-Nets", 2019).
        add_self_loops: as the function of that name; False normalises adj as it is.
        dtype: of the values that a pattern gets, float32 without it.
        fill_value: weight of added self loops, in the place of 1 or of what ``improved`` says.

    Returns:
        CSR with values of its own. Rows that sum to zero give zeros. That of a pattern is constant; it is
        computed once per structure and copied.

    Raises:
        TypeError: no CSR, a dtype that is not floating, a ``fill_value`` that is no number, or something else than True
            or False for ``improved`` or ``add_self_loops``.
        ValueError: a matrix that is not square, or a ``fill_value`` that the values' dtype does not have.
        RuntimeError: in compiled code of one graph, for a structure not yet seen outside of it.

    Gradient: reaches adj's values, of any order.

    Cost: O(nnz); a copy of the values where the pattern was seen before.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017.

    Example:
        >>> A = fusedmm.as_csr(torch.tensor([[0, 1], [1, 0]]))
        >>> A.gcn_norm().to_dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    require_square(adj)
    require_flags("gcn_norm", improved=improved, add_self_loops=add_self_loops)
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"gcn_norm: dtype must be float32, float64, float16 or bfloat16, not {dtype!r}")
    weight = 2.0 if improved else 1.0
    if fill_value is not None:
        of = (dtype or torch.float32) if adj.val is None else adj.val.dtype
        weight = require_number("gcn_norm: fill_value", fill_value, of)
    made = normalized(adj, adj.val, weight if add_self_loops else None, dtype)
    return made if adj.val is not None or made.val is None else _copied(made, made.val)


def normalized(adj: M, val: Tensor | None, fill: float | None, dtype: torch.dtype | None) -> M:
    """Returns ``gcn_norm`` of adj's structure with the values val; ``fill`` None adds no self loops.

    The result for a pattern is cached and shared: nobody may write to its values.
    """
    if val is not None:
        require_square(adj)
        require_values(val, adj.nnz, adj.device)
        return _normalized(adj, val, fill, None)
    dtype = dtype or torch.float32
    return _turned(adj, derived(adj, ("norm", fill, dtype), NO_NORM, _frozen, dtype, fill))


def with_loops(adj: M, why: str = NO_LOOPS) -> Looped[M]:
    """Returns the structure of adj with self loops, made once per structure; why: see ``structure.outside``."""
    looped = derived(adj, "loops", why, _make_looped)
    _turned(adj, looped.pattern)
    return looped


def _turned(adj: M, made: M) -> M:
    """Returns made, with its transpose if adj has one, since gradients are wanted then."""
    if adj.ptr_t is not None and made.ptr_t is None and not torch.compiler.is_compiling():
        made.cache_transpose()
    return made


@lasting
def looped_edges(kind: type[M], edge_index: Tensor, sources: int, targets: int) -> Looped[M] | None:
    """Returns the structure of an edge_index [2, nnz] with self loops, in one call; None where there are too many
    edges.

    Raises:
        ValueError: an index outside; the text has it.
    """
    col, row = edge_index.long().unbind()
    if not in_one_call(row, row.numel() + targets, targets, sources):
        return None
    ptr, idx, eid, plan, others = compress_with_loops(row, col, targets, sources, EDGE_PLACES)
    return Looped(kind.make(ptr, idx, eid, None, sources, False, plan_of(ptr, idx, sources, True, plan)), others)


def without_loops(adj: M) -> M:
    """Returns the matrix [rows, nnz] of ``into_rows`` less the self loops, made once and kept beside the structure."""
    if with_loops(adj).others is None:
        return into_rows(adj)
    return _turned(adj, derived(adj, "others", NO_LOOPS, _without_loops))


@lasting
def _without_loops(adj: M) -> M:
    row = rows_of(adj.ptr, adj.nnz)
    stays = adj.idx != row
    number = adj.eid if adj.eid.numel() else torch.arange(adj.nnz, dtype=torch.int32, device=adj.device)
    ptr = torch.nn.functional.pad(stays.cumsum(0), (1, 0))[adj.ptr.clamp(0, adj.nnz)]
    return type(adj).make(ptr, number[stays], adj.none, None, adj.nnz, False)


@lasting
def _make_looped(adj: M) -> Looped[M]:
    nodes, nnz, device = min(adj.shape), adj.nnz, adj.device
    row, ptr, idx, others = rows_of(adj.ptr, nnz), adj.ptr, adj.idx, None
    number = adj.eid if adj.eid.numel() else torch.arange(nnz, dtype=eid_dtype(nnz), device=device)
    loop = idx == row
    if nnz and bool(loop.any()):
        stays = ~loop  # in the order of the rows; its running sum is where an entry goes
        ptr = torch.nn.functional.pad(stays.cumsum(0), (1, 0))[ptr.clamp(0, nnz)]
        mine = torch.empty_like(stays).scatter_(0, number.long(), stays)
        others = mine.nonzero()[:, 0]
        number = (mine.cumsum(0) - 1).to(number.dtype)[number[stays].long()]
        row, idx, nnz = row[stays], idx[stays], others.numel()
    # Each row with a loop moves the entries behind it by one, and its loop is the last of its own.
    node = torch.arange(nodes, dtype=torch.int32, device=device)
    ptr = ptr + torch.arange(ptr.numel(), device=device).clamp_(max=nodes)
    place = torch.cat([torch.arange(nnz, device=device) + row.clamp(max=nodes), ptr[1 : nodes + 1] - 1])
    total = nnz + nodes
    loops = torch.arange(nnz, total, dtype=eid_dtype(total), device=device)
    new_idx = torch.empty_like(place, dtype=torch.int32).scatter_(0, place, torch.cat([idx, node]))
    eid = torch.empty_like(place, dtype=loops.dtype).scatter_(0, place, torch.cat([number.to(loops.dtype), loops]))
    return Looped(type(adj).make(ptr, new_idx, eid, None, adj.n_cols, False, was_measured(adj)), others)


@lasting
def _old_loops(adj: Matrix) -> tuple[Tensor, Tensor]:
    """Finds the nodes that have self loops, and the number of the last loop of each; both int64."""
    row, col, _ = adj.coo()
    loop = (row == col).nonzero()[:, 0]
    newest = torch.full((min(adj.shape),), -1, device=adj.device)
    newest = newest.scatter_reduce_(0, row[loop], loop, "amax")
    nodes = (newest >= 0).nonzero()[:, 0]
    return nodes, newest[nodes]


def _looped_values(adj: M, looped: Looped[M], val: Tensor, fill: float) -> Tensor:
    loops = val.new_full((looped.pattern.n_cols, *val.shape[1:]), fill)
    if looped.others is None:
        return torch.cat([val, loops])
    nodes, last = derived(adj, "old loops", NO_LOOPS, _old_loops)
    loops = loops.index_copy(0, nodes, val.index_select(0, last))
    return torch.cat([val.index_select(0, looped.others), loops])


def _normalized(adj: M, given: Tensor | None, fill: float | None, dtype: torch.dtype | None) -> M:
    looped = None if fill is None else with_loops(adj, NO_NORM)
    val, matrix = given, adj if looped is None else looped.pattern
    if looped is not None and fill is not None and (val is not None or fill != 1):
        val = _looped_values(adj, looped, _ones(adj, dtype) if val is None else val, fill)
    with torch.autocast(adj.device.type, enabled=False):  # 16 bits would round the degrees
        if val is None:  # a loop weighs as much as an edge, whichever were there
            degree = matrix.degree()[:, None].to(torch.float64 if dtype == torch.float64 else torch.float32)
            scale = degree.rsqrt().masked_fill_(degree == 0, 0)
        else:
            matrix = matrix.with_values(val)
            ones = val.new_ones(matrix.n_cols, *val.shape[1:], 1, dtype=sums_dtype(val))
            degree = spmm_half(matrix, False, val, ones)
            empty = degree == 0
            scale = degree.masked_fill(empty, 1).rsqrt().masked_fill(empty, 0)
        scaled = sddmm_half(matrix, False, matrix.val, scale, scale)
        return matrix.with_values(scaled.to(dtype or (scale if val is None else val).dtype))


@lasting
@torch.no_grad()
def _frozen(adj: M, dtype: torch.dtype, fill: float | None) -> M:
    """Returns the normalised pattern, whose values belong to it alone and are put in the order of its rows at once."""
    require_square(adj)
    if fill == 1:
        return normalized(with_loops(adj, NO_NORM).pattern, None, None, dtype)
    here = None
    if fill is None and dtype == torch.float32 and is_few(adj.nnz, *adj.shape):
        val, here = run(_normalize, adj.ptr, adj.ptr, adj.idx, adj.eid, adj.plan)
    else:
        adj = _normalized(adj, None, fill, dtype)
        val = adj.val
    made = type(adj)(
        adj.ptr, adj.idx, val, adj.eid, adj.plan, adj.none, adj.n_cols,
        adj.ptr_t, adj.idx_t, adj.eid_t, adj.plan_t, adj.rows_are, adj.rows_are_t,
    )  # fmt: skip
    if here is not None and adj.eid_t is None and adj.eid.shape[0]:
        made._set(val_here=here)
    else:
        made._permute_values()
    made._set(_fixed=True)
    return made


def _copied(adj: M, val: Tensor) -> M:
    """Returns adj with a copy of its constant values val, which the new owner may write to."""
    if torch.compiler.is_compiling():
        return adj.with_values(val.clone())
    made = adj.with_values(own(val, val.dtype))
    made._permute_values()
    return made


def _ones(adj: Matrix, dtype: torch.dtype | None) -> Tensor:
    return torch.ones(adj.nnz, dtype=dtype or torch.float32, device=adj.device) if adj.val is None else adj.val


def require_square(adj: Matrix) -> None:
    if not isinstance(adj, Matrix):
        raise TypeError(f"self loops and normalisation need a CSR, not {type(adj).__name__}; as_csr makes one")
    rows, cols = adj.shape
    if rows != cols:
        raise ValueError(f"self loops and normalisation need a square matrix, not one of shape {adj.shape}")
