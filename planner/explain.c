#include "planner/explain.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/what_if.h"

static const char *const side_words[] = {"cpu", "gpu"};
static const double mib = 1 << 20;

static double rate(double us, double n_tokens) { return us > 0 ? 1e6 * n_tokens / us : 0; }

static const char *method_text(enum atsi_place_method method) {
    return method == ATSI_PLACE_PARTITION ? "Algorithm 1 (experts and the others apart)" : "all units together";
}

// ---- budget -------------------------------------------------------------------------------------------------------

static void print_line(FILE *out, const char *name, uint64_t bytes, const char *what) {
    fprintf(out, "  %-9s %9.0f MiB  %s\n", name, (double)bytes / mib, what);
}

void atsi_explain_budget(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement) {
    const struct atsi_budget *b = &placement->budget;
    fprintf(out, "GPU memory for %s\n", plan->device);
    print_line(out, "driver", b->driver, "context, modules, handles, captured rounds");
    print_line(out, "compute", b->compute, "activations and kernel scratch at the planned chunk");
    print_line(out, "KV", b->states, "caches and states of the layers whose attention is on the GPU");
    print_line(out, "temporary", b->temp, "weights moved for a round");
    print_line(out, "resident", b->resident, "weights that stay");
    print_line(out, "spare", b->spare, "left over");
    print_line(out, "in all", b->vram, "--vram");
    fprintf(out, "placed as %s%s", method_text(placement->method),
            placement->streamed ? ", leaving to streaming what it can carry" : "");
    if (placement->other_decode_us > 0)
        fprintf(out, " (%.2f ms a token; %s: %.2f)", placement->decode_us / 1e3,
                method_text(placement->method == ATSI_PLACE_PARTITION ? ATSI_PLACE_UNDIVIDED : ATSI_PLACE_PARTITION),
                placement->other_decode_us / 1e3);
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

static bool put(cJSON *object, const char *field, double value) {
    return cJSON_AddNumberToObject(object, field, value) != NULL;
}

static bool put_budget(cJSON *root, const struct atsi_budget *b) {
    cJSON *o = cJSON_AddObjectToObject(root, "budget_bytes");
    return o && put(o, "vram", (double)b->vram) && put(o, "driver", (double)b->driver) &&
           put(o, "compute", (double)b->compute) && put(o, "kv", (double)b->states) &&
           put(o, "temporary", (double)b->temp) && put(o, "resident", (double)b->resident) &&
           put(o, "spare", (double)b->spare);
}

// ---- units --------------------------------------------------------------------------------------------------------

// The objective (docs/placement.md) of the static placement, of unit i on `side` and the others as they are.
static double boundary_us(const struct atsi_plan *plan, double weight, uint32_t i) {
    return (1 - weight) * plan->decode_times[i].switch_us +
           weight * plan->prefill_times[i].switch_us / plan->limits.chunk;
}

static double side_us(const struct atsi_plan *plan, double weight, uint32_t i, enum atsi_backend side) {
    const struct atsi_unit_times *d = &plan->decode_times[i], *p = &plan->prefill_times[i];
    return side == ATSI_CPU ? (1 - weight) * d->cpu_us + weight * p->cpu_us / plan->limits.chunk
                            : (1 - weight) * d->gpu_us + weight * p->gpu_us / plan->limits.chunk;
}

// Microseconds a token lost by moving unit i alone to the other side: its own time and the boundaries beside it.
static double value_of(const struct atsi_plan *plan, double weight, uint32_t i) {
    const struct atsi_unit *units = plan->program.units;
    enum atsi_backend here = units[i].backend, there = here == ATSI_CPU ? ATSI_GPU : ATSI_CPU;
    double change = side_us(plan, weight, i, there) - side_us(plan, weight, i, here);
    if (i > 0)
        change += boundary_us(plan, weight, i) * ((units[i - 1].backend != there) - (units[i - 1].backend != here));
    if (i + 1 < plan->program.n_units)
        change += boundary_us(plan, weight, i + 1) * ((units[i + 1].backend != there) - (units[i + 1].backend != here));
    return change;
}

// Units of small tensors alone have no size of their own (place.h), so no time a MiB either.
static void print_density(FILE *out, double us, double size_mib) {
    if (size_mib > 0)
        fprintf(out, " %9.1f", us / size_mib);
    else
        fprintf(out, " %9s", "-");
}

static void print_units(FILE *out, const struct atsi_plan *plan, double weight) {
    fprintf(out, "\n%-24s %4s %9s %10s %10s %10s %10s %9s %9s %10s\n", "unit", "side", "MiB", "CPU us", "GPU us",
            "switch us", "move us", "CPU us/M", "GPU us/M", "value us");
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        const struct atsi_unit_times *t = &plan->decode_times[i];
        double size = (double)atsi_place_unit_bytes(plan, u) / mib;
        fprintf(out, "%-24s %4s %9.2f %10.1f %10.1f %10.1f %10.1f", u->name, side_words[u->backend], size,
                (double)t->cpu_us, (double)t->gpu_us, (double)t->switch_us, (double)t->transfer_us);
        print_density(out, t->cpu_us, size);
        print_density(out, t->gpu_us, size);
        fprintf(out, " %10.1f\n", value_of(plan, weight, i));
    }
    fprintf(out,
            "times: one decoded token; value: microseconds a token lost by moving that unit alone to the other side "
            "(negative: gained, had it room)\n"
            "MiB: what the placement decides about; tensors of at most %d KiB are on the GPU in any case\n",
            ATSI_SMALL_TENSOR_BYTES >> 10);
}

static bool put_units(cJSON *root, const struct atsi_plan *plan, double weight) {
    cJSON *list = cJSON_AddArrayToObject(root, "units");
    bool good = list != NULL;
    for (uint32_t i = 0; good && i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        const struct atsi_unit_times *d = &plan->decode_times[i], *p = &plan->prefill_times[i];
        cJSON *o = cJSON_CreateObject();
        good = o && cJSON_AddItemToArray(list, o) && cJSON_AddStringToObject(o, "name", u->name) &&
               cJSON_AddStringToObject(o, "side", side_words[u->backend]) &&
               put(o, "gpu_bytes", (double)atsi_place_unit_bytes(plan, u)) && put(o, "decode_cpu_us", d->cpu_us) &&
               put(o, "decode_gpu_us", d->gpu_us) && put(o, "decode_switch_us", d->switch_us) &&
               put(o, "decode_transfer_us", d->transfer_us) && put(o, "prefill_cpu_us", p->cpu_us) &&
               put(o, "prefill_gpu_us", p->gpu_us) && put(o, "prefill_switch_us", p->switch_us) &&
               put(o, "prefill_transfer_us", p->transfer_us) && put(o, "value_us", value_of(plan, weight, i));
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
        good = one && put(one, "decode_us", b->decode_us[i]) && put(one, "prefill_us", b->prefill_us[i]);
    }
    return good;
}

// ---- the whole -----------------------------------------------------------------------------------------------------

static enum atsi_status with_one_gib_more(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                          const struct atsi_place_options *options, bool *fits,
                                          struct atsi_placement *out, struct atsi_error *err) {
    uint64_t more = options->vram_bytes + (UINT64_C(1) << 30);
    *fits = false;
    if (more > profile->gpu_bytes) return ATSI_OK;
    return atsi_place_elsewhere(plan, profile, options, more, plan->limits.n_ctx, fits, out, err);
}

static enum atsi_status print_object(FILE *out, cJSON *root, bool good, struct atsi_error *err) {
    char *text = good ? cJSON_PrintUnformatted(root) : NULL;
    if (text) fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
    return text ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory");
}

enum atsi_status atsi_explain(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, const struct atsi_placement *placement,
                              bool json, struct atsi_error *err) {
    struct atsi_placement more;
    struct baselines baselines;
    bool fits;
    ATSI_TRY(compare(plan, profile, options, &baselines, err));
    ATSI_TRY(with_one_gib_more(plan, profile, options, &fits, &more, err));
    if (json) {
        cJSON *root = cJSON_CreateObject();
        bool good = root && cJSON_AddStringToObject(root, "device", plan->device) &&
                    put_budget(root, &placement->budget) &&
                    cJSON_AddStringToObject(root, "method",
                                            placement->method == ATSI_PLACE_PARTITION ? "partition" : "undivided") &&
                    put(root, "decode_us", placement->decode_us) && put(root, "prefill_us", placement->prefill_us) &&
                    put(root, "decode_static_us", placement->decode_static_us) &&
                    put(root, "prefill_static_us", placement->prefill_static_us) &&
                    put(root, "gap", plan->certificate.gap) && put(root, "n_estimated", placement->n_estimated) &&
                    (!fits || put(root, "decode_us_with_1_gib_more", more.decode_us)) &&
                    put_baselines(root, &baselines) && put_units(root, plan, options->prefill_weight);
        return print_object(out, root, good, err);
    }
    atsi_explain_budget(out, plan, placement);
    fprintf(out, "prices     %u operations estimated from fitted lines%s\n", placement->n_estimated,
            profile->is_modelled ? "; the device profile is modelled, not measured" : "");
    if (fits)
        fprintf(out, "1 GiB more decode %.2f tokens/s (%+.1f %%), prefill %.1f tokens/s\n", rate(more.decode_us, 1),
                100 * (placement->decode_us / more.decode_us - 1), rate(more.prefill_us, plan->limits.chunk));
    print_baselines(out, plan, placement, &baselines);
    print_units(out, plan, options->prefill_weight);
    return ATSI_OK;
}
