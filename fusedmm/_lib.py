"""Loads libfusedmm.so, registers its operators with torch, and says what is in it.

The library holds no Python and links no torch: it finds the torch of this process by itself. Here are
only its path, the fake kernels that torch.compile traces with, and the translation of its errors.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm._torch_compat import argument_names


class _Algorithm(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("about", ctypes.c_char_p),
        ("source", ctypes.c_char_p),
        ("deterministic", ctypes.c_bool),
    ]


def _load() -> ctypes.CDLL:
    path = Path(__file__).with_name("libfusedmm.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"fusedmm: {error}; in a checkout `pip install -e .` builds it") from error
    library.fmm_torch_register.restype = ctypes.c_char_p
    library.fmm_build_info.restype = ctypes.c_char_p
    library.fmm_algorithms.restype = ctypes.POINTER(_Algorithm)
    library.fmm_operator_name.restype = ctypes.c_char_p
    library.fmm_number.restype = ctypes.c_char_p
    problem = library.fmm_torch_register()
    if problem is not None:
        raise ImportError(f"fusedmm: {problem.decode()}")
    return library


library = _load()
_names = itertools.takewhile(bool, map(library.fmm_operator_name, itertools.count()))
OPERATORS = {name.decode(): number for number, name in enumerate(_names)}
ops: Any = torch.ops.fusedmm


def _read_numbers() -> dict[str, Any]:
    """The numbers of the C code by their names there: counts and enums are ints, shares are floats."""
    value = ctypes.c_double()
    names = itertools.takewhile(bool, (library.fmm_number(k, ctypes.byref(value)) for k in itertools.count()))
    return {name.decode(): int(value.value) if value.value.is_integer() else value.value for name in names}


NUMBERS = _read_numbers()


def numbers_of(prefix: str, *names: str) -> dict[str, int]:
    """The numbers of an enum by its names in lower case."""
    return {name: NUMBERS[prefix + name.upper()] for name in names}


DEVICES = numbers_of("FMM_", "cpu", "cuda")
REDUCTIONS = numbers_of("FMM_", "sum", "mean", "max", "min")
SCORES = numbers_of("FMM_SCORE_", "none", "dot", "sqdist", "l1", "additive")
MESSAGES = numbers_of("FMM_MESSAGE_", "scale", "add", "sub", "mul", "max", "min")
ACTIVATIONS = {None: NUMBERS["FMM_ACT_NONE"]} | numbers_of("FMM_ACT_", "relu", "leaky_relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class Algorithm:
    """One way to compute an operator on a device, as the library's registry lists it.

    Example:
        >>> fusedmm.algorithms("spmm")[0].name
        'reference'
    """

    number: int
    name: str
    about: str
    source: str
    deterministic: bool


def algorithms(op: str, device: str | torch.device = "cpu") -> list[Algorithm]:
    """Lists the algorithms of an operator on a device.

    Args:
        op: ``"spmm"``, ``"sddmm"``, ``"attention"`` or ``"fused"``.
        device: ``"cpu"`` or ``"cuda"``, with or without a number, or a ``torch.device``.

    Returns:
        The entries of the registry, in the order of their numbers. ``"auto"`` chooses among them.

    Raises:
        ValueError: no such operator or device.

    Example:
        >>> [a.name for a in fusedmm.algorithms("spmm", "cpu")][0]
        'reference'
    """
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be one of {', '.join(OPERATORS)}, not {op!r}")
    kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    if kind not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, not {device!r}")
    found: list[Algorithm] = []
    while entry := library.fmm_algorithms(OPERATORS[op], DEVICES[kind], len(found)):
        a = entry.contents
        text = [s.decode() if s else "" for s in (a.name, a.about, a.source)]
        found.append(Algorithm(a.number, text[0], text[1], text[2], a.deterministic))
    return found


_numbers: dict[tuple[str, str], dict[str, int]] = {}


def read_numbers() -> None:
    """Reads the registry again: compiled code looks names up in what this keeps, since it cannot call ctypes."""
    for op in OPERATORS:
        for device in DEVICES:
            _numbers[op, device] = {"auto": 0} | {a.name: a.number for a in algorithms(op, device)}


read_numbers()


def algorithm_number(op: str, device: str, name: str) -> int:
    """The registry's number of an algorithm, 0 for ``"auto"``; a ValueError lists what there is."""
    if not isinstance(name, str):
        raise TypeError(f"{op}: algorithm must be a name, not {name!r}")
    known = _numbers.get((op, device), {"auto": 0})
    if name not in known:
        raise ValueError(f"{op} has no algorithm {name!r} on {device}; there are {', '.join(known)}")
    return known[name]


def build_info() -> dict[str, Any]:
    """What this build can do and what it runs on.

    Returns:
        ``version``, ``compiler``, ``isa`` (levels this machine runs), ``cuda`` (None without nvcc, else
        its version, architectures, runtime and the driver it needs), ``torch``, and ``include``, the
        folder of ``fusedmm.h``, for who compiles a plug-in or a program in C.

    Example:
        >>> fusedmm.build_info()["version"]
        '0.1.0'
    """
    info: dict[str, Any] = json.loads(library.fmm_build_info())
    info["isa"] = info["isa"].split(",")
    info["torch"] = torch.__version__
    package = Path(__file__).resolve().parent
    places = package / "include", package.parent / "csrc" / "include"  # of a wheel, of a checkout
    info["include"] = str(next(place for place in places if place.is_dir()))
    return info


def raise_translated(error: RuntimeError, device: torch.device) -> NoReturn:
    """Raises what the library's message stands for: C can only raise RuntimeError."""
    text = str(error).split("\n", 1)[0]
    kind, _, rest = text.partition(": ")
    if kind == "invalid":
        raise ValueError(rest) from None
    if kind == "unsupported":
        raise (ValueError if "algorithm" in rest else RuntimeError)(rest) from None
    if kind == "out of memory":
        message = f"fusedmm: out of memory on {device}: {rest}"
        raise (torch.OutOfMemoryError if device.type == "cuda" else MemoryError)(message) from None
    raise error


def sums_dtype(x: Tensor) -> torch.dtype:
    """What sums over numbers of x's dtype are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _fake(name: str) -> Callable[[Callable[..., Any]], None]:
    """Registers an operator's fake kernel, which makes results without numbers, and what refuses by their names the
    tensors for which it has no kernel: those without strides, and those without numbers among others with them."""

    def tensors(args: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
        names = argument_names(getattr(ops, name))
        return [(a, t) for a, t in zip(names, args, strict=True) if isinstance(t, Tensor)]

    def refuse(*args: Any) -> NoReturn:
        for argument, t in tensors(args):
            if t.is_nested or t.is_quantized or t.layout != torch.strided or t.device.type not in DEVICES:
                what = "a nested one" if t.is_nested else f"one of {t.dtype}, {t.layout} on {t.device}"
                raise TypeError(f"{name}: {argument} must be one dense tensor on cpu or cuda, not {what}")
        raise NotImplementedError(f"{name} has no kernel for its {' and '.join(a for a, _ in tensors(args))}")

    def register(make: Callable[..., Any]) -> None:
        def fake(*args: Any) -> Any:
            given = tensors(args)
            empty = [argument for argument, t in given if t.device.type == "meta"]
            full = [argument for argument, t in given if t.device.type != "meta" and argument != "program"]
            if empty and full:
                raise TypeError(f"{name}: {empty[0]} is on meta, {full[0]} is not")
            return make(*args)

        torch.library.register_fake(f"fusedmm::{name}")(fake)
        for key in ("CompositeExplicitAutograd", "AutogradNestedTensor"):  # any backend, behind cpu's and cuda's own
            _refusals.impl(name, refuse, key)

    return register


_refusals = torch.library.Library("fusedmm", "IMPL")


def _fake_spmm(x: Tensor, ptr: Tensor) -> Tensor:
    return x.new_empty((ptr.size(0) - 1, *x.shape[1:]))


def _fake_sddmm(idx: Tensor, a: Tensor) -> Tensor:
    return a.new_empty((idx.size(0), *a.shape[1:-1]))


@_fake("_spmm")
def _(ptr, idx, eid, plan, val, x, reduce, algorithm):  # type: ignore[no-untyped-def]
    return _fake_spmm(x, ptr)


@_fake("spmm")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, val, x, reduce, algorithm):  # type: ignore[no-untyped-def]
    return _fake_spmm(x, ptr)


@_fake("_sddmm")
def _(ptr, idx, eid, plan, val, a, b, algorithm):  # type: ignore[no-untyped-def]
    return _fake_sddmm(idx, a)


@_fake("sddmm")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, val, a, b, algorithm):  # type: ignore[no-untyped-def]
    return _fake_sddmm(idx, a)


@_fake("_fused")
def _(ptr, idx, eid, plan, val, x, y, z, program, score, message, activation, reduce, algorithm):  # type: ignore[no-untyped-def]
    return _fake_spmm(z if message == MESSAGES["scale"] else x, ptr)


@_fake("_fused_rows")
def _(ptr, idx, eid, plan, val, x, y, z, g, program, score, message, activation, wanted, algorithm):  # type: ignore[no-untyped-def]
    none = x.new_empty(0)
    kept = x.new_empty((idx.size(0), *x.shape[1:-1], 2) if wanted & 4 else 0, dtype=sums_dtype(x))
    return _fake_spmm(x, ptr) if wanted & 1 else none, _fake_sddmm(idx, x) if wanted & 2 else none.clone(), kept


@_fake("_fused_cols")
def _(ptr, idx, eid, plan, val, x, y, z, g, kept, program, score, message, activation, wanted, algorithm):  # type: ignore[no-untyped-def]
    none = x.new_empty(0)
    return _fake_spmm(y, ptr) if wanted & 1 else none, _fake_spmm(z, ptr) if wanted & 2 else none.clone()


@_fake("_fused_mirrored")
def _(ptr, idx, eid, plan, val, x, y, z, g, val_t, program, score, message, activation, algorithm):  # type: ignore[no-untyped-def]
    return _fake_spmm(x, ptr)


@_fake("_select")
def _(ptr, idx, eid, plan, val, weight, x, y, z, g, form):  # type: ignore[no-untyped-def]
    if form == NUMBERS["FMM_SELECT_COUNTS"]:
        return _fake_spmm(x, ptr).to(sums_dtype(x))
    return _fake_sddmm(idx, x) if form == NUMBERS["FMM_SELECT_EDGES"] else _fake_spmm(x, ptr)


@_fake("_attention")
def _(ptr, idx, eid, plan, q, k, v, *rest):  # type: ignore[no-untyped-def]
    size = (ptr.size(0) - 1, q.size(1))
    out, lse = v.new_empty((*size, v.size(2))), v.new_empty(size, dtype=sums_dtype(v))
    if not rest[-2] & 1:
        return out, lse, torch.empty_like(lse), v.new_empty(0), v.new_empty(0)
    return out, lse, torch.empty_like(lse), torch.empty_like(out, dtype=lse.dtype), torch.empty_like(lse)


@_fake("_attention_weights")
def _(ptr, idx, eid, plan, q, *rest):  # type: ignore[no-untyped-def]
    return q.new_empty((idx.size(0), q.size(1)))


def _gatt_parts(x: Tensor) -> int:
    """Parts in which the gradient of att comes."""
    return NUMBERS["FMM_GATT_PARTS_CUDA" if x.is_cuda else "FMM_GATT_PARTS_CPU"]


@_fake("_attention_rows")
def _(ptr, idx, eid, plan, q, k, v, att, bias, weight, seed, lse, lse_rest, delta, gout, *rest):  # type: ignore[no-untyped-def]
    want, heads, feat = rest[-2], q.size(1), q.size(2)
    gq = q.new_empty((ptr.size(0) - 1, heads, feat) if want & 1 else (0,))
    parts = (_gatt_parts(q), heads, feat)
    gatt = q.new_empty(parts, dtype=sums_dtype(q)) if want & 2 else q.new_empty(0)
    edges = (idx.size(0), heads)
    return gq, gatt, q.new_empty(edges if want & 4 else (0,)), q.new_empty(edges if want & 8 else (0,))


@_fake("_attention_cols")
def _(ptr, idx, eid, plan, q, k, v, att, bias, weight, seed, lse, lse_rest, delta, gout, *rest):  # type: ignore[no-untyped-def]
    want, rows, heads = rest[-2], ptr.size(0) - 1, q.size(1)
    gk = q.new_empty((rows, heads, k.size(2)) if want & 1 else (0,))
    return gk, q.new_empty((rows, heads, v.size(2)) if want & 2 else (0,))


GAT_PACKED: int = NUMBERS["FMM_NODE_PACKED"]


@_fake("_gat_scores")
def _(x, att_k, att_q):  # type: ignore[no-untyped-def]
    return x.new_empty((*x.shape[:2], 1)), x.new_empty((*x.shape[:2], 1))


@_fake("_gat_delta")
def _(gout, out, lse, lse_rest, glse, pos, pos_w, q, slope):  # type: ignore[no-untyped-def]
    gq = gout.new_empty((*gout.shape[:2], 1) if pos.dim() == 3 else (0,))
    rows = gout.size(0) if q.dim() == 3 and gout.device.type == "cuda" else 0
    delta = gout.new_empty(gout.shape[:2], dtype=sums_dtype(gout))
    return delta, gq, delta.new_empty(rows, GAT_PACKED * gout.size(1))


def _kept_bytes(sizes: list[int]) -> int:
    """Room for views of so many bytes each, as far apart as the library lays them."""
    apart = NUMBERS["FMM_ATTEND_APART"]
    return sum((size + apart - 1) // apart * apart for size in sizes)


@_fake("_attend_self")
def _(ptr, idx, eid, plan, x, att_k, att_q, seed, bias, slope, dropout, whole):  # type: ignore[no-untyped-def]
    sums, numbers, wide = sums_dtype(x).itemsize, x.size(0) * att_k.size(1), att_k.size(2)
    sizes = [numbers * size for size in (sums, sums, x.dtype.itemsize, x.dtype.itemsize)]
    if whole:
        sizes += [numbers * sums, numbers * wide * sums]
        sizes += [numbers * wide * x.dtype.itemsize] if bias.size(0) else []
    return x.new_empty(x.shape), x.new_empty(_kept_bytes(sizes), dtype=torch.uint8)


@_fake("_attend_self_back")
def _(ptr, idx, eid, plan, x, att_k, att_q, seed, out, kept, gout, slope, dropout, bias):  # type: ignore[no-untyped-def]
    gatt = (1, att_k.size(1), att_k.size(2))
    gbias = x.new_empty(att_k.size(1) * att_k.size(2) if bias else 0)
    return x.new_empty(x.shape), x.new_empty(gatt), x.new_empty(gatt), gbias


def _channels(p: Tensor, heads: int, maps: int) -> int:
    """Of one head, as csrc/attention/torch_attend_maps.c finds them."""
    if not 2 <= maps <= 4 or heads < 1:
        raise ValueError(f"there may be 2 to 4 maps of 1 head or more, not {maps} of {heads}")
    return p.size(1) // (maps * heads)


@_fake("_attend_maps")
def _(ptr, idx, eid, plan, p, att, seed, bias, scale, slope, dropout, heads, maps, whole):  # type: ignore[no-untyped-def]
    rows, width = p.size(0), heads * _channels(p, heads, maps)
    sizes = [rows * heads * sums_dtype(p).itemsize] * 2
    sizes += [rows * width * p.dtype.itemsize] if whole and (maps == 4 or bias.size(0)) else []
    return p.new_empty(rows, width), p.new_empty(_kept_bytes(sizes), dtype=torch.uint8)


@_fake("_attend_maps_back")
def _(ptr, idx, eid, plan, ptr_t, idx_t, eid_t, plan_t, p, *rest):  # type: ignore[no-untyped-def]
    heads, maps = rest[-2:]
    parts = _gatt_parts(p) if maps == 2 else 0
    return p.new_empty(p.shape), p.new_empty(parts, heads, _channels(p, heads, maps), dtype=sums_dtype(p))


@_fake("_check")
def _(ptr, idx, cols):  # type: ignore[no-untyped-def]
    return ptr.new_empty(1)


@_fake("_plan")
def _(ptr, idx):  # type: ignore[no-untyped-def]
    return ptr.new_empty(torch.library.get_ctx().new_dynamic_size() if ptr.is_cuda else 0, dtype=torch.uint8)


@_fake("_compress")
def _(row, col, rows, cols, loops, look):  # type: ignore[no-untyped-def]
    size = torch.library.get_ctx().new_dynamic_size  # what stays, and whether it is in order, the content decides
    entries = size() if loops else row.size(0)
    new = (row.new_empty(n, dtype=torch.int32) for n in (entries, size()))
    plan = row.new_empty(size() if row.is_cuda else 0, dtype=torch.uint8)
    return row.new_empty(rows + 1), *new, plan, row.new_empty(size())


@_fake("_looked")
def _(lines):  # type: ignore[no-untyped-def]
    return None


@_fake("_transpose")
def _(ptr, idx, eid, plan, cols):  # type: ignore[no-untyped-def]
    size = torch.library.get_ctx().new_dynamic_size() if ptr.is_cuda else 0
    return ptr.new_empty(cols + 1), torch.empty_like(idx), torch.empty_like(idx), plan.new_empty(size)


@_fake("_normalize")
def _(ptr, idx, eid, plan):  # type: ignore[no-untyped-def]
    return torch.empty_like(idx, dtype=torch.float32), torch.empty_like(idx, dtype=torch.float32)


@_fake("_mean_back")
def _(ptr, g):  # type: ignore[no-untyped-def]
    return g.new_empty(g.shape)
