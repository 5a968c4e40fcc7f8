"""Making and checking the tensors of a CSR."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fusedmm._lib import NUMBERS, csr_fault, numbers_of, ops
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
# Entries from which a plan is cut to what it holds even if that alone waits for the GPU. Calls then take room for fewer
# partial sums and, where no row is long, make no launch for them.
LARGE = 1 << 22
# A check that a GPU makes while the host goes on; ``adapters.settle`` waits for its answer.
DEFERRED: int = NUMBERS["FMM_CHECK_DEFERRED"]
ONE_STRUCTURE = "vmap goes over values and features, not over indices: make one graph of the samples' graphs, or loop"
CONVERTED = "a graph is converted outside of compiled code and exported programs: make a fusedmm.CSR beforehand"
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
        known = adj.makers.get(key, make)(adj, *args)
        if not is_captured(adj.ptr):  # else it may lie in the memory of a CUDA graph, which nobody has written yet
            shared_by(adj).derived[key] = known
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


def plan_of(ptr: Tensor, idx: Tensor, cols: int, measure: bool, made: Tensor | None = None, cut: bool = False) -> Plan:
    """Returns the plan of a structure, ``made`` where the library made one already, and what its rows are like.

    Where ``measure`` is true, large matrices, and those as full as layers of pruned networks, are measured, which waits
    for the GPU once. The plans of large ones are cut to the bytes in use; those of others where ``cut`` is true, too,
    which somebody says who waits for the GPU at any rate.
    """
    if ptr.is_cpu:  # which needs none
        return ptr.new_empty(0, dtype=torch.uint8) if made is None else made, UNKNOWN
    plan: Tensor = ops._plan(ptr, idx) if made is None else made
    rows, (share, tall, wide) = ptr.numel() - 1, TILED
    full = rows >= tall and cols >= wide and idx.numel() >= share * rows * cols
    large = idx.numel() >= LARGE
    if not measure or not plan.numel() or not (full or large or cut):
        return plan, UNKNOWN
    if large or cut:
        plan = plan[: numbers(plan[USED : USED + 8].view(torch.int64)[0])[0]].clone()
    return plan, evenness(ptr, idx) if full or large else UNKNOWN


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
