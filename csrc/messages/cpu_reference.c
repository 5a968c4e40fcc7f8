/* Messages as the formula reads: one sum per output, in double. These loops also compute rows
 * with an index out of range, whose entry they skip.
 *
 *     for each row i
 *         to rows:     for each k, for each entry p of row i       add m[p, k]
 *         to entries:  for each entry p, each k that out has       add m[p, k + what out lacks]
 */
#include "../cpu/reference.h"
#include "cpu.h"

/* The position in the axes, counted like an odometer; false after the last. */
static inline bool next(int64_t *at, const int64_t *end)
{
    for (int d = FMM_AXES - 1; d >= 0; d--) {
        if (++at[d] < end[d]) return true;
        at[d] = 0;
    }
    return false;
}

/* Where entry p stands. */
typedef struct place {
    int64_t node[3]; /* by fmm_at */
    int64_t at[FMM_AXES];
} place;

/* Where an operand, or out, has its number of a place: its axes lie densely in its rows. */
static inline int64_t offset(const fmm_edge_message *m, const fmm_term *t, const place *w)
{
    const fmm_steps steps = fmm_steps_of(m, t);
    int64_t sum = w->node[t->at] * t->data->row_stride;
    for (int d = 0; d < FMM_AXES; d++) sum += w->at[d] * steps.by[d];
    return sum;
}

#define LOOPS "../messages/cpu_plain.inc"
#include "../cpu/dtypes.inc"

void fmm_messages_plain_rows(const fmm_call *call, int64_t first, int64_t last)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    static void (*const of_dtype[])(const fmm_csr *, const fmm_edge_message *, int64_t, int64_t) = {
        [FMM_F32] = plain_rows_f32,
        [FMM_F64] = plain_rows_f64,
        [FMM_F16] = plain_rows_f16,
        [FMM_BF16] = plain_rows_bf16,
    };
    of_dtype[fmm_messages_first(m)->dtype](call->a, m, first, last);
}

/* Entries are zeroed first: those that a forged ptr or eid leaves out must not show what memory
 * held before. */
fmm_status fmm_messages_reference(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_edge_message *m = fmm_messages_of(call);
    for (int64_t p = 0; m->out.at == FMM_AT_EDGE && p < call->a->nnz; p++)
        for (int64_t c = 0; c < call->y->feat; c++) put(call->y, p, 0, c, 0.0);
    return fmm_rows_reference(exec, call, fmm_messages_plain_rows);
}
