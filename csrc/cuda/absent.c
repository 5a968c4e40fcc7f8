/* The CUDA side of a library that was built without nvcc: no algorithms, and errors that say how to
 * get them. Compiled instead of every other file of this folder. */
#include "../matrix/compress.h"
#include "../attention/node_sums.h"
#include "../spmm/extreme.h"

static fmm_status absent(const char *op)
{
    return fmm_fail(FMM_UNSUPPORTED,
                    "%s: fusedmm was built without CUDA; install a CUDA toolkit (nvcc) and "
                    "reinstall fusedmm with FUSEDMM_CUDA=1",
                    op);
}

static fmm_status run_spmm(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec, (void)call;
    return absent("spmm");
}

static fmm_status run_sddmm(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec, (void)call;
    return absent("sddmm");
}

static fmm_status run_attention(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec, (void)call;
    return absent("attention");
}

static fmm_status run_fused(const fmm_exec *exec, const fmm_call *call)
{
    (void)exec, (void)call;
    return absent("fused");
}

/* Number 0 finds these, so that its error is the one that helps; the tables list nothing. */
static const fmm_algorithm none[] = {{.name = NULL}};
static const fmm_algorithm spmm = {.name = "absent", .run = run_spmm};
static const fmm_algorithm sddmm = {.name = "absent", .run = run_sddmm};
static const fmm_algorithm attention = {.name = "absent", .run = run_attention};
static const fmm_algorithm fused = {.name = "absent", .run = run_fused};

static const fmm_algorithm *choose_spmm(const fmm_call *call)
{
    (void)call;
    return &spmm;
}

static const fmm_algorithm *choose_sddmm(const fmm_call *call)
{
    (void)call;
    return &sddmm;
}

static const fmm_algorithm *choose_attention(const fmm_call *call)
{
    (void)call;
    return &attention;
}

static const fmm_algorithm *choose_fused(const fmm_call *call)
{
    (void)call;
    return &fused;
}

const fmm_registry fmm_spmm_cuda = {none, choose_spmm};
const fmm_registry fmm_sddmm_cuda = {none, choose_sddmm};
const fmm_registry fmm_attention_cuda = {none, choose_attention};
const fmm_registry fmm_fused_cuda = {none, choose_fused};

fmm_status fmm_cuda_csr_check(const fmm_exec *exec, const fmm_csr *a, uint64_t *report)
{
    (void)exec, (void)a, (void)report;
    return absent("csr_check");
}

size_t fmm_cuda_plan_bytes(const fmm_csr *a)
{
    (void)a;
    return 0;
}

fmm_status fmm_cuda_plan_workspace(const fmm_csr *a, size_t *bytes)
{
    (void)a;
    *bytes = 0;
    return absent("plan");
}

fmm_status fmm_cuda_plan(const fmm_exec *exec, const fmm_csr *a, void *plan)
{
    (void)exec, (void)a, (void)plan;
    return absent("plan");
}

const char *fmm_cuda_info(void) { return "null"; }

fmm_status fmm_cuda_select(const fmm_exec *exec, const fmm_select_call *call)
{
    (void)exec, (void)call;
    return absent("select");
}

fmm_status fmm_node_sums_cuda(const fmm_exec *exec, const fmm_node_call *call)
{
    (void)exec, (void)call;
    return absent("gat");
}

int64_t fmm_cuda_coo_lines(int64_t nnz)
{
    (void)nnz;
    return 0;
}

fmm_status fmm_cuda_coo_start(const fmm_exec *exec, const fmm_coo *a, int64_t *lines)
{
    (void)exec, (void)a, (void)lines;
    return absent("compress");
}

fmm_status fmm_cuda_coo_wait(const fmm_exec *exec, const int64_t *lines, int64_t count,
                             fmm_coo_facts *facts)
{
    (void)exec, (void)lines, (void)count, (void)facts;
    return absent("compress");
}

fmm_status fmm_cuda_coo_look(const fmm_exec *exec, const fmm_coo *a, fmm_coo_facts *facts)
{
    (void)exec, (void)a, (void)facts;
    return absent("compress");
}

size_t fmm_cuda_compress_workspace(const fmm_exec *exec, const fmm_coo *a,
                                   const fmm_coo_facts *facts, bool loops, bool identity)
{
    (void)exec, (void)a, (void)facts, (void)loops, (void)identity;
    return 0;
}

fmm_status fmm_cuda_compress(const fmm_exec *exec, const fmm_coo *a, const fmm_coo_facts *facts,
                             bool loops, int64_t *ptr, int32_t *idx, int32_t *eid, void *plan,
                             int64_t *kept)
{
    (void)exec, (void)a, (void)facts, (void)loops, (void)ptr, (void)idx, (void)eid, (void)plan,
        (void)kept;
    return absent("compress");
}

size_t fmm_cuda_transpose_workspace(const fmm_exec *exec, const fmm_csr *a)
{
    (void)exec, (void)a;
    return 0;
}

fmm_status fmm_cuda_transpose(const fmm_exec *exec, const fmm_csr *a, int64_t *ptr, int32_t *idx,
                              int32_t *eid, void *plan)
{
    (void)exec, (void)a, (void)ptr, (void)idx, (void)eid, (void)plan;
    return absent("transpose");
}

fmm_status fmm_cuda_normalize(const fmm_exec *exec, const fmm_csr *a, float *val, float *here)
{
    (void)exec, (void)a, (void)val, (void)here;
    return absent("normalize");
}

fmm_status fmm_cuda_mean_back(const fmm_exec *exec, const int64_t *ptr, const fmm_dense *g,
                              float *out)
{
    (void)exec, (void)ptr, (void)g, (void)out;
    return absent("mean_back");
}
