"""Ranks that are processes of their own: one program is started once for each, and all of them end within a limit."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import fusedmm

REST = 10.0  # seconds that a process has beyond its own limit, in which it shows where it stands and ends


class Ended(NamedTuple):
    """A process that ended."""

    code: int
    out: str
    err: str
    at: float  # seconds of time.monotonic()


def run_ranks(worker: Path, ranks: int, *args: object, seconds: float) -> list[Ended]:
    """What became of ``worker RANK RANKS *ARGS`` on each rank; who takes longer than so many seconds is killed.

    A thread reads what each one says, so that none waits for room to write, and notices its end at once.
    """
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fusedmm.__file__).parents[1])}

    def run(rank: int) -> Ended:
        command = [sys.executable, worker, str(rank), str(ranks), *map(str, args)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
            try:
                out, err = process.communicate(timeout=seconds + REST)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        return Ended(process.returncode, out, err, time.monotonic())

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))
