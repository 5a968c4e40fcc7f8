/* What the `segments` kernels of all operators share: how the plan's work comes to groups of lanes.
 *
 * An item is a piece of a long row, or a bundle of short rows that one group takes one after the
 * other. Each lane looks up one row of the bundle, so that the waits for order and ptr are paid
 * once per bundle, and entries of the next row are fetched while the current one is summed: short
 * rows cost about what their entries cost. */
#ifndef FMM_CUDA_SEGMENTS_CUH
#define FMM_CUDA_SEGMENTS_CUH

#include "../matrix/cuda_plan.cuh"

/* Whether rows of d can be gathered: their distance in bytes is a 32-bit factor in the kernels'
 * address arithmetic. */
static inline bool can_gather(const fmm_dense *d)
{
    return d->rows < 2 || d->row_stride <= int64_t(UINT32_MAX / fmm_dtype_bytes(d->dtype));
}

/* What the header says, clamped to what there is room for. */
struct plan_counts {
    int32_t hubs, long_rows, segments, ends[BUNDLES + 1];
};
static __device__ __forceinline__ plan_counts read_counts(const csr_view &a, const plan_view &plan)
{
    const int4 *const words = reinterpret_cast<const int4 *>(plan.header);
    const int4 w1 = __ldg(words + 1), w2 = __ldg(words + 2), w3 = __ldg(words + 3);
    const int32_t rows = (int32_t)a.rows;
    plan_counts n;
    n.long_rows = max(0, min(w1.w, plan.long_rows_max));
    n.hubs = max(0, min(w1.z, n.long_rows));
    n.segments = max(0, min(w2.x, plan.segments_max));
    n.ends[0] = max(n.long_rows, min(w2.y, rows));
    n.ends[1] = max(n.ends[0], min(w2.z, rows));
    n.ends[2] = max(n.ends[1], min(w2.w, rows));
    n.ends[3] = max(n.ends[2], min(w3.x, rows));
    return n;
}

/* Bundles of at most 2^shift rows: the fewer rows, the smaller, so that small matrices still fill
 * the card. */
static inline int bundle_shift(int64_t rows)
{
    return rows < 65536 ? 0 : rows < 131072 ? 1 : rows < 262144 ? 2 : BUNDLES;
}

/* No matrix has more items: a row in a bundle of less than 2^shift has at least 32 entries for each
 * part of a bundle that it is, and a piece at least half a segment on the average over its row. */
static inline int64_t items_max(const plan_view &plan, int64_t rows, int64_t nnz, int shift)
{
    const int64_t least = smaller(plan.segment / 2, SINGLE);
    return smaller(nnz / least, rows + plan.segments_max) + (rows >> shift) + BUNDLES + 1;
}

/* An item: rows order[from .. from + count), or segment `from` if count is 0. */
struct item_view {
    int32_t from, count;
};
static __device__ __forceinline__ item_view find_item(const plan_counts &n, int64_t item, int shift)
{
    item_view found = {0, -1};
    if (item < n.segments) return item_view{(int32_t)item, 0};
    int64_t left = item - n.segments;
    int32_t begin = n.long_rows;
#pragma unroll
    for (int class_ = 0; class_ <= BUNDLES; class_++) {
        const int size = min(class_, shift), rows = n.ends[class_] - begin;
        const int64_t bundles = (int64_t(rows) + (1 << size) - 1) >> size;
        if (found.count < 0 && left < bundles) {
            found.from = begin + (int32_t)(left << size);
            found.count = min(1 << size, n.ends[class_] - found.from);
        }
        left -= bundles;
        begin = n.ends[class_];
    }
    return found;
}
static __device__ __forceinline__ int64_t count_items(const plan_counts &n, int shift)
{
    int64_t items = n.segments;
    int32_t begin = n.long_rows;
#pragma unroll
    for (int class_ = 0; class_ <= BUNDLES; class_++) {
        const int size = min(class_, shift);
        items += (int64_t(n.ends[class_] - begin) + (1 << size) - 1) >> size;
        begin = n.ends[class_];
    }
    return items;
}

/* Entries of a row, or of a piece of one. */
struct span {
    int64_t begin;
    int32_t length, row;
};
static __device__ __forceinline__ span find_span(const csr_view &a, const plan_view &plan,
                                                 const item_view &item, int k)
{
    span s = {0, 0, 0};
    if (k >= max(item.count, 1) || item.count < 0) return s;
    int64_t length;
    if (item.count == 0) {
        const uint2 piece = __ldg(plan.segments + item.from);
        s.row = (int32_t)min(int64_t(piece.x), a.rows - 1);
        length = row_range(a, s.row, &s.begin);
        const int64_t each = (piece.y & 511) * 8 + 8, skip = min((piece.y >> 9) * each, length);
        s.begin += skip;
        length = min(length - skip, each);
    } else {
        s.row = (int32_t)clamp(__ldg(plan.order + item.from + k), 0, a.rows - 1);
        length = row_range(a, s.row, &s.begin);
    }
    s.length = (int32_t)min(length, int64_t(INT32_MAX) / 2);
    return s;
}
template <int LANES> static __device__ __forceinline__ span span_of_lane(const span &s, int k)
{
    span other;
    other.begin = __shfl_sync(ALL, s.begin, k, LANES);
    other.length = __shfl_sync(ALL, s.length, k, LANES);
    other.row = __shfl_sync(ALL, s.row, k, LANES);
    return other;
}

/* The largest over the groups of a warp: they then run one loop, so that shuffles need no masks;
 * entries past a group's own end are column -1, which loads nothing. */
template <int LANES> static __device__ __forceinline__ int most_in_warp(int v)
{
#pragma unroll
    for (int d = LANES; d < WARP; d *= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
    return v;
}

/* Where sums of more than CHAIN entries are put at each CHAIN-th of them; `by` scales what is
 * there. Rarely used, hence in local memory, which the compiler leaves it in as long as it cannot
 * tell where it is (blockDim.z is 1): in registers it would be as many again as the sums. */
template <class A, int N> struct sums_aside {
    A sums[N];
    __device__ __forceinline__ A *hidden(void) { return sums + (blockDim.z - 1); }
    __device__ __forceinline__ void put(A *from, bool first, A by = A(1))
    {
        A *const to = hidden();
#pragma unroll
        for (int i = 0; i < N; i++) {
            to[i] = first ? from[i] : fma(to[i], by, from[i]);
            from[i] = A(0);
        }
    }
    __device__ __forceinline__ void take(A *to, A by = A(1))
    {
        const A *const from = hidden();
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = fma(from[i], by, to[i]);
    }
};

/* item / heads, by heads' reciprocal: exact while item * heads < 2^64. */
static inline uint64_t reciprocal(int64_t heads) { return UINT64_MAX / (uint64_t)heads + 1; }
static __device__ __forceinline__ int64_t item_of(int64_t item, int32_t heads, uint64_t per_head)
{
    return heads == 1 ? item : (int64_t)__umul64hi((uint64_t)item, per_head);
}

/* Whether a view can be accessed `vec` elements at a time. */
static inline bool lies_in_packs(const fmm_dense *d, size_t bytes, int64_t vec)
{
    return (uintptr_t)d->data % (bytes * (size_t)vec) == 0 && d->feat % vec == 0 &&
           (d->rows < 2 || d->row_stride % vec == 0) && (d->heads < 2 || d->head_stride % vec == 0);
}

/* Heads that share their values, or have none, are just more columns where they lie side by side.
 */
static inline fmm_dense flat_heads(const fmm_dense *d)
{
    fmm_dense f = *d;
    f.feat *= f.heads;
    f.heads = 1;
    return f;
}
static inline bool can_be_flat(const fmm_dense *d)
{
    return d->heads == 1 || d->head_stride == d->feat;
}

/* Whether the kernels' grids reach over a matrix: one group of at most a warp for each piece, row
 * and head, and tiles of at least 8 columns along the grid's other axis. */
static inline bool segments_reach(const fmm_csr *a, int64_t heads, int64_t feat)
{
    if (!plan_possible(a->rows, a->nnz) || heads > INT32_MAX || feat > 65535 * INT64_C(8))
        return false;
    const int64_t items = plan_segments_max(a->rows, a->nnz) + a->rows + BUNDLES + 1;
    return items <= int64_t(INT32_MAX) * (BLOCK / WARP) / (heads ? heads : 1);
}

#endif
