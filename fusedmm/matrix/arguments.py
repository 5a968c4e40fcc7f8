"""Checks of what callers give: sizes, devices, numbers and tensors, each refused by its name."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import DEVICES
from fusedmm.matrix.structure import INTEGERS, inside

ORDERS = {
    "shape": "; shape is (rows, cols), and an edge_index takes size, (sources, targets), which is (cols, rows)",
    "size": "; size is (sources, targets), which is (cols, rows) of a shape",
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def require_shape(shape: Any, name: str = "shape") -> tuple[int, int]:
    """Returns two sizes, whatever kind of integers they are."""
    try:
        first, second = shape
        pair = operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers, not {shape!r}{ORDERS.get(name, '')}") from None
    if not 0 <= pair[0] < 2**31 or not 0 <= pair[1] < 2**31:
        raise ValueError(f"{name} {pair}: both must be in [0, 2^31)")
    return pair


def require_size(size: Any) -> tuple[int, int]:
    """Returns (sources, targets) of an edge_index; one integer is both.

    Raises:
        TypeError, ValueError: something else, or beyond int32.
    """
    if isinstance(size, (tuple, list)):
        return require_shape(size, "size")
    try:
        nodes = operator.index(size)
    except TypeError:
        hint = "; shape is (rows, cols), which is (targets, sources)"
        raise TypeError(f"size must be an integer or (sources, targets), not {size!r}{hint}") from None
    return require_shape((nodes, nodes), "size")


def require_device(name: str, device: Any) -> torch.device:
    """Returns a device that is there and that there are kernels for.

    Raises:
        TypeError: neither a device, nor a name or number of one.
        ValueError: no device, one that is neither cpu nor cuda, or a CUDA device that torch does not see.
    """
    if not isinstance(device, (torch.device, str, int)):
        raise TypeError(f"{name} must be a device or its name, not {device!r}")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"{name}: there is no {device!r}; cpu, cuda and cuda:0 are names of devices") from None
    if found.type not in DEVICES:
        raise ValueError(f"{name} must be cpu or cuda, not {str(device)!r}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{name}: {str(device)!r} is not there; torch sees {torch.cuda.device_count()} CUDA devices")
    return found if found.type == "cuda" else torch.device("cpu")


def refuse(function: str, others: dict[str, Any], **names: str) -> None:
    """Refuses arguments that a function does not have; names: what it has in the place of others' names for it.

    Raises:
        TypeError: there is one, and the text says what to give.
    """
    for name in others:
        hint = names.get(name, "")
        raise TypeError(f"{function}() has no argument {name!r}{hint and '; give ' + hint}")


def one_fill(function: str, fill_value: Any, fill: Any, default: Any) -> Any:
    """``fill_value``, or ``fill``, which is another name of it.

    Raises:
        TypeError: both are given.
    """
    if fill is None:
        return fill_value
    if fill_value is not default:
        raise TypeError(f"{function}: give fill_value or fill, which is another name of it, not both")
    return fill


_SHAPE = "shape=(rows, cols), which is (targets, sources)"
_SIZE = "size=, the number of nodes or (sources, targets), which is (cols, rows)"
_OF_VALUES = {"dtype": "values of that dtype; integers and booleans become torch's default dtype"}
OF_A_SHAPE = {name: _SHAPE for name in ("size", "num_nodes", "sparse_sizes", "num_rows", "num_cols", "m", "n")} | {
    name: "val=" for name in ("value", "values", "weight", "edge_weight", "edge_attr", "data")
}
OF_A_SHAPE |= _OF_VALUES
OF_ROWS = (
    OF_A_SHAPE
    | {name: "ptr=" for name in ("rowptr", "indptr", "crow_indices")}
    | {name: "idx=" for name in ("col", "indices", "col_indices")}
)
OF_A_SIZE = {name: _SIZE for name in ("shape", "num_nodes", "sparse_sizes", "num_src_nodes", "num_dst_nodes")} | {
    name: "edge_weight=" for name in ("val", "value", "values", "weight", "edge_attr")
}
OF_A_SIZE |= _OF_VALUES


def require_flags(function: str, **flags: Any) -> None:
    """Requires True or False of arguments that are one or the other: as a condition, the text "no" would be true.

    Raises:
        TypeError: something else.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{function}: {name} must be True or False, not {flag!r}")


def require_tensor(name: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(t).__name__}")


def is_strided(t: Tensor) -> bool:
    """Tells whether t is one dense tensor with strides: neither sparse nor mkldnn's nor nested."""
    return t.layout == torch.strided and not t.is_nested


def require_strided(name: str, t: Tensor) -> None:
    """Requires one dense tensor, whose numbers lie at strides."""
    if not is_strided(t):
        what = t.layout if t.layout != torch.strided else "a nested one"
        raise TypeError(f"{name} must be one dense tensor, not {what}")


def require_data(name: str, t: Tensor) -> None:
    """Requires one dense tensor that has numbers to read."""
    require_strided(name, t)
    if not t.is_cpu and not t.is_cuda and t.device.type not in DEVICES:  # whose name is made anew in every call
        raise TypeError(f"{name} must be on cpu or cuda, not on {t.device}")


def require_number(name: str, value: Any, dtype: torch.dtype) -> float:
    """Returns a real number, infinite ones too, that dtype has.

    Raises:
        TypeError: no number.
        ValueError: one beyond the largest of dtype.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    largest = torch.finfo(dtype).max
    try:
        number = float(value)
    except OverflowError:
        number = math.nan
    if (math.isnan(number) and value == value) or largest < abs(number) < math.inf:
        raise ValueError(f"{name} must be within {largest:g}, the largest of {dtype}, not {value!r}")
    return number


def require_integers(name: str, t: Any) -> None:
    require_tensor(name, t)
    if t.dtype not in INTEGERS:
        raise TypeError(f"{name} must hold integers (int64, int32, int16, int8 or uint8), not {t.dtype}")


def require_vector(name: str, t: Any) -> None:
    require_integers(name, t)
    require_data(name, t)
    if t.dim() != 1:
        raise ValueError(f"{name} must have 1 dimension, not {t.dim()}")


def require_range(place: str, t: Tensor, end: int) -> None:
    """Requires all numbers of t in [0, end); place is the name of an element, with braces for its number."""
    if not inside(t, end):
        where = int(((t < 0) | (t >= end)).nonzero()[0])
        raise ValueError(f"{place.format(where)} = {int(t[where])} is outside [0, {end})")


def require_permutation(name: str, order: Tensor, nnz: int) -> None:
    require_vector(name, order)
    if order.numel() != nnz:
        raise ValueError(f"{name} has {order.numel()} elements for {nnz} entries")
    require_range(name + "[{}]", order, nnz)
    seen = torch.zeros(nnz, dtype=torch.bool, device=order.device).index_fill_(0, order.long(), True)
    if not bool(seen.all()):
        raise ValueError(f"{name} has no {int((~seen).nonzero()[0])}: it must be a permutation")


def require_same_device(**tensors: Tensor | None) -> None:
    devices = {name: t.device for name, t in tensors.items() if isinstance(t, Tensor)}
    if len(set(devices.values())) > 1:
        raise TypeError("tensors on several devices: " + ", ".join(f"{n} on {d}" for n, d in devices.items()))


def require_values(val: Tensor | None, nnz: int, device: torch.device, name: str = "val") -> None:
    if val is None:
        return
    if not isinstance(val, Tensor) or val.dtype not in FLOATS:
        found = val.dtype if isinstance(val, Tensor) else type(val).__name__
        whole = isinstance(val, Tensor) and (val.dtype in INTEGERS or val.dtype == torch.bool)
        mend = f"; give {name}.float(), which constructors do by themselves, once" if whole else ""
        kinds = "float32, float64, float16 or bfloat16"
        raise TypeError(f"{name} must be a floating-point tensor, not {found}: {kinds}{mend}")
    require_strided(name, val)
    if val.dim() not in (1, 2):
        raise ValueError(f"{name} must be [nnz] or [nnz, heads], not {list(val.shape)}")
    if val.shape[0] != nnz:
        raise ValueError(f"{name} has {val.shape[0]} values for {nnz} entries")
    if val.device != device:
        raise TypeError(f"{name} is on {val.device}, the matrix on {device}")
