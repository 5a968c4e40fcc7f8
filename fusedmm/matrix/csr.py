"""The sparse matrix: plain tensors in CSR, with the transpose beside them once it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, overload

import torch
from torch import Tensor

from fusedmm.matrix import constructors, normalize
from fusedmm.matrix.algebra.arithmetic import Arithmetic
from fusedmm.matrix.algebra.forms import Forms
from fusedmm.matrix.algebra.kind import Kind
from fusedmm.matrix.algebra.loops import Loops
from fusedmm.matrix.algebra.reduce import Reduce
from fusedmm.matrix.algebra.scaling import Scaling
from fusedmm.matrix.algebra.select import Select
from fusedmm.matrix.arguments import OF_A_SHAPE, OF_A_SIZE, OF_ROWS, one_fill, refuse
from fusedmm.ops.matvec import times


class CSR(Select, Arithmetic, Scaling, Reduce, Loops, Forms, Kind):
    """A sparse matrix [rows, cols] in compressed sparse rows, made by one of the ``from_`` functions.

    Row i holds the entries ``ptr[i] <= p < ptr[i+1]``, entry p stands in column ``idx[p]``. Columns may
    repeat (entries add) and need not be sorted. Values and edge gradients are in the *caller's* edge
    order: entry p has the value ``val[eid[p]]``. Operators whose formula names no values take a ``pattern()`` only.

    The object is frozen; its tensors must not be written to, but for ``val`` (in place, not through ``val.data``,
    which torch does not count). Where another thread writes what a call reads, be it these or an ``edge_index``,
    results are unspecified and memory is safe. Values made in inference mode serve no gradient: take
    ``with_values(val.clone())`` outside of it. The transpose, which every gradient needs, is made on first use and
    stays (for compiled code ``cache_transpose`` makes it beforehand). A copy of constant values lies in the order of
    the rows. Compiled code cannot ask whether they were written to, so it reads ``val``: best if it is in that order.

    Attributes:
        ptr: int64 [rows + 1].
        idx: int32 [nnz].
        val: values [nnz] or [nnz, heads] in the caller's edge order, or None for ones.
        eid: int32 [nnz] (int64 from 2^31 entries), position of entry p in the caller's edge order; empty: the identity.
        plan: opaque, what the kernels of this device want to know of the structure.
        n_cols: number of columns.
        ptr_t, idx_t, eid_t, plan_t: the same of the transpose, or None.
        rows_are, rows_are_t: what is known of the rows' lengths, of A and of its transpose; 0 is nothing.
        none: a tensor without elements on this device, which stands for an absent operand.

    Example:
        >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 2, 2]), torch.tensor([1, 0, 1]),
        ...                          torch.tensor([1., 2., 3.]), shape=(3, 2))
        >>> A
        CSR(shape=(3, 2), nnz=3, val=float32[3], device=cpu)
        >>> A @ torch.tensor([[1.], [10.]])
        tensor([[10.],
                [ 0.],
                [32.]])
    """

    # ---- making one ----

    @staticmethod
    def from_csr(
        ptr: Tensor = None,  # type: ignore[assignment]
        idx: Tensor = None,  # type: ignore[assignment]
        val: Tensor | None = None,
        shape: tuple[int, int] | None = None,
        *,
        check: bool = True,
        **others: NoReturn,
    ) -> CSR:
        """From row pointers and column indices.

        Args:
            ptr: [rows + 1], integers, from 0 and never falling to nnz.
            idx: [nnz], integers in [0, cols).
            val: [nnz] or [nnz, heads], or None for ones; integers and booleans become torch's default dtype.
            shape: (rows, cols); without it cols is the largest column + 1.
            check: False skips validation and measuring how long rows are, the only synchronisations
                with a GPU where ``shape`` is given (to find the largest column is another). Then wrong
                indices give wrong results, though never a read outside the operands.
            others: none; another library's names for these are refused with a hint.

        Raises:
            TypeError: dtypes that are not integers, tensors on several devices, or a check that is no bool.
            ValueError: a malformed structure; the text has the index and the value.
        """
        if others:
            refuse("from_csr", others, **OF_ROWS)
        return constructors.from_csr(CSR, ptr, idx, val, shape, check)

    @staticmethod
    def from_coo(
        row: Tensor,
        col: Tensor,
        val: Tensor | None = None,
        shape: tuple[int, int] | None = None,
        *,
        check: bool = True,
        **others: NoReturn,
    ) -> CSR:
        """From coordinates in any order; values and edge gradients keep that order.

        Args:
            row, col: [nnz], integers; pairs may repeat.
            val: as in ``from_csr``.
            shape: (rows, cols); without it the largest indices + 1.
            check, others: as in ``from_csr``.

        Raises:
            TypeError, ValueError: as ``from_csr``.
        """
        if others:
            refuse("from_coo", others, **OF_A_SHAPE)
        return constructors.from_coo(CSR, row, col, val, shape, check)

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
        *,
        check: bool = True,
        **others: NoReturn,
    ) -> CSR:
        """From PyG's edge_index: the matrix that gathers sources into targets.

        Args:
            edge_index: [2, nnz], integers; row 0 = sources (columns), row 1 = targets (rows).
            edge_weight: [nnz] or [nnz, heads], in the order of edge_index, of the dtypes of val in ``from_csr``.
            size: number of nodes, or (sources, targets), which is (cols, rows); without it the largest index + 1.
            check, others: as in ``from_csr``.

        Returns:
            CSR of shape (targets, sources): ``(A @ x)[target] = sum of x[source]``.
        """
        if others:
            refuse("from_edge_index", others, **OF_A_SIZE)
        return constructors.from_edge_index(CSR, edge_index, edge_weight, size, check)

    @staticmethod
    def from_dense(dense: Tensor) -> CSR:
        """From a dense matrix [rows, cols]: its entries that are not zero (gradients reach it).

        Integers and booleans become torch's default dtype.
        """
        return constructors.from_dense(CSR, dense)

    @staticmethod
    def from_torch(adj: Tensor, *, check: bool = True) -> CSR:
        """From a torch sparse CSR, CSC or COO tensor [rows, cols]; gradients reach its values.

        Values and edge gradients are in the order of adj's own ``values()``; an uncoalesced COO tensor
        stays so (entries add), unless its values want a gradient. The gradient goes to the tensor that
        the values came from; that of a CSC tensor itself (its ``.grad``, as a leaf) torch refuses to keep.

        Raises:
            TypeError: another layout, complex values, or a check that is no bool. (Integers and booleans become torch's
                default dtype.)
            ValueError: a batch, or more than two sparse dimensions.
        """
        return constructors.from_torch(CSR, adj, check)

    @staticmethod
    def from_scipy(matrix: Any, *, check: bool = True) -> CSR:
        """From a scipy sparse matrix or array; values in the order of its CSR form.

        Integers and booleans become torch's default dtype.

        Raises:
            TypeError: complex numbers, long doubles, no sparse matrix, or a check that is no bool.
            ValueError: an array of other than two dimensions.
        """
        return constructors.from_scipy(CSR, matrix, check)

    @staticmethod
    def eye(n: int, *, dtype: torch.dtype | None = None, device: torch.device | str | int | None = None) -> CSR:
        """The identity [n, n].

        Args:
            n: its rows and columns.
            dtype: of its values; None makes a pattern, whose entries count as ones.
            device: torch's default without it.

        Raises:
            TypeError: no integer, no floating dtype, no device.
            ValueError: fewer than no rows or 2^31 and more, or a device that is not there.

        Example:
            >>> CSR.eye(2).to_dense()
            tensor([[1., 0.],
                    [0., 1.]])
        """
        return constructors.eye(CSR, n, dtype, device)

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], *, check: bool = True) -> CSR:
        """From what ``tensors()`` gave, such as a file of safetensors holds.

        Args:
            tensors: ptr, idx and shape, and eid and val where the matrix has them.
            check: as in ``from_csr``.

        Raises:
            TypeError: no mapping, what is in it is no tensor of its kind, or a check that is no bool.
            ValueError: a tensor that lacks or is unknown, or a malformed structure.
        """
        return constructors.from_tensors(CSR, tensors, check)

    # ---- what a part of a matrix does in a way of its own ----

    _is_shared = False  # whether other ranks have rows of it too

    def _largest(self, t: Tensor) -> Tensor:
        """The largest of numbers of all rows or entries; 0 where there are none."""
        return t.max() if t.numel() else t.sum()

    def _regrouped(self, row: Tensor, rows: int) -> CSR:
        """The pattern [rows, cols] whose row ``row[p]`` has the column of entry p of the caller's order."""
        return CSR.from_coo(row, self.coo()[1], shape=(rows, self.n_cols), check=False)

    def __repr__(self) -> str:
        val = "none" if self.val is None else f"{str(self.val.dtype)[6:]}{list(self.val.shape)}"
        return f"CSR(shape={self.shape}, nnz={self.nnz}, val={val}, device={self.device})"

    def to(
        self,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> CSR:
        """On another device, and with values of another dtype.

        Args:
            device, dtype: None leaves it as it is.
            non_blocking: whether a copy from pinned memory to a GPU need not wait.

        Raises:
            TypeError: no device (a dtype is ``dtype=``), a dtype that is not floating, or a non_blocking that is no
                bool.
            ValueError: no device's name, one that is neither cpu nor cuda, or a CUDA device that torch does not see.
        """
        return constructors.to(self, device, dtype, non_blocking)

    def cpu(self) -> CSR:
        """``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: torch.device | int | None = None, non_blocking: bool = False) -> CSR:
        """On a CUDA device, torch's current one without a name; see ``to``."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def pin_memory(self) -> CSR:
        """In memory that a GPU copies from without waiting; needs a GPU, as torch's does."""
        return constructors.pin_memory(self)

    def gcn_norm(
        self,
        improved: bool = False,
        add_self_loops: bool = True,
        *,
        dtype: torch.dtype | None = None,
        fill_value: float | None = None,
        fill: float | None = None,
    ) -> CSR:
        """``D^-1/2 (A + I) D^-1/2``; see ``fusedmm.matrix.normalize.gcn_norm``. ``fill`` is ``fill_value``."""
        fill_value = one_fill("gcn_norm", fill_value, fill, None)
        return normalize.gcn_norm(self, improved, add_self_loops, dtype=dtype, fill_value=fill_value)

    @overload
    def __matmul__(self, x: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, x: CSR) -> CSR: ...
    def __matmul__(self, x: Any) -> Any:
        return times(self, x)


# Pickles and exported programs name the class by where users find it, whichever file it moves to.
CSR.__module__ = "fusedmm"
