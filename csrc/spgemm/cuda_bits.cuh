/* All rows of C as bits: the symbolic phase of matrices that are small enough for that.
 *
 *     columns      0 .. 31     32 .. 63    ...
 *     row i        10010..0    0000..01          a bit for each column of C
 *
 *     pack         rows of B, if each is read often
 *     count        rows of a block, a warp each; then its long rows, all warps together
 *     write        bits are read out in order, once C has memory
 *
 * So products are walked through once, where sets of single rows (cuda_sets.cuh) are made twice:
 * to be counted, and to be written. Three launches do it for rows of any length.
 *
 *     row of B     3 7 9 31 | 64 65        6 columns
 *     packed       (0, 80000288) (2, 3)    a word and the bits in it: 2 items */
#ifndef FMM_SPGEMM_CUDA_BITS_CUH
#define FMM_SPGEMM_CUDA_BITS_CUH

#include "cuda_sets.cuh"

/* `words` of 32 columns for each row of C, or none where it would be too many; and B's rows packed,
 * each from the place of its first entry on, if `packs`. */
struct bit_rows {
    uint32_t *bits;
    int2 *items;
    int32_t *lengths; /* items of each row of B */
    int words;
    bool packs;
    size_t of_bits, of_items, bytes;

    /* All of it takes as much memory as a call may at most: 31.5 MiB and a quarter of A or B. And
     * the bits of a block's rows take no more shared memory than any card has. */
    void size(const fmm_csr *a, const fmm_csr *b)
    {
        enum { MOST = 63 << 19, SHARED = 44 << 10, ROWS = BLOCK / WARP, OFTEN = 8 };
        const int64_t row = ceil_div(b->cols, 32) * (int64_t)sizeof *bits;
        const size_t room = MOST + (size_t)(a->nnz > b->nnz ? a->nnz : b->nnz) * 2;
        words = 0, bytes = 0, packs = false;
        if (row * ROWS > SHARED || a->rows > (int64_t)room / (row ? row : 1)) return;
        words = (int)(row / (int64_t)sizeof *bits);
        of_bits = rounded((size_t)(a->rows * row)),
        of_items = rounded((size_t)b->nnz * sizeof *items);
        const size_t all = of_bits + of_items + rounded((size_t)b->rows * sizeof *lengths);
        packs = a->nnz >= OFTEN * b->rows && all <= room;
        bytes = packs ? all : of_bits;
    }
    /* Where it lies in the workspace. */
    void place(char *base)
    {
        bits = reinterpret_cast<uint32_t *>(base);
        items = reinterpret_cast<int2 *>(base + of_bits);
        lengths = reinterpret_cast<int32_t *>(base + of_bits + of_items);
    }
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

/* The bits of each row, and how many there are of them, in ptr[i + 1]. */
template <class Source>
static __global__ void __launch_bounds__(BLOCK)
    count_bits(const symbolic_args s, const Source b, const bit_rows to)
{
    enum { ROWS = BLOCK / WARP, LONG = 64 }; /* entries of A from which all warps take part */
    __shared__ numbers rooms[ROWS];
    uint32_t *const all = reinterpret_cast<uint32_t *>(spgemm_shared);
    const int own = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t first = int64_t(blockIdx.x) * ROWS, i = first + own;
    /* Sets what an item of B says in row number r of the block: a column, or a word and its bits.
     */
    const auto set_in = [&](int r) {
        return [=](auto item) {
            uint32_t *const bits = all + r * to.words;
            if constexpr (sizeof item == sizeof(int2))
                set_bits(bits, min(unsigned(item.x), unsigned(to.words - 1)), uint32_t(item.y));
            else {
                const bool exists = uint32_t(item) < uint32_t(s.b.cols);
                set_bits(bits, exists ? unsigned(item) / 32 : 0, exists ? 1u << item % 32 : 0);
            }
        };
    };
    int64_t begin;
    for (int w = threadIdx.x; w < ROWS * to.words; w += BLOCK) all[w] = 0;
    __syncthreads();
    if (i < s.a.rows && row_range(s.a, i, &begin) <= LONG)
        for_products<1>(s.a, b, i, rooms + own, set_in(own));
    for (int r = 0; r < ROWS && first + r < s.a.rows; r++)
        if (row_range(s.a, first + r, &begin) > LONG)
            for_products<ROWS>(s.a, b, first + r, rooms + own, set_in(r));
    __syncthreads();
    if (i >= s.a.rows) return;
    /* Each warp counts its row, and leaves the bits for the kernel that writes columns. */
    int found = 0;
    for (int w = lane; w < to.words; w += WARP) {
        const uint32_t word = all[own * to.words + w];
        to.bits[i * to.words + w] = word;
        found += __popc(word);
    }
    found = added<1>(found, NULL);
    if (!lane) s.ptr[i + 1] = found;
}

/* C's columns, a warp a row. Each lane puts those of a word into shared memory, from where
 * neighbouring lanes write neighbouring columns. */
static __global__ void __launch_bounds__(BLOCK)
    write_bits_of(const symbolic_args s, const bit_rows to)
{
    __shared__ int32_t columns[BLOCK / WARP][WARP * 32];
    const int64_t i = this_thread() / WARP;
    const int lane = threadIdx.x % WARP;
    int32_t *const own = columns[threadIdx.x / WARP];
    if (i >= s.a.rows) return;
    const int64_t end = s.ptr[i + 1];
    int64_t begin = s.ptr[i];
    for (int base = 0; base < to.words && begin < end; base += WARP) {
        const int w = base + lane;
        uint32_t word = w < to.words ? to.bits[i * to.words + w] : 0;
        const int until = scanned<1>(__popc(word), (int *)NULL);
        for (int at = until - __popc(word); word; word &= word - 1)
            own[at++] = w * 32 + __ffs(word) - 1;
        __syncwarp();
        const int found = __shfl_sync(ALL, until, WARP - 1);
        for (int at = lane; at < found && begin + at < end; at += WARP) s.idx[begin + at] = own[at];
        begin += found;
        __syncwarp();
    }
}

/* While C has no columns, rows are counted; then they are written. */
static void launch_bits(const fmm_exec *exec, const symbolic_args &s, const bit_rows &to)
{
    enum { ROWS = BLOCK / WARP };
    const cudaStream_t stream = stream_of(exec);
    const unsigned blocks = (unsigned)ceil_div(s.a.rows, ROWS);
    const size_t bytes = ROWS * to.words * sizeof(uint32_t);
    if (s.idx)
        write_bits_of<<<blocks, BLOCK, 0, stream>>>(s, to);
    else if (!to.packs)
        count_bits<<<blocks, BLOCK, bytes, stream>>>(s, columns_of{s.b}, to);
    else {
        if (s.b.rows) pack_rows<<<(unsigned)ceil_div(s.b.rows, ROWS), BLOCK, 0, stream>>>(s.b, to);
        count_bits<<<blocks, BLOCK, bytes, stream>>>(s, items_of{s.b, to}, to);
    }
}

#endif
