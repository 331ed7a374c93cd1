#include "planner/place.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "planner/cost.h"
#include "planner/predict.h"
#include "planner/solve/solve.h"

static const uint64_t mib = 1 << 20;

// ---- sizes --------------------------------------------------------------------------------------------------------

enum {
    ALIGNMENT = 256
}; // of every device allocation

// Quantised copies of the widest activations and split attention: two bytes for each element of the widest buffer, and
// a fixed part for what does not grow with the chunk.
static uint64_t estimate_scratch(const struct atsi_plan *plan) {
    uint64_t widest = 0;
    for (uint32_t i = 0; i < plan->program.n_buffers; i++)
        if (plan->program.buffers[i].rows == ATSI_ROWS_TOKENS && plan->program.buffers[i].width > widest)
            widest = plan->program.buffers[i].width;
    return 16 * mib + 2 * widest * plan->limits.chunk;
}

static uint64_t compute_bytes(const struct atsi_plan *plan, uint64_t scratch_bytes) {
    return plan->limits.compute_bytes + (scratch_bytes ? scratch_bytes : estimate_scratch(plan));
}

static uint64_t unit_state_bytes(const struct atsi_plan *plan, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        int32_t s = plan->program.ops[i].state;
        if (s == ATSI_NONE) continue;
        bytes += 2 * ALIGNMENT + atsi_state_bytes(&plan->program.states[s], plan->limits.n_ctx, plan->limits.chunk,
                                                  plan->limits.kv_type);
    }
    return bytes;
}

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// The unit's own matrices. Small tensors do not count here: the runtime keeps them all on the GPU, so that promoted units
// need not move them.
static uint64_t unit_weight_bytes(const struct atsi_plan *plan, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++) {
            int32_t t = plan->program.ops[i].tensor[k];
            if (t != ATSI_NONE && !atsi_tensor_is_small(&plan->program.tensors[t]))
                bytes += aligned(plan->program.tensors[t].size_bytes);
        }
    return bytes;
}

static bool unit_reads(const struct atsi_plan *plan, const struct atsi_unit *u, int32_t tensor) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
            if (plan->program.ops[i].tensor[k] == tensor) return true;
    return false;
}

// A head that reads the embedding's matrix shares it: two units on the GPU, one copy there.
static uint64_t shared_bytes(const struct atsi_plan *plan) {
    const struct atsi_unit *first = &plan->program.units[0], *last = &plan->program.units[plan->program.n_units - 1];
    uint64_t bytes = 0;
    if (first == last || first->backend != ATSI_GPU || last->backend != ATSI_GPU) return 0;
    for (uint32_t t = 0; t < plan->program.n_tensors; t++)
        if (!atsi_tensor_is_small(&plan->program.tensors[t]) && unit_reads(plan, first, (int32_t)t) &&
            unit_reads(plan, last, (int32_t)t))
            bytes += aligned(plan->program.tensors[t].size_bytes);
    return bytes;
}

static uint64_t small_bytes(const struct atsi_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->program.n_tensors; i++)
        if (atsi_tensor_is_small(&plan->program.tensors[i])) bytes += aligned(plan->program.tensors[i].size_bytes);
    return bytes;
}

uint64_t atsi_place_unit_bytes(const struct atsi_plan *plan, const struct atsi_unit *u) {
    return unit_weight_bytes(plan, u) + unit_state_bytes(plan, u);
}

// Captured rounds and what the driver rounds up to; the profile's figure is from before any was captured.
static const uint64_t graphs_bytes = 32 << 20;

static uint64_t driver_bytes(const struct atsi_device_profile *profile) {
    return profile->context_bytes + graphs_bytes;
}

// What is there whatever is placed.
static uint64_t base_bytes(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                           uint64_t scratch_bytes) {
    return driver_bytes(profile) + compute_bytes(plan, scratch_bytes) + small_bytes(plan);
}

uint64_t atsi_place_least_vram(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                               uint64_t scratch_bytes) {
    return (base_bytes(plan, profile, scratch_bytes) + mib - 1) / mib * mib;
}

static struct atsi_budget count_budget(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                       uint64_t scratch_bytes) {
    struct atsi_budget b = {.vram = plan->limits.vram_bytes,
                            .driver = driver_bytes(profile),
                            .compute = compute_bytes(plan, scratch_bytes),
                            .temp = plan->limits.temp_bytes,
                            .resident = small_bytes(plan)};
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        if (u->backend != ATSI_GPU) continue;
        b.states += unit_state_bytes(plan, u);
        b.resident += unit_weight_bytes(plan, u);
    }
    b.resident -= shared_bytes(plan);
    b.spare = b.vram - b.driver - b.compute - b.temp - b.states - b.resident;
    return b;
}

// ---- the search ---------------------------------------------------------------------------------------------------

struct search {
    struct atsi_plan *plan;
    const struct atsi_device_profile *profile;
    const struct atsi_place_options *options;
    struct atsi_solve_unit *units, *fixed_units; // fixed_units: with the classes of Algorithm 1
    uint8_t *placement, *best;
    uint64_t free_bytes;       // for residents and the temporary region
    double decode_per_prefill; // decode round over prefill chunk, all on the CPU
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

// Decode and prefill time by their weights. The phases are made comparable by what the CPU alone takes for each, so that a
// weight means the same for every model and machine: halving either phase from there is worth its weight.
static double blend(const struct search *s, double decode_us, double prefill_us) {
    double w = s->options->prefill_weight;
    return (1 - w) * decode_us + w * prefill_us * s->decode_per_prefill;
}

static double decode_per_prefill(const struct atsi_plan *plan) {
    double decode_us = 0, prefill_us = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        decode_us += plan->decode_times[i].cpu_us;
        prefill_us += plan->prefill_times[i].cpu_us;
    }
    return prefill_us > 0 ? decode_us / prefill_us : 0;
}

static enum atsi_status fill_units(struct search *s, struct atsi_error *err) {
    const struct atsi_plan *plan = s->plan;
    s->decode_per_prefill = decode_per_prefill(plan);
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit_times *d = &plan->decode_times[i], *p = &plan->prefill_times[i];
        s->units[i] = (struct atsi_solve_unit){.size_bytes = atsi_place_unit_bytes(plan, &plan->program.units[i]),
                                               .t_gpu_us = blend(s, d->gpu_us, p->gpu_us),
                                               .switch_us = blend(s, d->switch_us, p->switch_us),
                                               .is_expert = plan->program.units[i].kind == ATSI_UNIT_EXPERTS};
        s->has_experts |= s->units[i].is_expert;
        if (atsi_unit_runs_on_gpu(&plan->program, &plan->program.units[i])) continue;
        s->units[i].fix = ATSI_FIX_CPU;
        s->units[i].t_gpu_us = 0; // ATSI_NEVER_US would drown the others in GLPK's arithmetic
    }
    for (uint32_t i = 0; i < s->options->n_pins; i++) ATSI_TRY(apply_pin(s, &s->options->pins[i], err));
    return ATSI_OK;
}

// What a unit that stays on the CPU costs a round in which such units are streamed. A token: CPU and link work through them at the
// same time, so their rates add up. A chunk: the link alone keeps up with the GPU, or it does not.
static double streamed_us(const struct atsi_unit_times *t, enum atsi_phase phase) {
    if (phase == ATSI_DECODE) return t->cpu_us > 0 ? 1 / (1.0 / t->cpu_us + 1.0 / fmax(t->transfer_us, 1e-6)) : 0;
    return fminf(t->cpu_us, fmaxf(t->transfer_us, t->gpu_us));
}

// A placement that knows of streaming leaves to it what it can carry and gives residency to what cannot move.
static void price_cpu_side(struct search *s, bool streamed) {
    for (uint32_t i = 0; i < s->plan->program.n_units; i++) {
        const struct atsi_unit_times *d = &s->plan->decode_times[i], *p = &s->plan->prefill_times[i];
        bool moves = streamed && atsi_unit_is_promotable(&s->plan->program.units[i]);
        s->units[i].t_cpu_us =
            blend(s, moves ? streamed_us(d, ATSI_DECODE) : d->cpu_us, moves ? streamed_us(p, ATSI_PREFILL) : p->cpu_us);
    }
}

static void set_backends(struct atsi_plan *plan, const uint8_t *placement) {
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        plan->program.units[i].backend = (enum atsi_backend)placement[i];
}

struct candidate {
    uint64_t temp_bytes;
    enum atsi_place_method method;
    bool streamed;
    double decode_us, prefill_us;
};

static struct atsi_solve_instance instance_of(struct search *s, const struct candidate *c, uint64_t granularity) {
    struct atsi_solve_instance inst = {.budget_bytes = s->free_bytes - c->temp_bytes,
                                       .granularity_bytes = granularity,
                                       .n_units = s->plan->program.n_units,
                                       .units = s->units};
    price_cpu_side(s, c->streamed);
    if (c->method == ATSI_PLACE_PARTITION) {
        atsi_solve_partition(&inst, s->fixed_units);
        inst.units = s->fixed_units;
    }
    return inst;
}

// Solves for one region size and method and predicts both phases, temporary region included.
static enum atsi_status try_candidate(struct search *s, struct candidate *c, struct atsi_error *err) {
    enum {
        SEARCH_GRANULES = 4096
    }; // a coarse budget for the search; the final solution is exact to the MiB
    uint64_t granularity = mib;
    while (s->free_bytes / granularity > SEARCH_GRANULES) granularity *= 2;
    struct atsi_solve_instance inst = instance_of(s, c, granularity);
    ATSI_TRY(atsi_solve_dp(&inst, s->placement, err));
    set_backends(s->plan, s->placement);
    ATSI_TRY(atsi_place_predict(s->plan, ATSI_DECODE, ATSI_POLICY_FIFO, c->temp_bytes, &c->decode_us, err));
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
    double score = blend(s, c.decode_us, c.prefill_us);
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

static enum atsi_status find_best(struct search *s, struct best *best, struct atsi_error *err) {
    enum {
        MAX_REGIONS = 8
    };
    uint64_t regions[MAX_REGIONS];
    uint32_t n_regions = list_regions(s, regions, MAX_REGIONS);
    int n_methods = s->has_experts ? 2 : 1;
    *best = (struct best){.score = INFINITY, .method_score = {INFINITY, INFINITY}};
    for (uint32_t i = 0; i < n_regions; i++)
        for (int method = 0; method < n_methods; method++)
            for (int streamed = 0; streamed <= (regions[i] > 0); streamed++) {
                struct candidate c = {regions[i], (enum atsi_place_method)method, streamed != 0, 0, 0};
                ATSI_TRY(consider(s, c, best, err));
            }
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
    struct atsi_plan *plan = s->plan;
    struct atsi_solve_instance inst = instance_of(s, c, mib);
    struct atsi_milp_options milp = atsi_milp_defaults();
    struct atsi_solve_result result;
    milp.seconds_max = s->options->certify_seconds;
    ATSI_TRY(atsi_solve(&inst, &milp, s->best, &result, err));
    set_backends(plan, s->best);
    record_certificate(&plan->certificate, &result);
    plan->limits.vram_bytes = s->options->vram_bytes;
    plan->limits.temp_bytes = c->temp_bytes;
    out->method = c->method;
    out->streamed = c->streamed;
    out->budget = count_budget(plan, s->profile, s->options->scratch_bytes);
    ATSI_TRY(atsi_place_predict(plan, ATSI_DECODE, ATSI_POLICY_FIFO, c->temp_bytes, &out->decode_us, err));
    ATSI_TRY(atsi_place_predict(plan, ATSI_PREFILL, ATSI_POLICY_FIFO, c->temp_bytes, &out->prefill_us, err));
    ATSI_TRY(atsi_place_predict(plan, ATSI_DECODE, ATSI_POLICY_NONE, 0, &out->decode_static_us, err));
    ATSI_TRY(atsi_place_predict(plan, ATSI_PREFILL, ATSI_POLICY_NONE, 0, &out->prefill_static_us, err));
    plan->predicted_decode_us = out->decode_us;
    plan->predicted_prefill_us = out->prefill_us;
    return ATSI_OK;
}

static enum atsi_status price_units(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                    struct atsi_placement *out, struct atsi_error *err) {
    uint32_t n = plan->program.n_units, more;
    free(plan->decode_times);
    free(plan->prefill_times);
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    plan->prefill_times = calloc(n, sizeof *plan->prefill_times);
    if (!plan->decode_times || !plan->prefill_times) return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    atsi_cost_units(plan, profile, ATSI_DECODE, plan->decode_times, &out->n_estimated);
    atsi_cost_units(plan, profile, ATSI_PREFILL, plan->prefill_times, &more);
    out->n_estimated += more;
    snprintf(plan->device, sizeof plan->device, "%s", profile->name);
    plan->contention = profile->contention;
    return ATSI_OK;
}

static enum atsi_status check_budget(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, struct atsi_error *err) {
    char have[32], least[32], card[32];
    uint64_t vram = options->vram_bytes, least_vram = atsi_place_least_vram(plan, profile, options->scratch_bytes);
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
    struct best best;
    ATSI_TRY(fill_units(s, err));
    ATSI_TRY(find_best(s, &best, err));
    if (s->has_experts) out->other_decode_us = best.method_decode_us[!best.candidate.method];
    return settle(s, &best.candidate, out, err);
}

static enum atsi_status open_search(struct search *s, struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                    const struct atsi_place_options *options, struct atsi_error *err) {
    size_t n = plan->program.n_units;
    *s = (struct search){.plan = plan,
                         .profile = profile,
                         .options = options,
                         .free_bytes = options->vram_bytes - base_bytes(plan, profile, options->scratch_bytes)};
    s->units = calloc(n, sizeof *s->units);
    s->fixed_units = calloc(n, sizeof *s->fixed_units);
    s->placement = calloc(n, 1);
    s->best = calloc(n, 1);
    if (s->units && s->fixed_units && s->placement && s->best) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
}

static void close_search(struct search *s) {
    free(s->units);
    free(s->fixed_units);
    free(s->placement);
    free(s->best);
}

enum atsi_status atsi_place(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                            const struct atsi_place_options *options, struct atsi_placement *out,
                            struct atsi_error *err) {
    struct search s;
    memset(out, 0, sizeof *out);
    ATSI_TRY(check_budget(plan, profile, options, err));
    ATSI_TRY(price_units(plan, profile, out, err));
    enum atsi_status status = open_search(&s, plan, profile, options, err);
    if (status == ATSI_OK) status = run_search(&s, out, err);
    close_search(&s);
    return status;
}

// ---- for comparison -----------------------------------------------------------------------------------------------

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
    struct candidate c = {.method = ATSI_PLACE_UNDIVIDED};
    ATSI_TRY(fill_units(s, err));
    struct atsi_solve_instance inst = instance_of(s, &c, mib);
    number_layers(&s->plan->program, layers);
    ATSI_TRY(atsi_solve_baseline(&inst, layers, baseline, s->placement, err));
    set_backends(s->plan, s->placement);
    ATSI_TRY(atsi_place_predict(s->plan, ATSI_DECODE, ATSI_POLICY_NONE, 0, decode_us, err));
    return atsi_place_predict(s->plan, ATSI_PREFILL, ATSI_POLICY_NONE, 0, prefill_us, err);
}

enum atsi_status atsi_place_baseline(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, enum atsi_baseline baseline,
                                     double *decode_us, double *prefill_us, struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    struct atsi_plan other = *plan; // with units of its own, since their sides are tried out there
    struct search s = {0};
    int32_t *layers = calloc(n, sizeof *layers);
    other.program.units = malloc(n * sizeof *other.program.units);
    enum atsi_status status = layers && other.program.units
                                  ? open_search(&s, &other, profile, options, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    if (status == ATSI_OK) {
        memcpy(other.program.units, plan->program.units, n * sizeof *other.program.units);
        status = place_like(&s, baseline, layers, decode_us, prefill_us, err);
    }
    close_search(&s);
    free(other.program.units);
    free(layers);
    return status;
}
