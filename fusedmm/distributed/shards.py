"""A graph as a folder of memory-mapped arrays, of which each rank reads the rows that it owns."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusedmm.matrix.arguments import require_flags, require_range

Array = np.ndarray[Any, Any]

FORMAT, VERSION = "fusedmm shards", 1
GRAPH = "graph.json"
ENTRIES = ("idx", "edge_ids", "val")  # arrays with a row for each entry; ptr comes before them
STRUCTURE = ("ptr", "idx", "edge_ids")
NODE = re.compile(r"node_([A-Za-z_][A-Za-z0-9_]*)")  # arrays with a row for each row of the matrix
INTEGERS = ("|u1", "|i1", "<i2", "<i4", "<i8")
FLOATS = ("<f2", "<f4", "<f8")
DTYPES = ("|b1", *INTEGERS, *FLOATS)


def spans(name: str, ptr: Array, offsets: Array) -> list[tuple[int, int]]:
    """Where in an array the parts between the offsets begin and end; a part's pointers have both its ends."""
    bounds = ptr[offsets] if name in ENTRIES else offsets
    return [(begin, end + (name == "ptr")) for begin, end in pairwise(bounds.tolist())]


def digest(array: Array, begin: int, end: int) -> str:
    """SHA-256 of the bytes of some rows."""
    return hashlib.sha256(array[begin:end].reshape(-1).view(np.uint8).data).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Local:
    """The rows of a matrix that one rank owns; made by ``Shards.local``.

    All but ptr and offsets are maps of the files, whose pages the system may drop and read again. What is written to
    them stays in this process.

    Attributes:
        offsets: int64 [ranks + 1]; rank r owns the rows ``offsets[r] <= i < offsets[r + 1]``.
        ptr: int64 [own rows + 1], from 0.
        idx: int64 [own entries], columns of the whole matrix.
        val: [own entries] or [own entries, heads], in the order of idx; None without values.
        edge_ids: int64 [own entries], the position of each entry in the order in which edges were added.
        nodes: a tensor [own rows, ...] for each name that ``add_nodes`` was given.

    Example:
        >>> import tempfile
        >>> ring = fusedmm.as_csr(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fusedmm.distributed.partition(ring, 4).write(folder)
        ...     fusedmm.distributed.Shards(folder).local(rank=1, ranks=2).idx
        tensor([1, 2])
    """

    offsets: Tensor
    ptr: Tensor
    idx: Tensor
    val: Tensor | None
    edge_ids: Tensor
    nodes: dict[str, Tensor]


class Shards:
    """A folder that ``ShardWriter``, or a program that keeps to docs/distributed.md, wrote.

    Opening reads ``graph.json`` and the arrays' headers. Nothing is ever unpickled.

    Attributes:
        shape: (rows, cols) of the whole matrix.
        nnz: its entries.
        offsets: int64 [parts + 1], the first row of each part.

    Raises:
        FileNotFoundError: the folder has no ``graph.json``, so that it was never finished.
        ValueError: a file is damaged, cut off, foreign or of another version; the text names file and field.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fusedmm.distributed.partition(fusedmm.data.banded(9, 1), 3).write(folder, x=torch.rand(9, 2))
        ...     fusedmm.distributed.Shards(folder)
        Shards(shape=(9, 9), nnz=25, parts=3, nodes=['old', 'x'])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        text = (self.folder / GRAPH).read_bytes()
        try:
            graph = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._wrong(GRAPH, error) from error
        if not isinstance(graph, dict) or graph.get("format") != FORMAT:
            raise self._wrong(GRAPH, f"format is not {FORMAT!r}: these are no shards")
        if graph.get("version") != VERSION:
            raise self._wrong(GRAPH, f"version {graph.get('version')!r}; this library reads version {VERSION}")
        shape = self._sizes("shape", graph.get("shape"))
        self.nnz = self._sizes("entries", [graph.get("entries")])[0]
        offsets = self._sizes("offsets", graph.get("offsets"))
        if len(shape) != 2:
            raise self._wrong(GRAPH, f"shape must be rows and columns, is {shape}")
        self.shape = shape[0], shape[1]
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != shape[0] or offsets != sorted(offsets):
            raise self._wrong(GRAPH, f"offsets must begin with 0, never fall, and end with the {shape[0]} rows")
        self.offsets = torch.tensor(offsets)
        arrays = graph.get("arrays")
        if not isinstance(arrays, dict) or not arrays.keys() >= set(STRUCTURE):
            raise self._wrong(GRAPH, "arrays must have ptr, idx and edge_ids")
        self._sha256: dict[str, list[str]] = {}
        self._arrays = {name: self._open(name, arrays[name]) for name in sorted(arrays, key=lambda name: name != "ptr")}

    def __repr__(self) -> str:
        nodes = [name.removeprefix("node_") for name in self._arrays if NODE.fullmatch(name)]
        return f"Shards(shape={self.shape}, nnz={self.nnz}, parts={self.offsets.numel() - 1}, nodes={nodes})"

    def local(self, rank: int, ranks: int, *, check: bool = True) -> Local:
        """The rows of a rank, which owns the parts ``rank * parts // ranks`` up to those of the next one.

        Args:
            rank, ranks: 0 <= rank < ranks <= parts.
            check: whether to compare the SHA-256 of all that the rank owns, which reads it once. Without it only ptr,
                idx and edge_ids are read.

        Raises:
            TypeError: check is neither True nor False.
            ValueError: more ranks than parts; content that is not what was written, or no matrix. The text names the
                file, and the part or the element.
        """
        require_flags("local", check=check)
        parts = self.offsets.numel() - 1
        if not 1 <= ranks <= parts:
            raise ValueError(f"{self.folder}: {parts} parts serve 1 to {parts} ranks, not {ranks}")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is outside [0, {ranks})")
        offsets = self.offsets[[r * parts // ranks for r in range(ranks + 1)]]
        first, last = rank * parts // ranks, (rank + 1) * parts // ranks
        own: dict[str, Tensor] = {}
        for name, array in self._arrays.items():
            where = spans(name, self._arrays["ptr"], self.offsets.numpy()[first : last + 1])
            for part, (begin, end) in enumerate(where, first):
                if check and digest(array, begin, end) != self._sha256[name][part]:
                    raise self._wrong(f"{name}.npy", f"part {part} is not what {GRAPH} has the sha256 of")
            own[name] = torch.from_numpy(array[where[0][0] : where[-1][1]])
            if name == "ptr":
                self._require_pointers(own[name], first == 0, last == parts)
        for name, end in (("idx", self.shape[1]), ("edge_ids", self.nnz)):
            try:
                require_range(name + "[{}]", own[name], end)
            except ValueError as error:
                raise self._wrong(f"{name}.npy", f"rank {rank} of {ranks}: {error}") from error
        nodes = {found[1]: own[name] for name in own if (found := NODE.fullmatch(name))}
        ptr = own["ptr"] - own["ptr"][0]
        return Local(offsets, ptr, own["idx"], own.get("val"), own["edge_ids"], nodes)

    def _wrong(self, file: str, problem: object) -> ValueError:
        return ValueError(f"{self.folder / file}: {problem}")

    def _sizes(self, field: str, sizes: Any) -> list[int]:
        if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size < 2**62 for size in sizes):
            raise self._wrong(GRAPH, f"{field} must be sizes, is {sizes!r:.80}")
        return sizes

    def _open(self, name: str, described: Any) -> Array:
        """The map of an array; its length, dtype and shape are what the matrix and ``graph.json`` say."""
        if name not in ("ptr", *ENTRIES) and not NODE.fullmatch(name):
            raise self._wrong(GRAPH, f"arrays: {name!r} is neither ptr, idx, edge_ids, val nor a node_ array")
        if not isinstance(described, dict):
            raise self._wrong(GRAPH, f"arrays: {name} must have dtype, shape and sha256")
        shape = self._sizes(f"arrays: {name}: shape", described.get("shape"))
        dtype, sha256 = described.get("dtype"), described.get("sha256")
        allowed = ("<i8",) if name in STRUCTURE else FLOATS if name == "val" else DTYPES
        if dtype not in allowed:
            raise self._wrong(GRAPH, f"arrays: {name}: dtype must be one of {', '.join(allowed)}, is {dtype!r}")
        length = self.nnz if name in ENTRIES else self.shape[0] + (name == "ptr")
        if shape[:1] != [length] or len(shape) > (1 if name in STRUCTURE else 2 if name == "val" else 32):
            raise self._wrong(GRAPH, f"arrays: {name}: shape must begin with {length}, is {shape}")
        if not isinstance(sha256, list) or len(sha256) != self.offsets.numel() - 1:
            raise self._wrong(GRAPH, f"arrays: {name}: sha256 must have one text for each part")
        self._sha256[name] = sha256
        path = self.folder / f"{name}.npy"
        try:
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except Exception as error:  # each way to be damaged has one of its own
            raise self._wrong(path.name, error) from error
        if not isinstance(array, np.memmap) or (array.dtype.str, list(array.shape)) != (dtype, shape):
            raise self._wrong(path.name, f"is not the array of dtype {dtype} and shape {shape} that {GRAPH} describes")
        if not array.flags.c_contiguous or path.stat().st_size != array.offset + array.nbytes:
            raise self._wrong(path.name, "rows must lie one after the other, up to the end of the file")
        return array

    def _require_pointers(self, ptr: Tensor, first: bool, last: bool) -> None:
        low, high = int(ptr[0]), int(ptr[-1])
        if bool((ptr.diff() < 0).any()) or low < 0 or high > self.nnz or (first and low) or (last and high < self.nnz):
            raise self._wrong("ptr.npy", f"must rise from 0 to the {self.nnz} entries")
