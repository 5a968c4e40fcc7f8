"""What the tests of messages share: a small graph, operands, and the definition on dense tensors."""

import torch

import fusedmm
from fusedmm.ops.messages import ONE

COMBINE = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
ROWS, COLS, NNZ = 7, 9, 60


def graph(seed=0, nnz=NNZ, device="cpu"):
    """Repeated entries, empty rows and columns, an order of edges that is not that of rows; ids stay on the CPU."""
    g = torch.Generator().manual_seed(seed)
    row, col = torch.randint(ROWS - 2, (nnz,), generator=g), torch.randint(COLS - 1, (nnz,), generator=g)
    row[row == 2] = 0
    return row, col, fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(ROWS, COLS))


def operand(n, shape, dtype=torch.float64, seed=0, device="cpu"):
    """Numbers that are not close to 0, the same on every device."""
    t = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed + n), dtype=torch.float64)
    return torch.where(t.abs() < 0.3, 0.5 + t.abs(), t).to(device, dtype)


def aligned(a, b):
    """With axes of one element in front where one has fewer."""
    rank = max(a.dim(), b.dim())
    return tuple(t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]) for t in (a, b))


def combined(op, a, b):
    """The messages of operands that have a row for each entry."""
    if op in ("copy_lhs", "copy_rhs"):
        return a if op == "copy_lhs" else b
    a, b = aligned(a, b)
    return (a * b).sum(-1, keepdim=True) if op == "dot" else COMBINE[op](a, b)


def reduced(row, m, reduce, rows=ROWS):
    """Messages reduced to rows, one row after the other."""
    found = []
    for i in range(rows):
        mine = m[row == i]
        if not len(mine):
            found.append(torch.zeros_like(m[0]) if len(m) else m.new_zeros(m.shape[1:]))
        else:
            found.append({"sum": mine.sum, "mean": mine.mean, "max": mine.amax, "min": mine.amin}[reduce](0))
    return torch.stack(found)


def names(device):
    """auto and the algorithms that this machine runs."""
    return ["auto", *(a.name for a in fusedmm.algorithms("messages", device) if is_runnable(a.name))]


def is_runnable(name):
    """Whether the machine has the instruction set that a name says."""
    isa = name.partition(":")[2]
    return not isa or isa in fusedmm.build_info()["isa"]


def is_declined(name, op, to_entries):
    """What an algorithm of the registry leaves to the others: nothing asks for counts that stay with entries."""
    return name == "segments" and op == ONE and to_entries
