"""Plug-ins: the example of docs/plugins.md works, and what is no plug-in is refused by name.

What is registered stays, so plug-ins that work are loaded in a process of their own.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import ROOT

import fusedmm

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")


def build(source: Path, folder: Path) -> Path:
    target = folder / (source.stem + ".so")
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared"]
    flags.append(f"-I{ROOT / 'csrc' / 'include'}")
    subprocess.run([str(CC), *flags, str(source), "-o", str(target)], check=True)
    return target


def python(code: str, *arguments: object) -> str:
    """What the code prints, with fusedmm and torch imported and the arguments in `args`."""
    head = "import sys, torch, fusedmm\nargs = sys.argv[1:]\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_example(tmp_path):
    """Listed, called by name, with gradients; what it declines is an error; loading again adds nothing."""
    out = python(
        """
before = [a.name for a in fusedmm.algorithms("spmm", "cpu")]
added, = fusedmm.load_algorithms(args[0])
assert added.name == "plain" and added.number >= 1000 and added.deterministic, added
assert fusedmm.load_algorithms(args[0]) == [added]
assert [a.name for a in fusedmm.algorithms("spmm", "cpu")] == [*before, "plain"]
index = torch.randint(0, 40, (2, 300))
adj = fusedmm.CSR.from_coo(index[0], index[1], shape=(40, 40))
x = torch.randn(40, 7, requires_grad=True)
def call(adj, x):
    return fusedmm.spmm(adj, x, algorithm="plain")
first = torch.compile(call, fullgraph=True, backend="aot_eager")(adj, x.detach())
y = call(adj, x)
torch.testing.assert_close(y, adj.to_dense() @ x)
assert torch.equal(y, first)
gx, = torch.autograd.grad(y.sum(), x)
torch.testing.assert_close(gx, adj.to_dense().sum(0)[:, None].expand(-1, 7))
for wrong in (dict(reduce="max"), dict()):
    try:
        fusedmm.spmm(adj, x if wrong else x.double(), algorithm="plain", **wrong)
    except ValueError as e:
        print(e)
""",
        build(ROOT / "tests" / "plugin_example.c", tmp_path),
    )
    assert out.count("algorithm plain does not support this call") == 2, out


def test_one_for_fused(tmp_path):
    """It reads the edge function's program and takes two of them; what it declines is an error by name."""
    out = python(
        """
added, = fusedmm.load_algorithms(args[0])
assert added.name == "plain" and added.number >= 1000, added
index = torch.randint(0, 40, (2, 300))
adj = fusedmm.CSR.from_coo(index[0], index[1], torch.randn(300), shape=(40, 40))
x = torch.randn(40, 2, 7)
pattern = fusedmm.CSR.from_csr(adj.ptr, adj.idx, shape=(40, 40))  # in the order of its rows, as plain asks
for a, edge in ((adj, "s*a"), (adj, "a*s"), (pattern, "s")):
    torch.testing.assert_close(fusedmm.fused(a, x, edge=edge, algorithm="plain"), fusedmm.fused(a, x, edge=edge))
for options in (dict(edge="s+a"), dict(edge="a*a"), dict(reduce="mean"), dict(score="l1")):
    try:
        fusedmm.fused(adj, x, algorithm="plain", **options)
    except ValueError as e:
        print(e)
""",
        build(ROOT / "tests" / "plugin_fused.c", tmp_path),
    )
    assert out.count("algorithm plain does not support this call") == 4, out


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*none\.so"):
        fusedmm.load_algorithms(tmp_path / "none.so")


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    with pytest.raises(ValueError, match=r"text\.so cannot be loaded: "):
        fusedmm.load_algorithms(path)


HOST = "{ return host->add(FMM_SPMM, FMM_CPU, &a); }"
RUN = "static fmm_status run(const fmm_exec *e, const fmm_call *c) { (void)e, (void)c; return FMM_OK; }\n"
BAD = {
    "other": ("int something;", "is no plug-in: it does not define FMM_PLUGIN"),
    "half": ("const int fmm_plugin_abi = FMM_ABI;", "is no plug-in: it does not define FMM_PLUGIN"),
    "old": (
        "#include <stdlib.h>\nextern const int fmm_plugin_abi; const int fmm_plugin_abi = 999;\n"
        "int fmm_plugin(void); int fmm_plugin(void) { abort(); }",
        "was built for interface 999 of fusedmm.h",
    ),
    "taken": (
        RUN + 'static fmm_algorithm a = {.name = "reference", .run = run};\nFMM_PLUGIN ' + HOST,
        "was refused: fmm_register: spmm on cpu already has an algorithm reference",
    ),
    "no_run": (
        'static fmm_algorithm a = {.name = "empty"};\nFMM_PLUGIN ' + HOST,
        "was refused: fmm_register: an algorithm needs a name and a run function",
    ),
    "no_operator": (
        RUN + 'static fmm_algorithm a = {.name = "a", .run = run};\n'
        "FMM_PLUGIN { return host->add((fmm_operator)77, FMM_CPU, &a); }",
        "was refused: fmm_register: no operator 77 on device 0",
    ),
    "own_error": (
        'FMM_PLUGIN { return host->fail(FMM_UNSUPPORTED, "needs a left-handed machine"); }',
        "was refused: needs a left-handed machine",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_plugins_are_refused_by_name(name, tmp_path):
    source, message = BAD[name]
    (tmp_path / f"{name}.c").write_text('#include "fusedmm.h"\n' + source + "\n")
    path = build(tmp_path / f"{name}.c", tmp_path)
    before = fusedmm.algorithms("spmm", "cpu")
    with pytest.raises(ValueError, match=re.escape(f"{path} {message}")):
        fusedmm.load_algorithms(path)
    assert fusedmm.algorithms("spmm", "cpu") == before


def test_documentation_shows_the_same_interface(tmp_path):
    """The C code of docs/plugins.md compiles as it stands and loads."""
    text = (ROOT / "docs" / "plugins.md").read_text()
    code = text.split("```c\n")[1].split("```")[0]
    (tmp_path / "shown.c").write_text(code.replace("{ /* y", "{ (void)exec, (void)call; /* y"))
    path = build(tmp_path / "shown.c", tmp_path)
    assert python("print([a.name for a in fusedmm.load_algorithms(args[0])])", path) == "['mine']"
