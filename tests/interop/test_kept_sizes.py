"""What attention in one call keeps for its gradient is as long as its fake kernel says, from one list in C."""

import pytest
import torch

import fusedmm

ops = torch.ops.fusedmm
HEADS, FEAT = 3, 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("nodes", [1, 12, 300])
def test_fakes_and_kernels_agree(nodes, biased, whole, dtype, device):
    ends = torch.arange(nodes, device=device)
    adj = fusedmm.CSR.from_coo(ends, ends.flip(0), shape=(nodes, nodes))
    half, none = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.none
    width = HEADS * FEAT
    bias = torch.rand(width, dtype=dtype, device=device) if biased else none.to(dtype)
    x, att = torch.rand(nodes, width).to(adj.ptr.device, dtype), torch.rand(1, HEADS, FEAT).to(adj.ptr.device, dtype)
    calls = [(ops._attend_self, (*half, x, att, att, none, bias, 0.2, 0.0, whole))]
    for maps in (2, 3) if biased else (2, 3, 4):
        p, parameters = x.repeat(1, maps), att if maps == 2 else none
        calls.append((ops._attend_maps, (*half, p, parameters, none, bias, 1.0, 0.2, 0.0, HEADS, maps, whole)))
    for op, given in calls:
        like = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in given]
        for found, told in zip(op(*given), op(*like), strict=True):
            assert (found.shape, found.dtype) == (told.shape, told.dtype)
