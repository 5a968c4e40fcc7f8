/* The algorithms of attention on CUDA, and which one number 0 stands for. There is no vendor's,
 * since neither cuSPARSE nor cuBLAS has a softmax over the entries of a row. */
#include "cuda.h"

FMM_CUDA_RUN(fmm_attention_segments, &fmm_attention_of(call)->q)

static const fmm_algorithm algorithms[] = {
    {1, "reference", "one thread per output element, each with its own logits", "the definition",
     true, NULL, NULL, fmm_attention_reference_cuda},
    {2, "segments",
     .about =
         "rows by falling length, long ones in pieces; a group of lanes gathers all heads of a "
         "row, logits stay in registers",
     "this project; online softmax (Milakov and Gimelshein 2018), backward from the "
     "log-sum-exp as in FlashAttention (Dao et al. 2022)",
     true, fmm_attention_segments_supports, fmm_attention_segments_workspace,
     fmm_attention_segments},
    {0},
};

/* Number 0 stands for `segments` wherever it can take the call. Wider heads than a warp's registers
 * hold are left to `reference`, which has no such limit but computes the logits of a row anew for
 * each channel. */
static const fmm_algorithm *choose(const fmm_call *call)
{
    return fmm_attention_segments_supports(call) ? &algorithms[1] : &algorithms[0];
}

const fmm_registry fmm_attention_cuda = {algorithms, choose};
