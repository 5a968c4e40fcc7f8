/* Finds a vendor's library at run time; see vendor.h. */
#include "vendor.h"

#include <dlfcn.h>
#include <string.h>

bool fmm_vendor_bind(const char *op, const char *label, const char *package,
                     const char *const *files, const char *const *names, void *slots)
{
    /* A library that torch has loaded is found by its name alone, wherever it lies. */
    void *library = NULL;
    for (int k = 0; files[k] && !library; k++) library = dlopen(files[k], RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        fmm_fail(FMM_UNSUPPORTED,
                 "%s: %s is not on this machine (%s): pip install %s, or add its folder to "
                 "LD_LIBRARY_PATH",
                 op, label, files[0], package);
        return false;
    }
    for (int k = 0; names[k]; k++) {
        void *symbol = dlsym(library, names[k]);
        if (!symbol) {
            fmm_fail(FMM_UNSUPPORTED, "%s: this %s lacks %s: pip install --upgrade %s", op, label,
                     names[k], package);
            return false;
        }
        /* C has no cast from an object pointer to a function, so its bytes are copied. */
        memcpy((char *)slots + (size_t)k * sizeof symbol, &symbol, sizeof symbol);
    }
    return true;
}
