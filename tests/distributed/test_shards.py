"""Shards: written in any pieces they are the matrix that CSR makes, at any number of ranks; damaged ones are named."""

import hashlib
import json
import os
import re
import resource
import shutil
import tracemalloc
import warnings
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import ROOT, real_graph

from fusedmm import CSR, data
from fusedmm.distributed import Shards, ShardWriter, partition


def graph(rows, cols, n, seed=0):
    """(row, col): unsorted, repeated, most of them in few rows; the last row has a tenth of all, some have none."""
    rng = np.random.default_rng(seed)
    row, col = (rows * rng.random(n) ** 3).astype(int), (cols * rng.random(n) ** 2).astype(int)
    row[: n // 10] = rows - 1
    return torch.from_numpy(row), torch.from_numpy(col)


def write(folder, row, col, val=None, shape=(30, 20), offsets=(0, 7, 7, 21, 30), piece=None, **nodes):
    with ShardWriter(folder, *shape, list(offsets)) as writer:
        for at in range(0, max(len(row), 1), piece or max(len(row), 1)):
            own = slice(at, at + (piece or len(row)))
            writer.add_edges(row[own], col[own], None if val is None else val[own])
        for name, array in nodes.items():
            for part in array.split(piece or max(len(array), 1)):
                writer.add_nodes(**{name: part})
    return folder


def require_whole(shards, adj, ranks, nodes=None):
    """The ranks' rows laid end to end are the matrix, bit by bit, and so are the arrays of nodes."""
    locals_ = [shards.local(rank, ranks) for rank in range(ranks)]
    eid = adj.eid.long() if adj.eid.numel() else torch.arange(adj.nnz)
    ends = torch.tensor([0, *(local.ptr[-1] for local in locals_)]).cumsum(0)
    for rank, local in enumerate(locals_):
        first, last = local.offsets[rank : rank + 2].tolist()
        assert local.ptr.dtype == local.idx.dtype == local.edge_ids.dtype == local.offsets.dtype == torch.int64
        assert torch.equal(local.ptr + ends[rank], adj.ptr[first : last + 1])
        for name, array in (nodes or {}).items():
            assert torch.equal(local.nodes[name], array[first:last]) and local.nodes[name].dtype == array.dtype
    assert locals_[0].offsets[-1] == adj.shape[0] and len(locals_[0].offsets) == ranks + 1
    assert torch.equal(torch.cat([local.idx for local in locals_]), adj.idx.long())
    assert torch.equal(torch.cat([local.edge_ids for local in locals_]), eid)
    if adj.val is None:
        assert all(local.val is None for local in locals_)
    else:
        assert torch.equal(torch.cat([local.val for local in locals_]), adj.val[eid])


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 59, 199, 200, 1000])
@pytest.mark.parametrize("val", [None, torch.float16, torch.float32, torch.float64, "heads"], ids=str)
def test_any_pieces_give_the_matrix(tmp_path, piece, val):
    row, col = graph(30, 20, 200)
    val = torch.rand(200, 3) if val == "heads" else None if val is None else torch.rand(200).to(val)
    nodes = {"x": torch.rand(30, 4), "y": torch.arange(30), "train": torch.rand(30) < 0.5}
    shards = Shards(write(tmp_path / "g", row, col, val, piece=piece, **nodes))
    adj = CSR.from_edge_index(torch.stack([col, row]), val, (20, 30))
    assert shards.shape == (30, 20) and shards.nnz == 200 and shards.offsets.tolist() == [0, 7, 7, 21, 30]
    assert repr(shards) == "Shards(shape=(30, 20), nnz=200, parts=4, nodes=['x', 'y', 'train'])"
    for ranks in (1, 2, 3, 4):
        require_whole(shards, adj, ranks, nodes)
    assert not list((tmp_path / "g").glob("*tmp*"))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 12),
    cols=st.integers(1, 12),
    n=st.integers(0, 40),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    pieces=st.lists(st.integers(0, 15), max_size=6),
    valued=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_matrix_cut_anywhere(tmp_path_factory, rows, cols, n, cuts, pieces, valued, seed):
    row, col = graph(rows, cols, n, seed)
    val = torch.rand(n) if valued else None
    offsets = [0, *sorted(min(at, rows) for at in cuts), rows]
    bounds = [0, *(min(int(end), n) for end in np.cumsum(pieces)), n]
    folder = tmp_path_factory.mktemp("shards")
    with ShardWriter(folder, rows, cols, torch.tensor(offsets)) as writer:
        for first, last in pairwise(bounds):
            writer.add_edges(row[first:last], col[first:last], val[first:last] if valued else None)
            writer.add_nodes(y=torch.arange(rows)[first:last])
        writer.add_nodes(y=torch.arange(rows)[n:])
    adj = CSR.from_edge_index(torch.stack([col, row]), val, (cols, rows))
    for ranks in range(1, len(offsets)):
        require_whole(Shards(folder), adj, ranks, {"y": torch.arange(rows)})
    shutil.rmtree(folder)


def test_the_whole_is_never_in_memory(tmp_path):
    """Of 4.8 MB of edges, in 50 parts and 50 pieces, a few copies of one at a time are there."""
    row, col = torch.randint(0, 1000, (2, 200_000))
    tracemalloc.start()  # numpy reports to it what it allocates, and maps of files are none of it
    write(tmp_path, row, col, shape=(1000, 1000), offsets=range(0, 1001, 20), piece=4000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most < 800_000
    require_whole(Shards(tmp_path), CSR.from_edge_index(torch.stack([col, row]), None, 1000), 5)


def test_edges_of_other_kinds(tmp_path):
    """Arrays and lists, narrow integers, values that want a gradient, no edges at all, and no rows."""
    val = torch.rand(3, requires_grad=True)
    with ShardWriter(tmp_path / "a", 3, 3, np.array([0, 3], dtype=np.int64)) as writer:
        writer.add_edges(np.array([2, 0, 0], dtype=np.int32), torch.tensor([1, 1, 0], dtype=torch.uint8), val)
    local = Shards(tmp_path / "a").local(0, 1)
    assert local.idx.tolist() == [0, 1, 1] and torch.equal(local.val, val.detach()[[2, 1, 0]]) and local.nodes == {}
    np.save(tmp_path / "read.npy", np.arange(3))
    only_read = np.load(tmp_path / "read.npy", mmap_mode="r")
    with ShardWriter(tmp_path / "c", 3, 3, [0, 3]) as writer, warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that nobody may write to
        writer.add_edges(only_read, only_read)
        writer.add_nodes(y=only_read)
    assert Shards(tmp_path / "c").local(0, 1).nodes["y"].tolist() == [0, 1, 2]
    with ShardWriter(tmp_path / "b", 0, 5, [0, 0, 0]) as writer:
        writer.add_nodes(x=torch.zeros(0, 4))
    empty = Shards(tmp_path / "b").local(1, 2)
    assert empty.ptr.tolist() == [0] and empty.nodes["x"].shape == (0, 4) and empty.val is None


def test_a_hub_and_rows_without_entries(tmp_path):
    n = 500
    row, col = torch.full((n,), 3), torch.arange(n).flip(0)
    shards = Shards(write(tmp_path, row, col, shape=(6, n), offsets=range(7), piece=7))
    adj = CSR.from_edge_index(torch.stack([col, row]), size=(n, 6))
    for ranks in (1, 2, 5, 6):
        require_whole(shards, adj, ranks)
    assert [shards.local(rank, 6).idx.numel() for rank in range(6)] == [0, 0, 0, n, 0, 0]


def test_a_real_graph_in_256_parts(tmp_path):
    whole = data.load_npz(real_graph("cora"))
    part = partition(whole.adj, 256, "random")
    part.write(tmp_path, x=whole.x, y=whole.y)
    shards = Shards(tmp_path)
    moved = part.apply(whole.adj)
    for ranks in (1, 2, 3, 64, 256):
        require_whole(shards, moved, ranks, {"x": part.apply(whole.x), "y": part.apply(whole.y), "old": part.old_of})
    y = torch.cat([shards.local(rank, 64).nodes["y"] for rank in range(64)])
    assert torch.equal(part.undo(y), whole.y)
    with pytest.raises(ValueError, match="256 parts serve 1 to 256 ranks, not 257"):
        shards.local(0, 257)
    with pytest.raises(ValueError, match="not 0"):
        shards.local(0, 0)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=rf"rank {rank} is outside \[0, 2\)"):
            shards.local(rank, 2)


def test_what_a_process_writes_stays_in_it(tmp_path):
    row, col = graph(30, 20, 50)
    shards = Shards(write(tmp_path, row, col, torch.rand(50), x=torch.rand(30, 2)))
    before = shards.local(0, 1)
    known = before.val.clone()
    before.val.zero_()
    before.nodes["x"].zero_()
    assert torch.equal(Shards(tmp_path).local(0, 1).val, known)


def test_an_exception_or_a_process_that_ends_leaves_no_graph(tmp_path):
    with pytest.raises(RuntimeError, match="lost"), ShardWriter(tmp_path / "a", 2, 2, [0, 2]) as writer:
        writer.add_edges([0], [1])
        raise RuntimeError("lost")
    with pytest.raises(FileNotFoundError, match=r"graph\.json"):
        Shards(tmp_path / "a")
    with pytest.raises(FileExistsError, match="something is in the folder"):
        ShardWriter(tmp_path / "a", 2, 2, [0, 2])


def test_graph_json_comes_last_and_at_once(tmp_path, monkeypatch):
    def die(self, target):
        raise OSError("the machine is gone")

    row, col = graph(30, 20, 50)
    monkeypatch.setattr("pathlib.Path.replace", die)
    with pytest.raises(OSError, match="the machine is gone"):
        write(tmp_path / "g", row, col)
    assert not (tmp_path / "g" / "graph.json").exists() and (tmp_path / "g" / "ptr.npy").exists()


@pytest.fixture
def no_room():
    """Files of this process may have no more than 1,000 bytes, as if the disk were full, until it is called."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_the_next_call_works(tmp_path, no_room):
    row, col = graph(30, 20, 200)
    with ShardWriter(tmp_path, 30, 20, [0, 30]) as writer:
        writer.add_edges(row[:9], col[:9])
        with pytest.raises(OSError):
            writer.add_edges(row[9:], col[9:])
        with pytest.raises(OSError):
            writer.add_nodes(x=torch.rand(30, 100))
        no_room()
        writer.add_edges(row[9:], col[9:])
        writer.close()  # as a file's, it may come before the end
    require_whole(Shards(tmp_path), CSR.from_edge_index(torch.stack([col, row]), None, (20, 30)), 1)


OPEN = {
    "row": lambda w: w.add_edges([0, 30], [0, 0]),
    "col": lambda w: w.add_edges([0, 1], [0, -1]),
    "floats": lambda w: w.add_edges([0.0], [1]),
    "flat row": lambda w: w.add_edges([[0]], [1]),
    "lengths": lambda w: w.add_edges([0, 1], [1]),
    "val": lambda w: w.add_edges([0], [1], torch.rand(2)),
    "flat": lambda w: w.add_edges([0], [1], torch.rand(1, 1, 1)),
    "ints": lambda w: w.add_edges([0], [1], torch.tensor([1])),
    "bfloat16": lambda w: w.add_edges([0], [1], torch.rand(1, dtype=torch.bfloat16)),
    "other dtype": lambda w: w.add_edges([0], [1], torch.rand(1, dtype=torch.float64)),
    "no val": lambda w: w.add_edges([0], [1]),
    "name": lambda w: w.add_nodes(**{"../x": torch.rand(1)}),
    "many": lambda w: w.add_nodes(x=torch.rand(1, 2), y=torch.arange(31)),
    "scalar": lambda w: w.add_nodes(z=torch.tensor(1.0)),
    "width": lambda w: w.add_nodes(x=torch.rand(1, 3)),
    "dtype": lambda w: w.add_nodes(x=torch.zeros(1, 2, dtype=torch.int32)),
    "complex": lambda w: w.add_nodes(z=torch.zeros(1, dtype=torch.complex64)),
}
SAID = {
    "row": (ValueError, r"row\[1\] = 30 is outside \[0, 30\)"),
    "col": (ValueError, r"col\[1\] = -1 is outside \[0, 20\)"),
    "floats": (TypeError, "row must be uint8, .*int64, not float64"),
    "flat row": (ValueError, "row must have 1 dimension, not 2"),
    "lengths": (ValueError, "row has 2 elements and col 1"),
    "val": (ValueError, r"val must be \[1\] or \[1, heads\], not \[2\]"),
    "flat": (ValueError, r"not \[1, 1, 1\]"),
    "ints": (TypeError, "val must be float16, float32, float64, not int64"),
    "bfloat16": (TypeError, "val: .*BFloat16"),
    "other dtype": (ValueError, "val: earlier edges have .*<f4.*, these .*<f8"),
    "no val": (ValueError, "val: earlier edges have .*<f4.*, these none"),
    "name": (ValueError, r"'\.\./x' must be letters"),
    "many": (ValueError, r"y: \[31\] after 0 of 30 rows"),
    "scalar": (ValueError, r"z: \[\] after 0"),
    "width": (ValueError, r"x: float32 \[1, 3\] after float32 \[30, 2\]"),
    "dtype": (ValueError, r"x: int32 \[1, 2\] after float32"),
    "complex": (TypeError, "z must be bool, .*, not complex64"),
}


@pytest.mark.parametrize("case", OPEN)
def test_bad_pieces_are_named_and_add_nothing(tmp_path, case):
    row, col = graph(30, 20, 40)
    val, x = torch.rand(40), torch.rand(30, 2)
    error, text = SAID[case]
    with ShardWriter(tmp_path, 30, 20, [0, 30]) as writer:
        writer.add_edges(row[:9], col[:9], val[:9])
        writer.add_nodes(x=x[:4])
        with pytest.raises(error, match=text):
            OPEN[case](writer)
        writer.add_edges(row[9:], col[9:], val[9:])
        writer.add_nodes(x=x[4:])
    require_whole(Shards(tmp_path), CSR.from_edge_index(torch.stack([col, row]), val, (20, 30)), 1, {"x": x})
    for call in (writer.close, lambda: writer.add_edges([0], [0]), lambda: writer.add_nodes(x=x)):
        with pytest.raises(ValueError, match="the writer is closed"):
            call()


@pytest.mark.parametrize(
    ("rows", "cols", "offsets", "error"),
    [
        (3, 3, [0, 2], ValueError),
        (3, 3, [1, 3], ValueError),
        (3, 3, [0, 2, 1, 3], ValueError),
        (3, 3, [3], ValueError),
        (0, 3, [0], ValueError),
        (3, 3, [[0, 3]], ValueError),
        (3, -1, [0, 3], ValueError),
        (3, 3, [0.0, 3.0], TypeError),
        (3.0, 3, [0, 3], TypeError),
    ],
)
def test_bad_offsets_make_no_folder(tmp_path, rows, cols, offsets, error):
    with pytest.raises(error):
        ShardWriter(tmp_path / "g", rows, cols, offsets)
    assert not (tmp_path / "g").exists()


def test_rows_that_were_never_added(tmp_path):
    with (
        pytest.raises(ValueError, match="x: 2 of 3 rows were added"),
        ShardWriter(tmp_path, 3, 3, [0, 3]) as writer,
    ):
        writer.add_nodes(x=torch.rand(2, 5))


# ---- damaged, foreign and forged folders ----


@pytest.fixture
def folder(tmp_path):
    row, col = graph(30, 20, 200)
    return write(tmp_path / "g", row, col, torch.rand(200), x=torch.rand(30, 2))


def change(folder, edit):
    described = json.loads((folder / "graph.json").read_text())
    edit(described)
    (folder / "graph.json").write_text(json.dumps(described))


def refused(folder, file, text):
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder / file))}: .*{text}"):
        for rank in range(4):
            Shards(folder).local(rank, 4)


def rewrite(folder, name, edit):
    """Changes an array and signs it again, as a program with a mistake would write it."""
    array = np.load(folder / f"{name}.npy")
    edit(array)
    np.save(folder / f"{name}.npy", array)
    ptr, offsets = np.load(folder / "ptr.npy"), json.loads((folder / "graph.json").read_text())["offsets"]
    bounds = ptr[offsets] if name in ("idx", "val", "edge_ids") else offsets
    digests = [hashlib.sha256(array[a : b + (name == "ptr")].tobytes()).hexdigest() for a, b in pairwise(bounds)]
    change(folder, lambda graph: graph["arrays"][name].update(sha256=digests))


@pytest.mark.parametrize("name", ["ptr", "idx", "val", "edge_ids", "node_x"])
def test_arrays_that_are_cut_off_or_gone_or_others(folder, name):
    path = folder / f"{name}.npy"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], whole[:3], b"", whole + b"\0", b"not an array at all", b"\x93NUMPY" * 20):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            Shards(folder)
    path.unlink()
    refused(folder, path.name, "No such file")
    np.save(path, np.arange(30, dtype=np.int32))
    refused(folder, path.name, "is not the array of dtype")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ptr.npy", whole)
    refused(folder, path.name, "is not the array")


class Bomb:
    """An object whose unpickling would leave a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["ptr", "val", "node_x"])
def test_nothing_is_unpickled(folder, name):
    trace = folder / "trace"
    np.save(folder / f"{name}.npy", np.array([Bomb(trace)] * 30, dtype=object), allow_pickle=True)
    refused(folder, f"{name}.npy", "")
    assert not trace.exists()
    np.load(folder / f"{name}.npy", allow_pickle=True)
    assert trace.exists(), "the file was harmless, so this test said nothing"


@pytest.mark.parametrize("name", ["ptr", "idx", "val", "edge_ids", "node_x"])
def test_one_changed_byte_is_found_by_the_rank_that_owns_it(folder, name):
    path = folder / f"{name}.npy"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    shards = Shards(folder)  # a header is all that opening reads
    shards.local(0, 4)
    with pytest.raises(ValueError, match=rf"{name}\.npy: part 3 is not what graph\.json has the sha256 of"):
        shards.local(3, 4)
    if name in ("val", "node_x"):
        shards.local(3, 4, check=False)


def test_flipped_bits_anywhere_are_found(folder):
    rng, files = np.random.default_rng(0), sorted(folder.iterdir())
    kept, refusals = Shards(folder).local(0, 1), 0
    for _ in range(150):
        path = files[rng.integers(len(files))]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            local = Shards(folder).local(0, 1)
            same = (
                torch.equal(getattr(local, name), getattr(kept, name)) for name in ("ptr", "idx", "val", "edge_ids")
            )
            assert all(same)  # the bit was in the padding of a header
        except ValueError as error:
            assert str(folder) in str(error)
            refusals += 1
        path.write_bytes(whole)
    assert refusals > 100


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda g: g.update(format="others"), "format"),
        (lambda g: g.pop("format"), "format"),
        (lambda g: g.update(version=2), "version 2; this library reads version 1"),
        (lambda g: g.pop("version"), "version None"),
        (lambda g: g.update(shape=[30]), "shape"),
        (lambda g: g.update(shape=[30, -1]), "shape"),
        (lambda g: g.update(shape="30 20"), "shape"),
        (lambda g: g.update(shape=[31, 20]), "offsets"),
        (lambda g: g.update(entries=201), "arrays: .*shape must begin with 201"),
        (lambda g: g.update(entries=None), "entries"),
        (lambda g: g.update(entries=True), "entries"),
        (lambda g: g.update(offsets=[0, 7, 7, 21]), "offsets"),
        (lambda g: g.update(offsets=[0, 9, 7, 30]), "offsets"),
        (lambda g: g.update(offsets=[0, 7.5, 21, 30]), "offsets"),
        (lambda g: g.update(offsets=[0, 7, 30]), "sha256 must have one text for each part"),
        (lambda g: g.update(offsets=[30]), "offsets"),
        (lambda g: g.pop("offsets"), "offsets"),
        (lambda g: g.pop("arrays"), "arrays"),
        (lambda g: g["arrays"].pop("ptr"), "arrays must have ptr"),
        (lambda g: g["arrays"].update(ptr=3), "ptr must have dtype"),
        (lambda g: g["arrays"].update({"../x": g["arrays"]["node_x"]}), "'../x' is neither"),
        (lambda g: g["arrays"]["ptr"].update(dtype="<i4"), "ptr: dtype must be one of <i8"),
        (lambda g: g["arrays"]["val"].update(dtype="|O"), "val: dtype must be"),
        (lambda g: g["arrays"]["node_x"].update(dtype=["<f4"]), "node_x: dtype must be"),
        (lambda g: g["arrays"]["node_x"].update(shape=[29, 2]), "node_x: shape must begin with 30"),
        (lambda g: g["arrays"]["node_x"].update(shape=[]), "node_x: shape must begin with 30"),
        (lambda g: g["arrays"]["ptr"].update(shape=[31, 1]), "ptr: shape"),
        (lambda g: g["arrays"]["val"].update(shape=[200, 1, 1]), "val: shape"),
        (lambda g: g["arrays"]["idx"].update(sha256="00"), "idx: sha256"),
    ],
)
def test_graph_json_that_is_wrong(folder, edit, text):
    change(folder, edit)
    with pytest.raises(ValueError, match=rf"graph\.json: .*{text}"):
        Shards(folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"format": 1}', b"[" * 100_000, b"9" * 9999]
)
def test_graph_json_that_is_none(folder, content):
    (folder / "graph.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"graph\.json: "):
        Shards(folder)


def test_offsets_moved_by_hand_are_found(folder):
    change(folder, lambda graph: graph.update(offsets=[0, 6, 7, 21, 30]))
    refused(folder, "ptr.npy", "part 0")


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("ptr", lambda a: a.__setitem__(0, 1), "must rise from 0 to the 200 entries"),
        ("ptr", lambda a: a.__setitem__(3, a[2] - 1), "must rise"),
        ("ptr", lambda a: a.__setitem__(-1, 199), "must rise"),
        ("ptr", lambda a: a.__setitem__(slice(5, None), 2**60), "must rise"),
        ("ptr", lambda a: a.__setitem__(0, -1), "must rise"),
        ("idx", lambda a: a.__setitem__(0, 20), r"rank 0 of 4: idx\[0\] = 20 is outside \[0, 20\)"),
        ("idx", lambda a: a.__setitem__(0, -1), r"idx\[0\] = -1"),
        ("edge_ids", lambda a: a.__setitem__(0, 200), r"edge_ids\[0\] = 200 is outside \[0, 200\)"),
    ],
)
def test_content_that_is_signed_but_no_matrix(folder, name, edit, text):
    rewrite(folder, name, edit)
    refused(folder, f"{name}.npy", text)


def test_columns_of_an_array_may_not_come_first(folder):
    np.save(folder / "node_x.npy", np.asfortranarray(np.load(folder / "node_x.npy")))
    refused(folder, "node_x.npy", "rows must lie one after the other")


def test_the_documents_program_writes_shards(tmp_path, monkeypatch):
    """The program of docs/distributed.md that uses numpy alone, as a stranger would write it."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    program = next(block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "hashlib" in block)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program, "distributed.md", "exec"), names)
    assert "fusedmm" not in re.findall(r"import (\w+)", program)
    adj = CSR.from_coo(torch.tensor(names["row"]), torch.tensor(names["col"]), shape=names["shape"])
    for ranks in (1, 2):
        require_whole(Shards(tmp_path / "graph"), adj, ranks, {"x": torch.from_numpy(names["x"])})
