"""A sampler for PyG's NeighborLoader, whose own needs extensions that are not always there."""

import torch
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput


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


class Drawn(BaseSampler):
    """A few neighbours of each node, hop by hop, of a graph of one kind or of several: the stand-in for pyg-lib's.

    Args:
        edges: edge_index by kind of edges; of a graph of one kind under ("", "", "").
        fan_out: how many neighbours a hop draws for each node and kind of edges.
    """

    def __init__(self, edges, fan_out):
        self.edges, self.num_neighbors = edges, fan_out

    def _hops(self, seeds):
        """Nodes by kind in the order of their discovery, and by kind of edges the places of ends and the numbers."""
        nodes = {kind: [] for edge in self.edges for kind in (edge[0], edge[-1])} | seeds
        place = {kind: {n: k for k, n in enumerate(found)} for kind, found in nodes.items()}
        found = {kind: ([], [], []) for kind in self.edges}
        front, sampled_nodes, sampled_edges = dict(seeds), {k: [len(v)] for k, v in nodes.items()}, {}
        for count in self.num_neighbors:
            before = {kind: len(of) for kind, of in nodes.items()}
            for kind, (source, target) in self.edges.items():
                drawn = 0
                for node in front.get(kind[-1], []):
                    near = (target == node).nonzero()[:, 0]
                    for edge in near[torch.randperm(len(near))[:count]].tolist():
                        other = int(source[edge])
                        if other not in place[kind[0]]:
                            place[kind[0]][other] = len(nodes[kind[0]])
                            nodes[kind[0]] = [*nodes[kind[0]], other]
                        for of, what in zip(
                            found[kind], (place[kind[0]][other], place[kind[-1]][node], edge), strict=True
                        ):
                            of.append(what)
                        drawn += 1
                sampled_edges.setdefault(kind, []).append(drawn)
            front = {kind: of[before[kind] :] for kind, of in nodes.items()}
            for kind, of in front.items():
                sampled_nodes[kind].append(len(of))
        return nodes, found, sampled_nodes, sampled_edges

    def sample_from_nodes(self, index, **kwargs):
        kind = index.input_type or ""
        nodes, found, *sampled = self._hops({kind: index.node.tolist()})
        node = {k: torch.tensor(of, dtype=torch.int64) for k, of in nodes.items()}
        parts = [{k: torch.tensor(of[p], dtype=torch.int64) for k, of in found.items()} for p in range(3)]
        metadata = (index.input_id, None)
        if kind:
            return HeteroSamplerOutput(node, *parts, None, *sampled, metadata=metadata)
        one = [next(iter(part.values())) for part in (*parts, *sampled)]
        return SamplerOutput(node[""], *one[:3], None, *one[3:], metadata=metadata)

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError
