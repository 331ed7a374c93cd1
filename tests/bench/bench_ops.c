// Operations other than matrices: attention in decode (against bytes of cache read) and prefill (flops), the delta rule, row
// operations.
//
//   bench_ops [--isa NAME] [--threads N] [--runs N] [--ctx N] [--tokens N]
//
// The shapes are those of an 8B model (32 heads, 8 key/value heads of 128). With one thread times are
// its processor time (neighbours count little), with more they are wall time; the best of the runs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/ops.h"

enum {
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    FFN = 12288,
    V_HEADS = 32,
    K_HEADS = 16
};

struct options {
    const char *isa;
    int n_threads, n_runs;
    uint32_t n_ctx, n_tokens;
};

struct bench {
    struct options o;
    struct atsi_program program;
    struct atsi_pool *pool; // of the call that is timed; NULL: the calling thread alone
    float *memory[8];       // operands, large enough for all
    struct atsi_round round;
};

// Bytes that are ordinary numbers however they are read: as floats of 1e-9 to 4e-3, halves of 0.1 to 1 (also where they are
// scales of Q8_0), integers of 48 to 59.
static void *filled(size_t bytes) {
    uint8_t *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) abort();
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(0x30 + (i * 2654435761u >> 16) % 12);
    return p;
}

// Appends an op whose operands lie in memory[0], [1], ... in the order inputs, outputs.
static struct atsi_op_call make_call(struct bench *b, struct atsi_op *op, const uint32_t *in_widths,
                                     uint32_t out_width) {
    struct atsi_op_call call = {.op = op, .round = {.round = &b->round}};
    int i = 0;
    for (; i < ATSI_OP_MAX_IN && in_widths[i] != 0; i++)
        call.in[i] = (struct atsi_rows_ref){b->memory[i], in_widths[i], in_widths[i]};
    call.out[0] = (struct atsi_rows_ref){b->memory[i], out_width, out_width};
    return call;
}

static double time_us(const struct bench *b) {
    struct timespec t;
    clock_gettime(b->pool == NULL ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double best_us(struct bench *b, const struct atsi_op_call *call) {
    struct atsi_error err;
    struct atsi_cpu *cpu;
    double best = 1e30;
    b->program.ops = (struct atsi_op *)(uintptr_t)call->op;
    b->program.n_ops = 1;
    if ((b->o.n_threads > 1 && atsi_pool_create(b->o.n_threads, &b->pool, &err) != ATSI_OK) ||
        atsi_cpu_create(b->o.isa, &b->program, b->o.n_tokens, 1, b->o.n_ctx, b->o.n_threads, &cpu, &err) != ATSI_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.text);
        exit(1);
    }
    for (int run = 0; run < b->o.n_runs; run++) {
        double start = time_us(b);
        atsi_cpu_run(cpu, b->pool, call, 1);
        double us = time_us(b) - start;
        if (us < best) best = us;
    }
    atsi_pool_free(b->pool); // its threads may still look at what they ran
    atsi_cpu_free(cpu);
    b->pool = NULL;
    return best;
}

static void bench_attention(struct bench *b, enum atsi_dtype type) {
    struct atsi_state state = {.kind = ATSI_STATE_KV, .n_heads = KV_HEADS, .k_dim = DIM, .v_dim = DIM};
    struct atsi_buffer buffers[1] = {{.width = 1}};
    struct atsi_op op = {.kind = ATSI_OP_ATTENTION, .u.attention = {HEADS, KV_HEADS, 0.088f}};
    b->program.states = &state;
    b->program.buffers = buffers;
    struct atsi_op_call call =
        make_call(b, &op, (const uint32_t[]){HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, 0, 0}, HEADS * DIM);
    size_t row_bytes = (size_t)atsi_dtype_row_bytes(type, DIM) * KV_HEADS;
    call.state = (struct atsi_state_ref){filled(row_bytes * b->o.n_ctx), filled(row_bytes * b->o.n_ctx), &state, type,
                                         b->o.n_ctx};
    b->round = (struct atsi_round){.n_tokens = 1, .first_pos = (int32_t)b->o.n_ctx - 1};
    double us = best_us(b, &call);
    printf("attention decode  %-5s %5u positions   %9.1f us  %6.1f GB/s of cache\n", atsi_dtype_name(type), b->o.n_ctx,
           us, 2e-3 * (double)row_bytes * b->o.n_ctx / us);
    b->round =
        (struct atsi_round){.n_tokens = (int32_t)b->o.n_tokens, .first_pos = (int32_t)(b->o.n_ctx - b->o.n_tokens)};
    us = best_us(b, &call);
    double seen = b->o.n_ctx - b->o.n_tokens / 2.0, flops = 4.0 * HEADS * DIM * seen * b->o.n_tokens;
    printf("attention prefill %-5s %5u tokens      %9.1f us  %6.1f GFLOP/s\n", atsi_dtype_name(type), b->o.n_tokens, us,
           1e-3 * flops / us);
    free(call.state.k);
    free(call.state.v);
}

static void bench_delta(struct bench *b) {
    struct atsi_state state = {.kind = ATSI_STATE_DELTA, .n_heads = V_HEADS, .k_dim = DIM, .v_dim = DIM};
    struct atsi_buffer buffers[1] = {{.width = 1}};
    struct atsi_op op = {.kind = ATSI_OP_DELTA_RULE, .u.delta = {K_HEADS, V_HEADS, false, 1e-6f}};
    b->program.states = &state;
    b->program.buffers = buffers;
    struct atsi_op_call call = make_call(
        b, &op, (const uint32_t[]){K_HEADS * DIM, K_HEADS * DIM, V_HEADS * DIM, V_HEADS, V_HEADS}, V_HEADS * DIM);
    float rate[V_HEADS], bias[V_HEADS];
    for (int h = 0; h < V_HEADS; h++) rate[h] = -1, bias[h] = 0;
    call.tensor[0].data = rate;
    call.tensor[1].data = bias;
    call.state = (struct atsi_state_ref){.k = filled(sizeof(float) * V_HEADS * DIM * DIM), .info = &state};
    for (uint32_t n = 1; n <= b->o.n_tokens; n += b->o.n_tokens - 1) {
        b->round = (struct atsi_round){.n_tokens = (int32_t)n};
        double us = best_us(b, &call);
        printf("delta rule        %5u tokens            %9.1f us  %6.1f GFLOP/s\n", n, us,
               1e-3 * 7.0 * V_HEADS * DIM * DIM * n / us);
        if (b->o.n_tokens == 1) break;
    }
    free(call.state.k);
}

static void bench_row(struct bench *b, const char *name, struct atsi_op op, uint32_t in, uint32_t second,
                      uint32_t out) {
    struct atsi_buffer buffers[1] = {{.width = out}};
    b->program.buffers = buffers;
    struct atsi_op_call call = make_call(b, &op, (const uint32_t[]){in, second, 0, 0, 0}, out);
    float frequencies[DIM / 2];
    for (int i = 0; i < DIM / 2; i++) frequencies[i] = 1.0f / (float)(i + 1);
    if (op.kind == ATSI_OP_ROPE) call.tensor[0].data = frequencies;
    b->round = (struct atsi_round){.n_tokens = 1, .first_pos = 1000};
    printf("%-17s %5u wide              %9.2f us a row\n", name, out, best_us(b, &call));
}

static struct options parse(int argc, char **argv) {
    struct options o = {.n_threads = 1, .n_runs = 20, .n_ctx = 4096, .n_tokens = 256};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0)
            o.isa = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--runs") == 0)
            o.n_runs = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--ctx") == 0)
            o.n_ctx = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--tokens") == 0)
            o.n_tokens = (uint32_t)atoi(argv[i + 1]);
        else {
            fprintf(stderr, "bench_ops: unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv) {
    struct bench b = {.o = parse(argc, argv)};
    static const enum atsi_dtype TYPES[] = {ATSI_F32, ATSI_F16, ATSI_Q8_0};
    for (int i = 0; i < 8; i++) b.memory[i] = filled(sizeof(float) * FFN * (b.o.n_tokens + 1));
    for (int i = 0; i < 3; i++) bench_attention(&b, TYPES[i]);
    bench_delta(&b);
    bench_row(&b, "rms norm", (struct atsi_op){.kind = ATSI_OP_RMS_NORM, .u.norm = {4096, 1e-6f}}, 4096, 0, 4096);
    bench_row(&b, "rope", (struct atsi_op){.kind = ATSI_OP_ROPE, .u.rope = {HEADS, DIM, DIM, ATSI_ROPE_HALF_SPLIT, 1}},
              HEADS * DIM, 0, HEADS * DIM);
    bench_row(&b, "rope interleaved",
              (struct atsi_op){.kind = ATSI_OP_ROPE, .u.rope = {HEADS, DIM, DIM, ATSI_ROPE_INTERLEAVED, 1}},
              HEADS * DIM, 0, HEADS * DIM);
    bench_row(&b, "glu silu", (struct atsi_op){.kind = ATSI_OP_GLU, .u.glu = {ATSI_GLU_SILU, 0, 0}}, FFN, FFN, FFN);
    bench_row(&b, "add", (struct atsi_op){.kind = ATSI_OP_ADD}, 4096, 4096, 4096);
    for (int i = 0; i < 8; i++) free(b.memory[i]);
    return 0;
}
