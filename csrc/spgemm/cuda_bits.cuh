/* All rows of C as bits: the symbolic phase of matrices that are small enough for that.
 *
 *     columns      0 .. 31     32 .. 63    ...
 *     row i        10010..0    0000..01          a bit for each column of C
 *
 *     count        rows of a block, a warp each; then its long rows, all warps together
 *     write        bits are read out in order, once C has memory
 *
 * So products are walked through once, where sets of single rows (cuda_sets.cuh) are made twice:
 * to be counted, and to be written. Two launches do it for rows of any length. */
#ifndef FMM_SPGEMM_CUDA_BITS_CUH
#define FMM_SPGEMM_CUDA_BITS_CUH

#include "cuda_sets.cuh"

/* `words` of 32 columns for each row, or none where it would be too many. */
struct bit_rows {
    uint32_t *bits;
    int words;
    size_t bytes;
};

/* All bits take as much memory as a call may at most: 31.5 MiB and a quarter of A or B. And those
 * of a block's rows take no more shared memory than any card has. */
static bit_rows bit_rows_of(const fmm_csr *a, const fmm_csr *b)
{
    enum { MOST = 63 << 19, SHARED = 48 << 10, ROWS = BLOCK / WARP };
    const int64_t words = ceil_div(b->cols, 32), row = words * (int64_t)sizeof(uint32_t);
    const int64_t room = MOST + (a->nnz > b->nnz ? a->nnz : b->nnz) * 2;
    const bool fits = row * ROWS <= SHARED && a->rows <= room / (row ? row : 1);
    return bit_rows{NULL, fits ? (int)words : 0, fits ? (size_t)(a->rows * row) : 0};
}

/* Sets the bit of a column. Most are set already, so a plain read comes before the atomic. */
struct set_bit {
    uint32_t *of_row;
    __device__ __forceinline__ void operator()(int32_t j) const
    {
        const uint32_t bit = 1u << j % 32;
        uint32_t *const word = of_row + j / 32;
        if (!(*(volatile uint32_t *)word & bit)) atomicOr(word, bit);
    }
};

/* The bits of each row, and how many there are of them, in ptr[i + 1]. */
static __global__ void __launch_bounds__(BLOCK) count_bits(const symbolic_args s, const bit_rows to)
{
    enum { ROWS = BLOCK / WARP, LONG = 64 }; /* entries of A from which all warps take part */
    uint32_t *const bits = reinterpret_cast<uint32_t *>(spgemm_shared);
    const int own = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t first = int64_t(blockIdx.x) * ROWS, i = first + own;
    int64_t begin;
    for (int w = threadIdx.x; w < ROWS * to.words; w += BLOCK) bits[w] = 0;
    __syncthreads();
    if (i < s.a.rows && row_range(s.a, i, &begin) <= LONG)
        for_columns<1>(s.a, s.b, i, set_bit{bits + own * to.words});
    for (int r = 0; r < ROWS && first + r < s.a.rows; r++)
        if (row_range(s.a, first + r, &begin) > LONG)
            for_columns<ROWS>(s.a, s.b, first + r, set_bit{bits + r * to.words});
    __syncthreads();
    if (i >= s.a.rows) return;
    int found = 0;
    for (int w = lane; w < to.words; w += WARP) {
        const uint32_t word = bits[own * to.words + w];
        to.bits[i * to.words + w] = word;
        found += __popc(word);
    }
    found = added<1>(found, NULL);
    if (!lane) s.ptr[i + 1] = found;
}

/* C's columns, a warp a row. */
static __global__ void __launch_bounds__(BLOCK)
    write_bits_of(const symbolic_args s, const bit_rows to)
{
    __shared__ told<1> says[BLOCK / WARP];
    const int64_t i = this_thread() / WARP;
    if (i >= s.a.rows) return;
    const int64_t begin = s.ptr[i], entries = s.ptr[i + 1] - begin;
    if (entries > 0)
        write_bits<1>(to.bits + i * to.words, to.words, 0, s.idx + begin, 0, entries,
                      says + threadIdx.x / WARP);
}

static void launch_bits(const fmm_exec *exec, const symbolic_args &s, const bit_rows &to)
{
    enum { ROWS = BLOCK / WARP };
    const unsigned blocks = (unsigned)ceil_div(s.a.rows, ROWS);
    if (s.idx)
        write_bits_of<<<blocks, BLOCK, 0, stream_of(exec)>>>(s, to);
    else
        count_bits<<<blocks, BLOCK, ROWS * to.words * sizeof(uint32_t), stream_of(exec)>>>(s, to);
}

#endif
