/* Where a call's workspace comes from: the caller gives it, or is asked for it once, by allocate.
 */
#include "test.h"

enum { NEEDED = 1000 };
static int asked, counted, ran;
static size_t wanted;
static _Alignas(16) char memory[NEEDED];

static fmm_status give(void *owner, size_t bytes, void **workspace)
{
    asked++;
    wanted = bytes;
    *workspace = owner;
    return owner ? FMM_OK : FMM_OUT_OF_MEMORY;
}

static size_t count(const fmm_call *call)
{
    (void)call;
    counted++;
    return NEEDED;
}

static fmm_status run(const fmm_exec *exec, const fmm_call *call)
{
    (void)call;
    ran++;
    const bool has = exec->workspace == memory && exec->workspace_bytes == NEEDED;
    return has && !exec->allocate ? FMM_OK : FMM_DEVICE_ERROR;
}

int main(void)
{
    static fmm_algorithm mine = {.name = "needs_memory", .workspace = count, .run = run};
    CHECK(fmm_register(FMM_SPMM, FMM_CPU, &mine) == FMM_OK, "%s", fmm_last_error());
    const int64_t ptr[] = {0, 0};
    const fmm_csr a = {.rows = 1, .cols = 1, .ptr = ptr};
    const fmm_dense x = view(FMM_F32, 1, 1, 1, 0, AT_END), y = view(FMM_F32, 1, 1, 1, 0, AT_END);
    fmm_exec exec = {.allocate = give, .owner = memory};
    fmm_status status = fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, mine.number);
    CHECK(status == FMM_OK && asked == 1 && wanted == NEEDED && counted == 1 && ran == 1,
          "asked %d times for %zu, counted %d, ran %d: %s", asked, wanted, counted, ran,
          fmm_last_error());

    exec.owner = NULL;
    status = fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, mine.number);
    CHECK(status == FMM_OUT_OF_MEMORY && ran == 1 && strstr(fmm_last_error(), "1000 bytes"),
          "status %d, ran %d: %s", (int)status, ran, fmm_last_error());

    exec = (fmm_exec){.workspace = memory, .workspace_bytes = NEEDED - 1};
    status = fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, mine.number);
    CHECK(status == FMM_INVALID_ARGUMENT && ran == 1, "status %d, ran %d", (int)status, ran);
    exec.workspace_bytes = NEEDED;
    status = fmm_spmm(&exec, &a, NULL, &x, &y, FMM_SUM, mine.number);
    CHECK(status == FMM_OK && ran == 2, "%s", fmm_last_error());
    release_all();
    return finish();
}
