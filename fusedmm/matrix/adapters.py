"""A CSR of whatever people hold their graph in: other libraries' types are known by their attributes, not imported."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdRef

from fusedmm._torch_compat import are_transforms_active, is_tracing, raw_indices, raw_values, storage_number, writes_to
from fusedmm.matrix.arguments import OF_A_SIZE, is_strided, refuse, require_flags, require_shape, require_size
from fusedmm.matrix.compress import EDGE_PLACES, is_outside, require_inside
from fusedmm.matrix.constructors import from_edges, from_parts
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.normalize import Looped, looped_edges, with_loops
from fusedmm.matrix.structure import (
    CONVERTED,
    DEFERRED,
    INTEGERS,
    as_values,
    is_captured,
    outside,
    own_values,
    plain,
    require_untraced,
    shared_by,
)

Size = int | tuple[int, int] | None
HINTS = {  # what others hold a graph in, and what to give of it
    "numpy": "; torch.from_numpy makes tensors of arrays",
    "networkx": "; networkx.to_scipy_sparse_array(graph).T gathers sources into targets",
    "torch_geometric": "; give its edge_index or adj_t",
}
FEW = 2**19  # edges up to which host time decides; more are checked at once, since edges in order need no sort

SIZES = 4  # structures that are remembered of one tensor, which operators may take for several numbers of nodes

Mark = tuple[Any, ...]  # equal as long as a tensor holds what it held


class Remembered(NamedTuple):
    """Holds the structures that were made of a tensor while it had this mark."""

    of: weakref.ref[Tensor]
    mark: Mark
    storages: tuple[StorageWeakRef, ...]  # no other storage gets the address in the mark as long as these are there
    made: dict[Any, tuple[int, Any]]  # per size: how it was checked, and the structure


# By the id of a tensor, until the tensor dies. Beside the tensors, so that copies and pickles do not carry it.
_known: dict[int, Remembered] = {}
_looped: dict[int, Remembered] = {}  # the same of structures with self loops
_lock = threading.Lock()


def _unlock() -> None:
    """Makes a new lock in the child of a fork, where the thread that held the old one does not exist."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def as_csr(adj: Any, *, size: Size = None, check: bool = True, **others: NoReturn) -> CSR:
    """Converts a graph or sparse matrix to a ``CSR``.

    A structure is remembered where changes to its holder can be seen (below). Values never are: they are read at every
    call, in the holder's own order (scipy's in that of its CSR form), and gradients reach them there. What each
    operator does with them is in docs/values.md.

    Args:
        adj: one of

            - ``CSR``: returned as it is;
            - torch sparse CSR, CSC or COO tensor [rows, cols], PyG's ``adj_t`` among them (COO may be
              uncoalesced); gradients reach its values;
            - ``(ptr, idx)``, ``(ptr, idx, val)`` or ``(ptr, idx, val, shape)``;
            - ``edge_index`` [2, nnz] of integers or PyG's ``EdgeIndex``, row 0 sources and row 1
              targets: the matrix that gathers sources into targets;
            - torch_sparse's ``SparseTensor``, dgl's ``SparseMatrix``, a homogeneous or bipartite
              ``DGLGraph`` (gathering sources into destinations);
            - a scipy sparse matrix or array.

            Integer and boolean values become torch's default dtype.
        size: for an edge_index: the number of nodes, or (sources, targets); an EdgeIndex that knows
            its own keeps it.
        check: False skips validation.
        others: none; names that other libraries have for size are refused with a hint.

    Returns:
        CSR whose values and edge gradients are in adj's own order. The structure of a torch tensor, of
        ``(ptr, idx)`` and of a ``SparseTensor`` is converted once for each of the last few sizes, and remembered
        while its tensors live unchanged. Seen are the writes that torch counts, and other data in a tensor's place
        (``edge_index.data = other``). What is written into the same memory behind torch's back is not seen:
        through numpy, through ``edge_index.data`` (``edge_index.data[0] = 1``) or through the tensors that a
        sparse one was made of. DGL's and scipy's holders, COO tensors that are uncoalesced and want a gradient, and
        tensors made in inference mode are converted at every call: make a CSR of them once. Compiled code breaks its
        graph for a conversion, which is refused by name where there must be one graph: make a CSR beforehand. That
        must be done with a sparse tensor too, since ``torch.compile`` takes none as an argument.

    Raises:
        TypeError: something else, or a check that is neither True nor False.
        ValueError: malformed content; the text has the index and the value.

    Example:
        >>> fusedmm.as_csr(torch.tensor([[0, 1, 2], [1, 2, 0]]))
        CSR(shape=(3, 3), nnz=3, val=none, device=cpu)
    """
    if others:
        refuse("as_csr", others, **OF_A_SIZE)
    if type(check) is not bool and not (type(check) is int and check == DEFERRED):
        require_flags("as_csr", check=check)
    if isinstance(adj, CSR):
        return adj
    require_untraced()  # also where it was seen before: a trace is of any edge_index
    if isinstance(adj, Tensor):
        return _from_tensor(adj, size, check)
    check = bool(check)  # an edge_index alone may be checked later
    if isinstance(adj, (tuple, list)) and 2 <= len(adj) <= 4 and isinstance(adj[0], Tensor):
        return _from_tuple(adj, check)
    module = type(adj).__module__
    if module.startswith("scipy.sparse"):
        return CSR.from_scipy(adj, check=check)
    if module.startswith("dgl.sparse"):
        ptr, idx, order = adj.csr()
        return from_parts(CSR, ptr, idx, order, adj.val, tuple(adj.shape), check)
    if hasattr(adj, "adj_tensors"):  # DGLGraph: the CSC of sources to destinations
        ptr, idx, order = adj.adj_tensors("csc")
        return from_parts(CSR, ptr, idx, order, None, (ptr.numel() - 1, adj.num_src_nodes()), check)
    if hasattr(adj, "sparse_sizes") and hasattr(adj, "csr"):  # torch_sparse.SparseTensor
        ptr, idx, val = adj.csr()
        return _from_csr(ptr, idx, val, tuple(adj.sparse_sizes()), check=check)
    hint = HINTS.get(module.partition(".")[0], "")
    if callable(getattr(adj, "to_csr", None)):  # a matrix of fusedmm.formats; nothing is converted silently
        hint = "; its to_csr() is one"
    if isinstance(adj, (tuple, list)):
        hint = f"; its parts must be tensors, not {', '.join(type(part).__name__ for part in adj[:4])}"
    raise TypeError(
        f"cannot make a CSR of {type(adj).__name__}; give a fusedmm.CSR, a torch sparse tensor, "
        "(ptr, idx[, val[, shape]]), an edge_index [2, nnz], a SparseTensor, a DGL graph or a scipy sparse "
        f"matrix{hint}"
    )


def operand(op: str, name: str, adj: Any, size: Size = None) -> CSR:
    """Does what ``as_csr`` does for an argument of an operator, both of which its errors then name."""
    try:
        return as_csr(adj, size=size)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{op}: {name}: {error}") from None


def lent(op: str, name: str, adj: Any, x: Any, size: Size) -> CSR:
    """Does what ``operand`` does for one product with x: where no gradient keeps the values of a sparse tensor, they
    are not copied."""
    if type(adj) is not Tensor or adj.layout not in (torch.sparse_csr, torch.sparse_csc) or not _is_free(adj, x):
        return operand(op, name, adj, size)
    known: CSR | None = _recall(_known, adj, _mark(adj), adj.shape, True)
    return operand(op, name, adj, size) if known is None else known.with_values(as_values(adj.values()))


def _is_free(*operands: Any) -> bool:
    """Tells whether a product of these leaves nothing behind for a gradient, for compiled code or for a trace."""
    if torch.compiler.is_compiling() or are_transforms_active() or is_tracing():
        return False
    return not torch.is_grad_enabled() or not any(isinstance(t, Tensor) and t.requires_grad for t in operands)


def _from_tuple(parts: Any, check: bool) -> CSR:
    """``_from_csr``, whose errors point to the constructors of what else a tuple may be meant to be."""
    first, second = parts[:2]
    pair = is_strided(first) and isinstance(second, Tensor) and is_strided(second)
    if pair and first.dim() == 2 and first.shape[0] == 2:
        raise ValueError(
            "a tuple is (ptr, idx[, val[, shape]]): of (edge_index, edge_weight) CSR.from_edge_index makes a matrix"
        )
    try:
        return _from_csr(*parts, check=check)
    except ValueError as error:
        if not pair or first.shape != second.shape:
            raise
        hint = "a tuple is (ptr, idx[, val[, shape]]); of (row, col[, val]) CSR.from_coo makes a matrix"
        raise ValueError(f"{error}; {hint}") from None


def _from_csr(ptr: Tensor, idx: Tensor, val: Tensor | None = None, shape: Any = None, *, check: bool) -> CSR:
    """Does what ``CSR.from_csr`` does, and remembers the structure as long as idx and ptr live unchanged."""
    if not isinstance(idx, Tensor) or torch.compiler.is_compiling() or are_transforms_active():
        return CSR.from_csr(ptr, idx, val, shape, check=check)
    size, of_idx, of_ptr = None if shape is None else require_shape(shape), _mark(idx), _mark(ptr)
    mark = None if of_idx is None or of_ptr is None else (of_idx, of_ptr, WeakIdRef(ptr))
    known: CSR | None = _recall(_known, idx, mark, size, check)
    if known is not None:
        return known if val is None else known.with_values(as_values(val))
    made = CSR.from_csr(ptr, idx, val, shape, check=check)
    _remember(_known, idx, mark, size, check, made.pattern(), ptr)
    return made


def looped(adj: Any, size: tuple[int, int]) -> Looped[CSR]:
    """Returns ``with_loops(as_csr(adj, size=size))``, in one call of the library for an edge_index that was not seen
    before."""
    if torch.compiler.is_dynamo_compiling() and isinstance(adj, Tensor):
        return outside(CONVERTED, looped, adj, size)
    if are_transforms_active():
        adj = plain(adj)
    if type(adj) is not Tensor or torch.compiler.is_compiling():
        return with_loops(as_csr(adj, size=size))
    mark = _mark(adj)
    known: Looped[CSR] | None = _recall(_looped, adj, mark, size, True)
    if known is None:
        if not is_edge_index(adj):
            return with_loops(as_csr(adj, size=size))
        size = require_shape(size, "size")
        if _recall(_known, adj, mark, size, True) is None:
            known = looped_edges(CSR, adj, *size)
        known = with_loops(as_csr(adj, size=size)) if known is None else known
        _remember(_looped, adj, mark, size, True, known)
    return known


def is_edge_index(adj: Any) -> bool:
    """Tells whether adj is a structure alone, in the form that neighbour samplers give."""
    if not isinstance(adj, Tensor) or not is_strided(adj) or adj.dtype not in INTEGERS:
        return False
    return adj.dim() == 2 and adj.shape[0] == 2


def settle(csr: CSR, edge_index: Any) -> None:
    """Waits for the answer of a check that was DEFERRED, if there is one.

    Raises:
        ValueError: an index outside; the text has it.
    """
    shared = csr._shared
    if shared is None or shared.ticket is None:
        return
    if is_outside(csr.ptr, shared.ticket):
        col, row = edge_index.long().unbind()
        require_inside(row, col, *csr.shape, EDGE_PLACES)
        raise ValueError("edge_index had an index outside when the layer read it, and was written to since")
    shared.ticket = None


def _from_tensor(adj: Tensor, size: Size, check: int) -> CSR:
    if torch.compiler.is_dynamo_compiling():
        return outside(CONVERTED, _with_transpose, adj, size, bool(check))
    if are_transforms_active():
        adj = plain(adj)
    if size is not None:
        size = require_size(size)
    if type(adj) is not Tensor and adj.layout == torch.strided and hasattr(adj, "sparse_size"):  # PyG's EdgeIndex
        known = adj.sparse_size()
        if known != (None, None):  # what it knows is surer than what x suggests
            given = size or [adj.get_sparse_size(d) for d in (0, 1)]  # type: ignore[attr-defined]
            size = require_size(tuple(a if b is None else b for a, b in zip(given, known, strict=True)))
        adj = adj.as_tensor()  # type: ignore[attr-defined]
    strided = adj.layout == torch.strided
    uncoalesced = not strided and adj.layout == torch.sparse_coo and not adj.is_coalesced()
    if (uncoalesced and adj.requires_grad) or torch.compiler.is_compiling():
        return _convert(adj, size, bool(check))
    mark, key = _mark(adj), size if strided else adj.shape
    csr = _recall(_known, adj, mark, key, check)
    if csr is not None:
        if strided:
            return csr
        return csr.with_values(own_values(raw_values(adj) if uncoalesced else adj.values()))
    if strided and size is not None and is_edge_index(adj):
        waits = check != DEFERRED or adj.shape[1] > FEW or not adj.is_cuda or is_captured(adj)
        csr = from_edges(CSR, adj, None, *size, bool(check) if waits else check)
    else:
        csr = _convert(adj, size, bool(check))
    _remember(_known, adj, mark, key, check, csr.pattern())
    return csr


def _with_transpose(adj: Tensor, size: Size, check: bool) -> CSR:
    """Returns a CSR with its transpose, which gradients in compiled code need beforehand."""
    csr = _from_tensor(adj, size, check)
    return csr.cache_transpose() if torch.is_grad_enabled() else csr


def _mark(t: Tensor) -> Mark | None:
    """Returns a value that changes when the tensor does; None for traced tensors, and where torch counts no writes."""
    try:
        if t.layout == torch.strided:
            return writes_to(t), storage_number(t), t.data_ptr(), t.shape, t.stride(), t.dtype
        if t.layout != torch.sparse_coo:  # torch puts no other tensors in the place of a compressed one's
            return (writes_to(t),)
        indices = _mark(raw_indices(t))
        return None if indices is None else (writes_to(t), *indices)
    except RuntimeError:
        return None


def _recall(known: dict[int, Remembered], adj: Tensor, mark: Mark | None, size: Any, check: int) -> Any:
    found = known.get(id(adj))
    if found is None or found.of() is not adj or found.mark != mark:
        return None
    checked, made = found.made.get(size, (False, None))
    if check and not checked:
        return None
    return None if isinstance(made, CSR) and shared_by(made).ticket is not None else made


def _remember(
    known: dict[int, Remembered], adj: Tensor, mark: Mark | None, size: Any, check: int, made: Any, *others: Tensor
) -> None:
    """Remembers a structure for a tensor and a size; others are further tensors that the mark was made of."""
    if mark is None:
        return
    key = id(adj)
    if not others and adj.layout == torch.strided:  # as of every new batch
        storages: tuple[StorageWeakRef, ...] = (StorageWeakRef(adj.untyped_storage()),)
    else:
        dense = (raw_indices(t) if t.layout == torch.sparse_coo else t for t in (adj, *others))
        storages = tuple(StorageWeakRef(t.untyped_storage()) for t in dense if t.layout == torch.strided)
    with _lock:
        found = known.get(key)
        sizes = {} if found is None or found.of() is not adj or found.mark != mark else dict(found.made)
        sizes.pop(size, None)
        while len(sizes) >= SIZES:
            del sizes[next(iter(sizes))]
        # The callback takes no lock: it may come while this thread holds it.
        of = weakref.ref(adj, lambda _: known.pop(key, None))
        known[key] = Remembered(of, mark, storages, sizes | {size: (check, made)})


def _convert(adj: Tensor, size: Size, check: bool) -> CSR:
    if adj.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo):
        return CSR.from_torch(adj, check=check)
    if not is_strided(adj):
        what = "a nested tensor" if adj.is_nested else f"a tensor of layout {adj.layout}"
        raise TypeError(f"cannot make a CSR of {what}")
    if adj.dtype not in INTEGERS:
        raise TypeError(
            f"a dense tensor {list(adj.shape)} of {adj.dtype} is no graph; an edge_index is [2, nnz] of "
            "integers, and CSR.from_dense takes the entries of a dense matrix that are not zero"
        )
    return CSR.from_edge_index(adj, size=size, check=check)
