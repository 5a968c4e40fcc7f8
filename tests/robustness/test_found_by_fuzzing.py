"""Calls that tests/fuzz/fuzz_torch.py and tests/robustness/test_mutated_calls.py found, each as short as it can be."""

import pytest
import torch
from support.generate import small, works

import fusedmm
from fusedmm.edge.parse import parse

ops = torch.ops.fusedmm


def misaligned(t: torch.Tensor) -> torch.Tensor:
    room = bytearray(t.numel() * t.itemsize + 1)
    return torch.frombuffer(room, dtype=t.dtype, offset=1).view(t.shape).copy_(t)


def test_an_edge_program_may_begin_anywhere(device):
    adj = small(device=device)
    x, y, z = (torch.randn(n, 4, device=device) for n in (12, 15, 15))
    program = parse("s*a").program()
    found, expected = (
        ops._fused(adj.ptr, adj.idx, adj.eid, adj.plan, adj.val, x, y, z, p, 1, 0, 0, 0, 0)
        for p in (misaligned(program), program)
    )
    assert torch.equal(found, expected)


def test_many_heads_of_no_channels_take_no_time(device):
    ptr = torch.zeros(13, dtype=torch.int64, device=device)
    g = torch.empty(12, 2**50, 0, device=device)
    assert ops._mean_back(ptr, g).shape == g.shape
    works(device)


def test_sizes_beyond_64_bits_are_named(device):
    adj = small(device=device)
    wide = torch.ones(1, 1, 7, device=device).expand(0, 2**61, 7)
    with pytest.raises(RuntimeError, match=r"^invalid: x of \[0, 2305843009213693952, 7\] does not fit in 64 bits"):
        ops._spmm(adj.ptr, adj.idx, adj.eid, adj.plan, adj.none, wide, 0, 0)
    g = torch.empty(2**62, 0, 257, device=device)
    with pytest.raises(
        RuntimeError, match=r"^invalid: a tensor of \[4611686018427387904, 0, 257\] would have more bytes"
    ):
        ops._mean_back(adj.ptr, g)
    works(device)


def test_fake_kernels_of_tensors_on_meta():
    """CPU only: what is traced is on no device."""
    adj = small()
    q, k, v = (torch.ones(n, 1, f, device="meta") for n, f in ((12, 5), (15, 5), (15, 7)))
    none, lse = adj.none.to("meta"), q[..., 0]
    half = [t.to("meta") for t in (adj.ptr, adj.idx, adj.eid, adj.plan)]
    gatt = ops._attention_rows(
        *half, q, k, v, *[none] * 4, lse, lse, lse, v[:12], 1.0, 0.2, 0.0, 2, 2, 0
    )[1]  # fmt: skip
    assert gatt.shape == (64, 1, 5)
    p = torch.ones(12, 8, device="meta")
    for heads, maps in ((1, 0), (0, 2), (1, 5)):
        with pytest.raises(ValueError, match=f"2 to 4 maps of 1 head or more, not {maps} of {heads}"):
            ops._attend_maps(*half, p, none, none, none, 1.0, 0.2, 0.0, heads, maps, 0)


EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(1, 4), torch.ones(2, 4)])


def attend(att: torch.Tensor) -> None:
    x = torch.ones(3, 1, 4)
    fusedmm.attention(fusedmm.CSR.from_edge_index(EDGES, size=3), x, x, x, score="gatv2", att=att)


REFUSED = {
    "nested values": (lambda: fusedmm.CSR.from_coo(*EDGES, nested()), "val must be one dense tensor, not a nested one"),
    "sparse values": (lambda: fusedmm.CSR.from_coo(*EDGES, torch.ones(3).to_sparse()), "val must be one dense tensor"),
    "nested weights": (lambda: fusedmm.CSR.from_edge_index(EDGES, nested()), "edge_weight must be one dense tensor"),
    "nested edges": (lambda: fusedmm.CSR.from_edge_index(nested().long()), "edge_index must be one dense tensor"),
    "complex weights": (lambda: fusedmm.CSR.from_edge_index(EDGES, EDGES[0].cfloat()), "edge_weight must be a float"),
    "nested att": (lambda: attend(nested()), "attention: att must be one dense tensor, not a nested one"),
    "sparse att": (lambda: attend(torch.ones(1, 4).to_sparse()), "attention: att must be one dense tensor"),
    "nested operand of four dimensions": (
        lambda: fusedmm.spmm(EDGES, torch.nested.nested_tensor([torch.ones(1, 4, 4)])),
        "spmm: x must be one dense tensor, not a nested one",
    ),
    "sparse logits": (
        lambda: fusedmm.edge_softmax(EDGES, torch.ones(3).to_sparse()),
        "edge_softmax: logits must be one dense tensor, not torch.sparse_coo",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_refused_by_name(name):
    """CPU only: checks of the Python functions, which see no device."""
    call, text = REFUSED[name]
    with pytest.raises(TypeError, match=text):
        call()


def test_too_few_weights_are_named():
    """CPU only, as above."""
    with pytest.raises(ValueError, match="edge_weight has 2 values for 3 entries"):
        fusedmm.CSR.from_edge_index(EDGES, torch.ones(2))
