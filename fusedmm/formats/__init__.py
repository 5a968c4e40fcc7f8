"""The classic formats of sparse matrices, each of which has a kernel of ``fusedmm.spmv`` of its own.

A ``CSR`` serves everything, gradients too. The others store the same entries so that one kind of pattern is read
faster:

- ``COO``: a row and a column for each entry. Its time depends on the number of entries alone.
- ``DIA``: whole diagonals, whose columns need not be stored. For stencils on structured grids and for bands.
- ``ELL``: as many entries in each row as the longest one has, so that neighbouring rows lie side by side.
- ``HYB``: ELL for the entries that most rows have, COO for what a few long rows have beyond.
- ``SELL``: slices of 32 rows, each as wide as its longest row, the rows sorted by length within windows of sigma rows.

``advise`` counts the bytes of each for a matrix. Bell and Garland 2009 describe all but SELL, which is of Kreutzer et
al. 2014. A zero that DIA stores is no entry: ``0 * inf`` does not arise there, while CSR's explicit zeros give NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fusedmm._lib import numbers_of
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.compress import rows_of
from fusedmm.matrix.csr import CSR
from fusedmm.ops.checks import autocast
from fusedmm.ops.matvec import PaddedOperands, padded_product, require_flat_values, require_vector, spmv_half

__all__ = [
    "COO",
    "DIA",
    "ELL",
    "HYB",
    "SELL",
    "Advice",
    "advise",
    "to_coo",
    "to_dia",
    "to_ell",
    "to_hyb",
    "to_sell",
]

NUMBERS = numbers_of("FMM_FORMAT_", "dia", "ell", "hyb", "sell")
SLICE = 32  # rows of a slice of SELL: the threads of a warp
SPARED = 1 << 20  # bytes that padding may take however small the matrix is
P = TypeVar("P", bound="Padded")


def _require_vector(a: Any, x: Any) -> Tensor:
    require_vector("spmv", "x", x, a.device, a.shape[1], "columns")
    return autocast(x)


@dataclass(frozen=True, eq=False, repr=False)
class COO:
    """Coordinates, sorted by row: the entries of a CSR, with their rows written out.

    Attributes:
        csr: the matrix; it holds columns and values, and gradients take its transpose.
        row: int32 [nnz], the row of each entry, never falling.

    Example:
        >>> fusedmm.formats.to_coo(torch.tensor([[1, 0], [0, 1]])).row
        tensor([0, 1], dtype=torch.int32)
    """

    csr: CSR
    row: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return self.csr.shape

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.csr.nnz

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.csr.device

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of the matrix: rows, columns and values."""
        return self.nnz * (8 + (0 if self.csr.val is None else self.csr.val.element_size()))

    def to_csr(self) -> CSR:
        """The CSR that it was made of."""
        return self.csr

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> COO:
        """On another device, and with values of another dtype; see ``CSR.to``."""
        csr = self.csr.to(device, dtype)
        return COO(csr, self.row.to(csr.device))

    def __matmul__(self, x: Tensor) -> Tensor:
        require_flat_values("spmv", self.csr.val)
        return spmv_half(self.csr, False, self.csr.val, _require_vector(self, x), row=self.row)

    def __repr__(self) -> str:
        return self.csr.__repr__().replace("CSR(", "COO(", 1)


@dataclass(frozen=True, eq=False, repr=False)
class Padded:
    """What DIA, ELL, HYB and SELL share: a frozen matrix of tensors for inference, with one value per place.

    Attributes:
        shape: (rows, cols).
        val: the values of all places, those of padding too.
    """

    shape: tuple[int, int]
    val: Tensor

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.val.device

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of the matrix, padding too."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    @property
    def nnz(self) -> int:
        """Number of entries, without padding; it waits for a GPU."""
        return self._coordinates()[0].numel()

    def to_csr(self) -> CSR:
        """The matrix as a ``CSR`` with values, sorted by row; padding is left out."""
        row, col, val = self._coordinates()
        order = torch.argsort(row, stable=True)
        return CSR.from_coo(row[order], col[order], val[order], self.shape)

    def to(self: P, device: Any = None, dtype: torch.dtype | None = None) -> P:
        """On another device, and with values of another floating dtype.

        Raises:
            TypeError: a dtype that is not floating.
        """
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"{type(self).__name__}.to: dtype must be floating, not {dtype}")
        moved = {name: t.to(device) for name, t in self._tensors().items()}
        moved = {name: t.to(dtype) if t.dtype.is_floating_point else t for name, t in moved.items()}
        return type(self)(**{f.name: moved.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        """(row, col, val) of the entries, int64 and in any order."""
        raise NotImplementedError

    def operands(self) -> PaddedOperands:
        """What ``padded_product`` takes."""
        raise NotImplementedError

    def __matmul__(self, x: Tensor) -> Tensor:
        return padded_product(self.operands(), _require_vector(self, x))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={list(t.shape)}" for name, t in self._tensors().items())
        return f"{type(self).__name__}(shape={self.shape}, {sizes}, {str(self.val.dtype)[6:]}, device={self.device})"


@dataclass(frozen=True, eq=False, repr=False)
class DIA(Padded):
    """Diagonals: ``A[i, i + offsets[d]] = val[d, i]``, where that is inside; a zero is no entry.

    Attributes:
        val: [diagonals, rows].
        offsets: int64 [diagonals], column minus row, rising.

    Example:
        >>> fusedmm.formats.to_dia(fusedmm.CSR.from_dense(torch.eye(2))).offsets
        tensor([0])
    """

    offsets: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        d, row = self.val.nonzero(as_tuple=True)
        col = row + self.offsets[d]
        inside = (col >= 0) & (col < self.shape[1])
        return row[inside], col[inside], self.val[d, row][inside]

    def operands(self) -> PaddedOperands:
        """What ``padded_product`` takes."""
        (width, rows), none = self.val.shape, self.offsets[:0]
        return NUMBERS["dia"], rows, width, self.offsets, none, self.val.view(-1), none, none, none, none


@dataclass(frozen=True, eq=False, repr=False)
class ELL(Padded):
    """Rows of one length: entry k of row i has column ``idx[k, i]`` and value ``val[k, i]``; a column -1 is padding.

    Attributes:
        val: [width, rows].
        idx: int32 [width, rows].

    Example:
        >>> fusedmm.formats.to_ell(torch.tensor([[0, 1, 2], [0, 0, 1]])).idx
        tensor([[ 0,  2, -1],
                [ 1, -1, -1]], dtype=torch.int32)
    """

    idx: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        row, k = (self.idx >= 0).t().nonzero(as_tuple=True)  # row by row, so that entries keep their order
        return row, self.idx[k, row].long(), self.val[k, row]

    def operands(self) -> PaddedOperands:
        """What ``padded_product`` takes."""
        (width, rows), idx = self.val.shape, self.idx.view(-1)
        none = idx[:0]
        return NUMBERS["ell"], rows, width, none, idx, self.val.view(-1), none, none, none, none


@dataclass(frozen=True, eq=False, repr=False)
class HYB(ELL):
    """An ELL, and coordinates for the entries that do not fit in its width.

    Attributes:
        val, idx: as of ELL.
        tail_row, tail_idx: int32 [entries beyond], sorted by row.
        tail_val: their values.

    Example:
        >>> fusedmm.formats.to_hyb(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])).tail_idx
        tensor([0, 1, 2, 3], dtype=torch.int32)
    """

    tail_row: Tensor
    tail_idx: Tensor
    tail_val: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        row, col, val = super()._coordinates()
        tail = self.tail_row.long(), self.tail_idx.long(), self.tail_val
        return torch.cat([row, tail[0]]), torch.cat([col, tail[1]]), torch.cat([val, tail[2]])

    def operands(self) -> PaddedOperands:
        """What ``padded_product`` takes."""
        return NUMBERS["hyb"], *super().operands()[1:7], self.tail_row, self.tail_idx, self.tail_val


@dataclass(frozen=True, eq=False, repr=False)
class SELL(Padded):
    """Slices of 32 rows: slice s holds the rows ``order[32 s : 32 s + 32]``, each padded to the longest of them.

    Attributes:
        val: [places]; entry k of the row at place r of slice s is ``val[offsets[s] + 32 k + r]``.
        idx: int32 [places], columns, -1 for padding.
        offsets: int64 [slices + 1].
        order: int32 [rows], sorted by falling length within windows of sigma rows.

    Example:
        >>> fusedmm.formats.to_sell(torch.tensor([[0, 1, 2], [1, 1, 0]])).order
        tensor([1, 0, 2], dtype=torch.int32)
    """

    idx: Tensor
    offsets: Tensor
    order: Tensor

    def _coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        at = (self.idx >= 0).nonzero()[:, 0]
        s = torch.searchsorted(self.offsets, at, right=True) - 1
        row = self.order.long()[SLICE * s + (at - self.offsets[s]) % SLICE]
        return row, self.idx[at].long(), self.val[at]

    def operands(self) -> PaddedOperands:
        """What ``padded_product`` takes."""
        none = self.idx[:0]
        return NUMBERS["sell"], self.shape[0], SLICE, self.offsets, self.idx, self.val, self.order, none, none, none


# What the names of algorithms begin with, and the class whose matrices they take.
FORMATS: dict[str, type] = {"coo": COO, "dia": DIA, "ell": ELL, "hyb": HYB, "sell": SELL}
FORMATS |= dict.fromkeys(("csr_scalar", "csr_vector", "csr_segmented", "merge"), CSR)


# ---- making them ----


def to_coo(a: Any) -> COO:
    """Coordinates of a ``CSR``, or of what ``as_csr`` takes; the only other format with gradients.

    Raises:
        TypeError, ValueError: as ``as_csr``, or 2^31 rows and more.

    Example:
        >>> fusedmm.formats.to_coo(fusedmm.CSR.from_dense(torch.eye(2)))
        COO(shape=(2, 2), nnz=2, val=float32[2], device=cpu)
    """
    csr = as_csr(a)
    _require_int32_rows("to_coo", csr)
    return COO(csr, rows_of(csr.ptr, csr.nnz).to(torch.int32))


def to_dia(a: Any, *, growth: float = 8) -> DIA:
    """Diagonals of a ``CSR``, or of what ``as_csr`` takes. Repeated entries are added up, zeros are left out.

    Args:
        a: the matrix; without values its entries are float32 ones.
        growth: how many times the bytes of the CSR the result may take.

    Raises:
        ValueError: it would take more (the text says how much), values that want a gradient, values with heads.

    Example:
        >>> fusedmm.formats.to_dia(fusedmm.data.banded(4, 1))
        DIA(shape=(4, 4), val=[3, 4], offsets=[3], float32, device=cpu)
    """
    csr, row, col, val = _entries("to_dia", a)
    rows, cols = csr.shape
    offset = col - row
    offsets = torch.unique(offset[val != 0])
    _require_bytes("to_dia", csr, _dia_bytes(csr, offsets.numel(), val), growth)
    wide = torch.zeros(offsets.numel(), rows, dtype=torch.promote_types(val.dtype, torch.float32), device=csr.device)
    there = val != 0
    d = torch.searchsorted(offsets, offset[there])
    wide.view(-1).index_put_((d * rows + row[there],), val[there].to(wide.dtype), accumulate=True)
    return DIA((rows, cols), wide.to(val.dtype), offsets)


def to_ell(a: Any, *, growth: float = 8) -> ELL:
    """Rows of one length, of a ``CSR`` or of what ``as_csr`` takes.

    Args:
        a: the matrix; without values its entries are float32 ones.
        growth: how many times the bytes of the CSR the result may take.

    Raises:
        ValueError: it would take more (the text says how much), values that want a gradient, values with heads.

    Example:
        >>> fusedmm.formats.to_ell(fusedmm.data.banded(4, 1))
        ELL(shape=(4, 4), val=[3, 4], idx=[3, 4], float32, device=cpu)
    """
    csr, row, col, val = _entries("to_ell", a)
    width = _longest(csr)
    _require_bytes("to_ell", csr, _ell_bytes(csr, width, val), growth)
    return ELL(csr.shape, *reversed(_columns(csr, row, col, val, width)))


def to_hyb(a: Any, *, width: int | None = None) -> HYB:
    """An ELL for the first entries of each row, and coordinates for the rest.

    Args:
        a: a ``CSR``, or what ``as_csr`` takes; without values its entries are float32 ones.
        width: entries of each row that go to the ELL; by default the most that a third of the rows have.

    Raises:
        TypeError: width is no int.
        ValueError: a negative width, values that want a gradient, values with heads.

    Example:
        >>> fusedmm.formats.to_hyb(fusedmm.data.banded(4, 1), width=2)
        HYB(shape=(4, 4), val=[2, 4], idx=[2, 4], tail_row=[2], tail_idx=[2], tail_val=[2], float32, device=cpu)
    """
    csr, row, col, val = _entries("to_hyb", a)
    _require_int32_rows("to_hyb", csr)
    if width is None:
        width = _hyb_width(csr)
    if not isinstance(width, int):
        raise TypeError(f"to_hyb: width must be an int, not {width!r}")
    if width < 0:
        raise ValueError(f"to_hyb: width must not be negative, not {width}")
    width = min(width, _longest(csr))
    idx, head = _columns(csr, row, col, val, width)
    beyond = _place(csr, row) >= width
    return HYB(csr.shape, head, idx, row[beyond].to(torch.int32), col[beyond].to(torch.int32), val[beyond])


def to_sell(a: Any, *, sigma: int = 1024, growth: float = 8) -> SELL:
    """Slices of 32 rows, of a ``CSR`` or of what ``as_csr`` takes.

    Args:
        a: the matrix; without values its entries are float32 ones.
        sigma: rows are sorted by length within windows of so many; 1 keeps their order.
        growth: how many times the bytes of the CSR the result may take.

    Raises:
        TypeError: sigma is no int.
        ValueError: sigma below 1, more bytes than allowed (the text says how much), values that want a gradient or
            have heads, 2^31 rows and more.

    Example:
        >>> fusedmm.formats.to_sell(fusedmm.data.banded(40, 1))
        SELL(shape=(40, 40), val=[192], idx=[192], offsets=[3], order=[40], float32, device=cpu)
    """
    csr, row, col, val = _entries("to_sell", a)
    _require_int32_rows("to_sell", csr)
    if not isinstance(sigma, int):
        raise TypeError(f"to_sell: sigma must be an int, not {sigma!r}")
    if sigma < 1:
        raise ValueError(f"to_sell: sigma must be at least 1, not {sigma}")
    order, offsets = _slices(csr, sigma)
    places = int(offsets[-1])
    _require_bytes("to_sell", csr, _sell_bytes(csr, places, val), growth)
    place_of = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=csr.device))
    at = place_of[row]
    at = offsets[at // SLICE] + _place(csr, row) * SLICE + at % SLICE
    idx = torch.full((places,), -1, dtype=torch.int32, device=csr.device)
    idx[at] = col.to(torch.int32)
    filled = val.new_zeros(places)
    filled[at] = val
    return SELL(csr.shape, filled, idx, offsets, order.to(torch.int32))


class Advice(NamedTuple):
    """What ``advise`` says.

    Attributes:
        bytes: what one product reads of the matrix in each format.
        best: the name of the format that ``to_...`` should make, or "csr".
        fits: the formats whose padding is within the default of ``to_...``.

    Example:
        >>> fusedmm.formats.advise(fusedmm.data.banded(1000, 1)).best
        'dia'
    """

    bytes: dict[str, int]
    best: str
    fits: tuple[str, ...]


def advise(a: Any) -> Advice:
    """Counts what a product with a vector reads of a matrix in each format, and names the format that reads least.

    Args:
        a: a ``CSR``, or what ``as_csr`` takes; without values it is counted with float32 ones.

    Returns:
        Bytes of each format, padding too; the best; and those that fit. CSR stays the best where no other one saves a
        twentieth, since it needs no conversion.

    Raises:
        TypeError, ValueError: as ``as_csr``, and values with heads.

    Example:
        >>> fusedmm.formats.advise(fusedmm.CSR.from_dense(torch.eye(4)))
        Advice(bytes={'csr': 72, 'coo': 48, 'dia': 24, 'ell': 32, 'hyb': 32, 'sell': 288}, best='dia', fits=('coo', 'dia', 'ell', 'hyb', 'sell'))
    """  # noqa: E501
    csr = as_csr(a)
    csr = csr if csr.val is None else csr.with_values(csr.val.detach())
    csr, row, col, val = _entries("advise", csr)
    each, width = 4 + val.element_size(), _hyb_width(csr)
    tail = int((csr.degree() - width).clamp(min=0).sum())
    counted = {
        "csr": _csr_bytes(csr, val),
        "coo": csr.nnz * (4 + each),
        "dia": _dia_bytes(csr, torch.unique((col - row)[val != 0]).numel(), val),
        "ell": _ell_bytes(csr, _longest(csr), val),
        "hyb": _ell_bytes(csr, width, val) + tail * (4 + each),
        "sell": _sell_bytes(csr, int(_slices(csr, 1024)[1][-1]), val),
    }
    fits = tuple(name for name, n in counted.items() if name != "csr" and n <= _allowed(csr, 8, val))
    best = min(fits, key=counted.__getitem__)
    return Advice(counted, best if counted[best] < 0.95 * counted["csr"] else "csr", fits)


# ---- what they share ----


def _entries(name: str, a: Any) -> tuple[CSR, Tensor, Tensor, Tensor]:
    """The matrix, and row, column and value of each entry in the order of its rows; row and column int64."""
    csr = as_csr(a)
    require_flat_values(name, csr.val)
    val = torch.ones(csr.nnz, device=csr.device) if csr.val is None else csr.val.reshape(-1)
    if val.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: the values want a gradient, which only CSR and COO give; detach them")
    val = val.detach()
    val = val[csr.eid.long()] if csr.val is not None and csr.eid.numel() else val
    return csr, rows_of(csr.ptr, csr.nnz).long(), csr.idx.long(), val


def _place(csr: CSR, row: Tensor) -> Tensor:
    """How many entries of its row lie before each entry."""
    return torch.arange(csr.nnz, device=csr.device) - csr.ptr[row]


def _columns(csr: CSR, row: Tensor, col: Tensor, val: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(idx, val) [width, rows] of the first entries of each row."""
    rows, place = csr.shape[0], _place(csr, row)
    first = place < width
    at = (place * rows + row)[first]
    idx = torch.full((width, rows), -1, dtype=torch.int32, device=csr.device)
    idx.view(-1)[at] = col[first].to(torch.int32)
    filled = val.new_zeros(width, rows)
    filled.view(-1)[at] = val[first]
    return idx, filled


def _longest(csr: CSR) -> int:
    return int(csr.degree().amax()) if csr.shape[0] else 0


def _hyb_width(csr: CSR) -> int:
    """The largest width that a third of the rows fill (Bell and Garland's rule)."""
    rows = csr.shape[0]
    return int(csr.degree().sort(descending=True).values[(rows - 1) // 3]) if rows else 0


def _slices(csr: CSR, sigma: int) -> tuple[Tensor, Tensor]:
    """(order, offsets) of SELL."""
    rows, length = csr.shape[0], csr.degree()
    window = torch.arange(rows, device=csr.device) // sigma
    order = torch.argsort(window * (csr.nnz + 1) + (csr.nnz - length), stable=True)
    padded = torch.nn.functional.pad(length[order], (0, -rows % SLICE)).view(-1, SLICE)
    ends = (padded.amax(1) * SLICE).cumsum(0) if rows else length
    return order, torch.nn.functional.pad(ends, (1, 0))


def _csr_bytes(csr: CSR, val: Tensor) -> int:
    return (csr.shape[0] + 1) * 8 + csr.nnz * (4 + val.element_size())


def _dia_bytes(csr: CSR, diagonals: int, val: Tensor) -> int:
    return diagonals * (8 + csr.shape[0] * val.element_size())


def _ell_bytes(csr: CSR, width: int, val: Tensor) -> int:
    return width * csr.shape[0] * (4 + val.element_size())


def _sell_bytes(csr: CSR, places: int, val: Tensor) -> int:
    rows = csr.shape[0]
    return places * (4 + val.element_size()) + rows * 4 + (-(-rows // SLICE) + 1) * 8


def _allowed(csr: CSR, growth: float, val: Tensor) -> float:
    return SPARED + growth * _csr_bytes(csr, val)


def _require_bytes(name: str, csr: CSR, wanted: int, growth: float) -> None:
    val = torch.empty(0) if csr.val is None else csr.val
    if wanted > _allowed(csr, growth, val):
        raise ValueError(
            f"{name}: the padded matrix would take {wanted:,} bytes, the CSR takes {_csr_bytes(csr, val):,}; "
            f"growth={growth:g} does not allow that much"
        )


def _require_int32_rows(name: str, csr: CSR) -> None:
    if csr.shape[0] >= 1 << 31:
        raise ValueError(f"{name}: {csr.shape[0]} rows; rows must be below 2^31")
