"""The forms that a tensor may come in, and what a call must make of each: the right numbers, or an error by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Form = Callable[[Tensor], Tensor]


class Mine(torch.Tensor):
    """A subclass that changes nothing."""


def sliced(t: Tensor) -> Tensor:
    """Every other number, from an odd place on."""
    room = t.new_zeros(2 * t.numel() + 3)
    return room[3:].as_strided(t.shape, [2 * s for s in t.contiguous().stride()]).copy_(t)


def misaligned(t: Tensor) -> Tensor:
    data = t.detach().cpu().contiguous()
    if not t.numel() or t.device.type != "cpu":
        raise NotImplementedError
    room = bytearray(1 + data.numel() * data.element_size())
    room[1:] = data.view(-1).view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(room, dtype=t.dtype, offset=1).view(t.shape)


def inference(t: Tensor) -> Tensor:
    with torch.inference_mode():
        return t.clone()


def negated(t: Tensor) -> Tensor:
    """The same numbers, whose signs torch still has to turn."""
    return torch._neg_view(-t)


def nested(layout: torch.layout) -> Form:
    def form(t: Tensor) -> Tensor:
        return torch.nested.nested_tensor([t[:1], t[1:]], layout=layout)

    return form


def axis(k: int, change: Form) -> Form:
    """A change of axis k; there are few of them."""

    def form(t: Tensor) -> Tensor:
        if t.dim() <= k or not t.numel():
            raise NotImplementedError
        return change(t.movedim(k, 0)).movedim(0, k)

    return form


def first(t: Tensor) -> Tensor:
    return t[:1].expand_as(t)


def nothing(t: Tensor) -> Tensor:
    return t[:0]


def flipped(t: Tensor) -> Tensor:
    """torch has no negative strides: what it flips is a copy, of which this is the transpose."""
    return t.movedim(0, -1).flip(-1).movedim(-1, 0)


FORMS: dict[str, Form] = {
    "transposed": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "sliced": sliced,
    "flipped": flipped,
    "misaligned": misaligned,
    **{f"stride 0 of axis {k}": axis(k, first) for k in range(3)},
    **{f"no numbers along axis {k}": axis(k, nothing) for k in range(3)},
    "no axes": lambda t: t.flatten()[0],
    "parameter": lambda t: torch.nn.Parameter(t.clone(), requires_grad=False),
    "subclass": lambda t: t.clone().as_subclass(Mine),
    "inference": inference,
    "negated": negated,
    "zeros that are not stored": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
    "COO": lambda t: t.to_sparse(),
    "CSR": lambda t: t.to_sparse_csr(),
    "CSC": lambda t: t.to_sparse_csc(),
    "BSR": lambda t: t.to_sparse_bsr((1, 1)),
    "BSC": lambda t: t.to_sparse_bsc((1, 1)),
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "meta": lambda t: t.to("meta"),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "complex": lambda t: t.to(torch.complex64),
    "conjugate": lambda t: t.to(torch.complex64).conj(),
}
MATRICES = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
OTHER_NUMBERS = [name for name in FORMS if name.startswith(("flipped", "stride 0", "zeros"))]


def formed(form: str, t: Tensor) -> Tensor | None:
    """t in a form; None where torch has no such tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return FORMS[form](t)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
            return None


def plain(t: Tensor) -> Tensor | None:
    """The same numbers in a dense, contiguous tensor of torch's own class; None where it holds no such numbers."""
    if t.is_nested or t.is_meta or t.is_quantized:
        return None
    if t.layout != torch.strided:
        t = t.to_dense()
    return (
        t.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )


def tensors(found: Any) -> list[Tensor]:
    """What a call gave; bytes are opaque, and in parts nobody writes them."""
    given = found if isinstance(found, (tuple, list)) else (found,)
    return [t for t in given if isinstance(t, Tensor) and t.dtype != torch.uint8]


ALIASES = {  # what else errors may call an argument
    "val": "val|values",
    "edge_index": "edge_index|CSR of|values|adj",
    "ptr": "ptr|CSR of",
}


def assert_right_or_named(
    call: Callable[..., Any], form: str, given: dict[str, Tensor], argument: str, kinds: Any
) -> bool:
    """Whether there is such a tensor.

    Args:
        call: takes the tensors by name, and gives a tensor or several.
        form: a key of FORMS, of the argument.
        given: what the call takes.
        argument: one of these names.
        kinds: exceptions that are right, if their text names the argument.
    """
    other = formed(form, given[argument])
    if other is None or (argument == "edge_index" and other.layout in MATRICES):  # its numbers are values there
        return False
    like, note = plain(other), f"{form} as {argument}"
    fits = other.shape == given[argument].shape if like is not None else True
    names = "|".join(ALIASES.get(name, name) for name in ([argument] if fits else given))
    try:
        found = call(**{**given, argument: other})
    except Exception as error:
        text = str(error)
        assert isinstance(error, kinds), f"{note}: {type(error).__name__}: {text}"
        assert type(error) is not RuntimeError or text.startswith("invalid: "), f"{note}: {text}"  # the library's own
        assert re.search(rf"\b({names})\b", text), f"{note}: {text}"
        return True
    assert like is not None, f"{note} is taken"
    wanted = call(**{**given, argument: like})
    if argument.startswith("ptr") and not torch.equal(like, given[argument]):
        return True  # entries of no row, which nobody writes
    found, wanted = [t.as_subclass(torch.Tensor) for t in tensors(found)], tensors(wanted)
    torch.testing.assert_close(found, wanted, equal_nan=True, msg=note + " is wrong")
    return True
