/* Cuts a call in chunks of rows, checks each chunk's indices, and hands it to a kernel.
 *
 * Structures can be changed behind the check made at construction (.data writes, exported
 * programs), so ptr, idx and eid are looked at again here, a chunk at a time while it is on its way
 * through the cache: kernels need no test per entry, and a chunk that is not sane goes to the
 * reference loops, which skip what is out of range. Nothing is read or written outside. */
#include "rows.h"

/* ptr with content that cannot be trusted: clamped. */
static int64_t entry(const fmm_csr *a, int64_t i)
{
    const int64_t p = a->ptr[i];
    return p < 0 ? 0 : p > a->nnz ? a->nnz : p;
}

/* The first row whose rows + entries before it reach target. */
static int64_t boundary(const fmm_csr *a, int64_t target)
{
    int64_t low = 0, high = a->rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (entry(a, middle) + middle < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void run_chunks(int64_t begin, int64_t end, void *ctx)
{
    const fmm_rows_task *task = ctx;
    const fmm_csr *a = task->call->a;
    int64_t first = begin == 0 ? 0 : boundary(a, begin * task->per_chunk);
    for (int64_t chunk = begin + 1; chunk <= end; chunk++) {
        const int64_t last = chunk == task->chunks ? a->rows : boundary(a, chunk * task->per_chunk);
        if (first < last) {
            if (task->sane(task, first, last))
                task->kernel(task, first, last);
            else {
                task->guarded(task->call, first, last);
                if (task->forged) atomic_store_explicit(task->forged, true, memory_order_relaxed);
            }
        }
        first = last;
    }
}

/* boundary() finds the first row that reaches a multiple of per_chunk, so a chunk that is not empty
 * starts within its own multiple. */
int64_t fmm_rows_chunk(const fmm_rows_task *task, int64_t first)
{
    const int64_t chunk = (entry(task->call->a, first) + first) / task->per_chunk;
    return chunk < task->chunks ? chunk : task->chunks - 1;
}

/* x is the operand whose rows are gathered, fetched ahead when it is larger than `near`. A chunk
 * gathers about 256 KiB: some 10 us, long enough to pay for handing it to a thread, short enough
 * for its indices to stay in the first cache. */
fmm_status fmm_rows_run(const fmm_exec *exec, fmm_rows_task *task, const fmm_dense *x, int64_t near)
{
    enum { CHUNK_BYTES = 1 << 18, CHUNK_MIN = 256, CHUNK_MAX = 4096 };
    const fmm_csr *a = task->call->a;
    const int64_t bytes = x->heads * x->feat * (int64_t)fmm_dtype_bytes(x->dtype) + 1;
    int64_t per_chunk = CHUNK_BYTES / bytes;
    per_chunk = per_chunk < CHUNK_MIN ? CHUNK_MIN : per_chunk > CHUNK_MAX ? CHUNK_MAX : per_chunk;
    const int64_t work = a->rows + a->nnz;
    if (!task->chunks) task->chunks = (work + per_chunk - 1) / per_chunk;
    task->per_chunk = task->chunks ? (work + task->chunks - 1) / task->chunks : 1;
    task->fetch_end = x->rows > near / bytes ? a->nnz - FMM_AHEAD : 0;
    task->val_head = task->call->val->heads == 1 ? 0 : task->call->val->head_stride;
    fmm_parallel(exec, task->chunks, run_chunks, task);
    return FMM_OK;
}

fmm_status fmm_rows_spmm(const fmm_exec *exec, const fmm_call *call, const fmm_cpu_isa *isa)
{
    const fmm_dense *x = call->x, *y = call->y;
    fmm_rows_task task = {.call = call,
                          .kernel = isa->of[x->dtype]->spmm,
                          .sane = isa->of[x->dtype]->sane,
                          .guarded = fmm_reference_spmm,
                          .heads = x->heads,
                          .feat = x->feat,
                          .uses_edges = call->val->data != NULL};
    /* Heads that lie side by side and share their value are one row of heads * feat. */
    if (call->val->heads == 1 && x->head_stride == x->feat && y->head_stride == y->feat) {
        task.feat *= task.heads;
        task.heads = 1;
    }
    /* Short rows are on their way side by side as it is. */
    const int64_t bytes = task.feat * (int64_t)fmm_dtype_bytes(x->dtype);
    return fmm_rows_run(exec, &task, x, bytes > 256 ? 1 << 20 : 1 << 23);
}

fmm_status fmm_rows_sddmm(const fmm_exec *exec, const fmm_call *call, const fmm_cpu_isa *isa)
{
    const fmm_csr *a = call->a;
    const fmm_dense *b = call->b;
    atomic_bool forged = a->ptr[0] != 0 || a->ptr[a->rows] != a->nnz;
    fmm_rows_task task = {.call = call,
                          .kernel = isa->of[b->dtype]->sddmm,
                          .sane = isa->of[b->dtype]->sane,
                          .guarded = fmm_reference_sddmm,
                          .forged = &forged,
                          .heads = b->heads,
                          .feat = b->feat,
                          .uses_edges = true};
    TRY(fmm_rows_run(exec, &task, b, 1 << 23)); /* four rows on their way side by side as it is */
    return forged ? fmm_sddmm_reference(exec, call) : FMM_OK; /* which leaves no entry unwritten */
}

/* Gathered are y and z, in a column pass x and g: the widest of those that are read. */
fmm_status fmm_rows_fused(const fmm_exec *exec, const fmm_call *call, const fmm_cpu_isa *isa)
{
    const fmm_fusion *f = call->fusion;
    const bool cols = f->pass == FMM_COLS;
    const fmm_dense *narrow = cols ? f->x : f->y, *wide = cols ? f->g : f->z;
    if (!wide || (narrow && narrow->feat > wide->feat)) wide = narrow;
    fmm_rows_task task = {.call = call,
                          .kernel = isa->of[f->out ? f->out->dtype : f->out2->dtype]->fused,
                          .sane = isa->of[f->out ? f->out->dtype : f->out2->dtype]->sane,
                          .guarded = fmm_reference_fused,
                          .heads = wide->heads,
                          .feat = wide->feat,
                          .uses_edges =
                              call->val->data || f->kept || (f->pass == FMM_ROWS && f->out2)};
    return fmm_rows_run(exec, &task, wide, 1 << 21); /* below, fetching costs more */
}
