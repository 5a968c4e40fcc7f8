/* fused and its gradients: every algorithm gives what the reference gives, for each score, message
 * and activation, and a function of the caller's gives what the same program of steps gives. */
#include "test.h"

enum { N = 23, HEADS = 2, FEAT = 5 };

/* w = s * a, and its derivatives by s and by a. */
static const fmm_edge_step product[] = {{FMM_EDGE_COPY, 2, 0, 0, 0}, {FMM_EDGE_MUL, 0, 0, 1, 0}};

static void same_product(int64_t n, const double *s, const double *a, double *w, double *ws,
                         double *wa, void *ctx)
{
    ++*(int *)ctx;
    for (int64_t e = 0; e < n; e++) w[e] = s[e] * a[e];
    for (int64_t e = 0; ws && e < n; e++) ws[e] = a[e], wa[e] = s[e];
}

static void compare(const fmm_dense *a, const fmm_dense *b, const fmm_fusion *f, const char *name)
{
    if (!a) return;
    const double near = a->dtype == FMM_F64 ? 1e-12 : 1e-4;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t c = 0; c < a->feat; c++) {
                const double one = get(a, r, h, c), other = get(b, r, h, c);
                CHECK(fabs(one - other) <= near * (1 + fabs(one)),
                      "%s: pass %d, score %d, message %d, activation %d: %g and %g", name,
                      (int)f->pass, (int)f->score, (int)f->message, (int)f->activation, one, other);
            }
}

static void check(const fmm_csr *a, fmm_fusion f, const fmm_dense *val)
{
    const fmm_exec cpu = {.device = FMM_CPU};
    const fmm_dtype dtype = f.x->dtype;
    const bool forward = f.pass == FMM_FORWARD, scale = f.message == FMM_MESSAGE_SCALE;
    const int64_t feat = scale ? FEAT : f.x->feat;
    const int kept = held_count;
    const int64_t rows2 = f.pass == FMM_ROWS ? a->nnz : N, feat2 = f.pass == FMM_ROWS ? 1 : feat;
    const bool both = !forward && (f.pass == FMM_ROWS || scale);
    fmm_dense out[2], out2[2];
    for (int k = 0; k < 2; k++) {
        out[k] = view(dtype, N, HEADS, forward ? feat : f.x->feat, 0, AT_END);
        out2[k] = view(dtype, rows2, HEADS, feat2, 0, AT_END);
    }
    f.val = val, f.steps = product, f.count = 2;
    f.out = &out[0], f.out2 = both ? &out2[0] : NULL;
    CHECK(fmm_fused(&cpu, a, &f, 1) == FMM_OK, "%s", fmm_last_error());
    for (int k = 1; fmm_algorithms(FMM_FUSED, FMM_CPU, k); k++) {
        const fmm_algorithm *other = fmm_algorithms(FMM_FUSED, FMM_CPU, k);
        int calls = 0;
        for (int own = 0; own < 2; own++) {
            f.out = &out[1], f.out2 = both ? &out2[1] : NULL;
            f.function = own ? same_product : NULL, f.ctx = &calls;
            poison(&out[1]), poison(&out2[1]);
            const fmm_status status = fmm_fused(&cpu, a, &f, other->number);
            if (status == FMM_UNSUPPORTED || status == FMM_INVALID_ARGUMENT) continue;
            CHECK(status == FMM_OK && (calls > 0) == own, "%s: %s", other->name, fmm_last_error());
            compare(&out[0], &out[1], &f, other->name);
            compare(both ? &out2[0] : NULL, &out2[1], &f, other->name);
        }
    }
    f.function = same_product, f.ctx = &(int){0}, f.out = &out[1], f.out2 = both ? &out2[1] : NULL;
    CHECK(fmm_fused(&cpu, a, &f, 1) == FMM_OK, "%s", fmm_last_error());
    compare(&out[0], &out[1], &f, "reference");
    release_from(kept);
}

int main(void)
{
    for (fmm_dtype dtype = FMM_F32; dtype <= FMM_F64; dtype++) {
        const fmm_csr a = matrix(DENSE_ROWS, N, N, true, AT_END);
        const fmm_dense val = view(dtype, a.nnz, HEADS, 1, 0, AT_END);
        fmm_dense wide[4], narrow[2];
        fill(&val, RANDOM);
        for (int k = 0; k < 4; k++) {
            wide[k] = view(dtype, N, HEADS, FEAT, 1, AT_END);
            fill(&wide[k], RANDOM);
        }
        for (int k = 0; k < 2; k++) {
            narrow[k] = view(dtype, N, HEADS, 1, 0, AT_END);
            fill(&narrow[k], RANDOM);
        }
        for (int64_t c = 0; c < FEAT; c++)
            set(&wide[0], 3, 0, c, get(&wide[1], 4, 0, c)); /* ties */
        for (fmm_score score = 0; score <= FMM_SCORE_ADDITIVE; score++)
            for (fmm_message message = 0; message <= FMM_MESSAGE_MIN; message++)
                for (fmm_activation act = 0; act <= FMM_ACT_TANH; act++)
                    for (fmm_pass pass = FMM_FORWARD; pass <= FMM_COLS; pass++) {
                        const bool thin = score == FMM_SCORE_ADDITIVE;
                        const bool scale = message == FMM_MESSAGE_SCALE;
                        const fmm_dense *g = thin && !scale ? &narrow[1] : &wide[3];
                        check(&a,
                              (fmm_fusion){.pass = pass,
                                           .score = score,
                                           .message = message,
                                           .activation = act,
                                           .x = thin ? &narrow[0] : &wide[0],
                                           .y = thin ? &narrow[1] : &wide[1],
                                           .z = scale ? &wide[2] : NULL,
                                           .g = pass ? g : NULL},
                              &val);
                    }
        release_all();
    }
    return finish();
}
