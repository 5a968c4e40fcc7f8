"""Ranks of one process: each is a thread, and what they exchange is copied by indexing, so that cases take no time to
start. What torch.distributed itself does is for the tests with processes."""

import threading
from contextlib import nullcontext
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import fusedmm
from fusedmm.distributed import DistCSR
from fusedmm.distributed.halo import Grid, Ranks


class Board:
    """Where threads hang up what the others are to read."""

    def __init__(self, count: int) -> None:
        self.count, self.slots = count, [None] * count
        self.barrier = threading.Barrier(count, timeout=60)

    def all(self, rank: int, mine):
        self.slots[rank] = mine
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class Thread(Ranks):
    """A rank that is a thread."""

    def __init__(self, board: Board, rank: int) -> None:
        super().__init__()
        self.board, self.rank, self.count, self.bytes = board, rank, board.count, 0

    def gather(self, t):
        parts = self.board.all(self.rank, t)
        assert all(part.shape == t.shape and part.dtype == t.dtype for part in parts)
        return [part.clone() for part in parts]

    def first(self, t):
        return self.board.all(self.rank, t)[0].clone()

    def swap(self, rows, out, into):
        assert sum(out) == len(rows)
        self.bytes += rows.numel() * rows.element_size()
        parts = [theirs.split(counts)[self.rank] for theirs, counts in self.board.all(self.rank, (rows, out))]
        assert [len(part) for part in parts] == into and all(part.shape[1:] == rows.shape[1:] for part in parts)
        found = torch.cat(parts)
        self.barrier()
        return found

    def words(self, text):
        return self.board.all(self.rank, text)

    def barrier(self):
        self.board.barrier.wait()


def on_ranks(count: int, work, features: int = 1):
    """What ``work(ranks)`` returns on each rank of a mesh [count, features], as one list; the first error of one is
    raised here."""
    found, failed = [None] * count * features, []
    rows, columns = [Board(count) for _ in range(features)], [Board(features) for _ in range(count)]

    def go(rank: int) -> None:
        row, column = divmod(rank, features)
        ranks = Thread(rows[column], row)
        # torch has one thread for all backward passes on a GPU, in which ranks would wait for each other for ever.
        torch.autograd.set_multithreading_enabled(False)
        try:
            found[rank] = work(ranks if features == 1 else Grid(ranks, Thread(columns[row], column)))
        except BaseException as error:
            failed.append(error)
            for board in (*rows, *columns):
                board.barrier.abort()

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(count * features)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise min(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return found


class Whole:
    """A graph as one device has it, and how ranks share it: row and column offsets, and who lists which edges."""

    def __init__(self, row, col, shape, offsets, col_offsets=None, lists=None) -> None:
        self.row, self.col, self.shape = torch.as_tensor(row), torch.as_tensor(col), shape
        self.offsets = torch.tensor(offsets)
        self.col_offsets = self.offsets if col_offsets is None else torch.tensor(col_offsets)
        self.count, self.nnz = len(offsets) - 1, self.row.numel()
        self.lists = lists or [self.nnz * r // self.count for r in range(self.count + 1)]
        self.csr = fusedmm.CSR.from_coo(self.row, self.col, shape=shape)

    def part(self, ranks) -> DistCSR:
        mine = slice(self.lists[ranks.rank], self.lists[ranks.rank + 1])
        return DistCSR.from_edges(
            self.row[mine], self.col[mine], None, self.offsets, ranks, col_offsets=self.col_offsets
        )

    def cut(self, t, role: str, part: DistCSR):
        """A rank's part of what belongs to rows (r), columns (c) or edges (e)."""
        rank = part.ranks.rank
        if role == "e":
            return t[part.edge_ids]
        offsets = self.offsets if role == "r" else self.col_offsets
        return t[offsets[rank] : offsets[rank + 1]] if role in "rc" else t

    def join(self, parts, role: str, ids):
        """The ranks' parts as one tensor: those of all ranks (p) are added up."""
        if role == "p":
            return sum(parts)
        if role != "e":
            return torch.cat(parts)
        whole = parts[0].new_full((self.nnz, *parts[0].shape[1:]), torch.nan)
        for part, where in zip(parts, ids, strict=True):
            whole[where] = part
        return whole


known, drawn = threading.local(), torch.randint


def randint(*args, **kwargs):
    """torch.randint with a generator of this thread, on the CPU for all devices: torch's own is one for all."""
    device = kwargs.pop("device", None)
    return drawn(*args, **{"generator": getattr(known, "generator", None), **kwargs}).to(device or "cpu")


class Rounded(TorchDispatchMode):
    """What torch computes of float32 numbers, in double and rounded once.

    torch and its BLAS choose the loops of a dense product by the number of rows, on some processors even for wide ones,
    and those of a sigmoid or an exponential by the place of a number. So a rank's rows may have other last bits than
    the same rows of the whole matrix. In this mode they have not, and what differs is a fault of ours.
    """

    names = (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addmm_",
        "exp", "gelu", "gelu_backward", "sigmoid", "sigmoid_backward",
    )  # fmt: skip

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func).split(".")[1]
        if name not in self.names or args[0].dtype != torch.float32:
            return func(*args, **kwargs)
        if name == "addmm_":
            return args[0].copy_(torch.addmm(*args, **kwargs))
        return func(*tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) else t, args), **kwargs).float()


@mock.patch.object(torch, "randint", randint)
def both(
    whole: Whole,
    compute,
    given: dict[str, tuple],
    results: str = "r",
    second: bool = False,
    mode=nullcontext,
    features=1,
):
    """Runs ``compute(adj, **operands)`` on one device and on ranks, with all gradients.

    Args:
        whole: the graph.
        compute: returns a tensor, or as many as results has letters.
        given: each operand's role and the tensor; floating ones are differentiated.
        results: whom the results belong to.
        second: whether gradients are differentiated too.
        mode: makes what all of it runs in, such as ``Rounded``.
        features: the size of the mesh's axis of that name, whose ranks have to find the same.

    Returns:
        Pairs of (name, role, one device's tensor, the ranks'), the results first.
    """
    roles = {name: role for name, (role, _) in given.items()}
    torch.manual_seed(3)
    upstream: list = []
    probes: dict = {}

    def go(adj, operands, cut):
        leaves = {n: t.clone().requires_grad_() for n, t in operands.items()}
        known.generator = torch.Generator().manual_seed(7)
        out = compute(adj, **leaves)
        out = out if isinstance(out, tuple) else (out,)
        if not upstream:
            upstream.extend(torch.randn(t.shape, dtype=t.dtype, device=t.device) for t in out)
        loss = sum((t * cut(g, role)).sum() for t, g, role in zip(out, upstream, results, strict=True))
        grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=second, allow_unused=True)
        found = [t.detach() for t in out]
        found += [torch.zeros_like(x) if g is None else g.detach() for g, x in zip(grads, leaves.values(), strict=True)]
        if second:
            if not probes:
                probes.update({n: torch.randn(t.shape, dtype=t.dtype, device=t.device) for n, t in operands.items()})
            pairs = [(n, g) for n, g in zip(leaves, grads, strict=True) if g is not None and g.requires_grad]
            loss = sum((g * cut(probes[n], roles[n])).sum() for n, g in pairs)
            again = (
                torch.autograd.grad(loss, list(leaves.values()), allow_unused=True) if pairs else [None] * len(leaves)
            )
            found += [torch.zeros_like(x) if g is None else g for g, x in zip(again, leaves.values(), strict=True)]
        return found

    with mode():
        one = go(whole.csr, {n: t for n, (_, t) in given.items()}, lambda t, role: t)

    def work(ranks):
        part = whole.part(ranks)

        def cut(t, role):
            return whole.cut(t, role, part)

        with mode():
            return part.edge_ids, go(part, {n: cut(t, role) for n, (role, t) in given.items()}, cut)

    found = on_ranks(whole.count, work, features)
    for k, (_, tensors) in enumerate(found):
        assert all(map(torch.equal, tensors, found[k // features * features][1])), "ranks of one row differ"
    found = found[::features]
    ids = [where for where, _ in found]
    names = [f"result {k}" for k in range(len(results))] + [f"gradient of {n}" for n in given]
    places = list(results) + list(roles.values())
    if second:
        names, places = names + [f"second gradient of {n}" for n in given], places + list(roles.values())
    return [
        (name, role, expected, whole.join([parts[k] for _, parts in found], role, ids))
        for k, (name, role, expected) in enumerate(zip(names, places, one, strict=True))
    ]


def require_equal(pairs) -> None:
    """Requires the same bits, and of what all ranks add to the same up to rounding."""
    wrong = []
    for name, role, one, many in pairs:
        if role == "p":
            scale = float(one.abs().max()) if one.numel() else 0.0
            near = torch.allclose(one, many, rtol=1e-4, atol=1e-5 * max(scale, 1.0))
            wrong += [] if near else [f"{name}: {float((one - many).abs().max())} apart"]
        elif not torch.equal(one, many):
            wrong.append(f"{name}: {int((one != many).sum())} of {one.numel()} differ")
    assert not wrong, "; ".join(wrong)


def require_near(pairs) -> None:
    """Requires the same numbers up to rounding, of what is summed in another order."""
    for name, _, one, many in pairs:
        largest = float(one.abs().max()) if one.numel() else 0.0
        assert torch.allclose(one, many, rtol=1e-4, atol=1e-5 * (largest + 1)), name
