"""The lint of who includes whom in csrc finds what breaks each of its rules."""

import layers
import pytest


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("core/core.c", '#include "../spmm/cpu.h"'),  # what all stand on names no operator
        ("sddmm/sddmm.c", '#include "../spmm/cpu.h"'),  # nor does a room name another one
        ("sddmm/cpu.c", '#define LOOPS "../spmm/cpu.inc"'),
        ("sddmm/sddmm.c", '#include "../torch/frame.h"'),
        ("sddmm/sddmm.c", '#include "cuda.h"'),
        ("sddmm/sddmm.c", "#include <cuda_runtime.h>"),
        ("sddmm/torch.c", "#include <ATen/ATen.h>"),
    ],
)
def test_what_breaks_a_rule_is_found(tmp_path, monkeypatch, name, line):
    monkeypatch.setattr(layers, "CSRC", tmp_path)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(line + "\n")
    assert len(layers.broken(tmp_path / name)) == 1


def test_what_keeps_them_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "CSRC", tmp_path)
    (tmp_path / "sddmm").mkdir()
    path = tmp_path / "sddmm" / "cuda.cu"
    path.write_text('#include <cuda_runtime.h>\n#include "../cuda/segments.cuh"\n#include "cpu.h"\n')
    assert layers.broken(path) == []
