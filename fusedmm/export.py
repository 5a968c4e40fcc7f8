"""A CSR as an argument of exported programs: torch.export sees its tensors.

The number of columns is no tensor and would be a constant of the program, so it stays behind and is read
off the transpose. Hence an exported program runs on graphs of other sizes, and wants matrices with
``cache_transpose()``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fusedmm.csr import CSR

# The guards of an exported program are made by replacing paths as text: adj.ptr_t goes before adj.ptr.
NAMES = sorted((f.name for f in fields(CSR) if f.name != "n_cols"), key=len, reverse=True)


def _flatten(adj: CSR) -> tuple[list[Any], None]:
    return [getattr(adj, name) for name in NAMES], None


def _flatten_with_keys(adj: CSR) -> tuple[list[tuple[pytree.KeyEntry, Any]], None]:
    return [(pytree.GetAttrKey(name), getattr(adj, name)) for name in NAMES], None


def _unflatten(children: Any, context: None) -> CSR:
    return CSR(**dict(zip(NAMES, children, strict=True)))


pytree.register_pytree_node(
    CSR,
    _flatten,
    _unflatten,
    serialized_type_name="fusedmm.CSR",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=lambda context: None,
    from_dumpable_context=lambda context: None,
)
torch.serialization.add_safe_globals([CSR])  # its state is tensors; programs keep one as an example input
