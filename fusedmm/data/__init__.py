"""Graphs from files, the handwritten digits as a graph, and matrices made from a seed."""

from fusedmm.data.files import find_graph, load_matrix_market, load_npz
from fusedmm.data.generate import banded, rmat, stencil, uniform
from fusedmm.data.graph import Graph, digits, random_split

__all__ = [
    "Graph",
    "banded",
    "digits",
    "find_graph",
    "load_matrix_market",
    "load_npz",
    "random_split",
    "rmat",
    "stencil",
    "uniform",
]
