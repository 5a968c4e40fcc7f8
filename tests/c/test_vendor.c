/* A vendor's library is found at run time, and its absence is a sentence that says what to install.
 * libm stands for it: the machine that runs this test needs none of NVIDIA's. */
#include "test.h"

#include "../../csrc/cuda/vendor/vendor.c"

#include <stdarg.h>

static char message[256];

fmm_status fmm_fail(fmm_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

int main(void)
{
    static const char *const both[] = {"floor", "fabs", NULL};
    static const char *const one[] = {"floor", "not_in_it", NULL};
    struct {
        double (*floor)(double);
        double (*fabs)(double);
    } found = {NULL, NULL};
    fmm_vendor_library here = {.label = "cuX",
                               .package = "nvidia-x",
                               .files = {"libnot-there.so.7", "libm.so.6"},
                               .names = both,
                               .slots = &found};
    CHECK(fmm_vendor_bind("spmm", &here), "%s", message);
    CHECK(found.floor && found.floor(2.5) == 2 && found.fabs(-2) == 2, "the wrong functions");
    found.floor = NULL;
    CHECK(fmm_vendor_bind("spmm", &here) && !found.floor, "bound twice");
    fmm_vendor_library nowhere = {
        .label = "cuX", .package = "nvidia-x", .files = {"libnot-there.so.7"}, .names = both};
    CHECK(!fmm_vendor_bind("spmm", &nowhere), "found nothing");
    CHECK(strstr(message, "cuX is not on this machine (libnot-there.so.7): pip install nvidia-x"),
          "%s", message);
    fmm_vendor_library older = here;
    older.bound = false;
    older.names = one;
    CHECK(!fmm_vendor_bind("spmm", &older), "found what is not");
    CHECK(strstr(message, "this cuX lacks not_in_it: pip install --upgrade nvidia-x"), "%s",
          message);
    return finish();
}
