"""The command line: ``python -m fusedmm info``, ``train`` and ``partition``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fusedmm import train
from fusedmm._lib import build_info
from fusedmm.distributed import command


def info(as_json: bool) -> None:
    """Prints what this build can do and what it runs on."""
    known = build_info()
    if as_json:
        print(json.dumps(known, indent=1))
        return
    for key, value in known.items():
        print(f"{key:10}{_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_text(part)}" for name, part in value.items())
    return " ".join(value) if isinstance(value, list) else str(value or "none")


def main(argv: list[str] | None = None) -> None:
    """Runs a command; what the user got wrong ends with one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m fusedmm", description="Sparse kernels for graph neural networks.")
    commands = parser.add_subparsers(dest="command", required=True)
    about = commands.add_parser("info", help="what this build can do and what it runs on")
    about.add_argument("--json", action="store_true", help="as JSON")
    training = commands.add_parser("train", help="train a graph network and compare it with PyG or torch.sparse")
    train.add_arguments(training)
    cutting = commands.add_parser("partition", help="cut a graph for many ranks: a report, or shards")
    command.add_arguments(cutting)
    args = parser.parse_args(argv)
    if args.command == "info":
        info(args.json)
        return
    parser, run = (training, train.main) if args.command == "train" else (cutting, command.main)
    try:
        run(args)
    except (OSError, ValueError, ImportError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
