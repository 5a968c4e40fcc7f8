/* merge_path, SpMM that gives every warp the same number of row ends and entries.
 *
 * Teaches: balance that no matrix can upset. Row ends and entries, merged in order, are a list of
 * rows + nnz items, cut into pieces of PIECE. Where a piece begins, in rows and in entries, a
 * bisection along a diagonal of that merge finds from ptr alone. A warp sums what its piece holds
 * of each row and writes the rows that end there; the row that goes on is carried: its partial sums
 * go to the workspace, and a second kernel adds them to the row, run by run, in the order of the
 * pieces. So a million empty rows cost as little as a row of a million entries, nothing is added
 * atomically, and the bits repeat. The price is a bisection per piece and tile, and the second
 * kernel.
 *
 *     items     e e e | e | | e e e e e e e | ...     e: an entry, |: a row ends
 *     pieces    [ piece 0 ] [ piece 1 ] [ piece 2 ]   as long as each other, one warp each
 *                             the row that is open at a piece's end is carried to the second kernel
 *
 * Expected: ahead of the row kernels on graphs with hubs, behind them where rows are even.
 *
 * Source: Merrill and Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016;
 * for SpMM Yang, Buluc and Owens, Euro-Par 2018. */
#include "lesson.cuh"

enum { PIECE = 256, WARPS = 4 };

struct place {
    int64_t row, p;
};

/* The place after `diagonal` items: the first row whose end lies past the diagonal's entries. */
static __device__ __forceinline__ place place_of(const csr_view &a, int64_t diagonal)
{
    int64_t low = diagonal > a.nnz ? diagonal - a.nnz : 0;
    int64_t high = min(diagonal, a.rows);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (clamp(__ldg(a.ptr + middle + 1), 0, a.nnz) <= diagonal - middle - 1)
            low = middle + 1;
        else
            high = middle;
    }
    return place{low, diagonal - low};
}

template <class T> struct carries {
    T *sum;       /* [pieces, heads, feat] */
    int64_t *row; /* [pieces]; rows: nothing is carried */
    int64_t pieces;
};

template <class T>
static __global__ void __launch_bounds__(WARP *WARPS)
    merge_pieces(const spmm_args<T> s, const carries<T> carry)
{
    const int lane = threadIdx.x;
    const int64_t piece = int64_t(blockIdx.x) * WARPS + threadIdx.y, h = blockIdx.z;
    const int64_t c = int64_t(blockIdx.y) * WARP + lane;
    if (piece >= carry.pieces) return; /* whole warps */
    place at = place_of(s.a, piece * PIECE);
    const place end = place_of(s.a, min((piece + 1) * PIECE, s.a.rows + s.a.nnz));
    for (; at.row <= end.row; at.row++) {
        const bool ends = at.row < end.row;
        const int64_t stop = ends ? clamp(__ldg(s.a.ptr + at.row + 1), 0, s.a.nnz) : end.p;
        T sum = 0; /* of at most PIECE terms */
        for (; at.p < stop; at.p += WARP) {
            entry<T> mine = {-1, T(0)};
            if (at.p + lane < stop) mine = fetch(s, at.p + lane, h);
            const int count = (int)min((int64_t)WARP, stop - at.p);
            for (int k = 0; k < count; k++) {
                const int32_t j = __shfl_sync(ALL, mine.j, k);
                const T w = __shfl_sync(ALL, mine.w, k);
                if (j >= 0 && c < s.feat) sum += w * __ldg(s.x.at(j, h) + c);
            }
        }
        at.p = stop;
        if (ends && c < s.feat) s.y.at(at.row, h)[c] = sum;
        if (!ends && c < s.feat) carry.sum[(piece * gridDim.z + h) * s.feat + c] = sum;
        if (!ends && c == 0 && h == 0) carry.row[piece] = at.row;
    }
}

/* The first piece of a run that carries the same row adds the whole run to it. */
template <class T>
static __global__ void __launch_bounds__(WARP *WARPS)
    add_carries(const spmm_args<T> s, const carries<T> carry)
{
    const int64_t first = int64_t(blockIdx.x) * WARPS + threadIdx.y, h = blockIdx.z;
    const int64_t c = int64_t(blockIdx.y) * WARP + threadIdx.x;
    if (first >= carry.pieces || c >= s.feat) return;
    const int64_t row = carry.row[first];
    if (row >= s.a.rows || (first && carry.row[first - 1] == row)) return;
    sums<T> sum = {};
    for (int64_t k = first; k < carry.pieces && carry.row[k] == row; k++) {
        sum.part[0] += carry.sum[(k * gridDim.z + h) * s.feat + c];
        sum.fold(1);
    }
    s.y.at(row, h)[c] += sum.total();
}

static int64_t pieces_of(const fmm_csr *a) { return ceil_div(a->rows + a->nnz, PIECE); }

static size_t rows_bytes(const fmm_csr *a)
{
    return (size_t)ceil_div(pieces_of(a), 2) * 2 * sizeof(int64_t);
}

static size_t workspace(const fmm_call *call)
{
    const size_t each = call->x->dtype == FMM_F64 ? 8 : 4;
    return rows_bytes(call->a) +
           (size_t)(pieces_of(call->a) * call->x->heads * call->x->feat) * each;
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    return run_spmm(exec, call, [&](auto s) {
        typedef std::remove_reference_t<decltype(*s.y.data)> T;
        const carries<T> carry = {
            reinterpret_cast<T *>(static_cast<char *>(exec->workspace) + rows_bytes(call->a)),
            static_cast<int64_t *>(exec->workspace), pieces_of(call->a)};
        const dim3 grid =
            grid_of(ceil_div(carry.pieces, WARPS), ceil_div(s.feat, WARP), call->x->heads);
        merge_pieces<T><<<grid, dim3(WARP, WARPS), 0, stream_of(exec)>>>(s, carry);
        add_carries<T><<<grid, dim3(WARP, WARPS), 0, stream_of(exec)>>>(s, carry);
    });
}

fmm_algorithm spmm_merge_path[] = {
    lesson("merge_path",
           "equal pieces of row ends and entries, open rows carried to a second kernel",
           "Merrill and Garland, SC 2016; Yang et al., Euro-Par 2018", run, lesson_supports,
           workspace),
    {},
};
