"""What a layer keeps for its backward: counted for ours, and for PyG's layer with the same weights."""

import torch
import torch_geometric.nn

from fusedmm import data, nn

torch.manual_seed(0)
adj = data.uniform(500, 500, 20_000)
row, col, _ = adj.coo()
edge_index, x = torch.stack([col, row]), torch.randn(500, 32)


def kept(layer, graph):
    """MiB of the tensors that forward leaves for backward, each counted once."""
    seen = {}

    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(x, graph)
    return sum(storage.nbytes() for storage in seen.values()) / 2**20


theirs, ours = torch_geometric.nn.GATConv(32, 16, heads=4), nn.GATConv(32, 16, heads=4)
ours.load_state_dict(theirs.state_dict())
torch.testing.assert_close(ours(x, adj), theirs(x, edge_index))
small, large = kept(ours, adj), kept(theirs, edge_index)
print(f"kept for backward: {small:.1f} MiB, PyG {large:.1f} MiB")
assert small < large / 5
