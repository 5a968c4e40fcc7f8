"""Shards: written in any pieces they are the matrix that CSR makes, at any number of ranks; damaged ones are named."""

import resource
import shutil
import tracemalloc
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import real_graph
from support.shards import graph, require_whole, write

from fusedmm import CSR, data
from fusedmm.distributed import Shards, ShardWriter, partition


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
