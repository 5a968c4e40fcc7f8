"""How the package is laid out: who imports whom, what it shows, where it leans on what torch keeps to itself, and how
much C and CUDA code there is."""

import ast
import pickle
import re

import pytest
import torch
from support.machine import ROOT

import fusedmm

PACKAGE = ROOT / "fusedmm"
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# Names that torch may change without notice: of its modules, tensors, storages and operators, and of modules' hooks.
PRIVATE = re.compile(
    r"torch(\.\w+)*\._(?!_)|from torch[\w.]* import .*\b_[a-z]|from torch[\w.]*\._"
    r"|forward_ad\._|\._(cdata|version|indices|values|schema|forward_hooks|forward_pre_hooks|backward_hooks)\b"
)
# Lines of code that csrc may have without the youngest rooms and their headers, but with what these rooms added to the
# folders that all share. What comes in is paid for by what is written twice elsewhere.
MOST_LINES, LATER = 16_300, ("spmv", "spgemm", "messages", "row_softmax", "distributed")
COMMENTS_AND_STRINGS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def imports_of(tree):
    """(name of a module of the package, node) of every import, those within functions and conditions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name their module in full"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in FILES or node.module in FILES:
                    yield (whole if whole in FILES else node.module), node


TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
IMPORTS = {name: {found for found, _ in imports_of(tree)} for name, tree in TREES.items()}


def circles(imports):
    """The modules that import themselves, through others."""
    reached = {name: set(direct) for name, direct in imports.items()}
    for through in reached:  # Warshall's closure
        for name in reached:
            if through in reached[name]:
                reached[name] |= reached[through]
    return sorted(name for name in reached if name in reached[name])


def test_no_modules_import_each_other_in_a_circle():
    """An import within a function, or one for type checkers alone, closes a circle as well."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circles(IMPORTS) == []


@pytest.mark.parametrize("name", FILES)
def test_functions_import_nothing_of_the_package(name):
    """What a file needs stands at its head; optional packages alone are imported where they are used."""
    ifs = [node for node in TREES[name].body if isinstance(node, ast.If)]
    typed = [node for node in ifs if ast.unparse(node.test) == "TYPE_CHECKING"]
    head = {id(node) for part in (TREES[name], *typed) for node in part.body}
    assert [found for found, node in imports_of(TREES[name]) if id(node) not in head] == []


def test_dir_shows_the_public_names_and_nothing_else():
    assert dir(fusedmm) == sorted(fusedmm.__all__)
    assert dir(fusedmm.nn) == sorted([*fusedmm.nn.__all__, "MessagePassing"])
    assert not [name for name in fusedmm.__all__ if name.startswith("_")]


def test_private_names_of_torch_are_in_one_file():
    assert all(
        PRIVATE.search(text) for text in ("torch._C._nothing()", "from torch.utils import _pytree", "x._version")
    )
    assert not PRIVATE.search("torch.float32; x.__dict__; fusedmm._lib")
    found = {name for name, path in FILES.items() if PRIVATE.search(path.read_text())}
    assert found == {"fusedmm._torch_compat"}


def test_pickles_name_the_class_that_users_know():
    """Pickles and exported programs then load whichever file the class is in."""
    adj = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1.0, 2.0]), (2, 3))
    stored = pickle.dumps(adj)
    assert b"fusedmm.matrix" not in stored
    assert torch.equal(pickle.loads(stored).to_dense(), adj.to_dense())


def lines_of_code(text):
    """Lines that have more than comments and blanks."""

    def without(match):
        return re.sub(r"[^\n]", "", match[0]) if match[0].startswith("/") else match[0]

    return sum(bool(line.strip()) for line in COMMENTS_AND_STRINGS.sub(without, text).split("\n"))


def test_the_c_and_cuda_code_stays_small():
    """The lessons count; what is wanted beyond is paid for by what is written twice elsewhere."""
    assert lines_of_code('int a; /* of\n two lines */\n\n// none\nputs("/* text */"); // too\n') == 2
    counted = {}
    for path in sorted((ROOT / "csrc").rglob("*")):
        room, name = path.relative_to(ROOT / "csrc").parts[0], path.stem.removeprefix("fusedmm_")
        if path.suffix in (".c", ".h", ".inc", ".def", ".cu", ".cuh") and room not in LATER and name not in LATER:
            counted[room] = counted.get(room, 0) + lines_of_code(path.read_text())
    assert {"attention", "cpu", "cuda", "fused", "lessons", "sddmm", "spmm"} <= counted.keys()
    assert sum(counted.values()) <= MOST_LINES, counted
