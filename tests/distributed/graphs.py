"""Graphs and the ways in which ranks share them, for all tests of this folder."""

import torch
from support.ranks import Whole

draw = torch.Generator().manual_seed(1)
N, E = 60, 420


def random_edges(rows: int, cols: int, edges: int):
    """Edges in no order, with a hub, repeated ones, self loops, and nodes 20 to 24 without any."""
    row, col = torch.randint(rows, (edges,), generator=draw), torch.randint(cols, (edges,), generator=draw)
    row[: edges // 8] = 7
    row[200:230], col[200:230] = row[100:130].clone(), col[100:130].clone()
    same = slice(240, 260)
    col[same] = row[same] % cols
    keep = (row < 20) | (row > 24)
    keep &= (col < 20) | (col > 24)
    return row[keep], col[keep]


ROW, COL = random_edges(N, N, E)
MIRRORED = torch.cat([ROW, COL]), torch.cat([COL, ROW])
WIDE = random_edges(40, 90, E)


def square(offsets, lists=None) -> Whole:
    return Whole(ROW, COL, (N, N), offsets, lists=lists)


NNZ = ROW.numel()
CUTS = {  # each names what is particular about it
    "one rank": lambda: square([0, 60]),
    "two even ranks": lambda: square([0, 30, 60]),
    "a rank without rows": lambda: square([0, 13, 13, 60]),
    "a rank without entries": lambda: square([0, 20, 25, 60]),
    "four ranks, edges with one": lambda: square([0, 8, 30, 31, 60], [0, 0, NNZ, NNZ, NNZ]),
    "no halo": lambda: Whole(ROW // 30 * 30 + COL % 30, ROW // 30 * 30 + ROW % 30, (N, N), [0, 30, 60]),
    "no edges": lambda: Whole(ROW[:0], COL[:0], (N, N), [0, 20, 60]),
    "mirrored": lambda: Whole(*MIRRORED, (N, N), [0, 17, 42, 60]),
    "rectangular": lambda: Whole(*WIDE, (40, 90), [0, 5, 30, 40], [0, 50, 50, 90]),
    "eight ranks": lambda: square([0, 1, 9, 9, 22, 30, 41, 59, 60]),
}
SQUARE = [name for name in CUTS if name != "rectangular"]
FEW = ["a rank without rows", "four ranks, edges with one", "mirrored"]


def normal(*shape: int, dtype=torch.float32):
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)
