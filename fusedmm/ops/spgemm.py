"""Sparse times sparse."""

from __future__ import annotations

from typing import Any

import torch

from fusedmm.matrix.adapters import operand
from fusedmm.matrix.arguments import require_flags
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.structure import is_captured, outside
from fusedmm.ops.products import COMPILED, SpGEMMPlan, make_plan, multiply, require_fit
from fusedmm.ops.spmv import spmv

# Products that a sparse product must have for its order to be counted, not estimated. A count takes a GPU 0.4 ms.
COUNTED = {"cpu": 2**17, "cuda": 2**26}
# On a GPU: entries of a row that a warp adds up, not a thread; and rows with which warps fill the card.
LONG, MANY = 12, 2**13


def spgemm_plan(a: Any, b: Any, *, algorithm: str = "auto", sorted: bool = True, mask: Any = None) -> SpGEMMPlan[CSR]:
    """The symbolic phase of a sparse product: where it has entries, and how its rows are shared out.

    Args:
        a: a ``CSR`` [rows, inner], or what ``as_csr`` takes; its values are not read.
        b: the same, [inner, cols].
        algorithm: a name from ``fusedmm.algorithms("spgemm", device)``, or "auto".
        sorted: whether columns of the product have to rise within its rows. Those of a plan do in either case, since
            no other order was found sooner.
        mask: a ``CSR`` [rows, cols], or what ``as_csr`` takes, whose entries alone are computed, in its order; its
            values are not read.

    Returns:
        A plan: ``plan(a_val, b_val)`` is the product, any number of times. On CUDA it keeps where each product goes,
        in up to three times the memory of a, b and the product.

    Raises:
        TypeError: a or b is no matrix, or they are on two devices; sorted is neither True nor False.
        ValueError: shapes that do not fit, an unknown algorithm, or "kkmcr" or "kkmcw" with a mask.
        MemoryError: no room for the product's columns; the text has their number. torch.OutOfMemoryError on CUDA.
        RuntimeError: a CUDA graph records, which cannot wait for the product's size.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
        >>> plan = fusedmm.spgemm_plan(A, A)
        >>> plan(A.val, 2 * A.val).to_dense()
        tensor([[ 2., 16.],
                [ 0., 18.]])
    """
    require_flags("spgemm_plan", sorted=sorted)
    a, b, mask = _matrices("spgemm_plan", a, b, mask)
    return make_plan(a, b, algorithm, sorted, mask)


def spgemm(a: Any, b: Any, *, algorithm: str = "auto", sorted: bool = True, mask: Any = None) -> CSR:
    """Sparse times sparse, ``C = A B`` with a sparse C; ``A @ B`` is the same.

    C has an entry where some product falls, also where products cancel to zero: its structure depends on those of A
    and B alone. Entries that repeat in A or B add. Where the structures stay, ``spgemm_plan`` finds C's once.

    Args:
        a: a ``CSR`` [rows, inner] with values [nnz] or none (ones), or what ``as_csr`` takes.
        b: the same, [inner, cols], its values of the same dtype.
        algorithm: a name from ``fusedmm.algorithms("spgemm", device)``, or "auto". "kkmcr" and "kkmcw" need a plan.
        sorted: whether C's columns have to rise within its rows; any other order is a fixed one, too, which a CPU finds
            sooner.
        mask: a ``CSR`` [rows, cols] whose entries alone are computed, in its order; its values are not read.

    Returns:
        C, a ``CSR``, with values of the factors' dtype (float32 of two patterns). Sums are kept in float32 (float64
        for float64), each row's in the order of A's entries; bitwise reproducible.

    Raises:
        TypeError: a or b is no matrix, or they are of two devices or dtypes; sorted is neither True nor False.
        ValueError: shapes that do not fit, values with heads, an unknown algorithm or one that needs a plan.
        MemoryError: C is too large; the text has the number of its entries. torch.OutOfMemoryError on CUDA.
        RuntimeError: a CUDA graph records, which cannot wait for C's size; a plan made before can be captured.

    Gradient: reaches the values of A and B through ``C.val``, of any order, each by as many products as C took.

    Cost: two flops per product; A has as many products as its entries have entries in their rows of B. Finding C's
    structure takes about as long as computing its values. The memory beside C is a dense row of sums for each
    thread, or less where that would be much, and room for entries of C before C's size is known: 32 MiB and a quarter
    of the larger factor at most. On CUDA it is a few bytes for each row.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1., 2., 3.]))
        >>> (A @ A).to_dense()
        tensor([[1., 8.],
                [0., 9.]])
    """
    require_flags("spgemm", sorted=sorted)
    a, b, mask = _matrices("spgemm", a, b, mask)
    return multiply(a, b, algorithm, sorted, mask)


def _matrices(op: str, a: Any, b: Any, mask: Any) -> tuple[CSR, CSR, CSR | None]:
    return operand(op, "a", a), operand(op, "b", b), None if mask is None else operand(op, "mask", mask)


def triple_product(r: Any, a: Any, p: Any, *, order: str = "auto") -> CSR:
    """``R A P``, as in the coarsening ``P^T A P`` of pooling layers and of multigrid: two sparse products.

    Args:
        r, a, p: matrices as ``spgemm`` takes them, [m, n], [n, k] and [k, l].
        order: "left" for (R A) P, "right" for R (A P), or "auto": the order of fewer products in all. Those of the
            first product are counted, those of the second one bounded, by four products with vectors at most.

    Returns:
        R A P, a ``CSR``; gradients reach the values of all three.

    Raises:
        TypeError, ValueError, MemoryError: as ``spgemm``; or an unknown order.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), shape=(3, 3))
        >>> P = fusedmm.CSR.from_coo(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), shape=(3, 2))
        >>> fusedmm.triple_product(P.t(), A, P).to_dense()
        tensor([[1., 1.],
                [1., 0.]])
    """
    if order not in ("auto", "left", "right"):
        raise ValueError(f"triple_product: order must be auto, left or right, not {order!r}")
    if torch.compiler.is_dynamo_compiling():
        made: CSR = outside(COMPILED, triple_product, r, a, p, order=order)
        return made
    r, a, p = (operand("triple_product", name, adj) for name, adj in (("r", r), ("a", a), ("p", p)))
    require_fit(r, a, None, "triple_product", "r", "a")
    require_fit(a, p, None, "triple_product", "a", "p")
    if order == "left" or (order == "auto" and left_has_fewer(r, a, p)):
        return spgemm(spgemm(r, a, sorted=False), p)  # the first product may be in any order
    return spgemm(r, spgemm(a, p, sorted=False))


def left_has_fewer(r: CSR, a: CSR, p: CSR) -> bool:
    """Whether (R A) P has no more products than R (A P), by ``triple_product``'s rule.

    An entry k of R's row i stands before w[k] pairs of an entry of A and one of P. With the first product's entries
    unmerged, both orders have the sum of w[k] over R's entries as second products; what merging leaves is at most the
    whole P for a row of R A, and P's columns for a row of A P. Few products are not worth a count: the same is computed
    of even rows, from sizes alone. Where P joins nodes, both orders have as many: ``left_of_equals`` decides.
    """
    (rows, inner), (ends, cols) = r.shape, p.shape
    equals = left_of_equals(a.device.type, rows, a.nnz / max(1, inner))
    first, other = r.nnz * a.nnz / max(1, inner), a.nnz * p.nnz / max(1, ends)
    # A CUDA graph that records waits for no count; spgemm refuses it.
    if first + other < COUNTED[a.device.type] or is_captured(a.ptr):
        ways = other / max(1, inner)
        left, right = min(r.nnz * ways, rows * p.nnz), r.nnz * min(ways, cols)
        return first + left < other + right or (equals and first + left == other + right)
    with torch.no_grad():
        r, a, of_a, of_p = r.pattern(), a.pattern(), a.degree(), p.degree()
        high = int(of_p.amax())
        if high * ends == p.nnz:  # rows of equal length are the rule in pooling
            w, widest, in_all = of_a, high * int(of_a.amax()), a.nnz * high
        else:
            w, high = spmv(a, of_p.double()), 1
            widest, in_all = int(w.amax()), int(w.sum())
        longest = int(r.degree().amax()) if rows else 0
        if longest * widest <= p.nnz and widest <= cols:  # nothing is cut off: the second products are as many
            # Where r is p.t(), every row of A stands in it as often as p's rows are long.
            known = r.ptr_t is p.ptr and high * ends == p.nnz
            in_order = in_all if known else int(of_a.index_select(0, r.idx).sum())
            backwards = in_all
        else:
            w = w.double() * high
            in_order = int(spmv(r, of_a.double()).sum() + spmv(r, w).clamp(max=p.nnz).sum())
            backwards = in_all + int(spmv(r, w.clamp(max=cols)).sum())
        return in_order <= backwards if equals else in_order < backwards


def left_of_equals(device: str, rows: int, mean: float) -> bool:
    """Whether (R A) P is the faster of two orders with as many products; R has ``rows`` rows, those of A ``mean``
    entries on average.

    A CPU always takes it. On a GPU a thread merges a row of few entries, which is the fastest way. R (A P) has only
    such rows where A's are short, since A P has rows no longer than A's, and R A has longer ones. Where A's are long,
    (R A) P leaves fewer rows for warps; of very few rows a GPU is not full.
    """
    return device == "cpu" or (mean > LONG and rows >= MANY)
