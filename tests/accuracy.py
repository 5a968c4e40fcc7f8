"""How near every operator came to its error bound: written down by the tests, printed as docs/accuracy.md's table.

    FUSEDMM_ACCURACY=benchmarks/results/accuracy-cpu.json pytest    # the CPU's; tests/gpu_report.py has CUDA's
    python tests/accuracy.py                                        # renews the table in docs/accuracy.md

The file has device -> operator -> dtype -> the largest error over bound of all comparisons.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = [ROOT / "benchmarks/results" / name for name in ("accuracy-cpu.json", "gpu-tests.json")]
BEGIN, END = "<!-- errors over bounds, by tests/accuracy.py -->\n", "<!-- end -->"
DTYPES = ["float32", "float64", "float16", "bfloat16"]
OPERATORS = [
    *(f"spmm {reduce}" for reduce in ("sum", "mean", "max", "min")),
    *(f"sddmm {op}" for op in ("dot", "add", "sub", "mul")),
    *("spmv", "spgemm", "fused", "attention", "edge_softmax"),
]

Ratios = dict[str, dict[str, dict[str, float]]]
worst: Ratios = {}


def record(operator: str, computed: Tensor, error: Tensor, bound: Tensor) -> None:
    """Keeps the largest of error / bound; of nothing where an error is expected to be none at all."""
    if not operator or not error.numel():
        return
    assert operator in OPERATORS, operator
    ratio = float((error / bound).nan_to_num(0.0).max())  # equal infinities, and 0 of 0
    by_dtype = worst.setdefault(computed.device.type, {}).setdefault(operator, {})
    name = str(computed.dtype)[6:]
    by_dtype[name] = max(ratio, by_dtype.get(name, 0.0))


def write(path: str) -> None:
    """What record has kept, rounded up: a bound must not look kept by rounding."""
    Path(path).write_text(json.dumps(merge([worst]), indent=2) + "\n")


def merge(parts: Iterable[Ratios]) -> Ratios:
    """The largest of several runs, in the order of the table, in hundredths rounded up."""
    found: Ratios = {}
    for part in parts:
        for device, operators in part.items():
            for operator in sorted(operators, key=OPERATORS.index):
                for dtype in sorted(operators[operator], key=DTYPES.index):
                    by_dtype = found.setdefault(device, {}).setdefault(operator, {})
                    ratio = math.ceil(round(100 * operators[operator][dtype], 6)) / 100
                    by_dtype[dtype] = max(ratio, by_dtype.get(dtype, 0.0))
    return found


def table(ratios: Ratios) -> str:
    """Markdown: a line per operator, a column per device and dtype."""
    columns = [(device, dtype) for device in sorted(ratios) for dtype in DTYPES]
    lines = ["| | " + " | ".join(f"{device.upper()} {dtype}" for device, dtype in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for operator in OPERATORS:
        cells = (ratios[device].get(operator, {}).get(dtype) for device, dtype in columns)
        lines.append(f"| {operator} | " + " | ".join("" if c is None else f"{c:.2f}" for c in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found: Ratios = {}
    for path in RESULTS:
        report = json.loads(path.read_text()) if path.exists() else {}
        found |= report.get("accuracy", report if path.name.startswith("accuracy") else {})
    page = ROOT / "docs/accuracy.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + table(found) + END + after)


if __name__ == "__main__":
    main()
