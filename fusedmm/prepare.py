"""What layers need of a graph, made before they are compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from fusedmm.matrix.adapters import operand
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.incidence import from_columns, into_rows
from fusedmm.matrix.normalize import normalized, with_loops, without_loops
from fusedmm.nn.aggr import ONE_BY_ONE, Aggregation
from fusedmm.nn.cheb_conv import ChebConv
from fusedmm.nn.gen_conv import GENConv
from fusedmm.nn.gin_conv import GINEConv
from fusedmm.nn.laplacian import scaled_laplacian
from fusedmm.nn.layer import Layer
from fusedmm.nn.normalized import Normalized
from fusedmm.nn.pna_conv import PNAConv
from fusedmm.nn.res_gated_graph_conv import ResGatedGraphConv
from fusedmm.nn.supergat_conv import SuperGATConv

# Layers that may compute on every edge, whatever their arguments.
ON_EDGES = (GENConv, GINEConv, PNAConv, ResGatedGraphConv, SuperGATConv)


def prepare(adj: Any, *modules: Module) -> CSR:
    """Makes all that layers need of a graph's structure, so that they compile as one graph (``fullgraph=True``).

    It is kept with the structure, also for matrices of other values: the transpose for gradients, self loops,
    normalised weights, and what takes edge features to nodes. Nothing is computed of features, and no layer is called.

    Args:
        adj: a ``CSR``, or what ``as_csr`` takes.
        modules: layers of ``fusedmm.nn``, or models of them; other modules in these need nothing. Without any only the
            transpose is made, which is what operators need.

    Returns:
        The CSR, which compiled code is to be given.

    Raises:
        TypeError: no matrix, or no module.
        ValueError: a malformed matrix, or one that is not square for a layer that normalises.

    Cost: one sort for the transpose; O(nnz) for each structure with self loops and each normalisation.

    Example:
        >>> conv = fusedmm.nn.GCNConv(2, 2)
        >>> adj = fusedmm.prepare(torch.tensor([[0, 1], [1, 0]]), conv)
        >>> compiled = torch.compile(conv, fullgraph=True)  # takes adj, forward and backward
    """
    csr = operand("prepare", "adj", adj).cache_transpose()
    for module in modules:
        if not isinstance(module, Module):
            raise TypeError(f"prepare: modules must be torch.nn.Module, not {type(module).__name__}")
        for layer in module.modules():
            if isinstance(layer, Layer):
                _prepare(csr, layer)
    return csr


@torch.no_grad()
def _prepare(adj: CSR, layer: Layer) -> None:
    adj, loops = adj.pattern(), bool(getattr(layer, "add_self_loops", False))
    structures = [adj, with_loops(adj).pattern] if loops else [adj]
    dtype = next((p.dtype for p in layer.parameters()), torch.get_default_dtype())
    ones = torch.ones(adj.nnz, dtype=dtype, device=adj.device)
    for val in (None, ones):  # of a pattern, of weighted edges
        if isinstance(layer, Normalized) and layer.normalize:
            loop = 2.0 if layer.improved and val is not None else 1.0
            normalized(adj, val, loop if loops else None, dtype).cache_transpose()
        if isinstance(layer, ChebConv):
            scaled_laplacian(adj, val, layer.normalization, None, dtype).cache_transpose()
    one_by_one = any(isinstance(part, Aggregation) and part.kind in ONE_BY_ONE for part in layer.modules())
    if isinstance(layer, ON_EDGES) or getattr(layer, "edge_dim", None) is not None or one_by_one:
        if one_by_one:  # messages of edges may be what is looked at
            structures.append(into_rows(adj))
        for each in structures:
            into_rows(each).cache_transpose()
            from_columns(each).cache_transpose()
        if loops:
            without_loops(adj).cache_transpose()
