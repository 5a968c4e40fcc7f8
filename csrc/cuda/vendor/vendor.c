/* Finds a vendor's library at run time; see vendor.h. */
#include "vendor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Opens the library and looks up all of its functions; none counts as found before all are. */
static fmm_status find(const char *op, const fmm_vendor_library *library)
{
    /* A library that torch has loaded is found by its name alone, wherever it lies. */
    void *handle = NULL;
    for (int k = 0; library->files[k] && !handle; k++)
        handle = dlopen(library->files[k], RTLD_LAZY | RTLD_LOCAL);
    REQUIRE(handle, FMM_UNSUPPORTED,
            "%s: %s is not on this machine (%s): pip install %s, or add its folder to "
            "LD_LIBRARY_PATH",
            op, library->label, library->files[0], library->package);
    for (int k = 0; library->names[k]; k++) {
        void *symbol = dlsym(handle, library->names[k]);
        REQUIRE(symbol, FMM_UNSUPPORTED, "%s: this %s lacks %s: pip install --upgrade %s", op,
                library->label, library->names[k], library->package);
        /* C has no cast from an object pointer to a function, so its bytes are copied. */
        memcpy((char *)library->slots + (size_t)k * sizeof symbol, &symbol, sizeof symbol);
    }
    return FMM_OK;
}

/* A library that was not found is looked for again by the next call: it may have come meanwhile. */
bool fmm_vendor_bind(const char *op, fmm_vendor_library *library)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!library->bound) library->bound = find(op, library) == FMM_OK;
    const bool bound = library->bound;
    pthread_mutex_unlock(&lock);
    return bound;
}
