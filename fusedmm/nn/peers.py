"""What makes a layer of ours of PyG's, without its parameters: by the options that PyG's layers keep as attributes."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.nn.parameter import Parameter

from fusedmm.nn.aggr import FUSED
from fusedmm.nn.agnn_conv import AGNNConv
from fusedmm.nn.appnp import APPNP
from fusedmm.nn.cheb_conv import ChebConv
from fusedmm.nn.gat_conv import GATConv
from fusedmm.nn.gatv2_conv import GATv2Conv
from fusedmm.nn.gcn_conv import GCNConv
from fusedmm.nn.gen_conv import GENConv
from fusedmm.nn.gin_conv import GINConv, GINEConv
from fusedmm.nn.graph_conv import GraphConv
from fusedmm.nn.han_conv import HANConv
from fusedmm.nn.hgt_conv import HGTConv
from fusedmm.nn.layer import Layer
from fusedmm.nn.lg_conv import LGConv
from fusedmm.nn.pna_conv import PNAConv
from fusedmm.nn.res_gated_graph_conv import ResGatedGraphConv
from fusedmm.nn.rgcn_conv import FastRGCNConv, RGCNConv
from fusedmm.nn.sage_conv import SAGEConv
from fusedmm.nn.sg_conv import SGConv
from fusedmm.nn.supergat_conv import SuperGATConv
from fusedmm.nn.tag_conv import TAGConv
from fusedmm.nn.transformer_conv import TransformerConv

Make = Callable[[Any], Layer]
SIZES = "in_channels out_channels "
BASE = "aggr flow node_dim"  # attributes of PyG's base class that ours may refuse


def _by(kind: type[Layer], options: str, base: str = BASE, **present: str) -> Make:
    """Makes a layer by the attributes of PyG's that its options are named after.

    present: where PyG's layer has what an option, such as bias, asks for.
    """

    def make(peer: Any) -> Layer:
        given = {name: getattr(peer, name) for name in (*options.split(), *base.split())}
        given |= {name: attrgetter(where)(peer) is not None for name, where in present.items()}
        return kind(**given)

    return make


def _sage(peer: Any) -> SAGEConv:
    aggr = peer.aggr if isinstance(peer.aggr, str) and peer.aggr in FUSED else peer.aggr_module
    layer = SAGEConv(
        peer.in_channels, peer.out_channels, aggr, peer.normalize, peer.root_weight, peer.project,
        peer.lin_l.bias is not None, flow=peer.flow, node_dim=peer.node_dim,
    )  # fmt: skip
    vars(layer)["aggr"] = peer.aggr
    return layer


def _base(peer: Any) -> dict[str, Any]:
    return {name: getattr(peer, name) for name in BASE.split()}


def _gin(peer: Any) -> GINConv:
    return GINConv(torch.nn.Identity(), peer.initial_eps, isinstance(peer.eps, Parameter), **_base(peer))


def _gine(peer: Any) -> GINEConv:
    lin = peer.lin
    nn = torch.nn.Identity() if lin is None else torch.nn.Linear(lin.out_channels, 1)
    edge_dim = None if lin is None else lin.in_channels
    return GINEConv(nn, peer.initial_eps, isinstance(peer.eps, Parameter), edge_dim, **_base(peer))


def _cheb(peer: Any) -> ChebConv:
    sizes = peer.in_channels, peer.out_channels, len(peer.lins)
    return ChebConv(*sizes, peer.normalization, peer.bias is not None, **_base(peer))


def _gen(peer: Any) -> GENConv:
    parts = peer._modules
    layer = GENConv(
        peer.in_channels, peer.out_channels, peer.aggr_module, msg_norm="msg_norm" in parts, eps=peer.eps,
        bias=peer.mlp[0].bias is not None, edge_dim=peer.lin_edge.in_channels if "lin_edge" in parts else None,
        flow=peer.flow, node_dim=peer.node_dim,
    )  # fmt: skip
    vars(layer)["aggr"] = peer.aggr
    return layer


def _pna(peer: Any) -> PNAConv:
    aggr = peer.aggr_module
    pre_layers, post_layers = ((len(nns[0]) + 1) // 2 for nns in (peer.pre_nns, peer.post_nns))
    layer = PNAConv(
        peer.in_channels, peer.out_channels, list(aggr.aggr.aggrs), aggr.scaler, torch.ones(2, device="cpu"),
        peer.edge_dim, peer.towers, pre_layers, post_layers, peer.divide_input, torch.nn.Identity(),
        train_norm=isinstance(aggr.avg_deg_lin, Parameter), flow=peer.flow, node_dim=peer.node_dim,
    )  # fmt: skip
    for name in ("init_avg_deg_lin", "init_avg_deg_log"):
        setattr(layer.aggr_module, name, getattr(aggr, name))
    for mine, theirs in zip((*layer.pre_nns, *layer.post_nns), (*peer.pre_nns, *peer.post_nns), strict=True):
        mine._modules.update({key: part for key, part in theirs._modules.items() if int(key) % 2})  # activations
    return layer


def _supergat(peer: Any) -> SuperGATConv:
    if peer.training:
        raise ValueError("in training its loss of sampled edges is not computed here; call eval() before")
    return _supergat_in_eval(peer)  # type: ignore[return-value]


def _hgt(peer: Any) -> HGTConv:
    metadata = peer.node_types, peer.edge_types
    return HGTConv(dict(peer.in_channels), peer.out_channels, metadata, peer.heads, flow=peer.flow)


ATTENDS = SIZES + "heads concat dropout edge_dim "
WITH_LOOPS = ATTENDS + "negative_slope add_self_loops fill_value residual "
_supergat_in_eval = _by(
    SuperGATConv,
    SIZES + "heads concat negative_slope dropout add_self_loops attention_type neg_sample_ratio edge_sample_ratio "
    "is_undirected",
    bias="bias",
)
RELATIONS = SIZES + "num_relations num_bases num_blocks is_sorted "
LAYERS: dict[str, Make] = {  # by where PyG has a layer
    "gcn_conv.GCNConv": _by(GCNConv, SIZES + "improved cached add_self_loops normalize", bias="bias"),
    "sage_conv.SAGEConv": _sage,
    "gin_conv.GINConv": _gin,
    "gin_conv.GINEConv": _gine,
    "gat_conv.GATConv": _by(GATConv, WITH_LOOPS, bias="bias"),
    "gatv2_conv.GATv2Conv": _by(GATv2Conv, WITH_LOOPS + "share_weights", bias="bias"),
    "transformer_conv.TransformerConv": _by(TransformerConv, ATTENDS + "beta root_weight", bias="lin_key.bias"),
    "agnn_conv.AGNNConv": _by(AGNNConv, "requires_grad add_self_loops"),
    "graph_conv.GraphConv": _by(GraphConv, SIZES, bias="lin_rel.bias"),
    "lg_conv.LGConv": _by(LGConv, "normalize"),
    "sg_conv.SGConv": _by(SGConv, SIZES + "K cached add_self_loops", bias="lin.bias"),
    "appnp.APPNP": _by(APPNP, "K alpha dropout cached add_self_loops normalize"),
    "tag_conv.TAGConv": _by(TAGConv, SIZES + "K normalize", bias="bias"),
    "cheb_conv.ChebConv": _cheb,
    "res_gated_graph_conv.ResGatedGraphConv": _by(ResGatedGraphConv, SIZES + "act edge_dim root_weight", bias="bias"),
    "gen_conv.GENConv": _gen,
    "pna_conv.PNAConv": _pna,
    "supergat_conv.SuperGATConv": _supergat,
    "hgt_conv.HGTConv": _hgt,
    "han_conv.HANConv": _by(HANConv, SIZES + "metadata heads negative_slope dropout", base="flow"),
    "rgcn_conv.RGCNConv": _by(RGCNConv, RELATIONS, bias="bias", root_weight="root"),
    "rgcn_conv.FastRGCNConv": _by(FastRGCNConv, RELATIONS, bias="bias", root_weight="root"),
}
