/* Windows of C's entries, each of which a warp computes: where a plan keeps its products
 * (cuda_kept.cu), and where entries are few (cuda_entries.cu).
 *
 *     entries of C   0 ......... | width ......... | 2 width ...     whatever rows they are of
 *     A              the entries of these rows, in order
 *     B              of each of them the products that fall into the window: its columns of C are
 *                    from one to another, and so is this part of B's row, since columns rise
 *
 * So all windows are about as much work, long rows are shared and short ones taken together. */
#ifndef FMM_SPGEMM_CUDA_ENTRIES_CUH
#define FMM_SPGEMM_CUDA_ENTRIES_CUH

#include "../cuda/search.cuh"
#include "cuda_products.cuh"

enum { ENTRY_WARPS = 4 }; /* of a block */

/* The width of windows follows from the number of C's entries: the longer they are, the longer are
 * the parts of B's rows, but a card wants some windows for each warp that it holds, and more where
 * rows are uneven. */
static inline int width_for(int64_t entries)
{
    return entries <= 1 << 20 ? 64 : entries <= 1 << 26 ? 256 : 512;
}

/* The row of entry p, which a warp looks for: each step asks in 32 places at once which rows end
 * before it, where bisection would take five steps that wait for each other. */
static __device__ __forceinline__ int64_t row_of_warp(const csr_view &a, int64_t p)
{
    int64_t low = 0;
    for (int64_t left = a.rows - 1; left > 0;) {
        const int64_t step = ceil_div(left, WARP), at = threadIdx.x % WARP * step;
        const bool before = at < left && __ldg(a.ptr + 1 + low + at) <= p;
        const int64_t passed = __popc(__ballot_sync(ALL, before));
        if (!passed) break;
        low += (passed - 1) * step + 1, left -= (passed - 1) * step + 1;
        if (left > step - 1) left = step - 1;
    }
    return low;
}

/* A window's entries of C [low, high), their rows [first, last], and the entries of A in these. */
struct window_rows {
    int64_t low, high, first, last, begin, end;
    __device__ __forceinline__ window_rows(const csr_view &a, const csr_view &c, int64_t w,
                                           int width)
        : low(w * width), high(low + width < c.nnz ? low + width : c.nnz)
    {
        first = row_of_warp(c, low), last = row_of_warp(c, high - 1);
        end = row_range(a, last, &begin) + begin;
        row_range(a, first, &begin);
    }
    /* The row of entry p of A. */
    __device__ __forceinline__ int64_t row(const csr_view &a, int64_t p) const
    {
        return first + first_at_least(a.ptr + first + 1, 1, last - first, p + 1);
    }
    /* Row i's entries of C in the window: from *from on. */
    __device__ __forceinline__ int entries(const csr_view &c, int64_t i, int64_t *from) const
    {
        const int64_t until = row_range(c, i, from) + *from, stop = until < high ? until : high;
        if (*from < low) *from = low;
        return stop > *from ? int(stop - *from) : 0;
    }
    /* The products of entry p of A, in row i, that fall into the window. */
    __device__ __forceinline__ row_of_b products(const csr_view &a, const csr_view &b,
                                                 const csr_view &c, int64_t p, int64_t i) const
    {
        int64_t from, all;
        const int64_t length = row_range(c, i, &all);
        const int here = entries(c, i, &from);
        row_of_b row(a, b, p, here ? end : 0);
        if (!row.length || here == length) return row;
        const int32_t least = __ldg(c.idx + from), most = __ldg(c.idx + from + here - 1);
        cut_to(b, column_span{least, int32_t(unsigned(most) - unsigned(least) + 1)}, &row);
        return row;
    }
};

/* ---- the products of a window ---- */

/* What a chunk's lanes have found, entries without products left out: product t of the chunk is
 * entry origin + t of B, and its column one of the `here` of C's row in the window, from place
 * `from` on. */
struct found_room {
    int ends[WARP], from[WARP], here[WARP];
    unsigned origin[WARP];
    int32_t p[WARP]; /* the entry of A; the first one's sign says that sums are put aside before */
};
enum : int32_t { PUT_ASIDE = INT32_MIN };

/* Whether sums are put aside before entry p = base + lane of A, in row i: another part of the row
 * begins between it and the last entry before that has products in the window. `some` are the
 * lanes whose entries do, and `before` is the last such entry of earlier lanes' chunks. */
static __device__ __forceinline__ bool begins_part(const csr_view &a, int64_t i, int64_t base,
                                                   unsigned some, int64_t before)
{
    int64_t first;
    row_range(a, i, &first);
    const unsigned lower = some & lanes_below();
    const int64_t p = base + threadIdx.x % WARP;
    const int64_t last = lower ? base + WARP - 1 - __clz(lower) : before;
    return some >> threadIdx.x % WARP & 1 && last >= first &&
           (last - first) / SPGEMM_TERMS < (p - first) / SPGEMM_TERMS;
}

/* Finds a chunk of entries from *base on, which is then where the next one begins; returns how many
 * have products, *products of them in all. *before is the last entry before that had any. A chunk
 * ends before a new part of a row, so that only its first entry can begin one. */
static __device__ __forceinline__ int find_chunk(const csr_view &a, const csr_view &b,
                                                 const csr_view &c, const window_rows &rows,
                                                 int64_t *base, int64_t *before, int *products,
                                                 found_room &room)
{
    int64_t from;
    const int64_t p = *base + threadIdx.x % WARP, i = rows.row(a, p);
    const row_of_b row = rows.products(a, b, c, p, i);
    const int here = rows.entries(c, i, &from), length = (int)row.length;
    const unsigned all = __ballot_sync(ALL, length > 0), lower = all & lanes_below();
    const int until = scanned<1, int>(length, NULL), at = __popc(lower);
    const bool new_part = begins_part(a, i, *base, all, *before);
    const unsigned cuts = __ballot_sync(ALL, new_part && lower);
    const int taken = cuts ? __ffs(cuts) - 1 : WARP;
    const unsigned some = all & ALL >> (WARP - taken);
    *products = __shfl_sync(ALL, until, taken - 1);
    __syncwarp(); /* nobody reads the chunk before */
    if (length && threadIdx.x % WARP < taken) {
        room.ends[at] = until;
        room.origin[at] = unsigned(row.begin) - unsigned(until - length);
        room.from[at] = int(from - rows.low);
        room.here[at] = here;
        room.p[at] = int32_t(p) | (new_part ? int32_t(PUT_ASIDE) : 0);
    }
    if (some) *before = *base + WARP - 1 - __clz(some);
    *base += taken;
    __syncwarp();
    return __popc(some);
}

/* Product t of a window, which a lane has, unless its batch begins or ends with another chunk's. */
struct found_product {
    int t, run; /* run: the number of its entry of A among those that have products */
    int32_t p;  /* as in found_room */
    unsigned q; /* its entry of B */
    bool inside, exists, begins; /* begins: whether it is the first of its run */
    int slot, turn;
};

/* Calls take(product, load(product)) for the products of a window, a batch of 32 after the other,
 * and returns how many there are. Where a part of a row begins, a batch does as well; put_aside(t,
 * end) comes before it, as the numbers from t on to the end are of no product.
 *
 *     chunk      32 entries of A; each lane finds where the products of its own are in B
 *     batch      32 products, in their order, whichever entries they belong to: each lane looks for
 *                its product's column by bisection, and those that share a sum add in turn; where
 *                a chunk ends in a batch, the next one's turns come behind its own
 *
 *     entries    e0       e1    e3            of the chunk, that have products in the window
 *     product    0 1 2    3 4   5             lane t of a batch counts the ends before it
 *     slot       5 7 9    5 8   7             places in the window
 *     turn       0 0 0    1 0   1
 *
 * What load asks for is under way while columns are looked for. */
template <class Load, class Take, class PutAside>
static __device__ __forceinline__ int
for_batches(const csr_view &a, const csr_view &b, const csr_view &c, const window_rows &rows,
            found_room &room, Load load, Take take, PutAside put_aside)
{
    enum { TOGETHER = 2 };
    const int lane = threadIdx.x % WARP;
    int64_t before = -1;
    int behind = 0, runs = 0; /* products and runs of the chunks before */
    int turns = 0;            /* of these products in the batch that they leave unfinished */
    for (int64_t base = rows.begin; base < rows.end;) {
        int products;
        const int found = find_chunk(a, b, c, rows, &base, &before, &products, room);
        if (found && room.p[0] < 0) {
            const int last = behind;
            behind = (last + WARP - 1) / WARP * WARP, turns = 0;
            put_aside(last, behind);
        }
        const int end = lane < found ? room.ends[lane] : INT32_MAX - WARP;
        for (int t = products ? -(behind % WARP) : 0; t < products; t += TOGETHER * WARP) {
            found_product of[TOGETHER];
            decltype(load(of[0])) loaded[TOGETHER];
            int32_t j[TOGETHER];
            int own[TOGETHER];
            UNROLLED(u, TOGETHER) {
                const int now = t + u * WARP, e = entry_of_lane(end, now);
                const bool inside = now + lane >= 0 && now + lane < products;
                own[u] = inside ? e : 0;
                of[u] = {behind + now + lane, runs + own[u], room.p[own[u]],
                         room.origin[own[u]] + unsigned(now + lane)};
                of[u].inside = inside, of[u].exists = inside && of[u].q < b.nnz; /* or B changed */
                of[u].begins = inside && now + lane == (e ? room.ends[e - 1] : 0);
                j[u] = of[u].exists ? __ldg(b.idx + of[u].q) : -1;
                loaded[u] = load(of[u]);
            }
            UNROLLED(u, TOGETHER) { /* the kernel waits for these, side by side */
                const int low = room.from[own[u]];
                const int32_t *const columns = c.idx + rows.low + low;
                of[u].slot = low + (int)first_at_least(columns, 1, room.here[own[u]] - 1, j[u]);
            }
            UNROLLED(u, TOGETHER) {
                const int rank = rank_in_warp(of[u].exists ? of[u].slot : -1 - lane);
                of[u].turn = of[u].exists ? rank + turns : -1;
                if (t + u * WARP >= products) continue;
                take(of[u], loaded[u]);
                turns = t + (u + 1) * WARP > products ? max_of_lanes(of[u].turn) + 1 : 0;
            }
        }
        behind += products, runs += found;
    }
    return behind;
}

/* ---- sums ---- */

/* The value of entry p. Plain ones are of type A, in the order of entries. */
template <class A, bool PLAIN>
static __device__ __forceinline__ A value_of(const edge_view &v, int64_t p)
{
    return PLAIN ? __ldg(static_cast<const A *>(v.data) + p) : edge_value<A>(v, edge_of(v, p), 0);
}

/* A product's factors. */
template <class A> struct factors {
    A x, y;
};
template <class A, bool PLAIN>
static __device__ __forceinline__ factors<A> factors_of(const numeric_args &s, int64_t p, int64_t q,
                                                        bool exists)
{
    if (!exists) return factors<A>{A(0), A(0)};
    return factors<A>{value_of<A, PLAIN>(s.a_val, p), value_of<A, PLAIN>(s.b_val, q)};
}

/* A warp's sums, and what was put aside of them. */
template <class A> struct entry_sums {
    A *sums, *aside;
    int width;

    __device__ __forceinline__ void put_aside(void) const
    {
#pragma unroll 1 /* as it is rare, and takes registers otherwise */
        for (int h = threadIdx.x % WARP; h < width; h += WARP) aside[h] += sums[h], sums[h] = A(0);
        __syncwarp();
    }
};

#endif
