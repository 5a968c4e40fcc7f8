/* All rows of C as bits: the symbolic phase of matrices that are small enough for that.
 *
 *     columns      0 .. 31     32 .. 63    ...
 *     row i        10010..0    0000..01          a bit for each column of C
 *
 *     pack         rows of B, if each is read often
 *     count        each row's bits are kept (cuda_sets.cuh)
 *     write        bits are read out in order, once C has memory
 *
 * So products are walked through once, where sets of single rows are made twice: to be counted, and
 * to be written.
 *
 *     row of B     3 7 9 31 | 64 65        6 columns
 *     packed       (0, 80000288) (2, 3)    a word and the bits in it: 2 items */
#ifndef FMM_SPGEMM_CUDA_BITS_CUH
#define FMM_SPGEMM_CUDA_BITS_CUH

#include "cuda_classes.cuh"

/* `words` of 32 columns for each row of C, or none where it would be too many; and B's rows packed,
 * each from the place of its first entry on, if `packs`. */
struct bit_rows {
    uint32_t *bits;
    int2 *items;
    int32_t *lengths; /* items of each row of B */
    int words;
    bool packs;
    size_t of_bits, of_items, bytes;

    /* All of it takes as much memory as a call may at most: 31.5 MiB and a quarter of A or B. And a
     * row takes no more shared memory than a warp has. */
    void size(const fmm_csr *a, const fmm_csr *b)
    {
        enum { MOST = 63 << 19, OFTEN = 8 };
        const int64_t row = ceil_div(b->cols, 32) * (int64_t)sizeof *bits;
        const size_t room = MOST + (size_t)(a->nnz > b->nnz ? a->nnz : b->nnz) * 2;
        words = 0, bytes = 0, packs = false;
        if (row > ROOM || a->rows > (int64_t)room / (row ? row : 1)) return;
        words = (int)(row / (int64_t)sizeof *bits);
        of_bits = rounded((size_t)(a->rows * row)),
        of_items = rounded((size_t)b->nnz * sizeof *items);
        const size_t all = of_bits + of_items + rounded((size_t)b->rows * sizeof *lengths);
        packs = b->rows && a->nnz >= OFTEN * b->rows && all <= room;
        bytes = packs ? all : of_bits;
    }
    /* Where it lies in the workspace. */
    void place(char *base)
    {
        bits = reinterpret_cast<uint32_t *>(base);
        items = reinterpret_cast<int2 *>(base + of_bits);
        lengths = reinterpret_cast<int32_t *>(base + of_bits + of_items);
    }
    __device__ uint32_t *of(int64_t i) const { return bits + i * words; }
    static size_t rounded(size_t n) { return (n + 255) / 256 * 256; }
};

/* B's rows packed, for for_products; an item of none sets no bit. */
struct items_of {
    csr_view b;
    bit_rows from;
    __device__ __forceinline__ row_of_b row(const csr_view &a, int64_t p, int64_t end) const
    {
        row_of_b found(a, b, p, end);
        if (!found.length) return found;
        const int32_t items = __ldg(from.lengths + __ldg(a.idx + p));
        if (items < found.length) found.length = items; /* more only if B has changed */
        return found;
    }
    __device__ __forceinline__ int2 item(int64_t q, bool wanted) const
    {
        return wanted ? __ldg(from.items + q) : make_int2(0, 0);
    }
};

/* Packs rows of B, a warp a row, 32 entries at a time:
 *
 *     column      3   7   9   31   64   65        columns may also fall, and words repeat
 *     starts      1   0   0   0    1    0         an item each
 *     at          0   0   0   0    1    1 */
static __global__ void __launch_bounds__(BLOCK) pack_rows(const csr_view b, const bit_rows to)
{
    __shared__ uint32_t masks[BLOCK];
    const int64_t i = this_thread() / WARP;
    const int lane = threadIdx.x % WARP;
    uint32_t *const mask = masks + threadIdx.x / WARP * WARP;
    if (i >= b.rows) return;
    int64_t begin;
    const int64_t length = row_range(b, i, &begin);
    int made = 0;
    for (int64_t base = 0; base < length; base += WARP) {
        const int32_t j = base + lane < length ? __ldg(b.idx + begin + base + lane) : -1;
        const bool exists = uint32_t(j) < uint32_t(b.cols);
        const int word = exists ? j / 32 : -1, before = __shfl_up_sync(ALL, word, 1);
        const unsigned starts = __ballot_sync(ALL, exists && (!lane || word != before));
        const int at = __popc(starts & (lanes_below() | 1u << lane)) - 1;
        mask[lane] = 0;
        __syncwarp();
        if (exists) atomicOr(mask + at, 1u << j % 32);
        __syncwarp();
        if (starts >> lane & 1) to.items[begin + made + at] = make_int2(word, int(mask[at]));
        made += __popc(starts);
        __syncwarp();
    }
    if (!lane) to.lengths[i] = made;
}

#endif
