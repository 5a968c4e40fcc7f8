/* Bytes of a fuzzer as numbers, and memory in which a step outside is seen.
 *
 * An array lies in a slot of its own between two pages that may not be touched, against the one at
 * its end or at its beginning; AddressSanitizer is told that the rest of the slot is nobody's. So
 * vector loads under a mask, which it does not watch, are caught by the pages. */
#ifndef FMM_FUZZ_INPUT_H
#define FMM_FUZZ_INPUT_H

#define _GNU_SOURCE
#include "fusedmm.h"

#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct input {
    const uint8_t *bytes;
    size_t left;
    uint64_t state; /* of what fills arrays */
} input;

/* The next byte, 0 past the end. */
static inline int byte(input *in)
{
    if (!in->left) return 0;
    in->left--;
    return *in->bytes++;
}

static inline int below(input *in, int n) { return byte(in) % n; }
static inline bool rarely(input *in) { return byte(in) >= 250; }

static inline uint64_t noise(input *in)
{
    in->state ^= in->state << 13;
    in->state ^= in->state >> 7;
    in->state ^= in->state << 17;
    return in->state;
}

/* A number that a caller may hold by mistake, near `good` or far from it. */
static inline int64_t hostile(input *in, int64_t good)
{
    switch (below(in, 10)) {
    case 0:
        return INT64_MAX;
    case 1:
        return INT64_MIN;
    case 2:
        return INT32_MAX;
    case 3:
        return INT32_MIN;
    case 4:
        return -1;
    case 5:
        return (int64_t)((uint64_t)good + 1);
    case 6:
        return (int64_t)((uint64_t)good - 1);
    case 7:
        return INT64_MAX / 8 - byte(in);
    case 8:
        return (int64_t)1 << below(in, 63);
    default:
        return (int8_t)byte(in);
    }
}

enum { SLOT_BYTES = 1 << 16, SLOTS = 32, SLOT_PAGE = 4096 };
static char *slots;
static int slots_used;

static inline void release_slots(void)
{
    slots_used = 0;
    if (slots) return;
    const size_t each = SLOT_BYTES + SLOT_PAGE;
    slots = mmap(NULL, SLOTS * each + SLOT_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED) abort();
    for (int k = 0; k < SLOTS; k++)
        if (mprotect(slots + SLOT_PAGE + (size_t)k * each, SLOT_BYTES, PROT_READ | PROT_WRITE))
            abort();
}

/* `bytes` of noise; align is a power of two. */
static inline void *array(input *in, size_t bytes, size_t align)
{
    if (bytes > SLOT_BYTES || slots_used == SLOTS) abort();
    char *slot = slots + SLOT_PAGE + (size_t)slots_used++ * (SLOT_BYTES + SLOT_PAGE);
    const bool at_end = byte(in) & 1;
    char *data = slot + (at_end ? (SLOT_BYTES - bytes) & ~(align - 1) : 0);
    __asan_unpoison_memory_region(slot, SLOT_BYTES);
    for (size_t k = 0; k < bytes; k += 8) {
        const uint64_t word = noise(in);
        memcpy(data + k, &word, bytes - k < 8 ? bytes - k : 8);
    }
    __asan_poison_memory_region(slot, (size_t)(data - slot));
    __asan_poison_memory_region(data + bytes, (size_t)(slot + SLOT_BYTES - data) - bytes);
    return data;
}

#endif
