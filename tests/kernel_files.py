"""How well kernel files read, by what can be counted: what of each file breaks a limit.

    python tests/kernel_files.py     # every kernel file with its share of comment lines, and what is beyond a limit

A kernel file computes: files of a room that are named cpu* or cuda*, those of csrc/cpu, the kernels of csrc/cuda and
csrc/matrix, and the lessons. Contracts, bindings and what only names functions of the vendors' libraries are none.
"""

import re
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1] / "csrc"
MOST_LINES, MOST_PARAMETERS, LEAST_COMMENTS = 200, 6, 0.18
COMMENTS_AND_STRINGS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def kernel_files() -> list[Path]:
    """The kernel files of csrc, in order of their names."""
    files = []
    for path in sorted(CSRC.rglob("*.*")):
        folder, computes = path.relative_to(CSRC).parts[0], path.suffix in (".cu", ".cuh", ".inc")
        named = path.suffix in (".c", ".h") and (path.name.startswith(("cpu", "cuda")) or folder in ("cpu", "lessons"))
        if computes or named or path.name == "compress.c":
            files.append(path)
    return files


def comment_share(text: str) -> float:
    """The lines that have a comment, of those that are not blank."""
    lines: set[int] = set()
    for match in COMMENTS_AND_STRINGS.finditer(text):
        if match[0].startswith("/"):
            lines |= set(range(text.count("\n", 0, match.start()), text.count("\n", 0, match.end()) + 1))
    return len(lines) / sum(bool(line.strip()) for line in text.split("\n"))


def without_comments(text: str) -> str:
    """The text with comments and strings blanked, line for line."""
    return COMMENTS_AND_STRINGS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def long_functions(text: str) -> list[str]:
    """Functions above the limit; clang-format puts their braces, and no others, at the start of a line."""
    found, first = [], 0
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        if line.startswith("{"):
            first = number
        elif line.startswith("}") and first:
            if number - first + 1 > MOST_LINES:
                found.append(f"a function of {number - first + 1} lines at line {first}")
            first = 0
    return found


def many_parameters(text: str) -> list[str]:
    """Templates above the limit."""
    found, text = [], without_comments(text)
    for match in re.finditer(r"\btemplate <", text):
        depth, count, at = 1, 1, match.end()
        while depth and at < len(text):
            depth += {"<": 1, ">": -1, "(": 1, ")": -1}.get(text[at], 0)
            count += depth == 1 and text[at] == ","
            at += 1
        if count > MOST_PARAMETERS:
            found.append(f"{count} template parameters at line {text.count(chr(10), 0, match.start()) + 1}")
    return found


def faults(path: Path) -> list[str]:
    """What is beyond a limit in a file."""
    text, found = path.read_text(), []
    head = re.match(r"/\*.*?\*/", text, re.DOTALL)
    if comment_share(text) < LEAST_COMMENTS:
        found.append(f"{comment_share(text):.1%} of its lines have a comment")
    if not head:
        found.append("it does not open with what it computes")
    elif "__global__" in text and not re.search(r"^ \*    +\S", head[0], re.MULTILINE):
        found.append("no sketch of who owns what in its opening comment")
    return found + long_functions(text) + many_parameters(text)


def main() -> int:
    bad = 0
    for path in kernel_files():
        found = faults(path)
        bad += bool(found)
        print(f"{comment_share(path.read_text()):6.1%}  {path.relative_to(CSRC)}  {'; '.join(found)}".rstrip())
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
