"""Results on disk: a small file under git, from which tables and plots are made, and all digits in an ignored folder.

The small file has one line per case and numbers of four digits. A line has what is known of the case, in the order of
``facts``; then of each contender, in the order of ``columns``; then why others refused, as places in ``reasons``. null
is for what is not known, and what is not known at the end is left out. How the runs of a time spread is kept for
``auto`` alone.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.reading import Document

RAW = Path(__file__).parents[1] / "build" / "benchmarks"
SPREAD = ("us_quartiles", "runs")


def _rounded(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        short = float(f"{value:.4g}")
        return int(short) if short.is_integer() else short
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def _row(found: Document, columns: list[str]) -> list[Any]:
    row = [found.get(column) for column in columns]
    while row and row[-1] is None:
        row.pop()
    return row


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def save(document: Document, path: Path) -> None:
    """Writes the small file at path, and everything beneath ``RAW`` under the same name."""
    for folder in (path.parent, RAW):
        folder.mkdir(parents=True, exist_ok=True)
    (RAW / path.name).write_text(json.dumps(document) + "\n")
    cases, parts = document["cases"], ("contenders", "refused")
    found = [(name, r) for c in cases for name, r in c.get("contenders", {}).items()]
    facts = list(dict.fromkeys(k for c in cases for k in c if k not in parts))
    columns = sorted(dict.fromkeys(k for _, r in found for k in r), key=SPREAD.__contains__)
    brief = [k for k in columns if k not in SPREAD]
    reasons = list(dict.fromkeys(why for c in cases for why in c.get("refused", {}).values()))
    lines = []
    for case in cases:
        line: list[Any] = [_row(case, facts)]
        if "contenders" in case:
            line.append({n: _row(r, columns if n == "auto" else brief) for n, r in case["contenders"].items()})
            line.append({n: reasons.index(why) for n, why in case.get("refused", {}).items()})
        lines.append(_text(_rounded(line)))
    head = {**document, "facts": facts, "columns": columns, "reasons": reasons}
    top = [f"{_text(k)}: {_text(v)}" for k, v in head.items() if k != "cases"]
    path.write_text("{\n" + ",\n".join(top) + ',\n"cases": [\n' + ",\n".join(lines) + "\n]\n}\n")


def write(document: Document, text: str, path: Path) -> None:
    """The results at path, the text beside them and printed."""
    save(document, path)
    path.with_suffix(".md").write_text(text)
    print(text)


def draw(figure: Any, path: Path) -> None:
    """Writes a picture of 64 colours, which takes a quarter of the room and looks the same."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=120)
    picture = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


def load(path: Path) -> Document:
    """The document of a small file, or of one with all digits."""
    document: Document = json.loads(path.read_text())
    if "facts" not in document:
        return document
    facts, columns, reasons = (document.pop(key) for key in ("facts", "columns", "reasons"))

    def known(keys: list[str], row: list[Any]) -> Document:
        return {k: v for k, v in zip(keys, row, strict=False) if v is not None}

    for place, (about, *rest) in enumerate(document["cases"]):
        case = dict.fromkeys(facts) | known(facts, about)
        if rest:
            case["contenders"] = {name: known(columns, row) for name, row in rest[0].items()}
            case["refused"] = {name: reasons[k] for name, k in rest[1].items()}
        document["cases"][place] = case
    return document


def named(results: Path, stem: str) -> Document:
    """The document of a suite; one without cases where there is none."""
    path = results / f"{stem}.json"
    return load(path) if path.exists() else {"cases": []}
