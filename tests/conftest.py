"""What every test file shares: the devices, the threads, the seed; and what a run says at its end.

Where there is no GPU, cases for CUDA are not collected, and one line at the end says how many.
Cases marked slow are left to `make slow`; FUSEDMM_SLOW=0.1 takes a tenth of them in, drawn by FUSEDMM_SEED.
FUSEDMM_REQUIRE_CUDA=1 makes a missing GPU a failure instead, FUSEDMM_REQUIRE_GRAPHS=1 a missing graph file: a
machine that is there to run them must not pass without them.
FUSEDMM_ACCURACY=file writes down how near each operator came to its error bound (accuracy.py).
FUSEDMM_PLUGINS=one.so:two.so loads plug-ins, which every test over all algorithms then takes in.
"""

import collections
import gc
import os
import random

# On a busy machine threads that spin while they wait cost the suite a factor of ten.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import accuracy
import pytest
import torch
import torch._dynamo.guards
from support.machine import no_cuda

import fusedmm

for plugin in filter(None, os.environ.get("FUSEDMM_PLUGINS", "").split(":")):
    fusedmm.load_algorithms(plugin)

# After every graph torch empties the processor's caches, to write into a log how long its guards then take.
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[assignment]

SLOW, SEED = float(os.environ.get("FUSEDMM_SLOW", "0")), os.environ.get("FUSEDMM_SEED", "0")
LEFT_OUT = pytest.StashKey[dict[str, int]]()  # how many cases, and why
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


@pytest.fixture(scope="module")
def two_gpus() -> None:
    """For tests of what two devices do together."""


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


@pytest.fixture(autouse=True, scope="module")
def young() -> None:
    """What earlier files left stays: a collection of garbage, of which tests make many, need not look at it again.

    Compiled graphs are millions of objects, through which one collection takes a second."""
    gc.collect()
    gc.freeze()


def left_out(item: pytest.Item) -> str:
    """Why a case is not collected, or nothing."""
    device = item.callspec.params.get("device") if hasattr(item, "callspec") else None
    if "cuda" in (device, *item.fixturenames) and no_cuda() and os.environ.get("FUSEDMM_REQUIRE_CUDA") != "1":
        return f"for CUDA were not collected: {no_cuda()}"
    if "two_gpus" in item.fixturenames and (no_cuda() or torch.cuda.device_count() < 2):
        return f"for two GPUs were not collected: torch sees {torch.cuda.device_count()}"
    if item.get_closest_marker("slow") and random.Random(f"{SEED} {item.nodeid}").random() >= SLOW:
        return f"that are slow were left to make slow (FUSEDMM_SLOW={SLOW:g} FUSEDMM_SEED={SEED})"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what an absent device would run, and what takes long."""
    reasons = [left_out(item) for item in items]
    config.stash[LEFT_OUT] = collections.Counter(filter(None, reasons))
    config.hook.pytest_deselected(items=[item for item, reason in zip(items, reasons, strict=True) if reason])
    items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """pytest-xdist: the processes collect, the one that started them says so."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """How many cases were left out, and which files took longest."""
    for reason, count in sorted(config.stash.get(LEFT_OUT, {}).items()):
        terminalreporter.write_line(f"{count} cases {reason}")
    if len(SECONDS) > 1:
        slowest = (f"{name} {seconds:.0f} s" for name, seconds in SECONDS.most_common(10))
        terminalreporter.write_line(f"slowest of {len(SECONDS)} files: {', '.join(slowest)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the tests saw of errors and their bounds, where it is asked for."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))
    if "FUSEDMM_ACCURACY" in os.environ:
        accuracy.write(os.environ["FUSEDMM_ACCURACY"])
