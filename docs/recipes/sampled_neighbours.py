"""GraphSAGE on sampled neighbours: each batch is a small graph from sources to the batch's nodes."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import data, nn

torch.manual_seed(0)
graph = data.digits()
ptr, idx = graph.adj.ptr, graph.adj.idx.long()


def sample(targets, most):
    """At most so many neighbours of each target: the sources' ids, targets first, and an edge_index of places."""
    degree = ptr[targets + 1] - ptr[targets]
    drawn = (torch.rand(len(targets), most) * degree[:, None]).long() + ptr[targets][:, None]
    edge = torch.unique(torch.stack([torch.arange(len(targets)).repeat_interleave(most), drawn.flatten()]), dim=1)
    sources = idx[edge[1]]
    ids = torch.cat([targets, sources[~torch.isin(sources, targets)].unique()])
    place = torch.zeros(1797, dtype=torch.long).index_put((ids,), torch.arange(len(ids)))
    return ids, torch.stack([place[sources], edge[0]])


first, last = nn.SAGEConv(64, 32), nn.SAGEConv(32, 10)
optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.01)
for _ in range(15):
    for seeds in graph.train[torch.randperm(len(graph.train))].split(25):
        middle, inner = sample(seeds, 10)
        outer, edges = sample(middle, 10)
        x = graph.x[outer]
        h = first((x, x[: len(middle)]), edges).relu()
        optimiser.zero_grad()
        cross_entropy(last((h, h[: len(seeds)]), inner), graph.y[seeds]).backward()
        optimiser.step()

out = last(first(graph.x, graph.adj).relu(), graph.adj)  # all neighbours, once
accuracy = (out.argmax(1) == graph.y)[graph.test].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.85
