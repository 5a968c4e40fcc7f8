"""The worked example of docs/example_operator: added to a copy of the checkout as CONTRIBUTING says, built and run."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import ROOT

import fusedmm

EXAMPLE = ROOT / "docs" / "example_operator"
EDITED = {"csrc/core/operators.def", "csrc/include/fusedmm.h", "fusedmm/__init__.py"}
# These read the lists that the example adds a line to; no other object depends on what is added.
STALE = ("core_core.c", "torch_bind.c", "cuda_absent.c")


def sources(root: Path) -> dict[str, bytes]:
    """What a new operator may touch, and what is in it."""
    paths = [root / "setup.py", *(root / "csrc").rglob("*"), *(root / "fusedmm").rglob("*")]
    kept = [p for p in paths if p.is_file() and p.suffix not in (".so", ".pyc")]
    return {str(p.relative_to(root)): p.read_bytes() for p in kept}


def add_example(root: Path) -> None:
    """Copies the example's folders, and inserts the lines of its README below those that stand before them."""
    for folder in ("csrc", "fusedmm", "tests"):
        shutil.copytree(EXAMPLE / folder, root / folder, dirs_exist_ok=True)
    lines = (EXAMPLE / "README.md").read_text().partition("```diff\n")[2].partition("```")[0].splitlines(keepends=True)
    path, anchor = root, ""
    for line in lines:
        if line.startswith("--- "):
            path = root / line.split()[1]
        elif line.startswith(" "):
            anchor = line[1:]
        else:
            text = path.read_text()
            assert text.count(anchor) == 1, (path, anchor)
            path.write_text(text.replace(anchor, anchor + line[1:]))


def copy_objects(root: Path) -> None:
    """The checkout's objects, current in the copy, but for those that read what the example changes."""
    objects = root / "build" / "objects"
    shutil.copytree(ROOT / "build" / "objects", objects)
    for note in (*objects.glob("*.command"), *objects.glob("*.d")):
        note.write_text(note.read_text().replace(str(ROOT), str(root)))
    for made in objects.glob("*.o"):
        made.unlink() if made.name.startswith(STALE) else os.utime(made)


def as_built() -> dict[str, str]:
    """What the checkout was built with: other options would make every object again, which takes an hour with nvcc."""
    command = shlex.split((ROOT / "build" / "objects" / "core_core.c.command").read_text())
    archs = next(word.partition("=")[2].strip('"') for word in command if word.startswith("-DFMM_CUDA_ARCHS="))
    return {"FUSEDMM_CUDA": "0" if fusedmm.build_info()["cuda"] is None else "1", "TORCH_CUDA_ARCH_LIST": archs}


def run(root: Path, *command: str) -> str:
    env = os.environ | as_built() | {"PYTHONPATH": str(root), "LD_LIBRARY_PATH": str(root / "fusedmm")}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_row_sums(tmp_path):
    if not (ROOT / "build" / "objects" / "core_core.c.command").exists():
        pytest.skip("the library was not built in this checkout, and building all of it takes minutes")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("csrc", "fusedmm"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__", "lessons")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    before = sources(tmp_path)
    add_example(tmp_path)
    after = sources(tmp_path)
    assert {name for name, text in before.items() if after[name] != text} == EDITED
    copy_objects(tmp_path)
    built = run(tmp_path, sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    compiled = built.count(" -c ")
    assert compiled <= len(STALE) + len(list((EXAMPLE / "csrc" / "rowsum").glob("*.c"))), built
    run(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_rowsum.py")
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-std=c11", "-Icsrc/include", "tests/test_rowsum.c", "-Lfusedmm", "-l:libfusedmm.so", "-o", "refuses"]
    run(tmp_path, *compiler, *flags)
    assert "rowsum" in run(tmp_path, "./refuses")
