"""Private operators given numbers at the ends of int64: an error by name or a result, and never a signal.

What C leaves undefined of them ends the process under UndefinedBehaviorSanitizer (tests/sanitize.mk).
"""

import pytest
import torch
from support.generate import small, works

ops = torch.ops.fusedmm
MOST = 2**63 - 1


def one_call(device):
    """A matrix of no rows, and a seed and an operand without elements."""
    n0, floats = (torch.empty(0, dtype=d, device=device) for d in (torch.int64, torch.float32))
    half = torch.zeros(1, dtype=torch.int64, device=device), n0.int(), n0.int(), n0.byte()
    return half, n0, floats


@pytest.mark.parametrize("maps", [2, 3, 4])
def test_heads_whose_product_with_maps_wraps(maps, device):
    half, seed, none = one_call(device)
    for heads in (2**62, 2**63 - 1, 2**60):
        p = torch.empty(0, 2**60, device=device)
        with pytest.raises(RuntimeError, match=r"^invalid: "):
            ops._attend_maps(*half, p, none, seed, none, 1.0, 0.2, 0.0, heads, maps, 1)
        with pytest.raises(RuntimeError, match=r"^invalid: "):
            ops._attend_maps_back(*half, *half, p, none, seed, none, none.byte(), p, 1.0, 0.2, 0.0, heads, maps)
    with pytest.raises(RuntimeError, match=r"^invalid: "):
        ops._attend_maps(*half, torch.empty(0, 2**62, device=device), none, seed, none, 1.0, 0.2, 0.0, 2**62, 4, 1)
    works(device)


def runs_or_refuses(op, *arguments):
    try:
        op(*arguments)
    except RuntimeError as error:
        assert str(error).startswith("invalid: "), error


@pytest.mark.parametrize("size", [(1, 2**62, 0), (0, 2**31, 2**31), (1, 2**60, 0), (0, 2**62, 1)], ids=str)
def test_heads_and_channels_of_one_projection(size, device):
    half, seed, none = one_call(device)
    att, x = torch.empty(size, device=device), torch.empty(0, 0, device=device)
    for bias in (0, 1):
        runs_or_refuses(ops._attend_self, *half, x, att, att, seed, none, 0.2, 0.0, 1)
        runs_or_refuses(ops._attend_self_back, *half, x, att, att, seed, none, none.byte(), x, 0.2, 0.0, bias)
    works(device)


@pytest.mark.parametrize("number", [MOST, -MOST - 1, -1, 2**31 - 1])
def test_rows_and_columns(number, device):
    adj, edges = small(device=device), torch.zeros(2, 3, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match=r"^invalid: transpose: \[12, -?\d+\] is beyond int32"):
        ops._transpose(adj.ptr, adj.idx, adj.eid, adj.plan, number)
    for rows, cols in ((number, 1), (1, number), (number, number)):
        for look, loops in ((0, False), (1, False), (1, True), (2, False)):
            with pytest.raises(RuntimeError, match=r"^invalid: compress: \[-?\d+, -?\d+\] is beyond int32"):
                ops._compress(*edges, rows, cols, loops, look)
    works(device)


def test_the_mean_of_forged_rows(device):
    ptr = torch.tensor([-MOST - 1, MOST, -MOST - 1, 2], device=device)
    assert ops._mean_back(ptr, torch.ones(3, 4, device=device)).shape == (3, 4)
    ptr = torch.tensor([0, 2, 2, 5], device=device)
    out = ops._mean_back(ptr, torch.ones(3, 1, device=device))
    torch.testing.assert_close(out, torch.tensor([[1 / 2], [1.0], [1 / 3]], device=device))
