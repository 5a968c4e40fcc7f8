"""Attention among linear maps of one tensor: the step of autograd against its parts, and its operators."""

import pytest
import torch
from support.opchecks import check_operator
from support.turns import in_turn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import linear

import fusedmm
from fusedmm.nn import GATv2Conv, TransformerConv
from fusedmm.ops.projected_attention import Call, attend_maps

ops = torch.ops.fusedmm
HEADS, FEAT, WIDTH = 3, 5, 15
NUMBERS = 0.3, 0.2  # scale and slope
MAPS = [2, 3, 4]


def graph(device, n=40):
    g = torch.Generator().manual_seed(1)
    row, col = torch.randint(n - 1, (2, 7 * n), generator=g)  # the last node has no entry
    return fusedmm.CSR.from_coo(row.to(device), col.to(device), None, (n, n))


def by_attention(call, x, weight, bias, att, added):
    parts = [part.unflatten(1, (HEADS, -1)) for part in linear(x, weight, bias).chunk(call.maps, 1)]
    k, v, q, *skip = parts if call.maps > 2 else (parts[0], *parts)
    options = {"scale": call.scale} if call.maps > 2 else {"score": "gatv2", "att": att, "slope": call.slope}
    out = fusedmm.attention(call.adj, q, k, v, dropout=call.dropout, **options).flatten(1)
    return sum((s.flatten(1) for s in skip), out) + (0 if added is None else added)


def operands(maps, n=40, feat=7):
    """x, weight, bias, att and what is added."""
    g = torch.Generator().manual_seed(2)
    sizes = (n, feat), (maps * WIDTH, feat), (maps * WIDTH,), (1, HEADS, FEAT), (WIDTH,)
    given = [torch.randn(size, generator=g, dtype=torch.float64) for size in sizes]
    return [*given[:3], given[3] if maps == 2 else None, given[4] if maps < 4 else None]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("learnt", [(0, 1, 2, 3, 4), (0,), (1,), (2,), (3,), (4,), ()], ids=str)
@pytest.mark.parametrize("maps", MAPS)
def test_step_is_attention_of_the_maps(maps, learnt, dropout, device):
    """In float64, where rounding is far below what any mistake would give."""
    call, found = Call(graph(device), *NUMBERS, dropout, HEADS, maps), []
    for way in (attend_maps, by_attention):
        leaves = [None if t is None else t.to(device).requires_grad_(k in learnt) for k, t in enumerate(operands(maps))]
        wanted = [leaves[k] for k in learnt if leaves[k] is not None]
        torch.manual_seed(3)
        out = way(call, *leaves)
        assert out.requires_grad == bool(wanted)
        found.append([out.detach(), *(torch.autograd.grad(out.square().sum(), wanted) if wanted else ())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("maps", MAPS)
def test_forward_has_the_bits_of_its_parts(maps, dtype, device):
    """The same product and the same kernels; what is added is added to the rounded sum either way."""
    call = Call(graph(device), *NUMBERS, 0.0, HEADS, maps)
    given = [None if t is None else t.to(device, dtype) for t in operands(maps)]
    assert torch.equal(attend_maps(call, *given), by_attention(call, *given))


@pytest.mark.parametrize("maps", MAPS)
def test_without_biases(maps, device):
    call, found = Call(graph(device), *NUMBERS, 0.0, HEADS, maps), []
    for way in (attend_maps, by_attention):
        x, weight, _, att, _ = (None if t is None else t.to(device).requires_grad_() for t in operands(maps))
        out = way(call, x, weight, None, att, None)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, weight])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("maps", MAPS)
def test_gradients_of_any_order(maps, device):
    call = Call(graph(device, 6), *NUMBERS, 0.0, HEADS, maps)
    given = [None if t is None else t.to(device) for t in operands(maps, 6, 2)]
    places = [k for k, t in enumerate(given) if t is not None]

    def compute(*leaves):
        whole = dict(zip(places, leaves, strict=True))
        return attend_maps(call, *(whole.get(k) for k in range(5)))

    leaves = [given[k].requires_grad_() for k in places]
    assert gradcheck(compute, leaves) and gradgradcheck(compute, leaves, fast_mode=True)


@pytest.mark.parametrize("maps", MAPS)
def test_transforms_and_tangents_take_the_parts(maps, device):
    call = Call(graph(device), *NUMBERS, 0.0, HEADS, maps)
    x, *others = (None if t is None else t.to(device) for t in operands(maps))
    tangent = torch.randn_like(x)
    found = torch.func.jvp(lambda x: attend_maps(call, x, *others), (x,), (tangent,))
    expected = torch.func.jvp(lambda x: by_attention(call, x, *others), (x,), (tangent,))
    many = torch.func.vmap(lambda x: attend_maps(call, x, *others))(torch.stack([x, 2 * x]))
    for one, other in zip((*found, many[0]), (*expected, expected[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layer", [GATv2Conv, TransformerConv])
def test_what_a_hook_or_autocast_sees_is_as_before(layer, device):
    adj, conv, seen = graph(device), layer(7, FEAT, heads=HEADS).to(device), []
    x = torch.randn(40, 7).to(device)
    expected = conv(x, adj)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = conv(x, adj)
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in conv.parameters())
    first = next(m for m in conv.children())
    first.register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    torch.testing.assert_close(conv(x, adj), expected)
    assert seen == [(40, WIDTH)]


@pytest.mark.parametrize("layer", [GATv2Conv, TransformerConv])
def test_a_forward_in_its_place_or_a_global_hook_is_called(layer, device):
    adj, conv, seen = graph(device), layer(7, FEAT, heads=HEADS).to(device), []
    x = torch.randn(40, 7).to(device)
    expected = conv(x, adj)
    last = [m for m in conv.children()][-1]
    last.forward = lambda x, old=last.forward: (seen.append(last), old(x))[1]
    torch.testing.assert_close(conv(x, adj), expected)
    assert seen == [last]
    del last.forward
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: seen.append(module))
    torch.testing.assert_close(conv(x, adj), expected)
    handle.remove()
    assert set(seen[1:]) == {*conv.children(), conv}


@pytest.mark.parametrize("layer", [GATv2Conv, TransformerConv])
def test_maps_of_two_dtypes_are_refused_as_one_by_one(layer, device):
    conv = layer(7, FEAT, heads=HEADS).to(device)
    first = next(conv.children())
    first.bias.data = first.bias.data.half()
    with pytest.raises(RuntimeError, match="dtype"):
        conv(torch.randn(40, 7, device=device), graph(device))


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("n", [0, 5])
def test_no_edges_and_no_nodes(n, maps, device):
    empty = torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    call = Call(fusedmm.CSR.from_csr(*empty, None, (n, n)).to(device), *NUMBERS, 0.0, HEADS, maps)
    given = [None if t is None else t.to(device).requires_grad_() for t in operands(maps, n)]
    out, leaves = attend_maps(call, *given), [t for t in given if t is not None]
    torch.testing.assert_close(out, by_attention(call, *given))
    for g, leaf in zip(torch.autograd.grad(out.sum(), leaves), leaves, strict=True):
        assert g.shape == leaf.shape and g.isfinite().all()


@pytest.mark.parametrize("maps, dtype", in_turn(MAPS, [torch.float32, torch.float64, torch.bfloat16]), ids=str)
def test_operators_pass_opcheck_and_refuse_by_name(maps, dtype, device):
    adj = graph(device, 64)  # of sizes that leave no unwritten bytes between what is kept
    half, none = (adj.ptr, adj.idx, adj.eid, adj.plan), adj.none
    p, gout = (torch.randn(64, k * 12).to(device, dtype) for k in (maps, 1))
    att = torch.randn(1, 3, 4).to(device, dtype) if maps == 2 else none
    added = none if maps == 4 else torch.randn(24).to(device, dtype)[::2]
    seed = torch.tensor([5], device=device)
    tail = 3, maps
    for whole, dropout, bias in ((True, 0.0, none), (False, 0.5, added), (True, 0.5, added)):
        call = *half, p, att, seed, bias, *NUMBERS, dropout, *tail, whole
        check_operator(ops._attend_maps.default, call)

    def ahead(p=p, att=att, seed=none, bias=none, dropout=0.0, heads=3, maps=maps, whole=True):
        return ops._attend_maps(*half, p, att, seed, bias, *NUMBERS, dropout, heads, maps, whole)

    out, kept = ahead()
    assert torch.equal(out, ahead(whole=False)[0])
    if maps < 4:
        more, with_out = ahead(bias=added)
        assert torch.equal(more, out + added) and torch.equal(more, ahead(bias=added, whole=False)[0])
    plain = none if maps == 4 else out

    def back(p=p, out=plain, kept=kept, gout=gout, att=att):
        return (*half, *adj.transpose_half(), p, att, none, out, kept, gout, *NUMBERS, 0.0, *tail)

    check_operator(ops._attend_maps_back.default, back())
    expected = ops._attend_maps_back(*back())
    turned = {"p": p.t().contiguous().t(), "gout": gout.t().contiguous().t()}
    others = [turned] if maps == 4 else [turned, {"out": none, "kept": with_out}]
    for change in others:
        assert all(map(torch.equal, ops._attend_maps_back(*back(**change)), expected))
    wrong = {
        "kept must be [0-9]+ contiguous bytes": [{"kept": kept[1:]}, {"kept": kept.view(torch.int8)}],
        "gout must be \\[n, 12\\], heads side by side": [{"gout": gout[:, 1:]}],
        "p must be \\[n, maps \\* heads \\* C\\]": [{"p": p[:, 1:]}, {"p": p[..., None]}],
    }
    if maps == 2:
        wrong["att must be \\[1, heads, C\\]"] = [{"att": att[0]}]
        wrong["att"] = [{"att": none}, {"att": att[:, 1:]}, {"att": att.half()}]
    for text, changes in wrong.items():
        for change in changes:
            with pytest.raises(RuntimeError, match="^invalid: .*" + text):
                ops._attend_maps_back(*back(**change))
    refused = {
        "seed must be int64": {"seed": seed.int(), "dropout": 0.5},
        "there may be 2 to 4 maps, not 5": {"maps": 5},
        "p must be": {"heads": 0},
        "p has": {"p": p[1:]},
        "bias must be \\[12\\], of x's dtype" if maps < 4 else "either a bias or a map is added": {
            "bias": torch.ones(12 + (maps < 4), device=device, dtype=dtype)
        },
    }
    for text, change in refused.items():
        with pytest.raises(RuntimeError, match="^invalid: .*" + text):
            ahead(**change)
