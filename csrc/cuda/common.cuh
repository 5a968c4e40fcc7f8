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
