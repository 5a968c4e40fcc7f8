/* Matrices and views made of a fuzzer's bytes: what they claim is within their memory, or is what
 * the library has to refuse. */
#ifndef FMM_FUZZ_OPERANDS_H
#define FMM_FUZZ_OPERANDS_H

#include "input.h"

/* ptr and idx that a constructor would let through, or anything at all. */
static inline fmm_csr matrix(input *in)
{
    fmm_csr a = {.rows = below(in, 3) ? below(in, 24) : byte(in), .cols = below(in, 40)};
    const bool forged = byte(in) & 1;
    const int dense = below(in, 3) ? 6 : 60;
    int64_t *ptr = array(in, (size_t)(a.rows + 1) * sizeof *ptr, sizeof *ptr);
    ptr[0] = 0;
    for (int64_t i = 0; i < a.rows; i++) {
        const int64_t room = 4000 - ptr[i], entries = a.cols || forged ? below(in, dense) : 0;
        ptr[i + 1] = ptr[i] + (entries < room ? entries : room);
    }
    a.nnz = ptr[a.rows];
    a.ptr = ptr;
    int32_t *idx = array(in, (size_t)a.nnz * sizeof *idx, sizeof *idx), *eid = NULL;
    for (int64_t p = 0; p < a.nnz; p++)
        idx[p] = a.cols ? (int32_t)(noise(in) % (uint64_t)a.cols) : 0;
    a.idx = idx;
    if (byte(in) & 1) {
        eid = array(in, (size_t)a.nnz * sizeof *eid, sizeof *eid);
        for (int64_t p = 0; p < a.nnz; p++) eid[p] = (int32_t)(noise(in) % (uint64_t)a.nnz);
        a.eid = eid;
    }
    for (int k = forged ? 1 + below(in, 6) : 0; k > 0; k--) {
        const int which = below(in, 3);
        if (which == 0) ptr[byte(in) % (a.rows + 1)] = hostile(in, a.nnz);
        if (which == 1 && a.nnz) idx[byte(in) % a.nnz] = (int32_t)hostile(in, a.cols);
        if (which == 2 && a.nnz && eid) eid[byte(in) % a.nnz] = (int32_t)hostile(in, a.nnz);
    }
    if (rarely(in)) a.rows = -1 - byte(in);
    if (rarely(in)) a.cols = hostile(in, a.cols);
    if (rarely(in)) a.nnz = a.nnz ? below(in, 2) - 1 : -1;
    return a;
}

static inline size_t width(fmm_dtype dtype)
{
    return dtype == FMM_F64 ? 8 : dtype == FMM_F32 ? 4 : 2;
}

/* The claim fits into n elements. Sizes and strides that are negative or do not fit into 64 bits
 * have to be refused by the library, whatever memory there is. */
static inline bool claim(const fmm_dense *d, int64_t most, int64_t *elements)
{
    __int128 n = 0;
    *elements = 0;
    if (d->rows < 0 || d->heads < 0 || d->feat < 0 || d->row_stride < 0 || d->head_stride < 0)
        return true;
    if (d->rows) n += (__int128)(d->rows - 1) * d->row_stride;
    if (d->heads) n += (__int128)(d->heads - 1) * d->head_stride;
    n += d->feat;
    if (n > INT64_MAX / 8) return true;
    if (d->rows && d->heads && d->feat) *elements = (int64_t)n;
    return n <= most;
}

/* A view [rows, heads, feat], with sizes, strides or a dtype that are wrong now and then. */
static inline fmm_dense view(input *in, fmm_dtype dtype, int64_t rows, int64_t heads, int64_t feat)
{
    const int64_t gap = below(in, 4) ? 0 : below(in, 5);
    fmm_dense d = {.dtype = dtype,
                   .rows = rows,
                   .heads = heads,
                   .feat = feat,
                   .head_stride = feat + gap,
                   .row_stride = heads * (feat + gap) + gap};
    const fmm_dense good = d;
    if (rarely(in)) {
        const int which = below(in, 7);
        if (which == 0) d.rows = hostile(in, rows);
        if (which == 1) d.heads = hostile(in, heads);
        if (which == 2) d.feat = hostile(in, feat);
        if (which == 3) d.row_stride = hostile(in, d.row_stride);
        if (which == 4) d.head_stride = hostile(in, d.head_stride);
        if (which == 5) d.row_stride = 0;
        if (which == 6) d.dtype = (fmm_dtype)(int8_t)byte(in);
    }
    int64_t elements;
    if (!claim(&d, SLOT_BYTES / 8, &elements)) {
        d = good;
        if (!claim(&d, SLOT_BYTES / 8, &elements)) {
            d.rows = 0;
            elements = 0;
        }
    }
    const size_t bytes = width(d.dtype);
    d.data = rarely(in) ? NULL : array(in, (size_t)elements * bytes, bytes);
    return d;
}

/* Ranges as a pool of threads may hand them out: cut anywhere, last first. */
static inline void backwards(int64_t count, fmm_range *body, void *ctx)
{
    for (int64_t end = count; end > 0;) {
        const int64_t begin = end > 3 ? end - 3 : 0;
        body(begin, end, ctx);
        end = begin;
    }
}

#endif
