#include "planner/place.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "planner/cost.h"
#include "planner/predict.h"

static const uint64_t mib = 1 << 20;
// Of the solver when the placement is settled: a few hundred matrices lose less than 50 MiB to rounding, with whole MiB over 100.
static const uint64_t granule = 256 << 10;

// ---- the problem --------------------------------------------------------------------------------------------------

struct search {
    struct atsi_plan *plan;
    const struct atsi_device_profile *profile;
    const struct atsi_place_options *options;
    struct atsi_objective objective;
    struct atsi_solve_unit *units, *case_units; // case_units: with the fixes of one case
    uint8_t *placement, *case_placement;
    uint64_t free_bytes; // for residents and the temporary region
    bool has_experts;
};

static enum atsi_status apply_pin(struct search *s, const struct atsi_pin *pin, struct atsi_error *err) {
    regex_t regex;
    uint32_t n_matches = 0;
    if (regcomp(&regex, pin->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "--pin: \"%s\" is no regular expression", pin->pattern);
    for (uint32_t i = 0; i < s->plan->program.n_units; i++) {
        const struct atsi_unit *u = &s->plan->program.units[i];
        if (regexec(&regex, u->name, 0, NULL, 0) != 0) continue;
        if (pin->side == ATSI_GPU && !atsi_unit_runs_on_gpu(&s->plan->program, u)) {
            regfree(&regex);
            return atsi_fail(err, ATSI_BAD_INPUT, "--pin: the GPU has no kernels for the type of unit %s", u->name);
        }
        s->units[i].fix = pin->side == ATSI_GPU ? ATSI_FIX_GPU : ATSI_FIX_CPU;
        n_matches++;
    }
    regfree(&regex);
    if (n_matches) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "--pin: \"%s\" matches no unit (their names are like %s)", pin->pattern,
                     s->plan->program.units[s->plan->program.n_units / 2].name);
}

static enum atsi_status fill_units(struct search *s, bool streamed, struct atsi_error *err) {
    atsi_objective_units(&s->objective, s->plan, streamed, s->units);
    for (uint32_t i = 0; i < s->options->n_pins; i++) ATSI_TRY(apply_pin(s, &s->options->pins[i], err));
    return ATSI_OK;
}

static void set_backends(struct atsi_plan *plan, const uint8_t *placement) {
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        plan->program.units[i].backend = (enum atsi_backend)placement[i];
}

struct candidate {
    uint32_t chunk;
    uint64_t temp_bytes;
    enum atsi_place_method method;
    bool streamed;
    double decode_us, prefill_us;
};

// ---- solving it ---------------------------------------------------------------------------------------------------

// A head that reads the embedding's matrix costs no memory beside an embedding on the GPU. The solver knows no such pairs, so the
// embedding's side is decided here: one case for each, the better of which is the optimum.
struct tie {
    enum atsi_solve_fix sides[2];
    int n_sides;
    uint64_t bytes; // 0: no tie, one case that decides nothing
};

static struct tie find_tie(const struct search *s) {
    struct tie tie = {.sides = {ATSI_FIX_CPU, ATSI_FIX_GPU}, .n_sides = 2, .bytes = atsi_budget_shared(s->plan)};
    if (tie.bytes == 0) return (struct tie){.sides = {ATSI_FIX_NONE}, .n_sides = 1};
    if (s->units[0].fix != ATSI_FIX_NONE) {
        tie.sides[0] = s->units[0].fix;
        tie.n_sides = 1;
    }
    return tie;
}

// Solves one case into case_placement.
static enum atsi_status solve_case(struct search *s, const struct candidate *c, uint64_t granularity,
                                   const struct tie *tie, enum atsi_solve_fix side,
                                   const struct atsi_milp_options *milp, struct atsi_solve_result *result,
                                   struct atsi_error *err) {
    uint32_t n = s->plan->program.n_units;
    struct atsi_solve_instance inst = {.budget_bytes = s->free_bytes - c->temp_bytes,
                                       .granularity_bytes = granularity,
                                       .n_units = n,
                                       .units = s->case_units};
    memcpy(s->case_units, s->units, n * sizeof *s->case_units);
    if (side != ATSI_FIX_NONE) s->case_units[0].fix = side;
    if (side == ATSI_FIX_GPU) s->case_units[n - 1].size_bytes -= tie->bytes;
    if (c->method == ATSI_PLACE_PARTITION) atsi_solve_partition(&inst, s->case_units);
    if (milp) return atsi_solve(&inst, milp, s->case_placement, result, err);
    ATSI_TRY(atsi_solve_dp(&inst, s->case_placement, err));
    atsi_solve_evaluate(&inst, s->case_placement, &result->value);
    return ATSI_OK;
}

// The certificate of the better case, with a bound that holds for both.
static void merge_result(struct atsi_solve_result *best, const struct atsi_solve_result *other) {
    bool better = other->value.objective_us > best->value.objective_us;
    struct atsi_solve_result merged = better ? *other : *best;
    double objective = merged.value.objective_us;
    merged.milp.bound_us = fmax(best->milp.bound_us, other->milp.bound_us);
    merged.milp.seconds = best->milp.seconds + other->milp.seconds;
    merged.dp_seconds = best->dp_seconds + other->dp_seconds;
    if (best->milp.status > merged.milp.status) merged.milp.status = best->milp.status;
    if (other->milp.status > merged.milp.status) merged.milp.status = other->milp.status;
    merged.gap =
        merged.milp.status == ATSI_MILP_SKIPPED ? 0 : (merged.milp.bound_us - objective) / fmax(1, fabs(objective));
    *best = merged;
}

// The best placement of a candidate, left in s->placement. milp NULL: the dynamic program alone.
static enum atsi_status solve(struct search *s, const struct candidate *c, uint64_t granularity,
                              const struct atsi_milp_options *milp, struct atsi_solve_result *out,
                              struct atsi_error *err) {
    uint32_t n = s->plan->program.n_units;
    enum atsi_status status = ATSI_OK;
    bool found = false;
    ATSI_TRY(fill_units(s, c->streamed, err));
    struct tie tie = find_tie(s);
    for (int i = 0; i < tie.n_sides; i++) {
        struct atsi_solve_result result = {.milp.status = ATSI_MILP_SKIPPED};
        status = solve_case(s, c, granularity, &tie, tie.sides[i], milp, &result, err);
        if (status == ATSI_BAD_INPUT) continue; // what is fixed to the GPU does not fit in this case
        ATSI_TRY(status);
        if (!found || result.value.objective_us > out->value.objective_us) memcpy(s->placement, s->case_placement, n);
        if (found)
            merge_result(out, &result);
        else
            *out = result;
        found = true;
    }
    return found ? ATSI_OK : status;
}

// ---- the search ---------------------------------------------------------------------------------------------------

static uint64_t granularity_of(const struct search *s, uint64_t n_granules_max) {
    uint64_t size = granule;
    while (s->free_bytes / size > n_granules_max) size *= 2;
    return size;
}

static double decode_us_of(const struct search *s, const struct atsi_decode_forecast *f) {
    return s->options->goal == ATSI_PLACE_STATIC ? f->static_us : f->best_us;
}

// Solves a candidate and predicts both phases, temporary region included.
static enum atsi_status try_candidate(struct search *s, struct candidate *c, struct atsi_error *err) {
    enum {
        SEARCH_GRANULES = 1 << 13
    }; // a coarse budget for the search
    struct atsi_solve_result result;
    ATSI_TRY(solve(s, c, granularity_of(s, SEARCH_GRANULES), NULL, &result, err));
    set_backends(s->plan, s->placement);
    struct atsi_decode_forecast decode;
    ATSI_TRY(atsi_forecast_decode(s->plan, c->temp_bytes, &decode, err));
    c->decode_us = decode_us_of(s, &decode);
    return atsi_place_predict(s->plan, ATSI_PREFILL, ATSI_POLICY_FIFO, c->temp_bytes, &c->prefill_us, err);
}

static uint64_t largest_transfer(const struct search *s, enum atsi_phase phase) {
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
static uint32_t list_regions(const struct search *s, uint64_t *sizes, uint32_t cap) {
    uint32_t n = 0;
    sizes[n++] = 0;
    for (int phase = ATSI_DECODE; phase <= ATSI_PREFILL; phase++)
        for (uint64_t k = 1, size = largest_transfer(s, (enum atsi_phase)phase); k <= 8; k *= 2)
            if (n < cap && k * size > sizes[n - 1] && k * size <= s->free_bytes / 2) sizes[n++] = k * size;
    return n;
}

struct best {
    struct candidate candidate;
    double score;
    double method_score[2], method_decode_us[2]; // the best of either method
};

static enum atsi_status consider(struct search *s, struct candidate c, struct best *best, struct atsi_error *err) {
    ATSI_TRY(try_candidate(s, &c, err));
    double score = atsi_objective_us(&s->objective, s->plan, c.decode_us, c.prefill_us);
    if (score < best->method_score[c.method]) {
        best->method_score[c.method] = score;
        best->method_decode_us[c.method] = c.decode_us;
    }
    if (score >= best->score * (1 - 1e-6))
        return ATSI_OK; // ties go to the earlier: smaller regions, the undivided problem
    best->score = score;
    best->candidate = c;
    return ATSI_OK;
}

// The best of the plan's present chunk.
static enum atsi_status find_best(struct search *s, struct best *best, struct atsi_error *err) {
    enum {
        MAX_REGIONS = 8
    };
    uint64_t regions[MAX_REGIONS];
    uint32_t n_regions = list_regions(s, regions, s->options->goal == ATSI_PLACE_STATIC ? 1 : MAX_REGIONS);
    int n_methods = s->has_experts ? 2 : 1, n_prices = s->options->goal == ATSI_PLACE_STATIC ? 1 : 2;
    *best = (struct best){.score = INFINITY, .method_score = {INFINITY, INFINITY}};
    for (uint32_t i = 0; i < n_regions; i++)
        for (int method = 0; method < n_methods; method++)
            for (int streamed = 0; streamed < n_prices; streamed++) {
                struct candidate c = {.chunk = s->plan->limits.chunk,
                                      .temp_bytes = regions[i],
                                      .method = (enum atsi_place_method)method,
                                      .streamed = streamed != 0};
                ATSI_TRY(consider(s, c, best, err));
            }
    return ATSI_OK;
}

// Makes `chunk` the plan's and prices its prefill.
static enum atsi_status take_chunk(struct search *s, uint32_t chunk, struct atsi_placement *out,
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

static enum atsi_status try_chunk(struct search *s, uint32_t chunk, struct best *best, struct atsi_placement *out,
                                  struct atsi_error *err) {
    struct atsi_chunk_option *option = &out->chunks[out->n_chunks++];
    struct best here;
    ATSI_TRY(take_chunk(s, chunk, out, err));
    if (out->n_chunks == 1) s->objective = atsi_objective_of(s->plan, s->options->prefill_weight);
    *option = (struct atsi_chunk_option){.chunk = chunk};
    option->fits = s->options->vram_bytes >= atsi_budget_least(s->plan, s->profile, s->options->device);
    if (!option->fits) return ATSI_OK;
    ATSI_TRY(find_best(s, &here, err));
    option->decode_us = here.candidate.decode_us;
    option->prefill_us = here.candidate.prefill_us;
    option->objective_us = here.score;
    if (here.score < best->score * (1 - 1e-6)) *best = here; // ties go to the smaller chunk
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

static enum atsi_status settle(struct search *s, const struct candidate *c, struct atsi_placement *out,
                               struct atsi_error *err) {
    enum {
        SETTLE_GRANULES = 1 << 17
    };
    struct atsi_plan *plan = s->plan;
    struct atsi_milp_options milp = atsi_milp_defaults();
    struct atsi_solve_result result;
    milp.seconds_max = s->options->certify_seconds;
    ATSI_TRY(take_chunk(s, c->chunk, out, err));
    ATSI_TRY(solve(s, c, granularity_of(s, SETTLE_GRANULES), &milp, &result, err));
    set_backends(plan, s->placement);
    record_certificate(&plan->certificate, &result);
    plan->limits.vram_bytes = s->options->vram_bytes;
    plan->limits.temp_bytes = c->temp_bytes;
    out->method = c->method;
    out->streamed = c->streamed;
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

static enum atsi_status place_like(struct search *s, enum atsi_baseline baseline, int32_t *layers, double *decode_us,
                                   double *prefill_us, struct atsi_error *err) {
    s->objective = atsi_objective_of(s->plan, s->options->prefill_weight);
    ATSI_TRY(fill_units(s, false, err));
    struct atsi_solve_instance inst = {.budget_bytes = s->options->vram_bytes -
                                                       atsi_budget_base(s->plan, s->profile, s->options->device),
                                       .granularity_bytes = granule,
                                       .n_units = s->plan->program.n_units,
                                       .units = s->units};
    number_layers(&s->plan->program, layers);
    ATSI_TRY(atsi_solve_baseline(&inst, layers, baseline, s->placement, err));
    set_backends(s->plan, s->placement);
    ATSI_TRY(atsi_place_predict(s->plan, ATSI_DECODE, ATSI_POLICY_NONE, 0, decode_us, err));
    return atsi_place_predict(s->plan, ATSI_PREFILL, ATSI_POLICY_NONE, 0, prefill_us, err);
}

// The best of those that take whole layers, or whole layers but for their experts. Chunks are not searched.
static enum atsi_status run_layers(struct search *s, struct atsi_placement *out, struct atsi_error *err) {
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

static enum atsi_status place_layers(struct search *s, struct atsi_placement *out, struct atsi_error *err) {
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

static enum atsi_status run_search(struct search *s, struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_chunks chunks = {.sizes = {s->plan->limits.chunk}, .n = 1};
    struct best best = {.candidate.chunk = s->plan->limits.chunk, .score = INFINITY};
    if (s->options->choose_chunk) chunks = atsi_chunks_of(s->plan);
    for (uint32_t i = 0; i < chunks.n; i++) ATSI_TRY(try_chunk(s, chunks.sizes[i], &best, out, err));
    if (s->has_experts) out->other_decode_us = best.method_decode_us[!best.candidate.method];
    return settle(s, &best.candidate, out, err);
}

static bool has_experts(const struct atsi_program *p) {
    for (uint32_t i = 0; i < p->n_units; i++)
        if (p->units[i].kind == ATSI_UNIT_EXPERTS) return true;
    return false;
}

static enum atsi_status open_search(struct search *s, struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                    const struct atsi_place_options *options, struct atsi_error *err) {
    size_t n = plan->program.n_units;
    *s = (struct search){
        .plan = plan, .profile = profile, .options = options, .has_experts = has_experts(&plan->program)};
    s->units = calloc(n, sizeof *s->units);
    s->case_units = calloc(n, sizeof *s->case_units);
    s->placement = calloc(n, 1);
    s->case_placement = calloc(n, 1);
    if (s->units && s->case_units && s->placement && s->case_placement) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
}

static void close_search(struct search *s) {
    free(s->units);
    free(s->case_units);
    free(s->placement);
    free(s->case_placement);
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
    struct search s;
    memset(out, 0, sizeof *out);
    ATSI_TRY(check_budget(plan, profile, options, err));
    ATSI_TRY(make_times(plan, err));
    snprintf(plan->device, sizeof plan->device, "%s", profile->name);
    plan->contention = profile->contention;
    enum atsi_status status = open_search(&s, plan, profile, options, err);
    if (status == ATSI_OK)
        status = options->goal == ATSI_PLACE_WHOLE_LAYERS ? place_layers(&s, out, err) : run_search(&s, out, err);
    close_search(&s);
    return status;
}

// ---- for comparison -----------------------------------------------------------------------------------------------

enum atsi_status atsi_place_baseline(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, enum atsi_baseline baseline,
                                     double *decode_us, double *prefill_us, struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    struct atsi_plan other = *plan; // with units of its own, since their sides are tried out there
    struct search s = {0};
    int32_t *layers = calloc(n, sizeof *layers);
    other.program.units = malloc(n * sizeof *other.program.units);
    if (other.program.units) memcpy(other.program.units, plan->program.units, n * sizeof *other.program.units);
    enum atsi_status status = layers && other.program.units
                                  ? open_search(&s, &other, profile, options, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    if (status == ATSI_OK) status = place_like(&s, baseline, layers, decode_us, prefill_us, err);
    close_search(&s);
    free(other.program.units);
    free(layers);
    return status;
}
