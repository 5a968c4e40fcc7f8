"""An order of the edges in which one name stands twice and another not at all: in range, and so not guarded against."""

import pytest
import torch
from support.generate import own_algorithms, run_or_decline, small

import fusedmm


def forge(device: str, dtype: torch.dtype) -> tuple[fusedmm.CSR, int, int]:
    """Entry 7 says that it is entry 40's edge: (matrix, edge named twice, edge named by nobody)."""
    adj = small(device=device, dtype=dtype)
    lost, twice = int(adj.eid[7]), int(adj.eid[40])
    assert lost != twice
    adj.eid.data[7] = twice
    return adj, twice, lost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_edge_named_twice(dtype, device):
    """Its value serves both entries, everybody else's stays, and so it is in the gradients."""
    adj, twice, lost = forge(device, dtype)
    good = small(device=device, dtype=dtype)
    x, a = torch.randn(15, 33, device=device).to(dtype), torch.randn(12, 33, device=device).to(dtype)
    val = good.val.clone()
    val[lost] = val[twice]
    for algorithm in own_algorithms("spmm", device):
        given = adj.val.clone().requires_grad_()  # not constant: read through eid
        y = run_or_decline(fusedmm.spmm, adj.with_values(given), x, algorithm=algorithm)
        if y is not None:
            assert torch.equal(y, fusedmm.spmm(good.with_values(val.requires_grad_()), x, algorithm=algorithm))
    others = torch.ones(60, dtype=torch.bool, device=device)
    others[[twice, lost]] = False
    for algorithm in own_algorithms("sddmm", device):
        e = run_or_decline(fusedmm.sddmm, adj.pattern(), a, x, algorithm=algorithm)
        if e is not None:
            exact = fusedmm.sddmm(good.pattern(), a, x, algorithm=algorithm)
            assert torch.equal(e[others], exact[others]), algorithm
            assert bool((e[twice] == exact[[twice, lost]]).any()), "neither of the two that claim it"
