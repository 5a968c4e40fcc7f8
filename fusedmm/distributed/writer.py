"""Writing the shards of a graph piece by piece, so that no machine ever holds the whole."""

from __future__ import annotations

import json
import operator
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusedmm.distributed.shards import DTYPES, FLOATS, FORMAT, GRAPH, INTEGERS, NODE, VERSION, Array, digest, spans
from fusedmm.matrix.arguments import require_range


class ShardWriter:
    """Writes a matrix [rows, cols], and arrays with a row for each of its rows, to a folder that ``Shards`` reads.

    Edges may come in any order and in pieces of any size. They wait in a file of the folder, 24 bytes each and those of
    a value, until ``close`` sorts them part by part: memory holds a few copies of a piece, or of a part's entries.
    Within a row entries are sorted by column, and those of one column stay in the order of arrival, as in
    ``CSR.from_edge_index``. ``graph.json`` comes last and at once: a folder that has one is complete.

    ``with`` closes at the end; after an exception it leaves a folder without ``graph.json``.

    Args:
        folder: is made; nothing may be in it.
        rows, cols: the shape of the matrix.
        offsets: [parts + 1], the first row of each part, and last the number of rows.

    Raises:
        FileExistsError: something is in the folder.
        TypeError, ValueError: rows, cols or offsets are wrong.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with fusedmm.distributed.ShardWriter(folder.name, 3, 3, [0, 1, 3]) as writer:
        ...     writer.add_edges(row=torch.tensor([2, 0]), col=torch.tensor([1, 2]))
        ...     writer.add_edges(row=torch.tensor([2]), col=torch.tensor([0]))
        ...     writer.add_nodes(y=torch.tensor([4, 5, 6]))
        >>> local = fusedmm.distributed.Shards(folder.name).local(rank=1, ranks=2)
        >>> local.ptr, local.idx, local.edge_ids, local.nodes["y"]
        (tensor([0, 0, 2]), tensor([0, 1]), tensor([2, 0]), tensor([5, 6]))
        >>> folder.cleanup()
    """

    def __init__(self, folder: str | os.PathLike[str], rows: int, cols: int, offsets: Any) -> None:
        self.shape = operator.index(rows), operator.index(cols)
        self.offsets = cuts = _numbers("offsets", offsets, INTEGERS).astype(np.int64)
        if cuts.ndim != 1 or cuts.size < 2 or cuts[0] != 0 or cuts[-1] != rows or (np.diff(cuts) < 0).any() or cols < 0:
            raise ValueError(f"offsets must begin with 0, never fall, and end with the rows of the shape {self.shape}")
        self.nnz = 0
        self._kind: Any = None  # dtype and shape of a value; known from the first piece of edges on
        self._counts: list[Array] = []  # edges of each piece in each part
        self._nodes: dict[str, Array] = {}
        self._filled: dict[str, int] = {}  # rows of each array that were added
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise FileExistsError(f"{folder}: something is in the folder")
        self._waiting = (self.folder / "edges.tmp").open("xb")

    def add_edges(self, row: Any, col: Any, val: Any = None) -> None:
        """Adds entries; row is the target and col the source of an edge.

        Args:
            row, col: tensors or arrays [n] of integers.
            val: [n] or [n, heads], float16, float32 or float64; in every piece or in none.

        Raises:
            TypeError, ValueError: dtypes, shapes or coordinates that are wrong, values unlike those of earlier pieces,
                or the writer is closed; nothing of the piece was added.
            OSError: the disk is full; nothing was added either.
        """
        self._require_open()
        ends = []
        for name, places, end in (("row", row, self.shape[0]), ("col", col, self.shape[1])):
            array = _numbers(name, places, INTEGERS)
            if array.ndim != 1:
                raise ValueError(f"{name} must have 1 dimension, not {array.ndim}")
            ends.append(torch.from_numpy(array.astype(np.int64)))
            require_range(name + "[{}]", ends[-1], end)
        row, col = ends
        values = None if val is None else _numbers("val", val, FLOATS)
        if row.shape != col.shape:
            raise ValueError(f"row has {row.numel()} elements and col {col.numel()}")
        if values is not None and (values.ndim not in (1, 2) or len(values) != row.numel()):
            raise ValueError(f"val must be [{row.numel()}] or [{row.numel()}, heads], not {list(values.shape)}")
        kind = () if values is None else (("val", values.dtype.str, values.shape[1:]),)
        if self._kind not in (None, kind):
            raise ValueError(f"val: earlier edges have {self._kind or 'none'}, these {kind or 'none'}")
        edges = np.empty(row.numel(), dtype=[("row", "<i8"), ("col", "<i8"), ("id", "<i8"), *kind])
        edges["row"], edges["col"], edges["id"] = row, col, np.arange(self.nnz, self.nnz + edges.size)
        if values is not None:
            edges["val"] = values
        part = np.searchsorted(self.offsets, edges["row"], side="right") - 1
        self._waiting.seek(self.nnz * edges.itemsize)  # back, where a full disk ended an earlier piece
        edges[np.argsort(part, kind="stable")].tofile(self._waiting)
        self._kind = kind
        self._counts.append(np.bincount(part, minlength=self.offsets.size - 1))
        self.nnz += edges.size

    def add_nodes(self, **arrays: Any) -> None:
        """Adds the next rows of arrays [rows, ...], such as x, y and train.

        Args:
            arrays: tensors or arrays [n, ...] of booleans, integers or floats; each begins where its last piece ended.

        Raises:
            TypeError, ValueError: dtypes, shapes unlike those of earlier pieces, more rows than the matrix has, or the
                writer is closed; nothing of the piece was added.
        """
        self._require_open()
        pieces = {name: _numbers(name, array, DTYPES) for name, array in arrays.items()}
        for name, piece in pieces.items():
            known, filled = self._nodes.get(name), self._filled.get(name, 0)
            if not NODE.fullmatch(f"node_{name}"):
                raise ValueError(f"the name {name!r} must be letters, digits and underscores")
            if not piece.ndim or filled + len(piece) > self.shape[0]:
                raise ValueError(f"{name}: {list(piece.shape)} after {filled} of {self.shape[0]} rows")
            if known is not None and (known.dtype, known.shape[1:]) != (piece.dtype, piece.shape[1:]):
                raise ValueError(f"{name}: {piece.dtype} {list(piece.shape)} after {known.dtype} {list(known.shape)}")
        for name, piece in pieces.items():
            if name not in self._nodes:
                self._nodes[name] = self._array(f"node_{name}", piece.dtype, (self.shape[0], *piece.shape[1:]))
            filled = self._filled.get(name, 0)
            self._nodes[name][filled : filled + len(piece)] = piece
            self._filled[name] = filled + len(piece)

    def close(self) -> None:
        """Sorts the edges and writes ``graph.json``.

        Raises:
            ValueError: rows of an array are missing, or the writer is closed.
        """
        self._require_open()
        for name, filled in self._filled.items():
            if filled < self.shape[0]:
                raise ValueError(f"{name}: {filled} of {self.shape[0]} rows were added")
        self._waiting.close()
        arrays = self._sorted() | {f"node_{name}": array for name, array in self._nodes.items()}
        described = {}
        for name, array in arrays.items():
            array.flush()
            sha256 = [digest(array, *span) for span in spans(name, arrays["ptr"], self.offsets)]
            described[name] = {"dtype": array.dtype.str, "shape": array.shape, "sha256": sha256}
        graph = {"format": FORMAT, "version": VERSION, "shape": self.shape, "entries": self.nnz}
        graph |= {"offsets": self.offsets.tolist(), "arrays": described}
        (self.folder / "edges.tmp").unlink()
        with (self.folder / "graph.tmp").open("w") as file:
            json.dump(graph, file)
            file.flush()
            os.fsync(file.fileno())
        (self.folder / "graph.tmp").replace(self.folder / GRAPH)

    def _sorted(self) -> dict[str, Any]:
        """The arrays of the matrix. Pieces lie one after the other, each in the order of the parts."""
        fields = [("row", "<i8"), ("col", "<i8"), ("id", "<i8"), *(self._kind or ())]
        path, counts = self.folder / "edges.tmp", np.array(self._counts, np.int64).reshape(-1, self.offsets.size - 1)
        waiting = np.memmap(path, fields, "r") if self.nnz else np.empty(0, fields)
        ends = counts.cumsum().reshape(counts.shape)
        arrays = {"ptr": self._array("ptr", "<i8", (self.shape[0] + 1,))}
        for name, dtype, width in [("idx", "<i8", ()), ("edge_ids", "<i8", ()), *(self._kind or ())]:
            arrays[name] = self._array(name, dtype, (self.nnz, *width))
        at = 0
        for part, (first, last) in enumerate(pairwise(self.offsets.tolist())):
            where = [slice(end - n, end) for n, end in zip(counts[:, part], ends[:, part], strict=True) if n]
            edges = np.concatenate([waiting[:0], *(waiting[span] for span in where)])
            row, col = (torch.from_numpy(edges[name].copy()) for name in ("row", "col"))
            order = torch.sort(col, stable=True).indices  # two sorts by 64 bits are quicker than numpy's by a pair
            edges = edges[order[torch.sort(row[order], stable=True).indices].numpy()]
            own = slice(at, at + edges.size)
            for name, field in (("idx", "col"), ("edge_ids", "id"), ("val", "val")):
                if name in arrays:
                    arrays[name][own] = edges[field]
            arrays["ptr"][first + 1 : last + 1] = (
                at + np.bincount(edges["row"] - first, minlength=last - first).cumsum()
            )
            at += edges.size
        return arrays

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        path = self.folder / f"{name}.npy"
        array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with path.open("r+b") as file:  # a full disk is an error here, where the map would end the process
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    def _require_open(self) -> None:
        if self._waiting.closed:
            raise ValueError(f"{self.folder}: the writer is closed")

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None and not self._waiting.closed:
            self.close()
        self._waiting.close()


def _numbers(name: str, what: Any, dtypes: tuple[str, ...]) -> Array:
    """A tensor, an array or a list as an array of one of the dtypes."""
    try:
        array: Array = what.detach().cpu().numpy() if isinstance(what, Tensor) else np.asarray(what)
    except TypeError as error:  # numpy has no bfloat16
        raise TypeError(f"{name}: {error}") from error
    if array.dtype.str not in dtypes:
        raise TypeError(f"{name} must be {', '.join(np.dtype(d).name for d in dtypes)}, not {array.dtype}")
    return array
