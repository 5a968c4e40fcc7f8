/* What every CUDA file stands on: elements, entries with their values, and launches.
 *
 *     elements.cuh   the four types, what they are summed in, how they move
 *     edges.cuh      the matrix and the values of its entries
 *     launch.cuh     threads, blocks, devices and streams
 */
#pragma once

#include "edges.cuh"
#include "elements.cuh"
#include "launch.cuh"

/* Runs launch(T()) with the operands' device current, for the type T that their dtype stands for.
 */
template <class Launch>
static fmm_status on_device_as(const char *op, const fmm_exec *exec, fmm_dtype dtype, Launch launch)
{
    return on_device(op, exec, [&] { for_dtype(dtype, launch); });
}
