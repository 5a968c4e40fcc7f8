/* SpMM over f16: cuda.cuh. A file per type, so that they compile side by side. */
#include "cuda.cuh"

extern "C" fmm_status fmm_spmm_segments_f16(const fmm_exec *exec, const fmm_call *call)
{
    return spmm_run<__half>(exec, call);
}
