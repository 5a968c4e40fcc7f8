"""What the tests of SpMV share: a matrix in every format, and the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import fusedmm
from fusedmm import formats
from support.bounds import spmm_oracle
from support.generate import own_algorithms, run_or_decline

FORMATS = ["csr", "coo", "dia", "ell", "hyb", "sell"]


def made(adj: fusedmm.CSR, name: str) -> Any:
    """adj in a format, however much padding that takes."""
    if name == "csr":
        return adj
    allowed = {"growth": 1e9} if name in ("dia", "ell", "sell") else {}
    return getattr(formats, "to_" + name)(adj, **allowed)


def algorithms_of(name: str, device: str) -> list[str]:
    """``auto`` and the algorithms of a format."""
    families = {family for family, made_of in formats.FORMATS.items() if made_of.__name__.lower() == name}
    families |= {"auto", "reference"}
    return [a for a in own_algorithms("spmv", device) if a.partition(":")[0] in families]


def products(adj: fusedmm.CSR, name: str, x: Tensor, **options: Any) -> Iterator[tuple[str, Tensor]]:
    """(algorithm, result) of every algorithm of a format that does not decline."""
    matrix = made(adj, name)
    for algorithm in algorithms_of(name, x.device.type):
        y = run_or_decline(fusedmm.spmv, matrix, x, algorithm=algorithm, **options)
        if y is not None:
            yield f"{name} {algorithm}", y


def oracle(
    adj: fusedmm.CSR, x: Tensor, alpha: float = 1, beta: float = 0, y: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(exact, magnitude, n) of spmv: float64, on the CPU."""
    exact, magnitude, n = (t[:, 0] for t in spmm_oracle(adj, x[:, None], "sum"))
    exact, magnitude = alpha * exact, abs(alpha) * magnitude
    if beta != 0:
        assert y is not None
        added = beta * y.detach().double().cpu()
        exact, magnitude, n = exact + added, magnitude + added.abs(), n + 1
    return exact, magnitude, n


def rows_of_lengths(lengths: list[int], cols: int, device: str, dtype: torch.dtype = torch.float32) -> fusedmm.CSR:
    """Rows of so many entries in random columns, with random values."""
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(0, cols, (int(ptr[-1]),), generator=g)
    val = torch.randn(idx.shape, generator=g, dtype=torch.float64).to(dtype)
    return fusedmm.CSR.from_csr(ptr.to(device), idx.to(device), val.to(device), (len(lengths), cols))
