"""Training on shared rows: one model, one loss, one mask, whoever owns which row."""

import copy
from unittest import mock

import pytest
import torch
from distributed.graphs import CUTS, N, normal
from distributed.worker import raised
from support.ranks import known, on_ranks, randint
from torch.nn import functional as F

import fusedmm
from fusedmm import nn
from fusedmm.distributed import cross_entropy, dropout, replicate

X, Y = normal(N, 6), torch.arange(N) % 3
MASK = torch.arange(N) < 9  # ranks that begin behind it have no labels
CUT = ["one rank", "two even ranks", "a rank without rows", "eight ranks"]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GATConv(6, 4, heads=2), nn.GCNConv(8, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x, adj):
        return self.second(self.first(x, adj).relu(), adj) * self.scale


def network(seed: int) -> Network:
    torch.manual_seed(seed)
    return Network()


@pytest.mark.parametrize("cut", CUT)
def test_steps_are_those_of_one_device(cut):
    whole = CUTS[cut]()
    models = [network(seed) for seed in range(whole.count)]  # of which rank 0's counts
    models[0].scale.fill_(2)
    one = copy.deepcopy(models[0])

    def train(model, x, y, mask, adj, loss_of):
        optimiser, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(3):
            optimiser.zero_grad(set_to_none=step == 1)
            for _ in range(2):  # gradients add up over passes
                loss = loss_of(model(x, adj), y, mask)
                loss.backward()
            losses.append(loss.detach())
            optimiser.step()
        return losses

    expected = train(one, X, Y, MASK, whole.csr, lambda out, y, mask: F.cross_entropy(out[mask], y[mask]))

    def work(ranks):
        adj = whole.part(ranks)
        model = replicate(models[ranks.rank], ranks)
        given = [whole.cut(t, "r", adj) for t in (X, Y, MASK)]
        return train(model, *given, adj, lambda out, y, mask: cross_entropy(out, y, mask, ranks))

    losses = on_ranks(whole.count, work)
    for mine in losses:
        assert mine == losses[0]  # the same bits on all ranks
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    for model in models:
        for (name, p), (_, first), (_, q) in zip(
            model.named_parameters(), models[0].named_parameters(), one.named_parameters(), strict=True
        ):
            assert torch.equal(p, first), name
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        assert torch.equal(model.scale, one.scale)


def test_grad_is_a_share_and_leaves_what_was_added():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        adj = whole.part(ranks)
        model = replicate(network(0), ranks)
        x, y, mask = (whole.cut(t, "r", adj) for t in (X, Y, MASK))
        cross_entropy(model(x, adj), y, mask, ranks).backward()
        before = model.second.bias.grad
        found = torch.autograd.grad(cross_entropy(model(x, adj), y, mask, ranks), [model.second.bias])[0]
        assert model.second.bias.grad is before
        return before, found

    (total, first), (_, second) = on_ranks(2, work)
    torch.testing.assert_close(first + second, total)
    assert not second.any()  # no label lies with rank 1


def test_a_pass_that_failed_leaves_nothing():
    whole = CUTS["two even ranks"]()

    def work(ranks):
        adj = whole.part(ranks)
        model = replicate(network(0), ranks)
        x, y, mask = (whole.cut(t, "r", adj) for t in (X, Y, MASK))

        def step(fails):
            hidden = model.first(x, adj)
            hidden.register_hook(lambda g: 1 / 0 if fails else None)
            cross_entropy(model.second(hidden.relu(), adj), y, mask, ranks).backward()
            return [p.grad.clone() for p in model.parameters()]

        step(False)
        model.zero_grad()
        expected = step(False)
        model.zero_grad()
        with pytest.raises(ZeroDivisionError):
            step(True)
        assert all(torch.equal(a, b) for a, b in zip(step(False), expected, strict=True))

    on_ranks(2, work)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rank: torch.nn.Linear(3, 2 + rank), r"rank 1 has weight torch.float32\[3, 3\]"),
        (lambda rank: torch.nn.Linear(3, 2, bias=rank == 0), "rank 1 has a model of 1 tensors"),
        (lambda rank: torch.nn.Linear(3, 2).requires_grad_(rank == 0), "rank 1 has weight .* requires_grad False"),
        (lambda rank: torch.nn.Sequential(torch.nn.BatchNorm1d(3)), "0 is a BatchNorm1d"),
        (lambda rank: torch.nn.BatchNorm1d(3), "rank 0: replicate: the model is a BatchNorm1d"),
        (lambda rank: nn.GCNConv(-1, 2), "rank 0: replicate: lin.weight has no size yet"),
    ],
)
def test_models_that_are_refused(make, message):
    def work(ranks):
        with pytest.raises(ValueError, match=message):
            replicate(make(ranks.rank), ranks)

    on_ranks(2, work)


def test_loss_refuses():
    y, none = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)

    def work(ranks):
        with pytest.raises(ValueError, match="no node is under the mask"):
            cross_entropy(torch.zeros(2, 3), y, none, ranks)
        with pytest.raises(TypeError, match="rank 1: cross_entropy: mask must be bool"):
            cross_entropy(torch.zeros(2, 3), y, none if ranks.rank == 0 else y, ranks)
        with pytest.raises(ValueError, match="rank 0: cross_entropy: out, y and mask must be"):
            cross_entropy(torch.zeros(3 - ranks.rank, 3), y, none, ranks)
        for wrong in (3, -1):  # of rank 1 alone, and only where it counts
            given = torch.tensor([0, wrong if ranks.rank else 2])
            with pytest.raises(ValueError, match=f"rank 1: cross_entropy: y is {wrong} under the mask; there are 3"):
                cross_entropy(torch.zeros(2, 3), given, ~none, ranks)
            assert cross_entropy(torch.zeros(2, 3), given, given == 0, ranks) > 0
        return True

    assert on_ranks(2, work) == [True, True]


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
@mock.patch.object(torch, "randint", randint)
def test_dropout_is_of_the_whole(p):
    x, masks = normal(N, 5, 3), []
    for cut in CUT:
        whole = CUTS[cut]()

        def work(ranks, whole=whole):
            known.generator = torch.Generator().manual_seed(5 + ranks.rank)  # rank 0's counts
            adj = whole.part(ranks)
            own = whole.cut(x, "r", adj).clone().requires_grad_()
            out = dropout(own, p, adj)
            out.sum().backward()
            assert torch.equal(out, own * own.grad) and dropout(own, p, adj, training=False) is own
            return own.grad

        masks.append(torch.cat(on_ranks(whole.count, work)))
    for mask in masks:
        assert torch.equal(mask, masks[0])
        assert set(mask.unique().tolist()) <= {0.0, float(torch.tensor(1.0) / (1 - p)) if p < 1 else 0.0}
        assert abs(float((mask == 0).float().mean()) - p) < 0.08


def test_the_loss_finds_calls_that_were_mixed_up():
    """Of two operators whose messages are of equal size, which each rank had agreed on before."""
    whole, y = CUTS["two even ranks"](), Y[:30]

    def work(ranks, mixed):
        part, x = whole.part(ranks), normal(30, 4)
        calls = [lambda: fusedmm.spmm(part, x), lambda: fusedmm.sddmm(part, x, x)]
        for call in calls + [calls[mixed and ranks.rank]] * mixed + calls:
            call()
        return raised(lambda: cross_entropy(torch.zeros(30, 3), y, y < 2, ranks))

    assert on_ranks(2, lambda ranks: work(ranks, False)) == ["nothing"] * 2
    for text in on_ranks(2, lambda ranks: work(ranks, True)):
        assert (
            text
            == "ValueError: ranks disagree: one of 5 calls was not the same; FUSEDMM_DISTRIBUTED_CHECK=1 finds which"
        )


def test_dropout_refuses():
    adj = on_ranks(1, CUTS["one rank"]().part)[0]
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\], not 1.5"):
        dropout(X, 1.5, adj)
    with pytest.raises(TypeError, match="adj must be a DistCSR, not CSR"):
        dropout(X, 0.5, CUTS["one rank"]().csr)
    with pytest.raises(ValueError, match="must have the matrix's 60 rows"):
        dropout(X[:3], 0.5, adj)
