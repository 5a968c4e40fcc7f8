"""Prints the share of lines that ran, per source of the library, and those that did not (make coverage).

The share of all is written into docs/coverage.md, whose table has to have a row for every file with lines that did not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "coverage.md"
BEGIN, END = "<!-- lines that ran, by make coverage -->\n", "<!-- end -->"


def ran(folder: Path) -> dict[str, dict[int, bool]]:
    """File -> line -> whether it ran in any translation unit: loops are compiled once per type and machine."""
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    for notes in sorted(folder.rglob("*.gcno")):
        out = subprocess.run(["gcov", "--json-format", "--stdout", notes], capture_output=True, text=True, check=True)
        for report in out.stdout.splitlines():
            for file in json.loads(report)["files"]:
                if not file["file"].startswith("csrc/"):
                    continue
                for line in file["lines"]:
                    seen = lines[file["file"]].get(line["line_number"], False)
                    lines[file["file"]][line["line_number"]] = seen or line["count"] > 0
    return lines


def ranges(numbers: list[int]) -> str:
    """3, 4, 5, 9 as 3-5, 9."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def unexplained(text: str, files: list[str]) -> list[str]:
    """Those of the files that the first column of the table does not name, which it does from csrc/ on."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {f"csrc/{name}" for row in rows for name in re.findall(r"`([^`]+)`", row)}
    return [file for file in files if file not in named]


def main() -> None:
    total = covered = 0
    partly = []
    for file, lines in sorted(ran(Path(sys.argv[1])).items()):
        missed = sorted(n for n, seen in lines.items() if not seen)
        total += len(lines)
        covered += len(lines) - len(missed)
        partly += [file] * bool(missed)
        print(f"{100 * (1 - len(missed) / len(lines)):6.1f} %  {file}  {ranges(missed)}".rstrip())
    share = f"{100 * covered / total:.1f} % of {total:,} lines ran"
    print(share)
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    text = f"{before}{BEGIN}{share}.\n{END}{rest.partition(END)[2]}"
    DOCUMENT.write_text(text)
    if missing := unexplained(text, partly):
        sys.exit(f"{DOCUMENT.name} has no row that says why lines of these did not run: {', '.join(missing)}")


if __name__ == "__main__":
    main()
