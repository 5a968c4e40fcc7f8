"""Turns a graph of operations into a program of the kernels; one walk gives out registers and frees them."""

from __future__ import annotations

from fusedmm._lib import NUMBERS
from fusedmm.edge.derive import Graph

MAX_STEPS, REGISTERS = NUMBERS["FMM_EDGE_STEPS"], NUMBERS["FMM_EDGE_REGISTERS"]
# The operations of a program, each at the place that is its number.
OPS = tuple(
    name.removeprefix("FMM_EDGE_").lower()
    for name in NUMBERS
    if name.startswith("FMM_EDGE_") and name not in ("FMM_EDGE_STEPS", "FMM_EDGE_REGISTERS")
)


def assemble(graph: Graph, roots: list[int]) -> list[tuple[float, ...]]:
    """Steps for the nodes in order, each in the lowest free register; results move to 0, 1, 2 at the end."""
    order = graph.reachable(roots)
    last = {u: k for k in order for u in graph.nodes[k].args}
    last.update({k: len(graph.nodes) for k in roots})
    free = list(range(REGISTERS - 1, -1, -1))
    at: dict[int, int] = {}
    steps: list[tuple[float, ...]] = []
    inputs = {graph.nodes[k].op: k for k in order if graph.nodes[k].op in ("s", "a")}
    for register, name in enumerate(("s", "a")):
        if name in inputs:
            at[inputs[name]] = register
            free.remove(register)
    for k in order:
        op, args, value = graph.nodes[k]
        if k in inputs.values():
            continue
        where = [at[u] for u in args] or [0]
        for u in set(args):
            if last[u] == k:
                free.append(at[u])
        if not free:
            raise ValueError(f"an edge function needs more than {REGISTERS} values at once; make it shorter")
        free.sort(reverse=True)
        at[k] = free.pop()
        steps.append((OPS.index(op), at[k], where[0], where[-1], value))
    # Parallel moves: results may stand where others have to go, so all leave for free registers first.
    wanted = [at[k] for k in roots]
    if wanted != list(range(len(roots))):
        spare = [r for r in range(len(roots), REGISTERS) if r not in wanted]
        if len(spare) < len(roots):
            raise ValueError(f"an edge function needs more than {REGISTERS} values at once; make it shorter")
        steps += [(OPS.index("copy"), spare[n], r, r, 0.0) for n, r in enumerate(wanted)]
        steps += [(OPS.index("copy"), n, spare[n], spare[n], 0.0) for n in range(len(roots))]
    if len(steps) > MAX_STEPS:
        raise ValueError(f"an edge function with its derivatives takes {len(steps)} steps, {MAX_STEPS} at most")
    return steps
