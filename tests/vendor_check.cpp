/* Every prototype of csrc/cuda/vendor/vendor_api.h takes what NVIDIA's headers say: as many arguments,
 * each a pointer or a number of the same size, so that a call through ours is a call of theirs.
 * Compiled, not run: tests/ops/test_vendor.py does it where the headers are. */
#include "../csrc/cuda/vendor/vendor_api.h"

#include <cublas_v2.h>
#include <cusparse.h>
#include <type_traits>

template <class A, class B>
constexpr bool same = sizeof(A) == sizeof(B) &&
                      std::is_pointer_v<A> == std::is_pointer_v<B> &&std::is_floating_point_v<A> ==
                          std::is_floating_point_v<B>;

template <class... A> struct list {
};
template <class A, class B> constexpr bool alike = false;
template <class... A, class... B>
requires(sizeof...(A) == sizeof...(B)) constexpr bool alike<list<A...>, list<B...>> = (same<A, B> &&
                                                                                       ...);

template <class F> struct parts;
template <class R, class... A> struct parts<R (*)(A...)> {
    typedef list<R, A...> type;
};
template <class F> using parts_of = typename parts<F>::type;

#define X(result, name, arguments)                                                                 \
    static_assert(alike<parts_of<decltype(&::name)>, parts_of<result(*) arguments>>, #name);
FMM_CUSPARSE_API(X)
FMM_CUBLAS_API(X)
#undef X

static_assert(CUSPARSE_SPMM_ALG_DEFAULT == 0 && CUSPARSE_SPMM_COO_ALG1 == 1 &&
              CUSPARSE_SPMM_COO_ALG2 == 2 && CUSPARSE_SPMM_COO_ALG3 == 3 &&
              CUSPARSE_SPMM_CSR_ALG1 == 4 && CUSPARSE_SPMM_COO_ALG4 == 5 &&
              CUSPARSE_SPMM_CSR_ALG2 == 6 && CUSPARSE_SPMM_CSR_ALG3 == 12);
static_assert(CUSPARSE_SPMV_COO_ALG1 == 1 && CUSPARSE_SPMV_CSR_ALG1 == 2 &&
              CUSPARSE_SPMV_CSR_ALG2 == 3 && CUSPARSE_SPMV_COO_ALG2 == 4 &&
              CUSPARSE_SPMV_SELL_ALG1 == 5);
static_assert(CUSPARSE_SDDMM_ALG_DEFAULT == 0 && CUSPARSE_OPERATION_TRANSPOSE == 1 &&
              CUSPARSE_ORDER_ROW == 2 && CUSPARSE_INDEX_32I == 2 && CUSPARSE_INDEX_BASE_ZERO == 0);
static_assert(CUDA_R_32F == 0 && CUDA_R_64F == 1 && CUDA_R_16F == 2 && CUDA_R_16BF == 14);
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1);
