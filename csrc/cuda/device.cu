/* See device.h. A table has a place for every device. It is 0 until the first call has asked, since
 * an answer is never 0. Threads that ask at once find the same number, so no lock is needed. */
#include "device.h"

/* Devices with higher numbers are asked at each call. */
enum { DEVICES = 64 };

/* An attribute of a device. `known` has a place for each listed device, and 0 for those that were
 * not asked yet; each attribute has such an array of its own. */
static int ask(int device, cudaDeviceAttr attribute, int *known)
{
    const bool listed = device >= 0 && device < DEVICES;
    int count = listed ? __atomic_load_n(&known[device], __ATOMIC_RELAXED) : 0;
    if (count) return count;
    /* A device that does not answer counts as small: grids are then slow, but right. The error is
     * taken off, so that no later launch reports it as its own. */
    if (cudaDeviceGetAttribute(&count, attribute, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return 1;
    }
    if (listed) __atomic_store_n(&known[device], count, __ATOMIC_RELAXED);
    return count;
}

extern "C" int fmm_cuda_processors(int device)
{
    static int known[DEVICES];
    return ask(device, cudaDevAttrMultiProcessorCount, known);
}

extern "C" int fmm_cuda_second_cache(int device)
{
    static int known[DEVICES];
    return ask(device, cudaDevAttrL2CacheSize, known);
}
