"""The faults of tests/mutants.py fit the sources, those of CUDA too, which few machines can run."""

import mutants
import pytest
from support.machine import ROOT


@pytest.mark.parametrize("mutant", [*mutants.CPU, *mutants.CUDA], ids=lambda m: f"{m.file}: {m.name}")
def test_a_fault_has_one_place_and_tests_that_there_are(mutant):
    text = (ROOT / "csrc" / mutant.file).read_text()
    assert text.count(mutant.before) == 1 and mutant.before != mutant.after
    path, _, name = mutant.tests.partition("::")
    assert f"def {name or 'test_'}" in (ROOT / path).read_text()
