"""Edge functions w(s, a): expressions of users, read with a whitelist and made into small programs of the kernels.

Python's ``ast`` parses a text, and Python never evaluates it. What is on the whitelist becomes nodes of a graph
(``derive.Graph``), which the kernels run as a program over 16 registers (csrc/fused/cpu_edge.inc);
``Expression.torch`` computes the same with torch.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedmm.edge.assemble import assemble
from fusedmm.edge.derive import Graph

MAX_LENGTH, MAX_DEPTH = 1000, 40

FUNCTIONS = {
    "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "log": "log", "sqrt": "sqrt", "softplus": "softplus",
    "abs": "abs", "relu": "leaky", "leaky_relu": "leaky", "minimum": "min", "maximum": "max",
}  # fmt: skip
_BINARY: dict[type, str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_TORCH: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": torch.neg, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "abs": torch.abs,
    "softplus": lambda u: torch.logaddexp(u, torch.zeros_like(u)), "sign": torch.sign, "max": torch.maximum,
    "min": torch.minimum,
}  # fmt: skip


def _evaluate(op: str, args: list[Tensor], value: float) -> Tensor:
    if op == "pow":
        return torch.pow(args[0], value)
    if op == "step":
        return torch.where(args[0] > 0, torch.ones_like(args[0]), torch.full_like(args[0], value))
    if op == "leaky":
        return torch.relu(args[0]) if value == 0 else torch.nn.functional.leaky_relu(args[0], value)
    return _TORCH[op](*args)


class Expression:
    """A function of a score ``s`` and an edge value ``a``; made by ``parse``.

    Example:
        >>> f = fusedmm.edge.parse.parse("sigmoid(s) * a")
        >>> f.derivative("a")
        Expression('sigmoid(s)')
        >>> f.torch(torch.tensor([0.0]), torch.tensor([2.0]))
        tensor([1.])
    """

    def __init__(self, graph: Graph, root: int) -> None:
        self.graph, self.root = graph, root
        self._steps: dict[bool, list[tuple[float, ...]]] = {}
        self._programs: dict[bool, Tensor] = {}
        self._uses: dict[str, bool] = {}

    def derivative(self, name: str) -> Expression:
        """Returns the derivative by ``"s"`` or ``"a"``: an expression again, so any order exists."""
        if name not in ("s", "a"):
            raise ValueError(f"an edge function has the variables s and a, not {name!r}")
        with self.graph.lock:
            return Expression(self.graph, self.graph.derivative(self.root, name))

    def torch(self, s: Tensor, a: Tensor) -> Tensor:
        """Computes the function with torch, elementwise; s and a broadcast."""
        s, a = torch.broadcast_tensors(s, a)
        values: dict[int, Tensor] = {}
        for k in self.graph.reachable([self.root]):
            op, args, value = self.graph.nodes[k]
            if abs(value) > torch.finfo(s.dtype).max:  # as a kernel has it, where torch refuses such a number
                value = math.copysign(math.inf, value)
            if op in ("s", "a"):
                values[k] = s if op == "s" else a
            elif op == "const":
                values[k] = torch.full_like(s, value)
            else:
                values[k] = _evaluate(op, [values[u] for u in args], value)
        return values[self.root]

    def uses(self, name: str) -> bool:
        """Tells whether s, or a, is in the expression."""
        if name not in self._uses:
            self._uses[name] = any(self.graph.nodes[k].op == name for k in self.graph.reachable([self.root]))
        return self._uses[name]

    def program(self, gradients: bool = False) -> Tensor:
        """Returns the kernels' program: float64 [steps, 5] of (operation, register, left, right, constant) on the CPU.

        Registers 0 and 1 hold s and a at the start, 0 the value at the end; with gradients, 1 and 2 the
        derivatives by s and by a.

        Raises:
            ValueError: more steps or registers are needed than there are.
        """
        found = self._programs.get(gradients)
        if found is None:
            found = torch.tensor(self.steps(gradients), dtype=torch.float64, device="cpu").reshape(-1, 5)
            if type(found) is Tensor:  # and not one of a trace
                self._programs[gradients] = found
        return found

    def steps(self, gradients: bool) -> list[tuple[float, ...]]:
        """Returns the program as a list."""
        found = self._steps.get(gradients)
        if found is None:
            roots = [self.root]
            if gradients:
                roots += [self.derivative("s").root, self.derivative("a").root]
            found = self._steps[gradients] = assemble(self.graph, roots)
        return found

    def __repr__(self) -> str:
        return f"Expression({_text(self.graph, self.root)!r})"


def _text(graph: Graph, root: int) -> str:
    """Returns the expression as a text that parses to it; shared parts are written out, so long ones are cut."""
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
    names = {"max": "maximum", "min": "minimum", "leaky": "leaky_relu"}
    texts: dict[int, str] = {}
    for k in graph.reachable([root]):
        op, args, value = graph.nodes[k]
        parts = [texts[u] for u in args]
        if op == "const":
            text = f"{value!r}" if value >= 0 else f"({value!r})"
        elif op in ("s", "a"):
            text = op
        elif op in signs:
            text = f"({parts[0]} {signs[op]} {parts[1]})"
        elif op == "neg":
            text = f"(-{parts[0]})"
        elif op == "pow":
            text = f"({parts[0]} ** {value!r})"
        else:
            tail = f", {value!r}" if op in ("leaky", "step") else ""
            text = f"{names.get(op, op)}({', '.join(parts)}{tail})"
        texts[k] = text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 3] + "..."
    return texts[root]


class _Reader:
    """Turns Python's syntax tree into a graph; everything that is not listed is refused."""

    def __init__(self, text: str) -> None:
        self.text, self.graph = text, Graph()

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        piece = ast.get_source_segment(self.text, node) or self.text
        raise ValueError(f"edge: {_cut(piece)!r} {why}")

    def read(self, node: ast.AST, depth: int = 0) -> int:
        """Returns the node of a piece; constants stay finite."""
        k = self.read_any(node, depth)
        if not math.isfinite(self.graph.value(k) or 0):
            self.refuse(node, "is no finite number")
        return k

    def read_any(self, node: ast.AST, depth: int) -> int:
        if depth > MAX_DEPTH:
            self.refuse(node, f"is nested deeper than {MAX_DEPTH}")
        if isinstance(node, ast.Constant):
            return self.graph.const(self.number(node, node.value))
        if isinstance(node, ast.Name):
            if node.id not in ("s", "a"):
                self.refuse(node, "is no variable; there are s (the score) and a (the value)")
            return self.graph.add(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            u = self.read(node.operand, depth + 1)
            return self.graph.make("neg", u) if isinstance(node.op, ast.USub) else u
        if isinstance(node, ast.BinOp):
            return self.binary(node, depth)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        self.refuse(node, "is not allowed; there are numbers, s, a, + - * / **, and " + ", ".join(FUNCTIONS))

    def number(self, node: ast.AST, value: Any) -> float:
        if type(value) not in (int, float):
            self.refuse(node, "is no real number")
        try:
            return float(value)
        except OverflowError:
            return math.inf

    def constant(self, node: ast.AST, k: int, what: str) -> float:
        value = self.graph.value(k)
        if value is None:
            self.refuse(node, f"must be a number: {what}")
        return value

    def binary(self, node: ast.BinOp, depth: int) -> int:
        left, right = self.read(node.left, depth + 1), self.read(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            power = self.constant(node.right, right, "powers are constant")
            return self.graph.make("pow", left, value=power)
        op = _BINARY.get(type(node.op))
        if op is None:
            self.refuse(node, "uses an operator other than + - * / **")
        return self.graph.make(op, left, right)

    def call(self, node: ast.Call, depth: int) -> int:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(node, "is no function of edges; there are " + ", ".join(FUNCTIONS))
        fewest, most = (2, 2) if name in ("minimum", "maximum") else (1, 2 if name == "leaky_relu" else 1)
        if not fewest <= len(node.args) <= most:
            self.refuse(node, f"has {len(node.args)} arguments, {fewest if fewest == most else '1 or 2'} are needed")
        args = [self.read(a, depth + 1) for a in node.args]
        if name == "leaky_relu":
            slope = self.constant(node.args[1], args[1], "slopes are constant") if len(args) == 2 else 0.01
            return self.graph.make("leaky", args[0], value=slope)
        return self.graph.make(FUNCTIONS[name], *args)


def _cut(piece: str) -> str:
    """A piece as errors show it."""
    return piece if len(piece) <= 60 else piece[:57] + "..."


def _fault(text: str, error: Exception) -> str:
    """Says what is wrong with a text that Python cannot parse, and where; the first character is number 1."""
    if not text:
        return "is empty; s*a is an example of an expression"
    opened: list[int] = []
    for at, letter in enumerate(text, 1):
        if letter == "(":
            opened.append(at)
        elif letter == ")" and not opened:
            return f"has no ( for the ) at character {at}"
        elif letter == ")":
            opened.pop()
    if opened:
        return f"has no ) for the ( at character {opened[-1]}"
    if isinstance(error, (RecursionError, MemoryError)) or "too many nested" in str(error):
        return "is nested deeper than Python reads"
    line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None)
    at = sum(len(before) + 1 for before in text.split("\n")[: line - 1]) + (column or len(text) + 1)
    at = text.find("\0") + 1 or at
    if at > len(text):
        return "ends where a number, s, a or a function has to follow"
    hint = "; functions have ( ), products *" if text[at - 1].isalnum() else ""
    return f"cannot be read from character {at} on: {_cut(text[at - 1 :])!r}{hint}"


def parse(text: str) -> Expression:
    """Reads an edge function.

    Args:
        text: an expression in ``s`` and ``a`` with numbers, ``+ - * /``, ``**`` by a constant, and
            sigmoid, tanh, exp, log, sqrt, softplus, abs, relu, leaky_relu(u, slope), minimum, maximum.

    Raises:
        TypeError: not a text.
        ValueError: anything else in it; the message holds the piece.
    """
    if not isinstance(text, str):  # before the cache, which would refuse a list by another name
        raise TypeError(f"edge must be an expression in s and a, not {type(text).__name__}")
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Expression:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"edge has {len(text)} characters, {MAX_LENGTH} at most")
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"edge: {_cut(text)!r} {_fault(text, error)}") from None
    reader = _Reader(text)
    expression = Expression(reader.graph, reader.read(tree))
    expression.steps(gradients=True)  # too long is said here, not in a backward
    return expression
