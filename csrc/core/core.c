/* Error texts, dtype facts, threads and the registry of algorithms. */
#include "checks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* The thread's error, which the next failure overwrites. What calls a function of somebody else's,
 * such as a plug-in's, empties it before, to learn whether that function said why it failed. */
static _Thread_local char message[256];

const char *fmm_last_error(void) { return message; }

fmm_status fmm_fail(fmm_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define X(id, name, bytes) [id] = {name, bytes},
    FMM_DTYPE_LIST(X)
#undef X
};

size_t fmm_dtype_bytes(fmm_dtype dtype) { return dtypes[dtype].bytes; }

const char *fmm_dtype_name(fmm_dtype dtype) { return dtypes[dtype].name; }

void fmm_parallel(const fmm_exec *exec, int64_t count, fmm_range *body, void *ctx)
{
    if (count <= 0) return;
    if (exec->parallel_for && count > 1)
        exec->parallel_for(count, body, ctx);
    else
        body(0, count, ctx);
}

/* ---- registry: the built-in tables first, then what callers registered, in order ---- */

enum { USERS_MAX = 256, USER_NUMBERS = 1000 };

/* The list of operators is read three times: for their names, for what their rooms define, and for
 * the tables by number and device. */
static const char *const operators[FMM_OPERATORS] = {
#define OPERATOR(name, number) [number] = #name,
#include "operators.def"
};
#define OPERATOR(name, number) extern const fmm_registry fmm_##name##_cpu, fmm_##name##_cuda;
#include "operators.def"
static const fmm_registry *const registries[FMM_OPERATORS][2] = {
#define OPERATOR(name, number) [number] = {&fmm_##name##_cpu, &fmm_##name##_cuda},
#include "operators.def"
};
static const char *const devices[] = {"cpu", "cuda"};

const char *fmm_operator_name(int k) { return (unsigned)k < FMM_OPERATORS ? operators[k] : NULL; }

/* A slot is published by its pointer, so readers need no lock: they stop at the first slot that is
 * still empty. Writers take one, so that a name is searched for and entered at once. */
static struct {
    int claimed;
    _Atomic(const fmm_algorithm *) slot[USERS_MAX];
} users[FMM_OPERATORS][2];
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

/* Entry k: those of the room's table that have not been removed, then the callers' own. k counts
 * down past the first, so that what is left of it is a slot of the others. */
const fmm_algorithm *fmm_algorithms(fmm_operator op, fmm_device device, int k)
{
    if ((unsigned)op >= FMM_OPERATORS || (unsigned)device > FMM_CUDA || k < 0) return NULL;
    for (const fmm_algorithm *a = registries[op][device]->builtin; a && a->name; a++)
        if (a->run && k-- == 0) return a;
    return k < USERS_MAX ? atomic_load(&users[op][device].slot[k]) : NULL;
}

/* Whether the number is that of an algorithm that was removed: its line has no `run`. */
static bool is_reserved(fmm_operator op, fmm_device device, int number)
{
    const fmm_algorithm *a = registries[op][device]->builtin;
    while (a && a->name && (a->run || a->number != number)) a++;
    return a && a->name;
}

/* Enters an algorithm under a number of its own. The lock is held, and the slot comes last: who
 * lists algorithms meanwhile sees it complete or not at all. */
static fmm_status enter(fmm_operator op, fmm_device device, fmm_algorithm *algorithm)
{
    const fmm_algorithm *known;
    for (int k = 0; (known = fmm_algorithms(op, device, k)); k++)
        VALID(strcmp(known->name, algorithm->name) != 0,
              "fmm_register: %s on %s already has an algorithm %s", operators[op], devices[device],
              algorithm->name);
    const int slot = users[op][device].claimed;
    REQUIRE(slot < USERS_MAX, FMM_OUT_OF_MEMORY, "fmm_register: more than %d algorithms",
            USERS_MAX);
    users[op][device].claimed++;
    algorithm->number = USER_NUMBERS + slot;
    atomic_store(&users[op][device].slot[slot], algorithm);
    return FMM_OK;
}

fmm_status fmm_register(fmm_operator op, fmm_device device, fmm_algorithm *algorithm)
{
    VALID((unsigned)op < FMM_OPERATORS && (unsigned)device <= FMM_CUDA,
          "fmm_register: no operator %d on device %d", (int)op, (int)device);
    VALID(algorithm && algorithm->name && algorithm->run,
          "fmm_register: an algorithm needs a name and a run function");
    pthread_mutex_lock(&registering);
    const fmm_status status = enter(op, device, algorithm);
    pthread_mutex_unlock(&registering);
    return status;
}

/* fmm_fail for plug-ins, whose texts are never formats. */
static fmm_status fail_with(fmm_status status, const char *text)
{
    return fmm_fail(status, "%s", text);
}

const fmm_host *fmm_plugin_host(void)
{
    static const fmm_host host = {.add = fmm_register, .fail = fail_with};
    message[0] = 0; /* a message after the plug-in's refusal is then its own */
    return &host;
}

/* An algorithm may be a plug-in's, which may fail without a message. */
static fmm_status run(const fmm_algorithm *algorithm, const fmm_exec *exec, const fmm_call *call)
{
    message[0] = 0;
    const fmm_status status = algorithm->run(exec, call);
    if (status == FMM_OK) return FMM_OK;
    REQUIRE((unsigned)status <= FMM_DEVICE_ERROR, FMM_UNSUPPORTED,
            "algorithm %s failed with status %d, which means nothing", algorithm->name,
            (int)status);
    REQUIRE(message[0], status, "algorithm %s failed without saying why", algorithm->name);
    return status;
}

fmm_status fmm_algorithm_find(fmm_operator op, fmm_device device, int number, const fmm_call *call,
                              const fmm_algorithm **found)
{
    const fmm_algorithm *a = NULL;
    if (number == 0 || is_reserved(op, device, number)) {
        message[0] = 0;
        const fmm_registry *registry = registries[op][device];
        a = registry->choose ? registry->choose(call) : NULL;
        if (!a && message[0]) return FMM_UNSUPPORTED; /* it said why */
        REQUIRE(a, FMM_UNSUPPORTED, "%s: no algorithm on %s for this call", operators[op],
                devices[device]);
    } else {
        for (int k = 0; (a = fmm_algorithms(op, device, k)) && a->number != number; k++) continue;
        VALID(a || number < USER_NUMBERS,
              "%s has no algorithm number %d on %s: numbers from %d on are those of plug-ins, "
              "which must be loaded first",
              operators[op], number, devices[device], USER_NUMBERS);
        VALID(a, "%s has no algorithm number %d on %s", operators[op], number, devices[device]);
        REQUIRE(!a->supports || a->supports(call), FMM_UNSUPPORTED,
                "%s: algorithm %s does not support this call (dtype, shape, reduction or machine)",
                operators[op], a->name);
    }
    *found = a;
    return FMM_OK;
}

static size_t bytes_of(const fmm_algorithm *algorithm, const fmm_call *call)
{
    return algorithm->workspace ? algorithm->workspace(call) : 0;
}

fmm_status fmm_workspace(fmm_operator op, const fmm_exec *exec, int number, const fmm_call *call,
                         size_t *bytes)
{
    const fmm_algorithm *found;
    TRY(fmm_algorithm_find(op, exec->device, number, call, &found));
    *bytes = bytes_of(found, call);
    return FMM_OK;
}

fmm_status fmm_run(fmm_operator op, const fmm_exec *exec, int number, const fmm_call *call,
                   bool empty)
{
    const fmm_algorithm *found;
    TRY(fmm_algorithm_find(op, exec->device, number, call, &found));
    const size_t bytes = bytes_of(found, call);
    /* The algorithm's own view of where it runs: its workspace is here, given or asked for. */
    fmm_exec inner = *exec;
    inner.allocate = NULL; /* operators that the algorithm calls get parts of this workspace */
    if (exec->allocate && bytes) {
        message[0] = 0;
        const fmm_status status = exec->allocate(exec->owner, bytes, &inner.workspace);
        REQUIRE(status == FMM_OK || message[0], status, "%s: no workspace of %zu bytes",
                operators[op], bytes);
        TRY(status);
        inner.workspace_bytes = bytes;
    }
    TRY(fmm_check_workspace(operators[op], &inner, bytes));
    return empty ? FMM_OK : run(found, &inner, call);
}

#ifndef FMM_CC
#define FMM_CC "unknown"
#endif

const char *fmm_build_info(void)
{
    static _Thread_local char info[1024];
    snprintf(info, sizeof info,
             "{\"version\": \"%s\", \"compiler\": \"%s\", \"isa\": \"%s\", \"cuda\": %s}",
             FMM_VERSION, FMM_CC, fmm_isa_levels(), fmm_cuda_info());
    return info;
}
