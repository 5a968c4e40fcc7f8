"""README.md and the pages it sends a reader to: their length, their links, their code and their figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.machine import ROOT

from benchmarks import answers, summary

LINES, CHARACTERS = 150, 900
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ["README.md", "docs/benchmarks.md", "docs/usage.md"]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> list[str]:
    """Paragraphs and lists: what stands between empty lines, without code and tables."""
    blocks = FENCED.sub("", text_of(page)).split("\n\n")
    return [block for block in blocks if not block.lstrip().startswith(("|", "<!--"))]


def without_code(page: str) -> str:
    return re.sub(r"`[^`]*`", "", FENCED.sub("", text_of(page)))


def tracked(*patterns: str) -> list[Path]:
    """Files under git, in a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).exists()]


def test_results_are_small():
    files = tracked("benchmarks/results")
    assert sum(file.stat().st_size for file in files) <= 6_000_000
    assert [f"{file.name}: {file.stat().st_size}" for file in files if file.stat().st_size > 100_000] == []


def test_pictures_are_shown():
    """A picture that no document links is seen by nobody. Suites draw more of them than documents show."""
    documents = "".join(file.read_text() for file in tracked("*.md", "*.ipynb"))
    assert [file.name for file in tracked("benchmarks/results/*.png") if f"/{file.name})" not in documents] == []


def test_readme_is_short():
    assert text_of("README.md").count("\n") <= LINES


@pytest.mark.parametrize("page", PAGES)
def test_no_paragraph_is_long(page):
    blocks = prose(page)
    assert len(blocks) > 10
    assert [block for block in blocks if len(block) > CHARACTERS] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)]+)\)", without_code(page))
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES[1:])
def test_code_runs(page):
    """As a reader would type it; README's is run by test_documentation.py."""
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S):
        exec(compile(block, page, "exec"), names)


def test_commands_are_there():
    """Of README's shell commands: the targets are in the Makefile, the modules answer."""
    commands = re.findall(r"^(?:\w+=\S+ )?(make|pip|python)\s+(.+?)(?:\s+#.*)?$", shell("README.md"), re.M)
    assert {name for name, _ in commands} == {"make", "pip"}
    for name, rest in commands:
        assert (
            re.search(rf"^{rest}:", text_of("Makefile"), re.M)
            if name == "make"
            else rest in ("install -e .", "install torch_geometric")
        )


def shell(page: str) -> str:
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", text_of(page), re.M | re.S))


def test_variables_are_read():
    """Every variable that the page of settings has is read by what it says reads it."""
    named = set(re.findall(r"`(FUSEDMM_\w+|CUDA_HOME|TORCH_CUDA_ARCH_LIST)` \|", text_of("docs/usage.md")))
    files = "setup.py csrc/cpu/isa.c fusedmm/data/files.py tests/conftest.py tests/support/machine.py".split()
    read = set(re.findall(r'"(FUSEDMM_\w+|CUDA_HOME|TORCH_CUDA_ARCH_LIST)"', "".join(map(text_of, files))))
    assert named <= read and {"FUSEDMM_CUDA", "FUSEDMM_ISA"} <= named


@pytest.mark.parametrize("page", answers.PAGES, ids=lambda page: page.stem)
def test_figures_are_those_of_the_results(page, tmp_path):
    """Computing the tables anew changes nothing."""
    copy = tmp_path / "page.md"
    shutil.copy(page, copy)
    answers.fill(copy, RESULTS)
    assert copy.read_text() == page.read_text(), "python -m benchmarks answers"


@pytest.mark.parametrize("page", PAGES[:2])
def test_every_table_has_results(page):
    marks = [match[2] for match in answers.MARKED.finditer(text_of(page))]
    assert marks and all(mark in summary.TABLES and answers.made(mark, RESULTS) for mark in marks)


def test_a_wrong_figure_is_seen(tmp_path):
    """What is between the marks is replaced, and nothing else."""
    copy = tmp_path / "page.md"
    copy.write_text("before 1.5\n<!-- table readme_results -->\n| 99 |\n<!-- end -->\nafter\n")
    answers.fill(copy, RESULTS)
    text = copy.read_text()
    assert text.startswith("before 1.5\n") and text.endswith("<!-- end -->\nafter\n") and "99 |" not in text


def test_every_line_has_cases():
    """A pattern or a name that finds nothing would leave a line out without a word."""
    lines = [*summary.CUDA, *summary.FRONT, *summary.MORE, *summary.ONE, *summary.CPU, *summary.MORE_CPU]
    for line in lines:
        found = summary.cases(line, RESULTS)
        assert found, line
        assert all((RESULTS / f"{stem}.md").exists() for stem in line.stems)
        assert all(re.search(line.split, summary.setting(case)) for _, case in found), line


def test_the_smaller_figure_counts(tmp_path: Path):
    """Of a case in two results."""
    for stem, speedup in (("a", 3.0), ("b", 2.0)):
        found = {"op": "layers", "cases": [{"graph": "g", "case": "GCNConv 8", "speedup": speedup}]}
        (tmp_path / f"{stem}.json").write_text(json.dumps(found))
    line = summary.Line("op", "graph", ("a", "b"))
    assert [times for times, _ in summary.cases(line, tmp_path)] == [2.0]


def test_links_name_the_card_of_their_results():
    """A link whose text is a card leads to a file that was measured on it."""
    named = [
        (card, (page.parent / name).resolve())
        for page in tracked("README.md", "docs/*.md")
        for card, name in re.findall(r"\[(H100|H200)\]\(([^)]+)\)", page.read_text())
    ]
    assert named
    assert [f"{card}: {path.name}" for card, path in named if card not in path.read_text()] == []
