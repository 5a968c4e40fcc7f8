"""Shards that are damaged, foreign or forged: a named error, and nothing is ever unpickled."""

import hashlib
import json
import os
import re
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.machine import ROOT
from support.shards import graph, require_whole, write

from fusedmm import CSR
from fusedmm.distributed import Shards


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
