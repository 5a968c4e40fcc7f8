/* The small rows of a product (cuda_small.cuh): their columns, their values, or both at once.
 *
 *     step 0 .. 15     lane 0: entries 0 .. 15 of its row of C    into shared memory
 *                      lane 1: entries 0 .. 15 of its own
 *     then             lanes 0 .. 15 write lane 0's, 16 .. 31 lane 1's, and so on
 *
 * So neighbouring lanes write neighbouring entries of C. A piece is small, since what shared memory
 * takes the cache of B's rows lacks. */
#include "cuda_small.cuh"

enum { THREADS = 128, PIECE = 16 }; /* of a block; entries of a row that wait to be written */

/* What a warp has ready. Columns or values that nobody wants have no room. */
template <class A, bool VALUES, bool COLUMNS> struct small_piece {
    A values[VALUES ? WARP : 1][PIECE + 1];
    int32_t columns[COLUMNS ? WARP : 1][PIECE + 1];
};

/* A thread for each row of A, also of those that are not small, which have no entries here. Blocks
 * that a multiprocessor has registers for: plain float values leave room for seven, but for heads
 * of the longest rows, some of which wait in memory. */
template <class A, small_values VALUES, bool COLUMNS>
static __global__ void __launch_bounds__(THREADS, VALUES == PLAIN_VALUES && sizeof(A) == 4 ? 7 : 5)
    small_rows(const numeric_args s, int32_t *idx)
{
    enum { HAS_VALUES = VALUES != NO_VALUES };
    __shared__ small_piece<A, HAS_VALUES, COLUMNS> pieces[THREADS / WARP];
    auto &piece = pieces[threadIdx.x / WARP];
    const int lane = threadIdx.x % WARP;
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    int64_t p = 0, begin = 0, own = 0, entries = 0;
    if (i < s.a.rows) {
        own = row_range(s.a, i, &p);
        entries = row_range(s.c, i, &begin);
    }
    if (!is_small(s.a, s.b, s.schedule, own, entries)) own = entries = 0;
    /* Writes entry r of C. */
    const auto give = [&](int64_t r, int32_t column, A sum) {
        if (COLUMNS) idx[r] = column;
        if (HAS_VALUES) write(s.out, r, sum);
    };
    int ready = 0; /* entries of this lane's row */
    const auto put = [&](int n, int32_t column, A sum) {
        if (n >= entries) return; /* B has changed */
        if (COLUMNS) piece.columns[lane][n % PIECE] = column;
        if (HAS_VALUES) piece.values[lane][n % PIECE] = sum;
        ready = n + 1;
    };
    /* Writes what all lanes have ready from their entry number `base` on. */
    const auto write_piece = [&](int base) {
        const int at = lane % PIECE;
        __syncwarp();
        for (int r = lane / PIECE; r < WARP; r += WARP / PIECE) {
            const int64_t to = __shfl_sync(ALL, begin, r) + base + at;
            if (base + at < __shfl_sync(ALL, ready, r))
                give(to, COLUMNS ? piece.columns[r][at] : 0, HAS_VALUES ? piece.values[r][at] : 0);
        }
        __syncwarp();
    };
    int steps = 0;
    merge_row<A, VALUES>(ALL, s.a, s.b, s.a_val, s.b_val, p, int(own), put, [&](int n) {
        steps = n;
        if (n % PIECE == 0) write_piece(n - PIECE);
    });
    if (steps % PIECE) write_piece(steps / PIECE * PIECE);
    for (; ready < entries; ready++) give(begin + ready, 0, A(0));
}

/* Without values a call finds columns alone, without idx values alone. */
template <class A> static void launch(const fmm_exec *exec, const numeric_args &s, int32_t *idx)
{
    const bool plain = s.plain && s.plain_a;
    const auto kernel =
        !s.out.data ? small_rows<A, NO_VALUES, true>
        : plain     ? (idx ? small_rows<A, PLAIN_VALUES, true> : small_rows<A, PLAIN_VALUES, false>)
                    : (idx ? small_rows<A, ANY_VALUES, true> : small_rows<A, ANY_VALUES, false>);
    kernel<<<(unsigned)ceil_div(s.a.rows, THREADS), THREADS, 0, stream_of(exec)>>>(s, idx);
}

void fmm_spgemm_small(const fmm_exec *exec, const numeric_args &s, int32_t *idx)
{
    if (s.out.data && s.out.dtype == FMM_F64)
        launch<double>(exec, s, idx);
    else
        launch<float>(exec, s, idx);
}
