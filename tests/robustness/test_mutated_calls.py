"""Public functions with arguments that nobody should give: a result or an error that names what is wrong, no crash.

The private operators below them go through the same under sanitizers (tests/fuzz/fuzz_torch.py), with calls that are
recorded here too, so that none is forgotten.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.calls import operators, recorded
from support.generate import small, works
from support.mutations import SIZES, mutated, resized

import fusedmm

CALLS = 400  # of each function
BEYOND_MEMORY = "memory", "Storage size calculation overflowed"  # said by us, or by torch of a copy that we ask for
EDGES = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 1, 3]])


def test_every_operator_is_recorded():
    """A new one has to be called by tests/support/calls.py to be fuzzed."""
    assert {operator.name() for operator, _ in recorded([torch.float32])} == operators()


def fits(t: Any, like: torch.Tensor) -> bool:
    dense = isinstance(t, torch.Tensor) and not t.is_nested and t.layout == torch.strided
    return dense and (t.shape, t.dtype, t.device) == (like.shape, like.dtype, like.device)


def on_matrix(call: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function with a matrix whose content is mutated behind every check, like its other arguments."""

    def made(ptr: Any, idx: Any, eid: Any, val: Any = None, **others: Any) -> Any:
        adj = small(device=device)
        for held, t in ((adj.ptr, ptr), (adj.idx, idx), (adj.eid, eid)):
            if fits(t, held):
                held.data.copy_(t)
        return call(adj.with_values(val), **others)

    return made


def arguments(name: str, device: str) -> dict[str, Any]:
    """Good ones."""

    def dense(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    adj = small(device=device)
    row, col, val = adj.coo()
    pattern = {"ptr": adj.ptr, "idx": adj.idx, "eid": adj.eid}
    matrix = {**pattern, "val": val}
    names = {"reduce": "sum", "algorithm": "auto"}
    given: dict[str, dict[str, Any]] = {
        "from_coo": {"row": row, "col": col, "val": val, "shape": (12, 15)},
        "from_csr": {"ptr": adj.ptr, "idx": adj.idx, "val": val, "shape": (12, 15)},
        "from_edge_index": {"edge_index": EDGES.to(device), "edge_weight": dense(5), "size": 4},
        "spmm": {**matrix, "x": dense(15, 5), **names},
        "sddmm": {**matrix, "a": dense(12, 5), "b": dense(15, 5), "op": "dot", "algorithm": "auto"},
        "fused": {
            **matrix, "x": dense(12, 5), "y": dense(15, 5), "z": dense(15, 7), "score": "dot", "edge": "s*a",
            "message": "scale", "activation": None, **names,
        },
        "attention": {
            **pattern, "q": dense(12, 2, 5), "k": dense(15, 2, 5), "v": dense(15, 2, 7), "score": "gatv2", "slope": 0.2,
            "att": dense(2, 5), "bias": dense(60, 2), "edge_weight": dense(60), "dropout": 0.5, "algorithm": "auto",
        },
        "edge_softmax": {**pattern, "logits": dense(60, 2)},
    }  # fmt: skip
    return given[name]


def by_name(name: str, given: Any) -> re.Pattern[str]:
    """How an error begins: with the argument, an element or several of them, and what is or must be of it."""
    words = "|".join((*given, "values"))
    operator = "spm[mv]" if name == "spmm" else name  # spmm of a vector is spmv's
    return re.compile(
        rf"({operator}: |an )?({words})( ?[\[(].*?[\])])?( = -?\d+|: both)? (is|has|have|must) "
        rf"|{name} has no algorithm '|tensors on several devices: ({words}) on "
    )


def test_texts_without_an_argument_are_not_by_name():
    known = by_name("sddmm", arguments("sddmm", "cpu"))
    assert known.match("sddmm: a has 3 rows, the matrix 12 rows") and known.match("val must be one dense tensor")
    for text in ("an operand has 3 rows", "sddmm: operands must be dense", "a tensor is needed", "bad values", "op"):
        assert not known.match(text), text


ON_MATRICES = ["spmm", "sddmm", "fused", "attention", "edge_softmax"]
CONSTRUCTORS = ["from_coo", "from_csr", "from_edge_index"]


@pytest.mark.parametrize("name", ON_MATRICES + CONSTRUCTORS)
@pytest.mark.filterwarnings("ignore")
def test_a_result_or_an_error_by_name(name, device):
    call = getattr(fusedmm.CSR, name) if name in CONSTRUCTORS else on_matrix(getattr(fusedmm, name), device)
    unnamed = {}
    for number in range(CALLS):
        rng = random.Random(f"{name} {number}")
        given = arguments(name, device)
        for _ in range(rng.choice([1, 1, 2])):
            change(rng, given)
        try:
            call(**given)
        except Exception as error:
            if isinstance(error, (TypeError, ValueError)):
                said = by_name(name, given).match(str(error)) is not None
            else:
                said = any(text in str(error) for text in BEYOND_MEMORY)
            if not said:
                unnamed[number] = repr(error)
    assert not unnamed, "\n".join(f"{k} {v}" for k, v in unnamed.items())
    works(device)


def change(rng: random.Random, given: dict[str, Any]) -> None:
    """One of the arguments is another, or all sizes of one number are."""
    tensors = [t for t in given.values() if isinstance(t, torch.Tensor)]
    name = rng.choice([*given, None])
    try:
        if name is None:
            given.update(zip(given, resized(rng, list(given.values())), strict=True))
        elif rng.random() < 0.1:
            given[name] = rng.choice([None, 0, "x", [1, 2], (3, -1), 0.5, {}])
        elif isinstance(given[name], tuple):
            given[name] = tuple(rng.choice([n, -1, *SIZES]) for n in given[name])
        elif isinstance(given[name], int):
            given[name] = rng.choice([-1, *SIZES])  # and none that would take the machine's memory
        else:
            given[name] = mutated(rng, given[name], tensors)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        pass  # torch has no such tensor
