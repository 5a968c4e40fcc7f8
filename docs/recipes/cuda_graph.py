"""CUDA graphs: a training step is recorded once and then replayed without Python."""

import torch

from fusedmm import data, nn

if not torch.cuda.is_available():
    raise SystemExit("CUDA graphs need a GPU")

torch.manual_seed(0)
adj = data.rmat(10, 8).to("cuda").cache_transpose()
layer = nn.SAGEConv(16, 16).cuda()
x = torch.randn(adj.shape[0], 16, device="cuda")


def step():
    layer.zero_grad(set_to_none=False)
    layer(x, adj).square().mean().backward()


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.synchronize()
expected = layer.lin_l.weight.grad.clone()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
layer.lin_l.weight.grad.fill_(7.0)
graph.replay()
torch.cuda.synchronize()
print("replayed")
assert torch.equal(layer.lin_l.weight.grad, expected)
