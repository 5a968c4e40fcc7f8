"""The formats of SpMV: they hold what the CSR holds, refuse padding that explodes, and say what each would cost."""

import dataclasses
import pickle

import pytest
import torch
from support.generate import STRUCTURES, small
from support.matvec import FORMATS, made, rows_of_lengths

import fusedmm
from fusedmm import formats

NAMES = FORMATS[1:]
PADDED = FORMATS[2:]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_round_trips(structure, name, device):
    rows, cols, row, col = STRUCTURES[structure]()
    if structure in ("hub_column", "many_rows") and name == "dia":
        rows, cols, row, col = 30, 33, row[:90] % 30, col[:90] % 33
    val = torch.arange(1.0, row.numel() + 1)  # whole numbers, which DIA adds up exactly
    order = torch.randperm(row.numel())
    adj = fusedmm.CSR.from_coo(row[order].to(device), col[order].to(device), val.to(device), (rows, cols))
    matrix = made(adj, name)
    back = matrix.to_csr()
    assert matrix.shape == back.shape == (rows, cols) and matrix.device == adj.device
    assert torch.equal(back.to_dense(), adj.to_dense())
    if name != "dia":
        assert matrix.nnz == adj.nnz
        assert torch.equal(back.ptr, adj.ptr) and torch.equal(back.idx, adj.idx)
        here = adj.val if not adj.eid.numel() else adj.val[adj.eid.long()]
        there = back.val if not back.eid.numel() else back.val[back.eid.long()]
        assert torch.equal(here, there)


@pytest.mark.parametrize("name", NAMES)
def test_from_what_as_csr_takes(name, device):
    ends = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]], device=device)
    dense = made(ends, name).to_csr().to_dense()
    assert torch.equal(dense, fusedmm.as_csr(ends).to_dense())


@pytest.mark.parametrize("name", NAMES)
def test_moves_and_casts(name, device):
    matrix = made(small(device=device), name)
    moved = matrix.to("cpu", torch.float64)
    assert type(moved) is type(matrix) and moved.device == torch.device("cpu") and moved.shape == matrix.shape
    assert moved.to_csr().val.dtype == torch.float64
    torch.testing.assert_close(moved.to_csr().to_dense(), matrix.to_csr().to_dense().cpu().double())
    assert repr(moved).startswith(type(matrix).__name__ + "(shape=(12, 15)")
    for wrong, kind, text in (
        ({"dtype": torch.int64}, TypeError, "dtype must be float32"),
        ({"dtype": torch.float8_e4m3fn}, TypeError, "dtype must be float32"),
        ({"device": torch.float64}, TypeError, "give a dtype as dtype="),
        ({"device": "meta"}, ValueError, "device must be cpu or cuda"),
    ):
        with pytest.raises(kind, match=text):
            matrix.to(**wrong)


@pytest.mark.parametrize("name", ["dia", "ell", "sell"])
def test_padding_that_explodes_is_refused(name, device):
    """A hub among 50,000 short rows: the text says how many bytes it would have been."""
    lengths = [1] * 50_000
    for k in range(0, 50_000, 16):
        lengths[k] = 90
    lengths[7] = 3000
    adj = rows_of_lengths(
        lengths if name != "sell" else [3000 if k % 1024 == 5 else 0 for k in range(50_000)], 4000, device
    )
    with pytest.raises(
        ValueError, match=rf"to_{name}: the padded matrix would take [\d,]+ bytes, the CSR takes [\d,]+"
    ):
        getattr(formats, "to_" + name)(adj)
    assert formats.to_hyb(adj).nbytes < 8 * adj.nnz * 12 + (1 << 20)
    with pytest.raises(ValueError, match=r"to_hyb: the padded matrix would take [\d,]+ bytes"):
        formats.to_hyb(adj, width=3000)


@pytest.mark.parametrize("name", PADDED)
def test_growth_is_a_number(name, device):
    """NaN allows nothing; a text is not multiplied."""
    make, adj = getattr(formats, "to_" + name), small(device=device)
    for wrong, kind, text in (("8", TypeError, "growth must be a number"), (float("nan"), ValueError, "growth=nan")):
        with pytest.raises(kind, match=f"to_{name}: .*{text}"):
            make(adj, growth=wrong)
    assert torch.equal(make(adj, growth=float("inf")).to_csr().to_dense(), adj.to_dense())


@pytest.mark.parametrize("name", PADDED)
def test_a_gradient_that_they_cannot_give_is_refused(name, device):
    adj = small(device=device)
    with pytest.raises(ValueError, match=f"to_{name}: the values want a gradient"):
        made(adj.with_values(adj.val.clone().requires_grad_()), name)
    matrix, x = made(adj, name), torch.randn(15, device=device, requires_grad=True)
    with pytest.raises(ValueError, match="no gradient"):
        fusedmm.spmv(matrix, x)
    with pytest.raises(ValueError, match="no gradient"):
        matrix @ x
    with torch.no_grad():
        assert torch.equal(fusedmm.spmv(matrix, x), matrix @ x)
    x = x.detach()
    learns = dataclasses.replace(matrix, val=matrix.val.clone().requires_grad_())
    with pytest.raises(ValueError, match="no gradient"):
        fusedmm.spmv(learns, x)
    y = torch.randn(12, device=device)
    for product in (lambda x: fusedmm.spmv(matrix, x), lambda x: matrix @ x):
        with pytest.raises(ValueError, match="no derivative in forward mode"):
            torch.func.jvp(product, (x,), (torch.ones_like(x),))
    with pytest.raises(ValueError, match="no derivative in forward mode"):
        torch.func.jvp(lambda y: fusedmm.spmv(matrix, x, beta=1, y=y), (y,), (torch.ones_like(y),))
    _, tangent = torch.func.jvp(lambda x: x + fusedmm.spmv(matrix, y.new_ones(15)).sum(), (x,), (x,))
    assert torch.equal(tangent, x)


def test_zeros_of_dia_are_no_entries(device):
    adj = fusedmm.CSR.from_coo(
        *torch.tensor([[0, 0, 1], [0, 1, 1]], device=device), torch.tensor([1.0, 0, 2.0]).to(device)
    )
    matrix = formats.to_dia(adj)
    assert matrix.nnz == 2 and matrix.offsets.tolist() == [0]
    x = torch.tensor([1.0, float("inf")], device=device)
    assert (matrix @ x).tolist() == [1, float("inf")] and (adj @ x)[0].isnan()


def test_dia_has_no_room_for_the_entries(device):
    offsets = formats.to_dia(fusedmm.data.banded(100, 2).to(device)).offsets
    assert offsets.untyped_storage().nbytes() == offsets.nbytes == 5 * 8


def test_dia_adds_up_repeated_entries_of_16_bits_in_float32(device):
    row = torch.zeros(2049, dtype=torch.int64, device=device)
    adj = fusedmm.CSR.from_coo(row, row, torch.ones(2049, dtype=torch.float16, device=device))
    assert formats.to_dia(adj).val.item() == 2048  # 2049 rounded to even once, and not stuck by the way


def test_dia_adds_up_repeated_entries_in_one_order(device, threads):
    """torch adds float32 numbers to one place with several threads as they come."""
    threads(2)
    ends = torch.randint(0, 10, (200_000,), device=device)
    adj = fusedmm.CSR.from_coo(ends, ends, torch.randn(200_000, device=device), (10, 10))
    first = formats.to_dia(adj).val
    assert all(torch.equal(formats.to_dia(adj).val, first) for _ in range(5))


def test_hyb_width(device):
    adj = rows_of_lengths([4] * 10 + [2] * 10 + [0] * 10, 9, device)
    assert formats.to_hyb(adj).val.shape[0] == 4
    assert formats.to_hyb(adj, width=2).tail_row.numel() == 20
    assert formats.to_hyb(adj, width=0).tail_row.numel() == adj.nnz and formats.to_hyb(adj, width=99).val.shape[0] == 4
    for wrong, kind in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="width"):
            formats.to_hyb(adj, width=wrong)


def test_sell_sorts_within_windows(device):
    lengths = [k % 7 for k in range(200)]
    adj = rows_of_lengths(lengths, 9, device)
    for sigma in (1, 32, 64, 1000, 2**70):
        matrix = formats.to_sell(adj, sigma=sigma)
        order = matrix.order.tolist()
        assert sorted(order) == list(range(200))
        for window in range(0, 200, sigma):
            here = [lengths[r] for r in order[window : window + sigma]]
            assert sorted(order[window : window + sigma]) == list(range(window, min(200, window + sigma)))
            assert here == sorted(here, reverse=True)
        assert torch.equal(matrix.to_csr().to_dense(), adj.to_dense())
    for wrong, kind in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="sigma"):
            formats.to_sell(adj, sigma=wrong)


def test_advice(device):
    grid = torch.arange(4000, device=device)
    band = fusedmm.CSR.from_coo(grid.repeat(2), torch.cat([grid, (grid + 1) % 4000]))
    advice = formats.advise(band)
    assert advice.best == "dia" and advice.bytes["dia"] == formats.to_dia(band).nbytes
    for name in NAMES:
        assert advice.bytes[name] == made(band.with_values(torch.ones(band.nnz, device=device)), name).nbytes, name
    hub = rows_of_lengths([30_000] + [1] * 30_000, 30_000, device)
    assert formats.advise(hub).best in ("csr", "hyb", "coo") and "ell" not in formats.advise(hub).fits


def test_advice_counts_the_sums_that_hyb_hands_over(device):
    """Of a road network HYB's arrays are smaller than the CSR, and yet its two passes move more."""
    roads = rows_of_lengths([1, 2, 2, 3, 3, 3, 3, 4, 4, 3] * 200, 2000, device)
    advice = formats.advise(roads)
    assert formats.to_hyb(roads).tail_row.numel() and advice.bytes["hyb"] < 0.95 * advice.bytes["csr"]
    assert "hyb" in advice.fits and advice.best != "hyb"
    even = rows_of_lengths([3] * 2000, 2000, device)  # nothing is beyond the ELL, so nothing is handed over
    assert formats.advise(even).best in ("ell", "hyb")


def test_names():
    """The package shows what users call, and pickles name it, whichever file a class is in."""
    assert dir(formats) == sorted(formats.__all__)
    assert [n for n in vars(formats) if n.startswith("to_")] == ["to_coo", "to_dia", "to_ell", "to_hyb", "to_sell"]
    for name in NAMES:
        stored = pickle.dumps(made(small(), name))
        assert b"fusedmm.formats." not in stored
        assert torch.equal(pickle.loads(stored).to_csr().to_dense(), small().to_dense())
