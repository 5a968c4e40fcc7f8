"""GraphSAGE's convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.adapters import settle
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import DEFERRED
from fusedmm.nn.adjacency import OptPair, aggregate, bipartite
from fusedmm.nn.aggr import FUSED, Aggregation, Aggregations, Neighbours, resolve
from fusedmm.nn.checks import fit, require_channels, require_features, require_nodes, require_options
from fusedmm.nn.layer import Layer
from fusedmm.nn.linear import Linear, goes_unseen, is_plain
from fusedmm.ops.checks import normalize
from fusedmm.ops.sage import ONE_STEP, convolve
from fusedmm.ops.spmm import spmm


class SAGEConv(Layer):
    """``W_l aggr(x of the neighbours) + b + W_r x``, in the place of ``torch_geometric.nn.SAGEConv``.

    Args:
        in_channels: F of x, or (F of sources, F of targets); -1 takes it from the first input.
        out_channels: F of the result.
        aggr: "mean", "sum" or "add", "max", "min", "var", "std", "softmax", "powermean",
            "variancepreserving", "median", "mul", "lstm", PyG's module for one of these, or a list of them (not of
            "lstm"), whose results stand side by side. Nodes without neighbours get 0. Three differ:
            "powermean"; "mul", which gives 1; and "lstm", which runs over rows of zeros for them.
        normalize: divide each result row by its 2-norm.
        root_weight: whether to add ``W_r x``.
        project: apply ``relu(W x + b)`` to the sources first.
        bias: whether to learn b.
        kwargs: ``aggr_kwargs``, options of aggr as in PyG (of a list ``aggrs_kwargs`` and a ``mode``
            other than "cat", one of "sum", "mean", "max", "min", "logsumexp", "std", "var"); other
            options of PyG's base class only with their defaults.

    Raises:
        TypeError, ValueError: an option that is not supported, or a size that is no positive integer.

    Parameters ``lin_l.weight``, ``lin_l.bias``, ``lin_r.weight``, ``lin.weight``, ``lin.bias``, and what
    aggr learns, named, drawn and saved as PyG's, so that its ``state_dict`` loads.

    Cost: an SpMM (two for var and std) per aggregation, which share what they have in common, and at
    most three dense products per call. "median", "mul" and "lstm" store the neighbours of all nodes, [edges, F], and
    "lstm" as many for each node as one has at most.

    Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", 2017.

    Example:
        >>> conv = fusedmm.nn.SAGEConv((3, 5), 2, aggr="max")
        >>> conv((torch.randn(4, 3), torch.randn(2, 5)), torch.tensor([[0, 1, 3], [1, 0, 0]])).shape
        torch.Size([2, 2])
        >>> conv
        SAGEConv((3, 5), 2, aggr=max)
    """

    aggr_module: Aggregation | Aggregations

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: Any = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        names = [str(a) for a in aggr] if isinstance(aggr, (tuple, list)) else str(aggr)
        source, target = require_channels("SAGEConv", in_channels, out_channels)
        options = kwargs.pop("aggr_kwargs", None)
        if isinstance(aggr, str) and aggr == "lstm":
            options = {"in_channels": source, "out_channels": source} | (options or {})
        super().__init__(names, resolve("SAGEConv", aggr, options))
        self.reduce = FUSED.get(aggr) if isinstance(aggr, str) else None
        require_options("SAGEConv", kwargs)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.normalize = normalize
        self.root_weight = root_weight
        self.project = project
        if project and source <= 0:
            raise ValueError(
                "SAGEConv: project=True does not support lazy sizes: it needs in_channels, -1 is not enough"
            )
        if project:
            self.lin = Linear(source, source)
        self.lin_l = Linear(source * self.aggr_module.times, out_channels, bias=bias)
        if root_weight:
            self.lin_r = Linear(target, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        self.aggr_module.reset_parameters()
        if "lin" in self._modules:
            self.lin.reset_parameters()
        self.lin_l.reset_parameters()
        if self.root_weight:
            self.lin_r.reset_parameters()

    def forward(
        self, x: Tensor | OptPair | CSR, edge_index: Any, size: tuple[int | None, int | None] | None = None
    ) -> Tensor:
        """Convolves node features over a graph.

        Args:
            x: floating, [nodes, in_channels], or a pair of [sources, F] and [targets, F] or None; a
                leading batch dimension is allowed. Or sparse features, a ``CSR`` with values [nnz], where aggr is
                "mean", "sum" or "add" and there is no projection.
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [targets, sources]. As in PyG's layer, a matrix's
                values [nnz] multiply x where aggr is a name of ``spmm``'s reductions; with another
                aggr, or of a torch_sparse ``SparseTensor``, they have no part in the result.
            size: (sources, targets), for targets without features.

        Returns:
            [targets, out_channels].

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit.

        Gradient: reaches x, the parameters, and a matrix's values; equal maxima share it evenly.
        """
        modules: Any = self._modules  # self.lin_l would be searched for, as long as x is checked
        project = self.project and "lin" in modules  # which is made with the layer, or never
        lin_l, lin_r = modules["lin_l"], modules["lin_r"] if self.root_weight else None
        first, times = (modules["lin"], 1) if project else (lin_l, 1 if self.reduce else self.aggr_module.times)
        plain = size is None and times == 1 and fit(x, edge_index, first, lin_r or first)
        if not plain:
            sparse = self.reduce in ONE_STEP and not project
            require_nodes("SAGEConv", x, first, lin_r, batch=True, times=times, sparse=sparse)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index, size)
        # The product that follows checks each index by itself, so that the host need not wait for an answer first.
        defer = self.reduce is not None
        source: Any = x
        adj, target = edge_index, source
        if not plain:
            adj, (source, target) = bipartite(edge_index, x, size, DEFERRED if defer else True)
        if project:
            source = self.lin(source).relu()
        out = in_one_step(adj, self.reduce, source, target, lin_l, lin_r)
        if out is None and takes_sparse("SAGEConv", source, self.reduce, lin_l):
            assert self.reduce is not None
            out = of_sparse(adj, self.reduce, source, target, lin_l, lin_r)
        elif out is None:
            out = self._in_parts(adj, source, target, lin_r)
        settle(adj, edge_index)
        return normalize(out) if self.normalize else out

    def _in_parts(self, adj: CSR, source: Tensor, target: Tensor | None, lin_r: Linear | None) -> Tensor:
        """Any aggregation, and then its maps, each as a step of autograd of its own."""
        if self.reduce is None:
            out = self.aggr_module(Neighbours(adj.pattern(), source, self.aggr_module.kinds))
        else:
            out = aggregate(adj, source, self.reduce)
        return mapped(out, target, self.lin_l, lin_r)

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


def in_one_step(
    adj: CSR, reduce: str | None, source: Tensor, target: Tensor | None, lin_l: Linear, lin_r: Linear | None
) -> Tensor | None:
    """``lin_l(A source) + lin_r(target)`` as one step of autograd; None where something has to see the parts."""
    if reduce not in ONE_STEP or adj.val is not None or not goes_unseen(source, lin_l) or source.dim() != 2:
        return None
    weight, bias = lin_l.parts_for(source)
    if lin_r is None or target is None:
        return convolve(adj, reduce, source, None, weight, bias, None)
    other = None if target is source else target
    if not is_plain(lin_r) or (other is not None and (other.dim() != 2 or other.layout != torch.strided)):
        return None
    return convolve(adj, reduce, source, other, weight, bias, lin_r.weight_for(target))


def takes_sparse(layer: str, source: Any, reduce: str | None, lin: Linear) -> bool:
    """Whether features are sparse, a CSR or a tensor of torch's.

    Raises:
        TypeError: they are, and a reduction or the hooks of a map want dense ones.
    """
    if isinstance(source, Tensor) and source.layout == torch.strided:
        return False
    if reduce in ONE_STEP and is_plain(lin):
        return True
    if isinstance(source, Tensor):
        require_features(layer, "x", source)
    raise TypeError(f"{layer}: a map with hooks needs dense features: give x.to_dense()")


def of_sparse(adj: CSR, reduce: str, source: Any, target: Any, lin_l: Linear, lin_r: Linear | None) -> Tensor:
    """``mapped`` of sparse features: the map comes first, as its result is dense, and sums and means after it."""
    weight, bias = lin_l.weight_for(source), lin_l.bias
    dense = spmm(source, weight.t()) if isinstance(source, CSR) else torch.nn.functional.linear(source, weight)
    out = aggregate(adj, dense, reduce)
    out = out if bias is None else out + bias
    return out if lin_r is None or target is None else out + lin_r(target)


def mapped(out: Tensor, target: Tensor | None, lin_l: Linear, lin_r: Linear | None) -> Tensor:
    """``lin_l(out) + lin_r(target)``."""
    out = lin_l(out)
    if lin_r is None or target is None:
        return out
    if out.dim() == 2 and target.dim() == 2 and goes_unseen(target, lin_r):
        return torch.addmm(out, target, lin_r.weight_for(target).t())  # a call less, either way
    return out + lin_r(target)
