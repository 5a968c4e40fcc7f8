"""Graphs larger than one device: who owns which rows, and the files that each rank reads its rows from.

``partition`` numbers the nodes anew so that each rank owns consecutive rows, and reports what ranks would send each
other. ``ShardWriter`` writes a graph to a folder of memory-mapped files without ever holding the whole, and ``Shards``
gives each rank its rows of it. docs/distributed.md has the layout of the folder.
"""

from fusedmm.distributed.partition import Load, Partition, partition
from fusedmm.distributed.shards import Local, Shards
from fusedmm.distributed.writer import ShardWriter

__all__ = [
    "Load",
    "Local",
    "Partition",
    "ShardWriter",
    "Shards",
    "partition",
]

# Pickles name the module that users know, whichever file a class is in.
Load.__module__ = Local.__module__ = Partition.__module__ = Shards.__module__ = ShardWriter.__module__ = __name__


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
