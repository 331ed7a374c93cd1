#include "planner/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "planner/cost.h"
#include "planner/what_if.h"

static const char *const side_words[] = {"cpu", "gpu"};
static const double mib = 1 << 20;

static double rate(double us, double n_tokens) { return us > 0 ? 1e6 * n_tokens / us : 0; }

static const char *method_text(enum atsi_place_method method) {
    static const char *const texts[] = {
        "all units together", "Algorithm 1 (experts and the others apart)", "experts one by one, the hottest first",
        "experts one by one, as if all were chosen alike", "whole layers, as others place them"};
    return texts[method];
}

// ---- budget -------------------------------------------------------------------------------------------------------

static void print_line(FILE *out, const char *name, uint64_t bytes, const char *what) {
    fprintf(out, "  %-9s %9.0f MiB  %s\n", name, (double)bytes / mib, what);
}

static void print_other_methods(FILE *out, const struct atsi_placement *placement) {
    bool any = false, any_faster = false;
    for (int m = 0; m < ATSI_PLACE_SEARCHED; m++) {
        if (m == (int)placement->method || !(placement->method_decode_us[m] > 0)) continue;
        if (!any) fprintf(out, " (%.2f ms a token", placement->decode_us / 1e3);
        fprintf(out, "; %s: %.2f", method_text((enum atsi_place_method)m), placement->method_decode_us[m] / 1e3);
        any = true;
        any_faster |= placement->method_decode_us[m] < placement->decode_us;
    }
    if (any_faster) fputs("; prefill counts too (--objective)", out);
    if (any) fputc(')', out);
}

static void print_experts(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement) {
    struct atsi_resident_experts_sum sum = atsi_plan_sum_resident_experts(plan);
    double single_us = placement->method_decode_us[ATSI_PLACE_SINGLE_EXPERTS];
    if (sum.n == 0 && !placement->experts_counted && single_us > 0 && single_us < placement->decode_us)
        fprintf(out,
                "\nexperts    by unit: nothing has been counted (atsi-run --stats), and one by one would lose too much "
                "if routers chose all alike");
    if (sum.n == 0) return;
    fprintf(out,
            "\nexperts    %u of %u are resident, %u to %u a layer; %.1f %% of the choices are expected among them, %s",
            sum.n, sum.n_of, sum.n_least, sum.n_most, 100 * sum.hit_rate,
            placement->experts_counted
                ? "as counted"
                : "a guess, since nothing has been counted (atsi-run --stats): behind a prompt those that it "
                  "wanted take their places");
}

void atsi_explain_budget(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement) {
    const struct atsi_budget *b = &placement->budget;
    fprintf(out, "GPU memory for %s\n", plan->device);
    print_line(out, "driver", b->driver, "context, modules, handles, captured rounds");
    print_line(out, "compute", b->compute, "activations and kernel scratch at the planned chunk");
    print_line(out, "KV", b->states, "caches and states of the layers whose attention is on the GPU");
    print_line(out, "temporary", b->temp, "weights moved for a round");
    print_line(out, "resident", b->resident, "weights that stay");
    if (b->experts) print_line(out, "experts", b->experts, "single ones of operations on the CPU");
    print_line(out, "spare", b->spare, "left over");
    print_line(out, "in all", b->vram, "--vram");
    fprintf(out, "placed as %s%s", method_text(placement->method),
            placement->streamed ? ", leaving to streaming what it can carry" : "");
    print_other_methods(out, placement);
    print_experts(out, plan, placement);
    fprintf(out,
            "\npredicted  decode %.2f tokens/s (%.2f without dynamic transfer), prefill %.1f tokens/s (%.1f), at "
            "position %u\n",
            rate(placement->decode_us, 1), rate(placement->decode_static_us, 1),
            rate(placement->prefill_us, plan->limits.chunk), rate(placement->prefill_static_us, plan->limits.chunk),
            plan->limits.n_ctx / 2);
    if (strcmp(plan->certificate.milp_status, "skipped") != 0)
        fprintf(out, "certified  %s: no placement is more than %.4f %% better\n", plan->certificate.milp_status,
                100 * plan->certificate.gap);
}

static double ms(double us) { return us / 1e3; }

static void print_decode(FILE *out, const struct atsi_decode_forecast *d) {
    if (d->best_us <= 0) return;
    fprintf(out, "a token    %.2f ms as placed, %.2f ms with units streamed", ms(d->static_us), ms(d->streams_us));
    if (isfinite(d->shares_us))
        fprintf(out, ", %.2f ms with both processors on each unit of the CPU", ms(d->shares_us));
    fprintf(out, "\n           %s: GPU %.2f ms, CPU %.2f ms, link %.2f ms, %u waits of the CPU at %.1f us\n",
            isfinite(d->shares_us) ? "the last one" : "as placed", ms(d->terms.gpu_us), ms(d->terms.cpu_us),
            ms(d->terms.link_us), d->terms.n_waits, d->handover_us);
}

static void print_chunks(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement) {
    if (placement->n_chunks < 2) return;
    fprintf(out, "the best for each chunk\n");
    for (uint32_t i = 0; i < placement->n_chunks; i++) {
        const struct atsi_chunk_option *o = &placement->chunks[i];
        fprintf(out, "  %5u tokens ", o->chunk);
        if (o->fits)
            fprintf(out, "decode %8.2f tokens/s, prefill %8.1f tokens/s, objective %8.2f ms%s\n", rate(o->decode_us, 1),
                    rate(o->prefill_us, o->chunk), o->objective_us / 1e3,
                    o->chunk == plan->limits.chunk ? ", chosen" : "");
        else
            fprintf(out, "no room\n");
    }
}

static bool put_budget(cJSON *root, const struct atsi_budget *b) {
    cJSON *o = cJSON_AddObjectToObject(root, "budget_bytes");
    return o && atsi_json_put(o, "vram", (double)b->vram) && atsi_json_put(o, "driver", (double)b->driver) &&
           atsi_json_put(o, "compute", (double)b->compute) && atsi_json_put(o, "kv", (double)b->states) &&
           atsi_json_put(o, "temporary", (double)b->temp) && atsi_json_put(o, "resident", (double)b->resident) &&
           atsi_json_put(o, "experts", (double)b->experts) && atsi_json_put(o, "spare", (double)b->spare);
}

static bool put_decode(cJSON *root, const struct atsi_decode_forecast *d) {
    cJSON *o = d->best_us > 0 ? cJSON_AddObjectToObject(root, "decode_round") : NULL;
    return d->best_us <= 0 ||
           (o && atsi_json_put_figure(o, "static_us", d->static_us) &&
            atsi_json_put_figure(o, "streams_us", d->streams_us) &&
            (!isfinite(d->shares_us) || atsi_json_put_figure(o, "shares_us", d->shares_us)) &&
            atsi_json_put_figure(o, "gpu_us", d->terms.gpu_us) && atsi_json_put_figure(o, "cpu_us", d->terms.cpu_us) &&
            atsi_json_put_figure(o, "link_us", d->terms.link_us) && atsi_json_put(o, "n_waits", d->terms.n_waits) &&
            atsi_json_put_figure(o, "wait_us", d->handover_us));
}

static bool put_chunks(cJSON *root, const struct atsi_placement *placement) {
    cJSON *list = cJSON_AddArrayToObject(root, "chunks");
    bool good = list != NULL;
    for (uint32_t i = 0; good && i < placement->n_chunks; i++) {
        const struct atsi_chunk_option *c = &placement->chunks[i];
        cJSON *o = cJSON_CreateObject();
        good = o && cJSON_AddItemToArray(list, o) && atsi_json_put(o, "chunk", c->chunk) &&
               cJSON_AddBoolToObject(o, "fits", c->fits) &&
               (!c->fits || atsi_json_put_figure(o, "decode_us", c->decode_us)) &&
               (!c->fits || atsi_json_put_figure(o, "prefill_us", c->prefill_us)) &&
               (!c->fits || atsi_json_put_figure(o, "objective_us", c->objective_us));
    }
    return good;
}

// ---- units --------------------------------------------------------------------------------------------------------

// Microseconds of the objective lost by moving unit i alone to the other side: its own time and the boundaries beside it.
static double value_of(const struct atsi_plan *plan, const struct atsi_solve_unit *prices, uint32_t i) {
    const struct atsi_unit *units = plan->program.units;
    if (prices[i].fix == ATSI_FIX_CPU) return ATSI_NEVER_US; // no kernels there
    enum atsi_backend here = units[i].backend, there = here == ATSI_CPU ? ATSI_GPU : ATSI_CPU;
    double gain = prices[i].t_cpu_us - prices[i].t_gpu_us, change = here == ATSI_GPU ? gain : -gain;
    if (i > 0) change += prices[i].switch_us * ((units[i - 1].backend != there) - (units[i - 1].backend != here));
    if (i + 1 < plan->program.n_units)
        change += prices[i + 1].switch_us * ((units[i + 1].backend != there) - (units[i + 1].backend != here));
    return change;
}

// Units of small tensors alone have no size of their own (place.h), so no time a MiB either.
static void print_density(FILE *out, double us, double size_mib) {
    if (size_mib > 0)
        fprintf(out, " %9.1f", us / size_mib);
    else
        fprintf(out, " %9s", "-");
}

static void print_units(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement,
                        const struct atsi_solve_unit *prices) {
    fprintf(out, "\n%-24s %4s %9s %10s %10s %10s %10s %9s %9s %10s\n", "unit", "side", "MiB", "CPU us", "GPU us",
            "switch us", "move us", "CPU us/M", "GPU us/M", "value us");
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        const struct atsi_unit_times *t = &plan->decode_times[i];
        double size = (double)atsi_budget_unit(plan, u) / mib;
        fprintf(out, "%-24s %4s %9.2f %10.1f %10.1f %10.1f %10.1f", u->name, side_words[u->backend], size,
                (double)t->cpu_us, (double)t->gpu_us, (double)t->switch_us, (double)t->transfer_us);
        print_density(out, t->cpu_us, size);
        print_density(out, t->gpu_us, size);
        fprintf(out, " %10.1f\n", value_of(plan, prices, i));
    }
    fprintf(
        out,
        "times: one decoded token; value: microseconds of the objective lost by moving that unit alone to the other\n"
        "side, at the times that the placement was solved with%s (negative: gained, had it room)\n"
        "MiB: what the placement decides about; tensors of at most %d KiB are on the GPU in any case\n",
        placement->streamed ? " (a unit on the CPU: what the link leaves of it)" : "", ATSI_SMALL_TENSOR_BYTES >> 10);
}

static bool put_units(cJSON *root, const struct atsi_plan *plan, const struct atsi_solve_unit *prices) {
    cJSON *list = cJSON_AddArrayToObject(root, "units");
    bool good = list != NULL;
    for (uint32_t i = 0; good && i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        const struct atsi_unit_times *d = &plan->decode_times[i], *p = &plan->prefill_times[i];
        cJSON *o = cJSON_CreateObject();
        good = o && cJSON_AddItemToArray(list, o) && cJSON_AddStringToObject(o, "name", u->name) &&
               cJSON_AddStringToObject(o, "side", side_words[u->backend]) &&
               atsi_json_put(o, "gpu_bytes", (double)atsi_budget_unit(plan, u)) &&
               atsi_json_put_figure(o, "decode_cpu_us", d->cpu_us) &&
               atsi_json_put_figure(o, "decode_gpu_us", d->gpu_us) &&
               atsi_json_put_figure(o, "decode_switch_us", d->switch_us) &&
               atsi_json_put_figure(o, "decode_transfer_us", d->transfer_us) &&
               atsi_json_put_figure(o, "prefill_cpu_us", p->cpu_us) &&
               atsi_json_put_figure(o, "prefill_gpu_us", p->gpu_us) &&
               atsi_json_put_figure(o, "prefill_switch_us", p->switch_us) &&
               atsi_json_put_figure(o, "prefill_transfer_us", p->transfer_us) &&
               atsi_json_put_figure(o, "value_us", value_of(plan, prices, i));
    }
    return good;
}

// ---- other methods ------------------------------------------------------------------------------------------------

static const char *const baseline_words[] = {"layers_last", "layers_first", "experts_by_layer", "density"};
static const char *const baseline_texts[] = {"whole layers, the last ones", "whole layers, the first ones",
                                             "experts of the first layers on the CPU", "single units by gain a byte"};
enum {
    N_BASELINES = 4
};

struct baselines {
    double decode_us[N_BASELINES], prefill_us[N_BASELINES];
};

static enum atsi_status compare(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                const struct atsi_place_options *options, struct baselines *out,
                                struct atsi_error *err) {
    for (int i = 0; i < N_BASELINES; i++)
        ATSI_TRY(atsi_place_baseline(plan, profile, options, (enum atsi_baseline)i, &out->decode_us[i],
                                     &out->prefill_us[i], err));
    return ATSI_OK;
}

static void print_baselines(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement,
                            const struct baselines *b) {
    fprintf(out, "placed as others place it, without dynamic transfer\n");
    for (int i = 0; i < N_BASELINES; i++)
        fprintf(out, "  %-40s decode %8.2f tokens/s, prefill %8.1f tokens/s; this plan decodes %.2f times as fast\n",
                baseline_texts[i], rate(b->decode_us[i], 1), rate(b->prefill_us[i], plan->limits.chunk),
                b->decode_us[i] / placement->decode_us);
}

static bool put_baselines(cJSON *root, const struct baselines *b) {
    cJSON *o = cJSON_AddObjectToObject(root, "baselines");
    bool good = o != NULL;
    for (int i = 0; good && i < N_BASELINES; i++) {
        cJSON *one = cJSON_AddObjectToObject(o, baseline_words[i]);
        good = one && atsi_json_put_figure(one, "decode_us", b->decode_us[i]) &&
               atsi_json_put_figure(one, "prefill_us", b->prefill_us[i]);
    }
    return good;
}

// ---- the whole -----------------------------------------------------------------------------------------------------

static enum atsi_status with_one_gib_more(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                          const struct atsi_place_options *options, struct atsi_elsewhere *out,
                                          struct atsi_error *err) {
    uint64_t more = options->vram_bytes + (UINT64_C(1) << 30);
    if (more > profile->gpu_bytes) return ATSI_OK;
    return atsi_place_elsewhere(plan, profile, options, more, plan->limits.n_ctx, out, err);
}

// What is explained, put together before anything is printed.
struct explained {
    const struct atsi_plan *plan;
    const struct atsi_placement *placement;
    struct atsi_solve_unit *prices; // [n_units]
    struct baselines baselines;
    struct atsi_elsewhere more; // with 1 GiB more; does not fit where the card has no more
    bool has_routing;
    struct atsi_routing_means routing;
};

static void print_routing(FILE *out, const struct explained *e) {
    const struct atsi_routing_means *m = &e->routing;
    if (!e->has_routing) return;
    fprintf(
        out,
        "routing    the hottest eighth of the experts gets %.1f %% of the choices, %.1f %% were chosen by the token "
        "before too, a chunk touches %.1f %%\n",
        100 * m->eighth_share, 100 * m->reused_share, 100 * m->chunk_share);
}

static bool put_routing(cJSON *root, const struct explained *e) {
    const struct atsi_routing_means *m = &e->routing;
    cJSON *o = e->has_routing ? cJSON_AddObjectToObject(root, "routing") : NULL;
    return !e->has_routing || (o && atsi_json_put_figure(o, "eighth_share", m->eighth_share) &&
                               atsi_json_put_figure(o, "reused_share", m->reused_share) &&
                               atsi_json_put_figure(o, "chunk_share", m->chunk_share));
}

static bool put_experts(cJSON *root, const struct explained *e) {
    struct atsi_resident_experts_sum sum = atsi_plan_sum_resident_experts(e->plan);
    cJSON *o = sum.n ? cJSON_AddObjectToObject(root, "experts") : NULL;
    return sum.n == 0 || (o && atsi_json_put(o, "n_resident", sum.n) && atsi_json_put(o, "n_of", sum.n_of) &&
                          atsi_json_put_figure(o, "hit_rate", sum.hit_rate) &&
                          cJSON_AddBoolToObject(o, "counted", e->placement->experts_counted));
}

static const char *const method_words[] = {"undivided", "partition", "single_experts", "layers"};

static bool put_all(cJSON *root, const struct explained *e) {
    const struct atsi_placement *p = e->placement;
    return cJSON_AddStringToObject(root, "device", e->plan->device) && put_budget(root, &p->budget) &&
           atsi_json_put(root, "chunk", e->plan->limits.chunk) && put_chunks(root, p) && put_decode(root, &p->decode) &&
           cJSON_AddStringToObject(root, "method", method_words[p->method]) &&
           atsi_json_put_figure(root, "decode_us", p->decode_us) &&
           atsi_json_put_figure(root, "prefill_us", p->prefill_us) &&
           atsi_json_put_figure(root, "decode_static_us", p->decode_static_us) &&
           atsi_json_put_figure(root, "prefill_static_us", p->prefill_static_us) &&
           atsi_json_put_figure(root, "gap", e->plan->certificate.gap) &&
           atsi_json_put(root, "n_estimated", p->n_estimated) &&
           (!e->more.fits || atsi_json_put_figure(root, "decode_us_with_1_gib_more", e->more.decode_us)) &&
           put_routing(root, e) && put_experts(root, e) && put_baselines(root, &e->baselines) &&
           put_units(root, e->plan, e->prices);
}

static enum atsi_status print_json(FILE *out, const struct explained *e, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    return atsi_json_print(out, root, root && put_all(root, e), err);
}

static void print_text(FILE *out, const struct explained *e, const struct atsi_device_profile *profile) {
    const struct atsi_placement *p = e->placement;
    atsi_explain_budget(out, e->plan, p);
    fprintf(out, "prices     %u operations estimated from fitted lines%s\n", p->n_estimated,
            profile->is_modelled ? "; the device profile is modelled, not measured" : "");
    if (e->more.fits)
        fprintf(out, "1 GiB more decode %.2f tokens/s (%+.1f %%), prefill %.1f tokens/s\n", rate(e->more.decode_us, 1),
                100 * (p->decode_us / e->more.decode_us - 1), rate(e->more.prefill_us, e->more.chunk));
    print_decode(out, &p->decode);
    print_chunks(out, e->plan, p);
    print_routing(out, e);
    print_baselines(out, e->plan, p, &e->baselines);
    print_units(out, e->plan, p, e->prices);
}

enum atsi_status atsi_explain(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, const struct atsi_placement *placement,
                              bool json, struct atsi_error *err) {
    struct explained e = {.plan = plan, .placement = placement, .has_routing = options->routing != NULL};
    if (e.has_routing) ATSI_TRY(atsi_routing_means_of(options->routing, plan->limits.chunk, &e.routing, err));
    ATSI_TRY(compare(plan, profile, options, &e.baselines, err));
    ATSI_TRY(with_one_gib_more(plan, profile, options, &e.more, err));
    e.prices = calloc(plan->program.n_units, sizeof *e.prices);
    if (!e.prices) return atsi_out_of_memory(err);
    atsi_objective_units(&placement->objective, plan, placement->streamed, e.prices);
    enum atsi_status status = json ? print_json(out, &e, err) : ATSI_OK;
    if (!json) print_text(out, &e, profile);
    free(e.prices);
    return status;
}
