"""The networks that ``python -m fusedmm train`` knows, on our layers and on what stands beside them."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusedmm.nn
from fusedmm.matrix.csr import CSR

TORCH, PYG = "torch.sparse", "PyG"
HIDDEN, HEADS = 64, 8
SPARSE = 0.3  # the share of entries up to which features are kept as a CSR


def is_sparse(x: Tensor) -> bool:
    """Tells whether a product with the entries of x alone takes less time than one with all of x.

    Measured on a CPU, with dropout, forward and backward, for 16 to 192 results: of features that are 1 % full 4 to 67
    times less, 30 % full 1.7 to 2.8 times less, half full 0.9 to 1.8 times less. On a GPU, of features that are 1 %
    full, 1.03 to 1.26 times more: there calls decide.
    """
    return not x.is_cuda and int(x.count_nonzero()) <= SPARSE * x.numel()


def _torch_csr(row: Tensor, col: Tensor, val: Tensor, nodes: int) -> Tensor:
    adj = CSR.from_coo(row, col, val, (nodes, nodes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the layout is in beta
        return adj.to_torch()


def gcn_matrix(adj: CSR) -> Tensor:
    """Returns the normalised adjacency with self loops as a torch.sparse CSR tensor, every node's own loop counted
    once."""
    row, col, _ = adj.coo()
    other, nodes = row != col, torch.arange(adj.shape[0], device=adj.device)
    row, col = torch.cat([row[other], nodes]), torch.cat([col[other], nodes])
    scale = torch.bincount(row, minlength=nodes.numel()).float().rsqrt()
    return _torch_csr(row, col, scale[row] * scale[col], nodes.numel())


def mean_matrix(adj: CSR) -> Tensor:
    """Returns the adjacency whose rows add to one, as a torch.sparse CSR tensor."""
    row, col, _ = adj.coo()
    return _torch_csr(row, col, adj.degree().float().reciprocal()[row], adj.shape[0])


def edge_index(adj: CSR) -> Tensor:
    """Returns the adjacency as PyG has it."""
    row, col, _ = adj.coo()
    return torch.stack([col, row])


def gcn_by_torch(conv: Any, x: Tensor, matrix: Tensor) -> Tensor:
    """Returns what GCNConv computes, through torch.sparse."""
    return torch.sparse.mm(matrix, conv.lin(x)) + conv.bias


def sage_by_torch(conv: Any, x: Tensor, matrix: Tensor) -> Tensor:
    """Returns what SAGEConv computes, through torch.sparse."""
    return conv.lin_l(torch.sparse.mm(matrix, x)) + conv.lin_r(x)


def by_itself(layer: Any, x: Tensor, graph: Any) -> Tensor:
    """Returns a layer that takes the graph."""
    out: Tensor = layer(x, graph)
    return out


class Propagated(nn.Module):
    """A linear map before or after an AGNNConv, which has no weights of its own."""

    def __init__(self, lin: nn.Linear, conv: nn.Module, before: bool) -> None:
        super().__init__()
        self.lin, self.conv, self.before = lin, conv, before

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        if self.before:
            return by_itself(self.conv, self.lin(x).relu(), graph)
        out: Tensor = self.lin(self.conv(x, graph))
        return out


@dataclass(frozen=True)
class Model:
    """Two layers and how to train them.

    Attributes:
        layers: from the module with the layers (ours or PyG's), features and classes.
        beside: what computes the same beside us, ``TORCH`` or ``PYG``.
        matrix: what that wants of the graph.
        apply: how it computes one of our layers (``TORCH``) or of its own (``PYG``).
        activation: between the layers.
        sparse: whether our first layer takes a CSR of features.
        dropout: of the input of both layers.
        rate: of learning.
        decay: of the weights of both layers.
    """

    layers: Callable[[Any, int, int], tuple[nn.Module, nn.Module]]
    beside: str = PYG
    matrix: Callable[[CSR], Tensor] = edge_index
    apply: Callable[[Any, Any, Any], Tensor] = by_itself
    activation: Callable[[Tensor], Tensor] = torch.relu
    sparse: bool = True
    dropout: float = 0.5
    rate: float = 0.01
    decay: tuple[float, float] = (5e-4, 5e-4)

    def ours(self, features: int, classes: int) -> Network:
        """Returns the network on our layers."""
        return Network(self, *self.layers(fusedmm.nn, features, classes), by_itself, self.sparse)

    def theirs(self, features: int, classes: int) -> Network:
        """Returns the network on what is beside us, which begins with the same weights for the same seed."""
        where = importlib.import_module("torch_geometric.nn") if self.beside == PYG else fusedmm.nn
        return Network(self, *self.layers(where, features, classes), self.apply)

    def has_theirs(self) -> bool:
        """Tells whether what is beside us is installed."""
        return self.beside != PYG or importlib.util.find_spec("torch_geometric") is not None


class Network(nn.Module):
    """Two layers with dropout before each.

    Args:
        model: how to train it.
        first, second: the layers.
        apply: ``apply(layer, x, graph)`` computes one of them.
        sparse: whether the first takes a CSR of features.
    """

    def __init__(
        self,
        model: Model,
        first: nn.Module,
        second: nn.Module,
        apply: Callable[[Any, Any, Any], Tensor],
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.first, self.second, self.apply_layer, self.sparse = model, first, second, apply, sparse

    def features(self, x: Tensor) -> Tensor | CSR:
        """Returns x as the first layer computes it fastest."""
        return CSR.from_dense(x) if self.sparse and is_sparse(x) else x

    def forward(self, x: Tensor | CSR, graph: Any) -> Tensor:
        h = self.model.activation(self.apply_layer(self.first, self._dropped(x), graph))
        return self.apply_layer(self.second, self._dropped(h), graph)

    def _dropped(self, x: Any) -> Any:
        """Applies dropout; the entries that a CSR lacks are 0 before and after it."""
        if isinstance(x, CSR):
            return x.with_values(self._dropped(x.val))
        return F.dropout(x, self.model.dropout, self.training)


def _gcn(of: Any, features: int, classes: int) -> tuple[nn.Module, nn.Module]:
    return of.GCNConv(features, HIDDEN, cached=True), of.GCNConv(HIDDEN, classes, cached=True)


def _sage(of: Any, features: int, classes: int) -> tuple[nn.Module, nn.Module]:
    return of.SAGEConv(features, HIDDEN), of.SAGEConv(HIDDEN, classes)


def _attentive(name: str, dropout: float) -> Callable[[Any, int, int], tuple[nn.Module, nn.Module]]:
    """Makes a network of eight heads of eight features, then the mean of heads with one feature for each class."""

    def layers(of: Any, features: int, classes: int) -> tuple[nn.Module, nn.Module]:
        conv = getattr(of, name)
        first = conv(features, HIDDEN // HEADS, heads=HEADS, dropout=dropout)
        return first, conv(HIDDEN, classes, heads=1, concat=False, dropout=dropout)

    return layers


def _agnn(of: Any, features: int, classes: int) -> tuple[nn.Module, nn.Module]:
    first = Propagated(nn.Linear(features, 16), of.AGNNConv(requires_grad=False), True)
    return first, Propagated(nn.Linear(16, classes), of.AGNNConv(), False)


KIPF: dict[str, Any] = {"beside": TORCH, "decay": (5e-4, 0.0)}  # the recipe of Kipf & Welling 2017, as PyG runs it
VELICKOVIC: dict[str, Any] = {"activation": F.elu, "dropout": 0.6, "rate": 0.005}  # of Velickovic et al. 2018
MODELS: dict[str, Model] = {
    "gat": Model(_attentive("GATConv", 0.6), **VELICKOVIC),
    "gatv2": Model(_attentive("GATv2Conv", 0.6), **VELICKOVIC),
    "transformer": Model(_attentive("TransformerConv", 0.6), **VELICKOVIC),
    "agnn": Model(_agnn, sparse=False),
    "gcn": Model(_gcn, matrix=gcn_matrix, apply=gcn_by_torch, **KIPF),
    "sage": Model(_sage, matrix=mean_matrix, apply=sage_by_torch, **KIPF),
}
