/* SpMM `segments`: y[i,h,:] = reduce_p val[eid[p],h] * x[idx[p],h,:], for one element type T.
 *
 * The plan (segments.cuh) deals out items: a piece of a long row, or a bundle of short ones. An
 * item and a head go to a group of LANES lanes, which reads idx and val of CHUNK entries at once,
 * one chunk ahead, hands them round by shuffles, and gathers FLY rows of x at a time, VEC elements
 * (16 bytes, if x lies so) a lane and load, PER loads a row; the sums stay in registers. Groups of
 * one item, different in head, are neighbours in a warp, so their loads fall together. gridDim.y
 * walks over tiles of columns.
 *
 * A whole row is written once, straight to y; empty rows are dealt out evenly and written while the
 * first loads are under way. A piece goes to its own slot of the workspace, and a second kernel
 * adds the slots of each long row. Every sum has one owner and an order that depends on the matrix
 * alone: the same bits every time. No accumulator adds more than 512 terms, here or there.
 * Gathering takes the time; what helps is loads in flight and rows of one length together. */
#ifndef FMM_CUDA_SPMM_CUH
#define FMM_CUDA_SPMM_CUH

#include "segments.cuh"

#include <type_traits>

template <class T> struct spmm_args {
    csr_view a;
    edge_view val;
    plan_view plan;
    const T *x;
    T *y;
    typename sum_of<T>::type *partial; /* [segments][heads][width], width: feat in whole vectors */
    int64_t x_head, y_row, y_head, feat, width;
    uint64_t per_head;    /* 2^64 / heads, rounded up */
    uint32_t x_row;       /* in bytes */
    int32_t heads, shift; /* bundles of at most 2^shift rows */
    int32_t head_feat;    /* of HEADS */
    uint32_t val_row;     /* of HEADS, in bytes */
    int reduce;
};

/* Lines of -infinity in each type. */
template <class T> struct least_of;
#define LEAST_OF(T, ...)                                                                           \
    static __device__ const uint4 least_##T = {__VA_ARGS__};                                       \
    template <> struct least_of<T> {                                                               \
        static __device__ __forceinline__ const uint4 *line(void) { return &least_##T; }           \
    };
LEAST_OF(float, 0xff800000, 0xff800000, 0xff800000, 0xff800000)
LEAST_OF(double, 0, 0xfff00000, 0, 0xfff00000)
LEAST_OF(__half, 0xfc00fc00, 0xfc00fc00, 0xfc00fc00, 0xfc00fc00)
LEAST_OF(__nv_bfloat16, 0xff80ff80, 0xff80ff80, 0xff80ff80, 0xff80ff80)
#undef LEAST_OF

/* How terms meet. max and min are one: a minimum is the maximum of negated terms. A term that is
 * not there (past the end, or its column outside the matrix) is absent() times the line blank(). */
struct reduce_sum {
    template <class A> static __device__ A start(void) { return A(0); }
    template <class A> static __device__ A absent(void) { return A(0); }
    template <class T> static __device__ const uint4 *blank(void) { return &no_row; }
    template <class A> static __device__ A weight(A w, int) { return w; }
    static __device__ float add(float sum, float w, float x) { return fmaf(w, x, sum); }
    static __device__ double add(double sum, double w, double x) { return fma(w, x, sum); }
    template <class A> static __device__ A join(A a, A b) { return a + b; }
    template <class A> static __device__ A finish(A sum, int64_t terms, int reduce)
    {
        return reduce == FMM_MEAN && terms ? sum / A(terms) : sum;
    }
};
struct reduce_extreme {
    template <class A> static __device__ A start(void) { return -A(INFINITY); }
    template <class A> static __device__ A absent(void) { return A(1); }
    template <class T> static __device__ const uint4 *blank(void) { return least_of<T>::line(); }
    template <class A> static __device__ A weight(A w, int reduce)
    {
        return reduce == FMM_MIN ? -w : w;
    }
    /* NaN, once there, stays. */
    static __device__ double join(double a, double b) { return b > a || b != b ? b : a; }
    static __device__ float join(float a, float b)
    {
#if __CUDA_ARCH__ >= 800
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
        return a;
#else
        return b > a || b != b ? b : a;
#endif
    }
    template <class A> static __device__ A add(A most, A w, A x) { return join(most, w * x); }
    template <class A> static __device__ A finish(A most, int64_t terms, int reduce)
    {
        return !terms ? A(0) : reduce == FMM_MIN ? -most : most;
    }
};

/* What the kernel is compiled for: values absent; [nnz] of type T in the matrix's own order;
 * [nnz, heads] of type T in that order, for heads that lie side by side: they are columns of one
 * row, and each lane reads the values of its own head; or any, per head, of any type, through eid,
 * where each head is gathered for itself. */
enum values { ONES, PLAIN, HEADS, ANY };

/* A value as it lies in memory. What is fetched a chunk ahead is looked at only where that chunk
 * begins: a warp issues in order, so a look waits for the load, and all that follows waits too. */
template <int BYTES> struct word {
    typedef unsigned type;
};
template <> struct word<2> {
    typedef unsigned short type;
};
template <> struct word<8> {
    typedef unsigned long long type;
};
#define WORD(T) typename word<sizeof(T)>::type
template <class Word> static __device__ __forceinline__ Word word_at(const void *data, int64_t at)
{
    return __ldg(static_cast<const Word *>(data) + at);
}

template <class T, int VALUES, class Word>
static __device__ __forceinline__ Word value_at(const spmm_args<T> &s, int64_t p, int64_t head)
{
    if (VALUES == ONES || VALUES == HEADS) return 0;
    if (VALUES == PLAIN) return word_at<WORD(T)>(s.val.data, p);
    if (!s.val.data) return 0;
    const int64_t at = edge_of(s.val, p) * s.val.row_stride + head * s.val.head_stride;
    if (s.val.dtype == FMM_F32) return word_at<unsigned>(s.val.data, at);
    if (s.val.dtype != FMM_F64) return word_at<unsigned short>(s.val.data, at);
    const auto wide = word_at<unsigned long long>(s.val.data, at);
    if (sizeof(Word) == sizeof(wide)) return Word(wide);
    return Word(__float_as_uint(float(__longlong_as_double(int64_t(wide)))));
}
template <class T, int VALUES, class Word>
static __device__ __forceinline__ typename sum_of<T>::type value_of(const spmm_args<T> &s,
                                                                    Word bits)
{
    typedef typename sum_of<T>::type A;
    if (VALUES == ONES || VALUES == HEADS || (VALUES == ANY && !s.val.data)) return A(1);
    if (VALUES == PLAIN) {
        const auto own = static_cast<WORD(T)>(bits);
        return widen(*reinterpret_cast<const T *>(&own));
    }
    if (s.val.dtype == FMM_F16) return A(__half2float(__ushort_as_half((unsigned short)bits)));
    if (s.val.dtype == FMM_BF16) return A(__uint_as_float(unsigned(bits) << 16));
    if constexpr (sizeof(A) == sizeof(double))
        if (s.val.dtype == FMM_F64) return __longlong_as_double(int64_t(bits));
    return A(__uint_as_float(unsigned(bits)));
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, int VALUES, class Reduce>
static __global__ void __launch_bounds__(BLOCK, BLOCKS)
    spmm_segments(const __grid_constant__ spmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    typedef typename std::conditional<VALUES == HEADS, uint32_t, int64_t>::type position;
    enum { EACH = LANES < 8 ? 8 / LANES : 1, CHUNK = LANES * EACH };
    let_next_start();
    const int lane = threadIdx.x % LANES;
    const int64_t group = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES;
    const int32_t column = (int(blockIdx.y) * LANES * PER + lane) * VEC, feat = (int32_t)s.feat;

    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t k = VALUES == ANY ? item_of(group, s.heads, s.per_head) : group;
    const int32_t head = VALUES == ANY ? (int32_t)(group - k * s.heads) : 0;
    const item_view item = find_item(counts, k, s.shift);
    span mine = find_span(s.a, s.plan, item, lane);
    mine.begin = position(mine.begin);
    const int rows = most_in_warp<LANES>(max(item.count, item.count == 0));
    const char *const x =
        reinterpret_cast<const char *>(s.x + (VALUES == ANY ? head * s.x_head : 0) + column);
    T *const y = s.y + head * s.y_head + column;

    /* Empty rows: as many to each item. */
    for (int64_t e = k, items = count_items(counts, s.shift); e < s.a.rows - counts.ends[BUNDLES];
         e += max(items, int64_t(1))) {
        if (k >= items && k) break;
        const int32_t row =
            (int32_t)clamp(__ldg(s.plan.order + counts.ends[BUNDLES] + e), 0, s.a.rows - 1);
        const A zeros[VEC] = {};
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (column + i * LANES * VEC < feat)
                store<T, VEC>(y + row * s.y_row + i * LANES * VEC, zeros);
    }

    /* HEADS: what the lane's head has for the entry `lane` before the one that is asked for. */
    const char *by[PER];
    if (VALUES == HEADS)
#pragma unroll
        for (int i = 0; i < PER; i++)
            by[i] = static_cast<const char *>(s.val.data) - int64_t(lane) * s.val_row +
                    min(column + i * LANES * VEC, feat - 1) / s.head_feat * s.val.head_stride *
                        int64_t(sizeof(T));

    int32_t near[EACH], near_next[EACH];
    A weight[EACH];
    WORD(A) weight_next[EACH];
    position from; /* where the lane fetches next, and how far its group's row goes on from there */
    int32_t left;
    auto fetch = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            near_next[e] = -1, weight_next[e] = 0;
            if (e * LANES >= left) continue;
            near_next[e] = __ldg(s.a.idx + (from + e * LANES));
            weight_next[e] = value_at<T, VALUES, WORD(A)>(s, from + e * LANES, head);
        }
    };
    auto arrive = [&] {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const bool there = (uint32_t)near_next[e] < (uint32_t)s.a.cols;
            near[e] = there ? near_next[e] : -1;
            weight[e] = Reduce::weight(value_of<T, VALUES>(s, weight_next[e]), s.reduce);
            if (!there) weight[e] = Reduce::template absent<A>();
        }
    };

    auto go_to = [&](int r) { /* lanes are counted modulo LANES */
                              from =
                                  position(__shfl_sync(ALL, position(mine.begin), r, LANES)) + lane;
                              left = __shfl_sync(ALL, mine.length, r, LANES);
                              left = (r < LANES ? left : 0) - lane;
    };
    go_to(0);
    fetch();
    arrive();
    for (int r = 0; r < rows; r++) {
        const int32_t length = left + lane;
        A sum[PER][VEC];
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[i][v] = Reduce::template start<A>();

        const int longest = max(most_in_warp<LANES>(length), 1);
        for (int done = 0; done < longest; done += CHUNK) {
            const char *own_at[PER];
#pragma unroll
            for (int i = 0; VALUES == HEADS && i < PER; i++)
                own_at[i] = by[i] + uint64_t(from) * s.val_row;
            if (done + CHUNK < longest)
                from += CHUNK, left -= CHUNK;
            else
                go_to(r + 1);
            fetch();
#pragma unroll
            for (int c = 0; c < CHUNK; c += FLY) {
                if (c && done + c >= longest) break;
                PACK(T, VEC) row[FLY][PER];
                PACK(T, 1) own[FLY][PER];
#pragma unroll
                for (int f = 0; f < FLY; f++) {
                    const int32_t j =
                        __shfl_sync(ALL, near[(c + f) / LANES], (c + f) % LANES, LANES);
                    const T *const at =
                        reinterpret_cast<const T *>(x + uint64_t(uint32_t(j)) * s.x_row);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        const bool there = j >= 0 && column + i * LANES * VEC < feat;
                        row[f][i] = load_if<T, VEC>(there, at + i * LANES * VEC,
                                                    Reduce::template blank<T>());
                        if (VALUES == HEADS)
                            own[f][i] =
                                load_if<T, 1>(there, reinterpret_cast<const T *>(
                                                         own_at[i] + uint64_t(c + f) * s.val_row));
                    }
                }
#pragma unroll
                for (int f = 0; f < FLY; f++) {
                    const A shared = VALUES == HEADS ? A(1)
                                                     : __shfl_sync(ALL, weight[(c + f) / LANES],
                                                                   (c + f) % LANES, LANES);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        A term[VEC];
                        unpack<T, VEC>(row[f][i], term);
                        A w = shared;
                        if (VALUES == HEADS) unpack<T, 1>(own[f][i], &w);
#pragma unroll
                        for (int v = 0; v < VEC; v++)
                            sum[i][v] = Reduce::add(sum[i][v], w, term[v]);
                    }
                }
            }
            arrive();
        }

        const int32_t row = __shfl_sync(ALL, mine.row, r, LANES);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (column + i * LANES * VEC >= feat) continue;
            if (item.count == 0 && r == 0) {
                keep<A, VEC>(s.partial + (int64_t(item.from) * s.heads + head) * s.width + column +
                                 i * LANES * VEC,
                             sum[i]);
            } else if (r < item.count) {
#pragma unroll
                for (int v = 0; v < VEC; v++)
                    sum[i][v] = Reduce::finish(sum[i][v], length, s.reduce);
                store<T, VEC>(y + row * s.y_row + i * LANES * VEC, sum[i]);
            }
        }
    }
}

/* Adds the slots of long rows, four columns (WIDTH) a thread. Rows of up to HUB_PIECES pieces have
 * a thread per columns; a hub has a block, whose threads split its slots and meet in shared memory
 * in a tree of fixed shape. */
enum { WIDTH = 4 };

template <class A> struct four {
    A v[WIDTH];
};
template <class A, class Reduce>
static __device__ __forceinline__ void join_slots(four<A> *sum, const A *from, int64_t begin,
                                                  int64_t end, int64_t step, int64_t stride)
{
    for (int v = 0; v < WIDTH; v++) sum->v[v] = Reduce::template start<A>();
#pragma unroll 4
    for (int64_t p = begin; p < end; p += step) {
        four<A> slot;
        fetch_kept<A, WIDTH>(from + p * stride, slot.v);
#pragma unroll
        for (int v = 0; v < WIDTH; v++) sum->v[v] = Reduce::join(sum->v[v], slot.v[v]);
    }
}

template <class T, class Reduce>
static __global__ void __launch_bounds__(BLOCK, 4) spmm_join(const __grid_constant__ spmm_args<T> s)
{
    typedef typename sum_of<T>::type A;
    __shared__ four<A> meet[BLOCK];
    const plan_counts counts = read_counts(s.a, s.plan);
    const int64_t stride = s.heads * s.width, across = s.width / WIDTH;

    auto write = [&](int64_t row, int64_t head, int64_t c, int64_t length, const four<A> &sum) {
        for (int v = 0; v < WIDTH && c + v < s.feat; v++)
            s.y[row * s.y_row + head * s.y_head + c + v] =
                narrow<T>(Reduce::finish(sum.v[v], length, s.reduce));
    };
    /* Row k of the plan's order: its length, slots and how many of them. */
    int64_t row, length, first, pieces;
    auto look_up = [&](int64_t k) {
        int64_t begin;
        row = clamp(__ldg(s.plan.order + k), 0, s.a.rows - 1);
        first = clamp(__ldg(s.plan.first + k), 0, counts.segments);
        length = row_range(s.a, row, &begin);
        pieces = min(pieces_of(length, s.plan.segment), counts.segments - first);
    };

    wait_for_previous();
    const int64_t tasks = (counts.long_rows - counts.hubs) * stride / WIDTH;
    for (int64_t t = int64_t(blockIdx.x) * BLOCK + threadIdx.x; t < tasks;
         t += int64_t(gridDim.x) * BLOCK) {
        const int64_t k = t / (stride / WIDTH), at = t - k * (stride / WIDTH), head = at / across;
        look_up(counts.hubs + k);
        four<A> sum;
        join_slots<A, Reduce>(&sum, s.partial + first * stride + at * WIDTH, 0,
                              min(pieces, int64_t(CHAIN)), 1, stride);
        write(row, head, (at - head * across) * WIDTH, length, sum);
    }

    /* Hubs, the last blocks first, which had the fewest of the other rows. */
    int columns = 1;
    while (columns < WARP && columns < across) columns *= 2;
    const int stretches = BLOCK / columns, stretch = threadIdx.x / columns;
    for (int64_t t = gridDim.x - 1 - blockIdx.x; t < int64_t(counts.hubs) * s.heads;
         t += gridDim.x) {
        const int64_t head = t % s.heads;
        look_up(t / s.heads);
        for (int64_t tile = 0; tile < across; tile += columns) {
            const int64_t c = (tile + threadIdx.x % columns) * WIDTH;
            four<A> total, sum;
            for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::template start<A>();
            for (int64_t p = stretch; c < s.width && p < pieces; p += int64_t(CHAIN) * stretches) {
                join_slots<A, Reduce>(&sum, s.partial + first * stride + head * s.width + c, p,
                                      min(pieces, p + int64_t(CHAIN) * stretches), stretches,
                                      stride);
                for (int v = 0; v < WIDTH; v++) total.v[v] = Reduce::join(total.v[v], sum.v[v]);
            }
            for (int half = stretches / 2; half; half /= 2) {
                meet[threadIdx.x] = total;
                __syncthreads();
                if (stretch < half)
                    for (int v = 0; v < WIDTH; v++)
                        total.v[v] =
                            Reduce::join(total.v[v], meet[threadIdx.x + half * columns].v[v]);
                __syncthreads();
            }
            if (stretch == 0 && c < s.width) write(row, head, c, length, total);
        }
    }
}

/* Launches `join` so that its blocks are ready when the last block of `segments` ends. */
template <class T, class Reduce>
static void launch_join(const fmm_exec *exec, const spmm_args<T> &s)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    const int64_t threads = s.plan.long_rows_max * int64_t(s.heads) * (s.width / WIDTH);
    config.gridDim = dim3((unsigned)smaller(ceil_div(threads, BLOCK), 1056));
    config.blockDim = dim3(BLOCK);
    config.stream = stream_of(exec);
    config.attrs = &early;
    config.numAttrs = starts_early(exec->index);
    cudaLaunchKernelEx(&config, spmm_join<T, Reduce>, s);
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS, class Reduce>
static void launch_values(const fmm_exec *exec, dim3 grid, const spmm_args<T> &s)
{
    const cudaStream_t stream = stream_of(exec);
    const bool in_order = !s.val.eid && s.val.dtype == dtype_of<T>();
    if (s.head_feat) { /* only sums */
        constexpr int fly = PER < 4 ? FLY : FLY / 2;
        spmm_segments<T, VEC, LANES, PER, fly, BLOCKS, HEADS, reduce_sum>
            <<<grid, BLOCK, 0, stream>>>(s);
    } else if (s.heads == 1 && !s.val.data)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ONES, Reduce><<<grid, BLOCK, 0, stream>>>(s);
    else if (s.heads == 1 && in_order && s.val.row_stride == 1)
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, PLAIN, Reduce>
            <<<grid, BLOCK, 0, stream>>>(s);
    else
        spmm_segments<T, VEC, LANES, PER, FLY, BLOCKS, ANY, Reduce><<<grid, BLOCK, 0, stream>>>(s);
    if (s.plan.long_rows_max) launch_join<T, Reduce>(exec, s);
}

template <class T, int VEC, int LANES, int PER, int FLY, int BLOCKS>
static void launch_segments(const fmm_exec *exec, spmm_args<T> s)
{
    s.shift = bundle_shift(s.a.rows);
    while (1 << s.shift > LANES) s.shift--;
    const int64_t items = items_max(s.plan, s.a.rows, s.a.nnz, s.shift) * int64_t(s.heads);
    const dim3 grid(blocks_for(items * LANES), (unsigned)ceil_div(s.feat, LANES * PER * VEC));
    if (s.reduce == FMM_SUM || s.reduce == FMM_MEAN)
        launch_values<T, VEC, LANES, PER, FLY, BLOCKS, reduce_sum>(exec, grid, s);
    else
        launch_values<T, VEC, LANES, PER, FLY, BLOCKS, reduce_extreme>(exec, grid, s);
}

/* Lanes and loads for a row of x: the fewest lanes that span it with one load each up to 256 bytes,
 * then two loads each, which leaves fewer lanes to hand idx and val to. Wider rows are taken in
 * tiles of 512 bytes, one after the other: of a table beyond L2, more of the tile stays there
 * (K 256, 117 M entries: 17.0 instead of 19.3 ms), and no graph measured was slower. */
template <class T> static void choose_lanes(const fmm_exec *exec, const spmm_args<T> &s, int vec)
{
    enum { V = 16 / sizeof(T) };
    const int64_t n = ceil_div(s.feat, vec);
    if (vec == V && n <= 2) return launch_segments<T, V, 2, 1, 4, 4>(exec, s);
    if (vec == V && n <= 4) return launch_segments<T, V, 4, 1, 4, 4>(exec, s);
    if (vec == V && n <= 8) return launch_segments<T, V, 8, 1, 4, 4>(exec, s);
    if (vec == V && n <= 16) return launch_segments<T, V, 16, 1, 4, 4>(exec, s);
    if (vec == V && is_small(s.a.nnz)) return launch_segments<T, V, 32, 1, 4, 4>(exec, s);
    if (vec == V) return launch_segments<T, V, 16, 2, 2, 4>(exec, s);
    if (n <= 8) return launch_segments<T, 1, 8, 1, 8, 4>(exec, s);
    if (n <= 32) return launch_segments<T, 1, 32, 1, 8, 4>(exec, s);
    return launch_segments<T, 1, 32, 4, 4, 4>(exec, s);
}

/* What int32 columns and the grid's second axis surely hold. */
enum { FEAT_MOST = 65535 * 8 };

/* Slots of partial sums begin at 16 bytes and hold whole groups of WIDTH columns. */
static inline int64_t partial_width(int64_t feat) { return ceil_div(feat, WIDTH) * WIDTH; }

/* Whether a sum over values of each head is one of HEADS: entries and strides are 32-bit factors.
 */
template <class T> static bool has_own_values(const fmm_csr *a, const fmm_call *call)
{
    const fmm_dense *const val = call->val;
    return (call->reduce == FMM_SUM || call->reduce == FMM_MEAN) && !a->eid &&
           (int)val->dtype == dtype_of<T>() && a->nnz <= INT32_MAX &&
           val->row_stride <= int64_t(UINT32_MAX / sizeof(T));
}

template <class T> static fmm_status spmm_run(const fmm_exec *exec, const fmm_call *call)
{
    const fmm_csr *a = call->a;
    const bool shared = !call->val || !call->val->data || call->val->heads == 1;
    const bool each = !shared && has_own_values<T>(a, call);
    const bool flat = (shared || each) && can_be_flat(call->x) && can_be_flat(call->y) &&
                      call->x->heads * call->x->feat <= FEAT_MOST;
    const fmm_dense x = flat ? flat_heads(call->x) : *call->x;
    const fmm_dense y = flat ? flat_heads(call->y) : *call->y;
    int before;
    TRY(cuda_enter("spmm", exec, &before));

    spmm_args<T> s;
    s.a = view_csr(a);
    s.val = view_edges(a, call->val);
    s.plan = plan_for_call(exec, a);
    s.x = static_cast<const T *>(x.data);
    s.y = static_cast<T *>(y.data);
    s.partial = reinterpret_cast<typename sum_of<T>::type *>(static_cast<char *>(exec->workspace) +
                                                             plan_workspace(a));
    s.x_row = uint32_t(x.row_stride * int64_t(sizeof(T)));
    s.x_head = x.head_stride;
    s.y_row = y.row_stride;
    s.y_head = y.head_stride;
    s.feat = x.feat;
    s.width = partial_width(x.feat);
    s.heads = (int32_t)x.heads;
    s.per_head = reciprocal(x.heads);
    s.reduce = call->reduce;
    s.head_feat = flat && each ? (int32_t)call->x->feat : 0;
    s.val_row = s.head_feat ? uint32_t(s.val.row_stride * int64_t(sizeof(T))) : 0;

    const int full = 16 / sizeof(T);
    const bool packs = lies_in_packs(&x, sizeof(T), full) && lies_in_packs(&y, sizeof(T), full) &&
                       call->x->feat % (s.head_feat ? full : 1) == 0;
    choose_lanes(exec, s, packs ? full : 1);
    return cuda_leave("spmm", exec, before);
}

#endif
