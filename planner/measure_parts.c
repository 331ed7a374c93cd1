// measure_parts.c: what a part of an operation takes, and what operations take in a row. Units are divided between both processors by rows and slots (runtime/schedule/shares.h),
// and however small a part is, its side starts the kernel, meets at its barriers and begins to read.
#include <math.h>

#include "planner/bench.h"
#include "planner/cost.h"
#include "planner/measure.h"
#include "planner/profile_fit.h"

enum {
    TILE_ROWS = 16,  // a matrix is divided by whole tiles
    LEAST_TILES = 8, // of one that is worth it
    PARTS = 4,       // an eighth, a quarter, a half, the whole: of experts in slots
    ROUNDS = 3       // over all parts, so that a slower moment does not meet one part alone
};

static uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

// Different numbers of output columns, the whole last. Returns how many; fewer than two: nothing to divide.
static int list_columns(const struct atsi_op *op, uint32_t *columns) {
    uint32_t width = op->out[0].width, unit = TILE_ROWS;
    int n = 0;
    if (op->kind == ATSI_OP_EXPERTS)
        unit = width / op->u.experts.n_used;
    else if (width < LEAST_TILES * TILE_ROWS)
        return 0;
    for (uint32_t divisor = 1u << (PARTS - 1); divisor > 0; divisor /= 2) {
        uint32_t part = divisor == 1 ? width : round_up(width / divisor, unit);
        if (n == 0 || part > columns[n - 1]) columns[n++] = part;
    }
    return n;
}

enum atsi_status atsi_measure_fixed(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t i_op,
                                    double *fixed_us, bool *found, struct atsi_error *err) {
    const struct atsi_op *op = &plan->program.ops[i_op];
    uint32_t columns[PARTS];
    double parts[PARTS], us[PARTS], samples[PARTS][ROUNDS], spread;
    int n = list_columns(op, columns);
    *found = n >= 2;
    if (!*found) return ATSI_OK;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < n; i++) {
            struct atsi_bench_part part = {.i_op = i_op, .n_columns = columns[i]};
            ATSI_TRY(atsi_bench_part(side, plan, &part, &samples[i][r], err));
        }
    for (int i = 0; i < n; i++) {
        parts[i] = (double)columns[i] / op->out[0].width;
        us[i] = atsi_median(samples[i], ROUNDS, &spread);
    }
    *fixed_us = atsi_profile_fixed_of(parts, us, n);
    return ATSI_OK;
}

// The operation of a divisible unit whose smallest part reads least; ATSI_NONE: there is none.
static int32_t least_op(const struct atsi_plan *plan, uint32_t *n_columns) {
    const struct atsi_program *p = &plan->program;
    double least_bytes = INFINITY;
    int32_t best = ATSI_NONE;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        uint32_t columns[PARTS];
        if (!atsi_op_is_divisible(p, &p->ops[i]) || list_columns(&p->ops[i], columns) < 2) continue;
        double part = (double)columns[0] / p->ops[i].out[0].width;
        double bytes = part * atsi_work_of_op(plan, &p->ops[i], ATSI_DECODE).bytes;
        if (bytes >= least_bytes) continue;
        least_bytes = bytes;
        best = (int32_t)i;
        *n_columns = columns[0];
    }
    return best;
}

enum atsi_status atsi_measure_start(struct atsi_bench_side *cpu, const struct atsi_plan *plan, double *start_us,
                                    struct atsi_error *err) {
    struct atsi_bench_part part = {0};
    double alone[ROUNDS], in_a_row[ROUNDS], spread;
    int32_t i_op = least_op(plan, &part.n_columns);
    if (i_op == ATSI_NONE) return ATSI_OK;
    part.i_op = (uint32_t)i_op;
    for (int r = 0; r < ROUNDS; r++) {
        part.alone = false;
        ATSI_TRY(atsi_bench_part(cpu, plan, &part, &in_a_row[r], err));
        part.alone = true;
        ATSI_TRY(atsi_bench_part(cpu, plan, &part, &alone[r], err));
    }
    *start_us = fmax(0, atsi_median(alone, ROUNDS, &spread) - atsi_median(in_a_row, ROUNDS, &spread));
    return ATSI_OK;
}

// ---- in a row -----------------------------------------------------------------------------------------------------

// The operations of a layer in the middle that follow each other on the device without a choice of experts. Returns how many.
static uint32_t find_row(const struct atsi_program *p, uint32_t *first) {
    int32_t layer = p->units[p->n_units / 2].layer;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops && n < ATSI_BENCH_ROW_MAX; i++) {
        const struct atsi_op *op = &p->ops[i];
        if (p->units[atsi_program_unit_of(p, i)].layer != layer) continue;
        bool chooses = op->kind == ATSI_OP_ROUTER || op->kind == ATSI_OP_EXPERTS || op->kind == ATSI_OP_EXPERT_SUM;
        if (chooses || !atsi_op_runs_on_gpu(p, op)) break;
        if (n++ == 0) *first = i;
    }
    return n;
}

enum atsi_status atsi_measure_joined(struct atsi_bench_side *gpu, const struct atsi_plan *plan,
                                     const struct atsi_device_profile *profile, double *joined_us,
                                     struct atsi_error *err) {
    const struct atsi_program *p = &plan->program;
    double alone_us = 0, us[ROUNDS], spread;
    uint32_t first = 0, n = find_row(p, &first), n_small = 0;
    for (uint32_t i = first; i < first + n; i++) {
        struct atsi_work w = atsi_work_of_op(plan, &p->ops[i], ATSI_DECODE);
        struct atsi_price price =
            atsi_device_profile_price(profile, ATSI_GPU, p->ops[i].kind, w.dtype, ATSI_DECODE, w.bytes, w.flops);
        if (!price.is_measured) return ATSI_OK;
        alone_us += price.us;
        n_small += !atsi_op_is_divisible(p, &p->ops[i]);
    }
    if (n < 2 || n_small == 0) return ATSI_OK;
    for (int r = 0; r < ROUNDS; r++) ATSI_TRY(atsi_bench_row(gpu, plan, first, n, &us[r], err));
    *joined_us = fmax(0, alone_us - atsi_median(us, ROUNDS, &spread)) / n_small;
    return ATSI_OK;
}
