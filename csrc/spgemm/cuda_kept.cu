/* What a plan keeps of the products where they are few: a list for each entry of C.
 *
 *     entry r of C       0      1         2   3            (i, j)
 *     starts[r]          0      2         3   5   6
 *     pairs              p q    p q       ...              entry p of A's row i, entry q of B with
 *                        p q              ...              column j, in the order of A's entries
 *
 * With it each thread adds the products of one entry of C: nothing is searched, no row is longer
 * than others, and nobody waits for anybody. It takes eight bytes a product, which pays while a
 * product is short and latency counts; larger products are computed row by row (cuda_rows.cu).
 *
 *     products t = 0, 1, ...     as they stand in A and B, each with its entry of C
 *     sorted by these entries    in the order of t where they are the same
 *
 * Sums have the bits that they have everywhere: of a row of A with more than SPGEMM_TERMS entries
 * they are put aside after each so many of them. A pair whose p is negative says so. */
#include "../cuda/search.cuh"
#include "cuda_kept.cuh"

#include <ostream>
#define _GLIBCXX_IOSTREAM 1 /* as in cuda_symbolic.cu */

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

enum { PUT_ASIDE = INT32_MIN }; /* the sign of p */

typedef cub::DoubleBuffer<int32_t> sorted; /* two arrays, between which a sort goes to and fro */

/* Where a list lies in what a plan keeps. */
struct product_list {
    int32_t *starts;
    int2 *pairs;
    int64_t products;
};
/* Numbers before the pairs, each of which is read as one word. */
static int64_t head_of(int64_t entries) { return (entries + 2) / 2 * 2; }
static product_list list_in(int32_t *kept, int64_t entries, int64_t products)
{
    return product_list{kept, reinterpret_cast<int2 *>(kept + head_of(entries)), products};
}

/* ---- how it is made ---- */

/* ends[p]: products of entries 0 .. p of A, once they are added up. */
static __global__ void __launch_bounds__(BLOCK)
    count_each(const csr_view a, const csr_view b, int32_t *ends)
{
    const int64_t p = this_thread();
    if (p < a.nnz) ends[p] = (int32_t)row_of_b(a, b, p, a.nnz).length;
}

/* Product t: entry p of A, entry q of B. */
static __device__ __forceinline__ int2 product_at(const csr_view &a, const csr_view &b,
                                                  const int32_t *ends, int64_t t)
{
    const int64_t p = first_at_least(ends, 1, a.nnz - 1, t + 1);
    const row_of_b row(a, b, p, a.nnz);
    return make_int2(int(p), int(row.begin + row.length - (__ldg(ends + p) - t)));
}

/* The entry of C that each product belongs to. */
static __global__ void __launch_bounds__(BLOCK)
    find_entries(const csr_view a, const csr_view b, const csr_view c, const int32_t *ends,
                 int64_t products, int32_t *entry, int32_t *number)
{
    const int64_t t = this_thread();
    if (t >= products) return;
    const int2 pair = product_at(a, b, ends, t);
    int64_t begin;
    const int64_t length = row_range(c, row_of(a, pair.x), &begin);
    const bool inside = uint64_t(int64_t(pair.y)) < uint64_t(b.nnz);
    const int32_t j = inside ? __ldg(b.idx + pair.y) : 0;
    entry[t] = int32_t(begin + first_at_least(c.idx + begin, 1, length, j));
    number[t] = int32_t(t);
}

/* The list, of products in the order of entries: number n of them is product number[n]. Each entry
 * of C has one at least. */
static __global__ void __launch_bounds__(BLOCK)
    write_list(const csr_view a, const csr_view b, const csr_view c, const int32_t *ends,
               const int32_t *entry, const int32_t *number, const product_list to)
{
    const int64_t n = this_thread();
    if (n >= to.products) return;
    const int64_t r = entry[n];
    const bool is_first = !n || entry[n - 1] != r;
    int2 pair = product_at(a, b, ends, number[n]);
    int64_t begin;
    if (row_range(a, row_of(a, pair.x), &begin) > SPGEMM_TERMS) {
        const int64_t before = is_first ? -1 : product_at(a, b, ends, number[n - 1]).x - begin;
        if (is_first || (pair.x - begin) / SPGEMM_TERMS != before / SPGEMM_TERMS)
            pair.x |= PUT_ASIDE;
    }
    to.pairs[n] = pair;
    if (is_first && r < c.nnz) to.starts[r] = (int32_t)n;
    if (n == to.products - 1) to.starts[c.nnz] = (int32_t)to.products;
}

/* What is needed meanwhile: ends, two arrays of entries and two of numbers for the sort, and what
 * CUB asks for. Its size follows from counts alone, so `base` may be NULL to learn it. */
struct making {
    int32_t *ends, *entry[2], *number[2];
    void *scratch;
    size_t scratch_bytes, bytes;

    making(char *base, const csr_view &a, int64_t products)
    {
        const auto take = [&](int64_t n) {
            char *const at = base + bytes;
            bytes += ((size_t)n * sizeof(int32_t) + 255) / 256 * 256;
            return reinterpret_cast<int32_t *>(at);
        };
        size_t scan = 0;
        sorted none;
        bytes = scratch_bytes = 0;
        ends = take(a.nnz);
        for (int k = 0; k < 2; k++) entry[k] = take(products), number[k] = take(products);
        cub::DeviceScan::InclusiveSum(NULL, scan, ends, ends, a.nnz);
        cub::DeviceRadixSort::SortPairs(NULL, scratch_bytes, none, none, (int)products);
        if (scan > scratch_bytes) scratch_bytes = scan;
        scratch = base + bytes;
        bytes += scratch_bytes;
    }
};

fmm_status fmm_spgemm_keep(const fmm_exec *exec, const fmm_spgemm_pattern *out, const csr_view &a,
                           const csr_view &b, const csr_view &c, int64_t products, bool *made)
{
    /* All that a plan takes is to be a quarter of the largest matrix and MOST at most, and so is
     * what it takes while it is made. */
    enum { MOST = 63 << 19, EACH = 24 };
    const int64_t largest = a.nnz > b.nnz ? a.nnz : b.nnz;
    const int64_t room = MOST + (largest > c.nnz ? largest : c.nnz) * 2;
    *made = EACH * products + 4 * (a.nnz + c.nnz) <= room;
    if (!*made) return FMM_OK;
    /* CUB takes over what an earlier launch failed with, here where it only says sizes. */
    *made = cudaPeekAtLastError() == cudaSuccess;
    if (!*made) return FMM_OK; /* cuda_leave says why */
    const cudaStream_t stream = stream_of(exec);
    void *base = NULL;
    const size_t bytes = making(NULL, a, products).bytes;
    const fmm_status status = exec->allocate(exec->owner, bytes, &base);
    REQUIRE(status == FMM_OK, status, "spgemm: no workspace of %zu bytes", bytes);
    int32_t *const kept = out->kept(out->owner, head_of(c.nnz) + 2 * products);
    REQUIRE(kept, FMM_OUT_OF_MEMORY, "spgemm: no memory for a list of %" PRId64 " products",
            products);
    making m(static_cast<char *>(base), a, products);
    const unsigned blocks = blocks_for(products);
    count_each<<<blocks_for(a.nnz), BLOCK, 0, stream>>>(a, b, m.ends);
    cudaError_t said =
        cub::DeviceScan::InclusiveSum(m.scratch, m.scratch_bytes, m.ends, m.ends, a.nnz, stream);
    find_entries<<<blocks, BLOCK, 0, stream>>>(a, b, c, m.ends, products, m.entry[0], m.number[0]);
    sorted entry(m.entry[0], m.entry[1]), number(m.number[0], m.number[1]);
    int bits = 1; /* of the largest key: the sort takes no more rounds than these need */
    while (c.nnz >> bits) bits++;
    if (said == cudaSuccess)
        said = cub::DeviceRadixSort::SortPairs(m.scratch, m.scratch_bytes, entry, number,
                                               (int)products, 0, bits, stream);
    REQUIRE(said == cudaSuccess, FMM_DEVICE_ERROR, "spgemm: sort on CUDA device %d: %s",
            exec->index, cudaGetErrorString(said));
    write_list<<<blocks, BLOCK, 0, stream>>>(a, b, c, m.ends, entry.Current(), number.Current(),
                                             list_in(kept, c.nnz, products));
    return FMM_OK;
}

/* ---- how it is used ---- */

/* The value of entry p. Plain ones are of type A, in the order of entries. */
template <class A, bool PLAIN>
static __device__ __forceinline__ A value_of(const edge_view &v, int64_t p)
{
    return PLAIN ? __ldg(static_cast<const A *>(v.data) + p) : edge_value<A>(v, edge_of(v, p), 0);
}

/* Product number t of a list that ends before `end`: its two values, and what the pair says. */
template <class A, bool PLAIN> struct listed {
    A x, y;
    bool counts, aside;

    __device__ __forceinline__ listed(void) {}
    __device__ __forceinline__ listed(const numeric_args &s, const product_list &of, int64_t t,
                                      int64_t end)
    {
        const int2 pair = t < end ? __ldg(of.pairs + t) : make_int2(-1, -1);
        const int64_t p = pair.x & INT32_MAX, q = pair.y;
        counts = p < s.a.nnz && uint64_t(q) < uint64_t(s.b.nnz); /* else forged, or behind it */
        aside = pair.x < 0;
        x = counts ? value_of<A, PLAIN>(s.a_val, p) : A(0);
        y = counts ? value_of<A, PLAIN>(s.b_val, q) : A(0);
    }
};

/* A sum and what was put aside of it. */
template <class A> struct listed_sum {
    A sum, aside;
    bool is_long;

    __device__ __forceinline__ void add(A x, A y, bool counts, bool first)
    {
        if (!counts) return;
        if (first) aside += sum, sum = A(0), is_long = true;
        sum = multiply_add(x, y, sum);
    }
    __device__ __forceinline__ A total(void) const { return is_long ? aside + sum : sum; }
};

enum { ENTRIES = 2, AT_ONCE = 2 }; /* of C for each thread; products whose loads are under way */

/* A thread for some entries of C. Most have one product or two, so that these loads are what
 * counts: the list is read in order, A's and B's values mostly come from the cache. The products of
 * a long entry are loaded by all lanes of the warp, which then add them one after the other. */
template <class A, bool PLAIN>
static __global__ void __launch_bounds__(BLOCK)
    add_listed(const numeric_args s, const product_list of)
{
    enum { LONG = 8 };
    const int64_t first = int64_t(blockIdx.x) * (ENTRIES * BLOCK) + threadIdx.x;
    /* The lists of this thread's entries; entries behind the last have empty ones. */
    int64_t begin[ENTRIES], end[ENTRIES], longest = 0;
    listed_sum<A> own[ENTRIES];
    UNROLLED(e, ENTRIES) {
        const int64_t r = first + e * BLOCK;
        begin[e] = r < s.c.nnz ? clamp(__ldg(of.starts + r), 0, of.products) : 0;
        end[e] = r < s.c.nnz ? clamp(__ldg(of.starts + r + 1), 0, of.products) : 0;
        own[e] = listed_sum<A>{A(0), A(0), false};
    }
    UNROLLED(e, ENTRIES) {
        const int64_t length = end[e] - begin[e];
        if (length <= LONG && length > longest) longest = length;
    }
    /* Short lists are added by their own thread. */
    for (int64_t t = 0; t < longest; t += AT_ONCE) {
        listed<A, PLAIN> one[ENTRIES * AT_ONCE];
        UNROLLED(u, ENTRIES * AT_ONCE) {
            const int e = u / AT_ONCE;
            const bool is_long = end[e] - begin[e] > LONG;
            one[u] = listed<A, PLAIN>(s, of, begin[e] + t + u % AT_ONCE, is_long ? 0 : end[e]);
        }
        UNROLLED(u, ENTRIES * AT_ONCE)
            own[u / AT_ONCE].add(one[u].x, one[u].y, one[u].counts, one[u].aside);
    }
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        unsigned lanes = __ballot_sync(ALL, end[e] - begin[e] > LONG);
        for (; lanes; lanes &= lanes - 1) {
            const int from = __ffs(lanes) - 1; /* whose list all lanes load now */
            const int64_t last = __shfl_sync(ALL, end[e], from);
            listed_sum<A> sum = {A(0), A(0), false};
            for (int64_t t = __shfl_sync(ALL, begin[e], from); t < last; t += WARP) {
                const listed<A, PLAIN> one(s, of, t + threadIdx.x % WARP, last);
                const unsigned count = __ballot_sync(ALL, one.counts);
                const unsigned aside = __ballot_sync(ALL, one.aside);
#pragma unroll 8
                for (int u = 0; u < WARP; u++)
                    sum.add(__shfl_sync(ALL, one.x, u), __shfl_sync(ALL, one.y, u), count >> u & 1,
                            aside >> u & 1);
            }
            if (int(threadIdx.x % WARP) == from) own[e] = sum;
        }
        if (first + e * BLOCK < s.c.nnz) write(s.out, first + e * BLOCK, own[e].total());
    }
}

/* Numbers of another length than a list of this C has are none; neither are those that begin at an
 * odd place, because the caller cut them, since pairs are read as one word. */
bool fmm_spgemm_add_listed(const fmm_exec *exec, const numeric_args &s, const int32_t *kept,
                           int64_t n)
{
    const int64_t products = (n - head_of(s.c.nnz)) / 2;
    if (products < 1 || uintptr_t(kept) % sizeof(int2)) return false;
    const product_list of = list_in(const_cast<int32_t *>(kept), s.c.nnz, products);
    const auto run = s.out.dtype == FMM_F64 ? add_listed<double, false>
                     : s.plain && s.plain_a ? add_listed<float, true>
                                            : add_listed<float, false>;
    const unsigned blocks = (unsigned)ceil_div(s.c.nnz, ENTRIES * BLOCK);
    run<<<blocks, BLOCK, 0, stream_of(exec)>>>(s, of);
    return true;
}
