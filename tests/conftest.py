"""What every test file shares: the devices, and the real graphs.

FUSEDMM_REQUIRE_CUDA=1 makes a missing GPU a failure instead of a skip, FUSEDMM_REQUIRE_GRAPHS=1 a
missing graph file: a machine that is there to run them must not pass by skipping.
FUSEDMM_ACCURACY=file writes down how near each operator came to its error bound (accuracy.py).
FUSEDMM_PLUGINS=one.so:two.so loads plug-ins, which every test over all algorithms then takes in.
"""

import os
from pathlib import Path
from typing import NoReturn

import pytest

# On a busy machine threads that spin while they wait cost the suite a factor of ten.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import accuracy
import torch

import fusedmm
from fusedmm import data

ROOT = Path(__file__).resolve().parents[1]

for plugin in filter(None, os.environ.get("FUSEDMM_PLUGINS", "").split(":")):
    fusedmm.load_algorithms(plugin)


def no_cuda() -> str | None:
    """Why CUDA cases cannot run here, or None."""
    if fusedmm.build_info()["cuda"] is None:
        return "fusedmm was built without CUDA"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def missing(what: str, variable: str) -> NoReturn:
    """Skips, unless the environment says that this machine must have it."""
    if os.environ.get(variable) == "1":
        pytest.fail(f"{variable}=1, but {what}")
    pytest.skip(what)


def _require_cuda() -> None:
    reason = no_cuda()
    if reason is not None:
        missing(reason, "FUSEDMM_REQUIRE_CUDA")


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Every device in turn."""
    if request.param == "cuda":
        _require_cuda()
    return request.param


@pytest.fixture
def cuda() -> str:
    """For tests of what only CUDA has."""
    _require_cuda()
    return "cuda"


def real_graph(name: str) -> Path:
    """The file of a real graph, where fusedmm.data.find_graph looks for it."""
    try:
        return data.find_graph(name)
    except FileNotFoundError as error:
        return missing(str(error), "FUSEDMM_REQUIRE_GRAPHS")


@pytest.fixture
def threads():
    """Sets torch's threads, and sets them back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pytest_sessionfinish() -> None:
    """What the tests saw of errors and their bounds, where it is asked for."""
    if "FUSEDMM_ACCURACY" in os.environ:
        accuracy.write(os.environ["FUSEDMM_ACCURACY"])


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers at every run, whatever ran before."""
    torch.manual_seed(0)
