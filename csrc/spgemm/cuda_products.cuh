/* The products of a window of a row of C, added to its table by a warp in the order of A's entries.
 *
 *     entries of A     a chunk at a time, whose products are numbered (cuda_group.cuh)
 *     long rows of B   piece by piece: no two products of one share a sum
 *     short ones       lanes take products in their order, whichever entry they belong to; those
 *                      that share a sum add one after the other, by rank
 *
 * A window of some of the row's columns reads its own part of B's rows alone, if they rise. The
 * order of terms is the same in each case. */
#ifndef FMM_SPGEMM_CUDA_PRODUCTS_CUH
#define FMM_SPGEMM_CUDA_PRODUCTS_CUH

#include "cuda_table.cuh"

struct numeric_args {
    csr_view a, b, c;
    edge_view a_val, b_val;
    const int64_t *schedule;
    entry_output out;
    spgemm_where where;
    bool masked, merges; /* merges: small rows are computed by threads (cuda_small.cuh) */
    /* Whether values of B and of A stand in the order of entries, as sums are kept. */
    bool plain, plain_a;
};

/* ---- the entry of a lane ---- */

/* Columns [low, low + width) of B's rows, if they rise; of others, and where width is 0, all. */
struct column_span {
    int32_t low, width;
};

/* Cuts a row of B, whose columns rise, to a span. Both ends are searched side by side, since each
 * step waits for a load. */
static __device__ __forceinline__ void cut_to(const csr_view &b, const column_span &span,
                                              row_of_b *row)
{
    const int32_t *const columns = b.idx + row->begin;
    const int64_t above = int64_t(span.low) + span.width;
    int low = 0, low_end = (int)row->length, high = 0, high_end = low_end;
    while (low < low_end || high < high_end) {
        const int middle = low + (low_end - low) / 2, other = high + (high_end - high) / 2;
        const int32_t x = low < low_end ? __ldg(columns + middle) : 0;
        const int32_t y = high < high_end ? __ldg(columns + other) : 0;
        if (low < low_end) x < span.low ? low = middle + 1 : low_end = middle;
        if (high < high_end) y < above ? high = other + 1 : high_end = other;
    }
    row->begin += low, row->length = high > low ? high - low : 0;
}

/* Entry p of A: its value, and the part of its row of B that lies in a span. */
template <class A> struct entry_at_hand {
    row_of_b row;
    A factor;
    __device__ __forceinline__ entry_at_hand(const csr_view &a, const csr_view &b,
                                             const edge_view &val, const column_span &span,
                                             int64_t p, int64_t end)
        : row(a, b, p, end), factor(p < end ? edge_value<A>(val, edge_of(val, p), 0) : A(0))
    {
        /* Rows of columns that rise are no longer than 2^31. */
        if (span.width && row.length && row.length <= INT32_MAX / 2) cut_to(b, span, &row);
    }
};

/* Products of an entry of A, up to WARP, from entry q of B on. Where they begin and how many they
 * are is one word, since shared memory is what a product waits for. */
template <class A> struct piece {
    enum { BITS = 6 };
    int64_t word; /* q, and below it the number of products */
    A factor;     /* A's value */
    static __device__ __forceinline__ piece of(int64_t q, int count, A factor)
    {
        return piece{q << BITS | (count < WARP ? count : WARP), factor};
    }
    /* The entry of B that this lane multiplies, or -1. */
    static __device__ __forceinline__ int64_t of_lane(int64_t word)
    {
        const int lane = threadIdx.x % WARP;
        return lane < int(word & ((1 << BITS) - 1)) ? (word >> BITS) + lane : -1;
    }
};

/* Writes WARP pieces of all entries, from number `base` on; those behind the last have no products.
 *
 *     rows of B      70 entries     20     40
 *     pieces         32  32  6      20     32  8
 *     number         0   1   2      3      4   5
 *     until          3              4      6        of the lane's entry: pieces up to its own */
template <class A>
static __device__ __forceinline__ void write_pieces(piece<A> *to, const entry_at_hand<A> &own,
                                                    int until, int all, int base)
{
    const int lane = threadIdx.x % WARP, length = (int)own.row.length;
    const int count = (length + WARP - 1) / WARP, first = until - count - base;
    if (base + lane >= all) to[lane] = piece<A>{0, A(0)};
    for (int k = first < 0 ? -first : 0; k < count && first + k < WARP; k++)
        to[first + k] = piece<A>::of(own.row.begin + k * WARP, length - k * WARP, own.factor);
    __syncwarp();
}

/* A chunk: the entries of A that a warp has at hand, and their products: pieces of them where rows
 * of B are long, else their numbers. */
template <class A> union chunk {
    piece<A> pieces[WARP];
    struct {
        numbers of;
        A factor[WARP]; /* A's values */
    } numbered;
};

/* ---- many products at once ---- */

/* A lane asks for EACH columns and values before it needs the first of them, so that their loads
 * are under way together. */

/* Entries q of B, or none where q is negative: their columns (else -1) and values. */
template <int EACH, class A>
static __device__ __forceinline__ void load(const numeric_args &s, const int64_t *q, int32_t *j,
                                            A *y)
{
    const A *const plain = static_cast<const A *>(s.b_val.data);
    UNROLLED(u, EACH) j[u] = q[u] < 0 ? -1 : __ldg(s.b.idx + q[u]);
    if (s.plain) {
        UNROLLED(u, EACH) y[u] = q[u] < 0 ? A(0) : __ldg(plain + q[u]);
    } else {
        UNROLLED(u, EACH)
            y[u] = q[u] < 0 ? A(0) : edge_value<A>(s.b_val, edge_of(s.b_val, q[u]), 0);
    }
}

/* The slots of columns, or -1. The kind of the table is asked once for all of them. */
template <int EACH, class A>
static __device__ __forceinline__ void find(const table<A> &t, const int32_t *j, int *slot)
{
    if (t.where == SPGEMM_IN_DENSE) {
        UNROLLED(u, EACH) slot[u] = t.find_dense(j[u]);
    } else if (t.where == SPGEMM_IN_RANKED) {
        UNROLLED(u, EACH) slot[u] = t.find_ranked(j[u]);
    } else {
        UNROLLED(u, EACH) slot[u] = j[u] < 0 ? -1 : t.find_key(j[u]);
    }
}

/* Adds all products of a chunk, a piece after the other. No column stands twice in a row of B, so
 * that the lanes of a piece never share a sum; the warp meets before the next piece, which may.
 *
 * A long row of A is a chain of pieces. Each waits for the sums of the one before, but for no load:
 * those of PIECES of them are under way together. */
enum { PIECES = 4 };
template <class A>
static __device__ __forceinline__ void add_pieces(const numeric_args &s, table<A> *t,
                                                  piece<A> *room, const entry_at_hand<A> &own)
{
    const int until = scanned<1, int>(int((own.row.length + WARP - 1) / WARP), NULL);
    const int all = __shfl_sync(ALL, until, WARP - 1);
    for (int base = 0; base < all; base += WARP) {
        write_pieces(room, own, until, all, base);
        for (int at = 0; at < WARP && base + at < all; at += PIECES) {
            int64_t q[PIECES];
            int32_t j[PIECES];
            int slot[PIECES];
            A y[PIECES];
            UNROLLED(u, PIECES) q[u] = piece<A>::of_lane(room[at + u].word);
            load<PIECES, A>(s, q, j, y);
            find<PIECES>(*t, j, slot);
            UNROLLED(u, PIECES) {
                if (slot[u] >= 0) t->add(slot[u], room[at + u].factor, y[u]);
                __syncwarp();
            }
        }
    }
}

/* Adds all products of a chunk, in the order of their numbers:
 *
 *     lane          0     1     2     3     4        EACH times, all loads first
 *     product       e0    e0    e1    e1    e1
 *     slot          5     7     5     2     7
 *     by rank       0     0     1     0     1        those that share a slot, one after the other
 *     by entry      0     0     1     1     1        no two of an entry share one */
template <int EACH, class A>
static __device__ __forceinline__ void add_numbered(const numeric_args &s, table<A> *t,
                                                    const chunk<A> &in, int entries,
                                                    int64_t products, bool by_rank)
{
    const int lane = threadIdx.x % WARP;
    const int64_t end = lane < entries ? in.numbered.of.ends[lane] : INT64_MAX;
    for (int64_t first = 0; first < products; first += EACH * WARP) {
        int64_t q[EACH];
        int32_t j[EACH];
        int slot[EACH], entry[EACH];
        A x[EACH], y[EACH];
        UNROLLED(u, EACH) {
            const int64_t product = first + u * WARP;
            const int e = entry[u] = entry_of_lane(end, product);
            q[u] = product + lane < products ? in.numbered.of.origin[e] + product + lane : -1;
            x[u] = q[u] < 0 ? A(0) : in.numbered.factor[e];
        }
        load<EACH, A>(s, q, j, y);
        find<EACH>(*t, j, slot);
        UNROLLED(u, EACH) {
            const int first_entry = __shfl_sync(ALL, entry[u], 0);
            const int turn = by_rank ? rank_in_warp(slot[u]) : entry[u] - first_entry;
            add_in_order(t, term<A>{slot[u], turn, x[u], y[u]});
        }
    }
}

/* The products of entries [begin, end) of A that fall into the table.
 *
 *     products of an entry, on average      0 .. 3      4 .. 11      12 and more
 *     lanes add                             by rank     by entry     piece by piece */
template <class A>
static __device__ __forceinline__ void add_products(const numeric_args &s, table<A> *t,
                                                    chunk<A> *room, const column_span &span,
                                                    int64_t begin, int64_t end)
{
    /* Products of an entry, from which it is worth pieces of its own, or a turn of its lanes; as
     * many of one as are counted here, and more than pieces are numbered for. */
    enum { LONG = 12, TURNS = 4, COUNTED = 1 << 20, HUGE_ROW = 1 << 25 };
    for (int64_t p = begin; p < end; p += WARP) {
        const entry_at_hand<A> own(s.a, s.b, s.a_val, span, p + threadIdx.x % WARP, end);
        const int64_t length = own.row.length;
        const unsigned has_some = __ballot_sync(ALL, length > 0);
        const int entries = __popc(has_some);
        const int some = (int)sum_of_lanes(length < COUNTED ? unsigned(length) : COUNTED);
        const bool is_huge = __any_sync(ALL, length > HUGE_ROW);
        if (!t->counted && !is_huge && some >= entries * LONG)
            add_pieces(s, t, room->pieces, own);
        else {
            if (length) room->numbered.factor[__popc(has_some & lanes_below())] = own.factor;
            const int64_t products = number_products(&room->numbered.of, own.row);
            const bool by_rank = t->counted || some < entries * TURNS;
            add_numbered<4>(s, t, *room, entries, products, by_rank);
        }
        __syncwarp();
    }
}

#endif
