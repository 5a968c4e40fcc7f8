"""Swaps PyG's layers within a model for ours, by type and without importing PyG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

import torch
from torch.nn import Module
from torch.nn.parameter import UninitializedParameter

from fusedmm._torch_compat import hooks_of
from fusedmm.matrix.arguments import require_flags
from fusedmm.nn.aggr import FUSED
from fusedmm.nn.layer import BASE, PEERS, Layer
from fusedmm.nn.linear import Linear
from fusedmm.nn.peers import LAYERS

OWN = "fusedmm.nn.message_passing.MessagePassing"
PEER, PEER_LINEAR = f"{PEERS}.", "torch_geometric.nn.dense.linear"
PEER_PARAMETERS = "torch_geometric.nn.parameter_dict"
WHOLE = ("nn", "act", "mlp", "msg_norm", "k_lin")  # parts of a layer that ours takes as they are
CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterDict, torch.nn.Sequential)
MAPS = ("Linear", "HeteroLinear", "HeteroDictLinear")
ACTIVATIONS = "torch.nn.modules.activation"
LOST = (
    "with explainers or hooks of messages these layers compute as PyG's do, in the time and memory of PyG's; where "
    "cached is set both are refused. torch.jit is refused. So are aggr, flow, node_dim, decomposed_layers or a method "
    "that is set later"
)

M = TypeVar("M", bound=Module)  # what stands in the place of a layer has its arguments and attributes


@dataclass
class Conversion:
    """What ``convert`` did, where it is asked for by ``report=True``.

    Attributes:
        model: the model; another object than the one given only where that was itself a layer.
        swapped: what stands now in the place of a layer, by the layer's name within the model.
        left: why a layer of PyG stays, by its name.

    Example:
        >>> fusedmm.nn.convert(torch.nn.Linear(2, 2), report=True).swapped
        {}
    """

    model: Module
    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name or 'the model'}: now fusedmm.nn.{layer}" for name, layer in self.swapped.items()]
        lines += [LOST] if lines else []
        lines += [f"{name or 'the model'}: left, {reason}" for name, reason in self.left.items()]
        return "\n".join(lines or ["no layers of torch_geometric"])


@overload
def convert(model: M, report: Literal[False] = ...) -> M: ...
@overload
def convert(model: Module, report: Literal[True]) -> Conversion: ...
@overload
def convert(model: Module, report: bool) -> Module | Conversion: ...
def convert(model: Module, report: bool = False) -> Module | Conversion:
    """Puts our layers in the place of PyG's within a model.

    Layers that ``fusedmm.nn`` has too are swapped in place. The new layers hold the very parameters of the
    old ones, so that values, names in ``state_dict``, optimisers and ties between layers stay what they were.
    What cannot be swapped without changing what the model computes is left: other layers, subclasses, options
    we do not have, layers with hooks. A ``cached`` layer keeps the first graph that it sees after the
    conversion.

    What is lost: explainers, and whatever else masks messages or hooks into them, make our layers compute as PyG's
    do, in the time and memory of those, and do so no more where ``cached`` is set. Attributes that were set on a layer
    and are none of its options stay with the old one. So does a reference to a layer that is kept elsewhere than among
    submodules, as in a list: it is PyG's layer still, with the same parameters. The new layers refuse another ``aggr``,
    ``flow``, ``node_dim``, ``decomposed_layers`` or method that is set later. And ``torch.jit`` (trace and script) does
    not take them; ``torch.compile`` and ``torch.export`` do. The table in docs/pyg.md goes through PyG's tools.

    Args:
        model: any module; it is changed.
        report: whether to say what was swapped and what was left.

    Returns:
        The model, another object than the one given only where that was itself a layer. With ``report=True`` a
        Conversion: the model, what was swapped, and what was left and why. Printed, it is a report.

    Raises:
        TypeError: not a module, or a report that is neither True nor False.

    Example:
        >>> model = fusedmm.convert(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        >>> print(fusedmm.convert(model, report=True))
        no layers of torch_geometric
    """
    if not isinstance(model, Module):
        raise TypeError(f"convert: model must be a torch.nn.Module, not {type(model).__name__}")
    require_flags("convert", report=report)
    done = Conversion(model)
    known: dict[Module, Module] = {}  # a layer that stands in several places is swapped for one

    def visit(module: Module, name: str) -> Module:
        if module in known:
            if known[module] is not module:
                done.swapped[name] = type(known[module]).__name__
            return known[module]
        found = known[module] = _swapped(module, name, done)
        for key, child in found._modules.items():
            if child is not None:
                found._modules[key] = visit(child, f"{name}.{key}" if name else key)
        return found

    done.model = visit(model, "")
    return done if report else done.model


def _swapped(module: Module, name: str, done: Conversion) -> Module:
    """Our layer for module, or module itself where there is none."""
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__]
    if isinstance(module, Layer) or OWN in kinds or not any(kind.startswith(BASE) for kind in kinds):
        return module
    make = LAYERS.get(kinds[0].removeprefix(PEER))
    try:
        if make is None:
            parents = [kind for kind in kinds[1:] if kind.removeprefix(PEER) in LAYERS]
            base = f"a subclass of {parents[0].rpartition('.')[2]}, whose changes would be lost" if parents else ""
            none = f"there is no {type(module).__name__} here"
            if not kinds[0].startswith("torch_geometric."):
                none = "none of PyG's: its base could be fusedmm.nn.MessagePassing"
            raise ValueError(base or none)
        _require_plain(module)
        with torch.device("meta"):  # draws nothing, takes no memory
            layer = make(module)
        _move_parameters(layer, module)
    except (AttributeError, TypeError, ValueError) as error:
        done.left[name] = str(error)
        return module
    layer.explain = getattr(module, "explain", None)  # False, where explainers are to keep away
    done.swapped[name] = type(layer).__name__
    return layer.train(module.training)


def _require_plain(peer: Any) -> None:
    """Refuses a layer that has hooks or was changed by hand."""
    if getattr(peer, "explain", None):
        raise ValueError("an explainer is at work on it")
    if getattr(peer, "decomposed_layers", 1) > 1:
        raise ValueError("decomposed_layers is not supported")
    if FUSED.get(str(peer.aggr), "") not in type(peer.aggr_module).__name__.lower():
        raise ValueError(f"its aggr {peer.aggr!r} is not what its aggr_module computes")
    if any(name.endswith("_hooks") and value for name, value in vars(peer).items()):
        raise ValueError("it has hooks")
    for name, part in peer.named_modules():
        kind, first = type(part), name.partition(".")[0]
        if first == "aggr_module" and any(hooks_of(part, when) for when in ("forward", "forward_pre")):
            raise ValueError("its aggr_module has hooks")
        if first in ("aggr_module", *WHOLE):
            continue
        if getattr(part, "_compiled_call_impl", None):
            raise ValueError("it is compiled: convert it before")
        if patched := [name for name, value in vars(part).items() if callable(value) and hasattr(kind, name)]:
            raise ValueError(f"its {patched[0]} is not that of its class")
        if not name:
            continue
        is_map = kind.__module__ == PEER_LINEAR and kind.__name__ in MAPS
        if not (is_map or kind in CONTAINERS or kind.__module__ == ACTIVATIONS or kind.__module__ == PEER_PARAMETERS):
            raise ValueError(f"its {name} is a {kind.__name__} of {kind.__module__}")
        if any(hooks_of(part, when) for when in ("forward", "backward", "backward_pre")) or _watched(part):
            raise ValueError(f"its {name} has hooks")


def _watched(linear: Any) -> bool:
    """Whether a map has hooks that run before it, other than the one that waits for the first input."""
    lazy = getattr(getattr(linear, "_hook", None), "id", None)
    return any(key != lazy for key in hooks_of(linear, "forward_pre"))


def _move_parameters(layer: Module, peer: Any) -> None:
    """Gives layer the parameters and buffers of peer themselves, and the parts that it takes whole."""
    for part in WHOLE:
        if part in peer._modules:
            layer._modules[part] = peer._modules[part]
    for kind, of in (("parameters", Module.named_parameters), ("buffers", Module.named_buffers)):
        ours, theirs = (dict(of(module, remove_duplicate=False)) for module in (layer, peer))
        if ours.keys() != theirs.keys():
            wanted = f"not {', '.join(ours)}" if ours else "and ours has none"
            raise ValueError(f"its {kind} are {', '.join(theirs) or 'none'}, {wanted}")
        for name, value in theirs.items():
            prefix, _, leaf = name.rpartition(".")
            owner = layer.get_submodule(prefix)
            lazy = any(isinstance(t, UninitializedParameter) for t in (value, ours[name]))
            if not lazy and value.shape != ours[name].shape:
                raise ValueError(f"its {name} is {list(value.shape)}, not {list(ours[name].shape)}")
            setattr(owner, leaf, value)
            if isinstance(owner, Linear) and leaf == "weight":
                owner.in_channels = -1 if lazy and isinstance(value, UninitializedParameter) else value.shape[1]
