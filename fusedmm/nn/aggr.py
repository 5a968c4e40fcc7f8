"""How the features of a node's neighbours become one row: PyG's aggregations that are made of SpMMs.

    var                 mean(x^2) - mean(x)^2           std   its square root, 0 where that is at most sqrt(1e-5)
    powermean           mean(x^p)^(1/p), both clamped
    variancepreserving  sum / sqrt(number of neighbours)
    softmax             per channel, sum of softmax(t x) x: attention with a head per channel and no query;
                        of edges' own x a softmax over each row's edges, and a sum
    median, mul, lstm   are in one_by_one.py

Several in a list share their sums: with d neighbours the mean is sum / d, and std takes var where both
are asked for. In 16 bits what is made of a sum is made of one in the dtype of sums, and rounded at its end:
float16 has no square of 300, and mean(x^2) - mean(x)^2 no digit left.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm._lib import REDUCTIONS, sums_dtype
from fusedmm.matrix.arguments import require_strided
from fusedmm.matrix.csr import CSR
from fusedmm.nn.adjacency import aggregate
from fusedmm.nn.checks import require_number, require_size
from fusedmm.nn.one_by_one import last_state, median, product
from fusedmm.ops.attention import attention
from fusedmm.ops.checks import autocast
from fusedmm.ops.edge_softmax import edge_softmax
from fusedmm.ops.spmm_sddmm import cached_entries

FUSED = {"add": "sum", **{name: name for name in REDUCTIONS}}  # what PyG has no messages for, by these names alone
PEER = "torch_geometric.nn.aggr."
ONE_BY_ONE = ("median", "mul", "lstm")
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in REDUCTIONS},
    "var": {"semi_grad": False},
    "std": {"semi_grad": False},
    "softmax": {"t": 1.0, "learn": False, "semi_grad": False, "channels": 1},
    "powermean": {"p": 1.0, "learn": False, "channels": 1, "clamp_min": 1e-4, "clamp_max": 100.0},
    "variancepreserving": {},
    "median": {"fill_value": 0.0},
    "mul": {},
    "lstm": {"in_channels": None, "out_channels": None},
}
MODES = ("cat", "sum", "mean", "max", "min", "logsumexp", "std", "var")


class Neighbours:
    """Reductions of x over the rows of a graph, each made once; x [nodes, F] or [batch, nodes, F].

    of_edges: whether the graph's columns are edges, so that each has one entry and x is [edges, F].
    """

    def __init__(self, adj: CSR, x: Tensor, kinds: list[str], of_edges: bool = False) -> None:
        require_strided("SAGEConv: x", x)
        self.adj, self.x, self.kinds, self.of_edges = adj, autocast(x), kinds, of_edges
        self._made: dict[Any, Tensor] = {}

    def reduced(self, reduce: str) -> Tensor:
        """Sum, mean, max or min."""
        if reduce not in self._made:
            if reduce == "mean" and "sum" in self.kinds:
                self._made[reduce] = self.shared_by(self.entries()).to(self.x.dtype)
            else:
                self._made[reduce] = aggregate(self.adj, self.x, reduce)
        return self._made[reduce]

    def in_sums(self, reduce: str) -> Tensor:
        """The sum or the mean, in the dtype of sums."""
        if self.x.dtype == sums_dtype(self.x):
            return self.reduced(reduce)
        key = "in sums", reduce
        if key not in self._made:
            self._made[key] = self.of(self.wide(), reduce)
        return self._made[key]

    def wide(self) -> Tensor:
        """x in the dtype of sums, made once, so that the gradients of its uses are added before they are rounded."""
        if "wide" not in self._made:
            self._made["wide"] = self.x.to(sums_dtype(self.x))
        return self._made["wide"]

    def of(self, x: Tensor, reduce: str) -> Tensor:
        """A reduction of other features, in their dtype."""
        with torch.autocast(x.device.type, enabled=False):
            return aggregate(self.adj, x, reduce)

    def var(self, semi_grad: bool) -> Tensor:
        """The variance in the dtype of sums, whose gradient leaves the mean of squares out where semi_grad is set."""
        key = "var", semi_grad
        if key not in self._made:
            x, mean = self.wide().detach() if semi_grad else self.wide(), self.in_sums("mean")
            self._made[key] = self.of(x * x, "mean") - mean * mean
        return self._made[key]

    def entries(self) -> Tensor:
        """Neighbours of each node, at least 1."""
        return cached_entries(self.adj, False, self.x)

    def shared_by(self, number: Tensor) -> Tensor:
        """The sum divided by a number per node, in the dtype of sums."""
        return self.in_sums("sum") / number[:, None]


class Aggregation(torch.nn.Module):
    """One aggregation.

    Args:
        layer: whose it is, for the text of errors.
        kind: a key of ``OPTIONS``.
        options: all those of PyG's class of that name. With ``learn`` t or p is a parameter [channels].
    """

    def __init__(self, layer: str, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.kind, self.kinds, self.times = layer, kind, [kind], 1
        self.options = options
        self.learnt = {"softmax": "t", "powermean": "p"}.get(kind) if self.options.get("learn") else None
        if self.learnt is not None:
            self.register_parameter(self.learnt, Parameter(torch.empty(self.options["channels"])))
        if kind == "median":
            self.register_buffer("q", torch.tensor([[0.5]]))  # as PyG's, which is a quantile
        if kind == "lstm":
            self.lstm = torch.nn.LSTM(options["in_channels"], options["out_channels"], batch_first=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets a learnt number to its first value, and draws an LSTM's parameters."""
        if self.kind == "lstm":
            self.lstm.reset_parameters()
        if self.learnt is not None:
            with torch.no_grad():
                getattr(self, self.learnt).fill_(self.options[self.learnt])

    def peer(self) -> tuple[str, dict[str, Any]]:
        """The ``aggr`` and ``aggr_kwargs`` that PyG makes its module of."""
        return self.kind, self.options

    def _number(self, name: str) -> Any:
        return self.options[name] if self.learnt is None else getattr(self, name)

    def forward(self, near: Neighbours) -> Tensor:
        """[targets, F], or [batch, targets, F]."""
        channels, width = self.options.get("channels", 1), near.x.shape[-1]
        if channels not in (1, width):
            raise ValueError(
                f"{self.layer}: x has {width} features, the {self.learnt} of aggr {self.kind!r} {channels}"
            )
        return self._of(near).to(near.x.dtype)

    def _of(self, near: Neighbours) -> Tensor:
        if self.kind in REDUCTIONS:
            return near.reduced(self.kind)
        if self.kind == "var":
            return near.var(self.options["semi_grad"])
        if self.kind == "std":
            out = near.var(self.options["semi_grad"]).clamp(min=1e-5).sqrt()
            return out.masked_fill(out <= math.sqrt(1e-5), 0.0)
        if self.kind == "variancepreserving":
            return near.shared_by(near.entries().sqrt())
        if self.kind in ONE_BY_ONE:
            return self._one_by_one(near)
        return self._softmax(near) if self.kind == "softmax" else self._powermean(near)

    def _one_by_one(self, near: Neighbours) -> Tensor:
        if near.x.dim() != 2:
            raise ValueError(f"{self.layer}: aggr {self.kind!r} takes no batch, and x is {list(near.x.shape)}")
        if self.kind == "median":
            return median(near.adj, near.x, self.options["fill_value"])
        return product(near.adj, near.x) if self.kind == "mul" else last_state(near.adj, near.x, self.lstm)

    def _softmax(self, near: Neighbours) -> Tensor:
        x = near.x if near.x.dim() == 2 else near.x.transpose(0, 1)
        t = self._number("t")
        k = (x if isinstance(t, (int, float)) and t == 1 else x * t).flatten(1)
        k = k.detach() if self.options["semi_grad"] else k
        if near.of_edges:  # whose messages are stored already, and so may their weights be
            return aggregate(near.adj, edge_softmax(near.adj, k) * x, "sum")
        none = k.new_zeros(1, 1).expand(near.adj.shape[0], k.shape[1])
        out: Any = attention(near.adj, none, k, x.flatten(1)[..., None], score="additive", slope=1.0)
        return (
            out.view(out.shape[0], x.shape[1]) if x.dim() == 2 else out.view(out.shape[0], *x.shape[1:]).transpose(0, 1)
        )

    def _powermean(self, near: Neighbours) -> Tensor:
        p = self._number("p")
        if isinstance(p, (int, float)) and p == 1:
            return near.reduced("mean")
        ends = self.options["clamp_min"], self.options["clamp_max"]
        return near.of(near.wide().clamp(*ends).pow(p), "mean").clamp(*ends).pow(1.0 / p)


class Aggregations(torch.nn.Module):
    """Several aggregations side by side, or combined by a mode of ``MODES``."""

    def __init__(self, aggrs: list[Aggregation], mode: str) -> None:
        super().__init__()
        self.aggrs = torch.nn.ModuleList(aggrs)
        self.mode = mode
        self.kinds = [a.kind for a in aggrs]
        self.times = len(aggrs) if mode == "cat" else 1  # F of the result over F of x

    def reset_parameters(self) -> None:
        """Sets learnt numbers to their first values."""
        for aggr in self.aggrs:
            aggr.reset_parameters()  # type: ignore[operator]

    def peer(self) -> tuple[list[str], dict[str, Any]]:
        """The ``aggr`` and ``aggr_kwargs`` that PyG makes its module of."""
        options = [aggr.options for aggr in self.aggrs]
        return self.kinds, {"aggrs_kwargs": options, "mode": self.mode}

    def forward(self, near: Neighbours) -> Tensor:
        """[..., targets, F], times the number of aggregations where they stand side by side."""
        outs = [aggr(near) for aggr in self.aggrs]
        if len(outs) == 1:
            return outs[0]
        if self.mode == "cat":
            return torch.cat(outs, dim=-1)
        out = getattr(torch, self.mode)(torch.stack(outs), dim=0)
        return out if isinstance(out, Tensor) else out[0]


def resolve(layer: str, aggr: Any, options: dict[str, Any] | None) -> Aggregation | Aggregations:
    """What PyG's ``aggr`` and ``aggr_kwargs`` stand for: a name, a list, or a module of PyG's.

    Raises:
        ValueError: an aggregation or option that is not supported; the text says what is.
    """
    options = options or {}
    if isinstance(aggr, (tuple, list)):
        for name in options:
            if name not in ("aggrs_kwargs", "mode", "mode_kwargs"):
                raise ValueError(f"{layer}: a list of aggr has no option {name}")
        return _several(layer, aggr, **options)
    if type(aggr).__module__.startswith(PEER) and type(aggr).__name__ == "MultiAggregation":
        given = {"out_channels": aggr.out_channels} if aggr.out_channels is not None else None
        return _several(layer, list(aggr.aggrs), None, aggr.mode, given)
    return _one(layer, aggr, options)


def _one(layer: str, aggr: Any, options: dict[str, Any]) -> Aggregation:
    name = aggr
    if type(aggr).__module__.startswith(PEER):
        name = type(aggr).__name__
    kind = name.lower().translate({ord(c): None for c in "-_ "}) if isinstance(name, str) else ""
    kind = "sum" if kind == "add" else kind.removesuffix("aggregation")
    if kind not in OPTIONS:
        names = ", ".join(["add", *OPTIONS])
        raise ValueError(f"{layer}: aggr must be one of {names}, or a list of them, not {aggr!r}")
    for option in options:
        if option not in OPTIONS[kind]:
            raise ValueError(f"{layer}: aggr {aggr!r} has no option {option}")
    options = OPTIONS[kind] | (options if name is aggr else _options_of(kind, aggr))
    for number in ("t", "p", "clamp_min", "clamp_max", "fill_value"):
        if options.get(number) is not None:
            options[number] = require_number(layer, f"aggr {kind!r}: {number}", options[number])
    if options.get("p") == 0:
        raise ValueError(f"{layer}: aggr {kind!r}: p must not be 0, whose inverse is a power too")
    for size in ("channels",) if kind != "lstm" else ("in_channels", "out_channels"):
        require_size(layer, f"aggr {kind!r}: {size}", options.get(size, 1))
    if kind == "lstm" and options["in_channels"] != options["out_channels"]:
        raise ValueError(f"{layer}: aggr 'lstm' has as many out_channels as in_channels, not {options}")
    found = Aggregation(layer, kind, options)
    learn, semi, channels = (found.options.get(name) for name in ("learn", "semi_grad", "channels"))
    if kind == "softmax" and learn and semi:
        raise ValueError(f"{layer}: aggr 'softmax' cannot learn t with semi_grad")
    if channels is not None and channels != 1 and not learn:
        raise ValueError(f"{layer}: aggr {kind!r} has channels={channels}, which needs learn=True")
    return found


def _options_of(kind: str, peer: Any) -> dict[str, Any]:
    """The options that PyG's module was made with."""
    if kind == "std":
        peer = peer.var_aggr
    known = {"t": "_init_t", "p": "_init_p", "clamp_min": "min_value", "clamp_max": "max_value"}
    return {name: getattr(peer, known.get(name, name)) for name in OPTIONS[kind]}


def _several(
    layer: str, aggrs: Any, aggrs_kwargs: Any = None, mode: Any = "cat", mode_kwargs: Any = None
) -> Aggregations:
    if not aggrs:
        raise ValueError(f"{layer}: aggr must not be an empty list")
    if mode not in MODES or mode_kwargs:
        raise ValueError(f"{layer}: a list of aggr has one of the modes {', '.join(MODES)}, not {mode!r} {mode_kwargs}")
    if aggrs_kwargs is not None and len(aggrs_kwargs) != len(aggrs):
        raise ValueError(f"{layer}: aggrs_kwargs has {len(aggrs_kwargs)} elements for {len(aggrs)} of aggr")
    found = [_one(layer, a, o) for a, o in zip(aggrs, aggrs_kwargs or [{}] * len(aggrs), strict=True)]
    for k, one in enumerate(found):
        if one.kind in ("mean", "var", "std") and one.kind in [other.kind for other in found[:k]]:
            raise ValueError(f"{layer}: aggr has {one.kind!r} twice, of which PyG's layer computes the first otherwise")
        if one.kind == "lstm":
            raise ValueError(f"{layer}: aggr 'lstm' is supported alone, not in a list")
        if one.kind in ("var", "std") and one.options["semi_grad"]:
            raise ValueError(f"{layer}: semi_grad is supported for one aggr, not in a list")
    return Aggregations(found, mode)
