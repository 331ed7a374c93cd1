// dp.c: the dynamic program of docs/placement.md.
//
// f(i, m, b): best value of units 1..i with at most m granules on the GPU and unit i on side b. Two rows of doubles a
// side and one bit a state ("the unit before stood on the GPU"). Rows are only as long as the units so far can fill:
// beyond reach_i = min(M, s_1 + ... + s_i) a row is constant.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solve/solve.h"

struct span {
    size_t reach; // last state of the row of unit i
    size_t first; // of its bits: words_of(reach) for the CPU side, as many for the GPU side
};

struct table {
    size_t n;
    struct span *span; // [n]
    uint64_t *words;   // bit m: the best way to state (i, m, side) comes from the GPU
    double *row[2][2]; // [previous or current][side]
};

static size_t words_of(size_t reach) { return reach / 64 + 1; }

static uint64_t *bits_of(const struct table *t, size_t i, int side) {
    return t->words + t->span[i].first + (side == ATSI_GPU ? words_of(t->span[i].reach) : 0);
}

static void table_free(struct table *t) {
    free(t->span);
    free(t->words);
    for (int k = 0; k < 4; k++) free(t->row[k / 2][k % 2]);
}

// Returns the number of words of all bits.
static size_t set_spans(struct table *t, const struct atsi_solve_instance *inst, size_t budget) {
    size_t reach = 0, n_words = 0;
    for (size_t i = 0; i < t->n; i++) {
        uint64_t granules = atsi_solve_unit_granules(inst, i);
        if (inst->units[i].fix != ATSI_FIX_CPU) reach = granules > budget - reach ? budget : reach + granules;
        t->span[i] = (struct span){reach, n_words};
        n_words += 2 * words_of(reach);
    }
    return n_words;
}

static enum atsi_status table_make(struct table *t, const struct atsi_solve_instance *inst, size_t budget,
                                   struct atsi_error *err) {
    t->n = inst->n_units;
    t->span = malloc(t->n * sizeof *t->span);
    if (!t->span) return atsi_fail(err, ATSI_FAILED, "placement: out of memory");
    size_t n_words = set_spans(t, inst, budget), last = t->span[t->n - 1].reach;
    t->words = calloc(n_words, sizeof *t->words);
    bool good = t->words != NULL;
    for (int k = 0; k < 4; k++) {
        t->row[k / 2][k % 2] = malloc((last + 1) * sizeof(double));
        good = good && t->row[k / 2][k % 2];
    }
    if (good) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "placement: out of memory (%zu MiB for %zu units)",
                     n_words / 131072 + last / 32768 + 1, t->n);
}

// out[m] = max(stay[m - shift], cross[m - shift] - cost) + gain for shift <= m <= reach; bit m is set where `cross`
// won.
static void relax(double *out, uint64_t *bits, const double *stay, const double *cross, double cost, double gain,
                  size_t shift, size_t reach, bool cross_is_gpu) {
    uint64_t invert = cross_is_gpu ? 0 : 1;
    for (size_t m = 0; m < shift && m <= reach; m++) out[m] = -INFINITY;
    for (size_t m = shift; m <= reach;) {
        size_t end = (m | 63) < reach ? (m | 63) : reach;
        uint64_t word = 0;
        for (size_t at = m; at <= end; at++) {
            double a = stay[at - shift], b = cross[at - shift] - cost;
            uint64_t crossed = b > a;
            out[at] = (crossed ? b : a) + gain;
            word |= (crossed ^ invert) << (at & 63);
        }
        bits[m / 64] |= word;
        m = end + 1;
    }
}

static void fill(double *row, size_t first, size_t last, double value) {
    for (size_t m = first; m <= last; m++) row[m] = value;
}

// One unit: previous rows (valid to `before`) to current rows (valid to reach[i]).
static void step(struct table *t, const struct atsi_solve_instance *inst, size_t i, size_t before) {
    const struct atsi_solve_unit *unit = &inst->units[i];
    size_t reach = t->span[i].reach;
    double **old = t->row[i & 1], **new = t->row[~i & 1];
    double cost = i ? unit->switch_us : 0;
    for (int side = 0; side < 2; side++) fill(old[side], before + 1, reach, old[side][before]);
    if (unit->fix == ATSI_FIX_GPU)
        fill(new[ATSI_CPU], 0, reach, -INFINITY);
    else
        relax(new[ATSI_CPU], bits_of(t, i, ATSI_CPU), old[ATSI_CPU], old[ATSI_GPU], cost, 0, 0, reach, true);
    uint64_t granules = atsi_solve_unit_granules(inst, i);
    if (unit->fix == ATSI_FIX_CPU || granules > reach)
        fill(new[ATSI_GPU], 0, reach, -INFINITY);
    else
        relax(new[ATSI_GPU], bits_of(t, i, ATSI_GPU), old[ATSI_GPU], old[ATSI_CPU], cost,
              unit->t_cpu_us - unit->t_gpu_us, granules, reach, false);
}

static void backtrack(const struct table *t, const struct atsi_solve_instance *inst, int side, uint8_t *placement) {
    size_t m = t->span[t->n - 1].reach;
    for (size_t i = t->n; i-- > 0;) {
        if (m > t->span[i].reach) m = t->span[i].reach;
        placement[i] = (uint8_t)side;
        int before = (int)(bits_of(t, i, side)[m / 64] >> (m % 64) & 1);
        if (side == ATSI_GPU) m -= atsi_solve_unit_granules(inst, i);
        side = before;
    }
}

static enum atsi_status run(struct table *t, const struct atsi_solve_instance *inst, uint8_t *placement,
                            struct atsi_error *err) {
    t->row[0][ATSI_CPU][0] = 0; // before the first unit: nothing placed, and its boundary is free
    t->row[0][ATSI_GPU][0] = -INFINITY;
    for (size_t i = 0; i < t->n; i++) step(t, inst, i, i ? t->span[i - 1].reach : 0);
    size_t last = t->span[t->n - 1].reach;
    double on_cpu = t->row[t->n & 1][ATSI_CPU][last], on_gpu = t->row[t->n & 1][ATSI_GPU][last];
    if (isinf(on_cpu) && isinf(on_gpu))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "placement: the units fixed to the GPU do not fit into the budget of %llu bytes",
                         (unsigned long long)inst->budget_bytes);
    backtrack(t, inst, on_gpu > on_cpu ? ATSI_GPU : ATSI_CPU, placement);
    return ATSI_OK;
}

enum atsi_status atsi_solve_dp(const struct atsi_solve_instance *inst, uint8_t *placement, struct atsi_error *err) {
    uint64_t budget = atsi_solve_budget_granules(inst);
    if (inst->n_units == 0) return atsi_fail(err, ATSI_BAD_INPUT, "placement: nothing to place");
    if (budget > ATSI_SOLVE_GRANULES_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "placement: a budget of %llu granules; at most %llu are supported",
                         (unsigned long long)budget, (unsigned long long)ATSI_SOLVE_GRANULES_MAX);
    struct table t = {0};
    enum atsi_status status = table_make(&t, inst, (size_t)budget, err);
    if (status == ATSI_OK) status = run(&t, inst, placement, err);
    table_free(&t);
    return status;
}
