/* Preloaded by test_memory.py: tensors' memory, which torch takes by posix_memalign, refused on
 * request. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

static _Thread_local long asked, refused_at = -1;
static _Thread_local int forever;

/* The allocation number `at` from now on this thread fails, and if `always` every later one; -1:
 * none. */
void refuse(long at, int always)
{
    asked = 0;
    refused_at = at;
    forever = always;
}

long asked_for(void) { return asked; }

int posix_memalign(void **out, size_t align, size_t bytes)
{
    static int (*next)(void **, size_t, size_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "posix_memalign");
    const long n = asked++;
    if (refused_at >= 0 && (n == refused_at || (forever && n > refused_at))) return ENOMEM;
    return next(out, align, bytes);
}
