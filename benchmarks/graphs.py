"""The matrices: files of real graphs, R-MAT twins that have the node and edge counts of public ones, and
patterns of pruned networks."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedmm import CSR
from fusedmm.data import banded, find_graph, load_npz, stencil

# name: nodes, drawn edges (those of the public graph, before duplicates go), R-MAT or uniform
TWINS = {
    "arxiv-size": (169_343, 1_166_243, True),
    "collab-size": (235_868, 2_358_104, True),
    "citation-size": (2_927_963, 30_561_187, True),
    "ddi-size": (4_267, 2_135_822, False),
    "proteins-size": (132_534, 79_122_504, True),
    "ppa-size": (576_289, 42_463_862, True),
    "reddit-size": (232_965, 114_615_892, True),
    "products-size": (2_449_029, 123_718_280, True),
    "youtube-size": (1_138_499, 5_980_886, True),
    "amazon-size": (1_569_960, 264_339_468, True),
    "yelp-size": (716_847, 13_954_819, True),
    "wikikg2-size": (2_500_604, 17_137_181, True),
    "am-size": (881_680, 5_668_682, True),
}

# name: nodes, pairs of neighbours; every pair stands in both directions, so twice as many entries, exactly
SYMMETRIC = {
    "arxiv-symmetric": (169_343, 1_166_243),
    "reddit-symmetric": (232_965, 57_307_946),
    "products-symmetric": (2_449_029, 61_859_140),
}

# rows and columns in thousands (1,024), of the layers of pruned networks; and the shares of zeros
LAYERS = [(1, 1), (3, 1), (4, 1), (2, 2), (6, 2), (8, 2), (4, 4), (12, 4), (16, 4), (8, 8), (24, 8), (32, 8)]
PRUNED = [f"{m * 1024}x{k * 1024} {z}%" for m, k in LAYERS for z in (70, 80, 90)]
SIZES = [f"{m}x{m // 2} 90%" for m in (1024, 2048, 4096, 8192)]
SWEEPS = SIZES + [f"8192x4096 {z}%" for z in (85, 95, 99)]

# neighbours, a point itself counted, and side of a grid of as many dimensions as the power says
STENCILS = [f"{points}-point {side}" for points, side in ((3, "1000000^1"), (5, "1000^2"), (9, "1000^2"), (7, "100^3"))]
STENCILS += ["27-point 100^3", "5-point 4000^2", "7-point 256^3"]
MESHES = ["5-point 500^2", "9-point 400^2", "7-point 50^3", "33-point 50000^1"]  # for sparse products
LAPLACIANS = ["5-point 3873^2", "9-point 3873^2", "7-point 247^3"]  # of 1.5e7 rows, for sparse products on CUDA
UNIFORM = {"uniform-16": (2**15, 2**19, False)}

SUITES = {
    "graphs": [],
    "meshes": [*MESHES, *UNIFORM, "arxiv-size"],
    "twins": list(TWINS),
    "symmetric": list(SYMMETRIC),
    "pruned": PRUNED,
    "sweeps": SWEEPS,
    "stencils": STENCILS,
    "laplacians": LAPLACIANS,
}


def names(suite: str) -> list[str]:
    """The matrices of a suite; of the files those that are there.

    Raises:
        FileNotFoundError: no folder of graphs.
    """
    return SUITES[suite] or sorted(path.stem for path in find_graph("cora").parent.glob("*.npz"))


def require(name: str) -> None:
    """Raises:
    FileNotFoundError: ``load`` does not know that matrix; the text has those that exist.
    """
    made = [*TWINS, *UNIFORM, *SYMMETRIC]
    if name in made or name.endswith("%") or "-point " in name or " full of " in name:
        return
    try:
        find_graph(name)
    except FileNotFoundError as error:
        known = ", ".join([*names("graphs"), *made])
        form = "'5-point 1000^2', '1024x512 90%' or '32 full of 118'"
        raise FileNotFoundError(f"{error}; there are {known}, and matrices such as {form}") from None


def load(name: str, device: str) -> CSR:
    """The pattern of a twin, of a stencil ("5-point 1000^2"), of a pruned layer ("1024x512 90%", zeros drawn from a
    seed), or of a file.

    Raises:
        FileNotFoundError: no such graph.
    """
    twins = TWINS | UNIFORM
    if name in twins:
        return _twin(*twins[name], device)
    if name in SYMMETRIC:
        return symmetric(*SYMMETRIC[name], device)
    if "-point " in name:
        points, side, dimensions = (int(n) for n in name.replace("-point ", "^").split("^"))
        made = banded(side, points // 2) if dimensions == 1 else stencil(*[side] * dimensions, points=points)
        return made.pattern().to(device)
    if " full of " in name:
        count, nodes = (int(n) for n in name.split(" full of "))
        return _full(count, nodes, device)
    if name.endswith("%"):
        size, zeros = name[:-1].split()
        rows, cols = (int(n) for n in size.split("x"))
        return uniform(rows, cols, 1 - int(zeros) / 100, device)
    return load_npz(find_graph(name)).adj.pattern().to(device)


def uniform(rows: int, cols: int, density: float, device: str) -> CSR:
    """Every position an entry with the same probability."""
    generator = torch.Generator(device).manual_seed(0)
    kept = torch.rand(rows, cols, generator=generator, device=device) < density
    return _from_keys(kept.view(-1).nonzero().view(-1), rows, cols)


def _full(count: int, nodes: int, device: str) -> CSR:
    """A batch of graphs, in each of which every node points to every node."""
    row = torch.arange(count * nodes, device=device)
    column = row[:, None] // nodes * nodes + torch.arange(nodes, device=device)
    return _from_keys((row[:, None] * row.numel() + column).view(-1), row.numel(), row.numel())


def symmetric(n: int, pairs: int, device: str) -> CSR:
    """An undirected R-MAT graph of exactly that many pairs, no loops, nodes permuted, columns sorted."""
    generator = torch.Generator(device).manual_seed(0)
    permutation = torch.randperm(n, generator=generator, device=device)
    keys = torch.empty(0, dtype=torch.int64, device=device)
    while keys.numel() < pairs:
        row, col = (permutation[t] for t in _rmat(n, min(2**24, 2 * pairs), generator))
        apart = row != col
        drawn = torch.minimum(row, col)[apart] * n + torch.maximum(row, col)[apart]
        keys = torch.cat([keys, drawn]).unique()
    chosen = torch.randperm(keys.numel(), generator=generator, device=device)[:pairs]
    low, high = keys[chosen] // n, keys[chosen] % n
    del keys, chosen
    return _from_keys(torch.cat([low * n + high, high * n + low]).sort().values, n, n)


def _from_keys(key: Tensor, rows: int, cols: int) -> CSR:
    """The pattern of sorted, distinct positions row * cols + col."""
    ptr = torch.searchsorted(key, torch.arange(rows + 1, device=key.device) * cols)
    return CSR.from_csr(ptr, key % cols, shape=(rows, cols))


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
    return _from_keys(torch.cat(parts).unique(), n, n)


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
