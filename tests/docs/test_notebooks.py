"""The notebooks run from top to bottom, and are committed as they ran."""

import ast
from pathlib import Path

import pytest
from support.machine import ROOT

FOLDER = ROOT / "notebooks"
NAMES = ["graph_transformer", "node_embedding", "partition", "quickstart", "sparse_formats", "swap_in_pyg"]

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def plots(notebook):
    return sum("image/png" in output.get("data", {}) for cell in code(notebook) for output in cell.outputs)


def test_every_notebook_is_here():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def test_they_run(monkeypatch):
    """Every cell of all of them in one kernel, which forgets every name after each: imports take most of a notebook's
    time. The asserts in a notebook are what its text promises."""
    pytest.importorskip("torch_geometric")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where fusedmm is built in place and not installed
    notebooks = [read(name) for name in NAMES]
    shown, cells = [plots(notebook) for notebook in notebooks], []
    for notebook in notebooks:
        assert any(isinstance(node, ast.Assert) for cell in code(notebook) for node in ast.walk(ast.parse(cell.source)))
        cells += [*code(notebook), nbformat.v4.new_code_cell("%reset -f")]
    joined = nbformat.v4.new_notebook(cells=cells, metadata=notebooks[0].metadata)
    client = nbclient.NotebookClient(joined, timeout=300, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()  # raises with the traceback of the cell
    assert [plots(notebook) for notebook in notebooks] == shown and all(shown)


@pytest.mark.parametrize("name", NAMES)
def test_is_committed_with_its_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    kinds = {output.output_type for cell in code(notebook) for output in cell.outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}
    streams = [output for cell in code(notebook) for output in cell.outputs if output.output_type == "stream"]
    assert streams and all(stream.name == "stdout" for stream in streams)  # no warnings
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    """Relative links in the text are files beside the notebook."""
    for cell in read(name).cells:
        if cell.cell_type == "markdown":
            for part in cell.source.split("](")[1:]:
                target = part.split(")")[0]
                assert "://" in target or (FOLDER / Path(target)).is_file(), target
