"""A base for layers of one's own, in the place of ``torch_geometric.nn.MessagePassing``.

This is the one file that imports torch_geometric, and ``fusedmm.nn`` loads it when MessagePassing is asked for.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

try:
    from torch_geometric.nn.conv import MessagePassing as Base
    from torch_geometric.utils import is_sparse
except ImportError as error:
    raise ImportError("fusedmm.nn.MessagePassing needs torch_geometric: pip install torch_geometric") from error

from fusedmm._lib import REDUCTIONS
from fusedmm.matrix.adapters import as_csr, is_edge_index
from fusedmm.matrix.csr import CSR
from fusedmm.nn.layer import HOOKS
from fusedmm.nn.lifted import Lifted, Pair, Unknown, reduced

Size = tuple[int | None, int | None] | None
ALIKE = ("aggregate", "edge_update", "edge_updater")  # what a layer leaves as it is to run fused
STAND_INS = {Lifted, Pair}


class MessagePassing(Base):  # type: ignore[misc]
    """``y[i] = reduce_j message(x_i, x_j, e_ij)`` as in PyG, in one fused pass where the message is simple enough.

    A layer is written as for PyG's class: ``forward`` calls ``propagate``, which calls ``message`` and ``update``. If
    the message is one of these shapes, no message of an edge is made:

    - features of the source, of the target or of the edge: ``x_j``, ``edge_attr``;
    - two of them added, subtracted, multiplied or divided, with as many axes: ``edge_weight.view(-1, 1) * x_j``,
      ``x_j - x_i``, ``(x_j + edge_attr)``;
    - with functions of each row on either: ``relu``, ``exp``, ``self.lin(x_j)``, products with constants, views.

    ``aggr`` is then "add", "sum", "mean", "max" or "min". Any other message, and a layer that replaces ``aggregate``,
    is computed by PyG's class, edge by edge; a warning says so once for each class, and why. So is what explainers and
    hooks watch, and what ``torch.compile`` traces, without a warning.

    Args:
        aggr, aggr_kwargs, flow, node_dim, decomposed_layers: as PyG's. Fused are ``flow`` "source_to_target" and
            ``decomposed_layers`` 1.

    To find the shape ``message`` is called with stand-ins for its tensors. It should only compute, and not ask whether
    they are a ``Tensor``, which they are not. PyG's class also computes a layer that keeps one, as in
    ``self.alpha = alpha``, and sparse matrices of torch for one with a ``message_and_aggregate``. A tensor given to
    ``propagate`` under a name without _i or _j belongs to edges if it has as many rows as there are edges.

    Raises:
        ImportError: torch_geometric is not installed.

    Source: Gilmer et al., "Neural Message Passing for Quantum Chemistry", 2017.

    Example:
        >>> class Weighted(fusedmm.nn.MessagePassing):
        ...     def forward(self, x, edge_index, edge_weight):
        ...         return self.propagate(edge_index, x=x, edge_weight=edge_weight)
        ...     def message(self, x_j, edge_weight):
        ...         return edge_weight.view(-1, 1) * x_j
        >>> edges, weight = torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.tensor([1.0, 2.0, 3.0])
        >>> Weighted(aggr="add")(torch.eye(3), edges, weight)
        tensor([[0., 0., 3.],
                [1., 2., 0.],
                [0., 0., 0.]])
    """

    _told: ClassVar[set[type]] = set()  # the classes of which a warning was given
    _own: ClassVar[str | None]  # a method that keeps a layer from running fused
    _wanted: ClassVar[tuple[dict[str, Any], dict[str, Any] | None]]  # what message and an update of its own ask for
    _by_edges: ClassVar[Any]  # PyG's propagate, as PyG makes it for a class

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own = next((name for name in ALIKE if getattr(cls, name) is not getattr(Base, name)), None)
        update = None if cls.update is Base.update else _defaults(cls.update, 2)
        cls._wanted = _defaults(cls.message, 1), update

    def _set_jittable_templates(self, *args: Any, **kwargs: Any) -> None:
        """Keeps what PyG would put in the place of ``propagate`` under another name."""
        cls = type(self)
        if "_by_edges" in vars(cls):
            return
        if "propagate" in vars(cls):  # one of the user's own
            cls._by_edges = Base.propagate
            return
        super()._set_jittable_templates(*args, **kwargs)
        made, own = vars(cls).get("_jinja_propagate", MessagePassing.propagate), MessagePassing.propagate
        cls._by_edges = Base.propagate if made is own else made
        cls._orig_propagate = cls._jinja_propagate = own
        if vars(cls).get("propagate") is made:
            del cls.propagate

    def propagate(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """Computes the layer's messages, their reduction and ``update``.

        Args:
            edge_index: integers [2, edges], or whatever ``fusedmm.as_csr`` takes.
            size: (sources, targets).
            kwargs: what ``message`` and ``update`` name: features by nodes, one tensor or a pair of those of sources
                and of targets, for names with _i and _j; anything else as it is.

        Raises:
            TypeError, ValueError: as PyG's, and as ``as_csr``'s.
        """
        own, why = vars(self), ""
        watched = self._explain or any([own.get(name) for name in HOOKS])
        if not watched and not torch.compiler.is_compiling():
            kept = [(b, b.clone()) for b in self.buffers()] if self._buffers or len(self._modules) > 1 else []
            try:
                return self._fused(edge_index, size, kwargs)
            except Unknown as error:
                why = str(error)
            except Exception as error:  # whatever a message makes of stand-ins; of other faults PyG's class tells below
                why = f"raised {type(error).__name__}: {error}"
            for buffer, before in kept:
                buffer.data.copy_(before)
        if isinstance(edge_index, CSR):
            size = size or (edge_index.shape[1], edge_index.shape[0])
            edge_index, val = edge_index.to_edge_index()
            kwargs = _valued(kwargs, val, False)
        by_edges = Base.propagate if self._explain else type(self)._by_edges
        found: Tensor = by_edges(self, edge_index, size=size, **kwargs)
        if why:
            self._tell(why)
        return found

    def _tell(self, why: str) -> None:
        cls = type(self)
        if cls not in MessagePassing._told:
            MessagePassing._told.add(cls)
            warnings.warn(f"{cls.__name__}: PyG computes its messages edge by edge, since it {why}", stacklevel=3)

    def _fused(self, edge_index: Any, size: Size, kwargs: dict[str, Any]) -> Tensor:
        """``propagate`` in one pass.

        Raises:
            Unknown: something that only PyG's class does.
        """
        reduce = "sum" if self.aggr == "add" else self.aggr
        if self._own is not None:
            raise Unknown(f"has a method {self._own} of its own")
        if not isinstance(reduce, str) or reduce not in REDUCTIONS:
            raise Unknown(f"has aggr={reduce!r}")
        if self.flow != "source_to_target" or self.decomposed_layers > 1 or self.node_dim not in (-2, 0):
            raise Unknown("has another flow, node_dim or decomposed_layers")
        if self.fuse and is_sparse(edge_index):
            raise Unknown("has a message_and_aggregate of its own, which takes sparse matrices")
        wanted, of_update = self._wanted
        sizes = _sizes(wanted, kwargs, size)
        if not is_edge_index(edge_index):
            adj = as_csr(edge_index)
        elif None in sizes:
            raise Unknown("has no features that tell the number of nodes")
        else:
            adj = as_csr(edge_index, size=sizes)  # type: ignore[arg-type]
        rows, cols = adj.shape
        if sizes[0] not in (None, cols) or sizes[1] not in (None, rows):
            raise Unknown("has features of another number of nodes than its graph")
        given = _valued(kwargs, adj.val, hasattr(edge_index, "sparse_sizes"))
        message = self.message(**{name: self._lifted(name, default, given, adj) for name, default in wanted.items()})
        if not STAND_INS.isdisjoint(map(type, vars(self).values())):
            raise Unknown("keeps what its message was given or makes")
        if self.node_dim == -2 and any(t.dim() != 2 for t in _stand_ins(message)):
            raise Unknown("returns messages that are not [edges, F]")
        if torch.is_autocast_enabled(adj.device.type):
            with torch.autocast(adj.device.type, enabled=False):
                out = reduced(adj.pattern(), message, reduce)
        else:
            out = reduced(adj.pattern(), message, reduce)
        if of_update is None:
            return out
        for name, default in of_update.items():
            if name not in kwargs and default is inspect.Parameter.empty:
                raise Unknown(f"has an update that asks for {name}")
        found: Tensor = self.update(out, **{name: kwargs.get(name, default) for name, default in of_update.items()})
        return found

    def _lifted(self, name: str, default: Any, given: dict[str, Any], adj: CSR) -> Any:
        """What ``message`` is called with for one of its parameters."""
        axis = {"_j": 0, "_i": 1}.get(name[-2:])
        value = given.get(name if axis is None else name[:-2], default)
        if value is inspect.Parameter.empty:
            raise Unknown(f"has a message that asks for {name}")
        if axis is not None:
            value = value[axis] if isinstance(value, (tuple, list)) else value
            return Lifted("uv"[axis], value, adj.nnz) if isinstance(value, Tensor) else value
        of_edges = isinstance(value, Tensor) and value.dim() and value.shape[0] == adj.nnz
        return Lifted("e", value, adj.nnz) if of_edges else value


def _defaults(method: Any, skip: int) -> dict[str, Any]:
    """The parameters of a method behind the first ones, and their defaults."""
    return {name: param.default for name, param in list(inspect.signature(method).parameters.items())[skip:]}


def _stand_ins(message: Any) -> list[Lifted]:
    return [message] if isinstance(message, Lifted) else [t for t in vars(message).values() if isinstance(t, Lifted)]


def _sizes(wanted: Any, kwargs: dict[str, Any], size: Size) -> tuple[int | None, int | None]:
    """The numbers of sources and targets that features tell, or else ``size``.

    Raises:
        Unknown: features of different numbers of nodes.
    """
    found: list[int | None] = [None, None] if size is None else list(size)
    for name in wanted:
        if name[-2:] not in ("_i", "_j"):
            continue
        axis, data = "ji".index(name[-1]), kwargs.get(name[:-2])
        pair = data if isinstance(data, (tuple, list)) else [data if at == axis else None for at in (0, 1)]
        for at, t in enumerate(pair):
            if isinstance(t, Tensor) and t.dim():
                if found[at] not in (None, t.shape[0]):
                    raise Unknown("has features of different numbers of nodes")
                found[at] = t.shape[0]
    sources, targets = found
    return targets if sources is None else sources, sources if targets is None else targets


def _valued(kwargs: dict[str, Any], val: Tensor | None, alike: bool) -> dict[str, Any]:
    """The arguments with a matrix's values as weights and features of edges, where none are given.

    Values [nnz] are no features, but for the matrices of torch_sparse, which PyG treats ``alike``.
    """
    if val is None:
        return kwargs
    own = {"edge_weight": val, "edge_attr": val if alike or val.dim() > 1 else None}
    return kwargs | {name: val for name, val in own.items() if kwargs.get(name) is None}
