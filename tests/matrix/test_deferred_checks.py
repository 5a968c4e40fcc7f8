"""Checks of edges on CUDA whose answer is waited for later: many at once, in any order, in any thread."""

import threading

import pytest
import torch

import fusedmm
from fusedmm._lib import ops
from fusedmm.matrix.compress import TICKETS, is_outside
from fusedmm.matrix.structure import DEFERRED

N = 300


def started(cuda, bad, edges=5_000):
    """The ticket of a check that was started on edges of which one is outside, or none."""
    row, col = torch.randint(0, N, (2, edges), generator=torch.Generator().manual_seed(edges)).to(cuda)
    if bad is not None:
        col[bad] = N
    ticket = next(TICKETS)
    assert ops._compress(row, col, N, N, False, DEFERRED + ticket)[4].shape == (1,)
    return ticket


@pytest.fixture
def there(cuda):
    return torch.zeros(0, device=cuda)


@pytest.mark.parametrize("count", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("edges", [1, 900, 5_000, 60_000])
def test_many_checks_at_once_each_have_their_answer(edges, count, cuda, there):
    """Of one block and of many; also in the opposite order."""
    bad = [k % 3 == 1 for k in range(count)]
    tickets = [started(cuda, 17 * k % edges if b else None, edges) for k, b in enumerate(bad)]
    assert [is_outside(there, t) for t in reversed(tickets)] == bad[::-1]
    assert [is_outside(there, t) for t in tickets] == bad  # and a second time


def test_an_answer_is_there_before_what_follows_has_ended(cuda, there):
    """The host does not wait for work that was launched behind the check."""
    ticket, after = started(cuda, 3), torch.cuda.Event()
    started(cuda, None)
    torch.cuda._sleep(2**28)
    after.record()
    assert is_outside(there, ticket) and not after.query()
    torch.cuda.synchronize()


def test_a_check_behind_long_work_is_waited_for(cuda, there):
    torch.cuda._sleep(2**27)
    tickets = [started(cuda, bad) for bad in (None, 7)]
    assert [is_outside(there, t) for t in tickets] == [False, True]


def test_a_check_that_nobody_waited_for_says_nothing_of_the_next(cuda, there):
    """Many more than there is room for, in turns of good and bad edges."""
    row, col = torch.randint(0, N, (2, 50), device=cuda)
    for k in range(5_000):
        ops._compress(row, col, N if k % 2 else 1, N, False, DEFERRED + next(TICKETS))
        if k % 501 == 0:
            assert is_outside(there, started(cuda, 3 if k % 2 else None)) == bool(k % 2)


def test_an_answer_that_others_came_after_is_none(cuda, there):
    """Who waits then has to look at the edges."""
    ticket = started(cuda, None)
    for _ in range(4_095):
        next(TICKETS)
    assert not is_outside(there, ticket)
    started(cuda, None)
    torch.cuda.synchronize()
    assert is_outside(there, ticket)


def test_another_thread_waits(cuda, there):
    tickets, found = [started(cuda, bad) for bad in (None, 4_999)], []
    waits = threading.Thread(target=lambda: found.extend(is_outside(there, t) for t in tickets))
    waits.start()
    waits.join()
    assert found == [False, True] == [is_outside(there, t) for t in tickets]


def test_another_stream(cuda, there):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tickets = [started(cuda, bad) for bad in (None, 5)]
        assert [is_outside(there, t) for t in tickets] == [False, True]
    assert not is_outside(there, started(cuda, None))


def test_no_edges_need_no_answer(cuda):
    none = torch.zeros(0, dtype=torch.int64, device=cuda)
    assert not ops._compress(none, none, N, N, False, DEFERRED + next(TICKETS))[4].numel()
    edges = torch.zeros(2, 0, dtype=torch.int64, device=cuda)
    assert fusedmm.nn.SAGEConv(2, 3).to(cuda)(torch.rand(4, 2, device=cuda), edges).isfinite().all()
