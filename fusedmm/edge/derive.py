"""Graphs of operations and their derivatives.

Equal subexpressions are one node, so a function and its derivatives share what they have in common.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from fusedmm.edge.constants import fold


class Node(NamedTuple):
    """Stands for an operation on earlier nodes; value is its constant."""

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0


class Graph:
    """Nodes in an order in which arguments come first, each different one once."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.known: dict[Node, int] = {}
        self.derived: dict[tuple[int, str], int] = {}
        self.lock = threading.RLock()

    def add(self, op: str, *args: int, value: float = 0.0) -> int:
        node = Node(op, args, value)
        found = self.known.get(node)
        if found is None:
            found = self.known[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    def const(self, value: float) -> int:
        return self.add("const", value=float(value) + 0.0)  # -0 is 0

    def value(self, k: int) -> float | None:
        return self.nodes[k].value if self.nodes[k].op == "const" else None

    def make(self, op: str, *args: int, value: float = 0.0) -> int:
        """Returns a node for the operation, or a simpler one: constants are computed, a 0 or 1 without effect is left
        out."""
        numbers = [self.value(k) for k in args]
        known = [n for n in numbers if n is not None]
        if len(known) == len(numbers):
            return self.const(fold(op, known, value))
        u, v = args[0], args[-1]
        a, b = numbers[0], numbers[-1]
        if op == "neg" and self.nodes[u].op == "neg":
            return self.nodes[u].args[0]
        if (op == "add" and a == 0) or (op == "mul" and a == 1):
            return v
        if (op in ("add", "sub") and b == 0) or (op in ("mul", "div") and b == 1) or (op == "pow" and value == 1):
            return u
        if (op == "mul" and 0 in (a, b)) or (op == "div" and a == 0):
            return self.const(0)
        if op == "pow" and value in (0, 2, -1):
            return self.const(1) if value == 0 else self._small_power(u, value)
        if op == "sub" and a == 0:
            return self.make("neg", v)
        if op in ("mul", "div") and b == -1:
            return self.make("neg", u)
        if op == "mul" and a == -1:
            return self.make("neg", v)
        return self.add(op, *args, value=value)

    def _small_power(self, u: int, value: float) -> int:
        return self.add("mul", u, u) if value == 2 else self.add("div", self.const(1), u)

    def reachable(self, roots: list[int]) -> list[int]:
        seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            k = waiting.pop()
            if k not in seen:
                seen.add(k)
                waiting.extend(self.nodes[k].args)
        return sorted(seen)

    def derivative(self, root: int, name: str) -> int:
        """Returns the node of root's derivative by the variable of that name; those of its parts are remembered too."""
        for k in self.reachable([root]):
            if (k, name) not in self.derived:
                self.derived[k, name] = self._rule(k, name)
        return self.derived[root, name]

    def _rule(self, k: int, name: str) -> int:
        make, const = self.make, self.const
        op, args, value = self.nodes[k]
        if not args:
            return const(1 if op == name else 0)
        d = [self.derived[u, name] for u in args]
        if all(self.value(part) == 0 for part in d):
            return const(0)
        u, v = args[0], args[-1]
        if op in ("add", "sub"):
            return make(op, d[0], d[1])
        if op == "mul":
            return make("add", make("mul", d[0], v), make("mul", u, d[1]))
        if op == "div":  # (u' - (u / v) v') / v: no square that could overflow
            return make("div", make("sub", d[0], make("mul", k, d[1])), v)
        if op in ("max", "min"):  # equal arguments share evenly
            sign = make("sign", make("sub", u, v) if op == "max" else make("sub", v, u))
            first = make("mul", const(0.5), make("add", const(1), sign))
            return make("add", make("mul", first, d[0]), make("mul", make("sub", const(1), first), d[1]))
        return make("mul", self._slope(k, op, u, value), d[0])

    def _slope(self, k: int, op: str, u: int, value: float) -> int:
        """Returns the derivative of a function of one argument, by its own value where that is stable."""
        make, const = self.make, self.const
        if op == "neg":
            return const(-1)
        if op == "exp":
            return k
        if op == "sigmoid":
            return make("mul", k, make("sub", const(1), k))
        if op == "tanh":
            return make("sub", const(1), make("mul", k, k))
        if op == "log":
            return make("div", const(1), u)
        if op == "sqrt":
            return make("div", const(0.5), k)
        if op == "softplus":
            return make("sigmoid", u)
        if op == "abs":
            return make("sign", u)
        if op == "leaky":
            return make("step", u, value=value)
        if op == "pow":
            return make("mul", const(value), make("pow", u, value=value - 1))
        return const(0)  # sign, step
