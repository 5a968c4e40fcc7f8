/* The plain form of messages, which says what they mean, for any shape, stride and type. There is
 * no plan, no workspace and no shuffle.
 *
 *     thread k        owns out[n, c]; n is a row, or an entry
 *     to rows         entries p, p + 1, ...    in the order of storage, those of row n
 *     to entries      terms 0, 1, ...          the features that out lacks
 *
 * Sums go through three accumulators (cuda/reference.cuh). An entry whose column or edge lies
 * outside is skipped, or gets 0; an edge that does not exist is not written.
 *
 * Every thread owns its numbers of out, so nothing is added to memory that another writes. The
 * order is fixed, and so are the bits. */
#include "../cuda/reference.cuh"
#include "cuda.h"

/* Where a term stands: nodes, that is row, column and edge, by fmm_at, and the place in the axes.
 */
struct term_place {
    int64_t node[3], at[FMM_AXES];
};

/* A term of the call, which a kernel gets by value: pointers of fmm_term lead to the host. */
struct plain_term {
    fmm_dense data;
    fmm_steps step;
    int at;
};
struct plain_args {
    csr_view a;
    edge_view edges;
    plain_term lhs, rhs, mask[3]; /* of a mask its lhs, its rhs and its y */
    fmm_dense out;
    int64_t kept[FMM_AXES], lost[FMM_AXES], features, sums; /* sizes and their products */
    int op, mask_op, reduce;
    bool to_rows, masked, cols;
};

/* The number of an operand at a place, in the type of sums. */
template <class T>
static __device__ typename sum_of<T>::type value_of(const plain_term &t, const term_place &w)
{
    int64_t c = 0;
    for (int d = 0; d < FMM_AXES; d++) c += w.at[d] * t.step.by[d];
    return widen(*element<T>(t.data, w.node[t.at], 0, c));
}

/* lhs op rhs at a place. ONE has no operands: its sums count entries. */
template <class T>
static __device__ typename sum_of<T>::type combined(int op, const plain_term &lhs,
                                                    const plain_term &rhs, const term_place &w)
{
    typedef typename sum_of<T>::type A;
    if (op == FMM_COMBINE_ONE) return A(1);
    const A a = value_of<T>(lhs, w);
    if (op == FMM_COMBINE_COPY) return a;
    const A b = value_of<T>(rhs, w);
    return op == FMM_COMBINE_ADD   ? a + b
           : op == FMM_COMBINE_SUB ? a - b
           : op == FMM_COMBINE_MUL ? a * b
                                   : a / b;
}

/* The term at a place; false where the mask does not take it: where the message, rounded as a
 * result is, is not the result that mask_y holds. */
template <class T>
static __device__ bool term_at(const plain_args &s, const term_place &w,
                               typename sum_of<T>::type *term)
{
    if (s.masked) {
        const auto made = combined<T>(s.mask_op, s.mask[0], s.mask[1], w);
        if (widen(narrow<T>(made)) != value_of<T>(s.mask[2], w)) return false;
    }
    *term = combined<T>(s.op, s.lhs, s.rhs, w);
    return true;
}

/* The place k in axes of these sizes, added to the place that is there. */
static __device__ void add_place(const int64_t *sizes, int64_t k, int64_t *at)
{
    for (int d = FMM_AXES - 1; d >= 0; k /= sizes[d--]) at[d] += k % sizes[d];
}

/* To entries, thread k takes entry n of the matrix's order and writes its edge's place. Out is T,
 * or the type of sums for counts. */
template <class T, class Out>
static __global__ void __launch_bounds__(BLOCK)
    messages_reference(const __grid_constant__ plain_args s)
{
    typedef typename sum_of<T>::type A;
    const int64_t count = (s.to_rows ? s.a.rows : s.a.nnz) * s.features;
    const A sign = A(s.reduce == FMM_MIN ? -1 : 1);
    for (int64_t k = this_thread(); k < count && s.a.rows; k += all_threads()) {
        const int64_t c = k % s.features, n = k / s.features;
        /* Of an entry there is one term, the entry itself. */
        int64_t begin = n, terms = 1, edge = 0;
        if (s.to_rows) terms = row_range(s.a, n, &begin);
        long_sum<A> sum;
        sum.start();
        A most = -A(INFINITY), term;
        for (int64_t p = begin; p < begin + terms; p++) {
            const int32_t j = s.cols ? s.a.idx[p] : 0;
            edge = edge_at(s.edges, p);
            if ((uint32_t)j >= (uint32_t)s.a.cols || !is_edge(s.edges, edge)) continue;
            for (int64_t q = 0; q < s.sums; q++) {
                term_place w = {{s.to_rows ? n : row_of(s.a, p), j, edge}, {}};
                add_place(s.kept, c, w.at);
                add_place(s.lost, q, w.at);
                if (!term_at<T>(s, w, &term)) continue;
                sum.add(A(1), term);
                if (sign * term > most || term != term) most = sign * term; /* NaN stays */
            }
        }
        A result = sum.total();
        if (s.reduce == FMM_MEAN) result /= A(terms);
        if (s.reduce == FMM_MAX || s.reduce == FMM_MIN) result = sign * most;
        if (!s.to_rows && !is_edge(s.edges, edge)) continue;
        /* A row without entries has no term, and gets 0 whatever its reduction. */
        *element<Out>(s.out, s.to_rows ? n : edge, 0, c) = narrow<Out>(terms ? result : A(0));
    }
}

/* Counts are of the type of sums. */
extern "C" fmm_status fmm_messages_reference_cuda(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    int before;
    TRY(cuda_enter("messages", exec, &before));
    plain_args s = {};
    s.a = view_csr(call->a), s.edges = view_edges(call->a, NULL);
    const fmm_term *const terms[] = {&m->lhs, &m->rhs, &m->mask_lhs, &m->mask_rhs, &m->mask_y};
    plain_term *const to[] = {&s.lhs, &s.rhs, s.mask, s.mask + 1, s.mask + 2};
    for (int k = 0; k < 5; k++) {
        if (!terms[k]->data) continue;
        *to[k] = plain_term{*terms[k]->data, fmm_steps_of(m, terms[k]), terms[k]->at};
        s.cols = s.cols || terms[k]->at == FMM_AT_COL;
    }
    s.out = *m->out.data;
    /* features: numbers of a row of out. sums: terms that one of them adds up for an entry. */
    s.features = s.sums = 1;
    for (int d = 0; d < FMM_AXES; d++) {
        const bool has = m->out.has >> d & 1;
        s.features *= s.kept[d] = has ? m->axis[d] : 1;
        s.sums *= s.lost[d] = has ? 1 : m->axis[d];
    }
    s.op = m->op, s.mask_op = m->mask_op, s.reduce = m->reduce;
    s.to_rows = m->out.at == FMM_AT_ROW, s.masked = m->mask_y.data != NULL;
    const unsigned grid = (unsigned)smaller(blocks_for(s.out.rows * s.features), REFERENCE_BLOCKS);
    for_dtype(fmm_messages_first(m)->dtype, [&](auto of) {
        typedef decltype(of) T;
        if (m->op == FMM_COMBINE_ONE)
            messages_reference<T, typename sum_of<T>::type><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
        else
            messages_reference<T, T><<<grid, BLOCK, 0, stream_of(exec)>>>(s);
    });
    return cuda_leave("messages", exec, before);
}
