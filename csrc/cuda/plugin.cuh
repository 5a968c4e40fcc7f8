/* What a plug-in needs that is built from the library's headers: their fmm_fail.
 *
 *     REQUIRE, TRY, cuda_leave ---> fmm_fail ---> host_of_errors->fail, which keeps the text
 *
 * The library's own fmm_fail is hidden within it, so each plug-in has this one. It is a definition:
 * one file of a plug-in includes it, that of FMM_PLUGIN, which sets host_of_errors. */
#pragma once

#include "../core/core.h"

#include <stdarg.h>
#include <stdio.h>

static const fmm_host *host_of_errors;

extern "C" fmm_status fmm_fail(fmm_status status, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host_of_errors->fail(status, text);
}
