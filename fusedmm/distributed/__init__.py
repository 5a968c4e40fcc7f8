"""Graphs larger than one device: the same operators and layers over ``torch.distributed``."""

from fusedmm.distributed import attend as _attend  # noqa: F401  teaches the operators of whole layers
from fusedmm.distributed.matrix import DistCSR

__all__ = ["DistCSR"]


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
