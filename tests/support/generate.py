"""Cases for the operators: structures x features x heads x dtypes x layouts x values x orders x data.

The full product has a hundred thousand cases; almost every fault needs two parameters at most to
show. So a covering array: every pair of levels of every two parameters is in at least one case.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor

import fusedmm
from support.bounds import assert_within, spmm_oracle

# ---- structures: (rows, cols, row, col), rows in order, columns in none ----

Coo = tuple[int, int, Tensor, Tensor]


def _random(rows: int, cols: int, nnz: int, seed: int) -> Coo:
    g = torch.Generator().manual_seed(seed)
    row = torch.randint(0, rows, (nnz,), generator=g).sort().values
    return rows, cols, row, torch.randint(0, cols, (nnz,), generator=g)


def _empty_rows() -> Coo:
    rows, cols, row, col = _random(40, 30, 70, 1)
    return rows, cols, row // 3 * 3, col


def _hub() -> Coo:
    """One row with 2,000 entries: several blocks of 512, and pieces of a split row."""
    rows, cols, row, col = _random(33, 1500, 2060, 2)
    row[30:2030] = 17
    return rows, cols, row.sort().values, col


def _hub_column() -> Coo:
    rows, cols, row, col = _random(1500, 33, 2060, 3)
    col[30:2030] = 17
    return rows, cols, row, col


def _power_law() -> Coo:
    g = torch.Generator().manual_seed(4)
    ends = (200 * torch.rand(2, 1500, generator=g) ** 3).long()
    return 200, 200, ends[0].sort().values, ends[1]


def _none(rows: int, cols: int) -> Coo:
    return rows, cols, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


STRUCTURES = {
    "one": lambda: (1, 1, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
    "empty_rows": _empty_rows,
    "all_empty": lambda: _none(17, 9),
    "no_rows": lambda: _none(0, 5),
    "no_cols": lambda: _none(5, 0),
    "nothing": lambda: _none(0, 0),
    "hub": _hub,
    "hub_column": _hub_column,
    "duplicates": lambda: _random(12, 6, 200, 5),
    "wide": lambda: _random(7, 300, 260, 6),
    "tall": lambda: _random(300, 7, 260, 7),
    "power_law": _power_law,
    "many_rows": lambda: _random(66_000, 50, 5_000, 8),  # more than 65,535, a limit of CUDA's grids
}

LEVELS: dict[str, list] = {
    "structure": list(STRUCTURES),
    "feat": [0, 1, 3, 31, 32, 33, 64, 127, 257],
    "heads": [None, 0, 1, 3],
    "dtype": [torch.float32, torch.float64, torch.float16, torch.bfloat16],
    "layout": ["contiguous", "transposed", "odd", "strided", "flipped", *(f"expanded {k}" for k in range(-3, 0))],
    "values": ["none", "entry", "head", "mixed"],
    "permuted": [False, True],
    "data": ["random", "constant", "powers", "cancelling"],
}

MIXED = {
    torch.float32: torch.bfloat16,
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


@dataclass(frozen=True)
class Case:
    """One point of the product."""

    structure: str
    feat: int
    heads: int | None
    dtype: torch.dtype
    layout: str
    values: str
    permuted: bool
    data: str

    def __str__(self) -> str:
        order = "permuted" if self.permuted else "ordered"
        parts = (self.structure, self.feat, self.heads, str(self.dtype)[6:], self.layout, self.values, order, self.data)
        return "-".join(map(str, parts))

    def matrix(self, device: str = "cpu") -> fusedmm.CSR:
        """The sparse operand: from_coo in a shuffled order, or from_csr as it stands."""
        rows, cols, row, col = STRUCTURES[self.structure]()
        val = self._edge_values(row.numel(), device)
        if self.permuted:
            order = torch.randperm(row.numel(), generator=torch.Generator().manual_seed(9))
            return fusedmm.CSR.from_coo(row[order].to(device), col[order].to(device), val, (rows, cols))
        ptr = torch.searchsorted(row, torch.arange(rows + 1))
        return fusedmm.CSR.from_csr(ptr.to(device), col.to(device), val, (rows, cols))

    def _edge_values(self, nnz: int, device: str) -> Tensor | None:
        if self.values == "none":
            return None
        size = (nnz, self.heads) if self.values == "head" else (nnz,)
        dtype = MIXED[self.dtype] if self.values == "mixed" else self.dtype
        return self._fill(size, 10).to(dtype).to(device)

    def dense(self, rows: int, device: str = "cpu", seed: int = 0) -> Tensor:
        """A dense operand [rows, feat] or [rows, heads, feat] in this case's layout."""
        size = (rows, self.feat) if self.heads is None else (rows, self.heads, self.feat)
        return lay(self._fill(size, 20 + seed).to(self.dtype).to(device), self.layout)

    def _fill(self, size: tuple[int | None, ...], seed: int) -> Tensor:
        """Float64 data; constant data shows sums that drift, powers of two must come out exact."""
        g = torch.Generator().manual_seed(seed)
        if self.data == "constant":
            return torch.full(size, 0.1, dtype=torch.float64)
        if self.data == "powers":
            sign = 2 * torch.randint(0, 2, size, generator=g) - 1
            return sign * 2.0 ** torch.randint(-1, 3, size, generator=g).double()
        noise = torch.randn(size, dtype=torch.float64, generator=g)
        if self.data == "random":
            return noise
        return 8 * noise.sign() + noise / 64  # large terms that cancel, small ones that stay


def lay(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another layout (an expanded tensor repeats its first row, head or channel)."""
    if layout == "transposed":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout.startswith("expanded"):
        axis = max(int(layout.split()[1]), -x.dim())
        return x.narrow(axis, 0, min(1, x.shape[axis])).expand_as(x)
    if layout == "odd":  # rows that start at odd elements, of an odd pitch
        pitch = x.shape[-1] + 3
        room = x.new_full((x.numel() // max(x.shape[-1], 1) * pitch + 1,), float("nan"))[1:]
        room = room.view(*x.shape[:-1], pitch)[..., 1 : 1 + x.shape[-1]] if x.numel() else x.clone()
        return room.copy_(x)
    if layout == "strided":
        return torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]
    if layout == "flipped":
        return x.movedim(0, -1).flip(-1).movedim(-1, 0)
    return x.contiguous()


def allowed(case: dict) -> bool:
    """Pairs that do not exist: values per head without heads. Pairs that would only cost memory:
    66,000 rows of wide features."""
    if case.get("values") == "head" and case.get("heads", 1) is None:
        return False
    return not (case.get("structure") == "many_rows" and case.get("feat", 0) > 33)


def cases(seed: int = 0) -> list[Case]:
    """A covering array of all pairs, the same at every run.

    Greedy: each new case starts from a pair not yet covered and takes, parameter by parameter, the
    level that covers most.
    """
    rng = random.Random(seed)
    names = list(LEVELS)
    open_pairs = {
        (p, a, q, b)
        for p, q in itertools.combinations(range(len(names)), 2)
        for a, b in itertools.product(range(len(LEVELS[names[p]])), range(len(LEVELS[names[q]])))
        if allowed({names[p]: LEVELS[names[p]][a], names[q]: LEVELS[names[q]][b]})
    }
    found = []
    while open_pairs:
        p, a, q, b = min(open_pairs)
        chosen = {p: a, q: b}
        for r in rng.sample([k for k in range(len(names)) if k not in chosen], len(names) - 2):
            levels = [
                c
                for c in range(len(LEVELS[names[r]]))
                if allowed({names[s]: LEVELS[names[s]][t] for s, t in [*chosen.items(), (r, c)]})
            ]
            rng.shuffle(levels)
            covered = {
                c: sum((min((s, t), (r, c)) + max((s, t), (r, c))) in open_pairs for s, t in chosen.items())
                for c in levels
            }
            chosen[r] = max(levels, key=covered.__getitem__)
        open_pairs -= {(s, chosen[s], t, chosen[t]) for s, t in itertools.combinations(range(len(names)), 2)}
        found.append(Case(**{names[k]: LEVELS[names[k]][level] for k, level in chosen.items()}))
    return found


def small(
    seed: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32, heads: int | None = None
) -> fusedmm.CSR:
    """A 12 x 15 matrix of 60 entries in no order, with empty rows and values."""
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(0, 10, (60,), generator=g), torch.randint(0, 15, (60,), generator=g)
    val = torch.randn((60,) if heads is None else (60, heads), generator=g, dtype=torch.float64).to(dtype)
    return fusedmm.CSR.from_coo(row.to(device), col.to(device), val.to(device), shape=(12, 15))


def tiny(device: str = "cpu", dtype: torch.dtype = torch.float64, heads: int | None = None) -> fusedmm.CSR:
    """A 4 x 5 matrix of 9 entries in no order, one of them twice, with an empty row: for derivatives by differences."""
    row, col = torch.tensor([[2, 0, 0, 3, 2, 0, 2, 0, 2], [4, 1, 0, 2, 1, 1, 0, 3, 0]], device=device)
    val = torch.randn((9,) if heads is None else (9, heads), dtype=torch.float64).to(dtype)
    return fusedmm.CSR.from_coo(row, col, val.to(device), shape=(4, 5))


def run_or_decline(op, *operands, algorithm: str, **options) -> Tensor | None:
    """op's result; None where an algorithm that may decline a case does so by name.

    ``auto`` and ``reference`` take everything, and so does each CPU kernel whose instruction set this
    machine has.
    """
    try:
        return op(*operands, algorithm=algorithm, **options)
    except ValueError as error:
        name, _, level = algorithm.partition(":")
        obliged = name in ("auto", "reference") or level in fusedmm.build_info()["isa"]
        if obliged or algorithm not in str(error):
            raise
        return None


def own_algorithms(op: str, device: str) -> list[str]:
    """``auto``, and every algorithm but the vendors', which promise less.

    Their libraries trust ptr and idx, choose their own order of addition, and cuBLAS multiplies the zeros
    too; tests/ops/test_vendor.py has them.
    """
    names = (a.name for a in fusedmm.algorithms(op, device))
    return ["auto", *(n for n in names if n.partition(":")[0] not in ("cusparse", "cublas"))]


def works(device):
    """A good call of both operators, after whatever came before."""
    adj = small(device=device)
    x = torch.randn(15, 5, device=device)
    assert_within(fusedmm.spmm(adj, x), *spmm_oracle(adj, x, "sum"), torch.float32, "a good call after a bad one")
    assert fusedmm.sddmm(adj, torch.ones(12, 5, device=device), x).isfinite().all()
