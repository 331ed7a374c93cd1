#include "runtime/schedule/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/model.h"

// How many units back a label looks for the end of its `after`. Beyond, it takes the end of the last one it looked
// at, which is later than need be; the model times the result without such a limit.
enum {
    AFTER_LOOKBACK = 64
};

// One unit of one partial round; the chain of parents is the round so far.
struct path {
    double end_us;
    uint32_t parent;
    uint8_t side;
};

// The promotions of a partial round, newest first. `skip` leads far back, so that a search along the chain takes
// logarithmic time (skew-binary jump pointers).
struct promotion {
    double end_us;                // of the unit's compute: its space comes free
    uint64_t before_bytes;        // of all earlier promotions
    uint64_t total_bytes;         // and of this one
    uint32_t before, skip, depth; // 0: none
};

struct label {
    double clock_us, engine_us;
    uint32_t path, promotion; // newest entries
    uint32_t recent;          // the last decisions on units that could be promoted, newest in bit 0
};

// Least time from the end of a unit on a side to the end of the round: all at home, or with promotions to come (then
// at the price of the two clocks).
struct rest {
    double home_us[2], open_us[2];
};

struct search {
    size_t cells_max;
    struct path *paths;           // [n * 2 * cells + 1]
    struct promotion *promotions; // the same
    struct rest *rest;            // [n + 1] after unit i - 1
    struct label *candidate;      // [4 * cells] of this step; path and promotion are those that it extends
    double *price_us[2];          // [cells] of the best candidate in a cell, infinite when there is none
    uint32_t *best[2];            // [cells] that candidate
    struct label *label[2];       // [cells] what the last step left, by the side of the last unit
    size_t n_labels[2];
    size_t n_candidates;
    size_t n_paths, n_promotions;
    // of the run
    const struct atsi_schedule_instance *inst;
    struct search_effort effort;
    size_t n_cells;     // of a side
    double window_us;   // with the engine further behind than this, more makes no difference
    double lag_us;      // the largest lag among the labels
    double lags_per_us; // of the step: cells follow what the labels spread over
};

struct search *search_create(size_t n_units_max, size_t cells_max) {
    struct search *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = n_units_max * 2 * cells_max + 1;
    s->cells_max = cells_max;
    s->paths = malloc(n * sizeof *s->paths);
    s->promotions = malloc(n * sizeof *s->promotions);
    s->rest = malloc((n_units_max + 1) * sizeof *s->rest);
    s->candidate = malloc(4 * cells_max * sizeof *s->candidate);
    bool good = s->paths && s->promotions && s->rest && s->candidate;
    for (int side = 0; side < 2; side++) {
        s->price_us[side] = malloc(cells_max * sizeof *s->price_us[side]);
        s->best[side] = malloc(cells_max * sizeof *s->best[side]);
        s->label[side] = malloc(cells_max * sizeof *s->label[side]);
        good = good && s->price_us[side] && s->best[side] && s->label[side];
    }
    if (good) return s;
    search_free(s);
    return NULL;
}

void search_free(struct search *s) {
    if (!s) return;
    free(s->paths);
    free(s->promotions);
    free(s->rest);
    free(s->candidate);
    for (int side = 0; side < 2; side++) {
        free(s->price_us[side]);
        free(s->best[side]);
        free(s->label[side]);
    }
    free(s);
}

static double least(double a, double b) { return a < b ? a : b; }

static double home_us(const struct atsi_schedule_unit *unit) {
    return unit->home == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us;
}

// The backward form of the chain in bound.c.
static void measure_rest(struct search *s) {
    size_t n = s->inst->n_units;
    double price = s->effort.clock_price;
    s->rest[n] = (struct rest){{0, 0}, {INFINITY, INFINITY}};
    for (size_t i = n; i-- > 0;) {
        const struct atsi_schedule_unit *unit = &s->inst->units[i];
        const struct rest *next = &s->rest[i + 1];
        int home = (int)unit->home;
        for (int side = 0; side < 2; side++) {
            double leave = i && side != home ? unit->switch_us : 0;
            double to_gpu = i && side != ATSI_GPU ? unit->switch_us : 0;
            s->rest[i].home_us[side] = leave + home_us(unit) + next->home_us[home];
            s->rest[i].open_us[side] = price * (leave + home_us(unit)) + next->open_us[home];
            if (!can_promote(s->inst, i)) continue;
            double moved = price * to_gpu + (1 - price) * unit->transfer_us;
            double last = moved + unit->t_gpu_us + next->home_us[ATSI_GPU];
            double more = moved + price * unit->t_gpu_us + next->open_us[ATSI_GPU];
            s->rest[i].open_us[side] = least(s->rest[i].open_us[side], least(last, more));
        }
    }
}

// What it takes to fill the region.
static double measure_window(const struct search *s) {
    double transfer_us = 0, bytes = 0;
    for (size_t i = 0; i < s->inst->n_units; i++) {
        if (!can_promote(s->inst, i)) continue;
        transfer_us += s->inst->units[i].transfer_us;
        bytes += (double)s->inst->units[i].size_bytes;
    }
    return bytes > 0 ? transfer_us * least(1, (double)s->inst->temp_bytes / bytes) : transfer_us;
}

// The engine is never ahead of the clock: the last promoted unit ended after its transfer.
static size_t cell_of(const struct search *s, const struct label *l) {
    double position = (l->clock_us - l->engine_us) * s->lags_per_us;
    size_t n = s->effort.n_lags, lag = position >= (double)n ? n - 1 : (size_t)position;
    return lag << s->effort.n_recent | (l->recent & ((1u << s->effort.n_recent) - 1));
}

// `l` stands at the end of unit i. Which candidate is better is a coin toss, so this is written without branches.
static inline void offer(struct search *s, int side, const struct label *l, size_t i) {
    double price = s->effort.clock_price;
    const struct rest *rest = &s->rest[i + 1];
    double open_us = price * l->clock_us + (1 - price) * l->engine_us + rest->open_us[side];
    double bound_us = least(open_us, l->clock_us + rest->home_us[side]);
    double engine_us = fmax2(l->engine_us, l->clock_us - s->window_us);
    double price_us = price * l->clock_us + (1 - price) * engine_us;
    price_us = bound_us >= s->effort.known_us ? INFINITY : price_us;
    size_t cell = cell_of(s, l);
    bool better = price_us < s->price_us[side][cell];
    s->best[side][cell] = better ? (uint32_t)s->n_candidates : s->best[side][cell];
    s->price_us[side][cell] = better ? price_us : s->price_us[side][cell];
    s->candidate[s->n_candidates++] = *l;
}

// When the newest promotion that must be gone before `bytes` more fit ends, 0 when all may stay. That is the newest one
// with less than `limit` bytes before it: without it and those before it, the rest and `bytes` fill the region at most.
static double space_for(const struct search *s, uint32_t newest, uint64_t bytes) {
    uint64_t need = s->promotions[newest].total_bytes + bytes;
    if (need <= s->inst->temp_bytes) return 0;
    uint64_t limit = need - s->inst->temp_bytes;
    const struct promotion *p = &s->promotions[newest];
    while (p->before_bytes >= limit) {
        const struct promotion *skip = &s->promotions[p->skip];
        p = p->skip && skip->before_bytes >= limit ? skip : &s->promotions[p->before];
    }
    return p->end_us;
}

static double after_of(const struct search *s, const struct label *l, const struct atsi_schedule_unit *unit, size_t i) {
    if (unit->after == ATSI_AFTER_START) return 0;
    if (unit->after == ATSI_AFTER_PREVIOUS) return l->clock_us;
    size_t back = i - 1 - (size_t)unit->after;
    const struct path *p = &s->paths[l->path];
    for (size_t k = 0; k < back && k < AFTER_LOOKBACK; k++) p = &s->paths[p->parent];
    return p->end_us;
}

static void offer_promotion(struct search *s, const struct label *l, double ready_us, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    double space_us = space_for(s, l->promotion, unit->size_bytes);
    double start_us = fmax2(fmax2(l->engine_us, space_us), after_of(s, l, unit, i));
    struct label next = *l;
    next.engine_us = start_us + unit->transfer_us;
    next.clock_us = fmax2(ready_us, next.engine_us) + unit->t_gpu_us;
    next.recent = l->recent << 1 | 1;
    offer(s, ATSI_GPU, &next, i);
}

static void extend(struct search *s, const struct label *l, int side_before, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    double switch_us = i ? unit->switch_us : 0;
    bool open = can_promote(s->inst, i);
    struct label next = *l;
    next.clock_us += (side_before != (int)unit->home ? switch_us : 0) + home_us(unit);
    if (open) next.recent = l->recent << 1;
    offer(s, (int)unit->home, &next, i);
    if (open) offer_promotion(s, l, l->clock_us + (side_before == ATSI_CPU ? switch_us : 0), i);
}

static uint32_t add_promotion(struct search *s, const struct label *l, uint64_t bytes) {
    const struct promotion *before = &s->promotions[l->promotion], *skip = &s->promotions[before->skip];
    bool level = before->depth - skip->depth == skip->depth - s->promotions[skip->skip].depth;
    s->promotions[s->n_promotions] = (struct promotion){.end_us = l->clock_us,
                                                        .before_bytes = before->total_bytes,
                                                        .total_bytes = before->total_bytes + bytes,
                                                        .before = l->promotion,
                                                        .skip = level ? skip->skip : l->promotion,
                                                        .depth = before->depth + 1};
    return (uint32_t)s->n_promotions++;
}

// Makes the candidates of a side the labels that the next step extends.
static void settle(struct search *s, int side, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    bool promoted = side == ATSI_GPU && unit->home == ATSI_CPU;
    s->n_labels[side] = 0;
    for (size_t cell = 0; cell < s->n_cells; cell++) {
        if (s->price_us[side][cell] == INFINITY) continue;
        struct label l = s->candidate[s->best[side][cell]];
        s->paths[s->n_paths] = (struct path){l.clock_us, l.path, (uint8_t)side};
        l.path = (uint32_t)s->n_paths++;
        s->lag_us = fmax2(s->lag_us, l.clock_us - l.engine_us);
        if (promoted) l.promotion = add_promotion(s, &l, unit->size_bytes);
        s->label[side][s->n_labels[side]++] = l;
    }
}

static void step(struct search *s, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    double spread_us = least(s->lag_us + home_us(unit) + unit->switch_us, s->window_us); // the lag grows by no more
    s->lags_per_us = spread_us > 0 ? (double)s->effort.n_lags / spread_us : 0;
    s->lag_us = 0;
    s->n_candidates = 0;
    for (int side = 0; side < 2; side++)
        for (size_t cell = 0; cell < s->n_cells; cell++) s->price_us[side][cell] = INFINITY;
    for (int side = 0; side < 2; side++)
        for (size_t k = 0; k < s->n_labels[side]; k++) extend(s, &s->label[side][k], side, i);
    for (int side = 0; side < 2; side++) settle(s, side, i);
}

static bool backtrack(const struct search *s, uint8_t *assignment) {
    const struct label *best = NULL;
    for (int side = 0; side < 2; side++)
        for (size_t k = 0; k < s->n_labels[side]; k++)
            if (!best || s->label[side][k].clock_us < best->clock_us) best = &s->label[side][k];
    if (!best) return false;
    uint32_t at = best->path;
    for (size_t i = s->inst->n_units; i-- > 0;) {
        assignment[i] = s->paths[at].side;
        at = s->paths[at].parent;
    }
    return true;
}

bool search_policy(struct search *s, const struct atsi_schedule_instance *inst, const struct search_effort *effort,
                   uint8_t *assignment) {
    s->inst = inst;
    s->effort = *effort;
    measure_rest(s);
    s->window_us = measure_window(s);
    s->n_cells = effort->n_lags << effort->n_recent;
    s->paths[0] = (struct path){0};
    s->promotions[0] = (struct promotion){0};
    s->n_paths = s->n_promotions = 1;
    s->label[ATSI_CPU][0] = (struct label){0};
    s->n_labels[ATSI_CPU] = 1;
    s->n_labels[ATSI_GPU] = 0;
    s->lag_us = 0;
    for (size_t i = 0; i < inst->n_units; i++) step(s, i);
    return backtrack(s, assignment);
}
