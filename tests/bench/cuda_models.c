// cuda_models.c: a round of a model's operations, everything on the card.
#ifdef ATSI_CUDA
#include "tests/bench/cuda_bench.h"

#include <stdio.h>

// The shapes of a model and the types of its matrices in a Q4_K_M file (MXFP4 with Q8_0 for the last).
struct model {
    const char *name;
    int n_layers;
    uint32_t embed, ffn; // ffn: of an expert where there are experts
    struct heads heads;
    uint32_t n_experts, n_used, vocab;          // n_experts 0: a dense model
    enum atsi_dtype attention, up, mixed, head; // mixed: v and down matrices of every second layer
    bool head_norms, biases;
};
static const struct model MODELS[] = {
    {"Qwen3-14B", 40, 5120, 17408, {40, 8, 128}, 0, 0, 151936, ATSI_Q4_K, ATSI_Q4_K, ATSI_Q6_K, ATSI_Q6_K, true, false},
    {"Qwen3-30B-A3B",
     48,
     2048,
     768,
     {32, 4, 128},
     128,
     8,
     151936,
     ATSI_Q4_K,
     ATSI_Q4_K,
     ATSI_Q6_K,
     ATSI_Q6_K,
     true,
     false},
    {"GPT-OSS-20B",
     24,
     2880,
     2880,
     {64, 8, 64},
     32,
     4,
     201088,
     ATSI_Q8_0,
     ATSI_MXFP4,
     ATSI_MXFP4,
     ATSI_Q8_0,
     false,
     true},
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

static void rope(struct bench *b, float *data, uint32_t n_heads, uint32_t head_dim, uint32_t stride, int n_tokens) {
    struct atsi_tensor t = tensor_of(ATSI_F32, head_dim / 2, 1, 1);
    struct atsi_op op = {.kind = ATSI_OP_ROPE, .u.rope = {n_heads, head_dim, head_dim, ATSI_ROPE_HALF_SPLIT, 1.0f}};
    struct atsi_op_call call = {.op = &op,
                                .in = {{data, stride, n_heads * head_dim}},
                                .out = {{data, stride, n_heads * head_dim}},
                                .tensor = {{rotate(b, t.size_bytes), &t}}};
    launch(b, &call, n_tokens);
}

static void glu(struct bench *b, float *gate, float *up, uint32_t width, int n_tokens) {
    struct atsi_op op = {.kind = ATSI_OP_GLU};
    struct atsi_op_call call = {.op = &op, .in = {rows(gate, width), rows(up, width)}, .out = {rows(gate, width)}};
    launch(b, &call, n_tokens);
}

// Returns the bytes of weights that one token reads.
static double attention_part(struct bench *b, const struct model *m, bool mixed, int n_tokens, uint32_t capacity) {
    uint32_t q = m->heads.n_heads * m->heads.dim, kv = m->heads.n_kv_heads * m->heads.dim, stride = q + 2 * kv;
    float *x = b->rows[0], *h = b->rows[1], *qkv = b->rows[2];
    const struct atsi_tensor in[3] = {tensor_of(m->attention, m->embed, q, 1), tensor_of(m->attention, m->embed, kv, 1),
                                      tensor_of(mixed && !m->biases ? m->mixed : m->attention, m->embed, kv, 1)},
                             out = tensor_of(m->attention, q, m->embed, 1);
    double bytes = (double)out.size_bytes;
    norm(b, x, h, m->embed, m->embed, m->embed, n_tokens);
    // In the order of a program: every product is followed by its heads.
    float *at = qkv;
    for (int i = 0; i < 3; i++) {
        uint32_t width = (uint32_t)in[i].ne[1];
        struct atsi_op op = {.kind = ATSI_OP_MATMUL};
        struct atsi_op_call call = {.op = &op,
                                    .in = {rows(h, m->embed)},
                                    .out = {{at, stride, width}},
                                    .tensor = {{rotate(b, in[i].size_bytes), &in[i]}}};
        launch(b, &call, n_tokens);
        if (i < 2 && m->head_norms) norm(b, at, at, width, m->heads.dim, stride, n_tokens);
        if (i < 2) rope(b, at, width / m->heads.dim, m->heads.dim, stride, n_tokens);
        bytes += (double)in[i].size_bytes;
        at += width;
    }
    attention(b, m->heads, ATSI_F16, capacity, qkv, h, n_tokens);
    matmul(b, &out, h, x, true, n_tokens);
    norm(b, x, h, m->embed, m->embed, m->embed, n_tokens);
    return bytes;
}

static double dense_part(struct bench *b, const struct model *m, bool mixed, int n_tokens) {
    float *x = b->rows[0], *h = b->rows[1], *gate = b->rows[2], *up = b->rows[3];
    struct atsi_tensor in = tensor_of(m->up, m->embed, m->ffn, 1),
                       down = tensor_of(mixed ? m->mixed : m->up, m->ffn, m->embed, 1);
    matmul(b, &in, h, gate, false, n_tokens);
    matmul(b, &in, h, up, false, n_tokens);
    glu(b, gate, up, m->ffn, n_tokens);
    matmul(b, &down, gate, x, true, n_tokens);
    return (double)(2 * in.size_bytes + down.size_bytes);
}

static double expert_part(struct bench *b, const struct model *m, bool mixed, int n_tokens) {
    float *x = b->rows[0], *h = b->rows[1], *gate = b->rows[2], *up = b->rows[3];
    struct atsi_tensor router = tensor_of(ATSI_F32, m->embed, m->n_experts, 1),
                       in = tensor_of(m->up, m->embed, m->ffn, m->n_experts),
                       down = tensor_of(mixed ? m->mixed : m->up, m->ffn, m->embed, m->n_experts);
    struct atsi_op route = {.kind = ATSI_OP_ROUTER,
                            .u.router = {m->n_experts, m->n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f}};
    struct atsi_op widen = {.kind = ATSI_OP_EXPERTS, .u.experts = {m->n_experts, m->n_used, false}};
    struct atsi_op narrow = {.kind = ATSI_OP_EXPERTS, .u.experts = {m->n_experts, m->n_used, true}};
    struct atsi_op sum = {.kind = ATSI_OP_EXPERT_SUM, .add = true};
    struct atsi_rows_ref ids = {b->ids, m->n_used, m->n_used}, weights = rows(b->weights, m->n_used);
    uint32_t wide = m->n_used * m->ffn;
    matmul(b, &router, h, b->logits, false, n_tokens);
    launch(b, &(struct atsi_op_call){.op = &route, .in = {rows(b->logits, m->n_experts)}, .out = {ids, weights}},
           n_tokens);
    for (int i = 0; i < 2; i++)
        launch(b,
               &(struct atsi_op_call){.op = &widen,
                                      .in = {rows(h, m->embed), ids},
                                      .out = {rows(i == 0 ? gate : up, wide)},
                                      .tensor = {{rotate(b, in.size_bytes), &in}}},
               n_tokens);
    glu(b, gate, up, wide, n_tokens);
    launch(b,
           &(struct atsi_op_call){.op = &narrow,
                                  .in = {rows(gate, wide), ids},
                                  .out = {rows(up, m->n_used * m->embed)},
                                  .tensor = {{rotate(b, down.size_bytes), &down}}},
           n_tokens);
    launch(b,
           &(struct atsi_op_call){
               .op = &sum, .in = {rows(up, m->n_used * m->embed), weights, ids}, .out = {rows(x, m->embed)}},
           n_tokens);
    return (double)router.size_bytes + (double)(2 * in.size_bytes + down.size_bytes) * m->n_used / m->n_experts;
}

static void time_model(struct bench *b, const struct model *m, int n_tokens, int first_pos) {
    void *graph = NULL;
    double bytes = 0;
    char what[80];
    struct atsi_tensor head = tensor_of(m->head, m->embed, m->vocab, 1);
    set_round(b, n_tokens, first_pos);
    DO(b, capture_begin(b->s, &b->err));
    for (int i = 0; i < m->n_layers; i++) {
        bytes += attention_part(b, m, i % 2, n_tokens, (uint32_t)(first_pos + n_tokens));
        bytes += m->n_experts > 0 ? expert_part(b, m, i % 2, n_tokens) : dense_part(b, m, i % 2, n_tokens);
    }
    matmul(b, &head, b->rows[0], b->rows[2], false, 1);
    DO(b, capture_end(b->s, &graph, &b->err));
    double us = time_graph(b, graph, 1);
    bytes += (double)head.size_bytes;
    snprintf(what, sizeof what, "%s, %d tokens after %d", m->name, n_tokens, first_pos);
    if (n_tokens == 1) report_bytes(b, what, us, bytes);
    printf("%-52s %9.1f us %8.1f tokens/s\n", what, us, 1e6 * n_tokens / us);
}

void bench_models(struct bench *b) {
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        time_model(b, &MODELS[i], 1, 2048);
        time_model(b, &MODELS[i], 1, 30000);
        time_model(b, &MODELS[i], 4, 2048);
        time_model(b, &MODELS[i], 512, 0);
        time_model(b, &MODELS[i], 2048, 0);
    }
}
#endif
