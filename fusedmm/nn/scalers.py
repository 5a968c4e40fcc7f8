"""Several aggregations, each scaled by functions of the degree of its target."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.matrix.arguments import require_tensor
from fusedmm.matrix.csr import CSR
from fusedmm.nn.aggr import PEER, Aggregations, Neighbours, resolve

SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class ScaledAggregations(torch.nn.Module):
    """PyG's ``DegreeScalerAggregation`` of a list of aggregations.

    With d the number of a node's neighbours, and the means of d and of log(d + 1) over the training data, a scaler is

        identity         1                                      linear           d / mean d
        amplification    log(d + 1) / mean log                  inverse_linear   mean d / d, d at least 1
        attenuation      mean log / log(d + 1), d at least 1

    Args:
        layer: whose it is, for the text of errors.
        kinds: names of aggregations.
        scalers: some of ``SCALERS``.
        deg: [largest degree + 1], how many nodes have each degree.
        learn: whether the two means are parameters; else they are buffers.
    """

    avg_deg_lin: Tensor
    avg_deg_log: Tensor

    def __init__(self, layer: str, kinds: Any, scalers: Any, deg: Tensor, learn: bool) -> None:
        super().__init__()
        for name, given in (("aggregators", kinds), ("scalers", scalers)):
            if not isinstance(given, (tuple, list)) or not given:
                raise TypeError(f"{layer}: {name} must be a list of names, not {given!r}")
        for scaler in scalers:
            if scaler not in SCALERS:
                raise ValueError(f"{layer}: scalers must be some of {', '.join(SCALERS)}, not {scaler!r}")
        aggr = resolve(layer, list(kinds), None)
        assert isinstance(aggr, Aggregations)
        self.aggr, self.scalers = aggr, list(scalers)
        self.times = len(kinds) * len(scalers)
        require_tensor(f"{layer}: deg", deg)
        total = int(deg.sum()) if deg.dim() == 1 else 0
        if total <= 0:
            raise ValueError(f"{layer}: deg must be the numbers of nodes of each degree, not {deg!r}")
        counts, degrees = deg.to(torch.float), torch.arange(deg.numel(), device=deg.device)
        self.init_avg_deg_lin = float((degrees * counts).sum()) / total
        self.init_avg_deg_log = float(((degrees + 1).log() * counts).sum()) / total
        for name in ("avg_deg_lin", "avg_deg_log"):
            if learn:
                self.register_parameter(name, Parameter(torch.empty(1)))
            else:
                self.register_buffer(name, torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the means to those of the training data."""
        self.aggr.reset_parameters()
        with torch.no_grad():
            self.avg_deg_lin.fill_(self.init_avg_deg_lin)
            self.avg_deg_log.fill_(self.init_avg_deg_log)

    def peer(self) -> tuple[Any, None]:
        """PyG's module of the same, whose buffers are those of this one."""
        kind = sys.modules[PEER.removesuffix(".")].DegreeScalerAggregation
        made = kind(self.aggr.kinds, self.scalers, torch.ones(2, device="cpu"))
        for name in ("avg_deg_lin", "avg_deg_log"):
            made._buffers[name] = getattr(self, name)
        return made, None

    def forward(self, near: Neighbours, adj: CSR, towers: int, shift: Tensor | None) -> Tensor:
        """Aggregates, and scales what comes of it.

        Args:
            near: the neighbours' messages, of all towers side by side.
            adj: the graph, for the degrees.
            towers: number of towers.
            shift: [nodes, towers, F], what all messages into a node have in common and ``near`` lacks, or None.

        Returns:
            [nodes, towers, aggregations * scalers * F].
        """
        degree = adj.degree()[:, None, None].to(near.x.dtype)
        outs = [aggr(near).unflatten(1, (towers, -1)) for aggr in self.aggr.aggrs]
        if shift is not None:
            some = shift * (degree > 0)
            shifts = {"sum": shift * degree, "mean": some, "max": some, "min": some}
            outs = [out + shifts[k] if k in shifts else out for k, out in zip(self.aggr.kinds, outs, strict=True)]
        out = torch.cat(outs, -1)
        return torch.cat([self._scaled(scaler, out, degree) for scaler in self.scalers], -1)

    def _scaled(self, scaler: str, out: Tensor, degree: Tensor) -> Tensor:
        if scaler == "identity":
            return out
        if scaler == "amplification":
            return out * (torch.log(degree + 1) / self.avg_deg_log)
        if scaler == "attenuation":
            return out * (self.avg_deg_log / torch.log(degree.clamp(min=1) + 1))
        if scaler == "linear":
            return out * (degree / self.avg_deg_lin)
        return out * (self.avg_deg_lin / degree.clamp(min=1))
