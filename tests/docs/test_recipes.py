"""docs/recipes: every script runs to its end, where its assertions are, and the index lists all of them."""

import ast
import re
import runpy

import pytest
from support.machine import ROOT

FOLDER = ROOT / "docs/recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.py"))
SLOW = {"compile", "ddp"}  # torch's compiler, and two processes that import torch


ON_A_GPU = "cuda_graph"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in RECIPES if n != ON_A_GPU]
)
def test_a_recipe_runs(name, capsys):
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_a_recipe_runs_on_a_gpu(cuda, capsys):
    runpy.run_path(str(FOLDER / f"{ON_A_GPU}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_checks_itself(name):
    text = (FOLDER / f"{name}.py").read_text()
    tree = ast.parse(text)
    assert 10 <= len(text.splitlines()) <= 50
    assert re.fullmatch(r'"""[^"]+\."""', text.splitlines()[0])
    calls = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert "assert_close" in calls or any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def test_the_index_lists_every_recipe_with_its_first_line():
    listed = dict(re.findall(r"^\| \[(\w+)\]\(\1\.py\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.M))
    first = {name: (FOLDER / f"{name}.py").read_text().splitlines()[0].strip('"') for name in RECIPES}
    assert listed == first and len(listed) >= 40
