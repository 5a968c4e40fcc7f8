"""What every product of a CSR matrix with a vector reads, and no product: how fast any SpMV can be on a GPU.

Threads read columns, values and x in the order of csrc/spmv/cuda_segments.cuh, a warp's lanes side by side and EACH
entries a thread, and where rows begin; each thread adds up what it read and writes some of y. Nothing is summed over
threads, so nobody waits for anybody. cupy compiles the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import fusedmm

EACH = (4, 8)  # entries of a thread; which of them takes less time depends on the matrix
BLOCK = 256
SOURCE = """
template <class T, int EACH>
__global__ void __launch_bounds__(256)
    reads(const long long *ptr, const int *idx, const T *val, const T *x, T *y, long long rows, long long nnz)
{
    const long long t = blockIdx.x * 256ll + threadIdx.x, first = t / 32 * 32 * EACH + t % 32;
    int j[EACH];
    T w[EACH], sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const long long at = min(first + 32 * k, nnz - 1);
        j[k] = __ldcs(idx + at), w[k] = __ldcs(val + at);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) sum += w[k] * __ldg(x + j[k]);
    for (long long i = t; i < rows; i += gridDim.x * 256ll) y[i] = sum + T(__ldg(ptr + i));
    if (sum == T(1e-30)) y[0] = sum; /* or loads whose sum nobody writes would be left out */
}
"""


def reading(adj: fusedmm.CSR, x: Tensor, each: int) -> Callable[[], Tensor]:
    """A call that reads the matrix and x, and writes as many numbers as y has."""
    import cupy

    assert adj.val is not None and adj.nnz
    kind = {torch.float32: "float", torch.float64: "double"}[x.dtype]
    kernel = cupy.RawModule(code=SOURCE, name_expressions=[f"reads<{kind}, {each}>"]).get_function(
        f"reads<{kind}, {each}>"
    )
    y = x.new_empty(adj.shape[0])
    arrays = [cupy.from_dlpack(t) for t in (adj.ptr, adj.idx, adj.val, x, y)]
    blocks = -(-adj.nnz // (BLOCK * each))

    def run() -> Tensor:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((blocks,), (BLOCK,), (*arrays, cupy.int64(adj.shape[0]), cupy.int64(adj.nnz)))
        return y

    return run
