/* Cuts a call in chunks of rows, checks each chunk's indices, and hands it to a kernel.
 *
 * Structures can be changed behind the check made at construction (.data writes, exported
 * programs), and by another thread while a call runs. So a chunk's ptr, idx and eid are copied, and
 * the copy is what is checked and what the kernel reads, while it is in the first cache: kernels
 * need no test per entry, and a chunk with an index out of range goes to the reference loops, which
 * skip such indices. Nothing is read or written outside.
 *
 * A copy lies on the stack of the thread that runs the chunk. A copy that is too long for the
 * stack, as that of a hub is, takes the next part of the workspace. */
#include "rows.h"
#include "reference.h"

#include <string.h>

enum {
    CHUNK_MAX = 4096,       /* rows + entries, but for those of the last row */
    LOCAL_BYTES = 64 << 10, /* room for a chunk of so many, and as much for its last row */
    TAIL = 2 * FMM_AHEAD,   /* entries behind a chunk whose rows it fetches: copied, never used */
};

/* A call whose chunks run. */
typedef struct running {
    const fmm_rows_task *task;
    char *room;
    int64_t bytes;
    atomic_llong used;
} running;

/* The first row whose rows + entries before it reach target. */
static int64_t boundary(const fmm_csr *a, int64_t target)
{
    int64_t low = 0, high = a->rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (row_begin(a, middle) + middle < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Bytes of an edge's number where calls read them. */
static int64_t edge_bytes(const fmm_csr *a, bool uses_edges)
{
    return !uses_edges || !a->eid ? 0 : a->nnz <= INT32_MAX ? 4 : 8;
}

static int64_t chunk_bytes(int64_t rows, int64_t entries, int64_t edge)
{
    return ((rows + 1) * 8 + entries * (4 + edge) + TAIL * 4 + 7) / 8 * 8;
}

/* Each chunk in the workspace has more than LOCAL_BYTES, so the 8 + TAIL * 4 + 7 bytes that belong
 * to none of its rows and entries are less than a part in 256. */
static size_t room_for(const fmm_csr *a)
{
    const int64_t all = chunk_bytes(a->rows, a->nnz, edge_bytes(a, true));
    return all <= LOCAL_BYTES ? 0 : (size_t)((all + all / 256) / 16 * 16 + 16);
}

/* Whether rows [first, last) have more entries in all than `most`. Where ptr falls the answer is
 * yes, since the difference is unsigned. */
static bool longer(const fmm_csr *a, int64_t first, int64_t last, int64_t most)
{
    return (uint64_t)a->ptr[last] - (uint64_t)a->ptr[first] > (uint64_t)most;
}

/* Only a long row makes a chunk that a stack does not hold. Rows that are short together are not
 * checked one by one. */
size_t fmm_rows_workspace(const fmm_call *call)
{
    enum { TOGETHER = 64 };
    const fmm_csr *a = call->a;
    const int64_t edge = edge_bytes(a, true), entry_most = edge > 4 ? 4 + edge : 8;
    const int64_t most = (LOCAL_BYTES - chunk_bytes(1, 0, 0) - CHUNK_MAX * entry_most) / entry_most;
    for (int64_t i = 0; i < a->rows; i += TOGETHER) {
        const int64_t end = a->rows - i < TOGETHER ? a->rows : i + TOGETHER;
        if (!longer(a, i, end, most)) continue;
        for (int64_t k = i; k < end; k++)
            if (longer(a, k, k + 1, most)) return room_for(a);
    }
    return 0;
}

static const void *before(const void *at, int64_t bytes)
{
    return (const void *)((uintptr_t)at - (uintptr_t)bytes);
}

/* Makes `to` a matrix that holds rows [first, last) of the call's where nobody else writes; false
 * where an index is out of range, or content that changed leaves no room. */
static bool copy_chunk(running *r, int64_t first, int64_t last, char *local, fmm_csr *to)
{
    const fmm_csr *a = r->task->call->a;
    const int64_t begin = row_begin(a, first), end = row_begin(a, last), n = end - begin;
    const int64_t edge = edge_bytes(a, r->task->uses_edges);
    const int64_t tail = a->nnz - end < TAIL ? a->nnz - end : TAIL;
    if (n < 0) return false;
    char *at = local;
    const int64_t bytes = chunk_bytes(last - first, n, edge);
    if (bytes > LOCAL_BYTES) {
        const int64_t used = atomic_fetch_add_explicit(&r->used, bytes, memory_order_relaxed);
        if (used + bytes > r->bytes) return false;
        at = r->room + used;
    }
    fmm_chunk chunk = {.rows = last - first, .ptr = (int64_t *)(void *)at};
    at += (chunk.rows + 1) * 8;
    chunk.eid = edge ? at : NULL;
    chunk.idx = (int32_t *)(void *)(at + n * edge);
    memcpy(chunk.ptr, a->ptr + first, (size_t)(chunk.rows + 1) * sizeof *chunk.ptr);
    if (chunk.ptr[0] != begin || chunk.ptr[chunk.rows] != end) return false;
    to->ptr = before(chunk.ptr, first * 8);
    if (edge) to->eid = before(chunk.eid, begin * edge);
    to->idx = before(chunk.idx, begin * 4);
    if (tail) memcpy(chunk.idx + n, a->idx + end, (size_t)tail * sizeof *chunk.idx);
    return r->task->copy(a, &chunk);
}

/* Rows [first, last) by the kernel, with their copy in `task`'s matrix, or by the reference. */
static void run_rows(running *r, const fmm_rows_task *task, int64_t first, int64_t last,
                     char *local, fmm_csr *here)
{
    if (copy_chunk(r, first, last, local, here))
        task->kernel(task, first, last);
    else {
        task->guarded(r->task->call, first, last);
        if (task->forged) atomic_store_explicit(task->forged, true, memory_order_relaxed);
    }
}

/* Chunks of more than CHUNK_MAX are those of a caller who fixed their number: they run in pieces of
 * as much. */
static void run_chunks(int64_t begin, int64_t end, void *ctx)
{
    running *r = ctx;
    /* A thread has a task and a call of its own, whose matrix is the copy of the chunk at hand. */
    fmm_rows_task task = *r->task;
    fmm_call call = *task.call;
    const fmm_csr *a = call.a;
    fmm_csr here = *a;
    _Alignas(16) char local[LOCAL_BYTES];
    task.call = &call;
    call.a = &here;
    /* The end of a chunk is where the next one begins, so each boundary is searched for once. */
    int64_t first = begin == 0 ? 0 : boundary(a, begin * task.per_chunk);
    for (int64_t chunk = begin + 1; chunk <= end; chunk++) {
        const int64_t last = chunk == task.chunks ? a->rows : boundary(a, chunk * task.per_chunk);
        while (first < last) {
            int64_t stop = last;
            if (task.per_chunk > CHUNK_MAX)
                stop = boundary(a, row_begin(a, first) + first + CHUNK_MAX);
            if (stop <= first || stop > last) stop = last;
            run_rows(r, &task, first, stop, local, &here);
            first = stop;
        }
        first = last;
    }
}

/* boundary() finds the first row that reaches a multiple of per_chunk, so a chunk that is not empty
 * starts within its own multiple. */
int64_t fmm_rows_chunk(const fmm_rows_task *task, int64_t first)
{
    const int64_t chunk = (row_begin(task->call->a, first) + first) / task->per_chunk;
    return chunk < task->chunks ? chunk : task->chunks - 1;
}

/* x is the operand whose rows are gathered, fetched ahead when it is larger than `near`. A chunk
 * gathers about 256 KiB: some 10 us, long enough to pay for handing it to a thread, short enough
 * for its indices to stay in the first cache. */
fmm_status fmm_rows_run(const fmm_exec *exec, fmm_rows_task *task, const fmm_dense *x, int64_t near)
{
    enum { CHUNK_BYTES = 1 << 18, CHUNK_MIN = 256 };
    const fmm_csr *a = task->call->a;
    const int64_t bytes = x->heads * x->feat * (int64_t)fmm_dtype_bytes(x->dtype) + 1;
    int64_t per_chunk = CHUNK_BYTES / bytes;
    per_chunk = per_chunk < CHUNK_MIN ? CHUNK_MIN : per_chunk > CHUNK_MAX ? CHUNK_MAX : per_chunk;
    const int64_t work = a->rows + a->nnz;
    if (!task->chunks) task->chunks = (work + per_chunk - 1) / per_chunk;
    task->per_chunk = task->chunks ? (work + task->chunks - 1) / task->chunks : 1;
    task->fetch_end = x->rows > near / bytes ? a->nnz - FMM_AHEAD : 0;
    task->val_head = task->call->val->heads == 1 ? 0 : task->call->val->head_stride;
    running r = {.task = task, .room = exec->workspace, .bytes = (int64_t)exec->workspace_bytes};
    fmm_parallel(exec, task->chunks, run_chunks, &r);
    return FMM_OK;
}

/* A call of the specification. */
typedef struct plain {
    const fmm_call *call;
    fmm_rows_guarded *loops;
} plain;

static void run_plain(int64_t first, int64_t last, void *ctx)
{
    const plain *p = ctx;
    p->loops(p->call, first, last);
}

fmm_status fmm_rows_reference(const fmm_exec *exec, const fmm_call *call, fmm_rows_guarded *loops)
{
    plain p = {call, loops};
    fmm_parallel(exec, call->a->rows, run_plain, &p);
    return FMM_OK;
}
