"""The library in the package: what it needs, what it asks of others, what it says of itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.generate import small
from support.machine import ROOT

import fusedmm
from fusedmm import _lib

LIBRARY = fusedmm._lib.library._name


def readelf(*options: str) -> list[str]:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("there is no readelf")
    return subprocess.run([tool, *options, LIBRARY], capture_output=True, text=True, check=True).stdout.splitlines()


def test_it_needs_the_c_library_only():
    """No torch, no Python, no OpenMP, no C++ runtime: so one binary serves every torch and Python."""
    needed = [line.split("[")[1].rstrip("]") for line in readelf("-dW") if "(NEEDED)" in line]
    family = ("libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "ld-linux")
    assert needed and all(name.startswith(family) for name in needed), needed


def test_it_asks_for_no_symbol_of_torch_or_python():
    rows = [line.split() for line in readelf("--dyn-syms", "-W") if " UND " in line]
    symbols = [row[7].split("@")[0] for row in rows if len(row) > 7]
    theirs = ("Py", "_Py", "aoti_", "torch", "_Z", "__gxx", "GOMP", "omp_", "cuda", "cu")
    foreign = [s for s in symbols if s.startswith(theirs)]
    assert "dlsym" in symbols and foreign == [], foreign


def test_it_exports_its_own_names_only():
    symbols = [line.split() for line in readelf("--dyn-syms", "-W")]
    exported = [s[7].split("@")[0] for s in symbols if len(s) > 7 and s[4] == "GLOBAL" and s[6] not in ("UND", "Ndx")]
    assert "fmm_spmm" in exported and all(name.startswith("fmm_") for name in exported), exported


def test_wheel_tag():
    """py3-none-<platform>: read from setup.py, without building."""
    pytest.importorskip("setuptools", minversion="77")
    code = (
        "import setuptools, runpy\n"
        "made = {}\n"
        "setuptools.setup = lambda **options: made.update(options)\n"
        "runpy.run_path('setup.py')\n"
        "distribution = made['distclass']({'name': 'fusedmm', 'ext_modules': made['ext_modules']})\n"
        "wheel = made['cmdclass']['bdist_wheel'](distribution)\n"
        "wheel.ensure_finalized()\n"
        "print('-'.join(wheel.get_tag()))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1].startswith("py3-none-linux_"), out


def built(target: Path, *command: str, **environment: str) -> str:
    """What a build says; it ends well, or not."""
    run = [sys.executable, *command, str(target)]
    done = subprocess.run(run, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_a_wrong_cuda_home_is_an_error(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    said = built(tmp_path, "setup.py", "build_ext", "--build-lib", FUSEDMM_CUDA="auto", CUDA_HOME=str(tmp_path))
    assert f"CUDA_HOME is {tmp_path}, but there is no {tmp_path}/bin/nvcc" in said


def test_a_wheel_is_whole(tmp_path):
    """Made from the checkout, installed elsewhere and imported there; what is compiled already is not compiled anew."""
    pytest.importorskip("setuptools", minversion="77")
    cuda = {"FUSEDMM_CUDA": "0" if fusedmm.build_info()["cuda"] is None else "1"}
    pip = ["-m", "pip", "--disable-pip-version-check", "-q"]
    fresh = f"--config-settings=--global-option=build --build-base={tmp_path}/build"  # no modules of former days
    assert built(tmp_path, *pip, "wheel", ".", "--no-deps", "--no-build-isolation", fresh, "-w", **cuda) == ""
    (wheel,) = tmp_path.glob("fusedmm-*-py3-none-linux_*.whl")
    assert built(wheel, *pip, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "there")) == ""
    code = (
        "import os, fusedmm, fusedmm.nn, fusedmm.data, fusedmm.train, pathlib, torch\n"
        "adj = fusedmm.CSR.from_coo(torch.arange(3), torch.arange(3), shape=(3, 3))\n"
        "assert torch.equal(fusedmm.spmm(adj, torch.ones(3, 2)), torch.ones(3, 2))\n"
        "root = pathlib.Path(fusedmm.__file__).parent\n"
        "assert fusedmm.build_info()['include'] == str(root / 'include')\n"
        "print(*os.listdir(root / 'include'))\n"
        "print(*(path.relative_to(root) for path in root.rglob('*') if path.suffix in ('.py', '.so', '.typed')))"
    )
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "there"), "FUSEDMM_GRAPHS": ""}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=there, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    package = ROOT / "fusedmm"
    wanted = {str(p.relative_to(package)) for p in package.rglob("*") if p.suffix in (".py", ".so", ".typed")}
    headers = {path.name for path in (ROOT / "csrc" / "include").iterdir()}
    assert set(ran.stdout.split()) == wanted | headers


def planned(*options: str) -> str:
    """What make would run."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    return subprocess.run(["make", "-n", *options], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_an_interrupted_installation_is_taken_up_again(tmp_path):
    """The interpreter is there before the packages are: only a stamp says that a step is done."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert f"{tmp_path}/bin/pip install -q torch==" in planned("demo", f"VENV={tmp_path}")
    for stamp in ("torch", "demo"):
        (tmp_path / stamp).touch()
    assert "pip install" not in planned("demo", f"VENV={tmp_path}")


def test_build_info():
    info = fusedmm.build_info()
    assert info["version"] == fusedmm.__version__ and info["torch"] == torch.__version__
    assert info["compiler"] and info["isa"][0] == "scalar"
    assert set(info["isa"]) <= {"scalar", "avx2", "avx512", "neon"}
    json.dumps(info)
    assert Path(info["include"], "fusedmm.h").exists()
    assert info["cuda"] is None or isinstance(info["cuda"], dict)


def test_registry():
    """Numbers are what exported programs embed: unique, and found again by name; reference is always there."""
    for op in ("spmm", "sddmm"):
        for device in ("cpu", "cuda"):
            listed = fusedmm.algorithms(op, device)
            assert listed[0].name == "reference" and len({a.number for a in listed}) == len(listed)
            for a in listed:
                assert a.number > 0 and a.about
                assert a.unavailable or _lib.algorithm_number(op, device, a.name) == a.number


if fusedmm.build_info()["cuda"] is None and torch.cuda.is_available():

    def test_a_build_without_cuda_says_what_to_do():
        """A CUDA tensor in a CPU-only build gets an error that names the remedy."""
        with pytest.raises(RuntimeError, match="built without CUDA"):
            fusedmm.spmm(small(device="cuda"), torch.ones(15, 2, device="cuda"))


def test_an_unbuilt_checkout_says_how_to_build_it(tmp_path):
    shutil.copytree(Path(fusedmm.__file__).parent, tmp_path / "fusedmm", ignore=shutil.ignore_patterns("*.so", "__py*"))
    ran = subprocess.run([sys.executable, "-c", "import fusedmm"], cwd=tmp_path, capture_output=True, text=True)
    assert "libfusedmm.so" in ran.stderr and "in a checkout `pip install -e .` builds it" in ran.stderr, ran.stderr


def test_it_needs_torch_in_the_process():
    """CPU only: without torch the library loads, and its C interface works; only registering says no."""
    code = (
        "import ctypes, sys\n"
        f"library = ctypes.CDLL({LIBRARY!r})\n"
        "library.fmm_torch_register.restype = ctypes.c_char_p\n"
        "print(library.fmm_torch_register().decode())\n"
        "assert 'torch' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "import torch first" in out


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_algorithms_of_a_device_of_any_form(kind):
    listed = fusedmm.algorithms("spmm", kind)
    for device in (f"{kind}:0", torch.device(kind), torch.device(kind, 1)):
        assert fusedmm.algorithms("spmm", device) == listed
    other = fusedmm.algorithms("spmm", {"cpu": "cuda", "cuda": "cpu"}[kind])
    assert listed != other, "each kind has its own"


ASK = """
import os, sys, fusedmm, torch
for wish in sys.argv[1:]:
    child = os.fork()  # before the first call, which reads the wish for good
    if child:
        os.waitpid(child, 0)
        continue
    os.environ["FUSEDMM_ISA"] = wish
    try:
        adj = fusedmm.CSR.from_coo(torch.arange(3), torch.arange(3), shape=(3, 3))
        assert fusedmm.spmm(adj, torch.ones(3, 2), algorithm="rows:scalar").sum() == 6
        print(wish, fusedmm.spmm(adj, torch.ones(3, 2)).sum().item(), flush=True)
    except Exception as error:
        print(wish, type(error).__name__, error, flush=True)
    os._exit(0)
"""


def test_a_wish_for_an_instruction_set_is_heard_or_refused():
    heard, refused = ["", "scalar", "avx2", "avx512", "neon"], ["avx", "AVX2"]
    ran = subprocess.run([sys.executable, "-c", ASK, *heard, *refused], cwd=ROOT, capture_output=True, text=True)
    said = [f"{wish} 6.0" for wish in heard]
    for wish in refused:
        said.append(f"{wish} RuntimeError FUSEDMM_ISA must be scalar, avx2, avx512 or neon")
    lines = ran.stdout.splitlines()
    assert len(lines) == len(said) and all(map(str.startswith, lines, said)), ran.stdout + ran.stderr
