"""Calls of the private operators with arguments that nobody should give, on the library that watches itself.

A call may give results or raise what names an argument or the operator. It may not crash, take long, be reported by a
sanitizer or raise an error that says nothing, and the next good call works. Each call is made from its number and the
seed alone, in a child whose last call is known after its end: fuzz_torch.py SEED CALLS [FIRST].
"""

from __future__ import annotations

import mmap
import os
import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.calls import Call, recorded
from support.mutations import mutated, resized

SECONDS = 20  # that a call may take, of which all are small
GOOD_EVERY = 50  # calls
ROOM = 4096  # for what is told of a call
FINDINGS = 10  # after which it gives up
RAISED = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)


def fresh(args: tuple[Any, ...]) -> list[Any]:
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in args]


def same(found: Any, expected: Any) -> bool:
    """Bit by bit."""
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    return all(torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8)) for a, b in pairs)


def named(operator: Any, error: Exception) -> bool:
    """Whether an error says of what it speaks. What torch or a fake kernel raises is theirs."""
    text = str(error).partition("\n")[0]
    kind, _, rest = text.partition(": ")
    if kind not in ("invalid", "unsupported", "device"):
        return bool(text) and "INTERNAL ASSERT" not in text
    names = {a.name for a in operator._schema.arguments} | {"a tensor of"}
    return bool(re.match(r"\w+: ", rest)) or any(re.search(rf"\b{name}\b", rest) for name in names)


def fuzz(seed: int, numbers: range, calls: dict[str, list[Call]], told: mmap.mmap) -> None:
    """Makes the calls, and tells each before it is made."""
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        operator, good = rng.choice(calls[rng.choice(list(calls))])
        args = fresh(good)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            k = rng.randrange(len(args) + 1)
            try:
                if k == len(args):
                    args = resized(rng, args)
                else:
                    args[k] = mutated(rng, args[k], [t for t in good if isinstance(t, torch.Tensor)])
            except RAISED:
                continue  # torch has no such tensor
        told[:] = f"{number}\n{operator.name()}\n{''.join(map(shown, args))}"[:ROOM].encode().ljust(ROOM)
        signal.alarm(SECONDS)
        try:
            operator(*args)
        except RAISED as error:
            if not named(operator, error):
                raise
        signal.alarm(0)
        if number % GOOD_EVERY == 0:
            try:
                found = operator(*fresh(good))
            except RuntimeError:
                continue
            assert found is None or same(found, operator(*fresh(good))), "a good call after a bad one"


def shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"    {value!r}\n"
    layout = tuple(value.stride()) if value.layout == torch.strided and not value.is_nested else value.layout
    shape = "nested" if value.is_nested else list(value.shape)
    return f"    {shape} {value.dtype} {value.device} {layout}\n"


def main() -> int:
    """Goes on behind a call that found something; fails if any did."""
    seed = int(sys.argv[1])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    end, findings = first + int(sys.argv[2]), 0
    torch.manual_seed(0)
    calls: dict[str, list[Call]] = {}
    for operator, args in recorded():
        calls.setdefault(operator.name(), []).append((operator, args))
    told = mmap.mmap(-1, ROOM)
    while first < end and findings < FINDINGS:
        child = os.fork()
        if not child:
            fuzz(seed, range(first, end), calls, told)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not status:
            break
        number, _, call = told[:].decode().partition("\n")
        first, findings = int(number) + 1, findings + 1
        print(f"fuzz_torch: ended with {status}; replay: fuzz_torch.py {seed} 1 {number}\n{call.strip()}", flush=True)
    print(f"fuzz_torch: seed {seed}, up to call {end} of {len(calls)} operators, {findings} findings")
    return findings and 1


if __name__ == "__main__":
    sys.exit(main())
