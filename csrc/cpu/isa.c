/* Which instruction sets this machine runs, and the CPU's algorithms.
 *
 * A set counts when cpuid lists it and XCR0 says that the system saves its registers (a kernel may
 * keep them off). FUSEDMM_ISA=scalar|avx2|avx512|neon caps what `auto` takes: tests and comparisons
 * run a lesser set on a better machine; a set asked for by name is not capped. It is read once, at
 * the first `auto`; any other word is an error, and not a wish that nobody heard. */
#include "rows.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum isa { SCALAR, AVX2, AVX512, NEON, ISAS } isa;
static const char *const names[ISAS] = {"scalar", "avx2", "avx512", "neon"};
enum { DETECTED = 1 << ISAS }; /* a bit beside those of the sets: the answer is there */

#ifdef __x86_64__
#include <cpuid.h>

/* _xgetbv needs a compiler flag that this file must not have. */
static uint64_t xgetbv(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static unsigned detect(void)
{
    const unsigned found = 1u << SCALAR;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
    const uint32_t fma_osxsave_avx_f16c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    if ((ecx & fma_osxsave_avx_f16c) != fma_osxsave_avx_f16c) return found;
    const uint64_t saved = xgetbv(), sse_avx = 0x6, masks_zmm = 0xe0;
    if ((saved & sse_avx) != sse_avx) return found;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return found;
    const uint32_t avx2_bmi2 = 1u << 5 | 1u << 8;
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((ebx & avx2_bmi2) != avx2_bmi2) return found;
    const bool wide = (ebx & f_dq_bw_vl) == f_dq_bw_vl && (saved & masks_zmm) == masks_zmm;
    return found | 1u << AVX2 | (wide ? 1u << AVX512 : 0);
}
#elif defined(__aarch64__)
static unsigned detect(void) { return 1u << SCALAR | 1u << NEON; } /* part of the base set */
#else
static unsigned detect(void) { return 1u << SCALAR; }
#endif

static const fmm_cpu_isa kernels[ISAS] = {
#define X(isa)                                                                                     \
    {.of = {[FMM_F32] = &fmm_##isa##_f32,                                                          \
            [FMM_F64] = &fmm_##isa##_f64,                                                          \
            [FMM_F16] = &fmm_##isa##_f16,                                                          \
            [FMM_BF16] = &fmm_##isa##_bf16}},
    FMM_ISA_LIST(X)
#undef X
};

/* The machine has it and the compiler knew it. Found once; threads that race find the same. */
static bool usable(isa level)
{
    static _Atomic unsigned known;
    unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = detect() | DETECTED;
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return (found >> level & 1) && kernels[level].of[FMM_F32]->spmm;
}

const char *fmm_isa_levels(void)
{
    static _Thread_local char list[64];
    list[0] = 0;
    for (isa level = SCALAR; level < ISAS; level++) {
        if (!usable(level)) continue;
        if (list[0]) strcat(list, ",");
        strcat(list, names[level]);
    }
    return list;
}

/* The best usable set within FUSEDMM_ISA, ISAS for a word that is none; a name of another
 * architecture leaves only scalar. */
static isa within_wish(void)
{
    const char *wish = getenv("FUSEDMM_ISA");
    if (wish && !*wish) wish = NULL;
    isa cap = wish ? ISAS : NEON;
    for (isa level = SCALAR; wish && level < ISAS; level++)
        if (!strcmp(wish, names[level])) cap = level;
    if (cap == ISAS) return ISAS;
    isa chosen = SCALAR;
    for (isa level = AVX2; level <= cap; level++)
        if (usable(level)) chosen = level;
    return wish && cap == NEON && chosen != NEON ? SCALAR : chosen;
}

/* Entry k of the tables below is reference, then the sets in the order of `isa`. Threads that race
 * find the same. */
static const fmm_algorithm *best(const fmm_algorithm *table)
{
    static _Atomic int known; /* 1 + the set */
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = 1 + (int)within_wish();
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    if (found <= ISAS) return &table[found];
    fmm_fail(FMM_UNSUPPORTED, "FUSEDMM_ISA must be scalar, avx2, avx512 or neon, or not set");
    return NULL;
}

/* ---- the algorithms; kernels take any dtype, shape and stride, only the machine limits them ----
 */

static bool has_avx2(const fmm_call *call) { return (void)call, usable(AVX2); }
static bool has_avx512(const fmm_call *call) { return (void)call, usable(AVX512); }
static bool has_neon(const fmm_call *call) { return (void)call, usable(NEON); }

static void spmm_range(int64_t first, int64_t last, void *call)
{
    fmm_reference_spmm(call, first, last);
}

static fmm_status spmm_reference(const fmm_exec *exec, const fmm_call *call)
{
    fmm_call copy = *call;
    fmm_parallel(exec, call->a->rows, spmm_range, &copy);
    return FMM_OK;
}

static fmm_status spmm_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_spmm(exec, call, &kernels[SCALAR]);
}

static fmm_status spmm_avx2(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_spmm(exec, call, &kernels[AVX2]);
}

static fmm_status spmm_avx512(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_spmm(exec, call, &kernels[AVX512]);
}

static fmm_status spmm_neon(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_spmm(exec, call, &kernels[NEON]);
}

static fmm_status sddmm_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_sddmm(exec, call, &kernels[SCALAR]);
}

static fmm_status sddmm_avx2(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_sddmm(exec, call, &kernels[AVX2]);
}

static fmm_status sddmm_avx512(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_sddmm(exec, call, &kernels[AVX512]);
}

static fmm_status sddmm_neon(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_sddmm(exec, call, &kernels[NEON]);
}

static fmm_status attention_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_attention(exec, call, &kernels[SCALAR]);
}

static fmm_status attention_avx2(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_attention(exec, call, &kernels[AVX2]);
}

static fmm_status attention_avx512(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_attention(exec, call, &kernels[AVX512]);
}

static fmm_status attention_neon(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_attention(exec, call, &kernels[NEON]);
}

static fmm_status fused_scalar(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_fused(exec, call, &kernels[SCALAR]);
}

static fmm_status fused_avx2(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_fused(exec, call, &kernels[AVX2]);
}

static fmm_status fused_avx512(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_fused(exec, call, &kernels[AVX512]);
}

static fmm_status fused_neon(const fmm_exec *exec, const fmm_call *call)
{
    return fmm_rows_fused(exec, call, &kernels[NEON]);
}

#define OWN "fusedmm"
#define FUSEDMM "this project; the five steps of FusedMM (Rahman et al. 2021)"
static const fmm_algorithm spmm[] = {
    {1, "reference", "plain loops in double: the specification", OWN, true, NULL, NULL,
     spmm_reference},
    {2, "rows:scalar", "rows in registers, plain C", OWN, true, NULL, fmm_rows_workspace,
     spmm_scalar},
    {3, "rows:avx2", "rows in registers, AVX2 + FMA", OWN, true, has_avx2, fmm_rows_workspace,
     spmm_avx2},
    {4, "rows:avx512", "rows in registers, AVX-512", OWN, true, has_avx512, fmm_rows_workspace,
     spmm_avx512},
    {5, "rows:neon", "rows in registers, NEON", OWN, true, has_neon, fmm_rows_workspace, spmm_neon},
    {0},
};
static const fmm_algorithm sddmm[] = {
    {1, "reference", "plain loops in double: the specification", OWN, true, NULL, NULL,
     fmm_sddmm_reference},
    {2, "rows:scalar", "four entries of a row at a time, plain C", OWN, true, NULL,
     fmm_rows_workspace, sddmm_scalar},
    {3, "rows:avx2", "four entries of a row at a time, AVX2 + FMA", OWN, true, has_avx2,
     fmm_rows_workspace, sddmm_avx2},
    {4, "rows:avx512", "four entries of a row at a time, AVX-512", OWN, true, has_avx512,
     fmm_rows_workspace, sddmm_avx512},
    {5, "rows:neon", "four entries of a row at a time, NEON", OWN, true, has_neon,
     fmm_rows_workspace, sddmm_neon},
    {0},
};

static const fmm_algorithm attention[] = {
    {1, "reference", "plain loops in double: the specification", OWN, true, NULL, NULL,
     fmm_attention_reference},
    {2, "rows:scalar", "online softmax over blocks of a row, plain C", OWN, true, NULL,
     fmm_attention_workspace, attention_scalar},
    {3, "rows:avx2", "online softmax over blocks of a row, AVX2 + FMA", OWN, true, has_avx2,
     fmm_attention_workspace, attention_avx2},
    {4, "rows:avx512", "online softmax over blocks of a row, AVX-512", OWN, true, has_avx512,
     fmm_attention_workspace, attention_avx512},
    {5, "rows:neon", "online softmax over blocks of a row, NEON", OWN, true, has_neon,
     fmm_attention_workspace, attention_neon},
    {0},
};

static const fmm_algorithm fused[] = {
    {1, "reference", "plain loops in double: the specification", OWN, true, NULL, NULL,
     fmm_fused_reference},
    {2, "rows:scalar", "tiles of entries, plain C", FUSEDMM, true, NULL, fmm_rows_workspace,
     fused_scalar},
    {3, "rows:avx2", "tiles of entries, AVX2 + FMA", FUSEDMM, true, has_avx2, fmm_rows_workspace,
     fused_avx2},
    {4, "rows:avx512", "tiles of entries, AVX-512", FUSEDMM, true, has_avx512, fmm_rows_workspace,
     fused_avx512},
    {5, "rows:neon", "tiles of entries, NEON", FUSEDMM, true, has_neon, fmm_rows_workspace,
     fused_neon},
    {6, "back_to_back", "sddmm, the edge function, spmm: scores in memory", OWN, true,
     fmm_back_to_back_supports, fmm_back_to_back_workspace, fmm_back_to_back},
    {0},
};

static const fmm_algorithm *choose_spmm(const fmm_call *call)
{
    (void)call;
    return best(spmm);
}

static const fmm_algorithm *choose_sddmm(const fmm_call *call)
{
    (void)call;
    return best(sddmm);
}

static const fmm_algorithm *choose_attention(const fmm_call *call)
{
    (void)call;
    return best(attention);
}

const fmm_registry fmm_spmm_cpu = {spmm, choose_spmm}, fmm_sddmm_cpu = {sddmm, choose_sddmm};
const fmm_registry fmm_attention_cpu = {attention, choose_attention};

static const fmm_algorithm *choose_fused(const fmm_call *call)
{
    (void)call;
    return best(fused);
}

const fmm_registry fmm_fused_cpu = {fused, choose_fused};
