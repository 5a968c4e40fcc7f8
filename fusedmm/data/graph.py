"""What is known of a graph, and how its nodes are split for learning."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusedmm.matrix.csr import CSR


@dataclass(frozen=True)
class Graph:
    """A graph and what is known of its nodes; what a file does not have is None.

    Attributes:
        adj: the adjacency, without values.
        x: features, float32 [nodes, features].
        y: labels, int64 [nodes], from 0.
        train, val, test: int64 node ids of a split.

    Example:
        >>> from fusedmm import data
        >>> ring = fusedmm.as_csr(torch.tensor([[0, 1, 2], [1, 2, 0]]))
        >>> data.Graph(ring, y=torch.tensor([0, 1, 0])).adj.nnz
        3
    """

    adj: CSR
    x: Tensor | None = None
    y: Tensor | None = None
    train: Tensor | None = None
    val: Tensor | None = None
    test: Tensor | None = None


def extra(module: str, package: str | None = None, install: str = "demo") -> Any:
    """Imports a module that only the extra ``install`` brings; the error says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package or module}: pip install fusedmm[{install}]") from error


def random_split(graph: Graph, train_per_class: int = 20, val_per_class: int = 30, seed: int = 0) -> Graph:
    """The graph with a split drawn anew: so many nodes of each class to train and validate, the rest to test.

    Raises:
        ValueError: no labels, or a class that is too small.

    Example:
        >>> from fusedmm import data
        >>> graph = data.Graph(data.banded(8, 1), y=torch.arange(8) % 2)
        >>> split = data.random_split(graph, train_per_class=1, val_per_class=1)
        >>> len(split.train), len(split.val), len(split.test)
        (2, 2, 4)
    """
    if graph.y is None:
        raise ValueError("the graph has no labels to split")
    rng = np.random.default_rng(seed)
    order = rng.permutation(graph.y.numel())
    y = graph.y.cpu().numpy()[order]
    order, y = order[by_class := np.argsort(y, kind="stable")], y[by_class]
    rank = np.arange(y.size) - np.searchsorted(y, y)  # position among the nodes of the same class
    if (np.bincount(y) <= train_per_class + val_per_class).any():
        raise ValueError(f"every class needs more than {train_per_class + val_per_class} nodes")
    train, held_out = rank < train_per_class, rank >= train_per_class + val_per_class
    parts = [torch.from_numpy(np.sort(order[mask])) for mask in (train, ~train & ~held_out, held_out)]
    return replace(graph, train=parts[0], val=parts[1], test=parts[2])


def digits(labels_per_class: int = 5, neighbours: int = 10, seed: int = 0) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each joined to its nearest neighbours in both directions.

    Args:
        labels_per_class: digits of each class to train on; as many validate, the rest test.
        neighbours: nearest neighbours by Euclidean distance of the 8 x 8 pixels.
        seed: of the choice of the labels.

    Raises:
        ImportError: scikit-learn is not installed.

    Example:
        >>> from fusedmm import data
        >>> data.digits(neighbours=5).x.shape
        torch.Size([1797, 64])
    """
    datasets, near = extra("sklearn.datasets", "scikit-learn"), extra("sklearn.neighbors", "scikit-learn")
    pixels, y = datasets.load_digits(return_X_y=True)
    one_way = near.kneighbors_graph(pixels, neighbours, mode="connectivity")
    adj = CSR.from_scipy((one_way + one_way.T).tocsr()).pattern()
    graph = Graph(adj, torch.from_numpy(pixels / 16).float(), torch.from_numpy(y).long())
    return random_split(graph, labels_per_class, labels_per_class, seed)
