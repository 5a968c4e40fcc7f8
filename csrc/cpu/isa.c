/* Which instruction sets this machine runs, and which of them `auto` takes.
 *
 *     cpuid, XCR0 -----> detected --\
 *     FMM_PANEL known -> compiled ---+--> usable ----> the best of them ----> `auto`
 *     FUSEDMM_ISA -------------------------------> cap --/
 *
 * A set counts when cpuid lists it and XCR0 says that the operating system saves its registers,
 * which it may have switched off. FUSEDMM_ISA=scalar|avx2|avx512|neon caps what `auto` takes: tests
 * and comparisons run a lesser set on a better machine; a set asked for by name is not capped. It
 * is read once, at the first `auto`. Any other word is an error, so that a misspelt set is not
 * ignored.
 *
 * Both answers stay in atomic variables. Threads that race compute the same answer, so no lock
 * is needed. */
#include "isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[FMM_ISAS] = {"scalar", "avx2", "avx512", "neon"};
enum { DETECTED = 1 << FMM_ISAS }; /* a bit beside those of the sets: the answer is there */

#ifdef __x86_64__
#include <cpuid.h>

/* _xgetbv needs a compiler flag that this file must not have. */
static uint64_t xgetbv(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* A bit for each set. The flags are those that the build compiles a set with. */
static unsigned detect(void)
{
    const unsigned found = 1u << FMM_SCALAR;
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
    return found | 1u << FMM_AVX2 | (wide ? 1u << FMM_AVX512 : 0);
}
#elif defined(__aarch64__)
/* NEON is a part of the base set. */
static unsigned detect(void) { return 1u << FMM_SCALAR | 1u << FMM_NEON; }
#else
static unsigned detect(void) { return 1u << FMM_SCALAR; }
#endif

#define X(room, isa, level) extern fmm_rows_copy *const fmm_indices_copy_##isa;
FMM_ISA_LIST(X, )
#undef X

/* NULL where the build or its compiler does not know the set. */
fmm_rows_copy *fmm_isa_copy(fmm_isa level)
{
    static fmm_rows_copy *const *const copies[FMM_ISAS] = {
#define X(room, isa, level) [level] = &fmm_indices_copy_##isa,
        FMM_ISA_LIST(X, )
#undef X
    };
    return copies[level] ? *copies[level] : NULL;
}

/* The machine has it and the compiler knew it. Found once; threads that race find the same. */
static bool usable(fmm_isa level)
{
    static _Atomic unsigned known;
    unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = detect() | DETECTED;
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return (found >> level & 1) && fmm_isa_copy(level) != NULL;
}

const char *fmm_isa_levels(void)
{
    static _Thread_local char list[64];
    list[0] = 0;
    for (fmm_isa level = FMM_SCALAR; level < FMM_ISAS; level++) {
        if (!usable(level)) continue;
        if (list[0]) strcat(list, ",");
        strcat(list, names[level]);
    }
    return list;
}

/* The best usable set within FUSEDMM_ISA, FMM_ISAS for a word that is none; a name of another
 * architecture leaves only scalar. */
static fmm_isa best_requested(void)
{
    const char *requested = getenv("FUSEDMM_ISA");
    if (requested && !*requested) requested = NULL;
    fmm_isa cap = requested ? FMM_ISAS : FMM_NEON;
    for (fmm_isa level = FMM_SCALAR; requested && level < FMM_ISAS; level++)
        if (!strcmp(requested, names[level])) cap = level;
    if (cap == FMM_ISAS) return FMM_ISAS;
    fmm_isa chosen = FMM_SCALAR;
    for (fmm_isa level = FMM_AVX2; level <= cap; level++)
        if (usable(level)) chosen = level;
    return requested && cap == FMM_NEON && chosen != FMM_NEON ? FMM_SCALAR : chosen;
}

/* Threads that race find the same. */
fmm_status fmm_isa_level(fmm_isa *level)
{
    static _Atomic int known; /* 1 + the set */
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = 1 + (int)best_requested();
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    *level = (fmm_isa)(found - 1);
    REQUIRE(found <= FMM_ISAS, FMM_UNSUPPORTED,
            "FUSEDMM_ISA must be scalar, avx2, avx512 or neon, or not set");
    return FMM_OK;
}

const fmm_algorithm *fmm_isa_best(const fmm_algorithm *table)
{
    fmm_isa level;
    return fmm_isa_level(&level) == FMM_OK ? &table[1 + level] : NULL;
}

/* The system is asked once. Where it does not know, 1 MiB is what most processors of today have at
 * least. Threads that ask at the same time store the same number. */
int64_t fmm_second_cache(void)
{
    static _Atomic int64_t known;
#ifdef _SC_LEVEL2_CACHE_SIZE
    if (!known) known = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return known > 0 ? known : 1 << 20;
}

bool fmm_isa_avx2(const fmm_call *call) { return (void)call, usable(FMM_AVX2); }
bool fmm_isa_avx512(const fmm_call *call) { return (void)call, usable(FMM_AVX512); }
bool fmm_isa_neon(const fmm_call *call) { return (void)call, usable(FMM_NEON); }
