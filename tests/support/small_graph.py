"""A graph with everything that layers and normalisation must not stumble over."""

import torch

NODES = 11


def graph(loops=True, seed=0):
    """Edges with a duplicate, with nodes 9 and 10 isolated, 8 no target, and some self loops."""
    g = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, NODES - 2, (2, 40), generator=g)
    edge_index[:, 7] = edge_index[:, 3]
    edge_index[1] %= NODES - 3
    edge_index[1] = torch.where(edge_index[0] == edge_index[1], (edge_index[1] + 1) % (NODES - 3), edge_index[1])
    if loops:
        edge_index[:, [5, 20]] = torch.tensor([[2, 6], [2, 6]])
    return edge_index


def weights(edge_index, seed=1):
    return torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def features(*shape, seed=2):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
