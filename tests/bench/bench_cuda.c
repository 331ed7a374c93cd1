// The kernels on a card: bytes or operations a second at the shapes of Qwen3-14B, Qwen3-30B-A3B and GPT-OSS-20B, beside the card's
// copy bandwidth measured in the same run. Weights rotate through more memory than the L2 cache holds.
//   bench_cuda [matrices|attention|model]      without a word: all
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ATSI_CUDA
#include "formats/dtype.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/layout.h"

enum {
    N_REPEATS = 7,
    POOL_MIB = 3072
};

struct bench {
    struct atsi_device *d;
    struct atsi_stream *s;
    struct atsi_event *from, *to;
    struct atsi_error err;
    struct atsi_program program; // what the device was prepared for
    uint8_t *pool;               // random bytes that stand for every weight and cache
    uint64_t next;               // rotates through the pool
    float *rows[4];              // activations, ROWS_MAX rows of WIDTH_MAX each
    int32_t *ids;
    void *round, *mapped_round_dev;
    struct atsi_round *mapped_round;
    double copy_bytes_per_us;
};
enum {
    ROWS_MAX = 2048,
    WIDTH_MAX = 34816
};

static void ok(const struct bench *b, enum atsi_status status) {
    if (status == ATSI_OK) return;
    fprintf(stderr, "bench_cuda: %s\n", b->err.text);
    exit(1);
}
#define DO(b, call) ok(b, (b)->d->ops->call)

static void *device_memory(struct bench *b, uint64_t bytes) {
    void *dev = NULL;
    DO(b, alloc(b->d, bytes, &dev, &b->err));
    return dev;
}

// The next `bytes` of the pool, not used for the longest time.
static void *rotate(struct bench *b, uint64_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (b->next + bytes > (uint64_t)POOL_MIB << 20) b->next = 0;
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

static void set_round(struct bench *b, int n_tokens, int first_pos) {
    DO(b, stream_sync(b->s, &b->err));
    *b->mapped_round = (struct atsi_round){n_tokens, 1, first_pos, 0};
    DO(b, copy_rows(b->s, b->round, 4, b->mapped_round_dev, 4, 4, 1, &b->err));
    DO(b, stream_sync(b->s, &b->err));
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// Median time of `graph`, which holds n pieces of work, for one piece.
static double time_graph(struct bench *b, void *graph, int n) {
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

static struct atsi_tensor tensor_of(enum atsi_dtype dtype, uint64_t n_cols, uint64_t n_out, uint64_t n_experts) {
    struct atsi_tensor t = {.dtype = dtype, .layout = atsi_layout_of(dtype), .ne = {n_cols, n_out, n_experts, 1}};
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    return t;
}

static struct atsi_rows_ref rows(float *data, uint32_t width) { return (struct atsi_rows_ref){data, width, width}; }

static void launch(struct bench *b, struct atsi_op_call *call, int n_tokens) {
    struct atsi_round round = {n_tokens, 1, 0, 0};
    call->round = (struct atsi_round_ref){b->round, b->ids, b->ids};
    DO(b, launch(b->s, call, &round, &b->err));
}

static void matmul(struct bench *b, const struct atsi_tensor *t, float *in, float *out, bool add, int n_tokens) {
    struct atsi_op op = {.kind = ATSI_OP_MATMUL, .add = add};
    struct atsi_op_call call = {.op = &op,
                                .in = {rows(in, (uint32_t)t->ne[0])},
                                .out = {rows(out, (uint32_t)t->ne[1])},
                                .tensor = {{rotate(b, t->size_bytes), t}}};
    launch(b, &call, n_tokens);
}

static void report_bytes(const struct bench *b, const char *what, double us, double bytes) {
    printf("%-52s %9.1f us %8.0f GB/s %5.1f %% of copy\n", what, us, bytes / us / 1e3,
           100 * bytes / us / b->copy_bytes_per_us);
}
static void report_operations(const char *what, double us, double operations) {
    printf("%-52s %9.1f us %8.1f TFLOP/s\n", what, us, operations / us / 1e6);
}

static void time_matmul(struct bench *b, enum atsi_dtype dtype, uint32_t n_cols, uint32_t n_out, int n_tokens) {
    struct atsi_tensor t = tensor_of(dtype, n_cols, n_out, 1);
    void *graph = NULL;
    int n = n_tokens > 8 ? 4 : 20;
    char what[80];
    snprintf(what, sizeof what, "matmul %s %u x %u, %d tokens", atsi_dtype_name(dtype), n_cols, n_out, n_tokens);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < n; i++) matmul(b, &t, b->rows[0], b->rows[1], false, n_tokens);
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, n);
    if (n_tokens <= 8)
        report_bytes(b, what, us, (double)t.size_bytes);
    else
        report_operations(what, us, 2.0 * n_cols * n_out * n_tokens);
}

static void time_experts(struct bench *b, enum atsi_dtype dtype, uint32_t n_cols, uint32_t n_out, uint32_t n_experts,
                         uint32_t n_used, int n_tokens) {
    struct atsi_tensor t = tensor_of(dtype, n_cols, n_out, n_experts);
    struct atsi_op op = {.kind = ATSI_OP_EXPERTS, .u.experts = {n_experts, n_used, false}};
    void *graph = NULL;
    int n = n_tokens > 8 ? 4 : 20;
    char what[80];
    snprintf(what, sizeof what, "experts %s %u x %u, %u of %u, %d tokens", atsi_dtype_name(dtype), n_cols, n_out,
             n_used, n_experts, n_tokens);
    int32_t *host = malloc((size_t)ROWS_MAX * n_used * sizeof *host);
    for (uint32_t i = 0; i < ROWS_MAX * n_used; i++)
        host[i] = (int32_t)((i % n_used + i / n_used * 7 * n_used) % n_experts);
    DO(b, copy_to_device(b->s, b->ids, host, (uint64_t)ROWS_MAX * n_used * sizeof *host, &b->err));
    DO(b, stream_sync(b->s, &b->err));
    free(host);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < n; i++) {
        struct atsi_op_call call = {.op = &op,
                                    .in = {rows(b->rows[0], n_cols), {b->ids, n_used, n_used}},
                                    .out = {rows(b->rows[1], n_used * n_out)},
                                    .tensor = {{rotate(b, t.size_bytes), &t}}};
        launch(b, &call, n_tokens);
    }
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, n);
    if (n_tokens == 1)
        report_bytes(b, what, us, (double)t.size_bytes * n_used / n_experts);
    else
        report_operations(what, us, 2.0 * n_cols * n_out * n_tokens * n_used);
}

// ---- attention ---------------------------------------------------------------------------------------------------------------

struct heads {
    uint32_t n_heads, n_kv_heads, dim;
};

static void attention(struct bench *b, struct heads h, enum atsi_dtype kv_type, uint32_t capacity, float *qkv,
                      float *out, int n_tokens) {
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

static void time_attention(struct bench *b, struct heads h, enum atsi_dtype kv_type, int n_tokens, int first_pos) {
    uint32_t capacity = (uint32_t)(first_pos + n_tokens);
    void *graph = NULL;
    int n = n_tokens > 8 ? 2 : 20;
    char what[80];
    snprintf(what, sizeof what, "attention %u/%u x %u %s, %d tokens after %d", h.n_heads, h.n_kv_heads, h.dim,
             atsi_dtype_name(kv_type), n_tokens, first_pos);
    set_round(b, n_tokens, first_pos);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < n; i++) attention(b, h, kv_type, capacity, b->rows[0], b->rows[1], n_tokens);
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, n), seen = first_pos + (n_tokens + 1) / 2.0;
    if (n_tokens <= 8)
        report_bytes(b, what, us, 2.0 * capacity * h.n_kv_heads * (double)atsi_dtype_row_bytes(kv_type, h.dim));
    else
        report_operations(what, us, 4.0 * n_tokens * seen * h.n_heads * h.dim);
}

// ---- a model's round -----------------------------------------------------------------------------------------------------------

// Qwen3-14B with the types of Q4_K_M: half of the v and down matrices are Q6_K.
enum {
    LAYERS = 40,
    EMBED = 5120,
    FFN = 17408,
    HEADS = 40,
    KV_HEADS = 8,
    HEAD = 128,
    VOCAB = 151936
};

static void norm(struct bench *b, float *in, float *out, uint32_t width, uint32_t group, uint32_t stride,
                 int n_tokens) {
    struct atsi_tensor t = tensor_of(ATSI_F32, group, 1, 1);
    struct atsi_op op = {.kind = ATSI_OP_RMS_NORM, .u.norm = {group, 1e-6f}};
    struct atsi_op_call call = {.op = &op,
                                .in = {{in, stride, width}},
                                .out = {{out, stride, width}},
                                .tensor = {{rotate(b, t.size_bytes), &t}}};
    launch(b, &call, n_tokens);
}

static void rope(struct bench *b, float *data, uint32_t n_heads, uint32_t stride, int n_tokens) {
    struct atsi_tensor t = tensor_of(ATSI_F32, HEAD / 2, 1, 1);
    struct atsi_op op = {.kind = ATSI_OP_ROPE, .u.rope = {n_heads, HEAD, HEAD, ATSI_ROPE_HALF_SPLIT, 1.0f}};
    struct atsi_op_call call = {.op = &op,
                                .in = {{data, stride, n_heads * HEAD}},
                                .out = {{data, stride, n_heads * HEAD}},
                                .tensor = {{rotate(b, t.size_bytes), &t}}};
    launch(b, &call, n_tokens);
}

static double layer(struct bench *b, int i, int n_tokens, uint32_t capacity) {
    enum {
        Q = HEADS * HEAD,
        KV = KV_HEADS * HEAD,
        QKV = Q + 2 * KV
    };
    float *x = b->rows[0], *h = b->rows[1], *wide = b->rows[2], *up = b->rows[3];
    enum atsi_dtype mixed = i % 2 ? ATSI_Q6_K : ATSI_Q4_K;
    struct atsi_tensor q = tensor_of(ATSI_Q4_K, EMBED, Q, 1), k = tensor_of(ATSI_Q4_K, EMBED, KV, 1),
                       v = tensor_of(mixed, EMBED, KV, 1);
    struct atsi_tensor o = tensor_of(ATSI_Q4_K, Q, EMBED, 1), gate = tensor_of(ATSI_Q4_K, EMBED, FFN, 1),
                       down = tensor_of(mixed, FFN, EMBED, 1);
    const struct atsi_tensor *qkv[3] = {&q, &k, &v};
    norm(b, x, h, EMBED, EMBED, EMBED, n_tokens);
    float *at = wide;
    for (int m = 0; m < 3; m++, at += qkv[m - 1]->ne[1]) {
        struct atsi_op op = {.kind = ATSI_OP_MATMUL};
        struct atsi_op_call call = {.op = &op,
                                    .in = {rows(h, EMBED)},
                                    .out = {{at, QKV, (uint32_t)qkv[m]->ne[1]}},
                                    .tensor = {{rotate(b, qkv[m]->size_bytes), qkv[m]}}};
        launch(b, &call, n_tokens);
    }
    norm(b, wide, wide, Q, HEAD, QKV, n_tokens);
    norm(b, wide + Q, wide + Q, KV, HEAD, QKV, n_tokens);
    rope(b, wide, HEADS, QKV, n_tokens);
    rope(b, wide + Q, KV_HEADS, QKV, n_tokens);
    attention(b, (struct heads){HEADS, KV_HEADS, HEAD}, ATSI_F16, capacity, wide, h, n_tokens);
    matmul(b, &o, h, x, true, n_tokens);
    norm(b, x, h, EMBED, EMBED, EMBED, n_tokens);
    matmul(b, &gate, h, wide, false, n_tokens);
    matmul(b, &gate, h, up, false, n_tokens);
    struct atsi_op op = {.kind = ATSI_OP_GLU};
    struct atsi_op_call call = {.op = &op, .in = {rows(wide, FFN), rows(up, FFN)}, .out = {rows(wide, FFN)}};
    launch(b, &call, n_tokens);
    matmul(b, &down, wide, x, true, n_tokens);
    return (double)(q.size_bytes + k.size_bytes + v.size_bytes + o.size_bytes + 2 * gate.size_bytes + down.size_bytes);
}

static void time_model(struct bench *b, int n_tokens, int first_pos) {
    void *graph = NULL;
    double bytes = 0;
    char what[80];
    struct atsi_tensor head = tensor_of(ATSI_Q6_K, EMBED, VOCAB, 1);
    set_round(b, n_tokens, first_pos);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < LAYERS; i++) bytes += layer(b, i, n_tokens, (uint32_t)(first_pos + n_tokens));
    matmul(b, &head, b->rows[0], b->rows[2], false, 1);
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, 1);
    bytes += (double)head.size_bytes;
    snprintf(what, sizeof what, "Qwen3-14B Q4_K_M, %d tokens after %d", n_tokens, first_pos);
    if (n_tokens <= 8) report_bytes(b, what, us, bytes);
    printf("%-52s %9.1f us %8.1f tokens/s\n", what, us, 1e6 * n_tokens / us);
}

// ---- set-up --------------------------------------------------------------------------------------------------------------------

// A program with the widest of everything, for the device's scratch memory and kernels.
static void prepare(struct bench *b) {
    struct atsi_program *p = &b->program;
    struct atsi_state kv = {.kind = ATSI_STATE_KV, .n_heads = 8, .k_dim = 128, .v_dim = 128};
    int32_t buffer = atsi_program_add_buffer(p, "rows", WIDTH_MAX, ATSI_ROWS_TOKENS, false);
    int32_t state = atsi_program_add_state(p, &kv);
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

static void open_bench(struct bench *b) {
    void *host = NULL;
    if (atsi_cuda_open(&b->d, &b->err) != ATSI_OK) ok(b, ATSI_FAILED);
    DO(b, stream_create(b->d, &b->s, &b->err));
    DO(b, event_create(b->d, true, &b->from, &b->err));
    DO(b, event_create(b->d, true, &b->to, &b->err));
    DO(b, host_alloc(b->d, sizeof(struct atsi_round), &host, &b->mapped_round_dev, &b->err));
    b->mapped_round = host;
    b->round = device_memory(b, sizeof(struct atsi_round));
    b->pool = device_memory(b, (uint64_t)POOL_MIB << 20);
    fill(b, b->pool, (uint64_t)POOL_MIB << 20);
    for (int i = 0; i < 4; i++) {
        b->rows[i] = device_memory(b, (uint64_t)ROWS_MAX * WIDTH_MAX * sizeof(float));
        fill(b, b->rows[i], (uint64_t)ROWS_MAX * WIDTH_MAX * sizeof(float));
    }
    b->ids = device_memory(b, (uint64_t)ROWS_MAX * 64 * sizeof(int32_t));
    prepare(b);
    set_round(b, 1, 0);
    struct atsi_device_info info;
    DO(b, info(b->d, &info, &b->err));
    printf("%s, process holds %.0f MiB\n", info.name, (double)info.used_by_process_bytes / 1048576.0);
    measure_copy(b);
}

static void bench_matrices(struct bench *b) {
    static const enum atsi_dtype TYPES[] = {ATSI_Q4_K, ATSI_Q6_K, ATSI_Q8_0, ATSI_Q4_0,   ATSI_Q5_K,   ATSI_MXFP4,
                                            ATSI_Q4_1, ATSI_Q5_0, ATSI_Q5_1, ATSI_IQ4_NL, ATSI_IQ4_XS, ATSI_Q2_K,
                                            ATSI_Q3_K, ATSI_F16,  ATSI_BF16, ATSI_F32};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        time_matmul(b, TYPES[i], 5120, 17408, 1);
        if (i < 3) time_matmul(b, TYPES[i], 5120, 151936, 1);
        time_matmul(b, TYPES[i], 17408, 5120, 1);
        if (i < 3) time_matmul(b, TYPES[i], 5120, 5120, 1);
        if (i < 3) time_matmul(b, TYPES[i], 5120, 1024, 1);
        time_matmul(b, TYPES[i], 5120, 17408, 8);
        if (i < 3) time_matmul(b, TYPES[i], 5120, 17408, 64);
        time_matmul(b, TYPES[i], 5120, 17408, 512);
        time_matmul(b, TYPES[i], 5120, 17408, 2048);
    }
    static const int TOKENS[] = {1, 8, 512, 2048};
    for (int i = 0; i < 4; i++) {
        time_experts(b, ATSI_Q4_K, 2048, 768, 128, 8, TOKENS[i]);
        time_experts(b, ATSI_Q6_K, 768, 2048, 128, 8, TOKENS[i]);
        time_experts(b, ATSI_MXFP4, 2880, 2880, 32, 4, TOKENS[i]);
    }
}

static void bench_attention(struct bench *b) {
    static const struct heads QWEN = {40, 8, 128}, MOE = {32, 4, 128}, OSS = {64, 8, 64};
    time_attention(b, QWEN, ATSI_F16, 1, 511);
    time_attention(b, QWEN, ATSI_F16, 1, 4095);
    time_attention(b, QWEN, ATSI_F16, 1, 32767);
    time_attention(b, QWEN, ATSI_Q8_0, 1, 32767);
    time_attention(b, MOE, ATSI_F16, 1, 32767);
    time_attention(b, OSS, ATSI_F16, 1, 32767);
    time_attention(b, QWEN, ATSI_F16, 2048, 0);
    time_attention(b, QWEN, ATSI_F16, 2048, 30720);
    time_attention(b, QWEN, ATSI_Q8_0, 2048, 30720);
    time_attention(b, OSS, ATSI_F16, 2048, 2048);
}

static void bench_model(struct bench *b) {
    time_model(b, 1, 2048);
    time_model(b, 1, 30000);
    time_model(b, 4, 2048);
    time_model(b, 512, 0);
    time_model(b, 2048, 0);
}

int main(int argc, char **argv) {
    struct bench b = {0};
    open_bench(&b);
    const char *only = argc > 1 ? argv[1] : NULL;
    if (only == NULL || strcmp(only, "model") == 0) bench_model(&b);
    if (only == NULL || strcmp(only, "attention") == 0) bench_attention(&b);
    if (only == NULL || strcmp(only, "matrices") == 0) bench_matrices(&b);
    b.d->ops->close(b.d);
    atsi_program_free(&b.program);
    return 0;
}
#else
int main(void) {
    puts("bench_cuda: this build has no CUDA part");
    return 0;
}
#endif
