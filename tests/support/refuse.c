/* Preloaded by test_memory.py: tensors' memory, which torch takes by posix_memalign or, where its
 * pool is off, by cudaMalloc, refused on request. On CUDA a gradient runs on threads of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { CUDA_OUT_OF_MEMORY = 2 };

static atomic_long asked, refused_at = -1;
static atomic_int forever;
static int (*cuda_malloc)(void **, size_t), (*cuda_free)(void *);
static atomic_long cuda_blocks;

/* The allocation number `at` from now fails, and if `always` every later one; -1: none. */
void refuse(long at, int always)
{
    asked = 0;
    refused_at = at;
    forever = always;
}

long asked_for(void) { return asked; }

static int refused(void)
{
    const long n = asked++;
    return refused_at >= 0 && (n == refused_at || (forever && n > refused_at));
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    static int (*next)(void **, size_t, size_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "posix_memalign");
    return refused() ? ENOMEM : next(out, align, bytes);
}

/* The CUDA runtime is loaded long after this: whoever loads it says where its own functions are. */
void refuse_cuda(void *its_malloc, void *its_free)
{
    *(void **)&cuda_malloc = its_malloc;
    *(void **)&cuda_free = its_free;
}

long cuda_blocks_held(void) { return cuda_blocks; }

int cudaMalloc(void **out, size_t bytes)
{
    if (bytes && refused()) return CUDA_OUT_OF_MEMORY;
    const int status = cuda_malloc(out, bytes);
    if (!status && *out) cuda_blocks++; /* of no bytes there is no block */
    return status;
}

int cudaFree(void *block)
{
    if (block) cuda_blocks--;
    return cuda_free(block);
}
