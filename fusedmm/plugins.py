"""Algorithms from a shared library of the user's own, beside those of the package."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from fusedmm._lib import DEVICES, NUMBERS, OPERATORS, Algorithm, algorithms, library, read_numbers

ABI = NUMBERS["FMM_ABI"]

# Elf64_Ehdr (where the tables of segments and sections begin, the sizes of their entries and how many there are)
# and Elf64_Phdr (where a segment begins and how much of it lies in the file).
ELF = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")

_loaded: dict[Path, list[Algorithm]] = {}


def _listed() -> list[Algorithm]:
    return [a for op in OPERATORS for device in DEVICES for a in algorithms(op, device)]


def _require_whole(file: Path, path: str | os.PathLike[str]) -> None:
    """Raises where an ELF file ends before what its headers tell of: dlopen would die of it, and say nothing."""
    with file.open("rb") as opened:
        size, head = os.fstat(opened.fileno()).st_size, opened.read(ELF.size)
        if head[:6] != b"\x7fELF\x02\x01":  # of 64 bits, the lowest first; dlopen refuses others by name
            return
        needed = ELF.size
        if size >= needed:
            programs, sections, _, _, each, count, each_section, section_count = ELF.unpack(head)[5:13]
            needed = max(programs + each * count, sections + each_section * section_count if sections else 0)
        if size >= needed:
            opened.seek(programs)
            for _ in range(count if each == SEGMENT.size else 0):
                _, _, offset, _, _, inside, _, _ = SEGMENT.unpack(opened.read(SEGMENT.size))
                needed = max(needed, offset + inside)
    if size < needed:
        raise ValueError(f"{path} cannot be loaded: it has {size} bytes, its headers tell of {needed}")


def load_algorithms(path: str | os.PathLike[str]) -> list[Algorithm]:
    """Loads a plug-in: a shared library whose kernels become algorithms of the operators.

    It is C, C++ or CUDA against ``csrc/include/fusedmm.h``, links nothing of fusedmm, and registers its
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
    _require_whole(file, path)
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
        reason = library.fmm_last_error().decode(errors="replace") or "it does not say why"
        raise ValueError(f"{path} was refused: {reason}")
    _loaded[file] = [a for a in _listed() if a not in before]
    return list(_loaded[file])
