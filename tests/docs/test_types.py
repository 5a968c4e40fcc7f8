"""What a type checker says of a user's code."""

import os
import subprocess
import sys

import pytest
from support.machine import ROOT

REVEALED = {  # of a CSR A, a tensor x and a module m
    "fusedmm.attention(A, x, x, x)": "Tensor",
    "fusedmm.attention(A, x, x, x, return_lse=True)": "tuple[Tensor, Tensor]",
    "fusedmm.attention(A, x, x, x, return_weights=True)": "tuple[Tensor, Tensor]",
    "fusedmm.attention(A, x, x, x, return_lse=True, return_weights=True)": "tuple[Tensor, Tensor, Tensor]",
    "A.T": "CSR",
    "A[[0]]": "CSR",
    "A + A": "CSR",
    "2 * A": "CSR",
    "A @ A": "CSR",
    "A @ x": "Tensor",
    "x @ A": "Tensor",
    "A.sum(1)": "Tensor",
    "A.size()": "tuple[int, int]",
    "A.size(0)": "int",
    "A.half()": "CSR",
    "fusedmm.convert(m)": "Module",
    "fusedmm.convert(fusedmm.nn.LGConv())": "LGConv",
    "fusedmm.convert(m, report=True)": "Conversion",
    "fusedmm.nn.MessagePassing().aggr": "Any",
    "fusedmm.nn.MessagePassing().propagate(x, x=x)": "Tensor",
}


@pytest.mark.slow  # mypy reads all of torch, the first time for a minute
def test_types_of_results(tmp_path):
    pytest.importorskip("mypy")
    code = "import fusedmm, torch\nA: fusedmm.CSR\nx: torch.Tensor\nm: torch.nn.Module\n"
    code += "".join(f"reveal_type({call})\n" for call in REVEALED)
    (tmp_path / "user.py").write_text(code)
    options = ["--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "user.py")]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *options], cwd=ROOT, env={**os.environ}, capture_output=True, text=True
    )
    found = [line.partition('type is "')[2].rstrip('"') for line in said.stdout.splitlines() if "Revealed" in line]
    short = ["".join(part.rpartition(".")[2] for part in _parts(text)) for text in found]
    assert short == list(REVEALED.values()), said.stdout


def _parts(text):
    """A type's dotted names, and what stands between them."""
    part = ""
    for letter in text:
        if letter in "[], ":
            yield part
            yield letter
            part = ""
        else:
            part += letter
    yield part
