"""What training on shared rows needs beside operators: one model on all ranks, a loss over all nodes, and dropout."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from fusedmm._lib import sums_dtype
from fusedmm._torch_compat import backward_number, when_backward_ends
from fusedmm.distributed.halo import Ranks, ranks_of
from fusedmm.distributed.matrix import DistCSR
from fusedmm.matrix.arguments import require_flags
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import lasting
from fusedmm.ops.checks import require_scalar
from fusedmm.ops.row_softmax import weights

M = TypeVar("M", bound=torch.nn.Module)


def replicate(model: M, mesh: Any) -> M:
    """Makes a model the same on all ranks, and keeps it so; all ranks call it together.

    Rank 0's parameters and buffers are sent to the others. From then on the ranks' gradients are added, in the order of
    the ranks, when a ``backward`` ends: not their mean, since each rank's loss is a share of the whole. So the bits are
    the same at every run with as many ranks. ``torch.autograd.grad`` gives a rank's share, and so does a copy of the
    model that was made later: replicate it too.

    Args:
        model: the same layers on each rank, on the mesh's device; it is changed in place.
        mesh: a ``DeviceMesh``, or None for one rank.

    Returns:
        The model.

    Raises:
        ValueError: models that differ in names, shapes or dtypes (on all ranks); a layer whose sizes are not known
            yet; batch normalisation, whose statistics would be those of one rank's nodes.

    Example:
        >>> fusedmm.distributed.replicate(fusedmm.nn.GCNConv(3, 2), None)
        GCNConv(3, 2)
    """
    ranks = ranks_of(mesh)
    names = dict(model.named_parameters())

    def check() -> None:
        for name, module in model.named_modules():
            if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm)):
                what = f"{name or 'the model'} is a {type(module).__name__}"
                raise ValueError(f"replicate: {what}, whose statistics are of one rank's nodes")
        for name, p in names.items():
            if is_lazy(p):
                raise ValueError(f"replicate: {name} has no size yet; call the layer once, or give in_channels")

    ranks.together(check)
    state = names | dict(model.named_buffers())
    ranks.same(f"a model of {len(state)} tensors")
    for name, t in state.items():
        ranks.same(f"{name} {t.dtype}{list(t.shape)}, requires_grad {t.requires_grad}")
    with torch.no_grad():
        for t in state.values():
            t.copy_(ranks.first(t.detach()))
    if ranks.count > 1:
        _Sums(ranks, {name: p for name, p in names.items() if p.requires_grad})
    return model


class _Sums:
    """Adds the ranks' gradients of parameters when a backward pass ends.

    A pass adds to what ``grad`` holds already, which all ranks have in common. So that is put aside when the pass
    reaches a parameter, and what the pass made is added to it once the ranks have exchanged it.
    """

    def __init__(self, ranks: Ranks, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.ranks, self.parameters = ranks, parameters
        self.before: dict[str, Tensor | None] = {}
        self.number = -1  # of the pass that before is of
        for name, p in parameters.items():
            p.register_hook(lambda g, name=name: self._reached(name))

    def _reached(self, name: str) -> None:
        if self.number != backward_number():
            for other, g in self.before.items():  # of a pass that an error ended: nothing of it stays
                self.parameters[other].grad = g
            self.before, self.number = {}, backward_number()
            when_backward_ends(self._add)
        if name not in self.before:
            p = self.parameters[name]
            self.before[name], p.grad = p.grad, None

    def _add(self) -> None:
        before, self.before, self.number = self.before, {}, -1
        made = {name: self.parameters[name].grad for name in sorted(before)}
        for name, g in made.items():
            if g is None:  # of torch.autograd.grad, which leaves ``grad`` as it is
                self.parameters[name].grad = before[name]
        given = {name: g for name, g in made.items() if g is not None}
        what = f"gradients of {', '.join(given)}"
        self.ranks.agree(what, lambda: what)
        for dtype in sorted({g.dtype for g in given.values()}, key=str):
            some = {name: g for name, g in given.items() if g.dtype == dtype}
            total = self.ranks.sum(torch.cat([g.reshape(-1) for g in some.values()]))
            for (name, g), part in zip(some.items(), total.split([g.numel() for g in some.values()]), strict=True):
                old = before[name]
                self.parameters[name].grad = part.view_as(g) if old is None else old.add_(part.view_as(g))


class _OfAll(torch.autograd.Function):
    """The sum of the ranks' shares, whose gradient is that of each rank's own."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, share: Tensor) -> Tensor:
        return ranks.sum(share)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, g


def cross_entropy(out: Tensor, y: Tensor, mask: Tensor, mesh: Any) -> Tensor:
    """The mean of the cross entropies of all ranks' nodes under a mask; all ranks call it together, and ``backward``.

    Args:
        out: floating [own rows, classes], unnormalised.
        y: int64 [own rows], the classes.
        mask: bool [own rows], the nodes that count; none need be true on a rank.
        mesh: a ``DeviceMesh``, or None for one rank.

    Returns:
        The same number on all ranks. Its gradient on each is that of the mean by the rank's own rows.

    Raises:
        TypeError: a mask that is not bool.
        ValueError: other shapes, a class under the mask that out does not have, no node under any rank's mask, or ranks
            that called different operators before.

    Example:
        >>> out, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
        >>> fusedmm.distributed.cross_entropy(out, y, y == 1, None)
        tensor(0.6931)
    """
    ranks = ranks_of(mesh)

    def check() -> None:
        if mask.dtype != torch.bool:
            raise TypeError(f"cross_entropy: mask must be bool, not {mask.dtype}")
        if out.dim() != 2 or y.shape != out.shape[:1] or mask.shape != y.shape:
            shapes = f"{list(out.shape)}, {list(y.shape)} and {list(mask.shape)}"
            raise ValueError(f"cross_entropy: out, y and mask must be [n, classes], [n] and [n], not {shapes}")
        wrong = mask & ((y < 0) | (y >= out.shape[1]))
        if wrong.any():  # else this rank alone would raise, or its GPU fail
            raise ValueError(f"cross_entropy: y is {int(y[wrong][0])} under the mask; there are {out.shape[1]} classes")

    ranks.together(check)
    count = ranks.count_of(mask.sum())
    if not count:
        raise ValueError("cross_entropy: no node is under the mask of any rank")
    share = F.cross_entropy(out[mask], y[mask], reduction="sum") / count
    result: Tensor = _OfAll.apply(ranks, share)
    return result


def dropout(x: Tensor, p: float, adj: DistCSR, training: bool = True) -> Tensor:
    """Dropout that does not depend on who owns which row; all ranks call it together.

    Args:
        x: floating [own rows, ...].
        p: the probability that a number becomes 0; the others are divided by 1 - p.
        adj: the matrix whose rows x has.
        training: False returns x.

    Returns:
        x times a mask that follows from a number that rank 0 draws of torch's generator, and from a number's place in
        the whole x.

    Raises:
        TypeError: adj is no DistCSR, or training is neither True nor False.
        ValueError: a p outside [0, 1], or another number of rows.

    Gradient: reaches x.

    Example:
        >>> from fusedmm.distributed import DistCSR, dropout
        >>> edges, offsets = torch.tensor([0, 1]), torch.tensor([0, 2])
        >>> adj = DistCSR.from_edges(edges, edges, None, offsets, None)
        >>> dropout(torch.ones(2, 3), 1.0, adj)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    require_scalar("dropout", "p", p)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must be in [0, 1], not {p}")
    if not isinstance(adj, DistCSR):
        raise TypeError(f"dropout: adj must be a DistCSR, not {type(adj).__name__}")
    require_flags("dropout", training=training)
    if not training or not p:
        return x
    rows = adj.shape[0]
    if x.shape[:1] != (rows,):
        raise ValueError(f"dropout: x must have the matrix's {rows} rows, not {list(x.shape)}")
    seed = adj.ranks.first(torch.randint(2**63 - 1, (1,), device=x.device))
    first = int(adj.offsets[adj.ranks.rank])
    keys = torch.arange(first, first + rows, device=x.device)
    return x * _mask(x.detach().flatten(1), torch.cat([seed, keys]), float(p)).view(x.shape)


@lasting
@torch.no_grad()
def _mask(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """What dropout multiplies x [n, F] by: attention's mask of a matrix with one entry in each row, and F heads."""
    n = x.shape[0]
    none = seed.new_empty(0, dtype=torch.uint8)
    numbers = torch.arange(n + 1, device=x.device)
    each = CSR.make(numbers, numbers[:n].int(), none, None, n, False)
    lse = x.new_zeros(x.shape, dtype=sums_dtype(x))
    return weights(each, torch.zeros_like(x), lse, lse, seed, p)
