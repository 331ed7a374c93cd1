#include "runtime/schedule/round_units.h"

#include <math.h>

double atsi_active_experts(const struct atsi_experts_params *e, uint32_t n_tokens) {
    return 1 - pow(1 - (double)e->n_used / e->n_experts, n_tokens);
}

uint64_t atsi_transfer_bytes(const struct atsi_program *p, const struct atsi_unit *u, uint32_t n_tokens) {
    if (!atsi_unit_runs_in_place(u, n_tokens)) return u->weight_bytes; // experts of a prefill travel whole
    const struct atsi_op *op = atsi_unit_experts_op(p, u);
    return op ? (uint64_t)((double)u->weight_bytes * atsi_active_experts(&op->u.experts, n_tokens)) : u->weight_bytes;
}

double atsi_absent_part(const struct atsi_plan *plan, uint32_t i_unit, uint32_t n_tokens) {
    const struct atsi_resident_experts *r = atsi_plan_resident_experts(plan, i_unit);
    if (!r) return 1;
    if (n_tokens == 1) return 1 - (double)r->hit_rate;
    const struct atsi_op *op = atsi_unit_experts_op(&plan->program, &plan->program.units[i_unit]);
    return 1 - (double)r->n / op->u.experts.n_experts;
}

static double longer(double a, double b) { return a > b ? a : b; }

static struct atsi_unit_times round_times(const struct atsi_plan *plan, uint32_t i, uint32_t n_tokens) {
    struct atsi_unit_times t = plan->decode_times[i], whole = plan->prefill_times[i];
    if (n_tokens == 1) return t;
    float share = (float)n_tokens / (float)plan->limits.chunk;
    t.cpu_us = (float)longer(t.cpu_us, whole.cpu_us * share);
    t.gpu_us = (float)longer(t.gpu_us, whole.gpu_us * share);
    t.switch_us = (float)longer(t.switch_us, whole.switch_us * share);
    t.transfer_us = whole.transfer_us;
    t.cpu_fixed_us = t.gpu_fixed_us = 0; // only single tokens are divided
    return t;
}

struct atsi_scales atsi_scales_contended(const struct atsi_plan *plan, const struct atsi_scales *s) {
    const struct atsi_contention *c = &plan->contention;
    return (struct atsi_scales){s->cpu * c->cpu_beside_link, s->gpu, s->link * c->link_beside_cpu, s->handover_us};
}

void atsi_round_units(const struct atsi_plan *plan, uint32_t n_tokens, uint64_t temp_bytes,
                      const struct atsi_scales *scales, struct atsi_schedule_unit *units) {
    static const struct atsi_scales as_profiled = {1, 1, 1, 0};
    if (!scales) scales = &as_profiled;
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        struct atsi_unit_times t = round_times(plan, i, n_tokens);
        // What runs in place holds no part of the region; what cannot be promoted does not fit it. Absent experts stand there
        // as they do in the whole.
        uint64_t size = !atsi_unit_is_promotable(u)            ? temp_bytes + 1
                        : atsi_unit_runs_in_place(u, n_tokens) ? 0
                                                               : atsi_transfer_bytes(&plan->program, u, n_tokens);
        units[i] = (struct atsi_schedule_unit){.size_bytes = size,
                                               .t_cpu_us = t.cpu_us * scales->cpu,
                                               .t_gpu_us = t.gpu_us * scales->gpu,
                                               .cpu_fixed_us = t.cpu_fixed_us * scales->cpu,
                                               .gpu_fixed_us = t.gpu_fixed_us * scales->gpu,
                                               .switch_us = t.switch_us + scales->handover_us,
                                               .transfer_us =
                                                   t.transfer_us * scales->link * atsi_absent_part(plan, i, n_tokens),
                                               .after = u->router_unit == ATSI_NONE ? ATSI_AFTER_START : u->router_unit,
                                               .home = u->backend};
    }
}

void atsi_units_read_in_place(const struct atsi_plan *plan, struct atsi_schedule_unit *units) {
    const struct atsi_contention *c = &plan->contention;
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        if (atsi_unit_runs_in_place(&plan->program.units[i], 1))
            units[i].transfer_us *= c->link_in_place / c->link_beside_cpu;
}
