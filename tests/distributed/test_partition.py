"""Partitions: the permutation and its undoing, what the report counts, the partitioners, the command line."""

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import real_graph

import fusedmm
from fusedmm import CSR, data
from fusedmm import __main__ as command
from fusedmm.distributed import Load, Shards, partition
from fusedmm.distributed.partitioners import METHODS, cut, weights

FIRST_USE = """import sys, fusedmm
print("fusedmm.distributed" in sys.modules)
fusedmm.distributed
print("fusedmm.distributed" in sys.modules)"""
WHEELS = {"metis": "pymetis", "kaminpar": "kaminpar"}


def method(name):
    if name in WHEELS:
        pytest.importorskip(WHEELS[name])
    return name


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("ptr", "idx", "eid")) and a.shape == b.shape


def edges(nodes, n, seed=0):
    """Unsorted edges with repeats and self loops, of which a few nodes have most and some have none."""
    rng = np.random.default_rng(seed)
    ends = (nodes * rng.random((2, n)) ** 2).astype(np.int64)
    return torch.from_numpy(ends)


def counted(part, ranks, K):
    """A ``Load`` by sets and loops."""
    nodes, share = part.new_of.numel(), (part.offsets.numel() - 1) // ranks
    bounds = part.offsets[::share].tolist()
    owner = {new: r for r in range(ranks) for new in range(bounds[r], bounds[r + 1])}
    entries, need, sent, crossing = [0] * ranks, [set() for _ in range(ranks)], [0] * ranks, 0
    for i, j in zip(*(t.tolist() for t in part.adj.coo()[:2]), strict=True):
        to, source = owner[int(part.new_of[i])], owner[int(part.new_of[j])]
        entries[to] += 1
        crossing += to != source
        if to != source:
            need[to].add(j)
    for wanted in need:
        for j in wanted:
            sent[owner[int(part.new_of[j])]] += 1
    rows, halo = [bounds[r + 1] - bounds[r] for r in range(ranks)], [len(wanted) for wanted in need]
    memory = [8 * (r + 1) + 4 * e + 4 * K * (2 * r + h) for r, e, h in zip(rows, entries, halo, strict=True)]
    assert sum(rows) == nodes
    return Load(ranks, max(rows), max(entries), crossing, max(halo), max(sent), 4 * K * sum(halo), max(memory))


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(0, 20),
    n=st.integers(0, 60),
    parts=st.integers(1, 13),
    K=st.integers(0, 5),
    seed=st.integers(0, 99),
    how=st.sampled_from(["nnz", "random", "ids"]),
)
def test_numbers_and_report_of_any_graph(nodes, n, parts, K, seed, how):
    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.integers(0, parts, nodes))
    adj = CSR.from_edge_index(edges(nodes, n if nodes else 0, seed), size=nodes)
    part = partition(adj, parts, (lambda a, p: ids) if how == "ids" else how, seed=seed)
    assert torch.equal(part.new_of.sort().values, torch.arange(nodes))
    assert torch.equal(part.old_of[part.new_of], torch.arange(nodes))
    assert part.offsets[0] == 0 and part.offsets[-1] == nodes and part.offsets.numel() == parts + 1
    if how == "ids":
        assert torch.equal(part.offsets.diff(), torch.bincount(ids, minlength=parts))
        assert torch.equal(part.old_of, torch.sort(ids, stable=True).indices)
    elif how == "nnz":
        assert torch.equal(part.new_of, torch.arange(nodes))
    assert part.loads(K) == [counted(part, ranks, K) for ranks in range(1, parts + 1) if parts % ranks == 0]


@pytest.mark.parametrize("how", ["nnz", "random"])
def test_apply_renumbers_and_undo_gives_back(how):
    n, index = 40, edges(40, 300)
    val = torch.rand(300, 2)
    adj = CSR.from_edge_index(index, val, n)
    part = partition(adj, 4, how, seed=3)
    moved = part.apply(adj)
    assert same(moved, CSR.from_edge_index(part.new_of[index], size=n)) and torch.equal(moved.val, val)
    assert same(part.undo(moved), adj) and torch.equal(part.undo(moved).val, val)
    x, y, mask = torch.rand(n, 5, dtype=torch.float64), torch.arange(n), torch.rand(n) < 0.5
    for t in (x, y, mask):
        assert torch.equal(part.undo(part.apply(t)), t) and torch.equal(part.apply(t)[part.new_of], t)
    assert torch.equal(part.apply(mask).nonzero()[:, 0].sort().values, part.new_of[mask.nonzero()[:, 0]].sort().values)
    whole = torch.randint(-9, 9, (n, 2, 5)).float()  # sums of small integers are exact in any order
    moved, adj = (a.with_values((8 * val).round()) for a in (moved, adj))
    assert torch.equal(part.undo(moved @ part.apply(whole)), adj @ whole)
    assert repr(part) == "Partition(nodes=40, parts=4)"


def test_gradients_pass_through_apply_and_undo():
    part = partition(data.banded(6, 1), 2, "random")
    x = torch.rand(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: part.undo(part.apply(t) ** 2), (x,))


def test_cut_balances_weights():
    """No part is off the mean by more than the heaviest node, and nodes stay in order."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weight = torch.from_numpy(rng.integers(1, 1 + 10 ** int(rng.integers(1, 5)), int(rng.integers(1, 200))))
        parts = int(rng.integers(1, 20))
        ids = cut(weight, parts)
        assert bool((ids.diff() >= 0).all()) and 0 <= int(ids.min()) <= int(ids.max()) < parts
        per_part = torch.bincount(ids, weight, minlength=parts)
        assert float((per_part - weight.sum() / parts).abs().max()) <= float(weight.max())


@pytest.fixture
def one_thread():
    """KaMinPar gives the same parts at each run on one thread alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("how", METHODS)
def test_every_method_balances_entries_and_rows(how, one_thread):
    adj = data.load_npz(real_graph("cora")).adj
    part = partition(adj, 8, method(how), seed=1)
    again, other = partition(adj, 8, how, seed=1), partition(adj, 8, how, seed=2)
    assert torch.equal(part.new_of, again.new_of)
    assert (how == "nnz") == torch.equal(part.new_of, other.new_of)
    ids = torch.repeat_interleave(torch.arange(8), part.offsets.diff())[part.new_of]
    per_part = torch.bincount(ids, weights(adj).double(), minlength=8)
    assert float(per_part.max()) < 1.1 * float(per_part.mean())
    load = part.loads()[-1]
    assert load.rows < 2 * 2708 / 8 and load.entries < 2 * adj.nnz / 8


@pytest.mark.parametrize("how", WHEELS)
def test_a_partitioner_finds_what_was_hidden(how):
    """A mesh whose nodes were shuffled: random parts need most of it, a partitioner's and theirs joined little."""
    mesh, order = data.stencil(32, 32), torch.randperm(1024)
    row, col, _ = mesh.coo()
    hidden = CSR.from_coo(order[row], order[col], shape=mesh.shape)
    found, drawn = (partition(hidden, 16, name).loads()[1:] for name in (method(how), "random"))
    assert all(4 * a.halo < b.halo and 4 * a.cut < b.cut for a, b in zip(found, drawn, strict=True))


@pytest.mark.parametrize("how", WHEELS)
@pytest.mark.parametrize(
    ("index", "nodes", "parts"),
    [
        ([[], []], 0, 3),
        ([[], []], 5, 3),
        ([[0, 1, 2], [0, 1, 2]], 3, 2),  # self loops alone
        ([[0, 0, 1], [1, 2, 2]], 3, 3),
        ([[0, 0, 1], [1, 2, 2]], 3, 7),
        ([[0], [1]], 5, 4),
        ([[0] * 9, list(range(1, 10))], 10, 4),  # a hub, edges in one direction
        ([[0, 1, 2], [1, 2, 0]], 9, 2),
    ],
)
def test_partitioners_take_what_is_degenerate(how, index, nodes, parts, capfd):
    adj = CSR.from_edge_index(torch.tensor(index, dtype=torch.int64), size=nodes)
    part = partition(adj, parts, method(how))
    assert torch.equal(part.new_of.sort().values, torch.arange(nodes)) and part.offsets.numel() == parts + 1
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("how", WHEELS)
def test_a_missing_wheel_is_named(how, monkeypatch):
    monkeypatch.setitem(sys.modules, WHEELS[how], None)
    with pytest.raises(ImportError, match=rf"this needs {WHEELS[how]}: pip install fusedmm\[partition\]"):
        partition(data.banded(9, 1), 3, how)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((data.uniform(3, 4, 5), 2), ValueError, r"square, is \(3, 4\)"),
        ((data.banded(4, 1), 0), ValueError, "at least 1, not 0"),
        ((data.banded(4, 1), 2.0), TypeError, "parts must be an int, not 2.0"),
        ((data.banded(4, 1), 2, "zoltan"), ValueError, "nnz, random, metis, kaminpar, not 'zoltan'"),
        ((data.banded(4, 1), 2, lambda a, p: [0, 1, 1]), ValueError, "3 part ids for 4 nodes"),
        ((data.banded(4, 1), 2, lambda a, p: [0, 1, 2, 0]), ValueError, r"part ids\[2\] = 2 is outside \[0, 2\)"),
        ((data.banded(4, 1), 2, lambda a, p: [0, 1, -1, 0]), ValueError, r"part ids\[2\] = -1 is outside"),
        ((data.banded(4, 1), 2, lambda a, p: [0.0, 1.0, 1.0, 0.0]), TypeError, "part ids must hold integers"),
        (("graph", 2), TypeError, "str"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        partition(*arguments)


def test_apply_refuses_other_sizes():
    part = partition(data.banded(4, 1), 2)
    for what in (data.banded(5, 1), data.uniform(4, 5, 6), torch.rand(5), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="for a partition of 4 nodes"):
            part.apply(what)
        with pytest.raises(ValueError, match="for a partition of 4 nodes"):
            part.undo(what)
    with pytest.raises(TypeError, match="what must be a tensor, not list"):
        part.apply([1, 2, 3, 4])
    with pytest.raises(ValueError, match="K must not be negative, is -1"):
        part.report(-1)


def test_report_prints_what_it_returns(capsys):
    part = partition(data.stencil(20, 20), 8, "random")
    loads = part.report(K=32)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("400 nodes, 1920 entries; SpMM of 32 float32 columns")
    assert [load.ranks for load in loads] == [1, 2, 4, 8] and len(lines) == 2 + 4
    for line, load in zip(lines[2:], loads, strict=True):
        cells = line.split()
        assert [int(cells[k]) for k in (0, 1, 2, 4, 6)] == [load.ranks, load.rows, load.entries, load.halo, load.sent]
        assert cells[3] == f"{load.cut / 1920:.1%}" and cells[5] == f"{load.halo * load.ranks / 400:.2f}"
        assert cells[7] == f"{load.wire_bytes / 2**20:.2f}" and cells[8] == f"{load.memory_bytes / 2**20:.2f}"


def test_the_package_loads_on_first_use_and_pickles_name_it():
    assert fusedmm.distributed.partition is partition and "distributed" in dir(fusedmm)
    part = partition(data.banded(5, 1), 2, "random")
    stored = pickle.dumps(part)
    assert b"distributed.partition" not in stored and torch.equal(pickle.loads(stored).new_of, part.new_of)
    found = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'distribute'"):
        _ = fusedmm.distribute


def small(tmp_path):
    adj = data.stencil(3, 3)
    arrays = {"indptr": adj.ptr.numpy(), "indices": adj.idx.numpy(), "shape": np.array([9, 9])}
    arrays |= {"x_indptr": np.arange(10), "x_indices": np.zeros(9, int), "x_data": np.arange(9.0)}
    arrays |= {"x_shape": np.array([9, 2]), "y": np.arange(9) % 2, "train": np.array([0, 4]), "val": np.array([1])}
    np.savez(tmp_path / "small.npz", **arrays)
    return tmp_path / "small.npz"


def test_command_reports_and_writes(tmp_path, capsys):
    file, out = small(tmp_path), tmp_path / "out"
    options = ["--parts", "3", "--method", "random", "--seed", "5", "--columns", "7"]
    command.main(["partition", str(file), *options, "--report", "--out", str(out)])
    said = capsys.readouterr().out
    graph = data.load_npz(file)
    part = partition(graph.adj, 3, "random", seed=5)
    part.report(7)
    assert said.startswith(capsys.readouterr().out) and said.endswith(f"3 parts of small are in {out}\n")
    local = Shards(out).local(0, 1)
    moved = part.apply(graph.adj)
    assert torch.equal(local.ptr, moved.ptr) and torch.equal(local.idx, moved.idx.long())
    assert torch.equal(local.nodes["old"], part.old_of) and set(local.nodes) == {"old", "x", "y", "train", "val"}
    assert torch.equal(part.undo(local.nodes["x"]), graph.x) and torch.equal(part.undo(local.nodes["y"]), graph.y)
    assert torch.equal(part.undo(local.nodes["train"]).nonzero()[:, 0], graph.train)


def test_command_takes_matrix_market(tmp_path, capsys):
    pytest.importorskip("scipy")
    (tmp_path / "m.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 0.5\n2 1 2\n")
    command.main(["partition", str(tmp_path / "m.mtx"), "--parts", "2", "--out", str(tmp_path / "out")])
    assert Shards(tmp_path / "out").local(1, 2).val.tolist() == [2.0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["{file}"], "give --report, --out or both"),
        (["{file}", "--report", "--parts", "0"], "parts must be at least 1"),
        (["{file}", "--report", "--columns", "-1"], "K must not be negative"),
        (["{file}", "--out", "{folder}"], "something is in the folder"),
        (["{folder}/none.npz", "--report"], "none.npz"),
        (["{file}", "--report", "--method", "zoltan"], "invalid choice"),
    ],
)
def test_command_ends_with_one_line(tmp_path, capsys, options, text):
    names = {"file": small(tmp_path), "folder": tmp_path}
    with pytest.raises(SystemExit) as ended:
        command.main(["partition", *(option.format(**names) for option in options)])
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and re.search(text, last) and last.startswith("python -m fusedmm partition: error")
