"""The Laplacian of a graph, scaled so that its eigenvalues are within [-1, 1]: ``2 L / lambda - I``.

With A the weights without self loops and D its column sums, which are a node's edges to others, L is

    None    D - A                   sym     I - D^-1/2 A D^-1/2             rw     I - A D^-1

as PyG has them for matrices that gather sources into targets. Its structure is A's with one loop per node, made once
per graph. The sums are SpMMs on the transpose and the scaling is an SDDMM, so that gradients have any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusedmm._lib import sums_dtype
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import with_loops
from fusedmm.matrix.structure import derived, lasting
from fusedmm.ops.spmm_sddmm import sddmm_half, spmm_half

NORMALIZATIONS = (None, "sym", "rw")
NOT_SEEN = (
    "the Laplacian has a structure of its own: call the layer once before the compiled code, with the CSR that it will "
    "be given; an exported program, which gets another CSR at every call, has none"
)


def scaled_laplacian(
    adj: CSR, val: Tensor | None, kind: str | None, of_nodes: Tensor | None, dtype: torch.dtype
) -> CSR:
    """``2 L / lambda - I``.

    Args:
        adj: the graph, [nodes, nodes].
        val: weights [nnz], or None for ones.
        kind: one of ``NORMALIZATIONS``.
        of_nodes: lambda, one number or one for each node; None is twice the largest entry of L. Where it is 0, what
            it divides counts as 0.
        dtype: of a pattern's result.

    Gradient: reaches val and of_nodes.
    """
    if val is None and of_nodes is None:
        return derived(adj, ("chebyshev", kind, dtype), NOT_SEEN, _frozen, kind, dtype)
    with torch.autocast(adj.device.type, enabled=False):  # 16 bits would round the degrees
        return _scaled(adj, torch.ones(adj.nnz, dtype=dtype, device=adj.device) if val is None else val, kind, of_nodes)


@lasting
@torch.no_grad()
def _frozen(adj: CSR, kind: str | None, dtype: torch.dtype) -> CSR:
    ones = torch.ones(adj.nnz, dtype=dtype, device=adj.device)
    with torch.autocast(adj.device.type, enabled=False):
        return _scaled(adj, ones, kind, None)


def _scaled(adj: CSR, val: Tensor, kind: str | None, of_nodes: Tensor | None) -> CSR:
    looped, wide, nodes = with_loops(adj, NOT_SEEN), sums_dtype(val), adj.n_cols
    val = val if looped.others is None else val.index_select(0, looped.others)
    weights, count = torch.cat([val, val.new_zeros(nodes)]), val.shape[0]  # the loops have none
    adj, ones = looped.pattern.with_values(weights), val.new_ones(nodes, 1, dtype=wide)
    degree = spmm_half(adj, True, weights, ones)
    if kind is None:
        edges, loops = weights.to(wide), degree[:, 0]
    else:
        empty = degree == 0
        filled = degree.masked_fill(empty, 1)
        scale = (filled.rsqrt() if kind == "sym" else filled.reciprocal()).masked_fill(empty, 0)
        edges, loops = sddmm_half(adj, False, weights, scale if kind == "sym" else ones, scale), ones[:, 0]
    laplacian = torch.cat([-edges[:count], loops])
    largest = 2 * adj._largest(laplacian) if of_nodes is None else of_nodes.to(wide)
    factor = 2 / largest.masked_fill(largest == 0, torch.inf)
    if factor.dim():
        laplacian = sddmm_half(adj, False, laplacian, ones, factor[:, None])
    else:
        laplacian = laplacian * factor
    identity = torch.cat([laplacian.new_zeros(count), laplacian.new_ones(nodes)])
    return adj.with_values((laplacian - identity).to(val.dtype))
