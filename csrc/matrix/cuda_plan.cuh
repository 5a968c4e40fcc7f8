/* The plan: how the rows of a matrix are dealt to groups of lanes. cuda_plan.cu makes it once for a
 * structure, and the `segments` kernels read it (cuda/segments.cuh).
 *
 *     header    64 bytes: what the plan was made for, and where the classes of rows begin
 *     starts    the first row that begins at entry 0, 128, 256, ... or behind it, and the number
 *               of rows: where the warps of SpMV begin (spmv/cuda_segments.cuh)
 *     order     the rows by falling length class
 *                 | hubs | long | 8 classes an octave | up to 32 | up to 16 | up to 8 | empty |
 *     first     for the k-th row of `order`, while it is long: its first segment
 *     segments  the pieces of the long rows; those of a row are equally long and have at most
 *               `segment` entries. They come in the order in which they are taken: by their place
 *               within their rows, in SHARES steps, and in row order within a step
 *
 * A row is long if it has more than `segment` entries. The sort is stable. So rows that share a
 * warp are about equally long, the longest start first, and neighbours in memory stay neighbours.
 *
 * Each piece has a slot for its partial sums. Slots are numbered in row order, whatever the order
 * in which pieces are taken: the second does not change what the sums of pieces are added to. It
 * is by place because columns rise within most rows: pieces that are first in their rows read the
 * same low rows of x, the last ones the same high rows, and what one group of lanes has read the
 * others find in a cache.
 *
 *     slots      | row 3:  0  1  2  3 | row 7:  4  5 | row 8:  6  7  8  9 |
 *     taken      0  6 | 4 | 1  7 | 2  8 | 5 | 3  9
 *
 * A plan has at most 4 bytes for each row, 36 for each `segment` entries and 4 for each 128. The
 * bound of every count follows from (rows, nnz, segment) alone, so that a call can be sized without
 * asking the device. `segment` follows from the entries of the whole matrix, of which a device may
 * have a part: so a row is cut in the same pieces wherever it lies. A caller that asked it cuts the
 * plan behind its last segment, and calls take room for no more partial sums. A plan that was never
 * made, or made for another matrix, gives wrong results, but nothing read from it is used before it
 * is clamped. */
#pragma once

#include "../cuda/common.cuh"
#include <stddef.h>

/* Rows of up to 8, 16 and 32 entries have a class each and are taken 8, 4 and 2 at a time. */
enum { BUNDLES = 3, SINGLE = 32, HUB_PIECES = 32 };

struct plan_header {
    int64_t rows, nnz;
    int32_t version, segment;
    int32_t hubs, long_rows, segments; /* rows of more than HUB_PIECES pieces; of more than one */
    int32_t ends[BUNDLES + 1];         /* in `order`: of rows above 32, 16, 8 and 0 entries */
    int32_t reserved;
    int64_t used; /* bytes up to the last segment's end */
};
static_assert(sizeof(plan_header) == 64 && offsetof(plan_header, used) == FMM_PLAN_USED,
              "the header is part of the format");

struct plan_view {
    const plan_header *header;
    const int32_t *order, *first;
    const uint4 *segments;
    int32_t segment, long_rows_max, segments_max;
};

/* Short segments keep a small matrix's lanes busy, long ones save partial sums. On real and R-MAT
 * graphs (H200) the best over all operators were 32 entries for up to 200,000, 64 for 0.6 M (SpMM
 * of 128 columns would rather have 128, of 32 columns not), 256 for 2 to 6 M, 1,024 for 13 M, 2,048
 * for 30 to 49 M and 4,096 for 78 M and more. A matrix of no more entries than TINY has no long
 * rows at all: host time is all there is to its calls, and the partial sums would cost an
 * allocation and a launch. */
enum { TINY = 256, LONGEST = 4096 };
static inline int32_t plan_segment(int64_t nnz)
{
    return nnz <= TINY      ? TINY
           : nnz < 200000   ? 32
           : nnz < 1000000  ? 64
           : nnz < 2000000  ? 128
           : nnz < 10000000 ? 256
           : nnz < 24000000 ? 1024
           : nnz < 60000000 ? 2048
                            : LONGEST;
}

/* Whether a matrix has so few entries that a group of lanes has an SM nearly to itself: what counts
 * is how long its own chain of loads is. */
static inline bool is_small(int64_t nnz) { return nnz < 131072; }

/* What the bounds of a plan follow from. */
struct plan_size {
    int64_t rows, nnz;
    int32_t segment;
};
static inline int64_t whole_rows(const fmm_csr *a)
{
    return a->whole.nnz ? a->whole.rows : a->rows;
}
static inline int64_t whole_nnz(const fmm_csr *a) { return a->whole.nnz ? a->whole.nnz : a->nnz; }
static inline plan_size size_of_plan(const fmm_csr *a)
{
    return plan_size{a->rows, a->nnz, plan_segment(whole_nnz(a))};
}

/* A row is long if it has more than `segment` entries, hence these bounds. */
static inline int64_t plan_long_rows_max(const plan_size &n)
{
    return smaller(n.rows, n.nnz / (n.segment + 1));
}
static inline int64_t plan_segments_max(const plan_size &n)
{
    return n.nnz / n.segment + plan_long_rows_max(n);
}

static inline bool plan_possible(int64_t rows, int64_t nnz)
{
    return rows <= INT32_MAX && nnz <= INT64_C(1) << 34;
}

static inline size_t plan_padded(int64_t bytes) { return (size_t)ceil_div(bytes, 16) * 16; }

/* Entries of a warp of SpMV. */
enum { PLAN_SHARE = 128 };
static __host__ __device__ inline int64_t plan_shares(int64_t nnz)
{
    return ceil_div(nnz, PLAN_SHARE);
}
static inline size_t plan_starts_bytes(int64_t nnz)
{
    return plan_padded((plan_shares(nnz) + 1) * (int64_t)sizeof(int32_t));
}
static __host__ __device__ inline int32_t *plan_starts(const void *plan)
{
    return const_cast<int32_t *>(
        reinterpret_cast<const int32_t *>(static_cast<const char *>(plan) + sizeof(plan_header)));
}

/* Bytes of a plan, up to its segments and with the most there can be. */
static inline size_t plan_begin(const plan_size &n)
{
    return sizeof(plan_header) + plan_starts_bytes(n.nnz) + plan_padded(n.rows * 4) +
           plan_padded(plan_long_rows_max(n) * 4);
}
static inline size_t plan_bytes(const plan_size &n)
{
    return plan_begin(n) + plan_segments_max(n) * 16;
}

static inline plan_view view_plan(const void *plan, const plan_size &n, int64_t segments)
{
    const char *const at = static_cast<const char *>(plan);
    const size_t order = sizeof(plan_header) + plan_starts_bytes(n.nnz);
    const size_t first = order + plan_padded(n.rows * 4);
    plan_view v;
    v.segment = n.segment;
    v.segments_max = (int32_t)segments;
    v.long_rows_max = (int32_t)smaller(plan_long_rows_max(n), segments / 2);
    v.header = reinterpret_cast<const plan_header *>(at);
    v.order = reinterpret_cast<const int32_t *>(at + order);
    v.first = reinterpret_cast<const int32_t *>(at + first);
    v.segments = reinterpret_cast<const uint4 *>(at + plan_begin(n));
    return v;
}

/* How many pieces a long row has. */
static __device__ __forceinline__ int64_t pieces_of(int64_t length, int32_t segment)
{
    return (length + segment - 1) / segment;
}
/* And how long they are, but for the last: equally, in whole sectors of idx (8 entries), so that
 * all but the first lie alike in memory. */
static __device__ __forceinline__ int64_t piece_length(int64_t length, int64_t pieces)
{
    return (length + pieces * 8 - 1) / (pieces * 8) * 8;
}

/* A segment says of a piece its row, its slot, and its entries: the first one in 48 bits, and how
 * many there are in the 16 bits below these. */
static __device__ __forceinline__ uint4 pack_piece(int64_t row, int64_t slot, int64_t begin,
                                                   int64_t length)
{
    const uint64_t entries = uint64_t(begin) << 16 | uint64_t(length);
    return make_uint4((uint32_t)row, (uint32_t)slot, uint32_t(entries), uint32_t(entries >> 32));
}

/* Makes the plan on exec's stream: cuda_plan.cu. `scratch` has plan_scratch(rows) bytes. */
size_t plan_scratch(int64_t rows);
void plan_build(const fmm_exec *exec, const fmm_csr *a, void *plan, void *scratch);

/* The plan that came with the matrix, or one made for this call at the start of the workspace where
 * it is too short or lies where vectors of it cannot be read. */
static inline bool plan_given(const fmm_csr *a)
{
    return a->plan && (uintptr_t)a->plan % 16 == 0 && a->plan_bytes >= plan_begin(size_of_plan(a));
}
/* How many segments the plan has room for. A call needs as many slots of partial sums. */
static inline int64_t plan_slots(const fmm_csr *a)
{
    const plan_size n = size_of_plan(a);
    const int64_t most = plan_long_rows_max(n) ? plan_segments_max(n) : 0;
    if (!plan_given(a)) return most;
    return smaller(most, (int64_t)(a->plan_bytes - plan_begin(n)) / 16);
}
static inline size_t plan_workspace(const fmm_csr *a)
{
    return plan_given(a) ? 0
                         : plan_padded((int64_t)plan_bytes(size_of_plan(a))) +
                               plan_padded((int64_t)plan_scratch(a->rows));
}
static inline plan_view plan_for_call(const fmm_exec *exec, const fmm_csr *a)
{
    const plan_size n = size_of_plan(a);
    if (plan_given(a)) return view_plan(a->plan, n, plan_slots(a));
    char *at = static_cast<char *>(exec->workspace);
    plan_build(exec, a, at, at + plan_padded((int64_t)plan_bytes(n)));
    return view_plan(at, n, plan_slots(a));
}
