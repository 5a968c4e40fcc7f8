"""What every test file shares: the devices, the threads, the seed; and what a run says at its end.

Where there is no GPU, cases for CUDA are not collected, and one line at the end says how many.
FUSEDMM_REQUIRE_CUDA=1 makes a missing GPU a failure instead, FUSEDMM_REQUIRE_GRAPHS=1 a missing graph file: a
machine that is there to run them must not pass without them.
FUSEDMM_ACCURACY=file writes down how near each operator came to its error bound (accuracy.py).
FUSEDMM_PLUGINS=one.so:two.so loads plug-ins, which every test over all algorithms then takes in.
"""

import collections
import os

# On a busy machine threads that spin while they wait cost the suite a factor of ten.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import accuracy
import pytest
import torch
from support.machine import no_cuda

import fusedmm

for plugin in filter(None, os.environ.get("FUSEDMM_PLUGINS", "").split(":")):
    fusedmm.load_algorithms(plugin)

ABSENT = pytest.StashKey[int]()  # how many cases were left out for want of a GPU
SECONDS: collections.Counter[str] = collections.Counter()  # that each file took


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Every device in turn."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return request.param


@pytest.fixture
def cuda() -> str:
    """For tests of what only CUDA has."""
    if reason := no_cuda():
        pytest.fail(f"FUSEDMM_REQUIRE_CUDA=1, but {reason}")
    return "cuda"


@pytest.fixture
def threads():
    """Sets torch's threads, and sets them back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers at every run, whatever ran before."""
    torch.manual_seed(0)


def of_cuda(item: pytest.Item) -> bool:
    """Whether a case needs a GPU: it asks for the fixture, or a parameter of it is the device."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "cuda" in item.fixturenames or any(p == "cuda" for p in parameters if isinstance(p, str))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what an absent device would run."""
    if no_cuda() and os.environ.get("FUSEDMM_REQUIRE_CUDA") != "1":
        kept = [item for item in items if not of_cuda(item)]
        config.stash[ABSENT] = len(items) - len(kept)
        config.hook.pytest_deselected(items=[item for item in items if of_cuda(item)])
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """pytest-xdist: the processes collect, the one that started them says so."""
    node.config.stash[ABSENT] = getattr(node, "workeroutput", {}).get("absent", 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """How many cases were left out, and which files took longest."""
    if absent := config.stash.get(ABSENT, 0):
        terminalreporter.write_line(f"{absent} cases for CUDA were not collected: {no_cuda()}")
    if len(SECONDS) > 1:
        slowest = (f"{name} {seconds:.0f} s" for name, seconds in SECONDS.most_common(10))
        terminalreporter.write_line(f"slowest of {len(SECONDS)} files: {', '.join(slowest)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the tests saw of errors and their bounds, where it is asked for."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["absent"] = session.config.stash.get(ABSENT, 0)
    if "FUSEDMM_ACCURACY" in os.environ:
        accuracy.write(os.environ["FUSEDMM_ACCURACY"])
