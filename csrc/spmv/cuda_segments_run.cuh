/* What stands around the kernel of cuda_segments.cuh: the lists of rows at the borders of shares,
 * the room that a call takes, and its launches in their order.
 *
 *     spmv_path         a thread for each border     merge
 *     spmv_starts       a thread for each border     csr_segmented without a plan
 *     spmv_no_entries   a thread for each row        coo
 *     spmv_segments     a warp for each share        always
 *     spmv_join         a warp for many records      where there are several blocks
 *
 * The join, and the kernel of CSR, may start while the launch before them ends (launch_early): they
 * wait where they read what it wrote. */
#pragma once

#include "cuda_segments.cuh"

/* merge's list: thread k searches for the row that item k * SHARE of the merged list belongs to, or
 * ends. */
static __global__ void __launch_bounds__(BLOCK)
    spmv_path(const csr_view a, int64_t count, int32_t *starts)
{
    let_next_start();
    for (int64_t k = this_thread(); k <= count; k += all_threads()) {
        const int64_t item = min(k * length_of_share(PATH), a.nnz + a.rows);
        int64_t low = max(item - a.nnz, int64_t(0)), high = min(item, a.rows);
        while (low < high) {
            const int64_t at = low + (high - low) / 2;
            if (clamp(__ldg(a.ptr + at + 1), 0, a.nnz) + at + 1 <= item)
                low = at + 1;
            else
                high = at;
        }
        starts[k] = int32_t(min(low, a.rows));
    }
}

/* What the plan lists, for a matrix that has none: thread k searches for the first row that begins
 * at entry k * PLAN_SHARE or behind it. */
static __global__ void __launch_bounds__(BLOCK)
    spmv_starts(const csr_view a, int64_t count, int32_t *starts)
{
    for (int64_t k = this_thread(); k <= count; k += all_threads())
        starts[k] = int32_t(first_at_least(a.ptr, 1, a.rows, k * PLAN_SHARE));
}

static inline int64_t shares_of(const fmm_call *call, int way)
{
    const int64_t nnz = call->a->cols ? call->a->nnz : 0; /* as spmv_view says it */
    const int64_t items = nnz + (way == PATH ? call->a->rows : 0);
    const int64_t each = length_of_share(way);
    return items > each ? ceil_div(items, each) : 1;
}

/* Entries of the list of rows, less one, where the plan does not have it. */
static inline int64_t list_length(const fmm_call *call, int way)
{
    if (way == PATH) return shares_of(call, way);
    return way == COORDINATES || plan_given(call->a) ? -1 : plan_shares(call->a->nnz);
}

/* The room of the records, and behind them that of the list. */
static inline size_t records_bytes(const fmm_call *call, int way)
{
    const int64_t blocks = ceil_div(shares_of(call, way), TEAM);
    const bool wide = call->x->dtype == FMM_F64;
    return blocks > 1
               ? (size_t)blocks * (wide ? sizeof(record_of<double>) : sizeof(record_of<float>))
               : 0;
}
static inline size_t records_room(const fmm_call *call, int way)
{
    return records_bytes(call, way) + (size_t)(list_length(call, way) + 1) * sizeof(int32_t);
}

/* sums: NULL, or what takes the sums of rows in place of y. */
template <int WAY>
static void launch_segments(const fmm_exec *exec, const fmm_call *call, void *room, void *sums)
{
    for_types(call->x->dtype, view_edges(call->a, call->val), [&](auto x, auto v) {
        typedef decltype(x) T;
        typedef typename sum_of<T>::type A;
        const int shares = (int)shares_of(call, WAY);
        segment_args<T> m = {spmv_view<T>(call), NULL, static_cast<record_of<A> *>(room), shares,
                             (int)ceil_div(shares, TEAM)};
        m.wide = lies_at(m.s.a.idx, 16) && lies_at(m.s.val.data, 16);
        m.s.sums = static_cast<A *>(sums);
        m.slices = WAY <= LONG_ROWS ? (int)(call->a->rows / SLICE) : 0;
        const dim3 grid((unsigned)m.blocks), rows(blocks_for(call->a->rows));
        const cudaStream_t stream = stream_of(exec);
        const int64_t listed = list_length(call, WAY);
        int32_t *const list =
            reinterpret_cast<int32_t *>(static_cast<char *>(room) + records_bytes(call, WAY));
        m.starts = listed < 0 ? plan_starts(call->a->plan) : list; /* of COO nobody reads it */
        if (listed >= 0)
            (WAY == PATH ? spmv_path : spmv_starts)<<<blocks_for(listed + 1), BLOCK, 0, stream>>>(
                m.s.a, listed, list);
        const auto kernel = spmv_segments<T, decltype(v), WAY>;
        if constexpr (WAY == COORDINATES) spmv_no_entries<T><<<rows, BLOCK, 0, stream>>>(m);
        if constexpr (WAY <= LONG_ROWS)
            kernel<<<grid, BLOCK, 0, stream>>>(m);
        else
            launch_early(exec->index, stream, kernel, grid, m);
        const int64_t slices = int64_t(m.slices) * WARP;
        if (m.blocks > 1 || slices)
            launch_early(exec->index, stream, spmv_join<T>,
                         dim3(blocks_for(m.blocks > slices ? m.blocks : slices)), m);
    });
}
