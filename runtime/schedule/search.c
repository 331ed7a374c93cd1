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
    uint64_t total_bytes;         // of this and all earlier promotions
    uint32_t before, skip, depth; // 0: none
};

struct label {
    double clock_us, engine_us;
    double space_us;          // when a unit of typical size fits beside what is held
    uint32_t path, promotion; // newest entries
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
    double *price_us[2];          // [cells] of the candidate in a cell, infinite when there is none
    struct label *candidate[2];   // [cells]; path and promotion are those that it extends
    struct label *label[2];       // [cells] what the last step left, by the side of the last unit
    size_t n_labels[2];
    size_t n_paths, n_promotions;
    // of the run
    const struct atsi_schedule_instance *inst;
    struct search_effort effort;
    double window_us;
    double lag_us, space_age_us;       // the largest of the labels, at most window_us
    double lags_per_us, spaces_per_us; // of the step: cells follow what the labels spread over
    uint64_t typical_bytes;
};

struct search *search_create(size_t n_units_max, size_t cells_max) {
    struct search *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = n_units_max * 2 * cells_max + 1;
    s->cells_max = cells_max;
    s->paths = malloc(n * sizeof *s->paths);
    s->promotions = malloc(n * sizeof *s->promotions);
    s->rest = malloc((n_units_max + 1) * sizeof *s->rest);
    bool good = s->paths && s->promotions && s->rest;
    for (int side = 0; side < 2; side++) {
        s->price_us[side] = malloc(cells_max * sizeof *s->price_us[side]);
        s->candidate[side] = malloc(cells_max * sizeof *s->candidate[side]);
        s->label[side] = malloc(cells_max * sizeof *s->label[side]);
        good = good && s->price_us[side] && s->candidate[side] && s->label[side];
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
    for (int side = 0; side < 2; side++) {
        free(s->price_us[side]);
        free(s->candidate[side]);
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

// With the engine further behind than it takes to fill the region, more makes no difference.
static void measure_window(struct search *s) {
    double transfer_us = 0, bytes = 0, squares = 0;
    for (size_t i = 0; i < s->inst->n_units; i++) {
        if (!can_promote(s->inst, i)) continue;
        transfer_us += s->inst->units[i].transfer_us;
        bytes += (double)s->inst->units[i].size_bytes;
        squares += (double)s->inst->units[i].size_bytes * (double)s->inst->units[i].size_bytes;
    }
    double share = bytes > 0 ? least(1, (double)s->inst->temp_bytes / bytes) : 1;
    s->window_us = transfer_us * share;
    s->typical_bytes = bytes > 0 ? (uint64_t)(squares / bytes) : 0; // the mean over bytes: large units need room most
}

static size_t slot(double position, size_t n) { return position >= (double)n ? n - 1 : (size_t)position; }

// The engine is never ahead of the clock: the last promoted unit ended after its transfer.
static size_t cell_of(const struct search *s, const struct label *l) {
    size_t lag = slot((l->clock_us - l->engine_us) * s->lags_per_us, s->effort.n_lags);
    size_t space = slot((l->clock_us - l->space_us) * s->spaces_per_us, s->effort.n_spaces);
    return lag * s->effort.n_spaces + space;
}

// `l` stands at the end of unit i.
static void offer(struct search *s, int side, const struct label *l, size_t i) {
    double price = s->effort.clock_price;
    const struct rest *rest = &s->rest[i + 1];
    double open_us = price * l->clock_us + (1 - price) * l->engine_us + rest->open_us[side];
    if (least(open_us, l->clock_us + rest->home_us[side]) >= s->effort.known_us) return;
    double engine_us = fmax2(l->engine_us, l->clock_us - s->window_us);
    double price_us = price * l->clock_us + (1 - price) * engine_us;
    size_t cell = cell_of(s, l);
    if (price_us >= s->price_us[side][cell]) return;
    s->price_us[side][cell] = price_us;
    s->candidate[side][cell] = *l;
}

// Whether `bytes` more fit only once promotion p is gone, given `total_bytes` promoted so far.
static bool must_go(const struct search *s, uint32_t p, uint64_t total_bytes, uint64_t bytes) {
    return total_bytes - s->promotions[s->promotions[p].before].total_bytes + bytes > s->inst->temp_bytes;
}

// When the newest promotion that must be gone ends, 0 when all may stay. The search starts at *at and leaves it there
// (for a second look with fewer bytes, which is further back).
static double space_for(const struct search *s, uint64_t total_bytes, uint64_t bytes, uint32_t *at) {
    if (total_bytes + bytes <= s->inst->temp_bytes) return 0;
    while (*at && !must_go(s, *at, total_bytes, bytes)) {
        uint32_t skip = s->promotions[*at].skip;
        *at = skip && !must_go(s, skip, total_bytes, bytes) ? skip : s->promotions[*at].before;
    }
    return s->promotions[*at].end_us;
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
    uint64_t total_bytes = s->promotions[l->promotion].total_bytes;
    uint32_t at = l->promotion;
    struct label next = *l;
    bool alone = unit->size_bytes + s->typical_bytes > s->inst->temp_bytes;
    if (!alone) next.space_us = space_for(s, total_bytes, unit->size_bytes + s->typical_bytes, &at);
    double space_us = space_for(s, total_bytes, unit->size_bytes, &at);
    double start_us = fmax2(fmax2(l->engine_us, space_us), after_of(s, l, unit, i));
    next.engine_us = start_us + unit->transfer_us;
    next.clock_us = fmax2(ready_us, next.engine_us) + unit->t_gpu_us;
    if (alone) next.space_us = next.clock_us;
    offer(s, ATSI_GPU, &next, i);
}

static void extend(struct search *s, const struct label *l, int side_before, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    double switch_us = i ? unit->switch_us : 0;
    struct label next = *l;
    next.clock_us += (side_before != (int)unit->home ? switch_us : 0) + home_us(unit);
    offer(s, (int)unit->home, &next, i);
    if (can_promote(s->inst, i)) offer_promotion(s, l, l->clock_us + (side_before == ATSI_CPU ? switch_us : 0), i);
}

static uint32_t add_promotion(struct search *s, const struct label *l, uint64_t bytes) {
    const struct promotion *before = &s->promotions[l->promotion], *skip = &s->promotions[before->skip];
    struct promotion p = {l->clock_us, before->total_bytes + bytes, l->promotion, l->promotion, before->depth + 1};
    if (before->depth - skip->depth == skip->depth - s->promotions[skip->skip].depth) p.skip = skip->skip;
    s->promotions[s->n_promotions] = p;
    return (uint32_t)s->n_promotions++;
}

// Makes the candidates of a side the labels that the next step extends.
static void settle(struct search *s, int side, size_t i) {
    const struct atsi_schedule_unit *unit = &s->inst->units[i];
    bool promoted = side == ATSI_GPU && unit->home == ATSI_CPU;
    size_t n_cells = s->effort.n_lags * s->effort.n_spaces;
    s->n_labels[side] = 0;
    for (size_t cell = 0; cell < n_cells; cell++) {
        if (s->price_us[side][cell] == INFINITY) continue;
        struct label l = s->candidate[side][cell];
        s->paths[s->n_paths] = (struct path){l.clock_us, l.path, (uint8_t)side};
        l.path = (uint32_t)s->n_paths++;
        s->lag_us = fmax2(s->lag_us, l.clock_us - l.engine_us);
        s->space_age_us = fmax2(s->space_age_us, l.clock_us - l.space_us);
        if (promoted) l.promotion = add_promotion(s, &l, unit->size_bytes);
        s->label[side][s->n_labels[side]++] = l;
    }
}

static double cells_per_us(const struct search *s, size_t n, double spread_us) {
    return spread_us > 0 ? (double)n / least(spread_us, s->window_us) : 0;
}

static void step(struct search *s, size_t i) {
    size_t n_cells = s->effort.n_lags * s->effort.n_spaces;
    double growth_us = home_us(&s->inst->units[i]) + s->inst->units[i].switch_us; // a label ages by no more
    s->lags_per_us = cells_per_us(s, s->effort.n_lags, s->lag_us + growth_us);
    s->spaces_per_us = cells_per_us(s, s->effort.n_spaces, s->space_age_us + growth_us);
    s->lag_us = s->space_age_us = 0;
    for (int side = 0; side < 2; side++)
        for (size_t cell = 0; cell < n_cells; cell++) s->price_us[side][cell] = INFINITY;
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
    measure_window(s);
    s->paths[0] = (struct path){0};
    s->promotions[0] = (struct promotion){0};
    s->n_paths = s->n_promotions = 1;
    s->label[ATSI_CPU][0] = (struct label){0};
    s->n_labels[ATSI_CPU] = 1;
    s->n_labels[ATSI_GPU] = 0;
    s->lag_us = s->space_age_us = 0;
    for (size_t i = 0; i < inst->n_units; i++) step(s, i);
    return backtrack(s, assignment);
}
