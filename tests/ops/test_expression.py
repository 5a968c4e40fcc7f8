"""Edge functions: what is read and what is refused, derivatives against sympy, stability, programs."""

import math
import re

import pytest
import torch

from fusedmm.edge.assemble import MAX_STEPS, OPS, REGISTERS
from fusedmm.edge.parse import MAX_DEPTH, MAX_LENGTH, Expression, parse

sympy = pytest.importorskip("sympy")

SMOOTH = [
    "s*a", "sigmoid(s)", "a/(1+s**2)", "exp(-s/2)", "tanh(s)*a - s", "log(1 + s**2)", "softplus(s + a)",
    "sqrt(1 + s**2)", "(s**2 + 1)**-0.5", "s**3 / (2 + a**2)", "sigmoid(s)*tanh(a*s)", "-s + +a", "2**-3 * s",
]  # fmt: skip
KINKED = ["abs(s)*a", "relu(s - a)", "leaky_relu(s, 0.2)*a", "leaky_relu(s)", "minimum(s, a)", "maximum(s*a, a)"]


def oracle(text):
    s, a = sympy.symbols("s a", real=True)
    names = {
        "s": s, "a": a, "sigmoid": lambda u: 1 / (1 + sympy.exp(-u)), "softplus": lambda u: sympy.log(1 + sympy.exp(u)),
        "abs": sympy.Abs, "relu": lambda u: sympy.Max(u, 0), "minimum": sympy.Min, "maximum": sympy.Max,
        "leaky_relu": lambda u, k=0.01: sympy.Piecewise((u, u > 0), (k * u, True)),
    }  # fmt: skip
    return sympy.sympify(text, locals=names), s, a


POINTS = [(0.3, -1.2), (-1.7, 0.4), (2.5, 1.5), (-0.6, -2.0)]


def compare(expression, wanted, s, a):
    for sv, av in POINTS:
        here = float(expression.torch(torch.tensor(sv, dtype=torch.float64), torch.tensor(av, dtype=torch.float64)))
        there = float(wanted.subs({s: sv, a: av}).evalf())
        assert here == pytest.approx(there, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("text", SMOOTH + KINKED)
def test_derivatives_against_sympy(text):
    wanted, s, a = oracle(text)
    expression = parse(text)
    compare(expression, wanted, s, a)
    for name, symbol in (("s", s), ("a", a)):
        first = expression.derivative(name)
        compare(first, wanted.diff(symbol), s, a)
        if text in SMOOTH:
            compare(first.derivative("s"), wanted.diff(symbol, s), s, a)
            compare(first.derivative("a").derivative("s"), wanted.diff(symbol, a, s), s, a)


def interpret(program, s, a, results):
    """The program, step by step, as csrc/include/fusedmm_fused.h describes it."""
    registers = [math.nan] * REGISTERS
    registers[0], registers[1] = s, a
    functions = {
        "add": lambda u, v, k: u + v, "sub": lambda u, v, k: u - v, "mul": lambda u, v, k: u * v,
        "div": lambda u, v, k: u / v, "neg": lambda u, v, k: -u, "pow": lambda u, v, k: u**k,
        "exp": lambda u, v, k: math.exp(u), "log": lambda u, v, k: math.log(u), "sqrt": lambda u, v, k: math.sqrt(u),
        "sigmoid": lambda u, v, k: 1 / (1 + math.exp(-u)), "tanh": lambda u, v, k: math.tanh(u),
        "softplus": lambda u, v, k: math.log1p(math.exp(u)), "abs": lambda u, v, k: abs(u),
        "sign": lambda u, v, k: (u > 0) - (u < 0), "max": lambda u, v, k: max(u, v), "min": lambda u, v, k: min(u, v),
        "leaky": lambda u, v, k: u if u > 0 else k * u, "step": lambda u, v, k: 1 if u > 0 else k,
        "const": lambda u, v, k: k, "copy": lambda u, v, k: u,
    }  # fmt: skip
    for op, out, left, right, constant in program.tolist():
        registers[int(out)] = functions[OPS[int(op)]](registers[int(left)], registers[int(right)], constant)
    return registers[:results]


@pytest.mark.parametrize("text", [*SMOOTH, *KINKED, "a", "s", "1", "s - s", "a*a"])
def test_programs(text):
    expression = parse(text)
    three = [expression, expression.derivative("s"), expression.derivative("a")]
    for sv, av in POINTS:
        s, a = torch.tensor(sv, dtype=torch.float64), torch.tensor(av, dtype=torch.float64)
        wanted = [float(e.torch(s, a)) for e in three]
        assert interpret(expression.program(), sv, av, 1) == pytest.approx(wanted[:1], rel=1e-12)
        assert interpret(expression.program(gradients=True), sv, av, 3) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("text", ["sigmoid(s)", "tanh(s)", "softplus(s)", "leaky_relu(s, 0.2)*a", "relu(s)", "abs(s)"])
def test_no_nan_at_large_scores(text):
    s = torch.tensor([-1000.0, -100.0, 0.0, 100.0, 1000.0])
    a = torch.full_like(s, 2.0)
    e: Expression = parse(text)
    for k in (e, e.derivative("s"), e.derivative("s").derivative("s"), e.derivative("a")):
        assert k.torch(s, a).isfinite().all()


def test_shared_parts_are_computed_once():
    steps = parse("sigmoid(s)*a + sigmoid(s)**2").program(gradients=True)
    assert (steps[:, 0] == OPS.index("sigmoid")).sum() == 1


def test_repr_parses_to_the_same():
    e = parse("leaky_relu(s, 0.2)*a + 1.5e-07*sigmoid(-s)**3")
    again = parse(repr(e)[len("Expression('") : -2])
    assert repr(again) == repr(e)


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("__import__('os').system('true')", "__import__"),
        ("s.__class__", "s.__class__"),
        ("s[0]", r"s\[0\]"),
        ("x + s", "'x'"),
        ("s if a else 1", "s if a else 1"),
        ("s < a", "s < a"),
        ("s and a", "s and a"),
        ("lambda: s", "lambda"),
        ("[s for s in a]", "s for s in a"),
        ("f'{s}'", "f'"),
        ("'s'", "'s'"),
        ("True", "True"),
        ("1j*s", "1j"),
        ("s @ a", "s @ a"),
        ("s // a", "s // a"),
        ("~s", "~s"),
        ("s**a", "'a'"),
        ("leaky_relu(s, a)", "'a'"),
        ("eval(s)", r"eval\(s\)"),
        ("exp(*s)", r"exp\(\*s\)"),
        ("exp(s, a)", r"exp\(s, a\)"),
        ("exp(u=s)", r"exp\(u=s\)"),
        ("maximum(s)", r"maximum\(s\)"),
        ("1e999*s", "1e999"),
        ("9**9**9*s", r"9\*\*9\*\*9"),
        ("1" + "0" * 400 + "*s", "1000"),
        ("1/0*s", "1/0"),
        ("log(-1)*s", r"log\(-1\)"),
        ("(s := 1)", "s := 1"),
        ("s; a", "s; a"),
        ("", "''"),
        ("s\0", "s"),
        ("s +", "s +"),
    ],
)
def test_hostile_texts(text, piece):
    with pytest.raises(ValueError, match=piece):
        parse(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tanh(", "'tanh(' has no ) for the ( at character 5"),
        ("s*(tanh(s) + a", "'s*(tanh(s) + a' has no ) for the ( at character 3"),
        ("tanh(s]", "'tanh(s]' has no ) for the ( at character 5"),
        (" s) * a", "'s) * a' has no ( for the ) at character 2"),
        ("tanh)s(", "'tanh)s(' has no ( for the ) at character 5"),
        ("s +", "'s +' ends where a number, s, a or a function has to follow"),
        ("s a", "'s a' cannot be read from character 3 on: 'a'; functions have ( ), products *"),
        ("(s*a\n+ $)", "'(s*a\\n+ $)' cannot be read from character 8 on: '$)'"),
        ("s\0", "'s\\x00' cannot be read from character 2 on: '\\x00'"),
        (" ", "'' is empty; s*a is an example of an expression"),
    ],
)
def test_what_is_wrong_with_a_text_and_where(text, fault):
    """In words of formulas: Python's own would speak of an unknown file and its lines."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'edge: {fault}')}$"):
        parse(text)


def test_limits():
    with pytest.raises(ValueError, match="characters"):
        parse("s+" * MAX_LENGTH + "s")
    with pytest.raises(ValueError, match="deeper"):
        parse("exp(" * (MAX_DEPTH + 2) + "s" + ")" * (MAX_DEPTH + 2))
    with pytest.raises(ValueError, match="deeper"):
        parse("-" * 900 + "s")
    with pytest.raises(ValueError, match=f"{MAX_STEPS} at most"):
        parse("+".join(f"{k}*s" for k in range(2, 38)))
    with pytest.raises(ValueError, match=f"more than {REGISTERS} values"):
        parse("+".join(f"sigmoid({k}*s)" for k in range(2, 32)))
    try:
        parse("(" * 480 + "s" + ")" * 480)
    except ValueError as error:
        assert "deeper than Python reads" in str(error)  # whose own parser had enough
    for given in (3, None, b"s", ["s"], {"s": 1}, torch.ones(1)):  # what has no hash, too
        with pytest.raises(TypeError, match=f"edge must be an expression in s and a, not {type(given).__name__}"):
            parse(given)
    with pytest.raises(ValueError, match="'b'"):
        parse("s").derivative("b")
