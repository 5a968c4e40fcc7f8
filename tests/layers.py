"""Who may include whom in csrc: ``make lint`` runs this, and it names every include that breaks a rule.

A folder may include itself and those named here; a folder that is not named is a room, which holds one operator. Only
files whose name begins with torch, and csrc/torch, know torch; only those that begin with cuda, csrc/cuda and
csrc/lessons know CUDA. A file of loops that LOOPS names counts as included.
"""

import os
import re
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1] / "csrc"
BASE = {"include", "core", "cpu", "cuda", "torch", "matrix"}  # what every room stands on
MAY = {
    "include": set(),
    "core": {"include"},
    "cpu": {"core"},
    "torch": {"core"},
    "matrix": {"core", "cpu", "cuda", "torch"},
    "cuda": {"core", "matrix"},
    "fused": BASE | {"spmm", "sddmm"},  # it is both in one pass
    "messages": BASE | {"spmm"},  # whose join adds up the slots of long rows
    "lessons": BASE | {"fused"},
}
# Headers of CUDA and its libraries; and of torch, which no file includes, since csrc/torch has prototypes of its own.
CUDA = re.compile(r"#include <((?:cuda|cooperative_groups|cub/|thrust/|cublas|cusparse)[^>]*)>")
TORCH = re.compile(r"#include <((?:torch|ATen|c10)/[^>]*)>")


def knows(path: Path, what: str) -> bool:
    """Whether a file is one of those that know torch, or CUDA."""
    return any(part.startswith(what) for part in path.relative_to(CSRC).parts) or (
        what == "cuda" and "lessons" in path.parts
    )


def broken(path: Path) -> list[str]:
    """The includes of a file that break a rule."""
    text, found = path.read_text(), []
    for name in re.findall(r'(?:#include|#define LOOPS) "([^"]+)"', text):
        target = Path(os.path.normpath(path.parent / name))
        here, there = (p.relative_to(CSRC).parts[0] for p in (path, target))
        known = all(knows(path, what) or not knows(target, what) for what in ("torch", "cuda"))
        if not known or (here != there and there not in MAY.get(here, BASE)):
            found.append(f"{path.relative_to(CSRC.parent)} may not include {name}")
    for name in TORCH.findall(text) + ([] if knows(path, "cuda") else CUDA.findall(text)):
        found.append(f"{path.relative_to(CSRC.parent)} may not include <{name}>")
    return found


if __name__ == "__main__":
    suffixes = (".c", ".h", ".inc", ".def", ".cu", ".cuh")
    faults = [fault for path in sorted(CSRC.rglob("*")) if path.suffix in suffixes for fault in broken(path)]
    print("\n".join(faults))
    sys.exit(bool(faults))
