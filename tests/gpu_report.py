"""Runs the test suite on a CUDA machine and writes down what was tested and where.

    python tests/gpu_report.py benchmarks/results/gpu-tests.json

Nothing may be skipped for want of a GPU or of graph files. All slow cases run, or the share that FUSEDMM_SLOW says; the
report has it. The source hash is over the content of the
sources, so that anyone can tell whether a report belongs to a checkout (benchmarks/sources.py prints it).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import accuracy

ROOT = Path(__file__).resolve().parent.parent
NONE = 5  # what pytest returns where a whole file is skipped
ALONE = 30.0  # seconds: a file that takes as long has a process of its own, smaller ones share one up to this
SLOW = os.environ.get("FUSEDMM_SLOW", "1")
HUNG = 300.0 if float(SLOW) < 1 else 3600.0  # seconds after which a process is ended; its files count as not passed


def not_passed(suites: list[xml.Element]) -> dict[str, str]:
    """What failed or was skipped, by name, and why."""
    found = {}
    for case in (c for suite in suites for c in suite.iter("testcase")):
        for kind in ("failure", "error", "skipped"):
            if (reason := case.find(kind)) is not None:
                text = reason.get("message", "").partition("\n")[0][:120]
                found[f"{case.get('classname')}::{case.get('name')}"] = f"{kind}: {text}"
    return found


def shared(files: list[Path], took: dict[str, float]) -> list[list[Path]]:
    """Files that one process takes: imports cost more than a small file's tests. Longest first, as the files are."""
    groups: list[list[Path]] = []
    full = math.inf
    for path in files:
        seconds = took.get(path.stem, math.inf)
        if full + seconds > ALONE:
            groups.append([])
            full = 0.0
        groups[-1].append(path)
        full += seconds
    return groups


def devices() -> list[str]:
    """The values of CUDA_VISIBLE_DEVICES that put each GPU first in turn: each process works on the first it sees."""
    if seen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        ids = seen.split(",")
    else:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
        ids = [str(i) for i in range(sum(line.startswith("GPU") for line in listed))]
    return [",".join(ids[i:] + ids[:i]) for i in range(len(ids))]


def run(took: dict[str, float]) -> tuple[int, dict[str, Any], accuracy.Ratios]:
    """The worst exit code, how many tests passed, failed, erred and were skipped, and errors over bounds on CUDA.

    Several processes take some files after the other, those first that ``took`` longest last time; it says so then too.
    They take the GPUs in turn. Files whose tests need several GPUs come before all others, with nothing beside: a
    kernel that waits for another GPU's gets nowhere while that one has its time for other processes.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: -took.get(path.stem, math.inf))
    wanted = {"FUSEDMM_REQUIRE_CUDA": "1", "FUSEDMM_REQUIRE_GRAPHS": "1", "FUSEDMM_SLOW": SLOW, "OMP_NUM_THREADS": "2"}
    environment = os.environ | wanted
    seconds: dict[str, float] = {}
    ended: dict[str, str] = {}  # files whose process did not live to write its results
    seen = devices()
    gpus = itertools.cycle(seen)

    def test(paths: list[Path]) -> int:
        name = paths[0].stem
        command = [sys.executable, "-m", "pytest", "-q", "-rs", f"--junitxml={folder}/{name}.xml", *map(str, paths)]
        command += ["-o", f"faulthandler_timeout={HUNG / 2:.0f}"]  # a case that takes as long shows where it stands
        kept = {**environment, "FUSEDMM_ACCURACY": f"{folder}/{name}.json", "CUDA_VISIBLE_DEVICES": next(gpus)}
        start, log = time.monotonic(), Path(folder, f"{name}.log")
        with log.open("w") as said:
            started = subprocess.Popen(
                command, cwd=ROOT, env=kept, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = started.wait(HUNG)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)  # and what it started itself
                code = started.wait()
        files = " ".join(path.stem for path in paths)
        print(f"== {files}: {time.monotonic() - start:.0f} s, code {code}\n{log.read_text()}", flush=True)
        if code not in (0, 1, NONE):
            ended[files] = f"ended with code {code}"
        return 0 if code == NONE else abs(code)

    with tempfile.TemporaryDirectory() as folder:
        several = [path for path in files if len(seen) > 1 and "two_gpus" in path.read_text()]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            codes = [*pool.map(test, [[path] for path in several])]
            codes += pool.map(test, shared([path for path in files if path not in several], took))
        suites = [next(xml.parse(path).getroot().iter("testsuite")) for path in Path(folder).glob("*.xml")]
        ratios = accuracy.merge(json.loads(path.read_text()) for path in Path(folder).glob("*.json"))
        counts: dict[str, Any] = {
            k: sum(int(s.attrib[k]) for s in suites) for k in ("tests", "failures", "errors", "skipped")
        }
        reasons = not_passed(suites)
    for case in (c for suite in suites for c in suite.iter("testcase")):
        stem = case.attrib["classname"].rpartition(".")[2]
        seconds[stem] = seconds.get(stem, 0.0) + float(case.attrib["time"])
    took.update({stem: round(value, 1) for stem, value in seconds.items()})
    counts["passed"] = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    counts["not passed"] = reasons | ended
    return max(codes), counts, {k: v for k, v in ratios.items() if k == "cuda"}


def conditions() -> dict[str, str]:
    import torch

    import fusedmm

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0].strip()
    cuda = fusedmm.build_info()["cuda"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "cuda of the library": cuda["runtime"],
        "architectures": " ".join(cuda["architectures"]),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def main() -> int:
    target = Path(sys.argv[1])
    took = json.loads(target.read_text()).get("seconds", {}) if target.exists() else {}
    code, counts, ratios = run(took)
    sys.path.insert(0, str(ROOT))
    from benchmarks.sources import TESTED, source_hash

    report = {
        "source": source_hash(TESTED),
        **conditions(),
        "share of slow cases": float(SLOW),
        **counts,
        "accuracy": ratios,
        "seconds": took,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    return code


if __name__ == "__main__":
    sys.exit(main())
