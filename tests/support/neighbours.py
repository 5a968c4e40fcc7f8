"""A sampler for PyG's NeighborLoader, whose own needs extensions that are not always there."""

import torch
from torch_geometric.sampler import BaseSampler, SamplerOutput


class Neighbours(BaseSampler):
    """The whole neighbourhood of one hop: the seeds first, then those that reach them."""

    def __init__(self, edge_index):
        self.edge_index, self.num_neighbors = edge_index, [-1]

    def sample_from_nodes(self, index, **kwargs):
        seeds = index.node
        edge = torch.isin(self.edge_index[1], seeds).nonzero()[:, 0]
        source, target = self.edge_index[:, edge]
        node = torch.cat([seeds, source[~torch.isin(source, seeds)].unique()])
        place = torch.full((int(self.edge_index.max()) + 1,), -1).scatter(0, node, torch.arange(len(node)))
        return SamplerOutput(node, place[source], place[target], edge, metadata=(index.input_id, None))

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError
