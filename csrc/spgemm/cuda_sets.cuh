/* Sets: the columns of a row of C, which the symbolic phase counts and then writes in order.
 *
 *     hash     | 7 . 3 . . 9 . . |      two slots for each product (each entry, when written)
 *                --> 9 3 7 --> 3 7 9    to the front, then ranked, or sorted where there are many
 *     bits     | ...1...1.1 |           one for each column between the first and the last
 *              | ...... |               what does not fit comes in further windows
 *
 * Sets do not depend on the order in which columns come. Bits come out in order and need no search;
 * they are taken wherever they are not larger than the hash table would be. */
#ifndef FMM_SPGEMM_CUDA_SETS_CUH
#define FMM_SPGEMM_CUDA_SETS_CUH

#include "cuda_bits.cuh"
#include "cuda_small.cuh"

struct symbolic_args {
    csr_view a, b;
    int64_t *ptr;
    int32_t *idx; /* NULL while rows are counted; ptr[i + 1] is then the products of row i */
    int64_t *schedule;
    bit_rows bits; /* of all rows, if there are any */

    /* Whether row i of C is equal to a row of B: A's row has one entry, and all columns of B rise.
     */
    __device__ bool is_lone(int64_t i) const
    {
        int64_t begin;
        return row_range(a, i, &begin) == 1 && *schedule == 1;
    }
};

/* What threads of a row tell each other. */
struct told {
    int sum, next, totals[WARPS];
    numbers numbered; /* of a warp */
};

/* Bytes of the two kinds of sets for a row of so many products or entries. Hashing is for rows that
 * fit into a block: above, bits cost no more and come out in order. Hashed columns that are wanted
 * have to be sorted, which pays where they are few. */
struct set_size {
    int64_t slots, hash, bits;
    bool hashed;
    __device__ set_size(int64_t most, int64_t cols, bool wanted)
    {
        slots = 2 * most;
        hash = most > INT32_MAX ? INT64_MAX / 8 : slots * int64_t(sizeof(int32_t));
        bits = ceil_div(cols, 32) * int64_t(sizeof(uint32_t));
        hashed = hash * (wanted ? 4 : 1) < bits && hash <= WARPS * ROOM;
    }
};

/* Columns [low, high) among which all of a row's are: the fewer, the smaller its bits. */
struct column_range {
    int64_t low, high;
};

/* Those of A's entries p, p + step, ... before the end: from the first to the last column of their
 * rows of B, whose columns rise. */
static __device__ __forceinline__ column_range range_of_some(const symbolic_args &s, int64_t p,
                                                             int step, int64_t end)
{
    enum { AHEAD = 4 }; /* entries whose loads are under way together */
    column_range found = {s.b.cols, 0};
    for (; p < end; p += AHEAD * step) {
        int64_t length[AHEAD], begin[AHEAD];
        int32_t first[AHEAD], last[AHEAD];
        UNROLLED(u, AHEAD) {
            const int64_t at = p + u * step;
            length[u] = row_or_none(s.b, load_or(s.a.idx + at, at < end, -1), begin + u);
        }
        UNROLLED(u, AHEAD) {
            first[u] = load_or(s.b.idx + begin[u], length[u] > 0, (int32_t)s.b.cols);
            last[u] = load_or(s.b.idx + begin[u] + length[u] - 1, length[u] > 0, -1);
        }
        UNROLLED(u, AHEAD) {
            found.low = first[u] < found.low ? first[u] : found.low;
            found.high = last[u] >= found.high ? last[u] + 1 : found.high;
        }
    }
    return found;
}

/* A row's class, by its products or its entries. A small row is counted here and now. A row that
 * would be hashed is one of few bits where its columns lie close together, as on a band. Bits of
 * all rows fit a warp. */
struct class_of_set {
    symbolic_args s;
    __device__ int operator()(int64_t i) const
    {
        enum { SHORT = 64 };                                /* entries of A */
        enum { FEW = 256, MANY = 1 << 14, MORE = 1 << 16 }; /* products: work of the classes */
        int64_t begin;
        const int64_t most = s.idx ? s.ptr[i + 1] - s.ptr[i] : s.ptr[i + 1];
        if (most <= 0) return -1;
        const int64_t entries = row_range(s.a, i, &begin);
        if (!s.bits.words && is_small(s.a, s.b, s.schedule, entries, most)) {
            const edge_view none = {};
            if (!s.idx)
                s.ptr[i + 1] = merge_row<float, NO_VALUES>(
                    __activemask(), s.a, s.b, none, none, begin, (int)entries,
                    [](int, int32_t, float) {}, [](int) {});
            return -1;
        }
        const set_size size(most, s.b.cols, s.idx);
        int64_t needs = size.hashed && !s.bits.words ? size.hash : size.bits;
        if (size.hashed && needs > ROOM && entries <= SHORT && *s.schedule == 1) {
            const column_range range = range_of_some(s, begin, 1, begin + entries);
            if ((range.high - range.low) / 8 < needs) needs = (range.high - range.low) / 8;
        }
        if (needs > ROOM || entries > 8 * SHORT || most > MANY) return most > MORE ? 3 : 2;
        return most > FEW;
    }
};

/* Enters column j; returns whether it is new. Most columns are there already, so a plain read comes
 * before the atomic. A column is looked for at the high bits of a product first, which spread
 * neighbours, and then slot by slot. A table that is full, because a matrix has changed, takes no
 * more. */
static __device__ __forceinline__ bool enter(int32_t *keys, int slots, int32_t j)
{
    int h = (int)__umulhi((unsigned)j * 0x9E3779B1u, (unsigned)slots);
    for (int tries = 0; tries < slots; tries++) {
        int32_t found = *(volatile int32_t *)(keys + h);
        if (found == NO_COLUMN) found = atomicCAS(keys + h, (int32_t)NO_COLUMN, j);
        if (found == NO_COLUMN) return true;
        if (found == j) return false;
        h = h + 1 == slots ? 0 : h + 1;
    }
    return false;
}

/* Brings the keys of a table to its front, in any order; returns how many there are. `count` is 0.
 */
template <int WARPS>
static __device__ __forceinline__ int packed(int32_t *keys, int slots, int *count)
{
    typedef group<WARPS> g;
    for (int first = 0; first < slots; first += g::THREADS) {
        const int h = first + g::thread();
        const int32_t key = h < slots ? keys[h] : int32_t(NO_COLUMN);
        g::sync(); /* all have read what the next lines may overwrite */
        const unsigned kept = __ballot_sync(ALL, key != NO_COLUMN);
        int at = 0;
        if (!g::lane()) at = atomicAdd(count, __popc(kept));
        at = __shfl_sync(ALL, at, 0) + __popc(kept & lanes_below());
        if (key != NO_COLUMN) keys[at] = key;
    }
    g::sync();
    return *count;
}

/* Row i by hashing; returns how many columns there are.
 *
 *     count    the fresh columns of all threads are added up
 *     write    keys come to the front of the table; few are ranked, each by looking at all others,
 *              more are sorted */
template <int WARPS>
static __device__ __forceinline__ int64_t hash_row(const symbolic_args &s, told *says,
                                                   int32_t *keys, int64_t i, int slots, int32_t *to,
                                                   int64_t places)
{
    typedef group<WARPS> g;
    enum { FEW = 128 }; /* keys that are ranked; more are sorted */
    for (int h = g::thread(); h < slots; h += g::THREADS) keys[h] = NO_COLUMN;
    if (!g::thread()) says->sum = 0;
    g::sync();
    int fresh = 0;
    for_products<WARPS>(s.a, columns_of{s.b}, i, &says[g::warp()].numbered, [&](int32_t j) {
        if (uint32_t(j) < uint32_t(s.b.cols)) fresh += enter(keys, slots, j);
    });
    if (!to) return added<WARPS>(fresh, &says->sum);
    g::sync();
    const int all = packed<WARPS>(keys, slots, &says->sum);
    const int here = all < places ? all : (int)places;
    if (here <= FEW) {
        write_ranked<WARPS>(keys, here, to);
        return here;
    }
    const int sorted = (int)power_of_two(here);
    for (int h = here + g::thread(); h < sorted; h += g::THREADS) keys[h] = NO_COLUMN;
    g::sync();
    sort_keys<WARPS>(keys, sorted);
    for (int h = g::thread(); h < here; h += g::THREADS) to[h] = keys[h];
    return here;
}

/* Writes the columns low + n of the bits n that are set, from to[at] on, as far as there are
 * places; returns where the next one goes.
 *
 *     thread     0        1        2        3          a word each
 *     bits       2        0        5        1
 *     until      2        2        7        8          its columns end here */
template <int WARPS>
static __device__ __forceinline__ int64_t write_bits(const uint32_t *bits, int words, int32_t low,
                                                     int32_t *to, int64_t at, int64_t places,
                                                     told *says)
{
    typedef group<WARPS> g;
    for (int first = 0; first < words; first += g::THREADS) {
        const int w = first + g::thread();
        uint32_t word = w < words ? bits[w] : 0;
        const int until = scanned<WARPS>(__popc(word), says->totals);
        int64_t own = at + until - __popc(word);
        for (; word && own < places; word &= word - 1) to[own++] = low + w * 32 + __ffs(word) - 1;
        if (g::thread() == g::THREADS - 1) says->sum = until;
        g::sync();
        at += says->sum;
        g::sync();
    }
    return at;
}

/* Those of row i, by all threads of a group. */
template <int WARPS>
static __device__ __forceinline__ column_range range_of(const symbolic_args &s, told *says,
                                                        int64_t i)
{
    typedef group<WARPS> g;
    int64_t begin;
    const int64_t end = row_range(s.a, i, &begin) + begin;
    const column_range own = range_of_some(s, begin + g::thread(), g::THREADS, end);
    /* Least and largest of all threads, in words that are there for other numbers, too. */
    if (!g::thread()) says->next = NO_COLUMN, says->sum = 0;
    g::sync();
    if (own.low < own.high) {
        atomicMin(&says->next, (int)own.low);
        atomicMax(&says->sum, (int)own.high);
    }
    g::sync();
    const column_range found = {says->next < 0 ? 0 : says->next, says->sum};
    g::sync();
    return column_range{found.low, found.high < s.b.cols ? found.high : int64_t(s.b.cols)};
}

/* Sets bits of a word. Most are set already, so a plain read comes before the atomic. */
static __device__ __forceinline__ void set_bits(uint32_t *bits, unsigned word, uint32_t mask)
{
    if ((*(volatile uint32_t *)(bits + word) & mask) != mask) atomicOr(bits + word, mask);
}

/* Row i by bits; the same. A window has as many columns as there are bits; the next one begins with
 * the first column beyond it, so that stretches without any column cost nothing.
 *
 *     columns     0 .......... 9,999 ............ 500,000 ......
 *     windows     [first        ]                [second        ]
 *
 * Each window walks through all products of the row, since B's rows may be in any order. Bits of
 * all rows fit into one window, and are kept when they are counted. */
template <int WARPS>
static __device__ __forceinline__ int64_t bits_row(const symbolic_args &s, told *says,
                                                   uint32_t *bits, int64_t i, int bytes,
                                                   const column_range &range, int32_t *to,
                                                   int64_t places)
{
    typedef group<WARPS> g;
    const int64_t width = int64_t(bytes / sizeof *bits) * 32;
    int64_t count = 0;
    for (int64_t low = range.low; low < range.high;) {
        const int columns = (int)(low + width < range.high ? width : range.high - low);
        const int words = (columns + 31) / 32;
        for (int w = g::thread(); w < words; w += g::THREADS) bits[w] = 0;
        if (!g::thread()) says->next = NO_COLUMN, says->sum = 0;
        g::sync();
        int32_t further = NO_COLUMN; /* the first column beyond this window */
        const bool is_last = columns < width;
        numbers *const room = &says[g::warp()].numbered;
        if (s.bits.packs)
            for_products<WARPS>(s.a, items_of{s.b, s.bits}, i, room, [&](int2 item) {
                set_bits(bits, min(unsigned(item.x), unsigned(words - 1)), uint32_t(item.y));
            });
        else
            for_products<WARPS>(s.a, columns_of{s.b}, i, room, [&](int32_t j) {
                const unsigned at = unsigned(j) - unsigned(low);
                const bool inside = at < unsigned(columns);
                set_bits(bits, inside ? at / 32 : 0, inside ? 1u << at % 32 : 0);
                if (!is_last && !inside && j > low && j < further) further = j;
            });
        if (further != NO_COLUMN) atomicMin(&says->next, further);
        g::sync();
        if (to)
            count = write_bits<WARPS>(bits, words, (int32_t)low, to, count, places, says);
        else {
            int set = 0;
            for (int w = g::thread(); w < words; w += g::THREADS) {
                if (s.bits.words) s.bits.of(i)[w] = bits[w];
                set += __popc(bits[w]);
            }
            count += added<WARPS>(set, &says->sum);
        }
        low = says->next == NO_COLUMN ? range.high : int64_t(says->next);
        g::sync();
    }
    return count < places || !to ? count : places;
}

#endif
