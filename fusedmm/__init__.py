"""Sparse kernels for graph neural networks: SpMM and SDDMM that are each other's gradient, on CPU and CUDA."""

import importlib
from typing import Any

from fusedmm import _fakes as _fakes  # registers with torch what makes results without numbers
from fusedmm import data as data
from fusedmm import formats as formats
from fusedmm import nn as nn
from fusedmm._lib import Algorithm, algorithms, build_info
from fusedmm.matrix import export as _export  # noqa: F401  makes CSR known to torch.export
from fusedmm.matrix.adapters import as_csr
from fusedmm.matrix.csr import CSR
from fusedmm.matrix.stacking import block_diag, hstack, unbatch, vstack
from fusedmm.nn.convert import convert
from fusedmm.ops import presets as presets
from fusedmm.ops.attention import attention
from fusedmm.ops.edge_softmax import edge_softmax
from fusedmm.ops.fused import fused
from fusedmm.ops.gspmm import gsddmm, gspmm
from fusedmm.ops.products import SpGEMMPlan
from fusedmm.ops.sddmm import sddmm
from fusedmm.ops.spgemm import spgemm, spgemm_plan, triple_product
from fusedmm.ops.spmm import spmm
from fusedmm.ops.spmv import spmv
from fusedmm.plugins import load_algorithms
from fusedmm.prepare import prepare

__version__ = build_info()["version"]
__all__ = [
    "CSR",
    "Algorithm",
    "SpGEMMPlan",
    "algorithms",
    "as_csr",
    "attention",
    "block_diag",
    "build_info",
    "convert",
    "data",
    "distributed",
    "edge_softmax",
    "formats",
    "fused",
    "gsddmm",
    "gspmm",
    "hstack",
    "load_algorithms",
    "messages",
    "nn",
    "prepare",
    "presets",
    "sddmm",
    "spgemm",
    "spgemm_plan",
    "spmm",
    "spmv",
    "triple_product",
    "unbatch",
    "vstack",
]


def __getattr__(name: str) -> Any:
    """Loads ``fusedmm.distributed`` and ``fusedmm.messages`` on first use."""
    if name in ("distributed", "messages"):
        return importlib.import_module(f"fusedmm.{name}")
    raise AttributeError(f"module 'fusedmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names alone, without the modules that importing them leaves here."""
    return sorted(__all__)
