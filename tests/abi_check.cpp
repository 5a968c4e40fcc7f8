// Proves the prototypes of csrc/torch/shim.h against the headers of the installed torch: it compiles or it does not.
#include <type_traits>

#define USE_CUDA // the headers declare more then, and need no CUDA for it
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "../csrc/torch/shim.h"

#define X(result, name, arguments, since) \
    static_assert(std::is_same<decltype(&::name), result(*) arguments>::value, #name " differs from torch's header");
FMM_SHIM_LIST(X)
FMM_SHIM_CUDA_LIST(X)
#undef X

int main() { return 0; }
