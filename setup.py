"""Builds libfusedmm.so with a C compiler, and nvcc where there is one; no torch, no Python headers.

Environment: FUSEDMM_CUDA=auto|0|1, CUDA_HOME, TORCH_CUDA_ARCH_LIST, CC, CFLAGS.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.extension import Extension

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
ARCHS = "7.5 8.0 8.6 9.0 10.0 12.0+PTX"
SHARED = dict(re.findall(r"^(\w+) := *(.*)$", (CSRC / "flags.mk").read_text(), re.M))  # with the Makefile
C_FLAGS = f"{SHARED['C_FLAGS']} {SHARED['WARNINGS']}"
# gcc's -O3 takes half as long again and makes the kernels, whose loops are vectors as written, no faster.
GCC_FLAGS = "-O2 -ftree-vectorize -fvect-cost-model=dynamic -funswitch-loops"
NVCC_HOST_FLAGS = "-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics"
CUDA_FLAGS = f"-O3 -std=c++17 -Xfatbin=-compress-all -Xcompiler {NVCC_HOST_FLAGS}"
LINK_FLAGS = "-shared -Wl,--no-undefined -Wl,--exclude-libs,ALL -ldl -lpthread -lm"
ISAS = {"x86_64": ("avx512", "avx2", "scalar"), "aarch64": ("neon", "scalar")}  # of each machine
PER_ISA = ("cpu.c", "index_check.c")  # what is compiled once per instruction set; cpu.c also once per pair of dtypes
NVCC_HELP = "set CUDA_HOME or PATH to a CUDA toolkit, or FUSEDMM_CUDA=0 for a CPU-only build"


def find_nvcc() -> str | None:
    wanted = os.environ.get("FUSEDMM_CUDA", "auto")
    if wanted not in ("auto", "0", "1"):
        raise SystemExit(f"FUSEDMM_CUDA must be auto, 0 or 1, not {wanted!r}")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    if home and not candidates[0].exists():
        raise SystemExit(f"CUDA_HOME is {home}, but there is no {candidates[0]}: {NVCC_HELP}")
    candidates += [Path(p) for p in (shutil.which("nvcc"),) if p] + [Path("/usr/local/cuda/bin/nvcc")]
    found = next((str(c.resolve()) for c in candidates if c.exists()), None)
    if found is None and wanted == "1":
        raise SystemExit(f"FUSEDMM_CUDA=1, but there is no nvcc: {NVCC_HELP}")
    return found


def arch_list() -> list[str]:
    return os.environ.get("TORCH_CUDA_ARCH_LIST", ARCHS).replace(";", " ").split()


def gencode(archs: list[str]) -> list[str]:
    flags = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        code = f"sm_{number}" if not arch.endswith("+PTX") else f"[sm_{number},compute_{number}]"
        flags.append(f"-gencode=arch=compute_{number},code={code}")
    return flags


def cuda_library_flags(nvcc: str) -> list[str]:
    """Where nvcc itself would look for libcudart_static.a: toolkits are laid out in many ways."""
    steps = subprocess.run([nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True)
    prefix = "#$ LIBRARIES="
    line = next(text for text in steps.stderr.splitlines() if text.startswith(prefix))
    return shlex.split(line.removeprefix(prefix))


def compiler_name(*command: str) -> str:
    """The first line of --version, in which gcc stands as what it was called by: a wrapper's name says nothing."""
    text = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    line = text.splitlines()[0].replace('"', "")
    return f"gcc {line.partition(' ')[2]}" if "Free Software Foundation" in text else line


def is_built(source: Path, with_cuda: bool) -> bool:
    """Whether a file belongs to the library: names and folders that begin with cuda need nvcc, absent.c its lack."""
    parts = source.relative_to(CSRC).parts
    if "lessons" in parts:
        return False
    if source.stem == "absent":
        return not with_cuda
    return with_cuda or not any(part.startswith("cuda") for part in parts)


def isa_variants(source: Path) -> list[tuple[str, list[str]]]:
    """(name, flags) of every object that a C file becomes."""
    if source.name not in PER_ISA:
        return [("", [])]
    found = []
    for isa in ISAS.get(platform.machine(), ("scalar",)):
        command = [*shlex.split(SHARED[isa.upper()]), f"-DFMM_ISA={isa}"]
        found.append((f".{isa}", command))
        if source.name == "cpu.c":
            found.append((f".{isa}.bits16", [*command, "-DFMM_16_BITS"]))
    return found


def compile_commands(objects: Path, nvcc: str | None) -> list[tuple[Path, Path, list[str]]]:
    """(source, object, command) of every file."""
    cc = shlex.split(os.environ.get("CC", "cc"))
    compiler = compiler_name(*cc)
    optimise = GCC_FLAGS if compiler.startswith("gcc ") else "-O3"
    c_flags = shlex.split(f"{C_FLAGS} {optimise} {os.environ.get('CFLAGS', '')}")
    sources = [s for pattern in ("*.c", "*.cu") for s in CSRC.rglob(pattern) if is_built(s, nvcc is not None)]
    # The slowest first: two cores then end together.
    sources.sort(key=lambda s: (s.suffix != ".cu", s.name not in PER_ISA, s))
    commands = []
    for source in sources:
        if source.suffix == ".cu":
            variants = [("", [nvcc or "", *shlex.split(CUDA_FLAGS), *gencode(arch_list())])]
        else:
            variants = [(name, [*cc, *c_flags, *flags]) for name, flags in isa_variants(source)]
        for name, command in variants:
            target = objects / (str(source.relative_to(CSRC)).replace("/", "_") + name + ".o")
            command += [f'-DFMM_CC="{compiler}"', f'-DFMM_CUDA_ARCHS="{" ".join(arch_list())}"']
            command += ["-MMD", "-MF", str(target.with_suffix(".d"))]
            commands.append((source, target, [*command, "-c", str(source), "-o", str(target)]))
    return commands


def is_current(target: Path, command: str) -> bool:
    """Whether the object was made by this command and is newer than every file that its compiler then read."""
    note, depends = target.with_suffix(".command"), target.with_suffix(".d")
    if not (target.exists() and note.exists() and depends.exists()) or note.read_text() != command:
        return False
    read = shlex.split(depends.read_text().partition(":")[2].replace("\\\n", " "))
    made = target.stat().st_mtime
    return all(Path(name).exists() and Path(name).stat().st_mtime < made for name in read)


def build(library: Path, objects: Path) -> None:
    """Compiles what changed, in parallel, and links the library."""
    nvcc = find_nvcc()
    objects.mkdir(parents=True, exist_ok=True)
    commands = compile_commands(objects, nvcc)

    def make(job: tuple[Path, Path, list[str]]) -> None:
        _, target, command = job
        text = shlex.join(command)
        if is_current(target, text):
            return
        print(text, flush=True)
        subprocess.run(command, check=True)
        target.with_suffix(".command").write_text(text)  # other flags make other objects

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, commands))
    link = [*shlex.split(os.environ.get("CC", "cc")), *[str(t) for _, t, _ in commands], "-o", str(library)]
    link += shlex.split(LINK_FLAGS)
    if nvcc is not None:
        link += [*cuda_library_flags(nvcc), "-lcudart_static", "-lrt"]
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(link, check=True)


class BuildLibrary(build_ext):
    """The library is loaded with ctypes: no module, no suffix of one Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        build(library, ROOT / "build" / "objects")
        if not self.inplace:  # a wheel brings what plug-ins are compiled with
            shutil.copytree(CSRC / "include", library.parent / "include", dirs_exist_ok=True)


class Wheel(bdist_wheel):
    """One wheel for every Python: py3-none-<platform>."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    ext_modules=[Extension("fusedmm.libfusedmm", sources=[])],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
