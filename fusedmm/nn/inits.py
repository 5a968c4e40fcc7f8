"""Initial weights: the same draws in the same order as PyG's layers, so that a seed gives the same model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def glorot(weight: Tensor | None) -> None:
    """Uniform within sqrt(6 / (fan_in + fan_out)) of zero, over the last two dimensions (Glorot and Bengio, 2010)."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.size(-2) + weight.size(-1)))
        weight.uniform_(-bound, bound)


@torch.no_grad()
def kaiming_uniform(weight: Tensor, fan: int, a: float) -> None:
    """Uniform within sqrt(6 / ((1 + a^2) fan)) of zero (He et al., 2015)."""
    bound = math.sqrt(6 / ((1 + a**2) * fan))
    weight.uniform_(-bound, bound)


@torch.no_grad()
def uniform(size: int, weight: Tensor | None) -> None:
    """Uniform within 1 / sqrt(size) of zero."""
    if weight is not None:
        bound = 1.0 / math.sqrt(size)
        weight.uniform_(-bound, bound)


@torch.no_grad()
def zeros(weight: Tensor | None) -> None:
    """All zeros."""
    if weight is not None:
        weight.zero_()


def reset(module: Any) -> None:
    """Calls ``reset_parameters`` of a module, or of the nearest children that have one."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif isinstance(module, torch.nn.Module):
        for child in module.children():
            reset(child)
