"""The classic formats of sparse matrices, each of which has a kernel of ``fusedmm.spmv`` of its own.

A ``CSR`` serves everything, gradients too. The others store the same entries so that one kind of pattern is read
faster:

- ``COO``: a row and a column for each entry. Its time depends on the number of entries alone.
- ``DIA``: whole diagonals, whose columns need not be stored. For stencils on structured grids and for bands.
- ``ELL``: as many entries in each row as the longest one has, so that neighbouring rows lie side by side.
- ``HYB``: ELL for the entries that most rows have, COO for what a few long rows have beyond.
- ``SELL``: slices of 32 rows, each as wide as its longest row, the rows sorted by length within windows of sigma rows.

``advise`` counts the bytes of each for a matrix. Bell and Garland 2009 describe all but SELL, which is of Kreutzer et
al. 2014. A zero that DIA stores is no entry: ``0 * inf`` does not arise there, while CSR's explicit zeros give NaN.
"""

from fusedmm.formats.advice import Advice, advise
from fusedmm.formats.coo import COO, to_coo
from fusedmm.formats.dia import DIA, to_dia
from fusedmm.formats.ell import ELL, to_ell
from fusedmm.formats.hyb import HYB, to_hyb
from fusedmm.formats.sell import SELL, to_sell
from fusedmm.matrix.csr import CSR

__all__ = [
    "COO",
    "DIA",
    "ELL",
    "HYB",
    "SELL",
    "Advice",
    "advise",
    "to_coo",
    "to_dia",
    "to_ell",
    "to_hyb",
    "to_sell",
]

# What the names of algorithms begin with, and the class whose matrices they take.
FORMATS: dict[str, type] = {"coo": COO, "dia": DIA, "ell": ELL, "hyb": HYB, "sell": SELL}
FORMATS |= dict.fromkeys(("csr_scalar", "csr_vector", "csr_segmented", "merge"), CSR)

# Pickles name the module that users know, whichever file a class is in.
COO.__module__ = DIA.__module__ = ELL.__module__ = HYB.__module__ = SELL.__module__ = Advice.__module__ = __name__


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
