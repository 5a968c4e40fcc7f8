"""CONTRIBUTING names every file that a new instruction set or dtype has to be written into."""

import ast
import re
from pathlib import Path

from support.machine import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)


def item(name: str) -> str:
    """The text of one item of the list of what may be added."""
    return TEXT.partition(f"- **{name}**")[2].partition("\n- **")[0].partition("\n\n")[0]


def code_of(path: Path) -> str:
    """A file without the comments of C, in which strings stay."""
    return COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else "", path.read_text())


def files(*patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.is_file()]


def written_in(word: str, *patterns: str) -> set[str]:
    found = (path for path in files(*patterns) if word in code_of(path).lower())
    return {str(path.relative_to(ROOT)) for path in found}


def test_every_place_of_an_instruction_set_is_named():
    places = written_in("avx512", "csrc/**/*", "setup.py", "Makefile", "tests/*.mk", "tests/interop/*.py")
    places |= written_in("neon", "csrc/**/*", "setup.py", "Makefile", "tests/*.mk", "tests/interop/*.py")
    own = {f"csrc/cpu/isa_{name}.h" for name in ("avx512", "neon")}
    assert "csrc/cpu/isa.h" in places and "tests/sanitize.mk" in places
    assert {place for place in places - own if f"`{place}`" not in item("An instruction set")} == set()


def test_every_place_of_a_dtype_is_named():
    """In C the item tells what to search for; in Python one file alone knows the dtype."""
    assert "git grep -inE 'bf(loat)?16' csrc" in item("A dtype")
    trees = {path: ast.walk(ast.parse(path.read_text())) for path in files("fusedmm/**/*.py")}
    known = {
        str(path.relative_to(ROOT))
        for path, nodes in trees.items()
        if any(isinstance(node, ast.Attribute) and node.attr == "bfloat16" for node in nodes)
    }
    assert known and {place for place in known if f"`{place}`" not in item("A dtype")} == set()
    for name in re.findall(r"`([\w/*]+\.\w+)`", item("A dtype")):
        assert files(name, f"csrc/cpu/{name}", f"csrc/cuda/{name}"), f"there is no {name}"
