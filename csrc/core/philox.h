/* Philox4x32-10 (Salmon et al., SC 2011): the counter-based generator that decides what dropout
 * keeps.
 *
 * A mask is a function of (seed, edge, head) alone, so it is never stored: every pass, on the CPU
 * and on CUDA, computes the same one again. Plain integer arithmetic, for C and CUDA. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define FMM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FMM_HOST_DEVICE inline
#endif

typedef struct fmm_philox_block {
    uint32_t word[4];
} fmm_philox_block;

/* One round: two words are multiplied to 64 bits. The upper halves are mixed with the other two
 * words and with the key, and all four change places. */
static FMM_HOST_DEVICE fmm_philox_block fmm_philox_round(fmm_philox_block c, uint32_t k0,
                                                         uint32_t k1)
{
    const uint64_t p0 = (uint64_t)0xD2511F53u * c.word[0], p1 = (uint64_t)0xCD9E8D57u * c.word[2];
    const fmm_philox_block next = {{(uint32_t)(p1 >> 32) ^ c.word[1] ^ k0, (uint32_t)p1,
                                    (uint32_t)(p0 >> 32) ^ c.word[3] ^ k1, (uint32_t)p0}};
    return next;
}

/* The block with key (seed low, high) and counter (edge low, edge high, group, 0). The rounds are
 * written out: a loop over edges then has no loop inside and becomes vectors. */
static FMM_HOST_DEVICE fmm_philox_block fmm_philox(uint64_t seed, uint64_t edge, uint32_t group)
{
    const uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    fmm_philox_block c = {{(uint32_t)edge, (uint32_t)(edge >> 32), group, 0}};
#define FMM_ROUND(n) c = fmm_philox_round(c, k0 + 0x9E3779B9u * n##u, k1 + 0xBB67AE85u * n##u)
    FMM_ROUND(0);
    FMM_ROUND(1);
    FMM_ROUND(2);
    FMM_ROUND(3);
    FMM_ROUND(4);
    FMM_ROUND(5);
    FMM_ROUND(6);
    FMM_ROUND(7);
    FMM_ROUND(8);
    FMM_ROUND(9);
#undef FMM_ROUND
    return c;
}

/* Dropout keeps a word that is at least this number. The share `dropout` of all words is below. */
static FMM_HOST_DEVICE uint64_t fmm_philox_limit(double dropout)
{
    const double limit = dropout * 4294967296.0;
    const uint64_t floor = (uint64_t)limit;
    return floor + ((double)floor < limit);
}

/* Whether dropout keeps head h of an edge. A block decides for four heads. */
static FMM_HOST_DEVICE int fmm_philox_keeps(uint64_t seed, int64_t edge, int64_t h, uint64_t limit)
{
    const fmm_philox_block block = fmm_philox(seed, (uint64_t)edge, (uint32_t)(h / 4));
    return block.word[h % 4] >= limit;
}
