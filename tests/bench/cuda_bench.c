// cuda_bench.c: the bench's device, its operations and its clock.
#ifdef ATSI_CUDA
#include "tests/bench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_device.h"

void bench_ok(const struct bench *b, enum atsi_status status) {
    if (status == ATSI_OK) return;
    fprintf(stderr, "bench_cuda: %s\n", b->err.text);
    exit(1);
}

static void *device_memory(struct bench *b, uint64_t bytes) {
    void *dev = NULL;
    DO(b, alloc(b->d, bytes, &dev, &b->err));
    return dev;
}

void *rotate(struct bench *b, uint64_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (b->next + bytes > b->pool_bytes) b->next = 0;
    void *at = b->pool + b->next;
    b->next += bytes;
    return at;
}

// Random bytes whose 16-bit halves are ordinary half floats, so that no kernel meets infinities.
static void fill(struct bench *b, void *dev, uint64_t bytes) {
    enum {
        PIECE = 16 << 20
    };
    static uint16_t piece[PIECE / 2];
    uint32_t x = 12345;
    for (size_t i = 0; i < PIECE / 2; i++) {
        x = x * 1664525u + 1013904223u;
        piece[i] = (uint16_t)((x >> 16 & 0x83ff) | (0x1c00 + (x >> 8 & 0x1400)));
    }
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        DO(b, copy_to_device(b->s, (uint8_t *)dev + at, piece, n, &b->err));
    }
    DO(b, stream_sync(b->s, &b->err));
}

void set_round(struct bench *b, int n_tokens, int first_pos) {
    DO(b, stream_sync(b->s, &b->err));
    *b->mapped_round = (struct atsi_round){.n_tokens = n_tokens, .n_outputs = 1, .first_pos = first_pos};
    DO(b, copy_rows(b->s, b->round, 4, b->mapped_round_dev, 4, 4, 1, &b->err));
    DO(b, stream_sync(b->s, &b->err));
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double time_graph(struct bench *b, void *graph, int n) {
    float us[N_REPEATS];
    DO(b, graph_launch(b->s, graph, &b->err));
    for (int i = 0; i < N_REPEATS; i++) {
        DO(b, event_record(b->from, b->s, &b->err));
        DO(b, graph_launch(b->s, graph, &b->err));
        DO(b, event_record(b->to, b->s, &b->err));
        DO(b, stream_sync(b->s, &b->err));
        DO(b, event_elapsed_us(b->from, b->to, &us[i], &b->err));
    }
    b->d->ops->graph_destroy(b->d, graph);
    qsort(us, N_REPEATS, sizeof *us, ascending);
    return us[N_REPEATS / 2] / n;
}

// ---- one operation ---------------------------------------------------------------------------------------------------------

struct atsi_tensor tensor_of(enum atsi_dtype dtype, uint64_t n_cols, uint64_t n_out, uint64_t n_experts) {
    struct atsi_tensor t = {.dtype = dtype, .layout = atsi_layout_of(dtype), .ne = {n_cols, n_out, n_experts, 1}};
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    return t;
}

void launch(struct bench *b, struct atsi_op_call *call, int n_tokens) {
    struct atsi_round round = {.n_tokens = n_tokens, .n_outputs = 1};
    call->round = (struct atsi_round_ref){b->round, b->ids, b->ids};
    DO(b, launch(b->s, call, &round, &b->err));
}

void matmul(struct bench *b, const struct atsi_tensor *t, float *in, float *out, bool add, int n_tokens) {
    struct atsi_op op = {.kind = ATSI_OP_MATMUL, .add = add};
    struct atsi_op_call call = {.op = &op,
                                .in = {rows(in, (uint32_t)t->ne[0])},
                                .out = {rows(out, (uint32_t)t->ne[1])},
                                .tensor = {{rotate(b, t->size_bytes), t}}};
    launch(b, &call, n_tokens);
}

void report_bytes(const struct bench *b, const char *what, double us, double bytes) {
    printf("%-52s %9.1f us %8.0f GB/s %5.1f %% of copy\n", what, us, bytes / us / 1e3,
           100 * bytes / us / b->copy_bytes_per_us);
}
void report_operations(const char *what, double us, double operations) {
    printf("%-52s %9.1f us %8.1f TFLOP/s\n", what, us, operations / us / 1e6);
}

void attention(struct bench *b, struct heads h, enum atsi_dtype kv_type, uint32_t capacity, float *qkv, float *out,
               int n_tokens) {
    struct atsi_state state = {.kind = ATSI_STATE_KV, .n_heads = h.n_kv_heads, .k_dim = h.dim, .v_dim = h.dim};
    uint64_t bytes = (uint64_t)capacity * h.n_kv_heads * atsi_dtype_row_bytes(kv_type, h.dim);
    uint32_t q = h.n_heads * h.dim, kv = h.n_kv_heads * h.dim, stride = q + 2 * kv;
    struct atsi_op op = {.kind = ATSI_OP_ATTENTION, .u.attention = {h.n_heads, h.n_kv_heads, 0.08f}};
    struct atsi_op_call call = {.op = &op,
                                .in = {{qkv, stride, q}, {qkv + q, stride, kv}, {qkv + q + kv, stride, kv}},
                                .out = {rows(out, q)},
                                .state = {rotate(b, bytes), rotate(b, bytes), &state, kv_type, capacity}};
    launch(b, &call, n_tokens);
}

// ---- set-up --------------------------------------------------------------------------------------------------------------------

// A program with the widest of everything, for the device's scratch memory and kernels.
static void prepare(struct bench *b) {
    struct atsi_program *p = &b->program;
    int32_t buffer = atsi_program_add_buffer(p, "rows", WIDTH_MAX, ATSI_ROWS_TOKENS, false);
    int32_t state = ATSI_NONE; // the last: the widest
    for (uint32_t i = 0; i < 5; i++) {
        static const uint32_t DIMS[] = {64, 80, 96, 128, 256};
        struct atsi_state kv = {.kind = ATSI_STATE_KV, .n_heads = 8, .k_dim = DIMS[i], .v_dim = DIMS[i]};
        state = atsi_program_add_state(p, &kv);
    }
    for (int dtype = 0; dtype < ATSI_DTYPE_LIMIT; dtype++) {
        if (atsi_dtype_info((uint32_t)dtype) == NULL) continue;
        struct atsi_tensor t = tensor_of((enum atsi_dtype)dtype, 17408, 16, 1);
        struct atsi_op op = {.kind = ATSI_OP_MATMUL,
                             .in = {{buffer, 0, 17408}},
                             .out = {{buffer, 0, 16}},
                             .tensor = {atsi_program_add_tensor(p, &t)}};
        atsi_program_add_op(p, &op);
    }
    struct atsi_op attend = {.kind = ATSI_OP_ATTENTION, .state = state, .u.attention = {64, 8, 1.0f}};
    atsi_program_add_op(p, &attend);
    struct atsi_tensor t = tensor_of(ATSI_Q4_K, 256, 16, 128);
    struct atsi_op choose = {.kind = ATSI_OP_EXPERTS,
                             .in = {{buffer, 0, 256}, {buffer, 0, 8}},
                             .out = {{buffer, 0, 128}},
                             .tensor = {atsi_program_add_tensor(p, &t)},
                             .u.experts = {128, 8, false}};
    atsi_program_add_op(p, &choose);
    DO(b, prepare(b->d, p, ROWS_MAX, 1, 40000, &b->err));
}

static void measure_copy(struct bench *b) {
    uint64_t half = (uint64_t)POOL_MIB << 19;
    uint32_t width = 1 << 20, n_rows = (uint32_t)(half / 4 / width);
    void *graph = NULL;
    DO(b, capture_begin(b->s, &b->err));
    DO(b, copy_rows(b->s, b->pool + half, width, b->pool, width, width, n_rows, &b->err));
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, 1);
    b->copy_bytes_per_us = 2.0 * (double)half / us;
    printf("copy in device memory: %.0f GB/s (bytes read and written)\n", b->copy_bytes_per_us / 1e3);
}

void bench_open(struct bench *b) {
    void *host = NULL;
    if (atsi_cuda_open(&b->d, &b->err) != ATSI_OK) bench_ok(b, ATSI_FAILED);
    DO(b, stream_create(b->d, &b->s, &b->err));
    DO(b, event_create(b->d, true, &b->from, &b->err));
    DO(b, event_create(b->d, true, &b->to, &b->err));
    DO(b, host_alloc(b->d, sizeof(struct atsi_round), &host, &b->mapped_round_dev, &b->err));
    b->mapped_round = host;
    b->round = device_memory(b, sizeof(struct atsi_round));
    b->pool_bytes = (uint64_t)POOL_MIB << 20;
    b->pool = device_memory(b, b->pool_bytes);
    fill(b, b->pool, b->pool_bytes);
    for (int i = 0; i < 4; i++) {
        b->rows[i] = device_memory(b, (uint64_t)ROWS_MAX * WIDTH_MAX * sizeof(float));
        fill(b, b->rows[i], (uint64_t)ROWS_MAX * WIDTH_MAX * sizeof(float));
    }
    b->ids = device_memory(b, (uint64_t)ROWS_MAX * 64 * sizeof(int32_t));
    b->logits = device_memory(b, (uint64_t)ROWS_MAX * 128 * sizeof(float));
    b->weights = device_memory(b, (uint64_t)ROWS_MAX * 64 * sizeof(float));
    prepare(b);
    set_round(b, 1, 0);
    struct atsi_device_info info;
    DO(b, info(b->d, &info, &b->err));
    printf("%s, process holds %.0f MiB\n", info.name, (double)info.used_by_process_bytes / 1048576.0);
    measure_copy(b);
}

void bench_close(struct bench *b) {
    b->d->ops->close(b->d);
    atsi_program_free(&b->program);
}
#endif
