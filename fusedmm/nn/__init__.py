"""Graph layers on the fused kernels."""

from fusedmm.nn.agnn_conv import AGNNConv
from fusedmm.nn.convert import Conversion, convert
from fusedmm.nn.gat_conv import GATConv
from fusedmm.nn.gatv2_conv import GATv2Conv
from fusedmm.nn.gcn_conv import GCNConv
from fusedmm.nn.gin_conv import GINConv, GINEConv
from fusedmm.nn.sage_conv import SAGEConv
from fusedmm.nn.transformer_conv import TransformerConv

__all__ = [
    "AGNNConv",
    "Conversion",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "SAGEConv",
    "TransformerConv",
    "convert",
]
