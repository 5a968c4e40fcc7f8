"""What each format would cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fusedmm.formats.dia import dia_bytes
from fusedmm.formats.ell import ell_bytes
from fusedmm.formats.entries import allowed_bytes, csr_bytes, entries, longest_row
from fusedmm.formats.hyb import hyb_bytes, hyb_width
from fusedmm.formats.sell import SIGMA, sell_bytes, slices_of
from fusedmm.matrix.adapters import operand


class Advice(NamedTuple):
    """What ``advise`` says.

    Attributes:
        bytes: what one product reads of the matrix in each format.
        best: the name of the format that ``to_...`` should make, or "csr"; sums that HYB's two passes hand over count.
        fits: the formats whose padding is within the default of ``to_...``.

    Example:
        >>> fusedmm.formats.advise(fusedmm.data.banded(1000, 1)).best
        'dia'
    """

    bytes: dict[str, int]
    best: str
    fits: tuple[str, ...]


def advise(a: Any) -> Advice:
    """Counts what a product with a vector reads of a matrix in each format, and names the format that reads least.

    Args:
        a: a ``CSR``, or what ``as_csr`` takes; without values it is counted with float32 ones.

    Returns:
        Bytes of each format, padding too; the best; and those that fit. For the best HYB counts with the sums of its
        first pass, which the second one reads. CSR stays the best where no other one saves a twentieth, since it needs
        no conversion.

    Raises:
        TypeError, ValueError: as ``as_csr``, and values with heads.

    Cost: sorts of the rows' lengths and of the diagonals; no format is made.

    Source: the byte counts that Bell and Garland 2009 compare the formats by.

    Example:
        >>> fusedmm.formats.advise(fusedmm.CSR.from_dense(torch.eye(4)))
        Advice(bytes={'csr': 72, 'coo': 48, 'dia': 24, 'ell': 32, 'hyb': 32, 'sell': 288}, best='dia', fits=('coo', 'dia', 'ell', 'hyb', 'sell'))
    """  # noqa: E501
    csr = operand("advise", "a", a)
    csr = csr if csr.val is None else csr.with_values(csr.val.detach())
    csr, row, col, val = entries("advise", csr)
    width = hyb_width(csr)
    tail = int((csr.degree() - width).clamp(min=0).sum())
    counted = {
        "csr": csr_bytes(csr, val),
        "coo": csr.nnz * (8 + val.element_size()),
        "dia": dia_bytes(csr, torch.unique((col - row)[val != 0]).numel(), val),
        "ell": ell_bytes(csr, longest_row(csr), val),
        "hyb": hyb_bytes(csr, width, tail, val),
        "sell": sell_bytes(csr, int(slices_of(csr, SIGMA)[1][-1]), val),
    }
    fits = tuple(name for name, n in counted.items() if name != "csr" and n <= allowed_bytes(csr, val))
    sums = 2 * csr.shape[0] * max(4, val.element_size()) if tail else 0  # written by one pass, read by the other
    moved = counted | {"hyb": counted["hyb"] + sums}
    best = min(fits, key=moved.__getitem__)
    return Advice(counted, best if moved[best] < 0.95 * moved["csr"] else "csr", fits)
