#include "tests/support/gpu_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "tests/support/check.h"

int32_t gpu_case_weight(struct op_case *c, enum atsi_dtype dtype, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                        enum quant_fill fill, struct quant_rng *rng) {
    struct atsi_tensor t = {.dtype = dtype, .layout = atsi_layout_of(dtype), .ne = {ne0, ne1, ne2, 1}};
    snprintf(t.name, sizeof t.name, "weight.%u", c->program.n_tensors);
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    int32_t index = atsi_program_add_tensor(&c->program, &t);
    size_t matrix_bytes = (size_t)(t.size_bytes / ne2);
    uint8_t *packed = calloc(1, (size_t)t.size_bytes), *rows = malloc((size_t)atsi_dtype_row_bytes(dtype, ne0) * ne1);
    if (index == ATSI_NONE || packed == NULL || rows == NULL) abort();
    for (uint64_t m = 0; m < ne2; m++) {
        quant_fill_weights(dtype, fill, rng, ne0 * ne1, rows);
        atsi_layout_pack(dtype, t.layout, rows, ne1, ne0, packed + m * matrix_bytes);
    }
    free(rows);
    c->tensors[index] = packed;
    return index;
}

// ---- the case's operands on the device -------------------------------------------------------------------------------

struct device_case {
    struct op_case *c;
    struct atsi_device *d;
    struct atsi_stream *s;
    struct atsi_error err;
    struct op_case_operands at;
    int32_t *host_chosen;          // pinned, at.chosen is its device address
    struct atsi_round *host_round; // pinned
    void *host_round_dev;
    void *fetched[OP_CASE_CAP][2]; // of EXPERTS ops, what is fetched and garbage in place of the tensor
};

#define TRY(x, call) check_ok((x)->d->ops->call, (x)->err)

static void *device_memory(struct device_case *x, size_t bytes, const void *contents) {
    void *dev = NULL;
    TRY(x, alloc(x->d, bytes, &dev, &x->err));
    if (contents != NULL) TRY(x, copy_to_device(x->s, dev, contents, bytes, &x->err));
    return dev;
}

static size_t buffer_bytes(const struct op_case *c, uint32_t b) {
    return op_case_rows(c, (int32_t)b) * c->program.buffers[b].width * sizeof(float);
}

// Whether the ops write all of a buffer before anything reads it.
static bool only_written(const struct op_case *c, uint32_t buffer) {
    for (uint32_t i = 0; i < c->program.n_ops; i++) {
        const struct atsi_op *op = &c->program.ops[i];
        for (int k = 0; k < ATSI_OP_MAX_IN; k++)
            if (op->in[k].buffer == (int32_t)buffer) return false;
        for (int k = 0; k < ATSI_OP_MAX_OUT; k++)
            if (op->out[k].buffer == (int32_t)buffer)
                return !op->add && op->out[k].width == c->program.buffers[buffer].width;
    }
    return false;
}

static void upload_buffer(struct device_case *x, uint32_t b) {
    size_t bytes = buffer_bytes(x->c, b);
    if (only_written(x->c, b)) {
        void *poison = malloc(bytes);
        if (poison == NULL) abort();
        memset(poison, 0xff, bytes);
        x->at.buffers[b] = device_memory(x, bytes, poison);
        TRY(x, stream_sync(x->s, &x->err));
        free(poison);
    } else {
        x->at.buffers[b] = device_memory(x, bytes, x->c->buffers[b]);
    }
}

static void upload_states(struct device_case *x, uint32_t first_pos) {
    for (uint32_t i = 0; i < x->c->program.n_states; i++) {
        const struct atsi_state *s = &x->c->program.states[i];
        bool kv = s->kind == ATSI_STATE_KV;
        size_t heads = (size_t)s->n_heads * (kv ? x->c->capacity : 1);
        size_t k_bytes = kv ? heads * (size_t)atsi_dtype_row_bytes(x->c->kv_type, s->k_dim)
                            : heads * s->k_dim * s->v_dim * sizeof(float);
        size_t v_bytes = kv ? heads * (size_t)atsi_dtype_row_bytes(x->c->kv_type, s->v_dim) : 0;
        // The CPU's run starts from zeros too. What is seen by no token must not count: NaN in every slot of a cache behind the
        // first position.
        uint8_t *first = calloc(1, k_bytes + v_bytes);
        if (first == NULL) abort();
        if (kv) {
            memset(first + k_bytes / x->c->capacity * first_pos, 0xff, k_bytes - k_bytes / x->c->capacity * first_pos);
            memset(first + k_bytes + v_bytes / x->c->capacity * first_pos, 0xff,
                   v_bytes - v_bytes / x->c->capacity * first_pos);
        }
        x->at.states[i][0] = device_memory(x, k_bytes, first);
        x->at.states[i][1] = kv ? device_memory(x, v_bytes, first + k_bytes) : NULL;
        TRY(x, stream_sync(x->s, &x->err));
        free(first);
    }
}

// The experts of a tensor that are resident: as many as have a slot.
static size_t resident_bytes(const struct op_case *c, uint32_t tensor) {
    const struct atsi_tensor *t = &c->program.tensors[tensor];
    size_t n = 0;
    for (uint64_t e = 0; e < t->ne[2]; e++) n += c->resident_slots[e] >= 0;
    return n * (size_t)(t->size_bytes / t->ne[2]);
}

static void upload_residents(struct device_case *x) {
    const struct op_case *c = x->c;
    if (c->resident_slots != NULL)
        x->at.resident_slots = device_memory(x, c->n_resident_slots * sizeof *c->resident_slots, c->resident_slots);
    for (uint32_t t = 0; t < c->program.n_tensors; t++)
        if (c->resident[t] != NULL) x->at.resident[t] = device_memory(x, resident_bytes(c, t), c->resident[t]);
    if (c->mine != NULL) x->at.mine = device_memory(x, c->n_mine * sizeof *c->mine, NULL);
    if (c->chosen == NULL) return;
    void *host = NULL;
    TRY(x, host_alloc(x->d, c->n_chosen * sizeof *c->chosen, &host, &x->at.chosen, &x->err));
    x->host_chosen = host;
}

static void free_residents(struct device_case *x) {
    const struct op_case *c = x->c;
    x->d->ops->free(x->d, x->at.resident_slots);
    for (uint32_t t = 0; t < c->program.n_tensors; t++) x->d->ops->free(x->d, x->at.resident[t]);
    if (c->mine != NULL) {
        TRY(x, copy_to_host(x->s, c->mine, x->at.mine, c->n_mine * sizeof *c->mine, &x->err));
        TRY(x, stream_sync(x->s, &x->err));
        x->d->ops->free(x->d, x->at.mine);
    }
    if (c->chosen == NULL) return;
    memcpy(c->chosen, x->host_chosen, c->n_chosen * sizeof *c->chosen);
    x->d->ops->host_free(x->d, x->host_chosen);
}

static void make_room_to_fetch(struct device_case *x) {
    for (uint32_t i = 0; x->c->fetches && i < x->c->program.n_ops; i++) {
        const struct atsi_op *op = &x->c->program.ops[i];
        if (op->kind != ATSI_OP_EXPERTS) continue;
        size_t bytes = (size_t)x->c->program.tensors[op->tensor[0]].size_bytes;
        size_t sizes[2] = {bytes / op->u.experts.n_experts * op->u.experts.n_used, bytes};
        for (int k = 0; k < 2; k++) {
            uint8_t *garbage = malloc(sizes[k]);
            if (garbage == NULL) abort();
            memset(garbage, 0xff, sizes[k]);
            x->fetched[i][k] = device_memory(x, sizes[k], garbage);
            TRY(x, stream_sync(x->s, &x->err));
            free(garbage);
        }
    }
}

static void open_case(struct device_case *x, struct op_case *c, struct atsi_device *d, uint32_t chunk,
                      uint32_t first_pos) {
    memset(x, 0, sizeof *x);
    x->c = c;
    x->d = d;
    TRY(x, stream_create(d, &x->s, &x->err));
    TRY(x, prepare(d, &c->program, chunk, c->n_outputs, first_pos + c->n_tokens, &x->err));
    for (uint32_t b = 0; b < c->program.n_buffers; b++) upload_buffer(x, b);
    for (uint32_t t = 0; t < c->program.n_tensors; t++)
        x->at.tensors[t] = device_memory(x, (size_t)c->program.tensors[t].size_bytes, c->tensors[t]);
    upload_states(x, first_pos);
    upload_residents(x);
    make_room_to_fetch(x);
    x->at.token_ids = device_memory(x, sizeof c->token_ids, c->token_ids);
    x->at.output_rows = device_memory(x, sizeof c->output_rows, c->output_rows);
    x->at.round = device_memory(x, sizeof(struct atsi_round), NULL);
    void *host = NULL;
    TRY(x, host_alloc(d, sizeof(struct atsi_round), &host, &x->host_round_dev, &x->err));
    x->host_round = host;
}

static void close_case(struct device_case *x) {
    for (uint32_t b = 0; b < x->c->program.n_buffers; b++) {
        TRY(x, copy_to_host(x->s, x->c->buffers[b], x->at.buffers[b], buffer_bytes(x->c, b), &x->err));
        TRY(x, stream_sync(x->s, &x->err));
        x->d->ops->free(x->d, x->at.buffers[b]);
    }
    for (uint32_t t = 0; t < x->c->program.n_tensors; t++) x->d->ops->free(x->d, x->at.tensors[t]);
    for (uint32_t i = 0; i < x->c->program.n_states; i++)
        for (int k = 0; k < 2; k++) x->d->ops->free(x->d, x->at.states[i][k]);
    free_residents(x);
    for (uint32_t i = 0; i < x->c->program.n_ops; i++)
        for (int k = 0; k < 2; k++) x->d->ops->free(x->d, x->fetched[i][k]);
    x->d->ops->free(x->d, x->at.token_ids);
    x->d->ops->free(x->d, x->at.output_rows);
    x->d->ops->free(x->d, x->at.round);
    x->d->ops->host_free(x->d, x->host_round);
    x->d->ops->stream_destroy(x->s);
}

// What an EXPERTS call lacks is fetched; its tensor is garbage from then on.
static void fetch_experts(struct device_case *x, uint32_t i_op, struct atsi_op_call *call) {
    call->resident.fetched = x->fetched[i_op][0];
    TRY(x, fetch_experts(x->s, call, &x->err));
    call->tensor[0].data = x->fetched[i_op][1];
}

enum manner {
    IN_A_ROW,
    CAPTURED,
    ALONE
};

static void launch_ops(struct device_case *x, uint32_t row, enum manner manner) {
    for (uint32_t i = 0; i < x->c->program.n_ops; i++) {
        const struct atsi_op *op = &x->c->program.ops[i];
        struct atsi_op_call call = op_case_call(x->c, &x->at, op, row);
        if (x->c->fetches && op->kind == ATSI_OP_EXPERTS && x->host_round->n_tokens == 1) fetch_experts(x, i, &call);
        TRY(x, launch(x->s, &call, x->host_round, &x->err));
        if (manner == ALONE) TRY(x, stream_sync(x->s, &x->err));
    }
}

static void run_case(struct op_case *c, struct atsi_device *d, uint32_t chunk, uint32_t first_pos, enum manner manner) {
    struct device_case x;
    open_case(&x, c, d, chunk, first_pos);
    for (uint32_t row = 0; row < c->n_tokens; row += chunk) {
        TRY(&x, stream_sync(x.s, &x.err)); // the pinned round is rewritten
        *x.host_round =
            (struct atsi_round){.n_tokens = (int32_t)(c->n_tokens - row < chunk ? c->n_tokens - row : chunk),
                                .n_outputs = (int32_t)c->n_outputs,
                                .first_pos = (int32_t)(first_pos + row)};
        TRY(&x, copy_rows(x.s, x.at.round, 4, x.host_round_dev, 4, 4, 1, &x.err));
        if (manner == CAPTURED) {
            void *graph = NULL;
            TRY(&x, capture_begin(x.s, &x.err));
            launch_ops(&x, row, manner);
            TRY(&x, capture_end(x.s, &graph, &x.err));
            TRY(&x, graph_launch(x.s, graph, &x.err));
            TRY(&x, stream_sync(x.s, &x.err));
            d->ops->graph_destroy(d, graph);
        } else {
            launch_ops(&x, row, manner);
        }
    }
    close_case(&x);
}

void gpu_case_run(struct op_case *c, struct atsi_device *d, uint32_t chunk, uint32_t first_pos, bool captured) {
    run_case(c, d, chunk, first_pos, captured ? CAPTURED : IN_A_ROW);
}

// ---- comparison --------------------------------------------------------------------------------------------------------

static double distance(const float *found, const float *wanted, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)found[i] - wanted[i];
        error += e * e;
        size += (double)wanted[i] * wanted[i];
    }
    return size > 0 ? sqrt(error / size) : error;
}

static double compare_buffer(const struct op_case *c, uint32_t b, const float *wanted, const char *what) {
    size_t n = op_case_rows(c, (int32_t)b) * c->program.buffers[b].width;
    if (c->program.buffers[b].is_int) {
        if (memcmp(c->buffers[b], wanted, n * sizeof(float)) != 0)
            fail_msg("%s: integers of buffer %u differ", what, b);
        return 0;
    }
    return distance(c->buffers[b], wanted, n);
}

void gpu_case_check(struct op_case *c, struct atsi_device *d, const uint32_t *chunks, int n_chunks, double tolerance,
                    const char *what) {
    enum {
        FIRST_POS = 5,
        THREADS = 4
    };
    float *before[OP_CASE_CAP], *wanted[OP_CASE_CAP];
    double worst = 0;
    for (uint32_t b = 0; b < c->program.n_buffers; b++) before[b] = op_case_copy(c, (int32_t)b);
    // Not with the best there is: where that is AMX, many tokens are multiplied in bfloat16.
    op_case_run(c, "avx2", THREADS, c->n_tokens, FIRST_POS);
    for (uint32_t b = 0; b < c->program.n_buffers; b++) wanted[b] = op_case_copy(c, (int32_t)b);
    for (int k = 0; k < n_chunks; k++) {
        uint32_t chunk = chunks[k] < c->n_tokens ? chunks[k] : c->n_tokens;
        for (uint32_t b = 0; b < c->program.n_buffers; b++) op_case_restore(c, (int32_t)b, before[b]);
        gpu_case_run(c, d, chunk, FIRST_POS, k % 2 == 1);
        for (uint32_t b = 0; b < c->program.n_buffers; b++) {
            double ratio = compare_buffer(c, b, wanted[b], what);
            if (!(ratio <= tolerance))
                fail_msg("%s, rounds of %u: buffer %u is off by %.3g, allowed %.3g", what, chunk, b, ratio, tolerance);
            if (ratio > worst) worst = ratio;
        }
    }
    printf("# %-44s off by %.2e of %.0e\n", what, worst, tolerance);
    for (uint32_t b = 0; b < c->program.n_buffers; b++) {
        free(before[b]);
        free(wanted[b]);
    }
}

void gpu_case_check_alone(struct op_case *c, struct atsi_device *d, uint32_t chunk, const char *what) {
    enum {
        FIRST_POS = 5
    };
    float *before[OP_CASE_CAP], *wanted[OP_CASE_CAP];
    for (uint32_t b = 0; b < c->program.n_buffers; b++) before[b] = op_case_copy(c, (int32_t)b);
    run_case(c, d, chunk, FIRST_POS, ALONE);
    for (uint32_t b = 0; b < c->program.n_buffers; b++) wanted[b] = op_case_copy(c, (int32_t)b);
    for (int k = 0; k < 2; k++) {
        for (uint32_t b = 0; b < c->program.n_buffers; b++) op_case_restore(c, (int32_t)b, before[b]);
        run_case(c, d, chunk, FIRST_POS, k == 0 ? IN_A_ROW : CAPTURED);
        for (uint32_t b = 0; b < c->program.n_buffers; b++)
            if (!test_same_bits(c->buffers[b], wanted[b], buffer_bytes(c, b)))
                fail_msg("%s, rounds of %u: buffer %u has other bits than when every operation runs alone", what, chunk,
                         b);
    }
    for (uint32_t b = 0; b < c->program.n_buffers; b++) {
        free(before[b]);
        free(wanted[b]);
    }
}
