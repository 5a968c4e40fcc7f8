"""Graphs larger than one device: the same operators and layers over ``torch.distributed``.

``partition`` numbers the nodes anew so that each rank owns consecutive rows, and reports what ranks would send each
other. ``ShardWriter`` writes a graph to a folder of memory-mapped files without ever holding the whole, and ``Shards``
gives each rank its rows of it. ``load`` makes a ``DistCSR`` of them, which operators and layers take as they take a
``CSR``, and ``replicate``, ``cross_entropy`` and ``dropout`` train on it. docs/distributed.md explains all of it.
"""

from fusedmm.distributed import attend as _attend  # noqa: F401  teaches ``ops`` the operators of whole layers
from fusedmm.distributed.derived import MAKERS, overlap
from fusedmm.distributed.load import Data, load
from fusedmm.distributed.matrix import DistCSR
from fusedmm.distributed.model import cross_entropy, dropout, replicate
from fusedmm.distributed.partition import Load, Partition, partition
from fusedmm.distributed.shards import Local, Shards
from fusedmm.distributed.writer import ShardWriter

__all__ = [
    "Data",
    "DistCSR",
    "Load",
    "Local",
    "Partition",
    "ShardWriter",
    "Shards",
    "cross_entropy",
    "dropout",
    "load",
    "overlap",
    "partition",
    "replicate",
]

DistCSR.makers = MAKERS
# Pickles name the module that users know, whichever file a class is in.
for _each in (DistCSR, Load, Local, Partition, Shards, ShardWriter):
    _each.__module__ = __name__


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
