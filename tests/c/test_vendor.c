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
    static const char *const here[] = {"libnot-there.so.7", "libm.so.6", NULL};
    static const char *const nowhere[] = {"libnot-there.so.7", NULL};
    static const char *const both[] = {"floor", "fabs", NULL};
    static const char *const one[] = {"floor", "not_in_it", NULL};
    struct {
        double (*floor)(double);
        double (*fabs)(double);
    } found = {NULL, NULL};
    CHECK(fmm_vendor_bind("spmm", "cuX", "nvidia-x", here, both, &found), "%s", message);
    CHECK(found.floor && found.floor(2.5) == 2 && found.fabs(-2) == 2, "the wrong functions");
    CHECK(!fmm_vendor_bind("spmm", "cuX", "nvidia-x", nowhere, both, &found), "found nothing");
    CHECK(strstr(message, "cuX is not on this machine (libnot-there.so.7): pip install nvidia-x"),
          "%s", message);
    CHECK(!fmm_vendor_bind("spmm", "cuX", "nvidia-x", here, one, &found), "found what is not");
    CHECK(strstr(message, "this cuX lacks not_in_it: pip install --upgrade nvidia-x"), "%s",
          message);
    return finish();
}
