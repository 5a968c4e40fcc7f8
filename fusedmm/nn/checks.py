"""What the layers refuse before they compute or open a size: each error names the argument and its value."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from fusedmm._torch_compat import is_tracing
from fusedmm.matrix import arguments
from fusedmm.matrix.arguments import FLOATS, require_data, require_strided, require_tensor, require_values
from fusedmm.matrix.csr import CSR
from fusedmm.nn.linear import Linear

COMPRESSED = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
MAPPED = COMPRESSED[:3]  # what a linear map takes besides dense tensors
SPARSE = (
    "; sparse features are taken as a CSR by GCNConv, GATConv, GATv2Conv and TransformerConv, and by SAGEConv and "
    "GraphConv that sum or average; elsewhere multiply by a first weight yourself: fusedmm.spmm(X, W)"
)
BASE_OPTIONS = {"aggr_kwargs": None, "flow": "source_to_target", "node_dim": -2, "decomposed_layers": 1}


def require_options(layer: str, options: dict[str, Any], node_dim: int = -2) -> None:
    """Refuses options of PyG's base class whose values are not the defaults, or the node_dim that PyG's layer has."""
    for name, value in options.items():
        if name == "node_dim" and type(value) is int and value == node_dim:
            continue
        if name not in BASE_OPTIONS:
            raise ValueError(f"{layer}: the option {name} is not supported")
        if value != BASE_OPTIONS[name] and not (name == "aggr_kwargs" and value == {}):
            hint = "; flip(0) the edge_index instead" if name == "flow" else ""
            raise ValueError(f"{layer}: {name} must be {BASE_OPTIONS[name]!r}, not {value!r}{hint}")


def require_size(layer: str, name: str, value: Any, lazy: bool = False) -> None:
    """A positive integer, or -1 where the first input may tell.

    Raises:
        TypeError: no integer.
        ValueError: another integer.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{layer}: {name} must be an integer, not {value!r}") from None
    if not 1 <= number < 2**31 and not (lazy and number == -1):
        raise ValueError(f"{layer}: {name} must be positive and below 2^31{', or -1' if lazy else ''}, not {number}")


def require_number(layer: str, name: str, value: Any) -> float:
    """A real number as a float, which torch takes of any size, where it does not take every integer.

    Raises:
        TypeError: something else.
        ValueError: a number that float32 does not have.
    """
    return arguments.require_number(f"{layer}: {name}", value, torch.float32)


def require_channels(layer: str, in_channels: Any, out_channels: Any, lazy: bool = True) -> tuple[int, int]:
    """F of sources and of targets; the sizes are positive, or -1 for those of inputs where they may be open."""
    pair = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(pair) != 2:
        raise ValueError(f"{layer}: in_channels must be an integer or a pair, not {in_channels!r}")
    for size in pair:
        require_size(layer, "in_channels", size, lazy)
    require_size(layer, "out_channels", out_channels)
    return pair[0], pair[1]


def require_dropout(layer: str, dropout: Any) -> None:
    """A probability.

    Raises:
        TypeError: no number.
        ValueError: a number outside [0, 1].
    """
    require_number(layer, "dropout", dropout)
    if not 0 <= dropout <= 1:
        raise ValueError(f"{layer}: dropout must be in [0, 1], not {dropout}")


def require_steps(layer: str, steps: Any) -> None:
    """How many times a layer multiplies by its matrix: K, which may be 0.

    Raises:
        TypeError: no integer.
        ValueError: a negative one, or one of 2^31 or more.
    """
    if isinstance(steps, int) and steps < 0:
        raise ValueError(f"{layer}: K must be 0 or more and below 2^31, not {steps}")
    if not isinstance(steps, int) or steps:
        require_size(layer, "K", steps)


def require_attention(layer: str, out_channels: Any, heads: Any, dropout: Any, edge_dim: Any) -> None:
    """Checks the options that the attention layers share."""
    require_size(layer, "heads", heads)
    require_size(layer, "heads * out_channels", operator.index(heads) * operator.index(out_channels))
    require_dropout(layer, dropout)
    if edge_dim is not None:
        require_size(layer, "edge_dim", edge_dim, lazy=True)


def require_nodes(
    layer: str, x: Any, source: Any = None, target: Any = None, *, batch: bool = False, times: int = 1,
    sparse: bool = False,
) -> None:  # fmt: skip
    """Node features are floating [nodes, F], of sources at least, with the F of the maps that they go to.

    Args:
        layer: for the text of errors.
        x: features, or a pair of those of sources and of targets or None.
        source, target: what maps them; another module than ours checks for itself, as None does.
        batch: whether [batch, nodes, F] will do.
        times: how many results of F features the map of sources takes.
        sparse: whether x may be a ``CSR`` with a number for each entry; a pair consists of tensors.

    Raises:
        RuntimeError: torch.jit.trace is at work, which has no place for a CSR and fails without a name, or keeps
            one graph for all.
        TypeError: no tensor, no floating dtype, a dtype or device that is not the parameters'.
        ValueError: other dimensions, or another F.
    """
    if is_tracing():
        raise RuntimeError(f"{layer}: torch.jit.trace does not take this layer: use torch.export or torch.compile")
    if isinstance(x, (tuple, list)):
        if len(x) != 2:
            raise ValueError(f"{layer}: x must be a tensor or a pair, not {len(x)} of them")
        _require_features(layer, "x[0]", x[0], source, batch, times)
        if x[1] is not None:
            _require_features(layer, "x[1]", x[1], target, batch, 1)
        return
    if sparse and isinstance(x, CSR):
        _require_sparse(layer, x, source)
        return
    _require_features(layer, "x", x, source, batch, times)
    if type(target) is Linear and type(source) is Linear and target is not source:  # the rest is known
        require_mapped(layer, "x", x, target, "in_channels")
    elif target is not None and target is not source:
        _require_features(layer, "x", x, target, batch, 1)


def fit(x: Any, graph: Any, *maps: Any) -> bool:
    """Whether all is as it should be without a look at each: a square ``CSR`` with dense features [nodes, F] of its
    nodes that the maps, which are of ours, take as they are. Where it is not, ``require_nodes`` says why, if at all."""
    if type(graph) is not CSR or not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or is_tracing():
        return False
    nodes, shape, dtype = graph.n_cols, x.shape, x.dtype
    if dtype not in FLOATS or graph.ptr.shape[0] != nodes + 1:
        return False
    for lin in maps:
        weight = lin._parameters.get("weight") if type(lin) is Linear else None
        if weight is None or shape != (nodes, lin.in_channels) or weight.dtype != dtype or weight.device != x.device:
            return False
    return True


def require_sizes(layer: str, name: str, x: Tensor, size: int, weight: Tensor) -> None:
    """Node features of the size of in_channels, for layers whose maps do not tell it, and like their parameters.

    Raises:
        TypeError: a dtype or device that is not the parameters'.
        ValueError: another F.
    """
    if x.shape[-1] != size:
        raise ValueError(f"{layer}: {name} has {x.shape[-1]} features, in_channels is {size}")
    require_like(layer, name, x, weight)


def _require_features(layer: str, name: str, x: Any, lin: Any, batch: bool, times: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: {name} must be a tensor, not {type(x).__name__}{_hint(x)}")
    if type(lin) is not Linear or x.layout not in MAPPED:
        require_features(layer, name, x)
    dim = x.dim()
    if dim != 2 and not (batch and dim == 3):
        shapes = "[nodes, F] or [batch, nodes, F]" if batch else "[nodes, F]"
        raise ValueError(f"{layer}: {name} must be {shapes}, not {list(x.shape)}")
    require_mapped(layer, name, x, lin, "in_channels", times)


def require_features(layer: str, name: str, x: Tensor) -> None:
    """Requires dense features.

    Raises:
        TypeError: sparse ones, or those of another kind of device.
    """
    if x.layout in COMPRESSED:
        raise TypeError(f"{layer}: {name} must be one dense tensor, not {x.layout}{SPARSE}")
    if x.is_nested or not (x.is_cpu or x.is_cuda):  # to make the text costs more than to ask
        require_data(f"{layer}: {name}", x)


def _hint(x: Any) -> str:
    """What there is for sparse features of any kind."""
    return SPARSE if isinstance(x, CSR) or hasattr(x, "tocsr") or hasattr(x, "sparse_sizes") else ""


def _require_sparse(layer: str, x: CSR, lin: Any) -> None:
    """Requires a matrix with values [nnz], like the parameters of a map of ours."""
    if type(x) is not CSR or type(lin) is not Linear:
        raise TypeError(f"{layer}: x must be a tensor here, not {type(x).__name__}{SPARSE}")
    if x.val is None or x.val.dim() != 1:
        found = "a pattern" if x.val is None else f"one with values {list(x.val.shape)}"
        raise ValueError(f"{layer}: x must have a value for each entry, not be {found}; x.with_values gives it some")
    require_mapped(layer, "x", x, lin, "in_channels")


def require_mapped(layer: str, name: str, x: Any, lin: Any, size: str, times: int = 1) -> None:
    """x is floating and fits the map, where it is one of ours; size is what the layer calls the map's F.

    Raises:
        TypeError: a dtype or device that is not the parameters'.
        ValueError: another F.
    """
    if x.dtype not in FLOATS:
        raise TypeError(f"{layer}: {name} must be float32, float64, float16 or bfloat16, not {x.dtype}")
    if type(lin) is not Linear:
        return
    if x.shape[-1] * times != lin.in_channels and lin.in_channels > 0:
        raise ValueError(f"{layer}: {name} has {x.shape[-1]} features, {size} is {lin.in_channels // times}")
    weight = lin._parameters.get("weight")  # not there, where it is a function of others, as in pruning
    if weight is None:
        return
    require_like(layer, name, x, weight)


def require_like(layer: str, name: str, x: Any, weight: Tensor) -> None:
    """x has the device and, but for autocast, the dtype of a parameter.

    Raises:
        TypeError: it has another.
    """
    if x.device != weight.device:
        raise TypeError(f"{layer}: {name} is on {x.device}, the parameters on {weight.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{layer}: {name} is {x.dtype}, the parameters {weight.dtype}")


def require_edge_attr(layer: str, attr: Any, nnz: int, lin: Any, flat: bool = True) -> Tensor:
    """Edge features [nnz, D], which may be [nnz] for D = 1 where flat says so, as [nnz, D] with the D of their map.

    Raises:
        TypeError: no tensor, or what ``require_mapped`` refuses.
        ValueError: other dimensions, another number of edges, or another D.
    """
    if attr is not None:
        require_tensor(f"{layer}: edge_attr", attr)
        require_data(f"{layer}: edge_attr", attr)
    if attr is None or not (attr.dim() == 2 or (flat and attr.dim() == 1)) or attr.size(0) != nnz:
        found = "None" if attr is None else list(attr.shape)
        raise ValueError(f"{layer}: edge_attr must be [{nnz}, D], one row per edge, not {found}")
    attr = attr if attr.dim() == 2 else attr[:, None]
    require_mapped(layer, "edge_attr", attr, lin, "edge_dim")
    return attr


def require_edge_weight(layer: str, weight: Any, adj: CSR) -> Tensor:
    """Weights [nnz] or [nnz, 1], as [nnz].

    Raises:
        TypeError: no floating tensor.
        ValueError: another shape.
    """
    name, nnz = f"{layer}: edge_weight", adj.nnz
    require_tensor(name, weight)
    if not weight.dtype.is_floating_point:
        raise TypeError(f"{name} must be floating-point, not {weight.dtype}")
    require_strided(name, weight)
    if weight.shape not in ((nnz,), (nnz, 1)):
        raise ValueError(f"{name} must be [{nnz}] or [{nnz}, 1], not {list(weight.shape)}")
    require_values(weight, nnz, adj.device, name)
    return weight if weight.dim() == 1 else weight[:, 0]
