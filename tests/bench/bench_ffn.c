// A decoded token's feed-forward block on the CPU as it runs in a round, as one list of operations: gate, up and GLU, alone and with down
// behind, in the shapes of models; of experts with so many of a token's slots as are the CPU's.
//
//   bench_ffn [--isa NAME] [--threads N] [--runs N] [--pause US]
//
// Weights are cold: experts are drawn at random, dense layers rotate. Between two lists the pool waits for --pause microseconds, as
// it does while the device works. Times are wall time, medians and tenth percentiles of the runs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "formats/base/sort.h"
#include "kernels/cpu/ops.h"
#include "kernels/layout.h"

struct model {
    const char *name;
    enum atsi_dtype dtype;
    uint32_t width, n_ff;
    uint32_t n_experts, n_used; // n_used 0: dense, n_experts layers
    bool biased;
    struct atsi_glu_params glu;
};

static const struct model MODELS[] = {
    {"Qwen3-30B-A3B", ATSI_Q4_K, 2048, 768, 128, 8, false, {ATSI_GLU_SILU, 0, 0}},
    {"GPT-OSS-20B", ATSI_MXFP4, 2880, 2880, 32, 4, true, {ATSI_GLU_CLAMPED, 1.702f, 7}},
    {"Qwen3-14B", ATSI_Q4_K, 5120, 17408, 3, 0, false, {ATSI_GLU_SILU, 0, 0}},
};

enum {
    GATE,
    UP,
    DOWN,
    N_MATRICES,
    N_CALLS = 4 // gate, up, GLU, down
};

struct options {
    const char *isa;
    int n_threads, n_runs;
    double pause_us;
};

struct bench {
    struct options o;
    const struct model *model;
    struct atsi_program program;
    void *weights[N_MATRICES];
    float *biases, *in, *gate, *up, *out; // zero biases
    int32_t ids[64];
    struct atsi_round round;
    struct atsi_op_call calls[N_CALLS];
    struct atsi_pool *pool;
    struct atsi_cpu *cpu;
};

static void fail(const char *text) {
    fprintf(stderr, "bench_ffn: %s\n", text);
    exit(1);
}

// Bytes that are ordinary numbers however they are read: scales, too.
static void *filled(size_t bytes) {
    uint8_t *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) fail("out of memory");
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(0x30 + (i * 2654435761u >> 16) % 12);
    return p;
}

static uint64_t random_next(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static uint32_t n_slots(const struct model *m) { return m->n_used > 0 ? m->n_used : 1; }

static uint64_t expert_bytes(const struct bench *b) {
    return b->program.tensors[GATE].size_bytes / b->model->n_experts;
}

// ---- the list -------------------------------------------------------------------------------------------------------

static void add_matrix(struct bench *b, int i) {
    const struct model *m = b->model;
    struct atsi_tensor t = {.dtype = m->dtype,
                            .layout = atsi_layout_of(m->dtype),
                            .ne = {i == DOWN ? m->n_ff : m->width, i == DOWN ? m->width : m->n_ff, m->n_experts, 1}};
    snprintf(t.name, sizeof t.name, "matrix.%d", i);
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    if (atsi_program_add_tensor(&b->program, &t) != i) fail("out of memory");
    b->weights[i] = filled((size_t)t.size_bytes);
}

static int32_t add_buffer(struct bench *b, const char *name, uint32_t width) {
    return atsi_program_add_buffer(&b->program, name, width, ATSI_ROWS_TOKENS, false);
}

static void add_op(struct bench *b, enum atsi_op_kind kind, int32_t tensor, int32_t in, int32_t out) {
    const struct model *m = b->model;
    struct atsi_op op = {.kind = kind, .tensor = {tensor, ATSI_NONE}, .state = ATSI_NONE};
    op.in[0] = (struct atsi_view){in, 0, b->program.buffers[in].width};
    op.out[0] = (struct atsi_view){out, 0, b->program.buffers[out].width};
    if (kind == ATSI_OP_GLU)
        op.u.glu = m->glu;
    else
        op.u.experts = (struct atsi_experts_params){m->n_experts, m->n_used, tensor == DOWN};
    if (atsi_program_add_op(&b->program, &op) < 0) fail("out of memory");
}

static struct atsi_rows_ref row(void *data, uint32_t width) { return (struct atsi_rows_ref){data, width, width}; }

static void set_call(struct bench *b, int i, void *in, void *second, void *out) {
    const struct atsi_op *op = &b->program.ops[i];
    struct atsi_op_call *call = &b->calls[i];
    *call = (struct atsi_op_call){.op = op, .round = {.round = &b->round}};
    call->in[0] = row(in, op->in[0].width);
    if (op->kind == ATSI_OP_GLU) call->in[1] = row(second, op->in[0].width);
    if (op->kind == ATSI_OP_EXPERTS) call->in[1] = row(b->ids, b->model->n_used);
    call->out[0] = row(out, op->out[0].width);
    if (op->kind == ATSI_OP_GLU) return;
    call->tensor[0] = (struct atsi_tensor_ref){b->weights[op->tensor[0]], &b->program.tensors[op->tensor[0]]};
    if (b->model->biased) call->tensor[1].data = b->biases;
}

static void build(struct bench *b) {
    const struct model *m = b->model;
    enum atsi_op_kind product = m->n_used > 0 ? ATSI_OP_EXPERTS : ATSI_OP_MATMUL;
    uint32_t n_mid = n_slots(m) * m->n_ff, n_out = n_slots(m) * m->width;
    for (int i = 0; i < N_MATRICES; i++) add_matrix(b, i);
    int32_t in = add_buffer(b, "in", m->width), gate = add_buffer(b, "gate", n_mid), up = add_buffer(b, "up", n_mid),
            out = add_buffer(b, "out", n_out);
    add_op(b, product, GATE, in, gate);
    add_op(b, product, UP, in, up);
    add_op(b, ATSI_OP_GLU, ATSI_NONE, gate, gate);
    add_op(b, product, DOWN, gate, out);
    b->in = filled(sizeof(float) * m->width);
    b->gate = filled(sizeof(float) * n_mid);
    b->up = filled(sizeof(float) * n_mid);
    b->out = filled(sizeof(float) * n_out);
    b->biases = calloc((size_t)m->n_experts * (m->n_ff > m->width ? m->n_ff : m->width), sizeof(float));
    if (b->biases == NULL) fail("out of memory");
    b->round = (struct atsi_round){.n_tokens = 1};
    set_call(b, 0, b->in, NULL, b->gate);
    set_call(b, 1, b->in, NULL, b->up);
    set_call(b, 2, b->gate, b->up, b->gate);
    set_call(b, 3, b->gate, NULL, b->out);
}

static void drop(struct bench *b) {
    for (int i = 0; i < N_MATRICES; i++) free(b->weights[i]);
    free(b->in);
    free(b->gate);
    free(b->up);
    free(b->out);
    free(b->biases);
    atsi_program_free(&b->program);
    memset(&b->program, 0, sizeof b->program);
}

// ---- measuring ------------------------------------------------------------------------------------------------------

// Other experts, the last n of them the CPU's; dense: the next layer.
static void choose_weights(struct bench *b, uint32_t n, int run) {
    const struct model *m = b->model;
    for (uint32_t i = 0; i < m->n_used; i++) b->ids[i] = -1;
    for (uint32_t i = m->n_used - n; m->n_used > 0 && i < m->n_used;) {
        int32_t id = (int32_t)(random_next() % m->n_experts);
        bool is_new = true;
        for (uint32_t k = 0; k < i; k++) is_new = is_new && b->ids[k] != id;
        if (is_new) b->ids[i++] = id;
    }
    for (int i = 0; i < N_CALLS && m->n_used == 0; i++)
        if (b->calls[i].op->kind == ATSI_OP_MATMUL)
            b->calls[i].tensor[0].data =
                (uint8_t *)b->weights[b->calls[i].op->tensor[0]] + (uint64_t)run % m->n_experts * expert_bytes(b);
}

static void wait_us(double us) {
    for (double end_us = atsi_clock_us() + us; atsi_clock_us() < end_us;) {}
}

static void measure(struct bench *b, uint32_t n, int n_calls) {
    size_t n_runs = (size_t)b->o.n_runs, n_matrices = n_calls == N_CALLS ? N_MATRICES : N_MATRICES - 1;
    double *times = calloc(n_runs, sizeof *times);
    if (times == NULL) fail("out of memory");
    for (int run = -2; run < b->o.n_runs; run++) {
        choose_weights(b, n, run + 2);
        wait_us(b->o.pause_us);
        double start_us = atsi_clock_us();
        atsi_cpu_run(b->cpu, b->pool, b->calls, n_calls);
        if (run >= 0) times[run] = atsi_clock_us() - start_us;
    }
    atsi_sort_doubles(times, n_runs);
    double bytes = (double)expert_bytes(b) * n * (double)n_matrices;
    printf("%-14s %u of %u  %-20s %2u phases  %8.1f us median  %8.1f us tenth percentile  %6.1f GB/s\n", b->model->name,
           n, n_slots(b->model), n_calls == N_CALLS ? "gate, up, GLU, down" : "gate, up, GLU",
           atsi_cpu_n_phases(b->cpu), times[n_runs / 2], times[n_runs / 10], 1e-3 * bytes / times[n_runs / 2]);
    free(times);
}

static void bench_model(struct bench *b) {
    struct atsi_error err;
    build(b);
    if ((b->o.n_threads > 1 && atsi_pool_create(b->o.n_threads, &b->pool, &err) != ATSI_OK) ||
        atsi_cpu_create(b->o.isa, &b->program, 1, 1, 1, b->o.n_threads, &b->cpu, &err) != ATSI_OK)
        fail(err.text);
    for (int n_calls = N_CALLS - 1; n_calls <= N_CALLS; n_calls++)
        for (uint32_t n = 1; n <= n_slots(b->model); n += n < 4 ? 1 : 4) measure(b, n, n_calls);
    atsi_pool_free(b->pool);
    atsi_cpu_free(b->cpu);
    b->pool = NULL;
    drop(b);
}

static struct options parse(int argc, char **argv) {
    struct options o = {.n_threads = 1, .n_runs = 200, .pause_us = 40};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0)
            o.isa = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--runs") == 0)
            o.n_runs = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--pause") == 0)
            o.pause_us = atof(argv[i + 1]);
        else {
            fprintf(stderr, "bench_ffn: unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    if (o.n_runs < 1 || o.n_threads < 1) fail("--runs and --threads are at least 1");
    return o;
}

int main(int argc, char **argv) {
    struct bench b = {.o = parse(argc, argv)};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        b.model = &MODELS[i];
        bench_model(&b);
    }
    return 0;
}
