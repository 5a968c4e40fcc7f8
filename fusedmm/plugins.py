"""Algorithms from a shared library of the user's own, beside those of the package."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from fusedmm._lib import DEVICES, OPERATORS, Algorithm, algorithms, library, read_numbers

ABI = 2  # FMM_ABI of csrc/fusedmm_plugin.h

_loaded: dict[Path, list[Algorithm]] = {}


def _listed() -> list[Algorithm]:
    return [a for op in OPERATORS for device in DEVICES for a in algorithms(op, device)]


def load_algorithms(path: str | os.PathLike[str]) -> list[Algorithm]:
    """Loads a plug-in: a shared library whose kernels become algorithms of the operators.

    It is C, C++ or CUDA against ``csrc/fusedmm.h``, links nothing of fusedmm, and registers its
    algorithms in one function, as ``docs/plugins.md`` shows. They are listed by
    :func:`fusedmm.algorithms` and chosen by name, never by ``"auto"``. A file that was loaded is
    not loaded again.

    Args:
        path: the shared library.

    Returns:
        The algorithms it added.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no shared library, no plug-in, one built for another interface, or one
            whose registration was refused, for instance because a name is taken.

    Example:
        >>> fusedmm.load_algorithms("mine.so")
        Traceback (most recent call last):
        FileNotFoundError: there is no mine.so
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"there is no {path}")
    if file in _loaded:
        return list(_loaded[file])
    try:
        plugin = ctypes.CDLL(str(file))
    except OSError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None
    try:
        abi, register = ctypes.c_int.in_dll(plugin, "fmm_plugin_abi").value, plugin.fmm_plugin
    except (ValueError, AttributeError):
        raise ValueError(f"{path} is no plug-in: it does not define FMM_PLUGIN of fusedmm.h") from None
    if abi != ABI:
        raise ValueError(f"{path} was built for interface {abi} of fusedmm.h, this is {ABI}: build it again")
    before = _listed()
    library.fmm_plugin_host.restype = ctypes.c_void_p
    library.fmm_last_error.restype = ctypes.c_char_p
    register.argtypes = [ctypes.c_void_p]
    refused = register(library.fmm_plugin_host()) != 0
    read_numbers()
    if refused:
        raise ValueError(f"{path} was refused: {library.fmm_last_error().decode()}")
    _loaded[file] = [a for a in _listed() if a not in before]
    return list(_loaded[file])
