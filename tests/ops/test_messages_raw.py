"""Every kind of call that ``torch.ops.fusedmm._messages`` admits: right on dense tensors, or refused."""

import itertools
import math
import random

import pytest
import torch
from support.edge_messages import COLS, NNZ, ROWS, graph, is_declined, names, reduced

import fusedmm
from fusedmm._lib import algorithm_number
from fusedmm.ops.messages import ADD, AXES, COL, COPY, DIV, EDGE, MAX, MEAN, MIN, MUL, ONE, ROW, SUB, SUM

ARITHMETIC = {ADD: torch.add, SUB: torch.sub, MUL: torch.mul, DIV: torch.div}
REDUCE = {SUM: "sum", MEAN: "mean", MAX: "max", MIN: "min"}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [(1, 2), (1, 3), (1, 2), (1, 3, 8, 40)]  # of the axes
LHS, RHS, MASK_LHS, MASK_RHS, MASK_Y, OUT = range(6)


def reads(op, mask_op):
    """Which of the five tensors a call reads; mask_op None: it has no mask."""
    masked = mask_op is not None
    return [op != ONE, op not in (ONE, COPY), masked, masked and mask_op != COPY, masked]


def is_legal(op, mask_op, reduce, to, has):
    """What the contract in csrc/messages/messages.c says of a call whose shapes fit."""
    whole, masked = (1 << AXES) - 1, mask_op is not None
    if mask_op == ONE or (op == ONE and not masked) or (to == ROW and has[OUT] != whole):
        return False
    return reduce == SUM or (to == ROW and not masked)


class Draw:
    """A call with numbers that are powers of two, so that products, quotients and sums are exact."""

    def __init__(self, rng, ends, op, mask_op, reduce, dtype, device):
        self.op, self.mask_op, self.reduce = op, mask_op, reduce
        self.axes = [rng.choice(s) for s in SIZES]
        self.at = [rng.choice((ROW, COL, EDGE)) for _ in range(OUT)]
        self.to = rng.choice((ROW, EDGE))
        self.has = [rng.choice((15, 15, 8, 7, rng.randrange(16))) for _ in range(OUT + 1)]
        self.has[MASK_Y] = 15
        if self.to == ROW and rng.random() < 0.9:
            self.has[OUT] = 15
        g = torch.Generator().manual_seed(rng.randrange(1 << 30))
        self.given = []
        for k, read in enumerate(reads(op, mask_op)):
            shape = ends[self.at[k]], math.prod(s for d, s in enumerate(self.axes) if self.has[k] >> d & 1)
            if not read:  # ignored, whatever it is; but a mask_y would be a mask
                self.at[k] = rng.choice((ROW, COL, EDGE))
                shape = (0, 1) if k == MASK_Y else rng.choice(((0, 1), (2, 5)))
            self.given.append((2.0 ** torch.randint(0, 2, shape, generator=g)).to(device, dtype))

    def run(self, adj, number):
        at = sum(a << 2 * k for k, a in enumerate([*self.at, self.to]))
        has = sum(h << AXES * k for k, h in enumerate(self.has))
        mask_op = COPY if self.mask_op is None else self.mask_op
        numbers = self.op, at, has, *reversed(self.axes), self.reduce, mask_op, number
        return torch.ops.fusedmm._messages(adj.ptr, adj.idx, adj.eid, adj.plan, *self.given, *numbers)

    def spread(self, k, ids):
        """[entries, *axes] of a tensor."""
        shape = [s if self.has[k] >> d & 1 else 1 for d, s in enumerate(self.axes)]
        return self.given[k].double().cpu()[ids[self.at[k]]].reshape(-1, *shape).expand(-1, *self.axes)

    def combined(self, op, lhs, rhs, ids):
        if op == ONE:
            return torch.ones(len(ids[EDGE]), *self.axes, dtype=torch.float64)
        first = self.spread(lhs, ids)
        return first if op == COPY else ARITHMETIC[op](first, self.spread(rhs, ids))

    def exact(self, row, ids, rows):
        m = self.combined(self.op, LHS, RHS, ids)
        if self.mask_op is not None:
            m = m * (self.combined(self.mask_op, MASK_LHS, MASK_RHS, ids) == self.spread(MASK_Y, ids))
        if self.to == ROW:
            return reduced(row, m, REDUCE[self.reduce], rows).reshape(rows, -1)
        lost = [d + 1 for d in range(AXES) if not self.has[OUT] >> d & 1]
        return (m.sum(lost) if lost else m).reshape(len(row), -1)


@pytest.mark.parametrize("long", [False, True], ids=["short rows", "long rows"])
@pytest.mark.parametrize("op", [COPY, ADD, SUB, MUL, DIV, ONE])
def test_a_call_is_right_or_refused(op, long, device):
    rng = random.Random(op)
    rows, cols, nnz = (3, 5, 1500) if long else (ROWS, COLS, NNZ)
    row, col, adj = graph(23, device=device)
    if long:
        row, col = torch.arange(nnz) // 1400, torch.arange(nnz) % cols
        adj = fusedmm.CSR.from_coo(row.to(device), col.to(device), shape=(rows, cols))
    ids, ends = {ROW: row, COL: col, EDGE: torch.arange(nnz)}, {ROW: rows, COL: cols, EDGE: nnz}
    algorithms = [(name, algorithm_number("messages", device, name)) for name in names(device)]
    tried = 0
    for mask_op, reduce, _ in itertools.product((None, COPY, ADD, SUB, MUL, DIV, ONE), REDUCE, range(1 if long else 4)):
        dtype = rng.choice(DTYPES)
        call = Draw(rng, ends, op, mask_op, reduce, dtype, device)
        if not is_legal(op, mask_op, reduce, call.to, call.has):
            with pytest.raises(RuntimeError, match=r"^(invalid: )?messages: "):
                call.run(adj, 0)
            continue
        exact, text = call.exact(row, ids, rows), f"{vars(call)}"
        for name, number in algorithms:
            if is_declined(name, op, call.to == EDGE):
                with pytest.raises(RuntimeError, match=f"messages: algorithm {name} does not support this call"):
                    call.run(adj, number)
                continue
            found = call.run(adj, number)
            assert found.shape == exact.shape, name
            eps = 1e-12 if dtype == torch.float64 else max(torch.finfo(found.dtype).eps, 2e-7)
            torch.testing.assert_close(found.double().cpu(), exact, rtol=2 * eps, atol=0, msg=f"{name} {text[:300]}")
        tried += 1
    assert tried > 2
