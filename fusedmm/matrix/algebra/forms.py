"""A matrix in the forms that others hold one in: torch's, scipy's, PyG's, DGL's, and plain tensors for a file."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from fusedmm._extra import extra
from fusedmm.matrix.algebra.entries import numbers_of, once, reduced_once, values_of
from fusedmm.matrix.base import M, Matrix

LAYOUTS = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "coo": torch.sparse_coo}


class Forms(Matrix):
    """``coalesce``, ``tensors`` and what begins with ``to_``."""

    def coalesce(self: M, reduce: str = "sum") -> M:
        """Each place once, with columns that rise in each row.

        Args:
            reduce: what becomes of entries at the same place: "sum" (or "add"), "mean", "max" or "min".

        Returns:
            CSR with values in the order of its rows. A pattern gets float32 values by "sum", which counts its entries,
            and stays a pattern by the others.

        Raises:
            ValueError: another reduction.

        Gradient: reaches the values; entries that share a maximum or minimum share its gradient evenly.

        Cost: the structure is found once for each of A's; then one SpMM with a matrix of ones.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 0, 0]), torch.tensor([1, 1, 0]), torch.tensor([1., 2., 3.]))
            >>> A.coalesce().coo()
            (tensor([0, 0]), tensor([0, 1]), tensor([3., 3.]))
        """
        if not isinstance(reduce, str) or reduce not in ("sum", "add", "mean", "max", "min"):
            raise ValueError(f"coalesce: reduce must be one of sum, mean, max, min, not {reduce!r}")
        reduce = "sum" if reduce == "add" else reduce
        pattern = once(self).pattern
        if self.val is None and reduce != "sum":
            return pattern
        return pattern.with_values(reduced_once(self, values_of(self), reduce))

    def to_dense(self) -> Tensor:
        """The dense matrix [rows, cols], or [rows, cols, heads]; float32 ones without values."""
        row, col, _ = self.coo()
        val = values_of(self)
        return val.new_zeros(*self.shape, *val.shape[1:]).index_put((row, col), val, accumulate=True)

    def to_torch(self, layout: torch.layout | str = torch.sparse_csr) -> Tensor:
        """As a torch sparse tensor: CSR or CSC, where repeated entries are added up, or COO.

        Args:
            layout: torch's, or "csr", "csc" or "coo".

        The values of COO are in A's edge order, those of CSR and CSC in the order of its rows and of its columns;
        without values they are float32 ones. Gradients reach A's values.

        Raises:
            ValueError: values with heads, or another layout.
        """
        val = _flat(self, "torch sparse tensors")
        wanted = LAYOUTS.get(layout) if isinstance(layout, str) else layout
        if wanted not in LAYOUTS.values():
            raise ValueError(f"layout must be csr, csc, coo or torch's layout of that name, not {layout!r}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse")  # that the layout is in beta, that it checks nothing
            if wanted == torch.sparse_coo:
                row, col, _ = self.coo()
                return torch.sparse_coo_tensor(torch.stack([row, col]), val, self.shape)
            half = self if wanted == torch.sparse_csr else self.t()
            pattern, val = once(half).pattern, reduced_once(half, val)
            return torch.sparse_compressed_tensor(
                pattern.ptr.clone(), pattern.idx.long(), val, self.shape, layout=wanted
            )

    def to_scipy(self, layout: str | torch.layout = "csr") -> Any:
        """As a scipy sparse array on the CPU, without gradients; needs scipy.

        Args:
            layout: "csr", "csc" or "coo", or torch's layout of that name. COO has its entries in A's edge order, the
                others in the order of rows and columns; repeated entries stay. 16-bit values become float32, which
                scipy can compute with; a pattern's are float32 ones.

        Raises:
            ValueError: values with heads, or another layout.
        """
        layout = next((name for name, known in LAYOUTS.items() if layout in (name, known)), layout)
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be csr, csc or coo, not {layout!r}")
        sparse = extra("scipy.sparse", "scipy")
        val = _flat(self, "scipy's matrices").detach()
        val = (val.float() if val.element_size() == 2 else val).cpu()
        if layout == "coo":
            row, col, _ = self.coo()
            return sparse.coo_array((val.numpy().copy(), (row.cpu().numpy(), col.cpu().numpy())), self.shape)
        half = self if layout == "csr" else self.t()
        parts = val[numbers_of(half).long().cpu()], half.idx.cpu().clone(), half.ptr.cpu().clone()
        make = sparse.csr_array if layout == "csr" else sparse.csc_array
        return make(tuple(t.numpy() for t in parts), self.shape)

    def to_edge_index(self) -> tuple[Tensor, Tensor | None]:
        """(edge_index, values) in A's edge order, as PyG has them: row 0 of edge_index is sources (columns).

        ``CSR.from_edge_index`` is the way back, with ``size=(cols, rows)``; a pattern has None in the place of values.
        """
        row, col, val = self.coo()
        return torch.stack([col, row]), val

    def to_pyg(self) -> Any:
        """As a torch_geometric ``Data`` of a square matrix: edge_index, num_nodes and values, in A's edge order.

        Values [nnz] are its ``edge_weight``, values [nnz, D] its ``edge_attr``. PyG's layers take ``A.to_torch()`` too.

        Raises:
            ValueError: a matrix that is not square; ``to_edge_index`` gives the edges of any.
        """
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"to_pyg: Data is of square matrices, not {list(self.shape)}; take to_edge_index")
        data = extra("torch_geometric.data", "torch_geometric")
        edge_index, val = self.to_edge_index()
        named = {} if val is None else {"edge_weight" if val.dim() == 1 else "edge_attr": val}
        return data.Data(edge_index=edge_index, num_nodes=self.shape[0], **named)

    def to_dgl(self) -> Any:
        """As a ``dgl.sparse.SparseMatrix`` with the values in A's edge order, ones of a pattern; needs dgl."""
        row, col, _ = self.coo()
        return extra("dgl.sparse", "dgl", "").from_coo(row, col, values_of(self), self.shape)

    def tensors(self) -> dict[str, Tensor]:
        """What the matrix is as named tensors, for formats that store nothing else, such as safetensors.

        Returns:
            ptr, idx and shape, with eid where A's edge order is not that of its rows and val where it has values; the
            tensors are A's own. ``CSR.from_tensors`` is the way back. ``torch.save`` stores a CSR as it is, and
            ``torch.load`` with ``weights_only=True`` reads it.

        Example:
            >>> A = fusedmm.CSR.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), shape=(2, 2))
            >>> sorted(A.tensors())
            ['idx', 'ptr', 'shape']
        """
        parts = {"ptr": self.ptr, "idx": self.idx, "shape": torch.tensor(self.shape, device="cpu")}
        if self.eid.numel():
            parts["eid"] = self.eid
        if self.val is not None:
            parts["val"] = self.val.detach().contiguous()
        return parts


def _flat(adj: Matrix, what: str) -> Tensor:
    """Values [nnz]; ones of a pattern."""
    val = values_of(adj)
    if val.dim() != 1:
        raise ValueError(f"{what} hold one value per entry, not one per head")
    return val
