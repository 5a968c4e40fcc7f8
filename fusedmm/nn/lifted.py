"""What a message is made of, found by calling it with stand-ins: features of sources, of targets or of edges.

A user's ``message(x_j, edge_weight)`` is written for tensors [edges, ...]. Called with stand-ins it says what it
computes without computing it for each edge:

- A function that treats each row by itself, such as ``relu`` or a linear map, is applied to the nodes at once, since
  ``f(x)[j] = f(x[j])``. It gives a stand-in of the same target.
- A sum, difference, product or quotient of two targets is a ``Pair``, which ``reduced`` hands to ``gspmm``.
- Everything else raises ``Unknown``, and the caller computes the messages edge by edge.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm._lib import sums_dtype
from fusedmm.matrix.csr import CSR
from fusedmm.ops.gspmm import gspmm

BY_ROW = set(
    "abs neg exp log sqrt rsqrt reciprocal square pow sin cos sigmoid tanh relu leaky_relu elu gelu silu softplus "
    "clamp clamp_min clamp_max float double half bfloat16 detach contiguous linear matmul".split()
)
SHAPES = {"view", "reshape", "unsqueeze", "squeeze"}
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv
}  # fmt: skip
NAMES = OPS | {"subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
METHODS = BY_ROW | SHAPES | set(NAMES)
KNOWN = {"truediv": "div", "true_divide": "div", "subtract": "sub", "multiply": "mul", "divide": "div"}


RESULTS = {"add": "the sum", "sub": "the difference", "mul": "the product", "div": "the quotient"}
WHOSE = {"u": "sources", "v": "targets", "e": "edges"}


class Unknown(Exception):
    """A message that is none of the known shapes; the text says by what."""


def _refuse(what: str) -> NoReturn:
    raise Unknown(what)


@dataclass(frozen=True)
class Pair:
    """``lhs op rhs`` of two targets."""

    op: str
    lhs: Lifted
    rhs: Lifted

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuses torch's functions: gspmm reduces what was combined as it is."""
        pair = next((arg for arg in args if isinstance(arg, Pair)), None)
        _refuse(f"calls {getattr(func, '__name__', func)} on {pair or 'two targets combined'}")

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"reads {name} of {self}")

    def __str__(self) -> str:
        return f"{RESULTS[self.op]} of {WHOSE[self.lhs.at]} and {WHOSE[self.rhs.at]}"

    def __neg__(self) -> Pair:
        return self._with("mul", -1, False)

    def __pow__(self, power: Any) -> NoReturn:
        _refuse(f"takes a power of {self}")

    def __matmul__(self, weight: Any) -> NoReturn:
        _refuse(f"maps {self}")

    def _with(self, op: str, other: Any, turned: bool) -> Pair:
        """``self op other``, or ``other op self``, of a number, which joins the operands.

        Raises:
            Unknown: no number, or one that the operands cannot take up.
        """
        if not isinstance(other, (int, float)):
            _refuse(f"combines {self} with more by {op}")
        lhs, rhs, scales = self.lhs, self.rhs, op in ("mul", "div")
        if scales and turned and op == "div":  # c / (a / b) = c b / a, c / (a b) = (c / a) / b
            if self.op == "div":
                return Pair("div", rhs.like(other * rhs.t), lhs)
            if self.op == "mul":
                return Pair("div", lhs.like(other / lhs.t), rhs)
        elif scales:
            by = OPS[op]
            return Pair(
                self.op, lhs.like(by(lhs.t, other)), rhs.like(by(rhs.t, other)) if self.op in ("add", "sub") else rhs
            )
        elif self.op in ("add", "sub"):
            if op == "sub" and turned:  # c - (a + b) = (c - a) - b, c - (a - b) = (c - a) + b
                return Pair("sub" if self.op == "add" else "add", lhs.like(other - lhs.t), rhs)
            return Pair(self.op, lhs.like(OPS[op](lhs.t, other)), rhs)
        _refuse(f"combines {self} with a number by {op}")


class Lifted:
    """Stands for ``t[index]``, where t are features of sources ("u"), of targets ("v") or of edges ("e").

    Args:
        at: whose features they are.
        t: [rows, ...].
        edges: how many rows the tensor has that this stands for.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, at: str, t: Tensor, edges: int) -> None:
        self.at, self.t, self.edges = at, t, edges

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Takes the place of torch's functions where an argument is a stand-in."""
        name = getattr(func, "__name__", str(func)).strip("_")
        kwargs, x = kwargs or {}, args[0]
        if name.startswith("r") and name[1:] in (*OPS, "truediv"):
            name, args = name[1:], args[::-1]
        if KNOWN.get(name, name) in OPS and len(args) == 2 and not kwargs:
            return combined(KNOWN.get(name, name), *args)
        others = [*args[1:], *kwargs.values()]
        if name in ("linear", "matmul"):
            known = isinstance(x, Lifted) and x.t.dim() > 1 and (name == "linear" or len(others) == 1)
            known = known and others[0].dim() == 2
            known = known and not any(isinstance(other, (Lifted, Pair)) for other in others)
        else:
            known = isinstance(x, Lifted) and not any(isinstance(other, (Lifted, Pair, Tensor)) for other in others)
        if not known or kwargs.get("inplace"):
            _refuse(f"calls {name}")
        if name in SHAPES:
            return x.shaped(name, *args[1:], **kwargs)
        if name not in BY_ROW:
            _refuse(f"calls {name}")
        return x.like(func(x.t, *args[1:], **kwargs))

    def like(self, t: Tensor) -> Lifted:
        """A stand-in for t of the same target.

        Raises:
            Unknown: t has other rows.
        """
        if not t.dim() or t.shape[0] != self.t.shape[0]:
            _refuse("changes the number of its rows")
        return Lifted(self.at, t, self.edges)

    def shaped(self, name: str, *sizes: Any, **kwargs: Any) -> Lifted:
        """The same elements in another shape, of as many rows."""
        if name in ("view", "reshape"):
            sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
            if not sizes or not isinstance(sizes[0], int) or sizes[0] not in (-1, self.edges):
                _refuse(f"calls {name} of other rows")
            sizes = (self.t.shape[0], *sizes[1:])
        elif kwargs or len(sizes) != 1 or sizes[0] in (0, -self.t.dim() - (name == "unsqueeze")):
            _refuse(f"calls {name} of its rows")
        return self.like(getattr(self.t, name)(*sizes))

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            func = getattr(Tensor, name)
            return lambda *args, **kwargs: Lifted.__torch_function__(func, (), (self, *args), kwargs)
        _refuse(f"reads {name}")

    @property
    def shape(self) -> torch.Size:
        """That of the tensor that this stands for."""
        return torch.Size((self.edges, *self.t.shape[1:]))

    def size(self, dim: int | None = None) -> Any:
        """As a tensor's."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """As a tensor's."""
        return self.t.dim()

    @property
    def dtype(self) -> torch.dtype:
        """As a tensor's."""
        return self.t.dtype

    @property
    def device(self) -> torch.device:
        """As a tensor's."""
        return self.t.device

    def __getitem__(self, key: Any) -> Lifted:
        keys = key if isinstance(key, tuple) else (key,)
        every = keys[0] is Ellipsis and all(k is None for k in keys[1:])
        if not every and not (isinstance(keys[0], slice) and keys[0] == slice(None)):
            _refuse("picks rows")
        if any(isinstance(k, (Lifted, Pair)) for k in keys):
            _refuse("picks by what belongs to edges")
        return self.like(self.t[key])

    def __neg__(self) -> Lifted:
        return self.like(-self.t)

    def __pow__(self, power: Any) -> Any:
        return Lifted.__torch_function__(Tensor.pow, (), (self, power))

    def __matmul__(self, weight: Any) -> Any:
        return Lifted.__torch_function__(Tensor.matmul, (), (self, weight))


def _unordered(self: Lifted, *_: Any) -> NoReturn:
    _refuse("compares or reads its numbers")


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "float", "int", "setitem", "array"):
    setattr(Lifted, f"__{_name}__", _unordered)
for _name, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(Lifted, f"__{_name}__", lambda a, b, op=_op: combined(op, a, b))
    setattr(Lifted, f"__r{_name}__", lambda a, b, op=_op: combined(op, b, a))
    setattr(Pair, f"__{_name}__", lambda a, b, op=_op: a._with(op, b, False))
    setattr(Pair, f"__r{_name}__", lambda a, b, op=_op: a._with(op, b, True))


def combined(op: str, a: Any, b: Any) -> Lifted | Pair:
    """``a op b``, of which at least one is a stand-in.

    Raises:
        Unknown: operands that are no stand-ins and no constants, or that broadcast along the rows.
    """
    if isinstance(a, Lifted) and isinstance(b, Lifted):
        if a.t.dim() != b.t.dim():
            _refuse("combines tensors of different numbers of axes")
        return a.like(OPS[op](a.t, b.t)) if a.at == b.at else Pair(op, a, b)
    one, other = (a, b) if isinstance(a, Lifted) else (b, a)
    if not isinstance(one, Lifted) or not isinstance(other, (int, float, Tensor)):
        _refuse(f"combines more than two targets by {op}")
    if isinstance(other, Tensor) and other.dim() >= one.t.dim() and (other.dim() > one.t.dim() or other.shape[0] != 1):
        _refuse("combines tensors of different rows")
    found: Tensor = OPS[op](*(x.t if x is one else x for x in (a, b)))
    return one.like(found)


def reduced(adj: CSR, message: Any, reduce: str) -> Tensor:
    """The reduction of messages to the rows of a matrix without values; 0 where there are none.

    Raises:
        Unknown: what no product, sum or extreme of ``gspmm`` computes.
    """
    if isinstance(message, Lifted):
        if message.at == "v":
            return _spread(adj, message.t, reduce)
        x, e = (message.t, None) if message.at == "u" else (None, message.t)
        return gspmm(adj, "copy_rhs" if x is None else "copy_lhs", reduce, x, e)
    if not isinstance(message, Pair):
        _refuse(f"returns {type(message).__name__}")
    op, lhs, rhs = message.op, message.lhs, message.rhs
    dtype = torch.promote_types(lhs.t.dtype, rhs.t.dtype)
    lhs, rhs = lhs.like(lhs.t.to(dtype)), rhs.like(rhs.t.to(dtype))
    if lhs.at == "v" or (lhs.at, rhs.at) == ("e", "u"):  # turned round: a - b = -b + a, a / b = (1 / b) a
        first = rhs.t if op in ("add", "mul") else -rhs.t if op == "sub" else 1 / rhs.t
        op, lhs, rhs = {"sub": "add", "div": "mul"}.get(op, op), rhs.like(first), lhs
    if rhs.at != "v":
        return gspmm(adj, op, reduce, lhs.t, rhs.t)
    if op in ("mul", "div"):  # of a row's own factor nothing is known that an extreme would keep
        if reduce not in ("sum", "mean"):
            _refuse(f"has a {reduce} of products with targets")
        return OPS[op](reduced(adj, lhs, reduce), rhs.t)
    return OPS[op](reduced(adj, lhs, reduce), _spread(adj, rhs.t, reduce))


def _spread(adj: CSR, t: Tensor, reduce: str) -> Tensor:
    """The reduction of each row's own number over its entries."""
    degree = adj.degree().reshape(-1, *[1] * (t.dim() - 1))
    if reduce != "sum":
        return torch.where(degree > 0, t, torch.zeros_like(t))
    return (t.to(sums_dtype(t)) * degree).to(t.dtype)
