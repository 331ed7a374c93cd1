// program_memory.c: offsets of the activation buffers in the compute region, by live range.
#include <stdlib.h>

#include "formats/base/checked.h"
#include "formats/program.h"

struct range {
    uint64_t bytes, offset;
    uint64_t *busy;      // one bit an op: the buffer's bytes hold something that is read there or later
    uint32_t first, end; // columns that are read later, while the ops are walked backwards; none: first == end
    bool placed;
};

struct memory {
    const struct atsi_program *p;
    struct range *ranges; // [n_buffers]
    uint64_t *bits;       // of all ranges
    size_t n_words;       // of a range
};

// ---- live ranges --------------------------------------------------------------------------------------------------

static void mark(struct range *r, uint32_t i_op) { r->busy[i_op / 64] |= UINT64_C(1) << i_op % 64; }

static void mark_live(struct memory *m, uint32_t i_op) {
    for (uint32_t i = 0; i < m->p->n_buffers; i++)
        if (m->ranges[i].first < m->ranges[i].end) mark(&m->ranges[i], i_op);
}

static void read_view(struct memory *m, const struct atsi_view *v, uint32_t i_op) {
    if (v->buffer == ATSI_NONE) return;
    struct range *r = &m->ranges[v->buffer];
    uint32_t end = v->offset + v->width;
    bool none = r->first == r->end;
    if (none || v->offset < r->first) r->first = v->offset;
    if (none || end > r->end) r->end = end;
    mark(r, i_op);
}

// What an op writes whole was not needed before it.
static void write_view(struct memory *m, const struct atsi_view *v, uint32_t i_op) {
    if (v->buffer == ATSI_NONE) return;
    struct range *r = &m->ranges[v->buffer];
    if (v->offset <= r->first && r->end <= v->offset + v->width) r->first = r->end = 0;
    mark(r, i_op);
}

// Backwards: the columns of a buffer that are read later make it busy. They are followed as one stretch from the first to the
// last, which is never too little.
static void find_live_ranges(struct memory *m) {
    const struct atsi_program *p = m->p;
    // The outputs domain is repeated for each group of output rows, so what it reads must outlive it; and the caller reads
    // the logits after the last op.
    m->ranges[p->logits].end = p->buffers[p->logits].width;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_SELECT) read_view(m, &p->ops[i].in[0], p->n_ops);
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const struct atsi_op *op = &p->ops[i];
        mark_live(m, i);
        for (int k = 0; k < ATSI_OP_MAX_OUT; k++) write_view(m, &op->out[k], i);
        for (int k = 0; k < ATSI_OP_MAX_IN; k++) read_view(m, &op->in[k], i);
        if (op->add) read_view(m, &op->out[0], i);
        mark_live(m, i);
    }
}

static bool overlap_in_time(const struct memory *m, const struct range *a, const struct range *b) {
    for (size_t i = 0; i < m->n_words; i++)
        if (a->busy[i] & b->busy[i]) return true;
    return false;
}

// ---- offsets ------------------------------------------------------------------------------------------------------

// Lowest offset at which `r` meets no placed range that lives at the same time.
static uint64_t lowest_offset(const struct memory *m, const struct range *r) {
    uint64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < m->p->n_buffers; i++) {
            const struct range *o = &m->ranges[i];
            if (!o->placed || offset >= o->offset + o->bytes || o->offset >= offset + r->bytes) continue;
            if (!overlap_in_time(m, o, r)) continue;
            offset = o->offset + o->bytes;
            moved = true;
        }
    }
    return offset;
}

static struct range *largest_unplaced(const struct memory *m) {
    struct range *best = NULL;
    for (uint32_t i = 0; i < m->p->n_buffers; i++)
        if (!m->ranges[i].placed && (!best || m->ranges[i].bytes > best->bytes)) best = &m->ranges[i];
    return best;
}

// Largest first: the classic order for interval packing, and stable because ties fall to the lower index.
static uint64_t place(struct memory *m, struct atsi_program *p) {
    uint64_t region_bytes = 0;
    for (struct range *best; (best = largest_unplaced(m));) {
        best->offset = lowest_offset(m, best);
        best->placed = true;
        p->buffers[best - m->ranges].offset_bytes = best->offset;
        if (best->offset + best->bytes > region_bytes) region_bytes = best->offset + best->bytes;
    }
    return region_bytes;
}

// What a buffer holds at these limits, in whole alignment units.
static bool buffer_bytes(const struct atsi_buffer *b, uint32_t n_tokens_max, uint32_t n_outputs_max, uint64_t *bytes) {
    uint64_t rows = b->rows == ATSI_ROWS_TOKENS ? n_tokens_max : n_outputs_max;
    return atsi_mul_u64(rows * 4, b->width, bytes) && atsi_align_u64(*bytes, ATSI_ALIGNMENT, bytes);
}

static enum atsi_status set_sizes(struct memory *m, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                  struct atsi_error *err) {
    for (uint32_t i = 0; i < m->p->n_buffers; i++) {
        const struct atsi_buffer *b = &m->p->buffers[i];
        struct range *r = &m->ranges[i];
        if (!buffer_bytes(b, n_tokens_max, n_outputs_max, &r->bytes))
            return atsi_fail(err, ATSI_BAD_INPUT, "buffer %s: size overflows", b->name);
        r->busy = m->bits + i * m->n_words;
    }
    return ATSI_OK;
}

enum atsi_status atsi_program_place_buffers(struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                            uint64_t *region_bytes, struct atsi_error *err) {
    struct memory m = {.p = p, .n_words = p->n_ops / 64 + 1}; // a bit for the time after the last op
    m.ranges = calloc(p->n_buffers ? p->n_buffers : 1, sizeof *m.ranges);
    m.bits = calloc((p->n_buffers ? p->n_buffers : 1) * m.n_words, sizeof *m.bits);
    enum atsi_status status = m.ranges && m.bits ? set_sizes(&m, n_tokens_max, n_outputs_max, err)
                                                 : atsi_fail(err, ATSI_FAILED, "out of memory while placing buffers");
    if (status == ATSI_OK) {
        find_live_ranges(&m);
        *region_bytes = place(&m, p);
    }
    free(m.ranges);
    free(m.bits);
    return status;
}

enum atsi_status atsi_program_check_buffers(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                            uint64_t region_bytes, struct atsi_error *err) {
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const struct atsi_buffer *b = &p->buffers[i];
        uint64_t bytes, end;
        if (b->offset_bytes % ATSI_ALIGNMENT || !buffer_bytes(b, n_tokens_max, n_outputs_max, &bytes) ||
            !atsi_add_u64(b->offset_bytes, bytes, &end) || end > region_bytes)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "buffer %s: offset %llu does not fit or is not aligned in a compute region of %llu bytes",
                             b->name, (unsigned long long)b->offset_bytes, (unsigned long long)region_bytes);
    }
    return ATSI_OK;
}
