"""How the library's operators run on a matrix of which each rank has a part.

An operator of the library is called with the four tensors of a half: ptr, idx, eid and plan. The plan of a ``DistCSR``
is a tensor of a class of its own, and torch hands a call with such an argument to that class (``__torch_function__``),
whoever made the call. So everything above the library is the same as on one device: the checks, the formulas of all
gradients, the layers; and a call with a plain plan costs nothing more.

``ROLES`` says what each operand of an operator is indexed by. Operands of the half's columns gain the rows of remote
columns, and operands of edges come to the rank that has the entries; then the library's own kernel runs, on complete
rows. Its results belong to rows, which their rank owns, or to edges, which go back to their owners.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedmm._lib import ops
from fusedmm._torch_compat import argument_names, as_plain_tensors
from fusedmm.distributed.exchange import Exchange
from fusedmm.distributed.halo import Ranks
from fusedmm.distributed.inner import outer_of, run_inner
from fusedmm.distributed.part import Home, Part
from fusedmm.distributed.run import has_seed, is_there, pieces_of, run, run_in_pieces
from fusedmm.distributed.slices import cut_of
from fusedmm.distributed.split import may_split, run_split
from fusedmm.matrix.structure import outside
from fusedmm.ops.extreme import COLS, EDGES

UNCOMPILED = "fusedmm: what ranks say to each other is no part of a compiled graph"


class Plan(torch.Tensor):
    """The plan of one half of a ``DistCSR``: a plan of its rows, and what travels before they are walked."""

    part: Part

    @staticmethod
    def of(part: Part) -> Plan:
        """The plan of a part's rows together with what it has to do with other ranks."""
        made = part.plan.as_subclass(Plan)
        made.part = part
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", None) == "fusedmm":
            return call(func, args)
        with as_plain_tensors():
            return func(*args, **(kwargs or {}))


# What tells no column's number: attributes, and what torch.compile asks of every tensor before it calls an operator.
TOLD = (
    "__get__", "numel", "dim", "size", "stride", "storage_offset", "untyped_storage", "_is_view", "is_conj", "is_neg",
)  # fmt: skip


class Columns(torch.Tensor):
    """The idx of one half of a ``DistCSR`` of several ranks, which none but the library's operators may read.

    What else takes a ``CSR`` knows nothing of a rank's own numbers: it gets an error, and no wrong columns.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", None) == "fusedmm":
            return call(func, args)
        if func.__name__ not in TOLD:
            raise TypeError(
                "a DistCSR of several ranks does not support what reads its columns, such as to_dense, coo and other "
                "formats: they are a rank's own numbers; edges() has the global ones"
            )
        with as_plain_tensors():
            return func(*args, **(kwargs or {}))


class PartPlan(torch.Tensor):
    """The plan of some rows of a matrix, whose long rows are cut as those of the whole are.

    A call of the library's with such a plan gains the arguments that say how many rows and entries the whole has. An
    operator without these arguments gets no plan, and makes its own if it needs one.
    """

    whole: dict[str, int]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = dict(kwargs or {})
        with as_plain_tensors():
            if getattr(func, "namespace", None) == "fusedmm":
                plan, names = next(t for t in args if type(t) is cls), _names(func.overloadpacket)
                told |= {name: number for name, number in plan.whole.items() if name in names}
                if "whole_nnz" not in names:
                    args = [t[:0] if type(t) is cls else t for t in args]
            return func(*args, **told)


_names = functools.cache(argument_names)


def plan_of_part(ptr: Tensor, idx: Tensor, rows: int, entries: int) -> PartPlan:
    """The plan of some rows of a matrix of so many rows and entries."""
    made: PartPlan = ops._plan(ptr, idx, entries).as_subclass(PartPlan)
    made.whole = {"whole_rows": rows, "whole_nnz": entries}
    return made


# Of each operator: what its operands behind the half belong to, and what its results do. r: rows of the half; c: its
# columns; b: both; e: edges; k: edges, in two dimensions or absent; s: the seed of dropout; -: nobody, so that all
# ranks have it; x: it is left away.
ROLES = {
    ops._spmm.default: ("ec", "r"),
    ops._spmv.default: ("e-cr", "r"),
    ops._sddmm.default: ("erc", "e"),
    ops._attention.default: ("rcc-ees", "rrrrr"),
    ops._attention_weights.default: ("rcc-eesrr", "e"),
    ops._attention_rows.default: ("rcc-eesrrrr", "r-ee"),
    ops._attention_cols.default: ("crr-eesccccx", "rr"),
    ops._row_softmax.default: ("e", "e"),
    ops._row_softmax_back.default: ("ee", "e"),
    ops._fused.default: ("ercc", "r"),
    ops._fused_rows.default: ("erccr", "ree"),
    ops._fused_cols.default: ("ecrrck", "rr"),
}
EXTREME = {COLS: ("eerc-c", "r"), EDGES: ("eecrcr", "e")}  # by the form; the others are as below
EXTREME_ROWS = ("eecrcr", "r")


# Which number says which results are wanted, a bit for each; of operators with several results, some of edges.
WANTED = {ops._attention_rows.default: -2, ops._fused_rows.default: -3}


def _complete(func: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments and the numbers that were left out, which are 0, but for those of the whole matrix, which plans
    add."""
    names = [name for name in _names(func.overloadpacket) if not name.startswith("whole")]
    return [*args, *[0] * (len(names) - len(args))]


def call(func: Any, args: Sequence[Any]) -> Any:
    """Runs an operator of the library on a half of a part; all ranks call it together.

    Raises:
        TypeError: an operator that knows nothing of parts.
        ValueError: the ranks disagree.
        RuntimeError: a rank is lost.
    """
    part = next((t.part for t in args if type(t) is Plan), None)
    if part is None:
        raise _refused(func)
    ranks = part.home.ranks
    if part.home.is_plain or (ranks.count == 1 and ranks.columns.count == 1 and not has_seed(func, args)):
        return func(*(t.part.plan if type(t) is Plan else t for t in args))
    if torch.compiler.is_compiling():
        return outside(UNCOMPILED, call, func, args)
    if func in WHOLE:
        return WHOLE[func](*args)
    name = str(func).split(".")[1]
    if func is ops._extreme.default:
        operands, results = EXTREME.get(args[-1], EXTREME_ROWS)
    elif func in ROLES:
        operands, results = ROLES[func]
    else:
        raise _refused(func)
    given = _complete(func, args)
    given[1], given[3] = part.idx, part.plan
    _agree(part, name, given, operands)
    wanted = given[WANTED[func]] if func in WANTED else -1
    axis = ranks.columns
    if axis.count == 1:
        if may_split(part, func, given):
            return run_split(part, given)
        pieces, outer = pieces_of(part, func, given), outer_of(part, func, given)
        if outer is not None:
            return run_inner(part, given, outer, pieces)
        if pieces is None:
            return run(part, func, given, operands, results, wanted)
        return run_in_pieces(part, given, pieces)
    cut = cut_of(func, given, axis.count)
    if cut is None:
        return run(part, func, given, operands, results, wanted)
    found = run(part, func, cut.take(given, axis.rank), operands, results, wanted)
    return cut.join(list(zip(*(axis.gather(t) for t in cut.keep(found, axis.rank)), strict=True)))


def _refused(func: Any) -> TypeError:
    name = str(func).split(".")[1].strip("_").removesuffix("_symbolic")
    return TypeError(f"{name} does not take a DistCSR of several ranks")


def _agree(part: Part, name: str, given: Sequence[Any], operands: str) -> None:
    tensors = tuple(
        (role if is_there(role, t) else "-", t.shape[1:], t.dtype) for role, t in zip(operands, given[4:], strict=False)
    )
    numbers = tuple(n for n in given[4 + len(operands) :] if not isinstance(n, Tensor))
    home = part.home
    key = name, part.transposed, part.split, home.total, tensors, numbers
    home.ranks.agree(key, functools.partial(_described, key, home.rows, home.cols))


def _described(key: tuple[Any, ...], rows: Tensor, cols: Tensor) -> str:
    """A call in words. Ranks keep these arguments until the next call, so operands are not among them."""
    name, transposed, split, total, tensors, numbers = key
    shapes = ", ".join(
        f"{str(dtype)[6:]}[{'edges' if role in 'ek' else 'n'}{''.join(f', {n}' for n in shape)}]"
        for role, shape, dtype in tensors
        if role in "rcebk"
    )
    side = ("the transpose of " if transposed else "") + ("the split of " if split else "")
    matrix = f"{int(rows[-1])} x {int(cols[-1])} with {total} edges"
    return f"{name.strip('_')} on {side}a matrix of {matrix}, {shapes}, options {list(numbers)}"


def begin_early(plan: Any, name: str, *operands: Tensor) -> None:
    """Starts to bring rows of operands of the half's columns, which a call of the library is given later. What is
    computed in between comes under their way. Ranks have to agree on that beforehand too."""
    part: Part = plan.part
    if part.home.ranks.columns.count == 1:  # else a call is given slices of them
        _agree(part, name, [None] * 4 + [*operands], "c" * len(operands))
        part.cols.begin_early(operands)


# ---- what the library does in one call on one device, and here in several ----


def mirrored(ptr: Tensor, idx: Tensor, eid: Tensor, plan: Plan, *rest: Any) -> Tensor:
    """``_fused_mirrored``: x and g are of rows and of columns at once, so that remote nodes become rows without
    entries. Both kinds of values are in the order of the half's entries."""
    val, x, y, z, g, val_t, *numbers = rest
    part = plan.part
    _agree(part, "_fused_mirrored", [ptr, idx, eid, plan, *rest], "ebbbb")
    wide, up = part.cols.fetch([x, g])
    ptr, idx = torch.cat([ptr, ptr[-1:].expand(wide.shape[0] - x.shape[0])]), part.idx
    found: Tensor = ops._fused_mirrored.default(
        ptr, idx, eid, ops._plan(ptr, idx), val, wide, y, z, up, val_t, *numbers
    )
    return found[: x.shape[0]].clone()


def normalize(ptr: Tensor, idx: Tensor, eid: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """``_normalize``: 1 / sqrt(degree of i * degree of j), in the caller's order and in that of the entries."""
    degree = (ptr[1:] - ptr[:-1])[:, None].to(torch.float32)
    scale = degree.rsqrt().masked_fill_(degree == 0, 0)
    none = ptr.new_empty(0, dtype=torch.uint8)
    val = ops._sddmm.default(ptr, idx, eid, plan, none, scale, scale, 0, 0)
    return val, val.index_select(0, eid) if eid.numel() else val


WHOLE: dict[Any, Any] = {ops._fused_mirrored.default: mirrored, ops._normalize.default: normalize}


class _Route(torch.autograd.Function):
    """Data of edges on their way to the owners, and gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, attr: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.fetch([attr])[0].clone() if exchange.ranks.count == 1 else exchange.fetch([attr])[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, _RouteBack.apply(ctx.exchange, g)


class _RouteBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, g: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.give_back(g)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, _Route.apply(ctx.exchange, g)


def route(home: Home, attr: Tensor) -> Tensor:
    """``DistCSR.route``."""
    if home.route is None:
        raise ValueError("route: this matrix was not made of listed edges; its edge data lie with their rows")
    listed = sum(home.route.out)

    def check() -> None:
        if not isinstance(attr, Tensor):
            raise TypeError(f"route: attr must be a tensor, not {type(attr).__name__}")
        if not attr.dim() or attr.shape[0] != listed:
            raise ValueError(f"route: attr must have a row for each of {listed} edges, not {list(attr.shape)}")

    home.ranks.together(check)
    what = f"route of {attr.dtype}{list(attr.shape[1:])}"
    home.ranks.agree(what, lambda: what)
    found: Tensor = _Route.apply(home.route, attr)
    return found


class _Largest(torch.autograd.Function):
    """The largest of all ranks' numbers; equal ones share its gradient, which is the sum of the ranks'."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, t: Tensor) -> Tensor:
        none = t.new_tensor(float("-inf") if t.is_floating_point() else torch.iinfo(t.dtype).min)
        most = torch.stack(ranks.gather(t.max() if t.numel() else none)).max()
        here = t == most
        count = ranks.sum(here.sum())
        ctx.ranks, ctx.count = ranks, count
        ctx.save_for_backward(here)
        return most if count else torch.zeros_like(most)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (here,) = ctx.saved_tensors
        return None, here * (ctx.ranks.sum(g) / ctx.count.clamp(min=1))


def largest(ranks: Ranks, t: Tensor) -> Tensor:
    """The largest of all ranks' numbers, 0 where no rank has one."""
    found: Tensor = _Largest.apply(ranks, t)
    return found
