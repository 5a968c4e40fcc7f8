"""Graphs and matrices from files, none of which is trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusedmm.data.graph import Graph, extra
from fusedmm.matrix.csr import CSR

Array = np.ndarray[Any, Any]


def find_graph(name: str) -> Path:
    """The path of a graph file, ``"cora"`` or ``"cora.npz"``.

    It is looked for in the folder that ``$FUSEDMM_GRAPHS`` names, else in ``../shared/graphs`` seen from
    the root of the repository.

    Raises:
        FileNotFoundError: it is in neither; the text says what to do.

    Example:
        >>> from fusedmm import data
        >>> data.find_graph("no-such-graph")
        Traceback (most recent call last):
        FileNotFoundError: no no-such-graph.npz: give a path to a file, or its folder in $FUSEDMM_GRAPHS ...
    """
    file = name if name.endswith(".npz") else f"{name}.npz"
    beside = Path(__file__).resolve().parents[3] / "shared" / "graphs"
    named = os.environ.get("FUSEDMM_GRAPHS")
    for folder in [Path(named), beside] if named else [beside]:
        if (folder / file).is_file():
            return folder / file
    where = f"$FUSEDMM_GRAPHS ({named or 'not set'})"
    raise FileNotFoundError(f"no {file}: give a path to a file, or its folder in {where}")


class _Archive:
    """Holds the arrays of an npz file, read without unpickling; every complaint names file and key."""

    def __init__(self, path: Path, arrays: Mapping[str, Array]) -> None:
        self.path, self.arrays = path, arrays

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def wrong(self, key: str, problem: object) -> ValueError:
        return ValueError(f"{self.path}: {key}: {problem}")

    def array(self, key: str, kinds: str, dtype: type, dim: int = 1) -> Array:
        if key not in self:
            raise self.wrong(key, "missing")
        try:
            array = self.arrays[key]
        except Exception as error:  # zip, zlib and npy each have their own for a damaged member
            raise self.wrong(key, error) from error
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds or array.ndim != dim:
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "not an array"
            wanted = {"iu": "integers", "b": "booleans"}.get(kinds, "numbers")
            raise self.wrong(key, f"must be {wanted} in {dim} dimension{'s' * (dim > 1)}, is {found}")
        with np.errstate(over="ignore"):  # a number beyond float32 becomes inf
            return np.ascontiguousarray(array.astype(dtype))

    def ids(self, key: str) -> Tensor:
        return torch.from_numpy(self.array(key, "iu", np.int64))

    def csr(self, prefix: str, data: str | None = None) -> CSR:
        """Returns the matrix of ``{prefix}indptr``, ``{prefix}indices`` and ``{prefix}shape``."""
        ptr, idx, shape = self.ids(f"{prefix}indptr"), self.ids(f"{prefix}indices"), self.ids(f"{prefix}shape")
        if shape.numel() != 2:
            raise self.wrong(f"{prefix}shape", f"must be rows and columns, has {shape.numel()} elements")
        val = None if data is None else torch.from_numpy(self.array(data, "fiu", np.float32))
        if data is not None and val is not None and val.numel() != idx.numel():
            raise self.wrong(data, f"{val.numel()} elements for {idx.numel()} of {prefix}indices")
        try:
            return CSR.from_csr(ptr, idx, val, (int(shape[0]), int(shape[1])))
        except ValueError as error:
            raise self.wrong(f"{prefix}indptr, {prefix}indices, {prefix}shape", error) from error

    def features(self, nodes: int) -> Tensor:
        matrix = self.csr("x_", "x_data")
        if matrix.shape[0] != nodes:
            raise self.wrong("x_shape", f"{matrix.shape[0]} rows for {nodes} nodes")
        try:
            return matrix.to_dense()
        except (RuntimeError, MemoryError) as error:
            raise self.wrong("x_shape", f"{list(matrix.shape)} does not fit into memory") from error

    def labels(self, nodes: int) -> Tensor:
        y = self.ids("y")
        if y.numel() != nodes:
            raise self.wrong("y", f"{y.numel()} elements for {nodes} nodes")
        if nodes and int(y.min()) < 0:
            raise self.wrong("y", f"the label {int(y.min())} is negative")
        if nodes and int(y.max()) >= nodes:
            raise self.wrong("y", f"the label {int(y.max())} for {nodes} nodes: labels count from 0")
        return y

    def part(self, name: str, split: int, nodes: int) -> Tensor | None:
        """Returns node ids of one part of a split, given as ids or as one mask per split."""
        masks = f"{name}_masks"
        if name in self:
            ids = self.ids(name)
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < nodes:
                raise self.wrong(name, f"node ids must be in [0, {nodes})")
            return ids
        if masks not in self:
            return None
        mask = self.array(masks, "b", np.bool_, 2)
        if mask.shape[1] != nodes or split >= mask.shape[0]:
            raise self.wrong(masks, f"is {list(mask.shape)}; split {split} of {nodes} nodes is wanted")
        return torch.from_numpy(np.flatnonzero(mask[split]))


def load_npz(path: str | os.PathLike[str], split: int = 0) -> Graph:
    """Loads a graph file; nothing in it is ever unpickled.

    Args:
        path: an npz archive of ``indptr indices shape`` (adjacency) and, where known, ``x_indptr
            x_indices x_data x_shape`` (features), ``y`` (labels), ``train val test`` (node ids) or
            ``train_masks val_masks test_masks`` (booleans [splits, nodes]).
        split: which of several splits.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is malformed; the text names the file and the key.

    Example:
        >>> from fusedmm import data
        >>> import pathlib, tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "ring.npz")
        ...     np.savez(path, indptr=np.arange(4), indices=np.array([1, 2, 0]), shape=np.array([3, 3]))
        ...     data.load_npz(path).adj
        CSR(shape=(3, 3), nnz=3, val=none, device=cpu)
    """
    path = Path(path)
    if split < 0:
        raise ValueError(f"split must not be negative, is {split}")
    with path.open("rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
        except Exception as error:
            raise ValueError(f"{path}: not an npz archive") from error
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError(f"{path}: not an npz archive but a single array")
        archive = _Archive(path, arrays)
        adj = archive.csr("")
        nodes = adj.shape[0]
        x = archive.features(nodes) if "x_indptr" in archive else None
        y = archive.labels(nodes) if "y" in archive else None
        parts = {name: archive.part(name, split, nodes) for name in ("train", "val", "test")}
    return Graph(adj, x, y, **parts)


def load_matrix_market(path: str | os.PathLike[str]) -> CSR:
    """Loads a Matrix Market file through scipy; a pattern file has no values.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is malformed or complex.
        ImportError: scipy is not installed.

    Example:
        >>> from fusedmm import data
        >>> import pathlib, tempfile
        >>> text = "%%MatrixMarket matrix coordinate real general\\n2 2 1\\n1 2 0.5\\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "one.mtx")
        ...     _ = path.write_text(text)
        ...     data.load_matrix_market(path)
        CSR(shape=(2, 2), nnz=1, val=float64[1], device=cpu)
    """
    io, sparse = extra("scipy.io", "scipy"), extra("scipy.sparse", "scipy")
    Path(path).open("rb").close()  # scipy's own error for a missing file differs by version
    try:
        field = io.mminfo(path)[4]
        matrix = sparse.csr_array(io.mmread(path)) if field != "complex" else None
    except Exception as error:
        raise ValueError(f"{path}: {error}") from error
    if matrix is None:
        raise ValueError(f"{path}: complex values are not supported")
    adj = CSR.from_scipy(matrix)
    return adj.pattern() if field == "pattern" else adj
