"""A CSR as an argument of exported programs: torch.export sees its tensors.

The number of columns is no tensor, and would become a constant of the program. So it is left out, and read off the
transpose: an exported program runs on graphs of other sizes, and needs matrices with ``cache_transpose()``. It refuses
a matrix of another form than its example had: values where there were none, or edges in another order than that of the
rows where the example's were in it. A pattern may be given where there were values. Operators take it as a pattern, and
a program that reads ``adj.val`` itself sees a tensor without elements. What the example's rows are like stays a
constant of the program, which chooses kernels by it, whatever the next matrix is like: results do not depend on it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields
from typing import Any

import torch

from fusedmm._torch_compat import are_transforms_active, is_exporting, pytree
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import is_wrapped, plain

# The guards of an exported program are made by replacing paths as text: adj.ptr_t goes before adj.ptr.
IN_ORDER = ("val_here", "val_there")  # the constant values, in the orders of the two halves
NUMBERS = ("n_cols", "rows_are", "rows_are_t")
NAMES = sorted((*(f.name for f in fields(CSR) if f.name not in NUMBERS), *IN_ORDER), key=len, reverse=True)


@dataclass(frozen=True)
class Untold:
    """Holds what the tensors do not tell. A program refuses a matrix where this is not equal to its example's."""

    cols: int | None  # of a matrix whose transpose is not there
    rows_are: int = field(compare=False)
    rows_are_t: int = field(compare=False)


def _untold(adj: CSR) -> Untold:
    return Untold(adj.n_cols if adj.ptr_t is None else None, adj.rows_are, adj.rows_are_t)


def _parts(adj: CSR) -> list[Any]:
    """Lists a matrix's tensors. No values are a tensor without elements, whose size an exported program asks for."""
    parts = {name: getattr(adj, name) for name in NAMES}
    if isinstance(adj.ptr, torch.Tensor):
        adj._refresh()
        parts.update({name: getattr(adj, name) for name in IN_ORDER})
        if adj.val is None:
            parts["val"] = adj.none
    return [parts[name] for name in NAMES]


def _flatten(adj: CSR) -> tuple[list[Any], Untold]:
    return _parts(adj), _untold(adj)


def _flatten_with_keys(adj: CSR) -> tuple[list[tuple[pytree.KeyEntry, Any]], Untold]:
    return [(pytree.GetAttrKey(name), part) for name, part in zip(NAMES, _parts(adj), strict=True)], _untold(adj)


def _unflatten(children: Any, untold: Untold) -> CSR:
    parts = dict(zip(NAMES, children, strict=True))
    if not isinstance(parts["ptr"], torch.Tensor):  # torch.func's batch dimensions, in the shape of a matrix
        dims = object.__new__(CSR)
        dims._set(**parts, n_cols=untold.cols)
        return dims
    if isinstance(parts["val"], torch.Tensor) and not parts["val"].dtype.is_floating_point:
        parts["val"] = None
    if untold.cols is not None and is_exporting():
        raise ValueError("a CSR that goes into an exported program needs adj.cache_transpose() beforehand")
    if are_transforms_active():  # they wrap every tensor of an argument
        parts = {name: plain(t) for name, t in parts.items()}
        if is_wrapped(parts["val"]):
            parts.update(dict.fromkeys(IN_ORDER))
    in_order = {name: parts.pop(name) for name in IN_ORDER}
    cols = -1 if untold.cols is None else untold.cols
    adj = CSR(**parts, n_cols=cols, rows_are=untold.rows_are, rows_are_t=untold.rows_are_t)
    adj._set(**in_order)
    if not torch.compiler.is_compiling():
        adj._settle()
    return adj


pytree.register_pytree_node(
    CSR,
    _flatten,
    _unflatten,
    serialized_type_name="fusedmm.CSR",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=astuple,
    from_dumpable_context=lambda untold: Untold(*untold),
)
torch.serialization.add_safe_globals([CSR])  # its state is tensors; programs keep one as an example input
