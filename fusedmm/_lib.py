"""Loads libfusedmm.so, registers its operators with torch, and says what is in it.

The library holds no Python and links no torch: it finds the torch of this process by itself. Here are
only its path, its numbers, and the translation of its errors.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm._cuda_names import CUDA_ALGORITHMS


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
    library.fmm_csr_report.argtypes = ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64)
    problem = library.fmm_torch_register()
    if problem is not None:
        raise ImportError(f"fusedmm: {problem.decode()}")
    return library


library = _load()
_names = itertools.takewhile(bool, map(library.fmm_operator_name, itertools.count()))
OPERATORS = {name.decode(): number for number, name in enumerate(_names)}
ops: Any = torch.ops.fusedmm


def _read_numbers() -> dict[str, Any]:
    """Returns the numbers of the C code by their names there: counts and enums are ints, shares are floats."""
    value = ctypes.c_double()
    names = itertools.takewhile(bool, (library.fmm_number(k, ctypes.byref(value)) for k in itertools.count()))
    return {name.decode(): int(value.value) if value.value.is_integer() else value.value for name in names}


NUMBERS = _read_numbers()


def numbers_of(prefix: str, *names: str) -> dict[str, int]:
    """Returns the numbers of an enum by its names in lower case."""
    return {name: NUMBERS[prefix + name.upper()] for name in names}


DEVICES = numbers_of("FMM_", "cpu", "cuda")
REDUCTIONS = numbers_of("FMM_", "sum", "mean", "max", "min")
SCORES = numbers_of("FMM_SCORE_", "none", "dot", "sqdist", "l1", "additive")
MESSAGES = numbers_of("FMM_MESSAGE_", "scale", "add", "sub", "mul", "max", "min")
# The bits by which a call says which of its results it wants: of attention's passes, and of fused's.
WANT_POS, WANT_GQ, WANT_GATT, WANT_GBIAS, WANT_GWEIGHT, WANT_GK, WANT_GV = numbers_of(
    "FMM_WANT_", "pos", "gq", "gatt", "gbias", "gweight", "gk", "gv"
).values()
WANT_OUT, WANT_OUT2, WANT_KEPT, WANT_SUM = numbers_of("FMM_WANT_", "out", "out2", "kept", "sum").values()
ACTIVATIONS = {None: NUMBERS["FMM_ACT_NONE"]} | numbers_of("FMM_ACT_", "relu", "leaky_relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class Algorithm:
    """One way to compute an operator on a device, as the library's registry lists it.

    Attributes:
        number: what exported programs name it by.
        name: what ``algorithm=`` takes.
        about, source: what it does, and where that was published.
        deterministic: whether it gives the same bits at every run.
        unavailable: why it cannot run here, or nothing.

    Example:
        >>> fusedmm.algorithms("spmm")[0].name
        'reference'
    """

    number: int
    name: str
    about: str
    source: str
    deterministic: bool
    unavailable: str = ""


def algorithms(op: str, device: str | torch.device = "cpu") -> list[Algorithm]:
    """Lists the algorithms of an operator on a device.

    Args:
        op: the name of an operator, such as ``"spmm"``; a ValueError lists them.
        device: ``"cpu"`` or ``"cuda"``, with or without a number, or a ``torch.device``.

    Returns:
        The entries of the registry, in the order of their numbers. ``"auto"`` chooses among those that can run here;
        of the others ``unavailable`` says why they cannot. A build without CUDA lists CUDA's names so too.

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
    why = _no_cuda() if kind == "cuda" else ""
    found = _registered(op, kind) or [_absent_from_build(*named) for named in _of_another_build(op, kind).items()]
    return [replace(a, unavailable=why) if why else a for a in found]


def _of_another_build(op: str, kind: str) -> dict[str, int]:
    """The names and numbers that this build lacks since it was made without CUDA."""
    return CUDA_ALGORITHMS.get(op, {}) if kind == "cuda" and build_info()["cuda"] is None else {}


def _absent_from_build(name: str, number: int) -> Algorithm:
    return Algorithm(number, name, "described by a build with CUDA", "", not name.startswith(("cusparse", "cublas")))


def _registered(op: str, kind: str) -> list[Algorithm]:
    """The entries of the registry, with what is amiss for CPUs."""
    found: list[Algorithm] = []
    while entry := library.fmm_algorithms(OPERATORS[op], DEVICES[kind], len(found)):
        a = entry.contents
        text = [s.decode() if s else "" for s in (a.name, a.about, a.source)]
        level = text[0].rpartition(":")[2]
        why = f"this processor has no {level}" if kind == "cpu" and level in _absent else ""
        found.append(Algorithm(a.number, text[0], text[1], text[2], a.deterministic, why))
    return found


def _no_cuda() -> str:
    """Why nothing runs on a GPU here, or nothing."""
    if build_info()["cuda"] is None:
        return "fusedmm was built without CUDA"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


_absent = {"scalar", "avx2", "avx512", "neon"} - set(json.loads(library.fmm_build_info())["isa"].split(","))
_numbers: dict[tuple[str, str], dict[str, int]] = {}
_unavailable: dict[tuple[str, str], dict[str, str]] = {}


def read_numbers() -> None:
    """Reads the registry again: compiled code looks names up in what this keeps, since it cannot call ctypes."""
    for op in OPERATORS:
        for device in DEVICES:
            found = _registered(op, device)
            _numbers[op, device] = {"auto": 0} | {a.name: a.number for a in found}
            _unavailable[op, device] = {a.name: a.unavailable for a in found if a.unavailable}


read_numbers()


def is_algorithm(op: str, device: str, name: Any) -> bool:
    """Whether the registry has an algorithm of that name, which may be one that cannot run here."""
    return isinstance(name, str) and name in _numbers.get((op, device), ())


def algorithm_number(op: str, device: str, name: str) -> int:
    """Returns the registry's number of an algorithm, 0 for ``"auto"``; a ValueError lists what there is."""
    if not isinstance(name, str):
        raise TypeError(f"{op}: algorithm must be a name, not {name!r}")
    known = _numbers.get((op, device), {"auto": 0})
    if name not in known:
        other = "cuda" if device == "cpu" else "cpu"
        elsewhere = is_algorithm(op, other, name) or name in _of_another_build(op, other)
        where = f", it is one of {other}'s" if elsewhere else ""
        raise ValueError(f"{op} has no algorithm {name!r} on {device}{where}; there are {', '.join(known)}")
    why = _unavailable.get((op, device), {}).get(name)
    if why is not None:
        raise ValueError(f"{op}: algorithm {name} cannot run here: {why}")
    return known[name]


def csr_fault(report: int) -> tuple[int, int]:
    """Returns the code of what ``_check`` reports as wrong with a structure, 0 for nothing, and where it is."""
    where = ctypes.c_int64()
    code: int = library.fmm_csr_report(report & (2**64 - 1), ctypes.byref(where))  # torch has it as signed
    return code, where.value


def build_info() -> dict[str, Any]:
    """What this build can do and what it runs on.

    Returns:
        ``version``, ``compiler``, ``isa`` (levels this machine runs), ``cuda`` (None without nvcc, else
        its version, architectures, runtime and the driver it needs), ``torch``, and ``include``, the
        folder of ``fusedmm.h``, for who compiles a plug-in or a program in C (None where it was left out).

    Example:
        >>> fusedmm.build_info()["version"]
        '0.1.0'
    """
    info: dict[str, Any] = json.loads(library.fmm_build_info())
    info["isa"] = info["isa"].split(",")
    info["torch"] = torch.__version__
    package = Path(__file__).resolve().parent
    places = package / "include", package.parent / "csrc" / "include"  # of a wheel, of a checkout
    info["include"] = next((str(place) for place in places if place.is_dir()), None)
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
    """Returns what sums over numbers of x's dtype are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
