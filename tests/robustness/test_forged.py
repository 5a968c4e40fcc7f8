"""Structures that construction never saw: no crash, and right results for the rows that are whole."""

import pytest
import torch
from support.generate import own_algorithms, run_or_decline, small, works

import fusedmm


def forge(name: str, device: str) -> tuple[fusedmm.CSR, torch.Tensor]:
    """A matrix with bad content, and which of its 12 rows are whole."""
    adj = small(device=device)
    fusedmm.spmm(adj.cache_transpose(), torch.ones(15, 1, device=device))
    whole = torch.ones(12, dtype=torch.bool)
    if name in ("column negative", "column too large", "column extreme"):
        p = int(adj.ptr[3])
        adj.idx.data[p] = {"column negative": -1, "column too large": 15, "column extreme": -(2**31)}[name]
        whole[3] = False
    elif name in ("pointer negative", "pointer extreme", "pointer too large"):
        adj.ptr.data[4] = {"pointer negative": -5, "pointer extreme": -(2**63), "pointer too large": 2**62}[name]
        whole[3:5] = False
    elif name == "pointer falls":
        adj.ptr.data[5] = int(adj.ptr[3])
        whole[4:6] = False
    elif name in ("edge negative", "edge too large"):
        p = int(adj.ptr[6])
        adj.eid.data[p] = -1 if name == "edge negative" else 60
        whole[6] = False
    elif name == "everything":
        for t in (adj.ptr, adj.idx, adj.eid):
            t.data.fill_(torch.iinfo(t.dtype).max)
        whole[:] = False
    return adj, whole


FORGED = [
    "column negative", "column too large", "column extreme", "pointer negative", "pointer extreme",
    "pointer too large", "pointer falls", "edge negative", "edge too large", "everything",
]  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_forged_structures(name, dtype, device):
    """Written through .data behind the check: nothing is read outside, whole rows are right."""
    good = small(device=device)
    for feat in (1, 33):
        x = torch.randn(15, feat, device=device).to(dtype)
        a = torch.randn(12, feat, device=device).to(dtype)
        for reduce in ("sum", "mean", "max", "min"):
            expected = fusedmm.spmm(good, x, reduce=reduce).cpu()
            for algorithm in own_algorithms("spmm", device):
                adj, whole = forge(name, device)
                val = adj.val.clone().requires_grad_()  # not constant: read through eid
                y = run_or_decline(fusedmm.spmm, adj.with_values(val), x, reduce=reduce, algorithm=algorithm)
                if y is not None:
                    torch.testing.assert_close(y.detach().cpu()[whole], expected[whole])
        expected = fusedmm.sddmm(good, a, x).cpu()
        for algorithm in own_algorithms("sddmm", device):
            adj, whole = forge(name, device)
            e = run_or_decline(fusedmm.sddmm, adj, a, x, algorithm=algorithm)
            # Rows of a forged ptr overlap, and entries that two rows claim belong to either.
            edge_is_whole = whole[good.coo()[0].cpu()] & (not name.startswith("pointer"))
            if e is not None:
                torch.testing.assert_close(e.cpu()[edge_is_whole], expected[edge_is_whole])
    works(device)


def test_unchecked_construction_is_guarded_too(device):
    """check=False takes what it is given, without a synchronisation; kernels skip what is outside."""
    ptr = torch.tensor([0, 2, 3], device=device)
    adj = fusedmm.CSR.from_csr(ptr, torch.tensor([0, 7, 1], device=device), shape=(2, 2), check=False)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    assert fusedmm.spmm(adj, x).tolist() == [[1, 2], [3, 4]]
    works(device)


@pytest.mark.parametrize("forged", ["starts late", "ends early", "edge outside", "falls"])
def test_entries_that_no_row_has_are_zero(forged):
    """And not what memory held before: here the NaN of a tensor just freed."""
    n, cpu = 3000, "cpu"
    row = torch.arange(n) // 3
    lost = torch.zeros(n, dtype=torch.bool)
    for algorithm in own_algorithms("sddmm", cpu):
        adj = fusedmm.CSR.from_coo(row, row.flip(0), torch.ones(n), shape=(n // 3, n // 3))
        if forged == "starts late":
            adj.ptr.data[0], lost[:2] = 2, True
        elif forged == "ends early":
            adj.ptr.data[-1], lost[-2:] = n - 2, True
        elif forged == "edge outside":
            adj = fusedmm.CSR.from_coo(row.flip(0), row, torch.ones(n), shape=(n // 3, n // 3))
            lost[int(adj.eid[5])] = True
            adj.eid.data[5] = -1
        else:
            adj.ptr.data[4], lost[9:12] = 6, True  # row 3 is empty then, and row 4 has its entries as well
            lost[6:12] = True
        for _ in range(5):
            del_me = torch.full((n,), torch.nan)
            del del_me
            e = run_or_decline(fusedmm.sddmm, adj, torch.ones(n // 3, 4), torch.ones(n // 3, 4), algorithm=algorithm)
            if e is not None:
                assert e.isfinite().all() and (e[~lost] == 4).all(), algorithm


# Torch's own scatter of forged edges is an assertion on a GPU, which nothing survives.
ON_A_GPU = [name for name in FORGED if not name.startswith(("edge", "everything"))]


@pytest.mark.parametrize(
    "name, device", [*((name, "cpu") for name in FORGED), *((name, "cuda") for name in ON_A_GPU)], indirect=["device"]
)
def test_what_is_made_of_forged_structures(name, device):
    """Transposes, coordinates and gradients: no crash, whatever they are; and the next is right."""
    x = torch.ones(15, 2, device=device, requires_grad=True)
    for made in (
        lambda adj: adj.t(),
        lambda adj: adj.coo(),
        lambda adj: torch.autograd.grad(fusedmm.spmm(adj, x).sum(), x),
        lambda adj: fusedmm.sddmm(adj, x[:12], x, op="mul"),
    ):
        adj, _ = forge(name, device)
        fresh = fusedmm.CSR.from_csr(adj.ptr, adj.idx, shape=(12, 15), check=False)
        for forged in (adj, fresh):
            try:
                made(forged)
            except (IndexError, RuntimeError, ValueError):
                pass
    works(device)


def test_pointers_that_rise_beyond_the_entries_and_fall(device):
    adj = fusedmm.CSR.from_csr(
        torch.tensor([0, 10**8, 3], device=device), torch.tensor([0, 1, 1], device=device), shape=(2, 2), check=False
    )
    x = torch.ones(2, 4, device=device, requires_grad=True)
    assert torch.autograd.grad(fusedmm.spmm(adj, x).sum(), x)[0].shape == (2, 4)
    assert int(adj.coo()[0].max()) < 2 and adj.add_self_loops().nnz > 2
