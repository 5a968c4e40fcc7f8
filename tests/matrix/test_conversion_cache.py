"""What as_csr remembers of a tensor: what it sees of changes, how many sizes, and for how long."""

import copy
import functools
import gc
import pickle
import threading

import pytest
import torch

import fusedmm
from fusedmm.matrix import adapters, structure

NODES = 5


def edges(seed, device, n=NODES, dtype=torch.int64):
    return torch.randint(0, n, (2, 12), generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def dense(edge_index, n=NODES):
    made = torch.zeros(n, n, device=edge_index.device)
    col, row = edge_index.long()
    return made.index_put_((row, col), torch.ones(len(row), device=row.device), accumulate=True)


class SparseTensor:
    """torch_sparse.SparseTensor's interface, as far as a reader needs it."""

    def __init__(self, ptr, idx):
        self.csr, self.sparse_sizes = lambda: (ptr, idx, None), lambda: (NODES, NODES)


def held_by_pair(ptr, idx):
    return lambda: (ptr, idx, None, (NODES, NODES))


def held_by_sparse_tensor(ptr, idx):
    held = SparseTensor(ptr, idx)
    return lambda: held


@pytest.fixture
def conversions(monkeypatch):
    """How many there were, as a list of one number."""
    count = [0]

    def counted(call, *args):
        count[0] += 1
        return call(*args)

    for name in ("from_edges", "looped_edges", "_convert"):
        monkeypatch.setattr(adapters, name, functools.partial(counted, getattr(adapters, name)))
    return count


# ---- changes ----


def test_other_data_are_seen(device):
    edge_index, x = edges(0, device), torch.eye(NODES, device=device)
    layer = fusedmm.nn.GCNConv(NODES, 2).to(device)
    for seed in range(4):
        version = edge_index._version
        edge_index.data = edges(seed, device)
        assert edge_index._version == version, "torch counts no write"
        assert torch.equal(fusedmm.spmm(edge_index, x), dense(edge_index))
        assert torch.equal(layer(x, edge_index), layer(x, edge_index.clone()))


def test_other_data_at_the_same_address_are_seen():
    """As an allocator gives it where what was there before is free; on the CPU, where numpy's memory is one address."""
    memory, x = edges(0, "cpu").numpy(), torch.eye(NODES)
    edge_index = torch.empty(2, 0, dtype=torch.int64)
    for seed in range(20):
        edge_index.data = torch.empty(2, 0, dtype=torch.int64)  # the storage of the last round ends here
        memory[:] = edges(seed, "cpu").numpy()
        edge_index.data = torch.from_numpy(memory)
        assert torch.equal(fusedmm.spmm(edge_index, x), dense(edges(seed, "cpu")))


def test_other_views_of_the_same_data_are_seen(device):
    rows = torch.cat([edges(1, device), edges(2, device)])
    x = torch.eye(NODES, device=device)
    edge_index = rows[:2]
    for view in (rows[:2], rows[1:3], rows[2:], rows[::2], rows[:2, :7], rows[:2].to(torch.int32)):
        edge_index.data = view
        assert torch.equal(fusedmm.spmm(edge_index, x), dense(view))
    square = torch.tensor([[0, 1], [2, 3]], device=device)
    edge_index.data = square
    assert torch.equal(fusedmm.spmm(edge_index, x), dense(square))
    edge_index.data = square.t()
    assert torch.equal(fusedmm.spmm(edge_index, x), dense(square.t()))


@pytest.mark.parametrize("hold", [held_by_pair, held_by_sparse_tensor])
@pytest.mark.parametrize("part", ["ptr", "idx"])
def test_other_data_of_the_parts_of_a_matrix_are_seen(part, hold, device):
    ptr, idx = torch.tensor([0, 2, 3, 4, 4, 6], device=device), torch.tensor([0, 1, 2, 3, 4, 0], device=device)
    make, x = hold(ptr, idx), torch.eye(NODES, device=device)
    for _ in range(2):
        fusedmm.spmm(make(), x)
    if part == "ptr":
        ptr.data = torch.tensor([0, 0, 1, 4, 5, 6], device=device)
    else:
        idx.data = idx.flip(0)
    row = torch.repeat_interleave(torch.arange(NODES, device=device), ptr[1:] - ptr[:-1])
    assert torch.equal(fusedmm.spmm(make(), x), dense(torch.stack([idx, row])))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo], ids=str)
def test_other_data_of_a_sparse_tensor_are_seen(layout, device):
    """Torch itself keeps the parts of a compressed one: what it holds counts."""
    adj, other = (dense(edges(seed, device)).to_sparse(layout=layout) for seed in (3, 4))
    x = torch.eye(NODES, device=device)
    fusedmm.spmm(adj, x)
    adj.data = other
    assert torch.equal(fusedmm.spmm(adj, x), adj.to_dense())
    with torch.no_grad():
        assert torch.equal(fusedmm.spmm(adj, x), adj.to_dense())


def test_an_edge_index_of_pyg(device):
    pyg = pytest.importorskip("torch_geometric")
    held, x = pyg.EdgeIndex(edges(5, device)), torch.eye(NODES, device=device)
    assert fusedmm.as_csr(held, size=7) is fusedmm.as_csr(held, size=7)
    assert torch.equal(fusedmm.spmm(held, x), dense(held.as_tensor()))
    assert fusedmm.as_csr(held, size=7) is fusedmm.as_csr(held, size=7)
    held.as_tensor().data = edges(6, device)
    assert torch.equal(fusedmm.spmm(held, x), dense(edges(6, device)))


# ---- sizes ----


def test_operators_that_take_several_sizes_convert_once_each(conversions, device):
    edge_index, x = edges(0, device), torch.ones(NODES + 1, 2, device=device)
    logits = torch.ones(edge_index.shape[1], device=device)
    layers = [fusedmm.nn.GCNConv(2, 2).to(device), fusedmm.nn.GATConv(2, 2).to(device)]
    for _ in range(5):
        fusedmm.edge_softmax(edge_index, logits)
        for n in (NODES, NODES + 1):
            fusedmm.spmm(edge_index, x[:n])
            fusedmm.sddmm(edge_index, x[:n], x[:n])
            for layer in layers:
                layer(x[:n], edge_index)
    assert conversions == [3], "one without a size and two with one, to which the layers add loops"


def test_the_size_of_a_sparse_tensor_is_its_own(conversions, device):
    adj, x = dense(edges(0, device))[:3].to_sparse(), torch.ones(NODES, 2, device=device)
    for _ in range(3):
        fusedmm.spmm(adj, x)
        fusedmm.sddmm(adj, x[:3], x)
    assert conversions == [1]


def test_sizes_are_few_and_of_one_state(device):
    edge_index = edges(0, device)
    for n in range(NODES, NODES + 3 * adapters.SIZES):
        assert fusedmm.as_csr(edge_index, size=n).shape == (n, n)
        assert fusedmm.as_csr(edge_index, size=n) is fusedmm.as_csr(edge_index, size=n)
        adapters.looped(edge_index, (n, n))
    for known in (adapters._known, adapters._looped):
        assert len(known[id(edge_index)].made) == adapters.SIZES
    edge_index[0, 0] = 0
    fusedmm.as_csr(edge_index)
    assert len(adapters._known[id(edge_index)].made) == 1, "structures of what is no more are let go"


# ---- how long, and for whom ----


def test_nothing_outlives_its_tensor_or_goes_with_copies(device):
    gc.collect()
    before = len(adapters._known), len(adapters._looped)
    edge_index = edges(0, device)
    size = len(pickle.dumps(edge_index))
    for n in (NODES, NODES + 1):
        fusedmm.as_csr(edge_index, size=n)
        adapters.looped(edge_index, (n, n))
    twin, stored = copy.deepcopy(edge_index), pickle.dumps(edge_index)
    assert len(stored) == size and not vars(edge_index) and not vars(twin)
    assert id(twin) not in adapters._known
    assert (len(adapters._known), len(adapters._looped)) == (before[0] + 1, before[1] + 1)
    del edge_index
    gc.collect()
    assert (len(adapters._known), len(adapters._looped)) == before


def test_the_memory_of_other_data_is_not_held(device):
    """What is remembered of a storage is its identity alone."""
    edge_index = edges(0, device)
    storage = adapters.StorageWeakRef(edge_index.untyped_storage())
    fusedmm.as_csr(edge_index)
    edge_index.data = edges(1, device)
    assert storage.expired()


def test_tensors_of_inference_mode_are_not_remembered(device):
    with torch.inference_mode():
        edge_index = edges(0, device)
    x = torch.eye(NODES, device=device)
    for seed in (0, 1):
        with torch.inference_mode():
            edge_index.copy_(edges(seed, device))
        assert torch.equal(fusedmm.spmm(edge_index, x), dense(edge_index))
    assert id(edge_index) not in adapters._known


def test_threads_share_a_tensor():
    """CPU only: several threads of one device's queue say no more."""
    edge_index, wrong = edges(0, "cpu"), []

    def work(k):
        for n in [NODES + (k + step) % (adapters.SIZES + 2) for step in range(60)]:
            if not torch.equal(fusedmm.as_csr(edge_index, size=n).to_dense(), dense(edge_index, n)):
                wrong.append(n)
            other = edges(n, "cpu")
            if not torch.equal(fusedmm.as_csr(other, size=n).to_dense(), dense(other, n)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_what_a_cuda_graph_records_is_not_kept(device, monkeypatch):
    """Its tensors lie in the graph's memory, and nobody has written to them before the first replay."""
    adj, e = fusedmm.CSR.from_coo(*torch.tensor([[0, 0, 1], [0, 1, 1]], device=device)), torch.ones(3, device=device)
    with monkeypatch.context() as recording:
        recording.setattr(structure, "is_captured", lambda t: True)
        fusedmm.messages.copy_e_sum(adj, e)
        assert not structure.shared_by(adj).derived
    found = fusedmm.messages.copy_e_sum(adj, e)
    assert found.tolist() == [2.0, 1.0] and structure.shared_by(adj).derived
