"""What the child of a fork finds of the package's locks."""

import os
import signal
import threading

import pytest
import torch

import fusedmm
from fusedmm.matrix import adapters


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_converts():
    """CPU only: a child inherits a lock that is held, and no thread that would let it go."""
    held, go = threading.Event(), threading.Event()

    def hold():
        with adapters._lock:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        torch.set_num_threads(1)
        fusedmm.as_csr(torch.tensor([[0, 1], [1, 0]]))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
