"""Every public name is documented, and its example gives what it says."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import torch
from support.machine import ROOT

import fusedmm
import fusedmm.data
import fusedmm.distributed

MODULES = [
    m.name
    for m in pkgutil.walk_packages(fusedmm.__path__, "fusedmm.")
    if not m.name.endswith("__main__") and not m.name.endswith("libfusedmm")
]
SECTIONS = ("Args:", "Returns:", "Raises:", "Example:")
FUNCTIONS = {name: getattr(fusedmm, name) for name in fusedmm.__all__ if inspect.isfunction(getattr(fusedmm, name))}
NAMESPACES = (fusedmm, fusedmm.nn, fusedmm.data, fusedmm.distributed, fusedmm.formats)
PUBLIC = {
    f"{space.__name__}.{name}": getattr(space, name)
    for space in NAMESPACES
    for name in space.__all__
    if not inspect.ismodule(getattr(space, name))
}


@pytest.mark.parametrize("name", ["fusedmm", *MODULES])
def test_examples_run(name):
    module = importlib.import_module(name)
    names = {"torch": torch, "fusedmm": fusedmm}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_every_section(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    # What takes nothing has no arguments to name and nothing to refuse.
    wanted = SECTIONS if inspect.signature(function).parameters else ("Returns:", "Example:")
    assert [s for s in wanted if s not in text] == [], f"fusedmm.{name} lacks sections"
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in text or f"{parameter}, " in text, f"fusedmm.{name} does not explain {parameter}"
    assert ">>> " in text


def test_public_names_exist_and_are_documented():
    for name in fusedmm.__all__:
        assert inspect.getdoc(getattr(fusedmm, name)), name
    for name, member in inspect.getmembers(fusedmm.CSR):
        if not name.startswith("_") and callable(member):
            assert inspect.getdoc(member), f"CSR.{name}"
    for name in ("fusedmm", *MODULES):
        assert importlib.import_module(name).__doc__ or name == "fusedmm.ops", name


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example(name):
    """It is among those that test_examples_run runs: the name is at home in one of the package's modules."""
    assert ">>> " in (inspect.getdoc(PUBLIC[name]) or "")
    assert PUBLIC[name].__module__ in ("fusedmm", *MODULES)


def test_readme_runs():
    """The Python of the README, one block after the other, as a reader would type it."""
    pytest.importorskip("torch_geometric")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "out" in names and names["out"].shape == (3, 64)
