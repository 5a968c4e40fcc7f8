"""All that ranks say to each other: the one file that communicates.

A rank asks others for rows of their operands, and gets them in an order that was agreed once (``Exchange``). Nothing
else travels while operators run: gradients are pulled in the same way, over the transposed matrix, so that nobody adds
to what another rank owns and every sum has the order that it has on one device.

Before ranks do something of its kind for the first time they agree on it (``Ranks.agree``), since two ranks that ask
for rows of different widths would wait for each other. A rank that dies or stays away ends the others at the timeout of
their process group, with an error that names it.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fusedmm._torch_compat import default_store, timeout_of
from fusedmm.distributed.copies import LEAST, MOST, Copies, host_number
from fusedmm.distributed.watch import Watch

T = TypeVar("T")

CHECK = "FUSEDMM_DISTRIBUTED_CHECK"  # 1 has the ranks agree on every call, which costs a message each
TEXT = 1024  # bytes of what ranks agree on; longer texts are cut
MESSAGE = 2**28  # bytes from one rank to another in one message of gloo, which fails on much larger ones
KINDS = (FileNotFoundError, OSError, TypeError, ValueError)  # errors of one rank that all ranks raise
GRACE, LOOK = 5.0, 0.1  # seconds that ranks wait for all last words once something failed, and at least for each
WORDS = "fusedmm/last words"  # where a rank's are, by its number


class Ranks:
    """Ranks that share the rows of matrices. This class is a single rank, which talks to nobody."""

    rank, count = 0, 1
    pieces: tuple[int, ...] = ()  # shares of a product's columns that travel by themselves; the rule's where absent

    def __init__(self) -> None:
        self.calls = 0
        self.doing: Callable[[], str] = lambda: "nothing yet"
        self.agreed: dict[Any, int] = {}  # a digest of each kind of call
        self.trail = 0  # a digest of all calls so far
        self.always = os.environ.get(CHECK) == "1"

    @property
    def columns(self) -> Ranks:
        """The ranks that have the same rows, each of which computes a slice of the channels or heads."""
        return ALONE

    # ---- what a transport gives ----

    def gather(self, t: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which are of one shape and dtype, in the order of the ranks."""
        return [t]

    def first(self, t: Tensor) -> Tensor:
        """Rank 0's tensor; the others give one of the same shape and dtype."""
        return t

    def swap(self, rows: Tensor, out: list[int], into: list[int]) -> Tensor:
        """Sends out[r] rows to each rank r, in order, and returns the into[r] rows from each, in order."""
        return rows

    def start(
        self, rows: Tensor, out: list[int], into: list[int], found: Tensor, theirs: Sequence[int] = (), most: int = 0
    ) -> Callable[[], None]:
        """Starts a ``swap`` whose rows come into ``found``, and returns what waits for them. All ranks may know where
        those that come begin among what their rank sends, and how many rows a rank sends at most."""
        found.copy_(self.swap(rows, out, into))
        return lambda: None

    def room(self, like: Tensor, rows: int, most: int) -> Tensor:
        """Memory for so many rows of bytes, as wide as like's, that the next ``start`` is given; a rank sends ``most``
        of them at most."""
        return like.new_empty(rows, like.shape[1])

    @property
    def message(self) -> int:
        """How many bytes may go from one rank to another in one message."""
        return MESSAGE

    def words(self, text: str) -> list[str]:
        """The texts of all ranks; it goes another way than rows, so that it is heard where ranks disagree."""
        return [text]

    # ---- what follows from it ----

    def agree(self, key: Any, describe: Callable[[], str]) -> None:
        """Makes sure that all ranks do the same, the first time that something of this key is done.

        Raises:
            ValueError: they do not; the text names what two ranks do.
        """
        self.calls += 1
        self.doing = describe
        if key not in self.agreed or self.always:
            text = describe()
            self.same(text)
            self.agreed[key] = zlib.crc32(text.encode())
        self.trail = (31 * self.trail + self.agreed[key]) % 2**61

    def same(self, text: str) -> None:
        """Raises a ValueError on all ranks if one of them has another text."""
        texts = self.words(text[:TEXT])
        for rank, other in enumerate(texts):
            if other != texts[0]:
                raise ValueError(f"ranks disagree at call {self.calls}: rank 0 has {texts[0]}; rank {rank} has {other}")

    def count_of(self, mine: Tensor) -> int:
        """The sum of the ranks' counts. A digest of each rank's calls travels with its count. It raises a ValueError if
        ranks called different operators before whose messages had equal sizes, which nothing else would notice."""
        found = torch.stack(self.gather(torch.stack([mine, mine.new_tensor(self.trail)]))).tolist()
        if any(trail != found[0][1] for _, trail in found):
            self.same(f"as its last call {self.doing()}")
            raise ValueError(f"ranks disagree: one of {self.calls} calls was not the same; {CHECK}=1 finds which")
        return sum(int(count) for count, _ in found)

    def together(self, compute: Callable[[], T]) -> T:
        """What ``compute`` returns; where it raises on one rank, all of them raise, and none waits for the others.

        Raises:
            OSError, TypeError, ValueError: that of the first rank that failed, with its number.
        """
        failure, made = "", None
        try:
            made = compute()
        except (OSError, TypeError, ValueError) as error:
            if self.count * self.columns.count == 1:
                raise
            kind = next(kind for kind in KINDS if isinstance(error, kind))
            failure = f"{kind.__name__}: {error}"
        for rank, text in enumerate(self.words(failure[:TEXT])):
            if text:
                name, _, rest = text.partition(": ")
                raise next(kind for kind in KINDS if kind.__name__ == name)(f"rank {rank}: {rest}")
        return made  # type: ignore[return-value]

    def gather_ragged(self, t: Tensor) -> Tensor:
        """The tensors [n, ...] of all ranks end to end; n may differ."""
        counts = [int(n) for n in self.gather(torch.tensor([t.shape[0]], device=t.device))]
        if self.count == 1:
            return t
        padded = t.new_zeros(max(counts), *t.shape[1:])
        padded[: t.shape[0]] = t
        return torch.cat([part[:n] for part, n in zip(self.gather(padded), counts, strict=True)])

    def sum(self, t: Tensor) -> Tensor:
        """The sum of all ranks' tensors, added in the order of the ranks."""
        first, *others = self.gather(t)
        total = first.clone()
        for other in others:
            total += other
        return total


class Group(Ranks):
    """The ranks of a process group of torch.distributed."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        from torch import distributed as dist

        self.group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.members = dist.get_process_group_ranks(group)
        self.aside = group  # where words go: over gloo, since NCCL knows tensors on a GPU alone
        self.limit: timedelta | None = None
        if dist.get_backend(group) != "gloo":
            self.limit = timeout_of(group)
            self.aside = dist.new_group(self.members, self.limit, "gloo", use_local_synchronization=True)
        self.copies: Copies | None = None
        self.is_near = self.limit is not None and len(set(self.words(host_number()))) == 1

    def gather(self, t: Tensor) -> list[Tensor]:
        from torch import distributed as dist

        t = t.contiguous()
        found = [torch.empty_like(t) for _ in range(self.count)]
        self._call(lambda: dist.all_gather(found, t, group=self._of(t)), t.is_cuda)
        return found

    def first(self, t: Tensor) -> Tensor:
        from torch import distributed as dist

        found = t.clone(memory_format=torch.contiguous_format)
        self._call(lambda: dist.broadcast(found, self.members[0], group=self._of(t)), t.is_cuda)
        return found

    def swap(self, rows: Tensor, out: list[int], into: list[int]) -> Tensor:
        found = rows.new_empty(sum(into), *rows.shape[1:])
        self.start(rows, out, into, found)()
        return found

    def start(
        self, rows: Tensor, out: list[int], into: list[int], found: Tensor, theirs: Sequence[int] = (), most: int = 0
    ) -> Callable[[], None]:
        """NCCL's messages go on a stream of their own, which waits for what the current one has been given so far, and
        so do copies by engines, which take the place of large ones between GPUs of a host."""
        from torch import distributed as dist

        sent = rows.contiguous()
        copies = self._copies(most * sent.shape[1], sent) if theirs else None
        if copies is not None:
            wait = self._call(lambda: copies.start(sent, into, found, theirs))
        else:
            work = self._call(lambda: dist.all_to_all_single(found, sent, into, out, group=self.group, async_op=True))
            wait = work.wait
        return lambda: self._call(wait, rows.is_cuda)

    def room(self, like: Tensor, rows: int, most: int) -> Tensor:
        """Where copy engines take them from, if they do."""
        copies = self._copies(most * like.shape[1], like)
        return super().room(like, rows, most) if copies is None else copies.slot(rows, like.shape[1])

    def _copies(self, size: int, sent: Tensor) -> Copies | None:
        """What copies a message of so many bytes between GPUs, if it is large and they reach each other's memory."""
        if not self.is_near or not LEAST <= size <= MOST or torch.cuda.is_current_stream_capturing():
            return None
        if self.copies is None or self.copies.size < size:
            torch.cuda.synchronize()  # all ranks have, once new slots are made: nobody reads the old ones any more
            made, failed = None, ""
            try:
                made = Copies(self.group, size, sent.device)
            except (ImportError, AttributeError, RuntimeError) as error:
                failed = type(error).__name__
            self.is_near = not any(self.words(failed))
            self.copies = made if self.is_near else None
        return self.copies

    @property
    def message(self) -> int:
        return MESSAGE if self.aside is self.group else 2**62

    def words(self, text: str) -> list[str]:
        from torch import distributed as dist

        mine = torch.zeros(TEXT, dtype=torch.uint8, device="cpu")
        coded = text.encode(errors="replace")[:TEXT]
        mine[: len(coded)] = torch.tensor(list(coded), dtype=torch.uint8, device="cpu")
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._call(lambda: dist.all_gather(found, mine, group=self.aside))
        return [bytes(t.tolist()).rstrip(b"\0").decode(errors="replace") for t in found]

    def _of(self, t: Tensor) -> Any:
        return self.group if t.is_cuda else self.aside

    def _call(self, collective: Callable[[], Any], watched: bool = False) -> Any:
        """Runs a collective; where it fails, the error says what every rank did and which do not answer.

        One over NCCL ends on the GPU, where it cannot raise: it is ``watched``.

        Raises:
            RuntimeError: a rank died, stayed away until the timeout, or waits for something else.
        """
        try:
            found = collective()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"{self.last_words(default_store(), self.members)} (torch.distributed: {error})"
            ) from error
        if watched and self.limit is not None and not torch.cuda.is_current_stream_capturing():
            end = torch.cuda.Event()
            end.record()
            _watch().begin(self.limit.total_seconds(), end.query, self.members, self.last_words)
        return found

    def last_words(self, store: Any, members: list[int]) -> str:
        """What ranks did when a collective failed, as far as they still answer, and who is to blame.

        Each rank leaves word of what it did, and of the ranks that it waited for. These are asked in turn: of the ranks
        of a mesh, one may wait for another that waits for a dead one, with which the first has nothing to do.
        """
        me = self.members[self.rank]
        known, silent, calls = [], [], {}
        until = time.monotonic() + GRACE
        try:
            store.set(f"{WORDS}/{me}", f"{','.join(map(str, self.members))} {self.calls}, {self.doing()}")
        except RuntimeError:
            own = f"rank {me} lost the others at call {self.calls}, {self.doing()}"
            return f"{own}: what holds their store is gone (rank 0, unless torchrun)"
        asked = [*members]
        for member in asked:
            key = f"{WORDS}/{member}"
            try:
                store.wait([key], timedelta(seconds=max(until - time.monotonic(), LOOK)))
                others, _, did = store.get(key).decode(errors="replace").partition(" ")
            except RuntimeError:
                silent.append(member)
                continue
            known.append(f"rank {member} was at call {did}")
            calls[member] = int(did.partition(",")[0])
            asked += sorted({*map(int, others.split(","))} - {*asked})
        lost = [f"rank {rank} does not answer" for rank in silent]
        # Who waits may be ahead of the late one by several calls, since it waits for those alone whose rows it needs.
        first, last = min(calls.values(), default=0), max(calls.values(), default=0)
        late = [f"rank {rank} is late" for rank, number in calls.items() if number == first < last]
        return "; ".join([*(lost or late or ["the ranks waited for different things"]), *known])


class Grid(Ranks):
    """Ranks of a mesh with two axes: those of one row of it share rows, as others do, and have ``columns`` beside.

    Ranks that differ in columns alone have the same matrix and operands. What one of them is given by chance, such as a
    seed, all of them take from the first one.
    """

    def __init__(self, rows: Ranks, columns: Ranks) -> None:
        super().__init__()
        self.rows, self.beside = rows, columns
        self.rank, self.count = rows.rank, rows.count

    @property
    def columns(self) -> Ranks:
        return self.beside

    def agree(self, key: Any, describe: Callable[[], str]) -> None:
        for each in (self.rows, self.beside):  # whose last words tell of it
            each.calls, each.doing = self.calls + 1, describe
        super().agree(key, describe)

    def gather(self, t: Tensor) -> list[Tensor]:
        return self.rows.gather(t)

    def first(self, t: Tensor) -> Tensor:
        return self.beside.first(self.rows.first(t))

    def swap(self, rows: Tensor, out: list[int], into: list[int]) -> Tensor:
        return self.rows.swap(rows, out, into)

    def start(
        self, rows: Tensor, out: list[int], into: list[int], found: Tensor, theirs: Sequence[int] = (), most: int = 0
    ) -> Callable[[], None]:
        return self.rows.start(rows, out, into, found, theirs, most)

    def room(self, like: Tensor, rows: int, most: int) -> Tensor:
        return self.rows.room(like, rows, most)

    @property
    def message(self) -> int:
        return self.rows.message

    def words(self, text: str) -> list[str]:
        """The texts of all ranks of the mesh, in its order."""
        return [other for each in self.rows.words(text) for other in self.beside.words(each)]


@cache
def _watch() -> Watch:
    """What looks after this process's collectives over NCCL."""
    return Watch(default_store().clone())


_groups: dict[Any, Group] = {}
_grids: dict[tuple[Group, Group], Grid] = {}
ALONE = Ranks()


def ranks_of(mesh: Any) -> Ranks:
    """The ranks that share rows on a mesh: those of its dimension "rows", or of its first; None is one rank. Those of
    its dimension "features" are the ``columns`` of them.

    Raises:
        TypeError: no mesh.
        ValueError: a mesh whose dimensions of other names have more than one rank.
    """
    if mesh is None:
        return ALONE
    if isinstance(mesh, Ranks):
        return mesh
    if not hasattr(mesh, "get_group") or not hasattr(mesh, "mesh_dim_names"):
        raise TypeError(f"mesh must be a torch.distributed DeviceMesh or None, not {type(mesh).__name__}")
    names = mesh.mesh_dim_names or ()
    axis = names.index("rows") if "rows" in names else 0
    beside = names.index("features") if "features" in names else axis
    for k in range(mesh.ndim):
        if k not in (axis, beside) and mesh.size(k) > 1:
            what = names[k] if names else k
            raise ValueError(f"mesh dimension {what!r} has {mesh.size(k)} ranks; take 'rows' and 'features' alone")
    rows = _group_of(mesh, axis)
    if beside == axis or mesh.size(beside) == 1:
        return rows
    columns = _group_of(mesh, beside)
    return _grids.setdefault((rows, columns), Grid(rows, columns))


def _group_of(mesh: Any, axis: int) -> Group:
    group = mesh.get_group(axis)
    if group not in _groups:
        _groups[group] = Group(group)
    return _groups[group]
