"""Graph layers on the fused kernels."""

from fusedmm.nn.gcn_conv import GCNConv
from fusedmm.nn.gin_conv import GINConv, GINEConv
from fusedmm.nn.sage_conv import SAGEConv

__all__ = ["GCNConv", "GINConv", "GINEConv", "SAGEConv"]
