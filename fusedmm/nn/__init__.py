"""Graph layers on the fused kernels."""

import importlib
from typing import TYPE_CHECKING, Any

from fusedmm.nn.agnn_conv import AGNNConv
from fusedmm.nn.appnp import APPNP
from fusedmm.nn.cheb_conv import ChebConv
from fusedmm.nn.convert import Conversion, convert
from fusedmm.nn.gat_conv import GATConv
from fusedmm.nn.gatv2_conv import GATv2Conv
from fusedmm.nn.gcn_conv import GCNConv
from fusedmm.nn.gen_conv import GENConv
from fusedmm.nn.gin_conv import GINConv, GINEConv
from fusedmm.nn.graph_conv import GraphConv
from fusedmm.nn.han_conv import HANConv
from fusedmm.nn.hgt_conv import HGTConv
from fusedmm.nn.lg_conv import LGConv
from fusedmm.nn.pna_conv import PNAConv
from fusedmm.nn.res_gated_graph_conv import ResGatedGraphConv
from fusedmm.nn.rgcn_conv import FastRGCNConv, RGCNConv
from fusedmm.nn.sage_conv import SAGEConv
from fusedmm.nn.sg_conv import SGConv
from fusedmm.nn.supergat_conv import SuperGATConv
from fusedmm.nn.tag_conv import TAGConv
from fusedmm.nn.transformer_conv import TransformerConv

if TYPE_CHECKING:
    from fusedmm.nn.message_passing import MessagePassing as MessagePassing

__all__ = [
    "APPNP",
    "AGNNConv",
    "ChebConv",
    "Conversion",
    "FastRGCNConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GENConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "HANConv",
    "HGTConv",
    "LGConv",
    "PNAConv",
    "RGCNConv",
    "ResGatedGraphConv",
    "SAGEConv",
    "SGConv",
    "SuperGATConv",
    "TAGConv",
    "TransformerConv",
    "convert",
]


def __getattr__(name: str) -> Any:
    """Loads the base of users' own layers, which needs torch_geometric, when it is asked for."""
    if name == "MessagePassing":
        return importlib.import_module("fusedmm.nn.message_passing").MessagePassing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and that of the base, without the modules that importing them leaves here."""
    return sorted([*__all__, "MessagePassing"])
