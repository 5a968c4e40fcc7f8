"""What this machine has: the checkout, a GPU, the files of real graphs."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import fusedmm
from fusedmm import data

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
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


def real_graph(name: str) -> Path:
    """The file of a real graph, where fusedmm.data.find_graph looks for it."""
    try:
        return data.find_graph(name)
    except FileNotFoundError as error:
        return missing(str(error), "FUSEDMM_REQUIRE_GRAPHS")


def capture(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A step as a CUDA graph, and the tensors that every replay writes its results to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found
