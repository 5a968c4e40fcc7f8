"""The matrices: files of real graphs, and R-MAT twins that have the node and edge counts of public ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fusedmm import CSR
from fusedmm.data import find_graph, load_npz

# name: nodes, drawn edges (those of the public graph, before duplicates go), R-MAT or uniform
TWINS = {
    "ddi-size": (4_267, 2_135_822, False),
    "arxiv-size": (169_343, 1_166_243, True),
    "proteins-size": (132_534, 79_122_504, True),
    "reddit-size": (232_965, 114_615_892, True),
    "products-size": (2_449_029, 123_718_280, True),
}


def suite(name: str, device: str, only: list[str] | None) -> Iterator[tuple[str, CSR]]:
    """Names and patterns of a suite, one at a time; ``only`` these if given.

    Raises:
        FileNotFoundError: no such graph, or no folder of graphs.
        KeyError: no such twin.
    """
    if name == "twins":
        for twin in only or TWINS:
            yield twin, _twin(*TWINS[twin], device)
        return
    for graph in only or sorted(path.stem for path in find_graph("cora").parent.glob("*.npz")):
        yield graph, load_npz(find_graph(graph)).adj.pattern().to(device)


def _twin(n: int, edges: int, rmat: bool, device: str) -> CSR:
    """Edges drawn from a seed, nodes permuted, duplicates removed, columns sorted."""
    generator = torch.Generator(device).manual_seed(0)
    permutation = torch.randperm(n, generator=generator, device=device)
    parts: list[Tensor] = []
    while edges:
        draw = min(edges, 2**24)
        if rmat:
            row, col = _rmat(n, draw, generator)
        else:
            row, col = torch.randint(n, (2, draw), generator=generator, device=device)
        edges -= row.numel()
        parts.append(permutation[row] * n + permutation[col])
    key = torch.cat(parts).unique()
    ptr = torch.zeros(n + 1, dtype=torch.int64, device=device)
    ptr[1:] = torch.bincount(key // n, minlength=n).cumsum(0)
    return CSR.from_csr(ptr, key % n, shape=(n, n))


def _rmat(n: int, edges: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most that many edges by recursive quadrants of probabilities .57, .19, .19 and the rest (Chakrabarti,
    Zhan, Faloutsos: R-MAT, SDM 2004); ends outside [0, n) are dropped."""
    row = torch.zeros(edges, dtype=torch.int64, device=generator.device)
    col = torch.zeros_like(row)
    for _ in range((n - 1).bit_length()):
        u = torch.rand(edges, generator=generator, device=generator.device)
        row = 2 * row + (u >= 0.76)
        col = 2 * col + (((u >= 0.57) & (u < 0.76)) | (u >= 0.95))
    inside = (row < n) & (col < n)
    return row[inside], col[inside]
