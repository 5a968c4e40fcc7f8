"""Choices that multiply: a part of them that has every two together; the rest are slow."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import pytest


def in_turn(*choices: Collection[Any], slow: Collection[Any] = ()) -> Iterator[Any]:
    """With each combination of the others one of the last choices, in turn; the other ones are slow.

    slow: of the first choices those of which every combination is.
    """
    for *others, (turn, last) in itertools.product(*map(enumerate, choices)):
        fits = sum(place for place, _ in others) % len(choices[-1]) == turn
        marks = [] if fits and others[0][1] not in slow else [pytest.mark.slow]
        yield pytest.param(*(value for _, value in others), last, marks=marks)
