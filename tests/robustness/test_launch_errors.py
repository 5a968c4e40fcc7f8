"""A launch that fails is reported by the call that made it, also where launches that succeed come behind it."""

import ctypes
import re
from pathlib import Path

import pytest
import torch

import fusedmm
from fusedmm._lib import NUMBERS, library

CSRC = Path(__file__).parents[2] / "csrc"
CUB = re.compile(r"\bcub::Device\w+::\w+\(\s*(\S+)")
USED = re.compile(r"(=|\breturn)\s*$")
SORTED = 2  # of fmm_spgemm_want
SCHEDULE = 514
RELAXED = 2  # of cuStreamBeginCapture
DEVICE_ERROR = 4  # of fmm_status


def test_what_cub_returns_is_used():
    """CUB takes over the errors of earlier launches: where its answer is dropped, they are lost."""
    calls = [
        (path.name, USED.search(text[: call.start()]) is not None)
        for path in sorted(CSRC.rglob("*.cu"))
        for text in [path.read_text()]
        for call in CUB.finditer(text)
        if call[1] != "NULL,"  # asks for a size
    ]
    assert len(calls) >= 3 and [name for name, used in calls if not used] == []


def test_attributes_are_not_set_behind_a_failed_launch():
    """``cudaFuncSetAttribute`` forgets the error; ``launch_tiles`` calls it before the only launch of its operators."""
    asked = {
        path.relative_to(CSRC).as_posix(): "cudaPeekAtLastError() == cudaSuccess" in text[max(0, at - 120) : at]
        for path in sorted(CSRC.rglob("*.cu*"))
        if "lessons" not in path.parts
        for text in [path.read_text()]
        for at in [match.start() for match in re.finditer(r"\bcudaFuncSetAttribute\(", text)]
    }
    assert asked == {"cuda/tiles.cuh": False, "spgemm/cuda_classes.cuh": True}


def test_few_clear_the_runtime_s_error():
    """Besides ``cuda_leave`` these, each for a question of its own that failed before anything was launched."""
    found = {
        path.relative_to(CSRC).as_posix()
        for path in CSRC.rglob("*.cu*")
        if "cudaGetLastError" in path.read_text() and "lessons" not in path.parts
    }
    assert found == {"cuda/launch.cuh", "cuda/device.cu", "cuda/tiles.cuh"}


class Exec(ctypes.Structure):
    """``fmm_exec``."""

    _fields_ = [
        ("device", ctypes.c_int), ("index", ctypes.c_int), ("stream", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
        ("allocate", ctypes.c_void_p), ("owner", ctypes.c_void_p),
    ]  # fmt: skip


class Csr(ctypes.Structure):
    """``fmm_csr``."""

    _fields_ = [
        ("rows", ctypes.c_int64), ("cols", ctypes.c_int64), ("nnz", ctypes.c_int64), ("ptr", ctypes.c_void_p),
        ("idx", ctypes.c_void_p), ("eid", ctypes.c_void_p), ("plan", ctypes.c_void_p), ("plan_bytes", ctypes.c_size_t),
        ("rows_are", ctypes.c_int), ("whole", ctypes.c_int64 * 3),
    ]  # fmt: skip


class Pattern(ctypes.Structure):
    """``fmm_spgemm_pattern``."""

    _fields_ = [
        ("want", ctypes.c_int), ("ptr", ctypes.c_void_p), ("schedule", ctypes.c_void_p), ("columns", ctypes.c_void_p),
        ("owner", ctypes.c_void_p), ("values", ctypes.c_void_p), ("kept", ctypes.c_void_p),
    ]  # fmt: skip


class Broken:
    """A stream whose launches fail, from ``start`` to ``stop``: its capture into a graph is invalid."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.driver, self.stream, self.on = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(stream.cuda_stream), False

    def start(self) -> None:
        assert self.driver.cuStreamBeginCapture_v2(self.stream, RELAXED) == 0
        self.on = True
        assert self.driver.cuStreamSynchronize(self.stream) != 0  # which no capture allows

    def stop(self) -> None:
        if self.on:
            self.driver.cuStreamEndCapture(self.stream, ctypes.byref(ctypes.c_void_p()))
            self.on = False


@pytest.fixture
def stream(cuda):
    made = torch.cuda.Stream()
    with torch.cuda.stream(made):
        yield made
    torch.cuda.synchronize()


def test_an_error_between_launches_is_reported(stream):
    """SpGEMM asks its caller for memory between launches. The first fails there, and those behind it succeed."""
    n = 300
    row = torch.arange(n, device="cuda")
    adj = fusedmm.CSR.from_coo(row, (row * 7) % n, shape=(n, n))
    right = fusedmm.spgemm(adj, adj)
    ptr, columns = torch.zeros(n + 1, dtype=torch.int64, device="cuda"), torch.zeros(n, device="cuda").int()
    schedule, room = torch.zeros(SCHEDULE, device="cuda").long(), torch.zeros(1 << 22, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    broken, asked = Broken(stream), []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))
    def allocate(_, size, where):
        asked.append("workspace")
        broken.stop()
        where[0] = room.data_ptr()
        return 0 if size <= room.numel() // 2 else 2

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    def give_columns(_, nnz):
        asked.append("columns")
        if fails:
            broken.start()
        return columns.data_ptr()

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    def keep(_, count):
        return room.data_ptr() + room.numel() // 2

    def address(function):
        return ctypes.cast(function, ctypes.c_void_p).value

    a = Csr(n, n, n, adj.ptr.data_ptr(), adj.idx.data_ptr())
    here = Exec(NUMBERS["FMM_CUDA"], adj.ptr.device.index, stream.cuda_stream, allocate=address(allocate))
    out = Pattern(SORTED, ptr.data_ptr(), schedule.data_ptr(), address(give_columns), kept=address(keep))
    library.fmm_last_error.restype = ctypes.c_char_p
    for fails in (False, True, False):
        columns.zero_()
        torch.cuda.synchronize()
        try:
            status = library.fmm_spgemm_symbolic(*map(ctypes.byref, (here, a, a, out)))
        finally:
            broken.stop()
        said = library.fmm_last_error().decode()
        torch.cuda.synchronize()
        if fails:
            assert status == DEVICE_ERROR and re.match(r"spgemm: launch on CUDA device \d: .*capture", said), said
        else:
            assert status == 0 and torch.equal(columns, right.idx), said
    assert asked[:3] == ["workspace", "columns", "workspace"]  # the plan's list is made behind the columns
