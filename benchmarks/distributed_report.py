"""What bench_distributed.py found, as a small file under git, tables, and a picture of what ran when.

    python -m benchmarks.distributed_report FILE.json NAME

writes ``results/NAME.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.store import draw

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
KINDS = {
    "nccl": "messages",
    "ptop": "messages",
    "barrier": "messages",
    "spmm": "product",
    "pick": "pack",
    "copy": "copy",
    "dtod": "copy",
    "elementwise": "copy",
}


def brief(value: Any) -> Any:
    """Numbers of four digits, all the way down."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: brief(v) for key, v in value.items()}
    return [brief(v) for v in value] if isinstance(value, list) else value


def save(found: Row, path: Path) -> None:
    """Writes the small file, a line for each graph, the table and the picture."""
    rows = ",\n".join(json.dumps(brief(row), separators=(",", ":")) for row in found["rows"])
    head = json.dumps(brief({key: v for key, v in found.items() if key != "rows"}))
    path.write_text(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n')
    path.with_suffix(".md").write_text(table(found))
    traces = [row["trace"] for row in found["rows"] if row.get("trace")]
    if traces:
        picture(traces[-1], path.with_suffix(".png"))


def table(found: Row) -> str:
    """Times of one and of several GPUs, and what a product of several consists of."""
    ranks, shares = found["ranks"], [*found["rows"][0]["parts"]["kernels"]]
    lines = [
        f"{ranks} x {found['device']}, torch {found['torch']}; ms, the median of runs with a cold L2; by the shares of "
        "the columns that travel by themselves, and by the rule",
        "",
        f"| graph | what | one | {ranks}: {' | '.join(shares)} | rule | faster | same bits | split | faster | GB one | "
        "GB a rank | host |",
        "|---|---|---|" + "---|" * (len(shares) + 8),
    ]
    for row in found["rows"]:
        for what, alone in row["one"].items():
            times = [row["several"].get(f"{what}, {pieces}") for pieces in shares]
            rule = row["several"][what]
            split = row["several"].get(f"{what}, split")
            halves = f"{split:.3g} | {alone / split:.2f}" if split else " | "
            same = all(equal for key, equal in row["bits"].items() if key.startswith(f"{what}, "))
            shown = " | ".join("" if t is None else f"{t:.3g}" for t in (alone, *times, rule))
            of_rank = row.get("memory", {}).get(
                what
            )  # older files have none that counts all of it, nor the host's time
            most = f"{row['one_memory'][what]:.2f} | {'' if of_rank is None else f'{of_rank:.2f}'}"
            most += f" | {row['host'][what]:.3g}" if "host" in row else " | "
            bits = "yes" if same else "no"
            lines.append(f"| {row['graph']} | {what} | {shown} | {alone / rule:.2f} | {bits} | {halves} | {most} |")
    names = [name for name in found["rows"][0]["parts"] if name != "kernels"]
    lines += [
        "",
        f"| graph | halo / own rows | interior rows | their entries | {' | '.join(names)} | bound | product / bound | "
        "sent / unique |",
        "|---|---|---|---|" + "---|" * (len(names) + 3),
    ]
    for row in found["rows"]:
        parts, bound = row["parts"], max(row["parts"]["wire"], row["parts"]["kernel"])
        sent = row["sent_bytes"] / max(row["unique_bytes"], 1)
        shown = " | ".join(f"{parts[name]:.3g}" for name in names)
        lines.append(
            f"| {row['graph']} | {row['halo'] / row['own']:.2f} | {row['interior_rows']:.3f} | "
            f"{row['interior_entries']:.2g} | {shown} | {bound:.3g} | "
            f"{row['several']['spmm'] / bound:.2f} | {sent:.3f} |"
        )
    return "\n".join(lines) + "\n"


def model(row: Row, links: dict[int, float], halos: tuple[float, ...] = (0.05, 0.2, 0.7, 2, 4, 16)) -> str:
    """How many times faster than one GPU a product would be, by what was measured of its parts.

    A rank of P has 1/P of the rows and of the kernel's time, and fetches halo * N / P rows over a link of so many GB/s.
    The first of two pieces travels before the kernel, while own rows are copied; the second is picked and copied then,
    too, and of its way counts what the first one's kernel does not hide.
    """
    parts, n, here = row["parts"], row["nodes"], row["ranks"]
    pack = parts["pack"] / max(row["unique_bytes"], 1)  # ms a byte
    copy = parts["copy"] / (row["own"] * 512)
    lines = [f"| halo in N/P | {' | '.join(f'{ranks} ranks, {gbs:g} GB/s' for ranks, gbs in links.items())} |"]
    lines.append("|---|" + "---|" * len(links))
    for halo in halos:
        cells = []
        for ranks, gbs in links.items():
            if halo > ranks - 1:  # all columns at most
                cells.append("")
                continue
            moved = halo * n / ranks * 512
            wire, kernel = moved / gbs / 1e6, parts["kernels"]["1:1"] * here / ranks
            rest = pack * moved / 2 + copy * n / ranks * 512
            before = pack * moved / 2 + max(wire / 2, rest)
            cells.append(f"{row['one']['spmm'] / (before + max(wire / 2, kernel / 2) + kernel / 2):.2f}")
        lines.append(f"| {halo:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(trace: Row, path: Path) -> None:
    """A line for each stream of one rank's GPU, without pieces and with two."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 1.2 * len(trace)), layout="constrained")
    kinds = [*dict.fromkeys(KINDS.values()), "other"]
    for ax, (pieces, events) in zip(figure.subplots(len(trace), 1, sharex=True), trace.items(), strict=True):
        streams = sorted({stream for _, stream, _, _ in events})
        for name, stream, begin, long in events:
            kind = next((kind for part, kind in KINDS.items() if part in name.lower()), "other")
            ax.barh(streams.index(stream), long / 1e3, left=begin / 1e3, height=0.7, color=f"C{kinds.index(kind)}")
        ax.set(yticks=range(len(streams)), yticklabels=[f"stream {s}" for s in streams])
        ax.set_title("one message, then the kernel" if pieces == "1" else f"columns in {pieces}", fontsize="small")
        ax.grid(axis="x", alpha=0.3)
    ax.set_xlabel("ms")
    handles = [figure.axes[0].barh(0, 0, color=f"C{k}", label=kind) for k, kind in enumerate(kinds)]
    figure.legend(handles=handles, loc="outside right upper", fontsize="x-small")
    draw(figure, path)


if __name__ == "__main__":
    save(json.loads(Path(sys.argv[1]).read_text()), RESULTS / f"{sys.argv[2]}.json")
