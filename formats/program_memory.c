// program_memory.c: offsets of the activation buffers in the compute region, by live range.
#include <stdlib.h>

#include "formats/base/checked.h"
#include "formats/program.h"

struct range {
    uint64_t bytes, offset;
    uint32_t first, last; // ops that touch it first and last
    bool used, placed;
};

static void touch(struct range *ranges, const struct atsi_view *v, uint32_t i_op) {
    if (v->buffer == ATSI_NONE) return;
    struct range *r = &ranges[v->buffer];
    if (!r->used) r->first = i_op;
    r->used = true;
    r->last = i_op;
}

static bool overlap_in_time(const struct range *a, const struct range *b) {
    return a->first <= b->last && b->first <= a->last;
}

// Lowest offset at which `r` meets no placed range that lives at the same time.
static uint64_t lowest_offset(const struct range *ranges, uint32_t n, const struct range *r) {
    uint64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < n; i++) {
            const struct range *o = &ranges[i];
            if (!o->placed || !overlap_in_time(o, r)) continue;
            if (offset < o->offset + o->bytes && o->offset < offset + r->bytes) {
                offset = o->offset + o->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

enum atsi_status atsi_program_place_buffers(struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                            uint64_t *region_bytes, struct atsi_error *err) {
    struct range *ranges = calloc(p->n_buffers ? p->n_buffers : 1, sizeof *ranges);
    if (!ranges) return atsi_fail(err, ATSI_FAILED, "out of memory while placing buffers");
    for (uint32_t i = 0; i < p->n_ops; i++) {
        for (int k = 0; k < ATSI_OP_MAX_IN; k++) touch(ranges, &p->ops[i].in[k], i);
        for (int k = 0; k < ATSI_OP_MAX_OUT; k++) touch(ranges, &p->ops[i].out[k], i);
    }
    // The outputs domain is repeated for each group of output rows, so what it reads must outlive it; and the caller
    // reads the logits after the last op.
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_SELECT) ranges[p->ops[i].in[0].buffer].last = p->n_ops;
    ranges[p->logits].last = p->n_ops;

    enum atsi_status status = ATSI_OK;
    *region_bytes = 0;
    for (uint32_t i = 0; i < p->n_buffers && status == ATSI_OK; i++) {
        uint64_t rows = p->buffers[i].rows == ATSI_ROWS_TOKENS ? n_tokens_max : n_outputs_max;
        if (!atsi_mul_u64(rows * 4, p->buffers[i].width, &ranges[i].bytes) ||
            !atsi_align_u64(ranges[i].bytes, 256, &ranges[i].bytes))
            status = atsi_fail(err, ATSI_BAD_INPUT, "buffer %s: size overflows", p->buffers[i].name);
    }
    // Largest first: the classic order for interval packing, and stable because ties fall to the lower index.
    for (uint32_t n = 0; n < p->n_buffers && status == ATSI_OK; n++) {
        struct range *best = NULL;
        for (uint32_t i = 0; i < p->n_buffers; i++)
            if (!ranges[i].placed && (!best || ranges[i].bytes > best->bytes)) best = &ranges[i];
        if (!best) break;
        best->offset = lowest_offset(ranges, p->n_buffers, best);
        best->placed = true;
        p->buffers[best - ranges].offset_bytes = best->offset;
        if (best->offset + best->bytes > *region_bytes) *region_bytes = best->offset + best->bytes;
    }
    free(ranges);
    return status;
}
