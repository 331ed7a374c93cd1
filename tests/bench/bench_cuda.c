// The kernels on a card: bytes or operations a second at the shapes of Qwen3-14B, Qwen3-30B-A3B and GPT-OSS-20B, beside the card's
// copy bandwidth measured in the same run. Weights rotate through more memory than the L2 cache holds.
//   bench_cuda [models|vectors|experts|attention|matrices|mapped|small|grids|handover ...]   without a word: all
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ATSI_CUDA
#include "tests/bench/cuda_bench.h"

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

// Every second expert has a slot in a block of resident ones. Device memory.
static int32_t *half_of_the_slots(struct bench *b, uint32_t n_experts) {
    int32_t host[1024];
    void *slots = NULL;
    for (uint32_t e = 0; e < n_experts; e++) host[e] = e % 2 ? -1 : (int32_t)(e / 2);
    DO(b, alloc(b->d, n_experts * sizeof *host, &slots, &b->err));
    DO(b, copy_to_device(b->s, slots, host, n_experts * sizeof *host, &b->err));
    DO(b, stream_sync(b->s, &b->err));
    return slots;
}

static void choose_experts(struct bench *b, uint32_t n_experts, uint32_t n_used) {
    int32_t *host = malloc((size_t)ROWS_MAX * n_used * sizeof *host);
    for (uint32_t i = 0; i < ROWS_MAX * n_used; i++)
        host[i] = (int32_t)((i % n_used + i / n_used * 7 * n_used) % n_experts);
    DO(b, copy_to_device(b->s, b->ids, host, (uint64_t)ROWS_MAX * n_used * sizeof *host, &b->err));
    DO(b, stream_sync(b->s, &b->err));
    free(host);
}

// resident: in whose pool half of the experts stand, NULL: all in b's.
static void time_experts(struct bench *b, struct bench *resident, enum atsi_dtype dtype, uint32_t n_cols,
                         uint32_t n_out, uint32_t n_experts, uint32_t n_used, int n_tokens) {
    struct atsi_tensor t = tensor_of(dtype, n_cols, n_out, n_experts);
    struct atsi_op op = {.kind = ATSI_OP_EXPERTS, .u.experts = {n_experts, n_used, false}};
    void *graph = NULL;
    int n = n_tokens > 8 ? 4 : 20;
    char what[80];
    snprintf(what, sizeof what, "experts %s %u x %u, %u of %u, %d tokens%s", atsi_dtype_name(dtype), n_cols, n_out,
             n_used, n_experts, n_tokens, resident ? ", half resident" : "");
    int32_t *slots = resident ? half_of_the_slots(b, n_experts) : NULL;
    choose_experts(b, n_experts, n_used);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < n; i++) {
        struct atsi_op_call call = {.op = &op,
                                    .in = {rows(b->rows[0], n_cols), {b->ids, n_used, n_used}},
                                    .out = {rows(b->rows[1], n_used * n_out)},
                                    .tensor = {{rotate(b, t.size_bytes), &t}},
                                    .resident.slots = slots};
        if (resident) call.resident.data = rotate(resident, t.size_bytes / 2);
        launch(b, &call, n_tokens);
    }
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, n);
    b->d->ops->free(b->d, slots);
    if (n_tokens == 1)
        report_bytes(b, what, us, (double)t.size_bytes * n_used / n_experts);
    else
        report_operations(what, us, 2.0 * n_cols * n_out * n_tokens * n_used);
}

// Weights that stay in the host's memory, mapped: as shared units read them.
static void bench_mapped(struct bench *b) {
    enum {
        MAPPED_MIB = 512
    };
    void *host = NULL, *mapped = NULL;
    struct bench on_card = *b;
    DO(b, host_alloc(b->d, (uint64_t)MAPPED_MIB << 20, &host, &mapped, &b->err));
    for (uint64_t at = 0; at < (uint64_t)MAPPED_MIB << 20; at += 2) *(uint16_t *)((uint8_t *)host + at) = 0x1c00;
    b->pool = mapped;
    b->pool_bytes = (uint64_t)MAPPED_MIB << 20;
    b->next = 0;
    puts("weights in mapped host memory:");
    time_matmul(b, ATSI_Q4_K, 5120, 17408, 1);
    time_matmul(b, ATSI_Q6_K, 5120, 17408, 1);
    time_matmul(b, ATSI_Q8_0, 5120, 17408, 1);
    time_matmul(b, ATSI_MXFP4, 5120, 17408, 1);
    time_matmul(b, ATSI_F16, 5120, 17408, 1);
    time_matmul(b, ATSI_Q3_K, 5120, 17408, 1);
    time_matmul(b, ATSI_IQ3_S, 5120, 17408, 1);
    time_matmul(b, ATSI_IQ2_XXS, 5120, 17408, 1);
    time_experts(b, NULL, ATSI_Q4_K, 2048, 768, 128, 8, 1);
    time_experts(b, &on_card, ATSI_Q4_K, 2048, 768, 128, 8, 1);
    b->pool = on_card.pool;
    b->pool_bytes = on_card.pool_bytes;
    b->next = 0;
    b->d->ops->host_free(b->d, host);
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

static const enum atsi_dtype TYPES[] = {ATSI_Q4_K, ATSI_Q6_K, ATSI_Q8_0, ATSI_Q4_0,   ATSI_Q5_K,   ATSI_MXFP4,
                                        ATSI_Q4_1, ATSI_Q5_0, ATSI_Q5_1, ATSI_IQ4_NL, ATSI_IQ4_XS, ATSI_Q2_K,
                                        ATSI_Q3_K, ATSI_F16,  ATSI_BF16, ATSI_F32};
enum {
    N_TYPES = sizeof TYPES / sizeof *TYPES
};

static void bench_vectors(struct bench *b) {
    static const uint32_t SHAPES[][2] = {{5120, 17408}, {17408, 5120}, {5120, 151936}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N_TYPES; i++) {
            uint64_t bytes = tensor_of(TYPES[i], SHAPES[k][0], SHAPES[k][1], 1).size_bytes;
            if (bytes <= (uint64_t)POOL_MIB << 19) time_matmul(b, TYPES[i], SHAPES[k][0], SHAPES[k][1], 1);
        }
    for (int i = 0; i < 3; i++) {
        time_matmul(b, TYPES[i], 5120, 5120, 1);
        time_matmul(b, TYPES[i], 5120, 1024, 1);
        time_matmul(b, TYPES[i], 2048, 4096, 1);
    }
    time_matmul(b, ATSI_Q8_0, 2880, 4096, 1);
    time_matmul(b, ATSI_MXFP4, 2880, 4096, 1);
    for (int i = 0; i < N_TYPES; i++) time_matmul(b, TYPES[i], 5120, 17408, 8);
}

// The products of one token's experts as a layer has them.
struct expert_shape {
    enum atsi_dtype up, down;
    uint32_t embed, ffn, n_experts, n_used;
};
// What of them is timed.
enum expert_parts {
    UP = 1,  // gate and up, which join
    GLU = 2, // behind a norm, since it leaves its result where the norm left h's codes
    DOWN = 4,
    LAYER = UP | GLU | DOWN
};

// Returns the bytes of weights that a token reads.
static double expert_ffn(struct bench *b, const struct expert_shape *e, enum expert_parts parts) {
    float *x = b->rows[0], *gate = b->rows[1], *up = b->rows[2], *h = b->rows[3];
    struct atsi_tensor in = tensor_of(e->up, e->embed, e->ffn, e->n_experts),
                       down = tensor_of(e->down, e->ffn, e->embed, e->n_experts),
                       scale = tensor_of(ATSI_F32, e->embed, 1, 1);
    struct atsi_rows_ref ids = {b->ids, e->n_used, e->n_used}, wide = rows(gate, e->n_used * e->ffn);
    struct atsi_op norm = {.kind = ATSI_OP_RMS_NORM, .u.norm = {e->embed, 1e-6f}}, glu = {.kind = ATSI_OP_GLU},
                   widen = {.kind = ATSI_OP_EXPERTS, .u.experts = {e->n_experts, e->n_used, false}},
                   narrow = {.kind = ATSI_OP_EXPERTS, .u.experts = {e->n_experts, e->n_used, true}};
    double bytes = 0;
    if (parts & GLU)
        launch(b,
               &(struct atsi_op_call){.op = &norm,
                                      .in = {rows(x, e->embed)},
                                      .out = {rows(h, e->embed)},
                                      .tensor = {{rotate(b, scale.size_bytes), &scale}}},
               1);
    for (int i = 0; i < 2 && parts & UP; i++) {
        launch(b,
               &(struct atsi_op_call){.op = &widen,
                                      .in = {rows(h, e->embed), ids},
                                      .out = {rows(i == 0 ? gate : up, e->n_used * e->ffn)},
                                      .tensor = {{rotate(b, in.size_bytes), &in}}},
               1);
        bytes += (double)in.size_bytes * e->n_used / e->n_experts;
    }
    if (parts & GLU)
        launch(b, &(struct atsi_op_call){.op = &glu, .in = {wide, rows(up, e->n_used * e->ffn)}, .out = {wide}}, 1);
    if (!(parts & DOWN)) return bytes;
    launch(b,
           &(struct atsi_op_call){.op = &narrow,
                                  .in = {wide, ids},
                                  .out = {rows(x, e->n_used * e->embed)},
                                  .tensor = {{rotate(b, down.size_bytes), &down}}},
           1);
    return bytes + (double)down.size_bytes * e->n_used / e->n_experts;
}

static void time_expert_ffn(struct bench *b, const struct expert_shape *e, enum expert_parts parts, const char *what) {
    enum {
        N = 20
    };
    void *graph = NULL;
    double bytes = 0;
    char line[100];
    snprintf(line, sizeof line, "%s %s, %u x %u, %u of %u", what, atsi_dtype_name(parts & UP ? e->up : e->down),
             parts & UP ? e->embed : e->ffn, parts & UP ? e->ffn : e->embed, e->n_used, e->n_experts);
    choose_experts(b, e->n_experts, e->n_used);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < N; i++) bytes = expert_ffn(b, e, parts);
    DO(b, capture_end(b->s, &graph, &b->err));
    report_bytes(b, line, time_graph(b, graph, N), bytes);
}

// GPT-OSS-20B, then both kinds of layers of Qwen3-30B-A3B.
static void bench_expert_ffns(struct bench *b) {
    static const struct expert_shape SHAPES[] = {{ATSI_MXFP4, ATSI_MXFP4, 2880, 2880, 32, 4},
                                                 {ATSI_Q4_K, ATSI_Q4_K, 2048, 768, 128, 8},
                                                 {ATSI_Q4_K, ATSI_Q6_K, 2048, 768, 128, 8}};
    for (int i = 0; i < 3; i++) {
        if (i < 2) time_expert_ffn(b, &SHAPES[i], UP, "experts' gate and up");
        time_expert_ffn(b, &SHAPES[i], DOWN, "experts' down");
        time_expert_ffn(b, &SHAPES[i], LAYER, "norm, gate and up, GLU, down");
    }
}

static void bench_experts(struct bench *b) {
    bench_expert_ffns(b);
    static const int TOKENS[] = {1, 8, 512, 2048};
    for (int i = 0; i < 4; i++) {
        time_experts(b, NULL, ATSI_Q4_K, 2048, 768, 128, 8, TOKENS[i]);
        time_experts(b, b, ATSI_Q4_K, 2048, 768, 128, 8, TOKENS[i]);
        time_experts(b, NULL, ATSI_Q4_K, 768, 2048, 128, 8, TOKENS[i]);
        time_experts(b, NULL, ATSI_Q6_K, 768, 2048, 128, 8, TOKENS[i]);
        time_experts(b, NULL, ATSI_MXFP4, 2880, 2880, 32, 4, TOKENS[i]);
    }
}

static void bench_grids(struct bench *b) {
    static const enum atsi_dtype GRIDS[] = {ATSI_IQ3_S,   ATSI_IQ3_XXS, ATSI_IQ2_S, ATSI_IQ2_XS,
                                            ATSI_IQ2_XXS, ATSI_IQ1_S,   ATSI_IQ1_M};
    for (int i = 0; i < 7; i++) {
        time_matmul(b, GRIDS[i], 5120, 17408, 1);
        time_matmul(b, GRIDS[i], 17408, 5120, 1);
        time_matmul(b, GRIDS[i], 5120, 151936, 1);
        time_experts(b, NULL, GRIDS[i], 2048, 768, 128, 8, 1);
        time_experts(b, NULL, GRIDS[i], 768, 2048, 128, 8, 1);
        time_matmul(b, GRIDS[i], 5120, 17408, 512);
    }
}

// What a launch costs beside its work: operations of a single token. call: without the weight, t.
static void time_small(struct bench *b, const char *what, struct atsi_op_call call, const struct atsi_tensor *t) {
    enum {
        N = 20
    };
    void *graph = NULL;
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < N; i++) {
        if (t != NULL) call.tensor[0] = (struct atsi_tensor_ref){rotate(b, t->size_bytes), t};
        launch(b, &call, 1);
    }
    DO(b, capture_end(b->s, &graph, &b->err));
    printf("%-52s %9.1f us\n", what, time_graph(b, graph, N));
}

static struct atsi_op_call call_of(const struct atsi_op *op, struct atsi_rows_ref in, struct atsi_rows_ref in1,
                                   struct atsi_rows_ref out) {
    return (struct atsi_op_call){.op = op, .in = {in, in1}, .out = {out}};
}

static void bench_mixture(struct bench *b) {
    struct atsi_tensor matrix = tensor_of(ATSI_F32, 2048, 128, 1);
    const struct atsi_rows_ref none = {NULL, 0, 0}, ids = {b->ids, 8, 8}, weights = rows(b->weights, 8);
    struct atsi_op op = {.kind = ATSI_OP_MATMUL};
    time_small(b, "router matrix F32 2048 x 128", call_of(&op, rows(b->rows[0], 2048), none, rows(b->logits, 128)),
               &matrix);
    op = (struct atsi_op){.kind = ATSI_OP_ROUTER, .u.router = {128, 8, ATSI_ROUTER_SOFTMAX, true, 1.0f}};
    struct atsi_op_call call = call_of(&op, rows(b->logits, 128), none, ids);
    call.out[1] = weights;
    time_small(b, "router, 8 of 128", call, NULL);
    int32_t *slots = half_of_the_slots(b, 128);
    call.resident.slots = slots;
    time_small(b, "router, 8 of 128, resident ones first", call, NULL);
    void *counted = NULL, *counted_dev = NULL;
    DO(b, host_alloc(b->d, 8 * sizeof(int32_t), &counted, &counted_dev, &b->err));
    call.resident.chosen = counted_dev;
    time_small(b, "router, 8 of 128, resident first, told the host", call, NULL);
    b->d->ops->host_free(b->d, counted);
    b->d->ops->free(b->d, slots);
    op = (struct atsi_op){.kind = ATSI_OP_EXPERT_SUM, .add = true};
    call = call_of(&op, rows(b->rows[0], 8 * 2048), weights, rows(b->rows[1], 2048));
    time_small(b, "sum of 8 experts of 2048, as they stand", call, NULL);
    call.in[2] = ids;
    time_small(b, "sum of 8 experts of 2048, by their ids", call, NULL);
}

static void bench_small(struct bench *b) {
    const struct atsi_rows_ref none = {NULL, 0, 0}, x = rows(b->rows[0], 5120), y = rows(b->rows[1], 5120);
    struct atsi_tensor wide = tensor_of(ATSI_F32, 5120, 1, 1), head = tensor_of(ATSI_F32, 128, 1, 1),
                       turns = tensor_of(ATSI_F32, 64, 1, 1);
    struct atsi_op op = {.kind = ATSI_OP_RMS_NORM, .u.norm = {5120, 1e-6f}};
    time_small(b, "norm of 5120", call_of(&op, x, none, y), &wide);
    op.u.norm.group = 128;
    time_small(b, "norm of 40 heads of 128", call_of(&op, x, none, x), &head);
    op = (struct atsi_op){.kind = ATSI_OP_ROPE, .u.rope = {40, 128, 128, ATSI_ROPE_HALF_SPLIT, 1.0f}};
    time_small(b, "rotation of 40 heads of 128", call_of(&op, x, none, x), &turns);
    op = (struct atsi_op){.kind = ATSI_OP_GLU};
    time_small(b, "GLU of 17408",
               call_of(&op, rows(b->rows[0], 17408), rows(b->rows[1], 17408), rows(b->rows[2], 17408)), NULL);
    op = (struct atsi_op){.kind = ATSI_OP_ADD};
    time_small(b, "sum of 5120", call_of(&op, x, y, rows(b->rows[2], 5120)), NULL);
    bench_mixture(b);
}

// What stands between the two sides' work for a token, in mapped memory.
struct meeting {
    int32_t marks[4], ids[8], mine[8];
    float row[2048], slots[8 * 2048];
};
enum {
    MEETING_WIDTH = 2048,
    MEETING_SLOTS = 8
};

// there: a row and its experts' ids go to the host with a mark. back: behind the host's mark, which is there already, half of the slots
// come back. A sum of two rows stands for the device's work in between.
static void time_handover(struct bench *b, const char *what, char *mapped, const int32_t *mine, bool there, bool back) {
    enum {
        N = 20
    };
    void *graph = NULL;
    struct atsi_op add = {.kind = ATSI_OP_ADD};
    struct atsi_op_call work = {.op = &add,
                                .in = {rows(b->rows[1], MEETING_WIDTH), rows(b->rows[2], MEETING_WIDTH)},
                                .out = {rows(b->rows[0], MEETING_WIDTH)}};
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < N; i++) {
        if (there) {
            DO(b, copy_rows(b->s, mapped + offsetof(struct meeting, row), MEETING_WIDTH, b->rows[0], MEETING_WIDTH,
                            MEETING_WIDTH, 1, &b->err));
            DO(b, copy_rows(b->s, mapped + offsetof(struct meeting, ids), MEETING_SLOTS, b->ids, MEETING_SLOTS,
                            MEETING_SLOTS, 1, &b->err));
            DO(b, post_mark(b->s, mapped, NULL, 1, &b->err));
        }
        if (back) {
            DO(b, await_mark(b->s, mapped + sizeof(int32_t), NULL, 1, &b->err));
            DO(b, copy_slots(b->s, b->rows[1], MEETING_SLOTS * MEETING_WIDTH, mapped + offsetof(struct meeting, slots),
                             MEETING_SLOTS * MEETING_WIDTH, MEETING_WIDTH, MEETING_SLOTS, mine, true, 1, &b->err));
        }
        launch(b, &work, 1);
    }
    DO(b, capture_end(b->s, &graph, &b->err));
    printf("%-52s %9.1f us\n", what, time_graph(b, graph, N));
}

static void bench_handover(struct bench *b) {
    void *memory = NULL, *mapped = NULL, *mine = NULL;
    DO(b, host_alloc(b->d, sizeof(struct meeting), &memory, &mapped, &b->err));
    DO(b, alloc(b->d, MEETING_SLOTS * sizeof(int32_t), &mine, &b->err));
    struct meeting *host = memory;
    host->marks[1] = 1;
    for (int i = 0; i < MEETING_SLOTS; i++) host->mine[i] = i % 2 - 1;
    DO(b, copy_to_device(b->s, mine, host->mine, sizeof host->mine, &b->err));
    set_round(b, 1, 0);
    time_handover(b, "handover: a sum of two rows alone", mapped, mine, false, false);
    time_handover(b, "handover: a row of 2048 and ids to the host", mapped, mine, true, false);
    time_handover(b, "handover: 4 slots of 2048 back", mapped, mine, false, true);
    time_handover(b, "handover: both", mapped, mine, true, true);
    b->d->ops->free(b->d, mine);
    b->d->ops->host_free(b->d, memory);
}

static void bench_matrices(struct bench *b) {
    for (int i = 0; i < N_TYPES; i++) {
        if (i < 3) time_matmul(b, TYPES[i], 5120, 17408, 64);
        time_matmul(b, TYPES[i], 5120, 17408, 512);
        if (i < N_TYPES - 3) time_matmul(b, TYPES[i], 5120, 17408, 2048);
    }
}

static void bench_attention(struct bench *b) {
    static const struct heads QWEN = {40, 8, 128}, MOE = {32, 4, 128}, OSS = {64, 8, 64};
    static const struct heads OTHERS[] = {{32, 8, 80}, {32, 8, 96}, {16, 8, 256}};
    static const int CONTEXTS[] = {511, 4095, 32767};
    for (int i = 0; i < 3; i++) {
        time_attention(b, QWEN, ATSI_F16, 1, CONTEXTS[i]);
        time_attention(b, MOE, ATSI_F16, 1, CONTEXTS[i]);
        time_attention(b, OSS, ATSI_F16, 1, CONTEXTS[i]);
        time_attention(b, QWEN, ATSI_Q8_0, 1, CONTEXTS[i]);
    }
    for (int i = 0; i < 3; i++) time_attention(b, OTHERS[i], ATSI_F16, 1, 32767);
    time_attention(b, QWEN, ATSI_F16, 2048, 0);
    time_attention(b, QWEN, ATSI_F16, 2048, 30720);
    time_attention(b, QWEN, ATSI_Q8_0, 2048, 30720);
    time_attention(b, OSS, ATSI_F16, 2048, 2048);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } PARTS[] = {{"models", bench_models},       {"vectors", bench_vectors},   {"experts", bench_experts},
                 {"attention", bench_attention}, {"matrices", bench_matrices}, {"mapped", bench_mapped},
                 {"small", bench_small},         {"grids", bench_grids},       {"handover", bench_handover}};
    struct bench b = {0};
    bench_open(&b);
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        bool wanted = argc == 1;
        for (int k = 1; k < argc; k++) wanted |= strcmp(argv[k], PARTS[i].name) == 0;
        if (wanted) PARTS[i].run(&b);
    }
    bench_close(&b);
    return 0;
}
#else
int main(void) {
    puts("bench_cuda: this build has no CUDA part");
    return 0;
}
#endif
