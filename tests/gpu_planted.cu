/* Kernels with one fault each, which compute-sanitizer's tools have to find: a gate that finds
 * nothing proves nothing. The first argument chooses the fault by the tool's name. */
#include <cstdio>
#include <cstring>

static __global__ void memcheck(float *out, int n) { out[n + threadIdx.x] = 1; }

static __global__ void racecheck(float *out)
{
    __shared__ float sums[64];
    sums[threadIdx.x] = float(threadIdx.x);
    out[threadIdx.x] = sums[63 - threadIdx.x]; /* no barrier between two warps */
}

static __global__ void initcheck(const float *never_written, float *out)
{
    out[threadIdx.x] = never_written[threadIdx.x];
}

static __global__ void synccheck(float *out)
{
    if (threadIdx.x < 40) __syncthreads(); /* within a warp, not by all */
    out[threadIdx.x] = 1;
}

int main(int count, char **arguments)
{
    const char *tool = count > 1 ? arguments[1] : "";
    float *in, *out;
    if (cudaMalloc(&in, 64 * sizeof *in) || cudaMalloc(&out, 64 * sizeof *out)) return 2;
    if (!strcmp(tool, "memcheck"))
        memcheck<<<1, 64>>>(out, 64);
    else if (!strcmp(tool, "racecheck"))
        racecheck<<<1, 64>>>(out);
    else if (!strcmp(tool, "initcheck"))
        initcheck<<<1, 64>>>(in, out);
    else if (!strcmp(tool, "synccheck"))
        synccheck<<<1, 64>>>(out);
    else
        return fprintf(stderr, "name a tool\n"), 2;
    cudaDeviceSynchronize();
    return 0;
}
