"""The base of all layers, which makes PyG's tools take them for layers of PyG.

PyG's tools look for layers by ``isinstance(module, MessagePassing)``. So that class becomes the base of ``Layer``,
which is ours: at once where torch_geometric is loaded already, else when it is loaded, which a finder on
``sys.meta_path`` notices. fusedmm never imports it, and without it a layer is a plain module. Nothing of that class
takes part in what a layer computes. Our classes keep their identity, and so pickles and copies do not see the change.

Tools that watch or change messages, by ``explain`` or by a hook such as ``register_message_forward_hook``, need a
message on each edge, which our kernels do not make. While one is at work the layer computes as PyG's own layer does,
with the very same parameters, in its time and memory.

PyG's layers also read attributes when they are called, and call methods that a subclass may replace. Here the kernel is
chosen when a layer is made. What could no longer be honoured is refused by name.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fusedmm.matrix.csr import CSR

PEERS = "torch_geometric.nn.conv"
BASE = f"{PEERS}.message_passing"
METHODS = ("propagate", "message", "aggregate", "message_and_aggregate", "update", "edge_updater", "edge_update")
FIXED = ("aggr", "aggr_module", "flow", "node_dim", "decomposed_layers")
HOOKS: list[str] = []  # where PyG's class keeps the hooks of its methods; none before it is loaded


class _Guarded(type):
    """The class of layers' classes: it refuses a method of messages that is set on one after it was made."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in METHODS and cls is not Layer:
            raise TypeError(f"{cls.__name__}: {_no_messages(cls, name)}")
        super().__setattr__(name, value)


class Layer(torch.nn.Module, metaclass=_Guarded):
    """The base of all layers.

    Args:
        aggr: as PyG's attribute of that name, for those who read it.
        aggr_module: the layer's own aggregation, where it has one.
        node_dim: as PyG's attribute.
    """

    decomposed_layers = 1
    fuse = True  # as PyG's attribute, for those who read it

    def __init__(self, aggr: Any = "add", aggr_module: torch.nn.Module | None = None, node_dim: int = -2) -> None:
        torch.nn.Module.__init__(self)  # PyG's constructor sets up messages
        vars(self).update(aggr=aggr, flow="source_to_target", node_dim=node_dim)
        vars(self).update(_watched=False, _explain=None, _edge_mask=None, _loop_mask=None, _apply_sigmoid=True)
        if aggr_module is not None:
            self._modules["aggr_module"] = aggr_module

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in (*METHODS, "explain_message"):
            if getattr(cls, name, None) is not getattr(Layer, name, None):
                raise TypeError(f"{cls.__name__}: {_no_messages(cls, name)}")
        for name in FIXED:
            if hasattr(vars(cls).get(name), "__set__"):
                raise TypeError(f"{cls.__name__}: {name} is chosen when a layer is made, and can be no property")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in METHODS:
            raise TypeError(f"{type(self).__name__}: {_no_messages(type(self), name)}")
        if name in FIXED:
            now = getattr(self, name, None)
            if value is not now and value != now:
                hint = "flip(0) the edge_index instead" if name == "flow" else "make another layer"
                raise ValueError(f"{type(self).__name__}: {name} cannot be set to {value!r}, it is {now!r}; {hint}")
        super().__setattr__(name, value)

    __setstate__ = torch.nn.Module.__setstate__  # PyG's wants what its constructor has set up

    @property
    def explain(self) -> bool | None:
        """True while an explainer masks the messages; False keeps explainers away, as in PyG."""
        explain: bool | None = self._explain
        return explain

    @explain.setter
    def explain(self, explain: bool | None) -> None:
        if explain:
            self._watch("explain=True")
        self._explain = explain

    def _watch(self, what: str) -> None:
        """Has each call ask whether something watches its messages."""
        _loaded(type(self).__name__)
        if getattr(self, "cached", False):
            raise ValueError(f"{type(self).__name__}: {what} needs the graph of each call: set cached to False")
        for name in HOOKS:
            vars(self).setdefault(name, OrderedDict())
        self._watched = True

    def is_watched(self) -> bool:
        """Whether something still watches the messages."""
        self._watched = bool(self._explain) or any(vars(self).get(name) for name in HOOKS)
        return self._watched

    def by_messages(self, x: Any, edge_index: Any, *args: Any) -> Any:
        """What PyG's layer of this name returns, with the parameters, maps, hooks and masks of this one.

        Raises:
            TypeError: a graph in a form that PyG's layer does not know.
            ValueError: torch_geometric is not loaded.
        """
        kind = _kind(type(self))
        if isinstance(x, CSR):
            raise TypeError(f"{kind}: an explainer or a hook of messages needs dense features: give x.to_dense()")
        if not isinstance(edge_index, Tensor) and not hasattr(edge_index, "sparse_sizes"):
            form = type(edge_index).__name__
            raise TypeError(f"{kind}: an explainer or a hook of messages needs an edge_index or adj_t, not a {form}")
        base = _loaded(kind).MessagePassing
        peer_class = getattr(sys.modules[PEERS], kind)
        peer = peer_class.__new__(peer_class)
        own: Any = self._modules.get("aggr_module")
        aggr, options = (self.aggr, None) if own is None else own.peer()
        base.__init__(peer, aggr, aggr_kwargs=options, node_dim=self.node_dim)
        aggr_module = peer.aggr_module
        for name, value in () if own is None else own.named_parameters():
            prefix, _, leaf = name.rpartition(".")
            aggr_module.get_submodule(prefix)._parameters[leaf] = value
        if own is not None and "lstm" in own._modules:  # which keeps its parameters in another place too
            aggr_module._modules["lstm"] = own._modules["lstm"]
        attributes = vars(peer)
        attributes.update(vars(self), _explain=None, _cached_edge_index=None, _cached_adj_t=None)
        attributes["_modules"] = {**self._modules, "aggr_module": aggr_module}
        for name in self._parameters:  # an attribute of that name would hide it, as of a mask that is one
            attributes.pop(name, None)
        peer.explain = self._explain
        return peer_class.forward(peer, x, edge_index, *args)


def _kind(cls: type) -> str:
    """The layer that a class is, or is derived from."""
    return next(c.__name__ for c in cls.__mro__ if c.__module__.startswith("fusedmm.nn."))


def _no_messages(cls: type, name: str) -> str:
    return f"{name} is never called, since no messages are made: derive from torch_geometric.nn.{_kind(cls)} for it"


def _loaded(layer: str) -> ModuleType:
    if BASE not in sys.modules:
        raise ValueError(f"{layer}: what watches messages needs torch_geometric, which is not imported")
    return sys.modules[BASE]


def _absent(name: str) -> Callable[..., Any]:
    def method(self: Layer, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: {_no_messages(type(self), name)}")

    return method


for _name in METHODS:
    setattr(Layer, _name, _absent(_name))


# ---- MessagePassing becomes the base ----


def _watching(register: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(register)
    def registers(self: Layer, hook: Callable[..., Any]) -> Any:
        self._watch("a hook of messages")
        return register(self, hook)

    return registers


def _join(module: ModuleType) -> None:
    """Makes PyG's MessagePassing the base of Layer, and so of the layers that exist already."""
    base = module.MessagePassing
    Layer.__bases__ = (base,)
    for name, register in vars(base).items():
        if name.startswith("register_"):
            setattr(Layer, name, _watching(register))
            HOOKS.append(f"_{name.removeprefix('register_')}s")


class _Finder(MetaPathFinder):
    """A finder that finds nothing itself; it has ``_join`` called once PyG's module of MessagePassing is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != BASE:
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            _join(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if BASE in sys.modules:
    _join(sys.modules[BASE])
else:
    sys.meta_path.insert(0, _Finder())
