"""What tables and plots read from the results of SpMM, SDDMM (case.py) and of trials (trial.py)."""

from __future__ import annotations

import math
import re
from typing import Any

Document = dict[str, Any]
ITEM = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}  # bytes of a number
SHAPE = re.compile(r"(\d+)x(\d+) (\d+)%")  # of the suites pruned and sweeps: rows, columns, share of zeros


def machine(document: Document) -> str:
    """What it was measured on."""
    conditions = document["conditions"]
    return f"{conditions.get('gpu', conditions['cpu'])}, torch {conditions['torch']}"


def card(document: Document) -> str:
    """The short name of the GPU that it was measured on, or CPU."""
    conditions = document["conditions"]
    return str(conditions.get("gpu") or conditions.get("device", "CPU")).removeprefix("NVIDIA ").split()[0]


def best(case: Document, kind: str, key: str = "us") -> float:
    """Least microseconds of a kind, or of those whose family is called so; NaN without any."""

    def counts(name: str, r: Document) -> bool:
        return role(r) == "peer" if kind == "best peer" else family(name, r) == kind

    return min((r[key] for n, r in case["contenders"].items() if key in r and counts(n, r)), default=math.nan)


def role(found: Document) -> str:
    """Whether a contender is "ours", a "peer", a "dense" product or a "wall"."""
    return str(found.get("kind") or next((k for k in ("ours", "dense", "wall") if found.get(k)), "peer"))


def family(name: str, found: Document) -> str:
    """What a contender is a variant of: "cusparse_csr_alg2" of "cusparse", "row_split:4" of "row_split"."""
    for beginning in ("cusparse", "torch.sparse", "sampled_addmm", "reads alone"):
        if name.startswith(beginning):
            return beginning
    return "wall" if role(found) == "wall" else "ours" if name == "auto" else name.split(":")[0]


def wall_share(case: Document) -> float | None:
    """Time of the wall over ours."""
    share = best(case, "wall") / best(case, "ours")
    return None if math.isnan(share) else share


def flops(case: Document) -> float:
    """Multiplications and additions for the entries; those for the zeros do not count, though a dense product has
    them."""
    return float(case.get("flops") or 2 * case["nnz"] * case["feat"])


def most_flops(case: Document, dtype: str) -> float | None:
    """Flops of A A for each double that is read where all of A is read once and stays; None for other operations."""
    if case.get("products") is None:
        return None
    return round(16 * float(case["products"]) / (case["nnz"] * (4 + ITEM[dtype]) + 8 * (case["rows"] + 1)), 2)


def gflops(case: Document, kind: str) -> float:
    """GFLOP/s of the entries."""
    return 1e-3 * flops(case) / best(case, kind)


def shape(case: Document) -> tuple[int, int, int] | None:
    """Rows, columns and the share of zeros of a matrix that was drawn to be so."""
    found = SHAPE.fullmatch(case["graph"])
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def setting(case: Document) -> str:
    """What a case is called beside its graph."""
    if case.get("case"):
        return str(case["case"])
    threads = f", {case['threads']} thread{'s' * (case['threads'] > 1)}" if case["threads"] else ""
    return f"K {case['feat']}{threads}{'' if case['weighted'] else ', no values'}"


def geomean(numbers: list[float]) -> float:
    """The geometric mean of those that are there."""
    there = [math.log(n) for n in numbers if not math.isnan(n)]
    return math.exp(sum(there) / len(there)) if there else math.nan


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def three(number: float, units: tuple[str, ...], step: float) -> str:
    """Three digits of a number of the first unit, in the largest unit that it reaches."""
    while number >= step and len(units) > 1:
        number, units = number / step, units[1:]
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f} {units[0]}"


def time_text(us: float) -> str:
    """A time that is given in microseconds."""
    return three(us, ("µs", "ms", "s"), 1000.0)


def size_text(mib: float) -> str:
    """A size that is given in MiB."""
    return three(mib, ("MiB", "GiB"), 1024.0)
