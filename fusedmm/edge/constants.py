"""Computes the constant parts of an edge function, by the rules of IEEE arithmetic.

It uses Python's floats and no tensors, so that an expression can be read while torch traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _sigmoid(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "neg": lambda a: -a,
    "exp": math.exp,
    "log": lambda a: math.log(a) if a else -math.inf,
    "sqrt": math.sqrt,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
    "softplus": lambda a: max(a, 0.0) + math.log1p(math.exp(-abs(a))),
    "abs": abs,
    "sign": lambda a: float((a > 0) - (a < 0)),
    "max": max,
    "min": min,
}


def fold(op: str, numbers: list[float], value: float) -> float:
    """Returns op of numbers; infinite where it overflows, not a number where it is not defined."""
    u = numbers[0] if numbers else 0.0
    try:
        if op == "pow":
            return _divide(1.0, u**-value) if u == 0 and value < 0 else float(math.pow(u, value))
        if op == "leaky":
            return u if u > 0 else value * u
        if op == "step":
            return 1.0 if u > 0 else value
        return float(_FUNCTIONS[op](*numbers))
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
