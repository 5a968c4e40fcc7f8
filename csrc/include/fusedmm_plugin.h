/* What a plug-in is to the library, and the library to a plug-in. Part of fusedmm.h. */
#ifndef FMM_PLUGIN_H
#define FMM_PLUGIN_H

#include "fusedmm.h"

FMM_C_BEGIN

/* A plug-in is a shared library with one FMM_PLUGIN { host->add(...); return FMM_OK; }, which
 * exports two symbols; fusedmm.load_algorithms loads it (docs/plugins.md). The host's functions
 * come as pointers, so that a plug-in links nothing. FMM_ABI counts changes of the types: a
 * plug-in built for another count is refused before it is called. */
#define FMM_ABI 5
typedef struct fmm_host {
    fmm_status (*add)(fmm_operator op, fmm_device device, fmm_algorithm *algorithm);
    fmm_status (*fail)(fmm_status status, const char *text); /* sets the message; returns status */
} fmm_host;
#ifdef __cplusplus
#define FMM_EXTERN extern "C" FMM_API
#else
#define FMM_EXTERN extern FMM_API
#endif
#define FMM_PLUGIN                                                                                 \
    FMM_EXTERN const int fmm_plugin_abi;                                                           \
    const int fmm_plugin_abi = FMM_ABI;                                                            \
    FMM_EXTERN fmm_status fmm_plugin(const fmm_host *host);                                        \
    fmm_status fmm_plugin(const fmm_host *host)
FMM_API const fmm_host *fmm_plugin_host(void);

FMM_C_END
#endif
