"""Checks of edges on CUDA whose answer is waited for later: many at once, in any order, in any thread."""

import threading

import pytest
import torch

from fusedmm._lib import ops
from fusedmm.matrix.compress import is_outside
from fusedmm.matrix.structure import DEFERRED

N = 300


def started(cuda, bad, edges=5_000):
    """What a check leaves that was started on edges of which one is outside, or none."""
    row, col = torch.randint(0, N, (2, edges), generator=torch.Generator().manual_seed(edges)).to(cuda)
    if bad is not None:
        col[bad] = N
    return ops._compress(row, col, N, N, False, DEFERRED)[4]


@pytest.mark.parametrize("count", [1, 3, 8, 9, 40])
def test_many_checks_at_once_each_have_their_answer(count, cuda):
    """Also more than a thread keeps answers for, and in the opposite order."""
    bad = [k % 3 == 1 for k in range(count)]
    lines = [started(cuda, 17 * k if b else None) for k, b in enumerate(bad)]
    assert [is_outside(t) for t in reversed(lines)] == bad[::-1]
    assert [is_outside(t) for t in lines] == bad  # a second time the lines themselves say it


def test_a_check_that_nobody_waited_for_says_nothing_of_the_next(cuda):
    """Its memory goes to the next, in turns of good and bad edges."""
    for k in range(30):
        lines = started(cuda, 3 if k % 2 else None)
        if k % 5:
            assert is_outside(lines) == bool(k % 2)
        del lines


def test_another_thread_waits(cuda):
    lines, found = [started(cuda, bad) for bad in (None, 4_999)], []
    waits = threading.Thread(target=lambda: found.extend(is_outside(t) for t in lines))
    waits.start()
    waits.join()
    assert found == [False, True] == [is_outside(t) for t in lines]


def test_the_answer_comes_before_the_work_behind_it(cuda):
    """Waiting for the check does not wait for what was launched after it."""
    for bad in (None, 7):
        lines = started(cuda, bad)
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        over = torch.cuda.Event()
        over.record()
        assert is_outside(lines) == (bad is not None)
        assert not over.query()
        torch.cuda.synchronize()


def test_other_streams_and_a_capture(cuda):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        lines = [started(cuda, bad) for bad in (None, 5)]
        assert [is_outside(t) for t in lines] == [False, True]
    row, col = torch.randint(0, N, (2, 100), device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        left = ops._compress(row, col, N, N, False, DEFERRED)[4]
    graph.replay()
    assert not is_outside(left)
    col[3] = N
    graph.replay()
    assert is_outside(left)
    assert not is_outside(started(cuda, None))
