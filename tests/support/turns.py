"""Choices that multiply: a part of them that has every two together; the rest are slow."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import pytest


def in_turn(*choices: Collection[Any]) -> Iterator[Any]:
    """With each combination of the others one of the last choices, in turn; the other ones are slow."""
    for *others, (turn, last) in itertools.product(*map(enumerate, choices)):
        fits = sum(place for place, _ in others) % len(choices[-1]) == turn
        marks = [] if fits else [pytest.mark.slow]
        yield pytest.param(*(value for _, value in others), last, marks=marks)
