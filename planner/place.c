#include "planner/place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "planner/cost.h"
#include "planner/place_problem.h"

static const uint64_t mib = 1 << 20;
// Of the solver when the placement is settled: a few hundred matrices lose less than 50 MiB to rounding, with whole MiB over 100.
static const uint64_t granule = 256 << 10;
enum {
    SEARCH_GRANULES = 1 << 13 // a coarse budget for the search
};

// ---- the search ---------------------------------------------------------------------------------------------------

struct best {
    struct atsi_candidate candidate;
    double score; // INFINITY: none yet
};

// Of each way of placing.
struct bests {
    struct best of[ATSI_PLACE_SEARCHED];
};

static uint64_t granularity_of(const struct atsi_problem *s, uint64_t n_granules_max) {
    uint64_t size = granule;
    while (s->free_bytes / size > n_granules_max) size *= 2;
    return size;
}

static double decode_us_of(const struct atsi_problem *s, const struct atsi_decode_forecast *f) {
    return s->options->goal == ATSI_PLACE_STATIC ? f->static_us : f->best_us;
}

// Solves a candidate and predicts both phases, temporary region included.
static enum atsi_status try_candidate(struct atsi_problem *s, struct atsi_candidate *c, enum atsi_hit_rates rates,
                                      struct atsi_error *err) {
    struct atsi_solve_result result;
    struct atsi_decode_forecast decode;
    s->plan->limits.temp_bytes = c->temp_bytes;
    ATSI_TRY(atsi_problem_solve(s, c, granularity_of(s, SEARCH_GRANULES), NULL, &result, err));
    ATSI_TRY(atsi_problem_apply(s, c, rates, &result, err));
    ATSI_TRY(atsi_forecast_decode(s->plan, c->temp_bytes, &decode, err));
    c->decode_us = decode_us_of(s, &decode);
    return atsi_place_predict(s->plan, ATSI_PREFILL, ATSI_POLICY_FIFO, c->temp_bytes, &c->prefill_us, err);
}

static uint64_t largest_transfer(const struct atsi_problem *s, enum atsi_phase phase) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < s->plan->program.n_units; i++) {
        const struct atsi_unit *u = &s->plan->program.units[i];
        uint64_t bytes = atsi_unit_is_promotable(u) ? atsi_cost_transfer_bytes(s->plan, u, phase) : 0;
        if (bytes > largest) largest = bytes;
    }
    return (largest + mib - 1) / mib * mib;
}

// Region sizes to try: none, and room for one to eight of the largest transfers of either phase (experts move as a few in
// decode and as all in prefill), as long as half of the free bytes stays for residents.
static uint32_t list_regions(const struct atsi_problem *s, uint64_t *sizes, uint32_t cap) {
    uint32_t n = 0;
    sizes[n++] = 0;
    for (int phase = ATSI_DECODE; phase <= ATSI_PREFILL; phase++)
        for (uint64_t k = 1, size = largest_transfer(s, (enum atsi_phase)phase); k <= 8; k *= 2)
            if (n < cap && k * size > sizes[n - 1] && k * size <= s->free_bytes / 2) sizes[n++] = k * size;
    return n;
}

static struct bests no_bests(void) {
    struct bests bests;
    for (int m = 0; m < ATSI_PLACE_SEARCHED; m++) bests.of[m] = (struct best){.score = INFINITY};
    return bests;
}

static bool is_better(const struct best *one, const struct best *other) {
    return one->score < other->score * (1 - 1e-6); // ties go to the earlier: smaller regions, smaller chunks
}

// The best of all ways; of equals the first, the undivided problem.
static const struct best *best_of(const struct bests *bests) {
    const struct best *best = &bests->of[0];
    for (int m = 1; m < ATSI_PLACE_SEARCHED; m++)
        if (is_better(&bests->of[m], best)) best = &bests->of[m];
    return best;
}

// A candidate whose region leaves too little for what is pinned to the GPU is none; patterns are known to be good by now.
static enum atsi_status consider(struct atsi_problem *s, struct atsi_candidate c, struct bests *bests,
                                 struct atsi_error *err) {
    enum atsi_status status = try_candidate(s, &c, ATSI_HITS_EXPECTED, err);
    if (status == ATSI_BAD_INPUT && s->options->n_pins > 0) return ATSI_OK;
    ATSI_TRY(status);
    struct best here = {.candidate = c, .score = atsi_objective_us(&s->objective, s->plan, c.decode_us, c.prefill_us)};
    struct best *best = &bests->of[c.method];
    if (is_better(&here, best)) *best = here;
    return ATSI_OK;
}

// The best of one method with the plan's present chunk.
static enum atsi_status try_method(struct atsi_problem *s, enum atsi_place_method method, enum atsi_expert_guess guess,
                                   struct bests *bests, struct atsi_error *err) {
    enum {
        MAX_REGIONS = 8
    };
    uint64_t regions[MAX_REGIONS];
    uint32_t n_regions = list_regions(s, regions, s->options->goal == ATSI_PLACE_STATIC ? 1 : MAX_REGIONS);
    int n_prices = s->options->goal == ATSI_PLACE_STATIC ? 1 : 2;
    for (uint32_t i = 0; i < n_regions; i++)
        for (int streamed = 0; streamed < n_prices; streamed++) {
            struct atsi_candidate c = {.chunk = s->plan->limits.chunk,
                                       .temp_bytes = regions[i],
                                       .method = method,
                                       .streamed = streamed != 0,
                                       .guess = guess};
            ATSI_TRY(consider(s, c, bests, err));
        }
    return ATSI_OK;
}

static enum atsi_status find_bests(struct atsi_problem *s, struct bests *bests, struct atsi_error *err) {
    bool by_unit = s->options->experts != ATSI_EXPERTS_SINGLE;
    *bests = no_bests();
    if (by_unit) ATSI_TRY(try_method(s, ATSI_PLACE_UNDIVIDED, ATSI_GUESS_BOLD, bests, err));
    if (by_unit && s->has_experts) ATSI_TRY(try_method(s, ATSI_PLACE_PARTITION, ATSI_GUESS_BOLD, bests, err));
    return s->hot.n_routers > 0 ? try_method(s, ATSI_PLACE_SINGLE_EXPERTS, ATSI_GUESS_BOLD, bests, err) : ATSI_OK;
}

// Makes `chunk` the plan's and prices its prefill.
static enum atsi_status take_chunk(struct atsi_problem *s, uint32_t chunk, struct atsi_placement *out,
                                   struct atsi_error *err) {
    struct atsi_plan *plan = s->plan;
    uint32_t n_decode, n_prefill;
    if (chunk != plan->limits.chunk) ATSI_TRY(atsi_chunk_set(plan, chunk, err));
    uint64_t base = atsi_budget_base(plan, s->profile, s->options->device);
    s->free_bytes = base < s->options->vram_bytes ? s->options->vram_bytes - base : 0;
    atsi_cost_units(plan, s->profile, ATSI_DECODE, plan->decode_times, &n_decode);
    atsi_cost_units(plan, s->profile, ATSI_PREFILL, plan->prefill_times, &n_prefill);
    out->n_estimated = n_decode + n_prefill;
    return ATSI_OK;
}

// A guess promises nothing: what rests on it is left where routers that choose all experts alike would make it worse than the best of the
// other ways by more than this (docs/placement.md, "When nothing has been counted").
static const double most_even_loss = 0.25;

static enum atsi_status may_rest_on_guess(struct atsi_problem *s, const struct best *single, double other_score,
                                          bool *may, struct atsi_error *err) {
    struct atsi_candidate c = single->candidate;
    ATSI_TRY(try_candidate(s, &c, ATSI_HITS_EVEN, err));
    double score = atsi_objective_us(&s->objective, s->plan, c.decode_us, c.prefill_us);
    *may = score <= other_score * (1 + most_even_loss);
    return ATSI_OK;
}

// The boldest guess that may be rested on, if it is the best way then.
static enum atsi_status choose_guess(struct atsi_problem *s, struct bests *bests, struct atsi_error *err) {
    struct best *single = &bests->of[ATSI_PLACE_SINGLE_EXPERTS];
    struct bests others = *bests;
    others.of[ATSI_PLACE_SINGLE_EXPERTS].score = INFINITY;
    for (int guess = ATSI_GUESS_BOLD; !s->hot.counted && best_of(bests) == single;) {
        bool may;
        ATSI_TRY(may_rest_on_guess(s, single, best_of(&others)->score, &may, err));
        if (may) break;
        single->score = INFINITY;
        if (++guess == ATSI_GUESSES) break;
        ATSI_TRY(try_method(s, ATSI_PLACE_SINGLE_EXPERTS, (enum atsi_expert_guess)guess, bests, err));
    }
    return ATSI_OK;
}

static void merge_bests(struct bests *bests, const struct bests *more) {
    for (int m = 0; m < ATSI_PLACE_SEARCHED; m++)
        if (is_better(&more->of[m], &bests->of[m])) bests->of[m] = more->of[m];
}

// *tried: the best of all that was tried, *bests: of what may be taken.
static enum atsi_status try_chunk(struct atsi_problem *s, uint32_t chunk, struct bests *tried, struct bests *bests,
                                  struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_chunk_option *option = &out->chunks[out->n_chunks++];
    struct bests here;
    ATSI_TRY(take_chunk(s, chunk, out, err));
    if (out->n_chunks == 1) s->objective = atsi_objective_of(s->plan, s->options->prefill_weight);
    *option = (struct atsi_chunk_option){.chunk = chunk};
    option->fits = s->options->vram_bytes >= atsi_budget_least(s->plan, s->profile, s->options->device);
    if (!option->fits) return ATSI_OK;
    ATSI_TRY(find_bests(s, &here, err));
    merge_bests(tried, &here);
    ATSI_TRY(choose_guess(s, &here, err));
    merge_bests(bests, &here);
    const struct best *best = best_of(&here);
    option->fits = isfinite(best->score);
    if (!option->fits) return ATSI_OK;
    option->decode_us = best->candidate.decode_us;
    option->prefill_us = best->candidate.prefill_us;
    option->objective_us = best->score;
    return ATSI_OK;
}

// ---- the result ---------------------------------------------------------------------------------------------------

static void record_certificate(struct atsi_plan_certificate *c, const struct atsi_solve_result *r) {
    static const char *const words[] = {"optimal", "bounded", "skipped"};
    *c = (struct atsi_plan_certificate){.objective_us = r->value.objective_us, .dp_seconds = r->dp_seconds};
    strncpy(c->milp_status, words[r->milp.status], sizeof c->milp_status - 1);
    if (r->milp.status == ATSI_MILP_SKIPPED) return;
    c->milp_objective_us = r->milp.objective_us;
    c->bound_us = r->milp.bound_us;
    c->gap = r->gap;
    c->milp_seconds = r->milp.seconds;
}

static enum atsi_status settle(struct atsi_problem *s, const struct atsi_candidate *c, struct atsi_placement *out,
                               struct atsi_error *err) {
    enum {
        SETTLE_GRANULES = 1 << 17
    };
    struct atsi_plan *plan = s->plan;
    struct atsi_milp_options milp = atsi_milp_defaults();
    milp.fine_bytes = ATSI_ALIGNMENT; // of which what is placed is made
    struct atsi_solve_result result;
    milp.seconds_max = s->options->certify_seconds;
    plan->limits.temp_bytes = c->temp_bytes;
    ATSI_TRY(take_chunk(s, c->chunk, out, err));
    ATSI_TRY(atsi_problem_solve(s, c, granularity_of(s, SETTLE_GRANULES), &milp, &result, err));
    ATSI_TRY(atsi_problem_apply(s, c, ATSI_HITS_EXPECTED, &result, err));
    record_certificate(&plan->certificate, &result);
    plan->limits.vram_bytes = s->options->vram_bytes;
    out->method = c->method;
    out->streamed = c->streamed;
    out->experts_counted = s->hot.counted;
    out->objective = s->objective;
    out->budget = atsi_budget_of(plan, s->profile, s->options->device);
    ATSI_TRY(atsi_forecast_decode(plan, c->temp_bytes, &out->decode, err));
    out->decode_us = decode_us_of(s, &out->decode);
    out->decode_static_us = out->decode.static_us;
    ATSI_TRY(atsi_place_predict(plan, ATSI_PREFILL, ATSI_POLICY_FIFO, c->temp_bytes, &out->prefill_us, err));
    ATSI_TRY(atsi_place_predict(plan, ATSI_PREFILL, ATSI_POLICY_NONE, 0, &out->prefill_static_us, err));
    plan->predicted_decode_us = out->decode_us;
    plan->predicted_prefill_us = out->prefill_us;
    return ATSI_OK;
}

// ---- whole layers, for comparison ---------------------------------------------------------------------------------

// The head counts as the layer after the last, as those who place by layers have it.
static void number_layers(const struct atsi_program *p, int32_t *layers) {
    int32_t last = 0;
    for (uint32_t i = 0; i < p->n_units; i++) {
        layers[i] = p->units[i].kind == ATSI_UNIT_HEAD ? last + 1 : p->units[i].layer;
        if (p->units[i].layer > last) last = p->units[i].layer;
    }
}

static enum atsi_status place_like(struct atsi_problem *s, enum atsi_baseline baseline, int32_t *layers,
                                   double *decode_us, double *prefill_us, struct atsi_error *err) {
    s->objective = atsi_objective_of(s->plan, s->options->prefill_weight);
    ATSI_TRY(atsi_problem_units(s, false, err));
    struct atsi_solve_instance inst = {.budget_bytes = s->options->vram_bytes -
                                                       atsi_budget_base(s->plan, s->profile, s->options->device),
                                       .granularity_bytes = granule,
                                       .n_units = s->plan->program.n_units,
                                       .units = s->units};
    number_layers(&s->plan->program, layers);
    ATSI_TRY(atsi_solve_baseline(&inst, layers, baseline, s->placement, err));
    atsi_problem_set_backends(s->plan, s->placement);
    ATSI_TRY(atsi_place_predict(s->plan, ATSI_DECODE, ATSI_POLICY_NONE, 0, decode_us, err));
    return atsi_place_predict(s->plan, ATSI_PREFILL, ATSI_POLICY_NONE, 0, prefill_us, err);
}

// The best of those that take whole layers, or whole layers but for their experts. Chunks are not searched.
static enum atsi_status run_layers(struct atsi_problem *s, struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_plan *plan = s->plan;
    enum atsi_baseline best = ATSI_BASELINE_LAYERS_LAST,
                       last = s->has_experts ? ATSI_BASELINE_EXPERTS : ATSI_BASELINE_LAYERS_FIRST;
    double best_score = INFINITY;
    int32_t *layers = calloc(plan->program.n_units, sizeof *layers);
    if (!layers) return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    enum atsi_status status = take_chunk(s, plan->limits.chunk, out, err);
    for (int b = ATSI_BASELINE_LAYERS_LAST; status == ATSI_OK && b <= (int)last; b++) {
        status = place_like(s, (enum atsi_baseline)b, layers, &out->decode_us, &out->prefill_us, err);
        if (status != ATSI_OK) break;
        double score = atsi_objective_us(&s->objective, plan, out->decode_us, out->prefill_us);
        if (score >= best_score) continue;
        best_score = score;
        best = (enum atsi_baseline)b;
    }
    if (status == ATSI_OK) status = place_like(s, best, layers, &out->decode_us, &out->prefill_us, err);
    free(layers);
    out->method = ATSI_PLACE_LAYERS;
    return status;
}

static enum atsi_status place_layers(struct atsi_problem *s, struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_plan *plan = s->plan;
    ATSI_TRY(run_layers(s, out, err));
    plan->certificate = (struct atsi_plan_certificate){.milp_status = "skipped"};
    plan->limits.vram_bytes = s->options->vram_bytes;
    plan->limits.temp_bytes = 0;
    out->objective = s->objective;
    out->budget = atsi_budget_of(plan, s->profile, s->options->device);
    out->decode_static_us = plan->predicted_decode_us = out->decode_us;
    out->prefill_static_us = plan->predicted_prefill_us = out->prefill_us;
    return ATSI_OK;
}

static enum atsi_status check_budget(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, struct atsi_error *err) {
    char have[32], least[32], card[32];
    uint64_t vram = options->vram_bytes, least_vram = atsi_budget_least(plan, profile, options->device);
    if (vram > profile->gpu_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT, "--vram %s: %s has %s", atsi_size_format(have, sizeof have, vram),
                         profile->gpu_name, atsi_size_format(card, sizeof card, profile->gpu_bytes));
    if (vram >= least_vram) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "--vram %s: the smallest budget that works is %s (%lluM: driver and activations at chunk %u); "
                     "a smaller --chunk needs less, --vram 0 uses the CPU alone",
                     atsi_size_format(have, sizeof have, vram), atsi_size_format(least, sizeof least, least_vram),
                     (unsigned long long)(least_vram / mib), plan->limits.chunk);
}

// What the pinned units need in the solver's granules, which are larger the more that is.
static uint64_t pinned_bytes(const struct atsi_problem *s) {
    uint64_t granularity = granule, bytes;
    while ((bytes = atsi_problem_pinned_bytes(s, granularity)) / granularity > SEARCH_GRANULES) granularity *= 2;
    return bytes;
}

// At the smallest chunk, which leaves them the most.
static enum atsi_status refuse_pins(struct atsi_problem *s, uint32_t chunk, struct atsi_placement *out,
                                    struct atsi_error *err) {
    char have[32], left[32], needed[32];
    uint64_t pinned;
    ATSI_TRY(take_chunk(s, chunk, out, err));
    ATSI_TRY(atsi_problem_units(s, false, err));
    pinned = pinned_bytes(s);
    uint64_t least_vram = s->options->vram_bytes - s->free_bytes + pinned;
    return atsi_fail(
        err, ATSI_BAD_INPUT,
        "--pin: what is pinned to the GPU takes %s, and --vram %s leaves %s for it at chunk %u: pin less "
        "or give --vram %lluM",
        atsi_size_format(needed, sizeof needed, pinned), atsi_size_format(have, sizeof have, s->options->vram_bytes),
        atsi_size_format(left, sizeof left, s->free_bytes), chunk, (unsigned long long)((least_vram + mib - 1) / mib));
}

static enum atsi_status run_search(struct atsi_problem *s, struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_chunks chunks = {.sizes = {s->plan->limits.chunk}, .n = 1};
    struct bests tried = no_bests(), bests = tried;
    ATSI_TRY(atsi_problem_units(s, false, err)); // the pins' patterns
    if (s->options->experts != ATSI_EXPERTS_UNIT && s->options->goal == ATSI_PLACE_DYNAMIC)
        ATSI_TRY(atsi_problem_rank_experts(s, err));
    if (s->options->choose_chunk) chunks = atsi_chunks_of(s->plan);
    for (uint32_t i = 0; i < chunks.n; i++) ATSI_TRY(try_chunk(s, chunks.sizes[i], &tried, &bests, out, err));
    for (int m = 0; m < ATSI_PLACE_SEARCHED; m++)
        if (isfinite(tried.of[m].score)) out->method_decode_us[m] = tried.of[m].candidate.decode_us;
    const struct best *best = best_of(&bests);
    return isfinite(best->score) ? settle(s, &best->candidate, out, err) : refuse_pins(s, chunks.sizes[0], out, err);
}

static enum atsi_status make_times(struct atsi_plan *plan, struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    free(plan->decode_times);
    free(plan->prefill_times);
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    plan->prefill_times = calloc(n, sizeof *plan->prefill_times);
    return plan->decode_times && plan->prefill_times ? ATSI_OK
                                                     : atsi_fail(err, ATSI_FAILED, "out of memory while placing");
}

enum atsi_status atsi_place(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                            const struct atsi_place_options *options, struct atsi_placement *out,
                            struct atsi_error *err) {
    struct atsi_problem s;
    memset(out, 0, sizeof *out);
    ATSI_TRY(check_budget(plan, profile, options, err));
    ATSI_TRY(make_times(plan, err));
    snprintf(plan->device, sizeof plan->device, "%s", profile->name);
    plan->contention = profile->contention;
    plan->cpu_start_us = atsi_device_profile_knows_parts(profile, ATSI_CPU) ? profile->cpu_start_us : 0;
    atsi_plan_drop_resident_experts(plan);
    enum atsi_status status = atsi_problem_open(&s, plan, profile, options, err);
    if (status == ATSI_OK)
        status = options->goal == ATSI_PLACE_WHOLE_LAYERS ? place_layers(&s, out, err) : run_search(&s, out, err);
    atsi_problem_close(&s);
    return status;
}

// ---- for comparison -----------------------------------------------------------------------------------------------

enum atsi_status atsi_place_baseline(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, enum atsi_baseline baseline,
                                     double *decode_us, double *prefill_us, struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    struct atsi_plan other = *plan; // with units of its own, since their sides are tried out there
    struct atsi_problem s = {0};
    int32_t *layers = calloc(n, sizeof *layers);
    other.resident_experts = NULL;
    other.program.units = malloc(n * sizeof *other.program.units);
    if (other.program.units) memcpy(other.program.units, plan->program.units, n * sizeof *other.program.units);
    enum atsi_status status = layers && other.program.units
                                  ? atsi_problem_open(&s, &other, profile, options, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    if (status == ATSI_OK) status = place_like(&s, baseline, layers, decode_us, prefill_us, err);
    atsi_problem_close(&s);
    free(other.program.units);
    free(layers);
    return status;
}
