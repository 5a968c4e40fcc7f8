/* Picking rows on CUDA (pick.c). A group of lanes owns a row and copies it by words of up to 16
 * bytes, since the kernel is bound by memory and wide words keep more of it on the way. It has
 * AT_ONCE rows on the way at a time, whose numbers it reads first, as every row waits for its
 * number:
 *
 *     group 0     row 0, row groups, row 2 * groups, ...       one lane per word, up to a warp
 *     group 1     row 1, row groups + 1, ...
 *
 * Every word has one owner, and nothing is added: bits arrive as they are. */
#include "../cuda/common.cuh"
#include "pick.h"

enum { AT_ONCE = 4 };

/* Numbers are int32 or int64. A number that is no row, as a forged one, brings zeros: nothing is
 * read outside x. */
template <class WORD, class INDEX>
static __global__ void __launch_bounds__(BLOCK) pick(const fmm_pick_call c, int log_lanes)
{
    const int lanes = 1 << log_lanes;
    const int64_t groups = all_threads() >> log_lanes, words = c.bytes / (int64_t)sizeof(WORD);
    const int lane = (int)threadIdx.x & (lanes - 1);
    for (int64_t k = this_thread() >> log_lanes; k < c.count; k += groups * AT_ONCE) {
        const WORD *row[AT_ONCE];
        UNROLLED(u, AT_ONCE) {
            const int64_t at = k + u * groups;
            const int64_t i = at < c.count ? __ldg(static_cast<const INDEX *>(c.from) + at) : -1;
            const bool inside = uint64_t(i) < uint64_t(c.rows);
            row[u] = inside ? reinterpret_cast<const WORD *>(c.x + i * c.stride) : nullptr;
        }
        /* All loads of a word's column are asked for before the first of them is stored. */
        for (int64_t w = lane; w < words; w += lanes) {
            WORD word[AT_ONCE];
            UNROLLED(u, AT_ONCE) word[u] = row[u] ? row[u][w] : WORD{};
            UNROLLED(u, AT_ONCE) {
                const int64_t at = k + u * groups;
                if (at < c.count) reinterpret_cast<WORD *>(c.y + at * c.apart)[w] = word[u];
            }
        }
    }
}

/* As many lanes for a row as it has words, up to a warp. */
template <class WORD> static void launch(const fmm_exec *exec, const fmm_pick_call *c)
{
    const int64_t words = c->bytes / (int64_t)sizeof(WORD);
    int log_lanes = 0;
    while (1 << log_lanes < smaller(words, WARP)) log_lanes++;
    const unsigned blocks = blocks_for(ceil_div(c->count, AT_ONCE) << log_lanes);
    const auto kernel = c->wide ? pick<WORD, int64_t> : pick<WORD, int32_t>;
    kernel<<<blocks, BLOCK, 0, stream_of(exec)>>>(*c, log_lanes);
}

/* Words are the largest that every row of x and of y begins at a multiple of. */
extern "C" fmm_status fmm_pick_cuda(const fmm_exec *exec, const fmm_pick_call *call)
{
    int before;
    TRY(cuda_enter("pick", exec, &before));
    const uint64_t all = uint64_t(call->x) | uint64_t(call->y) | uint64_t(call->bytes) |
                         uint64_t(call->stride) | uint64_t(call->apart);
    if (all % sizeof(uint4) == 0)
        launch<uint4>(exec, call);
    else if (all % sizeof(uint2) == 0)
        launch<uint2>(exec, call);
    else if (all % sizeof(uint32_t) == 0)
        launch<uint32_t>(exec, call);
    else
        launch<unsigned char>(exec, call);
    return cuda_leave("pick", exec, before);
}
