"""Arguments of a good call, made bad: what a caller may hold by mistake, and what a saved program may contain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# For sizes, enumerations, algorithms and content; and sizes that take little memory, or more than there is.
NUMBERS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 31, 63, 64, 255, 256, -1, -2, -(2**31), -(2**63), -(2**32), 2**31 - 1]
NUMBERS += [2**31, 2**32, 2**32 + 1, 2**50, 2**61, 2**62, 2**63 - 1, 2**63 - 2, (2**63 - 1) // 3]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-320, 1e300, -1e300, float("inf"), float("-inf"), float("nan")]
SIZES = [0, 1, 2, 3, 12, 15, 64, 257, 2**50, 2**61, 2**62, 2**63 - 1]
MOST_COPIED = 9999  # of a dimension; larger ones are one part, repeated
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
DTYPES += [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]


def _is_small(t: Tensor) -> bool:
    """What torch itself is quick with, whatever it does."""
    return max(t.shape, default=0) <= MOST_COPIED


def _content(rng: random.Random, t: Tensor, _: Sequence[Tensor]) -> Tensor:
    """Some of its numbers, or all, are others."""
    t = t.clone(memory_format=torch.contiguous_format)
    flat = t.view(-1)
    for _ in range(rng.choice([1, 1, 3, t.numel()])):
        if t.is_floating_point():
            flat[rng.randrange(t.numel())] = rng.choice([*FLOATS, rng.random()])
        elif not t.is_complex():
            most = 1 if t.dtype == torch.bool else torch.iinfo(t.dtype).max
            wrong = rng.choice([*NUMBERS, t.numel(), rng.randrange(2 * t.numel())])
            flat[rng.randrange(t.numel())] = max(min(wrong, most), -most - 1 if t.dtype.is_signed else 0)
    return t


def _reshape(rng: random.Random, t: Tensor, _: Sequence[Tensor]) -> Tensor:
    """Other sizes of a dimension: fewer, none, more, or any number that takes no memory."""
    if not t.dim():
        return t[None]
    d = rng.randrange(t.dim())
    return rng.choice(
        [
            lambda: t.narrow(d, 0, t.size(d) - 1).clone(),  # so that memory ends where the tensor does
            lambda: t.narrow(d, 0, 0).clone(),
            lambda: torch.cat([t, t], d),
            lambda: t.select(d, 0).clone(),
            lambda: t.unsqueeze(d),
            lambda: t.flatten(),
            lambda: _repeated(t, d, rng.choice(SIZES)),
            lambda: t.new_empty([]),
            lambda: t.flatten()[:1].clone().expand([rng.choice(SIZES) for _ in range(rng.randrange(1, 4))]),
            lambda: t.new_empty([rng.choice([0, *SIZES]) for _ in range(d)] + [0] + [rng.choice(SIZES)]),
        ]
    )()


def _restride(rng: random.Random, t: Tensor, _: Sequence[Tensor]) -> Tensor:
    """The same numbers apart, in another order, over each other, or with strides that no step takes."""
    if not t.dim():
        return t
    d = rng.randrange(t.dim())
    huge = [rng.choice(NUMBERS[-8:]) if n <= 1 else s for n, s in zip(t.shape, t.stride(), strict=True)]
    few = [rng.choice([0, 1, 2]) for _ in t.shape]
    room = t.new_zeros(1 + sum(s * max(n - 1, 0) for n, s in zip(t.shape, few, strict=True)))
    return rng.choice(
        [
            lambda: torch.stack([t, t], -1)[..., 0],
            lambda: t.movedim(d, 0).contiguous().movedim(0, d),
            lambda: _repeated(t, d, t.size(d)),
            lambda: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
            lambda: t.as_strided(t.shape, huge),
            lambda: room.as_strided(t.shape, few),
        ]
    )()


def _kind(rng: random.Random, t: Tensor, _: Sequence[Tensor]) -> Tensor:
    """Another dtype, device, layout or alignment."""
    dtype = rng.choice(DTYPES)
    return rng.choice(
        [
            lambda: t.to(dtype),
            lambda: t.to(dtype),
            lambda: t.flatten().view(dtype),
            lambda: t.to("meta"),
            lambda: t.to_sparse(),
            lambda: t.to_sparse_csr(),
            lambda: torch.nested.nested_tensor([t, t]),
            lambda: misaligned(t),
        ]
    )()


def misaligned(t: Tensor) -> Tensor:
    """The same numbers, from an address one past where their dtype should begin."""
    room = bytearray(t.numel() * t.itemsize + 1)
    return torch.frombuffer(room, dtype=t.dtype, offset=1, count=t.numel()).view(t.shape).copy_(t)


def _other(rng: random.Random, t: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Absent, or in another's place."""
    return rng.choice([t.new_empty(0), *others])


def mutated(rng: random.Random, value: Any, others: Sequence[Tensor]) -> Any:
    """A value of the same type as `value`; a ValueError or RuntimeError of torch says that there is no such tensor."""
    if isinstance(value, Tensor):
        known = [_content if value.numel() else _other, _reshape, _restride, _kind, _other]
        return rng.choice(known if _is_small(value) else [_other])(rng, value, others)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS)
    return rng.choice(FLOATS) if isinstance(value, float) else value


def resized(rng: random.Random, args: Sequence[Any]) -> list[Any]:
    """One size as another wherever it stands, so that the arguments still fit each other; ptr's is one more."""
    tensors = [t for t in args if isinstance(t, Tensor)]
    old, new = rng.choice([*{n for t in tensors for n in t.shape if n}, 1]), rng.choice(SIZES)
    sizes = {old: new, old + 1: new + 1} if rng.random() < 0.5 and new < SIZES[-1] else {old: new}

    def fit(t: Any) -> Any:
        for d in range(t.dim() if isinstance(t, Tensor) else 0):
            size = sizes.get(t.size(d))
            if size is not None:
                small = size <= MOST_COPIED and _is_small(t)
                t = (
                    t.index_select(d, torch.arange(size, device=t.device) % t.size(d))
                    if small
                    else _repeated(t, d, size)
                )
        return t

    return list(map(fit, args))


def _repeated(t: Tensor, d: int, size: int) -> Tensor:
    """Its first part of dimension d, as often as is said, without memory for it."""
    return t.narrow(d, 0, 1).clone().expand([size if e == d else n for e, n in enumerate(t.shape)])
