"""Kernel files say why: their share of comments, their opening, the lengths of functions and templates."""

import kernel_files
import pytest
from support.machine import ROOT


@pytest.mark.parametrize("path", kernel_files.kernel_files(), ids=lambda p: str(p.relative_to(kernel_files.CSRC)))
def test_a_kernel_file_keeps_the_limits(path):
    assert not kernel_files.faults(path)


def test_the_worked_example_keeps_them_too():
    paths = sorted((ROOT / "docs" / "example_operator" / "csrc" / "rowsum").glob("c*.c"))
    assert [path.name for path in paths] == ["cpu_algorithms.c", "cuda_algorithms.c"]
    assert not [fault for path in paths for fault in kernel_files.faults(path)]


def test_every_room_has_kernel_files():
    rooms = {path.relative_to(kernel_files.CSRC).parts[0] for path in kernel_files.kernel_files()}
    assert {"spmm", "sddmm", "fused", "attention", "spmv", "spgemm", "messages", "cpu", "cuda", "lessons"} <= rooms


def test_what_is_counted():
    assert kernel_files.comment_share('int a; /* of\n two lines */\n\n// one\nputs("/* text */");\n') == 0.75
    body = "x;\n" * kernel_files.MOST_LINES
    assert kernel_files.long_functions("static void f(void)\n{\n" + body + "}\n") == [
        f"a function of {kernel_files.MOST_LINES + 2} lines at line 2"
    ]
    assert not kernel_files.long_functions("static void f(void)\n{\n}\n" + body)
    seven = "template <class A, class B, int C, int D, bool E, pair<int, f(int, int)> F, int G>\n"
    assert kernel_files.many_parameters(seven) == ["7 template parameters at line 1"]
    assert not kernel_files.many_parameters(seven.replace(", int G", ""))
