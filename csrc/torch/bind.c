/* Finds torch in this process and registers our operators with it.
 *
 * RTLD_NOLOAD takes the torch that was imported, whatever its version, Python or CUDA, and never
 * loads one. So one binary serves them all, and builds without torch. */
#define _GNU_SOURCE
#include "frame.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

fmm_shim fmm_torch;

/* The tables of all folders, in the order of the list: first declared, then by address. */
#define BOXED(name) extern const fmm_torch_operator fmm_torch_##name[];
#define SINGLE(name, cuda, operands) BOXED(name)
#define OPERATOR(name, number) BOXED(name)
#include "../core/operators.def"
static const fmm_torch_operator *const operators[] = {
#define BOXED(name) fmm_torch_##name,
#define SINGLE(name, cuda, operands) BOXED(name)
#define OPERATOR(name, number) BOXED(name)
#include "../core/operators.def"
};
enum { OPERATORS = sizeof operators / sizeof *operators };

/* Number k of those lines of all tables that have no schema. */
const char *fmm_number(int k, double *value)
{
    for (int t = 0; t < OPERATORS; t++)
        for (const fmm_torch_operator *line = operators[t]; line->name; line++)
            if (!line->schema && k-- == 0) return *value = line->value, line->name;
    return NULL;
}

/* The shim promises to translate calls made for this release: 2.10, one byte per number. */
#define BUILT_FOR ((UINT64_C(2) << 56) | (UINT64_C(10) << 48))

static char problem[160];

/* dlsym gives an object pointer; C has no cast from it to a function, so its bytes are copied. */
static bool find(void *library, void *slot, const char *name, const char *since)
{
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol);
    if (!symbol)
        snprintf(problem, sizeof problem,
                 "this torch lacks %s (there since %s); torch >= 2.10 is needed", name, since);
    return symbol != NULL;
}

/* Looks up every function of torch's C shim. Those of CUDA are absent in a torch without it, and
 * then nobody calls them, since no tensor lies on a GPU. */
static bool bind_shim(void)
{
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) {
        snprintf(problem, sizeof problem, "torch is not loaded: import torch first");
        return false;
    }
#define X(result, name, arguments, since)                                                          \
    if (!find(torch, &fmm_torch.name, #name, #since)) return false;
    FMM_SHIM_LIST(X)
    torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return true;
    FMM_SHIM_CUDA_LIST(X)
#undef X
    return true;
}

/* Defines each schema and gives it a kernel for CPU and one for CUDA, which is the same function:
 * it asks its first tensor where it is. The handles are kept for the life of the process: deleting
 * one deregisters its operators. */
static bool register_operators(void)
{
    TorchLibraryHandle definitions, kernels[2];
    const char *const keys[] = {"CPU", "CUDA"};
    snprintf(problem, sizeof problem, "torch refused to register the operators");
    if (fmm_torch.aoti_torch_library_init_def("fusedmm", __FILE__, __LINE__, &definitions))
        return false;
    for (int d = 0; d < 2; d++)
        if (fmm_torch.aoti_torch_library_init_impl("fusedmm", keys[d], __FILE__, __LINE__,
                                                   &kernels[d]))
            return false;
    for (int t = 0; t < OPERATORS; t++)
        for (const fmm_torch_operator *op = operators[t]; op->name; op++) {
            if (!op->schema) continue;
            if (fmm_torch.aoti_torch_library_def(definitions, op->schema)) return false;
            for (int d = 0; d < 2; d++)
                if (fmm_torch.torch_library_impl(kernels[d], op->name, op->kernel, BUILT_FOR))
                    return false;
        }
    return true;
}

const char *fmm_torch_register(void)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static bool tried, done;
    pthread_mutex_lock(&one_at_a_time);
    /* A torch that is not loaded yet may be loaded later. One that refused has some of the
     * operators already, so it is not asked again. */
    if (!tried && bind_shim()) {
        tried = true;
        done = register_operators();
    }
    const char *const answer = done ? NULL : problem;
    pthread_mutex_unlock(&one_at_a_time);
    return answer;
}

/* For hosts that only load the library (torch.ops.load_library, exported programs): registers when
 * torch is already there. Python calls fmm_torch_register itself and reports what is wrong. */
__attribute__((constructor)) static void register_on_load(void)
{
    if (dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) fmm_torch_register();
}
