"""The state of the sources that a report or a result belongs to, as one number.

python benchmarks/sources.py csrc fusedmm tests    # what tests/gpu_report.py writes down
python benchmarks/sources.py csrc fusedmm          # what results do
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".c", ".h", ".inc", ".def", ".cu", ".cuh", ".py", ".cpp"}
LIBRARY = ("csrc", "fusedmm")  # what decides a result
TESTED = (*LIBRARY, "tests")


def source_hash(folders: tuple[str, ...]) -> str:
    """sha256 over names and contents of every source file of the folders, in the order of their names."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(source_hash(tuple(sys.argv[1:]) or TESTED))
