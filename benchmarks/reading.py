"""What tables and plots read from the results of SpMM and SDDMM."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
SHAPE = re.compile(r"(\d+)x(\d+) (\d+)%")  # of the suites pruned and sweeps: rows, columns, share of zeros
KINDS: dict[str, Callable[[str, Document], bool]] = {
    "ours": lambda name, r: name == "auto",
    "wall": lambda name, r: bool(r.get("wall")),
    "best peer": lambda name, r: not (r["ours"] or r.get("dense") or r.get("wall")),
}


def machine(document: Document) -> str:
    """What it was measured on."""
    conditions = document["conditions"]
    return f"{conditions.get('gpu', conditions['cpu'])}, torch {conditions['torch']}"


def best(case: Document, kind: str, key: str = "us") -> float:
    """Least microseconds of a kind, or of those whose family is called so; NaN without any."""
    counts = KINDS.get(kind) or (lambda name, r: family(name, r) == kind)
    return min((r[key] for n, r in case["contenders"].items() if key in r and counts(n, r)), default=math.nan)


def family(name: str, found: Document) -> str:
    """What a contender is a variant of: "cusparse_csr_alg2" of "cusparse", "row_split:4" of "row_split"."""
    for vendor in ("cusparse", "torch.sparse", "sampled_addmm"):
        if name.startswith(vendor):
            return vendor
    return "wall" if found.get("wall") else "ours" if name == "auto" else name.split(":")[0]


def wall_share(case: Document) -> float | None:
    """Time of the wall over ours."""
    share = best(case, "wall") / best(case, "ours")
    return None if math.isnan(share) else share


def gflops(case: Document, kind: str) -> float:
    """GFLOP/s of the entries' products; those of the others do not count for a dense product."""
    return 2e-3 * case["nnz"] * case["feat"] / best(case, kind)


def shape(case: Document) -> tuple[int, int, int] | None:
    """Rows, columns and the share of zeros of a matrix that was drawn to be so."""
    found = SHAPE.fullmatch(case["graph"])
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
