"""Graph files, honest and hostile, the digits, and generated matrices."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from support.machine import real_graph

from fusedmm import CSR, data

SMALL = {
    "indptr": np.array([0, 1, 3, 4]),
    "indices": np.array([1, 0, 2, 1], dtype=np.int32),
    "shape": np.array([3, 3]),
    "x_indptr": np.array([0, 1, 1, 3]),
    "x_indices": np.array([1, 0, 1], dtype=np.int32),
    "x_data": np.array([2.0, 3.0, 4.0], dtype=np.float32),
    "x_shape": np.array([3, 2]),
    "y": np.array([0, 1, 1], dtype=np.int32),
    "train": np.array([0]),
    "val": np.array([1]),
    "test": np.array([2]),
}


def write(tmp_path, changes=None, without=()):
    arrays = {k: v for k, v in {**SMALL, **(changes or {})}.items() if k not in without}
    np.savez_compressed(tmp_path / "graph.npz", **arrays)
    return tmp_path / "graph.npz"


def test_npz_comes_back(tmp_path):
    graph = data.load_npz(write(tmp_path))
    assert graph.adj.to_dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]] and graph.adj.val is None
    assert graph.x.tolist() == [[0, 2], [0, 0], [3, 4]] and graph.x.dtype == torch.float32
    assert graph.y.tolist() == [0, 1, 1] and graph.y.dtype == torch.int64
    assert [t.tolist() for t in (graph.train, graph.val, graph.test)] == [[0], [1], [2]]


def test_npz_of_a_structure_alone(tmp_path):
    path = write(tmp_path, without=[k for k in SMALL if k not in ("indptr", "indices", "shape")])
    graph = data.load_npz(path)
    assert graph.adj.nnz == 4 and (graph.x, graph.y, graph.train, graph.val, graph.test) == (None,) * 5


def test_npz_with_several_splits(tmp_path):
    masks = {f"{name}_masks": np.roll(np.eye(3, dtype=bool), i, axis=1) for i, name in enumerate(("train", "val"))}
    path = write(tmp_path, {**masks, "test_masks": np.ones((3, 3), dtype=bool)}, without=("train", "val", "test"))
    graph = data.load_npz(path, split=1)
    assert graph.train.tolist() == [1] and graph.val.tolist() == [2] and graph.test.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"graph\.npz: train_masks: .*split 3"):
        data.load_npz(path, split=3)
    with pytest.raises(ValueError, match="split"):
        data.load_npz(path, split=-1)


class Bomb:
    """An object whose unpickling would leave a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("key", list(SMALL))
def test_npz_is_never_unpickled(tmp_path, key):
    path, trace = write(tmp_path, {key: np.array([Bomb(tmp_path / "trace")], dtype=object)}), tmp_path / "trace"
    with pytest.raises(ValueError, match=rf"graph\.npz: {key}: "):
        data.load_npz(path)
    assert not trace.exists()
    np.load(path, allow_pickle=True)[key]
    assert trace.exists(), "the file was harmless, so this test said nothing"


@pytest.mark.parametrize("key", ["indptr", "indices", "shape", "x_indices", "x_data", "x_shape"])
def test_npz_without_a_key(tmp_path, key):
    with pytest.raises(ValueError, match=rf"graph\.npz: {key}: missing"):
        data.load_npz(write(tmp_path, without=(key,)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("indptr", np.array([0, 1, 3, 5])),
        ("indptr", np.array([0, 3, 1, 4])),
        ("indptr", np.array([0, 4])),
        ("indptr", np.zeros(0, dtype=np.int64)),
        ("indptr", np.array([0.0, 1.0, 3.0, 4.0])),
        ("indptr", np.array([[0, 1, 3, 4]])),
        ("indices", np.array([1, 0, 3, 1])),
        ("indices", np.array([1, 0, -1, 1])),
        ("indices", np.array([1, 0, 2**32, 1])),
        ("indices", np.array([1, 0, 2**64 - 1, 1], dtype=np.uint64)),
        ("indices", np.array(["1", "0", "2", "1"])),
        ("shape", np.array([3, 3, 3])),
        ("shape", np.array([-1, 3])),
        ("shape", np.array([3, 2**40])),
        ("shape", np.array(3)),
        ("x_data", np.array([1.0, 2.0])),
        ("x_data", np.array([1.0, 2.0, 3.0j])),
        ("x_indices", np.array([1, 0, 2])),
        ("x_shape", np.array([4, 2])),
        ("y", np.array([0, 1])),
        ("y", np.array([0, -1, 1])),
        ("y", np.array([0, 2**40, 1])),
        ("y", np.array([0.0, 1.0, 1.0])),
        ("train", np.array([3])),
        ("val", np.array([-1])),
        ("test", np.array([True, False, False])),
    ],
)
def test_npz_with_a_wrong_array(tmp_path, key, value):
    with pytest.raises(ValueError, match=rf"graph\.npz: .*{key}"):
        data.load_npz(write(tmp_path, {key: value}))


def test_npz_of_features_too_large_for_memory(tmp_path):
    rows = 2**22  # times 2^31 - 1 columns of four bytes: more than an address space
    changes = {"indptr": np.zeros(rows + 1, dtype=np.int8), "shape": np.array([rows, rows])}
    changes |= {"x_indptr": np.zeros(rows + 1, dtype=np.int8), "x_shape": np.array([rows, 2**31 - 1])}
    empty = np.zeros(0, dtype=np.int64)
    path = write(tmp_path, {**changes, "indices": empty, "x_indices": empty, "x_data": np.zeros(0)})
    with pytest.raises(ValueError, match=r"graph\.npz: x_shape: .* memory"):
        data.load_npz(path)


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for key, content in members.items():
            out.writestr(f"{key}.npy", content)
    return file.getvalue()


def single(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


HUGE = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000000,), }".ljust(128)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a zip",
        b"PK\x03\x04 cut off",
        single(np.arange(4)),
        pickle.dumps({"indptr": [0]}),
        archive(),
        archive(indptr=b"no array"),
        archive(indptr=b""),
        archive(indptr=single(np.arange(100))[:200]),
        archive(indptr=HUGE),
    ],
)
def test_file_that_is_no_graph(tmp_path, content):
    path = tmp_path / "graph.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"graph\.npz: "):
        data.load_npz(path)


def test_npz_cut_or_flipped_anywhere_is_a_value_error_or_a_graph(tmp_path):
    path = write(tmp_path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole[: rng.integers(1, len(whole))] if rng.random() < 0.3 else whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            data.load_npz(path)
        except ValueError as error:
            assert "graph.npz" in str(error)
            refused += 1
    assert refused > 100


def test_missing_files(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        data.load_npz(tmp_path / "none.npz")
    monkeypatch.setenv("FUSEDMM_GRAPHS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=rf"no none\.npz: give a path .* in \$FUSEDMM_GRAPHS \({tmp_path}\)"):
        data.find_graph("none")
    path = write(tmp_path)
    assert data.find_graph("graph") == data.find_graph("graph.npz") == path


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_citation_graphs(name):
    graph = data.load_npz(real_graph(name))
    dense = graph.adj.to_dense()
    assert torch.equal(dense, dense.t()) and not dense.diagonal().any() and dense.max() == 1
    classes = int(graph.y.max()) + 1
    assert graph.train.numel() == 20 * classes and graph.val.numel() == 500 and graph.test.numel() == 1000
    assert torch.cat([graph.train, graph.val, graph.test]).unique().numel() == 20 * classes + 1500


def test_matrix_market(tmp_path):
    path = tmp_path / "m.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n1 1 2.5\n3 1 -1\n")
    adj = data.load_matrix_market(path)
    assert adj.to_dense().tolist() == [[2.5, 0, -1], [0, 0, 0], [-1, 0, 0]] and adj.val.dtype == torch.float64
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n2 3 2\n1 3\n2 1\n")
    adj = data.load_matrix_market(path)
    assert adj.to_dense().tolist() == [[0, 0, 1], [1, 0, 0]] and adj.val is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no header\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n",
        "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n",
    ],
)
def test_matrix_market_that_is_wrong(tmp_path, text):
    path = tmp_path / "m.mtx"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"m\.mtx: "):
        data.load_matrix_market(path)


def test_matrix_market_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        data.load_matrix_market(tmp_path / "none.mtx")


def test_digits():
    graph = data.digits(labels_per_class=5, neighbours=4, seed=1)
    dense = graph.adj.to_dense()
    assert torch.equal(dense, dense.t()) and not dense.diagonal().any() and dense.max() == 1
    assert int(graph.adj.degree().min()) >= 4 and graph.x.shape == (1797, 64) and float(graph.x.max()) == 1
    assert torch.bincount(graph.y[graph.train]).tolist() == torch.bincount(graph.y[graph.val]).tolist() == [5] * 10
    assert torch.cat([graph.train, graph.val, graph.test]).sort().values.tolist() == list(range(1797))
    again, other = (data.digits(5, 4, seed) for seed in (1, 2))
    assert torch.equal(graph.train, again.train) and not torch.equal(graph.train, other.train)


def test_random_split_refuses():
    adj = CSR.from_csr(torch.zeros(5, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), None, (4, 4))
    with pytest.raises(ValueError, match="no labels"):
        data.random_split(data.Graph(adj))
    with pytest.raises(ValueError, match="more than 2"):
        data.random_split(data.Graph(adj, y=torch.tensor([0, 0, 0, 1])), 1, 1)


def same(a, b):
    return torch.equal(a.ptr, b.ptr) and torch.equal(a.idx, b.idx) and a.shape == b.shape


def test_rmat():
    adj = data.rmat(10, 8, seed=3)
    assert adj.shape == (1024, 1024) and 0.7 * 8192 < adj.nnz <= 8192
    assert same(adj, data.rmat(10, 8, seed=3)) and not same(adj, data.rmat(10, 8, seed=4))
    assert int(adj.degree().max()) > 10 * 8  # heavy tail
    keys = adj.coo()[0] * 1024 + adj.coo()[1]
    assert bool((keys[1:] > keys[:-1]).all())  # sorted, nothing twice
    quarters = torch.stack([adj.coo()[0] >= 512, adj.coo()[1] >= 512]).long()
    upper_left, upper_right, lower_left, lower_right = torch.bincount(quarters[0] * 2 + quarters[1]).tolist()
    assert upper_left > upper_right > lower_right and upper_left > lower_left > lower_right
    assert data.rmat(0, 1).shape == (1, 1) and data.rmat(3, 0).nnz == 0
    corner = data.rmat(4, 5, a=0, b=1, c=0)
    assert [t.tolist() for t in corner.coo()[:2]] == [[0], [15]]
    with pytest.raises(ValueError):
        data.rmat(4, 4, a=0.9, b=0.9)


@pytest.mark.parametrize(
    ("rows", "cols", "nnz"), [(100, 50, 700), (7, 9, 63), (7, 9, 40), (1, 1, 1), (0, 5, 0), (5, 4, 0)]
)
def test_uniform(rows, cols, nnz):
    adj = data.uniform(rows, cols, nnz, seed=1)
    row, col, _ = adj.coo()
    assert adj.shape == (rows, cols) and torch.unique(row * cols + col).numel() == nnz == adj.nnz
    assert same(adj, data.uniform(rows, cols, nnz, seed=1))


def test_uniform_spreads_evenly():
    mean = torch.stack([data.uniform(10, 10, 20, seed).to_dense() for seed in range(400)]).mean(0)
    assert float((mean - 0.2).abs().max()) < 5 * (0.2 * 0.8 / 400) ** 0.5
    with pytest.raises(ValueError):
        data.uniform(2, 2, 5)
    with pytest.raises(ValueError, match=r"shape \(-1, -1\): both must be in"):
        data.uniform(-1, -1, 0)


@pytest.mark.parametrize(("n", "bandwidth"), [(1, 0), (6, 0), (6, 2), (4, 9)])
def test_banded(n, bandwidth):
    i = torch.arange(n)
    assert torch.equal(data.banded(n, bandwidth).to_dense(), ((i[:, None] - i).abs() <= bandwidth).float())


@pytest.mark.parametrize(
    ("extent", "points"), [((4, 3), 5), ((4, 3), 9), ((1, 5), 9), ((3, 4, 2), 7), ((3, 4, 2), 27), ((1, 1, 1), 27)]
)
def test_stencil(extent, points):
    grid = torch.cartesian_prod(*[torch.arange(n) for n in extent])
    apart = (grid[:, None] - grid).abs()
    near = apart.sum(2) <= 1 if points in (5, 7) else apart.amax(2) <= 1
    adj = data.stencil(*extent, points=points)
    assert torch.equal(adj.to_dense(), near.float())


@pytest.mark.parametrize(("extent", "points"), [((3, 3), 7), ((3, 3, 3), 5), ((3, 3), 4), ((0, 3), 5)])
def test_stencil_refuses(extent, points):
    with pytest.raises(ValueError, match="stencil"):
        data.stencil(*extent, points=points)
