/* The plain form of the numeric phase: c[i, j] = sum of a[i, k] * b[k, j] over the entries of A and
 * B, in their order.
 *
 *     thread r           owns entry r of c: (i, j)
 *     entries of A, B    all products of row i, of which those of column j are added
 *
 * So it reads a row's products once for each of the row's entries. It needs no memory, and nothing
 * in it depends on other threads. */
#include "../cuda/reference.cuh"
#include "cuda_table.cuh"

/* A sum of any length, as a slot of a table keeps it: terms are added to `sum`, which is added to
 * `aside` after so many of them, by its own count or where the caller says so. */
template <class A> struct slot_sum {
    A sum, aside;
    int terms;
    __device__ void put_aside(void) { aside += sum, sum = A(0), terms = 0; }
    __device__ void add(A x, A y, bool counted)
    {
        sum = multiply_add(x, y, sum);
        if (++terms == SPGEMM_TERMS && counted) put_aside();
    }
};

/* All entries of A's row are looked at, and of the rows of B that they name all columns. */
template <class A>
static __global__ void __launch_bounds__(BLOCK)
    spgemm_reference(const csr_view a, const edge_view a_val, const csr_view b,
                     const edge_view b_val, const csr_view c, const int64_t *schedule,
                     const entry_output out)
{
    const bool counted = __ldg(schedule) != 1;
    for (int64_t r = this_thread(); r < c.nnz; r += all_threads()) {
        int64_t p, begin;
        const int32_t j = __ldg(c.idx + r);
        const int64_t i = row_of(c, r), end = row_range(a, i, &p) + p, first = p;
        slot_sum<A> sum = {A(0), A(0), 0}; /* put aside at the same places as everywhere */
        for (; p < end && uint32_t(j) < uint32_t(c.cols); p++) {
            if (!counted && p > first && (p - first) % SPGEMM_TERMS == 0) sum.put_aside();
            const int64_t k = __ldg(a.idx + p);
            if (uint64_t(k) >= uint64_t(b.rows)) continue;
            const A factor = edge_value<A>(a_val, edge_of(a_val, p), 0);
            const int64_t stop = row_range(b, k, &begin) + begin;
            for (int64_t q = begin; q < stop; q++)
                if (__ldg(b.idx + q) == j)
                    sum.add(factor, edge_value<A>(b_val, edge_of(b_val, q), 0), counted);
        }
        write(out, r, sum.aside + sum.sum);
    }
}

/* It needs no workspace and no schedule but the word that says whether B's columns rise. */
extern "C" fmm_status fmm_spgemm_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    int before;
    const fmm_csr *a = call->a;
    const fmm_spgemm *of = fmm_spgemm_of(call);
    const auto a_val = view_edges(a, call->val), b_val = view_edges(of->b, &of->b_val);
    const auto run = call->y->dtype == FMM_F64 ? spgemm_reference<double> : spgemm_reference<float>;
    const unsigned blocks = (unsigned)smaller(blocks_for(of->c->nnz), REFERENCE_BLOCKS);
    TRY(cuda_enter("spgemm", exec, &before));
    run<<<blocks, BLOCK, 0, stream_of(exec)>>>(view_csr(a), a_val, view_csr(of->b), b_val,
                                               view_csr(of->c), of->schedule,
                                               view_output(of->c, call->y));
    return cuda_leave("spgemm", exec, before);
}
