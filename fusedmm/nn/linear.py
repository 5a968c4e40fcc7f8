"""A linear map with PyG's initial weights, whose input size may be left open until the first input."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedParameter

from fusedmm._torch_compat import is_hooked
from fusedmm.matrix.csr import CSR
from fusedmm.nn import inits
from fusedmm.ops.spmm import spmm


def parameter_of(module: torch.nn.Module, name: str) -> Any:
    """A module's parameter, or what stands in its place, as after pruning, without the search that its name costs."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


class Linear(torch.nn.Module):
    """``x W^T + b``.

    Args:
        in_channels: size of x's last dimension, or -1 to take it from the first input.
        out_channels: size of the result's last dimension.
        bias: whether to learn b.
        weight_initializer: "glorot", or None for uniform within 1 / sqrt(in_channels).
        bias_initializer: "zeros", or None for uniform within 1 / sqrt(in_channels).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        weight_initializer: str | None = None,
        bias_initializer: str | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.weight_initializer = weight_initializer
        self.bias_initializer = bias_initializer
        self.weight = Parameter(torch.empty(out_channels, in_channels)) if in_channels > 0 else UninitializedParameter()
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters; nothing while the input size is unknown."""
        if self.in_channels <= 0:
            return
        if self.weight_initializer == "glorot":
            inits.glorot(self.weight)
        else:
            inits.kaiming_uniform(self.weight, self.in_channels, math.sqrt(5))
        if self.bias_initializer == "zeros":
            inits.zeros(self.bias)
        else:
            inits.uniform(self.in_channels, self.bias)

    def forward(self, x: Any) -> Tensor:
        """The map of x, [..., in_channels] to [..., out_channels]; of a ``CSR`` the product with its entries alone."""
        weight = self.weight_for(x)
        if isinstance(x, Tensor):
            return torch.nn.functional.linear(x, weight, self.bias)
        out = spmm(x, weight.t())
        return out if self.bias is None else out + self.bias

    def weight_for(self, x: Any) -> Tensor:
        """The weight, which is drawn here where x is the first input."""
        if self.in_channels <= 0 and isinstance(self.weight, UninitializedParameter):
            with torch.inference_mode(False), torch.no_grad():  # else it could never be trained
                self._open(x.size(-1))
                self.reset_parameters()
        weight: Tensor = parameter_of(self, "weight")
        return weight

    def parts_for(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of a map that ``is_plain``."""
        return self.weight_for(x), parameter_of(self, "bias")

    def _open(self, in_channels: int) -> None:
        self.in_channels = in_channels
        self.weight.materialize((self.out_channels, in_channels))  # type: ignore[union-attr]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if not isinstance(self.weight, UninitializedParameter):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            return
        destination[prefix + "weight"] = self.weight  # there is nothing to detach yet
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if isinstance(weight, UninitializedParameter):
            self.in_channels, self.weight = -1, UninitializedParameter()
        elif weight is not None and isinstance(self.weight, UninitializedParameter):
            self._open(weight.size(-1))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"


JOINED = 2**24  # numbers up to which one product and the copy of its gradients cost less than the calls they save


def maps_of(x: Tensor, *maps: Linear) -> list[Tensor]:
    """Several linear maps of one x: where it pays as one product, whose results lie side by side.

    Each is what ``map(x)`` gives, to rounding.
    """
    one = joined(x, *maps) if len(maps) > 1 else None
    if one is None:
        return [lin(x) for lin in maps]
    return list(torch.nn.functional.linear(x, *one).split([lin.out_channels for lin in maps], -1))


def joined(x: Tensor, *maps: Linear) -> tuple[Tensor, Tensor | None] | None:
    """Weights and biases one below the other, where one product with them pays, else None.

    One product, its two gradients and the copy of the results' gradients to one place stand for as many products
    as there are maps and the sums of x's gradients. A small graph waits for calls; a large one for bytes, which
    the copy reads and writes once, and each sum of two thrice. ``attend_maps`` copies nothing and keeps the limit:
    beyond it calls no longer decide.
    """
    if not all(goes_unseen(x, lin) for lin in maps):
        return None
    numbers = sum(lin.out_channels for lin in maps)
    if x.shape[0] * numbers > JOINED and 2 * numbers > 3 * (len(maps) - 1) * x.shape[-1]:
        return None
    biases = [lin.bias for lin in maps]  # a module searches for a part whenever it is named
    given: list[Tensor] = [b for b in biases if b is not None]
    if given and len(given) < len(maps):
        return None
    weights: list[Tensor] = [lin.weight_for(x) for lin in maps]
    if len({t.dtype for t in (*weights, *given)}) > 1:  # cat would hide it
        return None
    return torch.cat(weights), torch.cat(given) if given else None


def goes_unseen(x: Tensor | CSR, lin: Linear | None) -> bool:
    """Whether the map may be replaced by a product with its weight, without anybody noticing that it was not called."""
    if torch.compiler.is_compiling() or isinstance(x, CSR):
        return False
    return x.layout == torch.strided and is_plain(lin)


def is_plain(lin: Linear | None) -> bool:
    """Whether the map is a product with its weight and nothing else: it has no hooks and no other forward."""
    return type(lin) is Linear and "forward" not in lin.__dict__ and not is_hooked(lin)
