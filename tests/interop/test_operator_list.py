"""One line of csrc/core/operators.def makes an operator, and Python retypes no number of C."""

import re

import torch
from support.machine import ROOT

import fusedmm  # noqa: F401  registers the operators
from fusedmm import _lib

LINES = (ROOT / "csrc" / "core" / "operators.def").read_text().partition("\n\nOPERATOR")
LISTED = re.findall(r"^(OPERATOR|SINGLE|BOXED)\((\w+)", "OPERATOR" + LINES[2], re.M)
TABLE = re.compile(r"const fmm_torch_operator fmm_torch_(\w+)\[\] = \{.*?^\};", re.M | re.S)


def test_operators_are_the_lines_of_the_list():
    assert list(_lib.OPERATORS) == [name for kind, name in LISTED if kind == "OPERATOR"]
    assert list(_lib.OPERATORS.values()) == list(range(len(_lib.OPERATORS)))


def test_every_table_of_boxed_kernels_has_a_line_and_is_registered():
    tables = {}
    for path in (ROOT / "csrc").glob("*/torch*.c"):
        for table in TABLE.finditer(path.read_text()):
            tables[table[1]] = re.findall(r'^    \{"(\w+)",', table[0], re.M)
    assert sorted(tables) == sorted(name for _, name in LISTED)
    known = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fusedmm::")}
    assert {f"fusedmm::{name}" for names in tables.values() for name in names} <= known


def test_numbers_have_one_meaning_each():
    seen = [name for path in (ROOT / "csrc").glob("*/torch*.c") for name in numbers_in(path.read_text())]
    assert len(seen) == len(set(seen)) and set(seen) <= set(_lib.NUMBERS)


def numbers_in(text: str) -> list[str]:
    return re.findall(r"FMM_NUMBER\((FMM_\w+)\)", text)
