// Proves the prototypes of csrc/torch/shim.h against the headers of the installed torch: it compiles or it does not.
#include <type_traits>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "../csrc/torch/shim.h"

#define X(result, name, arguments, since) \
    static_assert(std::is_same<decltype(&::name), result(*) arguments>::value, #name " differs from torch's header");
FMM_SHIM_LIST(X)
#undef X

// Exported by libtorch_cuda; its prototype is declared only where USE_CUDA is set, and has no other types than these.
#ifdef USE_CUDA
#define X(result, name, arguments, since) \
    static_assert(std::is_same<decltype(&::name), result(*) arguments>::value, #name " differs from torch's header");
FMM_SHIM_CUDA_LIST(X)
#undef X
#endif

int main() { return 0; }
