"""Packages that only the extras install: they are imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any


def extra(module: str, package: str | None = None, install: str = "demo") -> Any:
    """Imports a module that only the extra ``install`` brings, or none ("") does; the error says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"fusedmm[{install}]" if install else package
        raise ImportError(f"this needs {package or module}: pip install {wanted}") from error
