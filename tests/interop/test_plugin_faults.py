"""Plug-ins that are cut short, or fail without a word: an error by name, and the process goes on."""

import pytest
import torch
from support.machine import ROOT
from test_plugins import CC, build, python

import fusedmm

pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

SILENT = """
#include <fusedmm.h>
FMM_PLUGIN { (void)host; return FMM_UNSUPPORTED; }
"""

FAILS = """
#include <fusedmm.h>
static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec;
    return call->x->feat == 1 ? FMM_UNSUPPORTED : (fmm_status)call->x->feat;
}
static fmm_algorithm silent = {.name = "silent", .about = "fails", .source = "a test", .run = run};
FMM_PLUGIN { return host->add(FMM_SPMM, FMM_CPU, &silent); }
"""


def written(text, folder):
    source = folder / "written.c"
    source.write_text(text)
    return build(source, folder)


def test_a_file_that_is_cut_short(tmp_path):
    """At every length up to a header's, and then at some; dlopen would take many and die of SIGBUS."""
    whole = build(ROOT / "tests" / "plugin_example.c", tmp_path).read_bytes()
    cut = tmp_path / "cut.so"
    for length in (*range(65), *range(65, len(whole), 997), len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut.so cannot be loaded: "):
            fusedmm.load_algorithms(cut)


def test_a_header_that_tells_of_more(tmp_path):
    whole = bytearray(build(ROOT / "tests" / "plugin_example.c", tmp_path).read_bytes())
    for place in (32, 40):  # where the tables begin
        forged = whole.copy()
        forged[place : place + 8] = b"\xff" * 7 + b"\x7f"
        (tmp_path / "forged.so").write_bytes(forged)
        with pytest.raises(ValueError, match=rf"it has {len(whole)} bytes, its headers tell of 9223372036854"):
            fusedmm.load_algorithms(tmp_path / "forged.so")


def test_a_refusal_without_a_word(tmp_path):
    """The text of an earlier error is not taken for the plug-in's."""
    silent = written(SILENT, tmp_path)
    adj = fusedmm.CSR.from_edge_index(torch.zeros(2, 1, dtype=torch.int64), size=1)
    with pytest.raises(ValueError, match="x "):
        fusedmm.spmm(adj, torch.ones(2, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"written.so was refused: it does not say why$"):
            fusedmm.load_algorithms(silent)


def test_a_call_that_fails_without_a_word(tmp_path):
    """And one whose status is none of the header's."""
    out = python(
        """
fusedmm.load_algorithms(args[0])
adj = fusedmm.CSR.from_coo(torch.tensor([0]), torch.tensor([0]), shape=(1, 1))
for feat in (1, 77, 3):
    try:
        fusedmm.spmm(adj, torch.ones(1, feat), algorithm="silent")
    except (ValueError, RuntimeError) as e:
        print(type(e).__name__, e)
print(fusedmm.spmm(adj, torch.ones(1, 2)).tolist())
""",
        written(FAILS, tmp_path),
    )
    assert "algorithm silent failed without saying why" in out, out
    assert "algorithm silent failed with status 77, which means nothing" in out, out
    assert out.endswith("[[1.0, 1.0]]"), out
