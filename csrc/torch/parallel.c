/* Threads: torch's, where there are any. */
#include "frame.h"

#include <pthread.h>

/* A forked child has none of the threads that torch's pool still counts on; waiting for them would
 * never end, so kernels run in the calling thread there. */
static bool forked;

static void in_child(void) { forked = true; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

void frame_parallel(int64_t count, fmm_range *body, void *ctx)
{
    if (forked)
        body(0, count, ctx);
    else
        fmm_torch.torch_parallel_for(0, count, 1, body, ctx);
}
