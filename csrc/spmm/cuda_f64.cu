/* SpMM over f64: cuda.cuh. A file per type, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_spmm_segments_f64(const fmm_exec *exec, const fmm_call *call)
{
    return spmm_run<double>(exec, call);
}
