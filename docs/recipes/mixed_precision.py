"""Mixed precision: autocast to bfloat16, with sums in float32 and weights in float32."""

import torch
from torch.nn.functional import cross_entropy

from fusedmm import data, nn

torch.manual_seed(0)
graph = data.digits()
first, last = nn.TransformerConv(64, 8, heads=4), nn.SAGEConv(32, 10)
optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)


def forward():
    return last(first(graph.x, graph.adj).relu(), graph.adj)


for _ in range(20):
    optimiser.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = forward()
        loss = cross_entropy(out[graph.train].float(), graph.y[graph.train])
    loss.backward()
    optimiser.step()

accuracy = (forward().argmax(1) == graph.y)[graph.test].float().mean()
print(f"results {out.dtype}, weights {first.lin_key.weight.dtype}, test accuracy {accuracy:.3f}")
assert out.dtype == torch.bfloat16 and first.lin_key.weight.grad.dtype == torch.float32
assert accuracy > 0.8
