"""The attention-based propagation without weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from fusedmm.nn.checks import require_nodes
from fusedmm.nn.heads import edges, require_sum, writable
from fusedmm.nn.layer import Layer
from fusedmm.ops.cosine import attend_cosine


class AGNNConv(Layer):
    """``sum_j softmax_j(beta cos(x_i, x_j)) x_j``, in the place of ``torch_geometric.nn.AGNNConv``.

    Args:
        requires_grad: whether beta is learned; else it is a buffer.
        add_self_loops: replace the self loops by one per node.
        kwargs: options of PyG's base class, only with their defaults.

    Raises:
        ValueError: an option that is not supported.

    ``state_dict`` has ``beta`` [1], which begins at 1, as PyG's.

    Cost: one fused attention per call. The structure with self loops is made once per graph.

    Source: Thekumparampil et al., "Attention-based Graph Neural Network for Semi-Supervised Learning", 2018.

    Example:
        >>> conv = fusedmm.nn.AGNNConv(add_self_loops=False)
        >>> conv(torch.tensor([[1.], [10.]]), torch.tensor([[0], [1]]))
        tensor([[0.],
                [1.]], grad_fn=<CloneBackward0>)
    """

    beta: Tensor

    def __init__(self, requires_grad: bool = True, add_self_loops: bool = True, **kwargs: Any) -> None:
        super().__init__()
        require_sum("AGNNConv", kwargs)
        self.requires_grad = requires_grad
        self.add_self_loops = add_self_loops
        if requires_grad:
            self.beta = Parameter(torch.empty(1))
        else:
            self.register_buffer("beta", torch.ones(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets a learned beta to 1."""
        if self.requires_grad:
            with torch.no_grad():
                self.beta.fill_(1)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """Attends from each node to its neighbours.

        Args:
            x: floating, [nodes, F].
            edge_index: integers [2, edges], row 0 sources and row 1 targets, or anything that
                ``fusedmm.as_csr`` takes, of shape [nodes, nodes]. As in PyG's layer, a matrix's
                values have no part in the result.

        Returns:
            [nodes, F], of the dtype that x and beta have together.

        Raises:
            TypeError: dtypes or devices that do not fit.
            ValueError: shapes that do not fit, or a pair of node features.

        Gradient: reaches x and beta, of any order.
        """
        if isinstance(x, (tuple, list)):
            raise ValueError("AGNNConv: x must be one tensor, since each node is compared with its neighbours")
        require_nodes("AGNNConv", x)
        if self._watched and self.is_watched():
            return self.by_messages(x, edge_index)
        (adj, _), _ = edges("AGNNConv", edge_index, x, None, None, None, self.add_self_loops)
        x = x.to(torch.promote_types(x.dtype, self.beta.dtype))
        if torch.is_autocast_enabled(x.device.type):  # PyG's layer has no product that autocast knows
            with torch.autocast(x.device.type, enabled=False):
                return writable(attend_cosine(adj, x, self.beta), False)
        return writable(attend_cosine(adj, x, self.beta), False)

    def __repr__(self) -> str:
        return "AGNNConv()"
