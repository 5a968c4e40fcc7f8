"""docs/matrix.md: its code runs, every call in its tables works, and no name of another library is missing."""

import inspect
import re
from itertools import permutations, product

import pytest
import torch
from support.machine import ROOT

import fusedmm

TEXT = (ROOT / "docs/matrix.md").read_text()
OURS, *OTHERS = TEXT.split("## What others have")[0], *re.split(r"^### |^Methods of ", TEXT, flags=re.M)[2:]
SECTIONS = {part.split()[0].strip("`"): part for part in OTHERS}

# What the libraries show: torch_sparse 0.6.18, torch_scatter 2.1.2, dgl.sparse and dgl.ops of August 2025.
NAMES = {
    "dgl.ops": " ".join(
        [f"u_{op}_e_{reduce}" for op in ("add", "sub", "mul", "div") for reduce in ("sum", "max", "min", "mean")]
        + [f"copy_{target}_{reduce}" for target in "ue" for reduce in ("sum", "max", "min", "mean")]
        + [f"{a}_{op}_{b}" for a, b in permutations("uve", 2) for op in ("add", "sub", "mul", "div", "dot")]
        + "gspmm gsddmm copy_u copy_v edge_softmax segment_reduce segment_softmax segment_mm gather_mm".split()
    ),
    "torch_sparse": """SparseStorage SparseTensor t narrow __narrow_diag__ select index_select index_select_nnz
        masked_select masked_select_nnz permute remove_diag set_diag fill_diag get_diag add add_ add_nnz add_nnz_ mul
        mul_ mul_nnz mul_nnz_ sum mean min max matmul cat random_walk partition reverse_cuthill_mckee saint_subgraph
        to_torch_sparse from_torch_sparse to_scipy from_scipy coalesce transpose eye spmm spspmm spadd""",
    "SparseTensor": """from_storage from_edge_index from_dense from_torch_sparse_coo_tensor from_torch_sparse_csr_tensor
        copy clone type type_as to_device device_as coo csr csc has_value set_value_ set_value sparse_sizes sparse_size
        sparse_resize sparse_reshape is_coalesced fill_cache_ clear_cache_ __eq__ fill_value_ fill_value sizes size dim
        nnz numel density sparsity avg_row_length avg_col_length bandwidth avg_bandwidth bandwidth_proportion
        is_quadratic is_symmetric to_symmetric detach_ detach requires_grad requires_grad_ pin_memory is_pinned device
        cpu cuda is_cuda dtype is_floating_point bfloat16 bool byte char half float double short int long to_dense
        to_torch_sparse_coo_tensor to_torch_sparse_csr_tensor to_torch_sparse_csc_tensor sample sample_adj
        share_memory_ is_shared to""",
    "torch_scatter": """scatter_sum scatter_add scatter_mul scatter_mean scatter_min scatter_max scatter segment_sum_csr
        segment_add_csr segment_mean_csr segment_min_csr segment_max_csr segment_csr gather_csr segment_sum_coo
        segment_add_coo segment_mean_coo segment_min_coo segment_max_coo segment_coo gather_coo scatter_std
        scatter_logsumexp scatter_softmax scatter_log_softmax""",
    "dgl.sparse": """sp_broadcast_v sp_add_v sp_sub_v sp_mul_v sp_div_v add sub mul div power spsp_add spsp_mul spsp_div
        sp_add sp_sub sp_mul sp_div sp_power spmm bspmm spspmm matmul reduce sum smax smin smean sprod sddmm bsddmm
        softmax spmatrix from_coo from_csr from_csc val_like diag identity from_torch_sparse to_torch_sparse_coo
        to_torch_sparse_csr to_torch_sparse_csc neg inv SparseMatrix.val .shape .nnz .dtype .device .row .col .coo
        .indices .csr .csc .to_dense .t .T .transpose .to .cuda .cpu .float .double .int .long .coalesce .has_duplicate
        .is_diag .index_select .range_select .sample .compact""",
}
OF_THE_LIBRARY = {"make", "transpose_half", "constant_values"}
ON_A_GPU = {"cuda", "pin_memory"}


def rows(text):
    """The cells of each line of its tables."""
    lines = (re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip().replace(r"\|", "|") for cell in cells] for cells in lines if "---" not in cells[0]][1:]


def calls(cell):
    return re.findall(r"`([^`]+)`", cell)


def words(name):
    """Every name that one with braces stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return ["".join(chosen) for chosen in product(*parts)]


OWN = [call for line in rows(OURS) for call in calls(line[0])]
THEIRS = [(name, line) for name, text in SECTIONS.items() for line in rows(text)]


def page(text=TEXT):
    """The names that its code makes."""
    torch.manual_seed(0)
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "docs/matrix.md", "exec"), found)
    return found


@pytest.fixture(scope="module")
def names():
    return page()


def result(call, names):
    if "to_scipy" in call:
        pytest.importorskip("scipy.sparse")
    if "to_pyg" in call:
        pytest.importorskip("torch_geometric")
    return eval(call, dict(names))


@pytest.mark.parametrize("call", OWN)
def test_a_call_of_ours_works(call, names):
    assert result(call, names) is not None


@pytest.mark.parametrize("section, line", THEIRS, ids=[f"{name} {line[0][:30]}" for name, line in THEIRS])
def test_a_counterpart_works_or_has_a_reason(section, line, names):
    theirs, ours, remark = line
    assert calls(theirs), line
    if not calls(ours):
        assert ours == "none" and len(remark) > 10, line
    for call in calls(ours):
        assert result(call, names) is not None


@pytest.mark.parametrize("section", NAMES)
def test_no_function_is_missing(section):
    listed = [word for line in rows(SECTIONS[section]) for name in calls(line[0]) for word in words(name)]
    known = NAMES[section].split()
    if section == "SparseTensor":  # methods that are functions as well stand in the table before
        known = [name for name in known if name not in NAMES["torch_sparse"].split()]
    assert sorted(listed) == sorted(known)


def test_the_shortcuts_of_dgl_have_their_names_here():
    for name in NAMES["dgl.ops"].split():
        shortcut = "_e_" in name or "copy" in name or name[:2] in ("u_", "v_", "e_")
        assert not shortcut or callable(getattr(fusedmm.messages, name))


def test_no_function_of_pyg_is_missing():
    utils = pytest.importorskip("torch_geometric.utils")
    listed = [name for line in rows(SECTIONS["torch_geometric.utils"]) for name in calls(line[0])]
    assert sorted(set(utils.__all__) - set(listed)) == [] and len(set(listed)) == len(listed)
    assert [name for name in listed if not hasattr(utils, name)] == []


def test_no_method_of_ours_is_missing():
    text = " ".join(call for line in rows(OURS) for cell in line for call in calls(cell))
    for name in dir(fusedmm.CSR):
        found = inspect.getattr_static(fusedmm.CSR, name)
        public = callable(getattr(fusedmm.CSR, name)) or isinstance(found, property)
        if public and not name.startswith(("_", "from_")) and name not in OF_THE_LIBRARY | ON_A_GPU:
            assert re.search(rf"\.{name}\b", text), f"docs/matrix.md lacks CSR.{name}"
    for name in ("block_diag", "vstack", "hstack", "unbatch"):
        assert f"{name}(" in text


def test_the_order_of_values_is_what_the_table_says(names):
    """A's: the result has A's entries in A's order. Rows: in the order of the result's rows."""
    a = names["A"].with_values(torch.arange(1.0, 9.0))
    for cells in rows(OURS):
        for call in calls(cells[0]):
            if re.search(r"B|add_|set_|remove|eye|gcn|unbatch|tensors|coo|edge_index|cpu", call):
                continue
            found = result(call, names | {"A": a})
            if not isinstance(found, fusedmm.CSR):
                continue
            row, col, _ = found.coo()
            if cells[2] == "A's":
                there = (row, col) if found.shape == a.shape and not re.search(r"\.t\(|\.T", call) else (col, row)
                assert torch.equal(there[0], a.coo()[0]) and torch.equal(there[1], a.coo()[1]), call
            elif cells[2] == "rows":
                assert torch.equal(row, row.sort(stable=True).values), call
