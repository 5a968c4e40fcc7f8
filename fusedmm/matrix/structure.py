"""Making and checking the tensors of a CSR."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Callable
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fusedmm._lib import DEVICES, NUMBERS, csr_fault, numbers_of, ops
from fusedmm._torch_compat import (
    are_transforms_active,
    graph_break,
    is_batched,
    is_exporting,
    is_tracing,
    is_wrapper,
    unwrapped,
    without_transforms,
    writes_to,
)

# A half of a CSR is the matrix itself or its transpose: the tensors ptr, idx, eid and plan of one of the two.
Half = tuple[Tensor, Tensor, Tensor, Tensor]
# The plan of a half, and what its rows are like: UNKNOWN, EVEN, UNEVEN or NEITHER.
Plan = tuple[Tensor, int]

P = ParamSpec("P")
T = TypeVar("T")
NO_TRANSPOSE = "the gradient needs the transpose of this CSR: call adj.cache_transpose() before the compiled code"
# The share of entries, rows and columns from which the choice of a kernel asks how even rows are.
TILED = tuple(NUMBERS["FMM_TILED_" + name] for name in ("SHARE", "ROWS", "COLS"))
UNKNOWN, EVEN, UNEVEN, NEITHER = numbers_of("FMM_ROWS_", "unknown", "even", "uneven", "neither").values()
USED: int = NUMBERS["FMM_PLAN_USED"]
LARGE = 1 << 22  # entries from which a plan is cut to what it holds: calls then take room for fewer partial sums
DEFERRED: int = NUMBERS[
    "FMM_CHECK_DEFERRED"
]  # a check that a GPU makes while the host goes on; ``adapters.settle`` waits for its answer
ONE_STRUCTURE = "vmap goes over values and features, not over indices: make one graph of the samples' graphs, or loop"
CONVERTED = "a graph is converted outside of compiled code and exported programs: make a fusedmm.CSR beforehand"
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ORDERS = {
    "shape": "; shape is (rows, cols), and an edge_index takes size, (sources, targets), which is (cols, rows)",
    "size": "; size is (sources, targets), which is (cols, rows) of a shape",
}
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # others wrap, or cannot be compared


class Shared:
    """Holds what all matrices of one structure share, so that it is made once: the transpose, and whatever is
    derived."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.transpose: tuple[Half, int] | None = None  # the half, and what its rows are like
        self.ticket: int | None = None  # of a check that was DEFERRED, until somebody waits for its answer
        self.derived: dict[Any, Any] = {}  # structures made from this one, such as that with self loops


def lasting(make: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function whose result outlives the call, such as a structure that is cached.

    It runs outside of torch.func's transforms and of inference mode, which would mark the tensors that it makes and
    forbid them to other calls. Compiled code breaks its graph there; where it must be one graph, an error says so.
    """

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            apart = torch.compiler.is_dynamo_compiling() or is_exporting()
            return outside(CONVERTED, made, *args, **kwargs) if apart else make(*args, **kwargs)
        if are_transforms_active():
            with without_transforms():
                return made(*map(plain, args), **{name: plain(a) for name, a in kwargs.items()})
        if not torch.is_inference_mode_enabled():
            return make(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return make(*args, **kwargs)

    return made


def outside(why: str, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls a function from compiled code without making it a part of the graph.

    Raises:
        RuntimeError: with the text ``why``, where the code must be one graph.
    """
    if not torch.compiler.is_dynamo_compiling():
        raise RuntimeError(why)
    graph_break(why)
    found: T = torch.compiler.disable(call)(*args, **kwargs)
    return found


def require_untraced() -> None:
    """Raises under torch.jit.trace, which would make one graph's content, such as its order of edges, a constant."""
    if is_tracing():
        raise RuntimeError(
            "fusedmm: torch.jit.trace does not take the conversion of a graph: make a fusedmm.CSR beforehand, or use "
            "torch.export or torch.compile"
        )


def shared_by(adj: Any) -> Shared:
    """Returns what the matrices of adj's structure share; a matrix that compiled code made gets its own here."""
    if adj._shared is None:
        adj._set(_shared=Shared())
    shared: Shared = adj._shared
    return shared


def derived(adj: Any, key: Any, why: str, make: Callable[..., T], *args: Any) -> T:
    """Returns the result of ``make(adj, *args)``, computed once for all matrices of adj's structure; why: see
    ``outside``."""
    known: T | None = None if adj._shared is None else adj._shared.derived.get(key)
    if known is None:
        if torch.compiler.is_compiling():
            return outside(why, derived, adj, key, why, make, *args)
        known = shared_by(adj).derived[key] = adj.makers.get(key, make)(adj, *args)
    return known


def plain(t: Any) -> Any:
    """Returns the tensor inside of torch.func's wrappers, where it holds integers, which have no gradients; others as
    they are.

    Raises:
        TypeError: a vmap has another such tensor for each of its samples.
    """
    if isinstance(t, Tensor) and not t.dtype.is_floating_point:
        while is_wrapper(t):
            if is_batched(t):
                raise TypeError(ONE_STRUCTURE)
            t = unwrapped(t)
    return t


def is_wrapped(t: Any) -> bool:
    """Tells whether a tensor is a wrapper of torch.func's, which must not outlive the transform that made it."""
    return isinstance(t, Tensor) and is_wrapper(t)


@lasting
def own(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a contiguous copy. The index tensors of torch's sparse tensors are views, which torch.compile rejects."""
    return t.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def own_values(values: Tensor) -> Tensor:
    """A copy of values that gradients pass through. Those of a sparse tensor are views, which torch.compile rejects."""
    if values.dtype.is_complex:
        raise TypeError(f"values must be floating-point, integers or booleans, not {values.dtype}")
    return values.clone() if values.dtype.is_floating_point else as_values(values)


def as_values(val: Any) -> Any:
    """Values as they are; integers and booleans in torch's default dtype."""
    if isinstance(val, Tensor) and (val.dtype in INTEGERS or val.dtype == torch.bool):
        return val.to(torch.get_default_dtype())
    return val


def plan_of(ptr: Tensor, idx: Tensor, cols: int, measure: bool, made: Tensor | None = None) -> Plan:
    """Returns the plan of a structure, ``made`` where the library made one already, and what its rows are like.

    Where ``measure`` is true, large matrices, and those as full as layers of pruned networks, are measured, which waits
    for the GPU once. The plans of large ones are cut to the bytes in use.
    """
    if ptr.is_cpu:  # which needs none
        return ptr.new_empty(0, dtype=torch.uint8) if made is None else made, UNKNOWN
    plan: Tensor = ops._plan(ptr, idx) if made is None else made
    rows, (share, tall, wide) = ptr.numel() - 1, TILED
    full = rows >= tall and cols >= wide and idx.numel() >= share * rows * cols
    large = idx.numel() >= LARGE
    if not measure or not plan.numel() or not (full or large):
        return plan, UNKNOWN
    if large:
        plan = plan[: numbers(plan[USED : USED + 8].view(torch.int64)[0])[0]].clone()
    return plan, evenness(ptr, idx)


def evenness(ptr: Tensor, idx: Tensor) -> int:
    """EVEN where columns rise in each row and no row is longer than twice the mean; UNEVEN where columns do not rise or
    a row is longer than four times the mean; else NEITHER."""
    rows, nnz = ptr.numel() - 1, idx.numel()
    longest, falls = numbers((ptr[1:] - ptr[:-1]).amax(), (idx[1:] < idx[:-1]).sum())
    if falls > rows or longest * rows > 4 * nnz:  # columns that rise fall once from row to row
        return UNEVEN
    return EVEN if longest * rows <= 2 * nnz else NEITHER


def was_measured(adj: Any) -> bool:
    """Tells whether ``plan_of`` measured a matrix, so that its transpose may be measured too.

    That waits for the GPU: the caller agreed to it once, and while a CUDA graph records it is impossible.
    """
    return adj.rows_are != UNKNOWN and not is_captured(adj.plan)


def numbers(*scalars: Tensor) -> list[int]:
    """Tensors of one int64 each as Python's; one synchronisation with a GPU."""
    return [int(s) for s in scalars] if scalars[0].is_cpu else torch.stack(scalars).tolist()


def inside(t: Tensor, end: int) -> bool:
    """Tells whether all numbers of t are in [0, end); a synchronisation with a GPU."""
    if not t.numel():
        return True
    low, high = numbers(*torch.aminmax(t))
    return low >= 0 and high < end


@lasting
def constant(val: Tensor | None, eid: Tensor, old: Tensor | None = None) -> Tensor | None:
    """Returns constant values in the order of a half's entries, so that kernels read them one after the other.

    None where a gradient is wanted, where the caller's order is that of the half, and where torch would not count
    writes to val. The result is written into ``old`` where there is one, since a captured CUDA graph reads there.
    """
    if val is None or val.requires_grad or not eid.numel() or is_wrapped(val):
        return None
    if not torch.compiler.is_compiling() and (val.is_inference() or is_captured(val)):
        return None
    return val.index_select(0, eid) if old is None else torch.index_select(val, 0, eid, out=old)


def is_captured(t: Tensor) -> bool:
    """Tells whether a CUDA graph records the calls on t's device instead of running them."""
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def written(val: Tensor | None) -> int:
    """Tells how often val was written to in place; -1 without values, and in inference mode, where torch does not
    count."""
    return -1 if val is None or val.is_inference() else writes_to(val)


def validate(ptr: Tensor, idx: Tensor, cols: int) -> None:
    """Raises on a malformed structure; one kernel, and one word copied back."""
    code, where = csr_fault(int(ops._check(ptr, idx, cols)))
    if not code:
        return
    rows, nnz = ptr.numel() - 1, idx.numel()
    if code == NUMBERS["FMM_CSR_IDX"]:
        raise ValueError(f"idx[{where}] = {int(idx[where])} is outside [0, {cols})")
    value = int(ptr[where])
    if code == NUMBERS["FMM_CSR_PTR_FIRST"]:
        raise ValueError(f"ptr[0] = {value} must be 0")
    if code == NUMBERS["FMM_CSR_PTR_FALLS"]:
        raise ValueError(f"ptr[{where}] = {value} is less than ptr[{where - 1}] = {int(ptr[where - 1])}")
    raise ValueError(f"ptr[{rows}] = {value} must be nnz = {nnz}")


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
        raise ValueError(f"{name}: there is no {device!r}") from None
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
OF_A_SHAPE = {name: _SHAPE for name in ("size", "num_nodes", "sparse_sizes", "num_rows", "num_cols", "m", "n")} | {
    name: "val=" for name in ("value", "values", "weight", "edge_weight", "edge_attr", "data")
}
OF_ROWS = (
    OF_A_SHAPE
    | {name: "ptr=" for name in ("rowptr", "indptr", "crow_indices")}
    | {name: "idx=" for name in ("col", "indices", "col_indices")}
)
OF_A_SIZE = {name: _SIZE for name in ("shape", "num_nodes", "sparse_sizes", "num_src_nodes", "num_dst_nodes")} | {
    name: "edge_weight=" for name in ("val", "value", "values", "weight", "edge_attr")
}


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
        found = getattr(val, "dtype", type(val).__name__)
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
