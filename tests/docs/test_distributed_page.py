"""docs/distributed.md: its programs run, its links lead somewhere, its figures come out again."""

import re

import pytest
from support.machine import ROOT, real_graph

from fusedmm.data import load_npz
from fusedmm.distributed import partition

TEXT = (ROOT / "docs" / "distributed.md").read_text()
# The sections about what happens before ranks talk to each other; the program that needs no fusedmm is run elsewhere.
SECTIONS = TEXT[TEXT.index("\n## Partition\n") :]
PROGRAMS = [block for block in re.findall(r"^```python\n(.*?)^```", SECTIONS, re.M | re.S) if "hashlib" not in block]
METHODS = ("nnz", "random")  # METIS and KaMinPar may find other parts in another release


def test_code_runs(capsys):
    names: dict[str, object] = {}
    for program in PROGRAMS:
        exec(compile(program, "docs/distributed.md", "exec"), names)
    assert "memory MiB" in capsys.readouterr().out and names["local"].ptr.numel() == 2496


@pytest.mark.parametrize("name", ["cora", "citeseer", "amazon_photo", "delaunay_n15", "usa_road_ny"])
def test_figures_come_out_again(name):
    adj = load_npz(real_graph(name)).adj
    lines = [line.split("|")[2:-1] for line in TEXT.splitlines() if line.startswith(f"| {name} |")]
    assert len(lines) == 2  # halo and cut
    for at, method in enumerate(METHODS):
        loads = {load.ranks: load for load in partition(adj, 64, method).loads()}
        for halo, cut, ranks in zip(*lines, (2, 4, 8, 64), strict=True):
            load = loads[ranks]
            assert halo.split(" · ")[at].strip() == f"{load.halo * ranks / adj.shape[0]:.2f}"
            assert cut.split(" · ")[at].strip() == f"{100 * load.cut / adj.nnz:.0f}"
