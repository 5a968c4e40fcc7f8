"""What the tests of the attention layers hand to them."""

from support.small_graph import NODES, features, graph

F_IN, F_OUT, D = 5, 4, 3
NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
LOOPED = NAMES[:2]
TARGETS = 7


def inputs(edge_dim=None, loops=True):
    edge_index = graph(loops)
    return [features(NODES, F_IN), edge_index, None if edge_dim is None else features(40, edge_dim, seed=6)]


def pair(edge_dim=None):
    """Fewer targets than sources, of which 5 and 6 have no neighbours."""
    edge_index = graph()
    edge_index[1] %= 5
    x = features(NODES, F_IN), features(TARGETS, D, seed=5)
    return [x, edge_index, None if edge_dim is None else features(40, edge_dim, seed=6)]
